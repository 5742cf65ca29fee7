"""Schedules: runs a second, the delay from due to start, a killed worker, the spread, and how it all grows.

Workers are real processes, started as the Procfile has it (``-Q jobs``), and the moments are the database's own:
``started_at``, ``ended_at`` and ``due_at`` of the runs. Plain Celery runs the same empty task in turn with feedq,
over the same Valkey (`bench.plain_celery`). What is measured on rows alone is in `bench.job_rows`.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from bench import job_rows, plain_celery
from bench.report import Figure, at_least, at_most, say
from bench.servers import running
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.spec import Overlap
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import Cluster, wait_until
from tests.schedules import Keys, schedule_spec

IMPORTS: Final = {"FEEDQ_IMPORTS": "bench.job_tasks"}
NOTHING: Final[Keys] = {"task": "bench.nothing"}
SLOTS: Final = 8
LIMIT_S: Final = 120.0

ROUNDS: Final = 3
BACKLOG: Final = 5_000
RATIO_MUST: Final = 1.5
"""Of plain Celery's on threads, in the same rounds."""

AT_ONCE: Final = 10_000
"""Schedules of one moment, on `AT_ONCE_WORKERS`."""
AT_ONCE_WORKERS: Final = 3
AT_ONCE_MUST_S: Final = 10.0
AT_ONCE_IN_S: Final = 10.0
"""From the last declaration until they fall due."""

TICKING: Final = 30
"""Schedules of one second, whose ticks all fall on the same moment."""
SETTLE_S: Final = 5.0
WINDOW_S: Final = 20.0
LAST_S: Final = 2.0
"""Before the schedules are paused, one after the other: of the last ticks not all may come."""
P50_MUST_S: Final = 0.05
P99_MUST_S: Final = 0.1

KILLS: Final = 5
BUSY_S: Final = 600.0
AFTER_KILL_S: Final = 2.0
"""Runs that fall due within this of a kill are looked at."""
AFTER_KILL_MUST_S: Final = 2.5

SPREAD_RUNS: Final = 10_000
SPREAD_SCHEDULES: Final = 200
SPREAD_WORKERS: Final = 4
SPREAD_MUST_PERCENT: Final = 5.0


def measure(directory: Path) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        yield from throughput(directory, postgres, valkey)
        yield from lag(directory, postgres, valkey)
        yield from at_once(directory, postgres, valkey)
        yield from kills(directory, postgres, valkey)
        yield from spread(directory, postgres, valkey)
        yield from job_rows.measure(postgres)


# -- runs a second -----------------------------------------------------------------------------------


