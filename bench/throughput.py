"""One fast TCP feed into a jsonb landing table, against ``psql \\copy`` of the same lines.

Both run in turn on the same server, data directory and bytes. The feed is timed from the first record that
the source sends to the commit of the last one, as its checkpoint says; ``\\copy`` is timed by the clock
around the command, less what an empty one takes. The ratio is the median over the rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Figure, at_least, say
from feedq.embedded.postgres import Postgres
from feedq.embedded.valkey import Valkey
from tests.cluster import Cluster, feed, wait_until
from tests.source import fast_lines
from tests.source_process import Source

RECORDS = 1_000_000
PAD = 105
"""Makes lines of about 170 bytes."""
ROUNDS = 3
RATIO_MUST = 0.6
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Round:
    """Records per second, both ways."""

    feed: float
    copy: float

    @property
    def ratio(self) -> float:
        return self.feed / self.copy


def measure(directory: Path, *, records: int = RECORDS, rounds: int = ROUNDS) -> Iterator[Figure]:
    postgres, valkey = Postgres(directory), Valkey(directory)
    postgres.start()
    valkey.start()
    try:
        results = [_round(directory, postgres, valkey, records=records, number=n) for n in range(rounds)]
    finally:
        valkey.stop()
        postgres.stop()
    ratio = statistics.median(result.ratio for result in results)
    runs = ", ".join(f"{r.feed / 1000:.0f}k/{r.copy / 1000:.0f}k rows/s" for r in results)
    yield at_least("one fast feed into jsonb / psql \\copy", RATIO_MUST, ratio, runs=runs)


def _round(directory: Path, postgres: Postgres, valkey: Valkey, *, records: int, number: int) -> Round:
    url = postgres.create_database(f"throughput{number}")
    name = f"fast/{number}"
    lines = directory / "lines.jsonl"
    lines.write_bytes(fast_lines(name, records, pad=PAD))
    # In turn: what the machine does meanwhile should not favour the same side each time.
    if number % 2:
        copied = _copy(postgres, url, lines, records=records)
        fed = _feed(directory, url, valkey.url(), name, records=records)
    else:
        fed = _feed(directory, url, valkey.url(), name, records=records)
        copied = _copy(postgres, url, lines, records=records)
    lines.unlink()
    postgres.drop_database(f"throughput{number}")
    say(f"throughput, round {number + 1}: feed {fed:,.0f} rows/s, \\copy {copied:,.0f} rows/s")
    return Round(fed, copied)


def _feed(directory: Path, url: str, broker_url: str, name: str, *, records: int) -> float:
    with Source() as source, Cluster(directory, database_url=url, broker_url=broker_url) as cluster:
        source.behave("fast", [name], count=records, pad=PAD)
        cluster.add_beat("beat")
        cluster.add_worker("w1", capacity=10)
        cluster.apply([feed(name, source.url)])
        wait_until(
            lambda: cluster.sql("SELECT 1 FROM pg_tables WHERE tablename = 'feedq_checkpoint'"),
            limit_s=30,
            what="the sink has its checkpoint table",
        )
        done = wait_until(
            lambda: cluster.sql("SELECT 1 FROM feedq_checkpoint WHERE records >= %s", (records,)),
            limit_s=LIMIT_S,
            what="the feed has landed",
            interval_s=0.005,
        )
        (began,) = [c.first_record_at for c in source.connections()]
        assert began is not None
        (row,) = cluster.sql("SELECT count(*) AS n FROM landed")
        assert row["n"] == records, f"{row['n']} of {records} records landed"
    return records / (done - began)


def _copy(postgres: Postgres, url: str, lines: Path, *, records: int) -> float:
    psql = postgres.binaries.bin / "psql"
    assert psql.exists(), f"no psql beside {psql.parent}"
    empty = lines.with_name("empty.jsonl")
    empty.touch()
    _psql(psql, url, "CREATE TABLE copied (payload jsonb)")
    overhead_s = _psql(psql, url, f"\\copy copied FROM '{empty}'")
    took_s = _psql(psql, url, f"\\copy copied FROM '{lines}'") - overhead_s
    return records / took_s


def _psql(psql: Path, url: str, command: str) -> float:
    began = time.monotonic()
    subprocess.run(
        [str(psql), url, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--command", command],
        check=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return time.monotonic() - began
