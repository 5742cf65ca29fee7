"""One fast TCP feed through a real worker, against ``psql \\copy`` of the same records.

Both run in turn on the same server. The feed is timed from its first byte to the commit of its last record, as
its checkpoint says; ``\\copy`` is timed by the clock around the command, less what an empty one takes. The
server writes a checkpoint before each of them, so that none pays for the other's pages. A ratio is one of two
rates of the same round, and the figure is the median over the rounds.

What feedq lands besides the records (feed, epoch and time of receipt beside each, and checkpoints) is part of its
time.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import trades
from bench.report import Figure, at_least, say
from bench.senders import Sender
from bench.servers import running
from feedq.local.postgres import Postgres
from tests.cluster import Cluster, wait_until

RECORDS = 3_000_000
"""Some seconds each way: the quarter of a second that the last records of a feed wait does not count for much."""
ROUNDS = 3
LIMIT_S = 180.0

MUST: Final = {"jsonb": 0.85, "columns": 0.5, "key": 0.4, "spoiled": 0.5}
CASES: Final = {
    "jsonb": "one fast TCP feed into jsonb / psql \\copy",
    "columns": "one fast TCP feed into five typed columns / psql \\copy",
    "key": "the same with a key / psql \\copy into a table with that unique index",
    "spoiled": "one record in 1,000 refused by the database / none",
}
_TYPED: Final = ", ".join(f"{name} {type_}" for name, type_ in trades.COLUMNS.items())
TABLES: Final = {"columns": f"({_TYPED})", "key": f"({_TYPED}, UNIQUE (id))"}
"""Tables that are there before the feed."""
COPIED: Final = {"jsonb": "(payload jsonb)", **TABLES}
"""Tables that ``\\copy`` fills."""
MAPPING: Final = {name: f"/{name}" for name in trades.COLUMNS}
SINKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "jsonb": {},
    "columns": {"columns": MAPPING},
    "key": {"columns": MAPPING, "key": ["id"]},
    "spoiled": {},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The files, the servers and the running worker."""

    directory: Path
    postgres: Postgres
    cluster: Cluster
    senders: Mapping[str, Sender]
    records: int
    bad: list[bytes] = field(default_factory=list)

    def file(self, kind: str) -> Path:
        return self.directory / kind


def measure(directory: Path, *, records: int = RECORDS, rounds: int = ROUNDS) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        ratios = _measure(directory, postgres, valkey.url(), records=records, rounds=rounds)
    for case, name in CASES.items():
        runs = ", ".join(f"{over / 1000:.0f}k/{under / 1000:.0f}k rows/s" for over, under in ratios[case])
        ratio = statistics.median(over / under for over, under in ratios[case])
        yield at_least(name, MUST[case], ratio, runs=runs)