def throughput(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """feedq and both pools of Celery in turn, so that each has a share of the machine's good and bad minutes."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {"threads": [], "prefork": []}
    with _cluster(directory, postgres, valkey, "throughput") as (cluster, schedules):
        for number in range(ROUNDS):
            ours.append(_runs_per_s(cluster, schedules, f"backlog-{number}"))
            for pool, rates in theirs.items():
                rates.append(plain_celery.runs_per_s(directory, valkey, pool=pool, runs=BACKLOG))
            celery = ", ".join(f"Celery {pool} {rates[-1]:,.0f}" for pool, rates in theirs.items())
            say(f"jobs: {ours[-1]:,.0f} runs/s; {celery}")
    case = f"an empty task, one worker with {SLOTS} slots, runs/s"
    yield Figure(f"{case}: feedq", "-", f"{statistics.median(ours):.3g} ({_each(ours)})", None)
    ratio = statistics.median(ours) / statistics.median(theirs["threads"])
    yield at_least(f"{case}: feedq beside Celery alone, -P threads", RATIO_MUST, ratio)
    for pool, rates in theirs.items():
        measured = f"{statistics.median(rates):.3g} ({_each(rates)})"
        yield Figure(f"{case}: Celery alone, -P {pool}, results ignored", "-", measured, None)


def _runs_per_s(cluster: Cluster, schedules: ScheduleStore, name: str) -> float:
    """From the first start to the last end of a backlog that waits before the worker starts."""
    schedules.add(schedule_spec(name, every=60.0, **NOTHING, overlap=Overlap.ALLOW_ALL, paused=True))
    first = datetime(2020, 1, 1, tzinfo=UTC)
    made, _ = schedules.backfill(name, [first + timedelta(minutes=n) for n in range(BACKLOG)])
    assert made == BACKLOG
    worker = cluster.add_worker(name, "-Q", "jobs", capacity=SLOTS)
    wait_until(
        lambda: not cluster.sql("SELECT 1 FROM feedq.run WHERE ended_at IS NULL LIMIT 1"),
        lambda: f"{BACKLOG:,} runs have ended; the worker's log ends:\n{worker.text()[-3000:]}",
        limit_s=LIMIT_S,
        interval_s=0.2,
    )
    worker.end(grace_s=10)
    (found,) = cluster.sql(
        "SELECT count(*) FILTER (WHERE state = 'succeeded') AS n, "
        "extract(epoch FROM max(ended_at) - min(started_at))::float8 AS took_s "
        "FROM feedq.run WHERE schedule_id = (SELECT id FROM feedq.schedule WHERE name = %s)",
        (name,),
    )
    assert found["n"] == BACKLOG, found
    return float(BACKLOG / found["took_s"])


# -- from due to start -------------------------------------------------------------------------------


def lag(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """`TICKING` runs that fall due at the same moment, every second, on two workers."""
    with _cluster(directory, postgres, valkey, "lag") as (cluster, schedules):
        cluster.add_beat("beat")
        for name in ("w1", "w2"):
            cluster.add_worker(name, "-Q", "jobs", capacity=SLOTS)
        for n in range(TICKING):
            schedules.add(schedule_spec(f"tick-{n}", every=1.0, **NOTHING))
        time.sleep(SETTLE_S + WINDOW_S + LAST_S)
        for n in range(TICKING):
            schedules.pause(f"tick-{n}")
        wait_until(
            lambda: not cluster.sql("SELECT 1 FROM feedq.run WHERE ended_at IS NULL LIMIT 1"),
            "all have ended",
            limit_s=LIMIT_S,
        )
        (found,) = cluster.sql(
            """
            SELECT count(*) AS n, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
                percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
                    ORDER BY extract(epoch FROM started_at - due_at)::float8) AS lags
            FROM (SELECT *, max(due_at) OVER () - make_interval(secs => %s) AS until FROM feedq.run) r
            WHERE due_at <= until AND due_at > until - make_interval(secs => %s)
            """,
            (LAST_S, WINDOW_S),
        )
    assert found["n"] == found["succeeded"] == TICKING * WINDOW_S, found
    p50_s, p99_s, worst_s = found["lags"]
    say(f"jobs: lag p50 {p50_s:.3f} s, p99 {p99_s:.3f} s, worst {worst_s:.3f} s")
    case = f"{TICKING} schedules of one second on 2 workers: from due to start"
    yield at_most(f"{case}, p50", P50_MUST_S, p50_s, "s")
    yield at_most(f"{case}, p99", P99_MUST_S, p99_s, "s", runs=f"worst {worst_s:.3g} s")


# -- all at once -------------------------------------------------------------------------------------


def at_once(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """`AT_ONCE` schedules whose ticks fall on the same moment: when the last of their runs begins."""
    with _cluster(directory, postgres, valkey, "at-once") as (cluster, schedules):
        for n in range(AT_ONCE_WORKERS):
            cluster.add_worker(f"w{n}", "-Q", "jobs", capacity=SLOTS)
        (row,) = cluster.sql("SELECT clock_timestamp() + make_interval(secs => 3600) AS at")
        schedules.add(schedule_spec("once-0", at=(row["at"],), **NOTHING))
        # One is declared; the others are copies of its row, which takes a second instead of a minute.
        cluster.sql(
            "INSERT INTO feedq.schedule (name, declaration, next_tick_at, next_fire_at) "
            "SELECT 'once-' || n, declaration || jsonb_build_object('name', 'once-' || n), "
            "next_tick_at, next_fire_at "
            "FROM feedq.schedule, generate_series(1, %s) n",
            (AT_ONCE - 1,),
        )
        cluster.sql(
            "UPDATE feedq.schedule s SET declaration = declaration || jsonb_build_object('at', jsonb_build_array("
            """to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))), """
            "next_tick_at = at, next_fire_at = at "
            "FROM (SELECT date_trunc('second', clock_timestamp() + make_interval(secs => %s)) AS at) moment",
            (AT_ONCE_IN_S,),
        )
        wait_until(
            lambda: _ended(cluster) >= AT_ONCE,
            lambda: f"{AT_ONCE:,} runs have ended: {_ended(cluster):,} have",
            limit_s=LIMIT_S,
            interval_s=0.5,
        )
        (found,) = cluster.sql(
            "SELECT max(extract(epoch FROM started_at - due_at))::float8 AS last_s FROM feedq.run"
        )
    say(f"jobs: {AT_ONCE:,} at once, the last after {found['last_s']:.1f} s")
    case = f"{AT_ONCE:,} schedules due at once on {AT_ONCE_WORKERS} workers: until the last run begins"
    yield at_most(case, AT_ONCE_MUST_S, found["last_s"], "s")


# -- a killed worker ---------------------------------------------------------------------------------


def kills(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """Runs that fall due when one of two workers has just been killed, all of whose slots are busy."""
    worst: list[float] = []
    with _cluster(directory, postgres, valkey, "kills") as (cluster, schedules):
        cluster.add_beat("beat")
        schedules.add(
            schedule_spec("busy", every=86_400.0, task="bench.busy", args=[BUSY_S], overlap=Overlap.ALLOW_ALL)
        )
        for n in range(TICKING):
            schedules.add(schedule_spec(f"tick-{n}", every=1.0, **NOTHING))
        for number in range(KILLS):
            waits = _kill_one(cluster, schedules, number)
            worst.append(max(waits))
            say(f"jobs: {len(waits)} runs fell due after the kill, started {max(waits):.2f} s late at most")
    case = (
        f"`kill -9` of one of two workers: the longest from due to start in the {AFTER_KILL_S:g} s after it"
    )
    yield at_most(case, AFTER_KILL_MUST_S, max(worst), "s", runs=_each(worst))


def _kill_one(cluster: Cluster, schedules: ScheduleStore, number: int) -> Sequence[float]:
    """Returns how late the runs started that fell due right after the kill."""
    victim = cluster.add_worker(f"victim{number}", "-Q", "jobs", capacity=SLOTS)
    for _ in range(SLOTS):
        schedules.trigger("busy")
    wait_until(
        lambda: (
            len(cluster.sql("SELECT 1 FROM feedq.run WHERE state = 'running' AND kind = 'trigger'")) == SLOTS
        ),
        "all slots are busy",
        limit_s=LIMIT_S,
    )
    survivor = cluster.add_worker(f"survivor{number}", "-Q", "jobs", capacity=SLOTS)
    time.sleep(SETTLE_S)
    (now,) = cluster.sql("SELECT clock_timestamp() AS at")
    victim.signal(signal.SIGKILL)
    time.sleep(AFTER_KILL_S)
    rows: list[dict[str, float | None]] = []

    def has_begun() -> bool:
        rows[:] = cluster.sql(
            "SELECT extract(epoch FROM started_at - due_at)::float8 AS late_s FROM feedq.run "
            "WHERE kind = 'tick' AND due_at BETWEEN %s AND %s + make_interval(secs => %s) "
            "AND state <> 'skipped_overlap'",
            (now["at"], now["at"], AFTER_KILL_S),
        )
        return all(row["late_s"] is not None for row in rows)

    wait_until(has_begun, "all of them have been started", limit_s=LIMIT_S)
    assert rows, "no run fell due"
    survivor.end(grace_s=10)
    return [row["late_s"] for row in rows if row["late_s"] is not None]


# -- the spread --------------------------------------------------------------------------------------


def spread(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """`SPREAD_RUNS` ticks on four workers of the same size: how far each is from a quarter."""
    with _cluster(directory, postgres, valkey, "spread") as (cluster, schedules):
        cluster.add_beat("beat")
        for n in range(SPREAD_WORKERS):
            cluster.add_worker(f"w{n}", "-Q", "jobs", capacity=SLOTS)
        time.sleep(SETTLE_S)
        for n in range(SPREAD_SCHEDULES):
            schedules.add(schedule_spec(f"tick-{n}", every=1.0, **NOTHING, jitter=1.0))
        wait_until(
            lambda: _ended(cluster) >= SPREAD_RUNS,
            lambda: f"{SPREAD_RUNS:,} runs have ended: {_ended(cluster):,} have",
            limit_s=LIMIT_S,
            interval_s=0.5,
        )
        rows = cluster.sql(
            "SELECT count(*) AS n FROM (SELECT worker_id FROM feedq.run WHERE state = 'succeeded' "
            "ORDER BY id LIMIT %s) r GROUP BY worker_id",
            (SPREAD_RUNS,),
        )
    counts = sorted(row["n"] for row in rows)
    equal = SPREAD_RUNS / SPREAD_WORKERS
    most = 100 * max(abs(count - equal) / equal for count in [*counts, *([0] if len(counts) < 4 else [])])
    say(f"jobs: {counts} runs on {len(counts)} workers")
    case = f"{SPREAD_RUNS:,} runs on {SPREAD_WORKERS} equal workers: largest deviation from equal"
    yield at_most(case, SPREAD_MUST_PERCENT, most, "%", runs=", ".join(f"{count:,}" for count in counts))


def _ended(cluster: Cluster) -> int:
    (row,) = cluster.sql("SELECT count(*) AS n FROM feedq.run WHERE state = 'succeeded'")
    return int(row["n"])


@contextmanager
def _cluster(
    directory: Path, postgres: Postgres, valkey: Valkey, name: str
) -> Iterator[tuple[Cluster, ScheduleStore]]:
    """A cluster on a database of its own, and its schedules."""
    url = postgres.create_database(name)
    with (
        Cluster(directory, database_url=url, broker_url=valkey.url(), env=IMPORTS) as cluster,
        closing(PostgresStore(url)) as store,
    ):
        yield cluster, store.jobs.schedules


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
