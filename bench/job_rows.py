"""Schedules at size: a hundred thousand of them, and a million missed ticks, as rows of a real PostgreSQL.

The schedules are declared as `feedq.control.store.jobs.schedules` leaves them, and everything that is measured
is the real thing, called as workers and commands call it. What is called often is called `REPEATS` times, on one
session."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg2

from bench.report import Figure, at_most, say
from feedq.control.store.migrate import upgrade
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import NewWorker
from feedq.core.schedule.model import Finish, Offer, RunState
from feedq.core.schedule.spec import CatchUp
from feedq.local.postgres import Postgres
from tests.cluster import FEEDQ
from tests.schedules import schedule_spec

SCHEDULES: Final = 100_000
FIRED: Final = 10_000
"""Of them, before the second idle look: each moves a row, and its entry in the index that a look reads."""
FIRED_PER_SCAN: Final = 500
REPEATS: Final = 50
CLAIMED: Final = 8
PAGE: Final = 1_000
TTL_S: Final = 3600.0
IDLE_MUST_MS: Final = 50.0

MISSED: Final = 1_000_000
MADE_UP: Final = 100
MAKING_UP: Final[dict[str, Any]] = {"catch_up": {"policy": CatchUp.ALL, "max": MADE_UP}}
MISSING: Final = {
    "an interval schedule of 1 s": (
        schedule_spec("interval", every=1.0, task="bench.nothing", **MAKING_UP),
        1,
    ),
    "`* * * * *`, 1.9 years of minutes": (
        schedule_spec("cron", cron=("* * * * *",), task="bench.nothing", **MAKING_UP),
        60,
    ),
}
"""Each with the seconds between two ticks."""


def measure(postgres: Postgres) -> Iterator[Figure]:
    yield from at_size(postgres)
    yield from catching_up(postgres)


def at_size(postgres: Postgres) -> Iterator[Figure]:
    """Looks, lists and claims with `SCHEDULES` schedules."""
    url = postgres.create_database("schedules")
    upgrade(url)
    with closing(PostgresStore(url)) as store, closing(psycopg2.connect(url)) as session:
        session.autocommit = True
        _declare(session)
        yield _idle("an idle look of `fire_due`", store)
        yield from _listed(store, url)
        yield from _fired(store, session)
        yield _idle(f"the same after {FIRED:,} have been fired", store)
        yield from _claimed(store, session)
    postgres.drop_database("schedules")


def catching_up(postgres: Postgres) -> Iterator[Figure]:
    """`MISSED` ticks that nobody fired, each case in a process of its own."""
    url = postgres.create_database("missed")
    upgrade(url)
    with closing(PostgresStore(url)) as store, closing(psycopg2.connect(url)) as session:
        session.autocommit = True
        for case, (spec, interval_s) in MISSING.items():
            store.jobs.schedules.add(spec)
            began_at = _set_back(session, spec.name, seconds=MISSED * interval_s)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                took = process.submit(_look_until_done, url).result()
            wrong = _objections(store, session, spec.name, began_at=began_at, interval_s=interval_s)
            say(f"jobs: {case}: {took}{''.join(wrong)}")
            yield Figure(f"{MISSED:,} missed ticks of {case}", "all counted", str(took), not wrong)
    postgres.drop_database("missed")


# -- a hundred thousand ------------------------------------------------------------------------------


def _declare(session: Any) -> None:
    """Of a thousand tenants, every hour, falling due one after the other from an hour from now on."""
    spec = schedule_spec("", every=3600.0, task="bench.nothing", kwargs={"report": "orders"})
    with session.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO feedq.schedule (name, declaration, next_tick_at, next_fire_at)
            SELECT name, %(declaration)s::jsonb || jsonb_build_object('name', name), due_at, due_at
            FROM generate_series(1, %(count)s) AS n,
                LATERAL (SELECT 'tenant' || mod(n, 1000) || '/job-' || n) s (name),
                LATERAL (SELECT date_trunc('hour', now()) + interval '2 hours' + n * interval '1 ms') t (due_at)
            """,
            {"declaration": spec.to_json(), "count": SCHEDULES},
        )
        # Autovacuum does this within a minute of such a change.
        cursor.execute("VACUUM ANALYZE feedq.schedule")