def _measure(
    directory: Path, postgres: Postgres, broker_url: str, *, records: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    trades.write_files(directory / "lines", directory / "columns", count=records)
    bad = trades.spoil(directory / "lines", directory / "spoiled", count=records)
    url = postgres.create_database("landing")
    ratios: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with (
        Sender("tcp", file=directory / "lines") as clean,
        Sender("tcp", file=directory / "spoiled") as spoiled,
        Cluster(directory, database_url=url, broker_url=broker_url) as cluster,
    ):
        cluster.add_beat("beat")
        cluster.add_worker("w1", capacity=100)
        senders = {case: spoiled if case == "spoiled" else clean for case in CASES}
        stage = Stage(directory, postgres, cluster, senders, records, bad)
        _feed(stage, "jsonb", "warm")
        for number in range(rounds):
            for case, rates in _round(stage, number).items():
                ratios[case].append(rates)
    return ratios


def _round(stage: Stage, number: int) -> dict[str, tuple[float, float]]:
    rates: dict[str, tuple[float, float]] = {}
    for case in COPIED:
        # In turn: what the machine does meanwhile should not favour the same side each time.
        if number % 2:
            copied = _copy(stage, case)
            fed = _feed(stage, case, number)
        else:
            fed = _feed(stage, case, number)
            copied = _copy(stage, case)
        rates[case] = (fed, copied)
        _show(number, case, rates[case])
    rates["spoiled"] = (_feed(stage, "spoiled", number), rates["jsonb"][0])
    _show(number, "spoiled", rates["spoiled"])
    return rates


def _show(number: int, case: str, rates: tuple[float, float]) -> None:
    over, under = rates
    say(f"landing, round {number + 1}: {case} {over:,.0f} / {under:,.0f} rows/s = {over / under:.2f}")


def _feed(stage: Stage, case: str, number: int | str) -> float:
    """Records a second of a new feed into a new table."""
    cluster, sender = stage.cluster, stage.senders[case]
    name, table = f"{case}/{number}", f"{case}_{number}"
    if case in TABLES:
        cluster.sql(f"CREATE TABLE {table} {TABLES[case]}")
    cluster.sql("CHECKPOINT")
    cluster.apply(
        [
            {
                "name": name,
                "connector": "tcp",
                # The sender says everything once: a second connection would get all of it again.
                "source": {
                    "url": sender.url,
                    "hello": "from {cursor}\n",
                    "cursor": "/id",
                    "idle_timeout_s": 0,
                },
                "sink": {"name": "default", "table": table, **SINKS[case]},
            }
        ]
    )
    began = sender.began_at()
    good = stage.records - (len(stage.bad) if case == "spoiled" else 0)
    done = wait_until(
        lambda: cluster.sql("SELECT 1 FROM feedq_checkpoint WHERE feed = %s AND records >= %s", (name, good)),
        lambda: f"{name} has landed: {cluster.sql('SELECT feed, records, cursor FROM feedq_checkpoint')}",
        limit_s=LIMIT_S,
        interval_s=0.01,
    )
    _check(stage, case, table, name=name)
    cluster.feedq("feed", "remove", name, "--yes", "--wait")
    cluster.sql(f"DROP TABLE {table}; DELETE FROM feedq_dead_letter")
    return stage.records / (done - began)


def _check(stage: Stage, case: str, table: str, *, name: str) -> None:
    """Every good record is in the table once, and every bad one in the dead letters."""
    id_ = "id" if case in TABLES else "(payload ->> 'id')::bigint"
    (found,) = stage.cluster.sql(f"SELECT count(*) AS n, sum({id_}) AS sum FROM {table}")
    bad = stage.bad if case == "spoiled" else []
    lost = sum(int(record.split(b":")[1].split(b",")[0]) for record in bad)
    n = stage.records
    assert (found["n"], found["sum"]) == (n - len(bad), n * (n + 1) // 2 - lost), f"{name}: {found}"
    dead = stage.cluster.sql("SELECT record FROM feedq_dead_letter WHERE feed = %s", (name,))
    assert sorted(bytes(row["record"]) for row in dead) == sorted(bad), (
        f"{name}: {len(dead)} dead letters, not {len(bad)}"
    )


def _copy(stage: Stage, case: str) -> float:
    """Records a second of ``\\copy``."""
    psql = stage.postgres.binaries.bin / "psql"
    assert psql.exists(), f"no psql beside {psql.parent}"
    url = stage.cluster.database_url
    file = stage.file("lines" if case == "jsonb" else "columns")
    empty = stage.file("empty")
    empty.touch()
    stage.cluster.sql(f"CREATE TABLE copied {COPIED[case]}; CHECKPOINT")
    overhead_s = _psql(psql, url, f"\\copy copied FROM '{empty}'")
    took_s = _psql(psql, url, f"\\copy copied FROM '{file}'") - overhead_s
    stage.cluster.sql("DROP TABLE copied")
    return stage.records / took_s


def _psql(psql: Path, url: str, command: str) -> float:
    began = time.monotonic()
    subprocess.run(
        [str(psql), url, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--command", command],
        check=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return time.monotonic() - began