def _idle(case: str, store: PostgresStore) -> Figure:
    took = _times(lambda: store.jobs.runs.fire_due(limit=FIRED_PER_SCAN))
    case = f"{SCHEDULES:,} schedules: {case}, worst of {REPEATS}"
    return at_most(case, IDLE_MUST_MS, max(took), "ms", runs=f"p50 {statistics.median(took):.2g} ms")


def _listed(store: PostgresStore, url: str) -> Iterator[Figure]:
    schedules = store.jobs.schedules
    pages = _times(lambda: schedules.views(limit=PAGE))
    yield _shown(f"{SCHEDULES:,} schedules: the first {PAGE:,} of the list", pages)
    began = time.monotonic()
    ran = subprocess.run(
        [str(FEEDQ), "schedule", "list", "--prefix", "tenant7/"],
        env={**os.environ, "FEEDQ_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=True,
    )
    took_ms = 1000 * (time.monotonic() - began)
    assert "tenant7/job-7" in ran.stdout, ran.stdout[:500]
    case = f"{SCHEDULES:,} schedules: the command `feedq schedule list` for 100 of them"
    yield Figure(case, "-", f"{took_ms:.0f} ms", None)
    specs = _times(lambda: list(schedules.all()), repeats=3)
    yield _shown(f"{SCHEDULES:,} schedules: all declarations", specs)


def _fired(store: PostgresStore, session: Any) -> Iterator[Figure]:
    with session.cursor() as cursor:
        cursor.execute(
            "UPDATE feedq.schedule SET next_tick_at = next_tick_at - interval '3 hours', "
            "next_fire_at = next_fire_at - interval '3 hours' WHERE id <= %s",
            (FIRED,),
        )
    began, made, looks = time.monotonic(), 0, 0
    while (fired := store.jobs.runs.fire_due(limit=FIRED_PER_SCAN)).runs or fired.more:
        made += fired.runs
        looks += 1
    rate = made / (time.monotonic() - began)
    case = f"{SCHEDULES:,} schedules: firing {FIRED:,} that are due, one node"
    yield Figure(case, "-", f"{rate:,.0f} a second ({looks} looks)", None)
    assert made == FIRED, made


def _claimed(store: PostgresStore, session: Any) -> Iterator[Figure]:
    """One of two workers claims and finishes; all schedules have a run that is due."""
    ids = [uuid4() for _ in range(2)]
    for n, worker_id in enumerate(ids):
        new = NewWorker(worker_id, f"w{n}@host", f"node.w{n}", 0, "host", 1, "bench", job_slots=CLAIMED)
        store.workers.register(new, ttl_s=TTL_S)
    waiting = _wait_all(session)
    me = ids[0]
    offer = Offer(me, CLAIMED, CLAIMED, CLAIMED * len(ids))
    # At the full hour the planner knows of none that waits; it is told within a minute or two.
    for known in ("statistics of before", "statistics of now"):
        claims, finishes = _claims(store, offer)
        yield _shown(f"{waiting:,} runs waiting, {known}: {CLAIMED} claimed at once", claims)
        yield _shown(f"{waiting:,} runs waiting, {known}: {CLAIMED} finished at once", finishes)
        with session.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE feedq.run")


def _wait_all(session: Any) -> int:
    """A run of each schedule that has none yet. Returns how many wait then."""
    with session.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE feedq.run")
        cursor.execute(
            """
            INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job)
            SELECT s.id, 'bench', t.at, t.at, t.at, s.declaration
            FROM feedq.schedule s CROSS JOIN LATERAL (
                SELECT clock_timestamp() - interval '100 ms' + s.id * interval '1 us') t (at)
            WHERE s.id > %s
            """,
            (FIRED,),
        )
        cursor.execute("SELECT count(*) FROM feedq.run WHERE state = 'waiting'")
        waiting: int = cursor.fetchone()[0]
    assert waiting == SCHEDULES, waiting
    return waiting


def _claims(store: PostgresStore, offer: Offer) -> tuple[list[float], list[float]]:
    """What claims and finishes took, in milliseconds."""
    claims, finishes = [], []
    for _ in range(REPEATS):
        began = time.monotonic()
        runs = store.jobs.runs.claim(offer).runs
        claimed = time.monotonic()
        ends = [Finish(run.id, run.fence, RunState.SUCCEEDED) for run in runs]
        told = store.jobs.runs.finish(offer.worker_id, ends)
        finishes.append(1000 * (time.monotonic() - claimed))
        claims.append(1000 * (claimed - began))
        assert len(told.ended) == CLAIMED, told
    return claims, finishes


def _times(call: Callable[[], object], *, repeats: int = REPEATS) -> list[float]:
    """In milliseconds."""
    took = []
    for _ in range(repeats):
        began = time.monotonic()
        call()
        took.append(1000 * (time.monotonic() - began))
    return took


def _shown(case: str, took_ms: Sequence[float]) -> Figure:
    measured = f"{statistics.median(took_ms):.3g} ms (worst of {len(took_ms)}: {max(took_ms):.3g} ms)"
    return Figure(case, "-", measured, None)


# -- a million missed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What a process did until nothing was due any more."""

    looks: int
    seconds: float
    longest_s: float
    """The longest look: so long is the schedule's row locked."""
    before_bytes: int
    peak_bytes: int

    def __str__(self) -> str:
        more = (self.peak_bytes - self.before_bytes) / 2**20
        return (
            f"{self.looks} looks, {self.seconds:.2g} s, the longest {1000 * self.longest_s:.0f} ms; "
            f"peak memory {self.peak_bytes / 2**20:.0f} MiB, {more:.1f} MiB more than before"
        )


def _look_until_done(url: str) -> CaughtUp:
    with closing(PostgresStore(url)) as store:
        store.jobs.schedules.views()  # connected, and everything imported
        before, began, looks = _peak_bytes(), time.monotonic(), []
        more = True
        while more:
            at = time.monotonic()
            more = store.jobs.runs.fire_due(limit=FIRED_PER_SCAN).more
            looks.append(time.monotonic() - at)
        return CaughtUp(len(looks), time.monotonic() - began, max(looks), before, _peak_bytes())


def _peak_bytes() -> int:
    """Of this process image alone: what `getrusage` says includes that of the parent it was forked from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell the peak of resident memory")


def _set_back(session: Any, name: str, *, seconds: int) -> datetime:
    """As if nobody had fired it for so long. Returns its watermark."""
    with session.cursor() as cursor:
        cursor.execute(
            "UPDATE feedq.schedule SET next_tick_at = next_tick_at - make_interval(secs => %s), "
            "next_fire_at = next_fire_at - make_interval(secs => %s) WHERE name = %s RETURNING next_tick_at",
            (seconds, seconds, name),
        )
        began_at: datetime = cursor.fetchone()[0]
        return began_at.astimezone(UTC)


def _objections(
    store: PostgresStore, session: Any, name: str, *, began_at: datetime, interval_s: int
) -> list[str]:
    """What is wrong with the rows: each tick since the old watermark has to be in exactly one of them."""
    with session.cursor() as cursor:
        cursor.execute(
            "SELECT r.tick_at, coalesce(r.last_tick_at, r.tick_at), r.ticks, s.next_tick_at FROM feedq.run r "
            "JOIN feedq.schedule s ON s.id = r.schedule_id WHERE s.name = %s ORDER BY r.tick_at",
            (name,),
        )
        rows = cursor.fetchall()
    expected, wrong = began_at, []
    for first, last, ticks, _ in rows:
        if first != expected or (last - first).total_seconds() != (ticks - 1) * interval_s:
            wrong.append(f"; a row of {ticks} ticks from {first} to {last}, where {expected} was expected")
        expected = datetime.fromtimestamp(last.timestamp() + interval_s, UTC)
    if not rows or expected != rows[-1][3]:
        wrong.append(f"; the watermark does not stand at {expected}")
    counts = store.jobs.schedules.counts(name)
    made_up = counts.get(RunState.WAITING, 0) + counts.get(RunState.BUFFERED, 0)
    if made_up != MADE_UP:
        wrong.append(f"; {made_up} made up for")
    if sum(counts.values()) < MISSED:
        wrong.append(f"; {sum(counts.values()):,} counted")
    return wrong
