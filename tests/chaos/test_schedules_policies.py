"""What becomes of ticks that nobody fired in time, and of those that fall due while others run: to the tick."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.model import CatchUp, Cron, Every, Job, Overlap, ScheduleSpec, Timing
from feedq.core.schedule.spread import SEGMENTS, segment_of
from feedq.core.values import instant
from tests.chaos import ticking
from tests.chaos.test_schedules import never
from tests.cluster import Cluster, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
Measured = Callable[[str, object], None]

LIMIT_S = 60.0
HOURS = 51
"""Ticks of an outage: one an hour, the last of them half an hour ago."""
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule after an outage: what is made up for of `HOURS` ticks, the newest of them."""

    name: str
    catch_up: CatchUp
    made_up: int
    window_s: float = 86_400.0
    most: int = 100
    overlap: Overlap = Overlap.SKIP


CASES = (
    Case("skip", CatchUp.SKIP, 0),
    Case("latest", CatchUp.LATEST, 1),
    Case("latest-too-late", CatchUp.LATEST, 0, window_s=600.0),
    Case("all-in-window", CatchUp.ALL, 24),
    Case("all-in-a-longer-window", CatchUp.ALL, 30, window_s=30 * 3600.0),
    Case("all-without-an-end", CatchUp.ALL, HOURS, window_s=100 * 86_400.0),
    Case("all-with-a-cap", CatchUp.ALL, 10, most=10),
    Case("all-side-by-side", CatchUp.ALL, 24, overlap=Overlap.ALLOW_ALL),
    Case("all-buffered", CatchUp.ALL, 24, overlap=Overlap.BUFFER_ONE),
    Case("all-of-which-each-cancels-others", CatchUp.ALL, 1, overlap=Overlap.CANCEL_OTHER),
)


def database_now(fleet: Cluster) -> datetime:
    (row,) = fleet.sql("SELECT clock_timestamp() AS now")
    now: datetime = row["now"]
    return now


def put_back(fleet: Cluster, name: str, tick: datetime) -> None:
    """As if nobody had fired anything since: the watermark of a schedule that has been there as long."""
    fleet.sql(
        "UPDATE feedq.schedule SET next_tick_at = %s, next_fire_at = %s WHERE name = %s", (tick, tick, name)
    )


def states_of(fleet: Cluster, name: str, kind: str = "tick") -> Counter[str]:
    rows = fleet.sql(
        "SELECT r.state, sum(r.ticks)::int AS ticks "
        "FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "WHERE s.name = %s AND r.kind = %s GROUP BY r.state",
        (name, kind),
    )
    return Counter({row["state"]: row["ticks"] for row in rows})


def test_of_an_outage_exactly_so_many_ticks_are_made_up_for_as_the_policy_says(
    fleet: Cluster, schedules: ScheduleStore, measured: Measured
) -> None:
    last = (database_now(fleet) - timedelta(minutes=30)).replace(second=0, microsecond=0)
    first = last - timedelta(hours=HOURS - 1)
    timings: dict[str, Timing] = {
        "every": Every(3600.0, anchor=first),
        "cron": Cron(f"{last.minute} * * * *"),
    }
    job = Job("effects.noted", (0.0,))
    for kind, timing in timings.items():
        for case in CASES:
            schedules.add(
                ScheduleSpec(
                    f"{kind}/{case.name}",
                    timing,
                    job,
                    catch_up=case.catch_up,
                    catch_up_window_s=case.window_s,
                    catch_up_max=case.most,
                    overlap=case.overlap,
                )
            )
            put_back(fleet, f"{kind}/{case.name}", first)
    grid = Every(10.0, anchor=last - timedelta(seconds=10 * MILLION))
    schedules.add(ScheduleSpec("million", grid, job, catch_up=CatchUp.ALL, catch_up_max=10))
    put_back(fleet, "million", grid.anchor or first)
    fleet.add_beat("b1")
    for n in range(4):
        fleet.add_worker(f"w{n}")
    wait_until(
        lambda: not ticking.unfired(fleet) and not ticking.unfinished(fleet),
        limit_s=LIMIT_S,
        interval_s=0.1,
        what=lambda: f"{ticking.unfired(fleet)[:5]} {ticking.unfinished(fleet)[:5]}",
    )
    for kind in timings:
        for case in CASES:
            check_made_up(fleet, case, f"{kind}/{case.name}", last)
    schedules.pause("million")
    check_million(fleet)
    measured(
        "ticks of outages decided",
        sum(row["n"] for row in fleet.sql("SELECT sum(ticks) AS n FROM feedq.run")),
    )


def check_made_up(fleet: Cluster, case: Case, name: str, last: datetime) -> None:
    wanted = {"succeeded": case.made_up, "missed_catchup": HOURS - case.made_up}
    assert states_of(fleet, name) == {state: ticks for state, ticks in wanted.items() if ticks}, name
    rows = fleet.sql(
        "SELECT r.tick_at, r.state, r.ticks FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "WHERE s.name = %s ORDER BY r.tick_at DESC",
        (name,),
    )
    newest = [last - n * timedelta(hours=1) for n in range(case.made_up)]
    assert [row["tick_at"] for row in rows if row["state"] == "succeeded"] == newest, name
    # However many in a row: one.
    assert len([row for row in rows if row["state"] == "missed_catchup"]) == (case.made_up < HOURS), name
    (effects,) = fleet.sql(
        "SELECT count(*) AS n, count(DISTINCT key) AS keys FROM effect WHERE schedule = %s", (name,)
    )
    assert effects == {"n": case.made_up, "keys": case.made_up}, name


def check_million(fleet: Cluster) -> None:
    (row,) = fleet.sql(
        "SELECT sum(r.ticks)::int AS ticks, "
        "count(*) FILTER (WHERE r.state = 'missed_catchup') AS missed, "
        "count(*) FILTER (WHERE r.state = 'skipped_overlap') AS skipped, "
        "max(r.ticks) AS most, "
        "count(*) FILTER (WHERE r.state = 'succeeded') AS succeeded, "
        "round(extract(epoch FROM s.next_tick_at - min(r.tick_at)) / 10)::int AS wanted "
        "FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id WHERE s.name = 'million' GROUP BY s.id"
    )
    assert row["ticks"] == row["wanted"] > MILLION
    # However many in a row: one. The ticks of the last minute are not late yet, and find others waiting.
    assert row["missed"] == 1
    assert row["skipped"] <= 1
    assert row["most"] > MILLION - 10
    assert row["succeeded"] >= 10


# -- overlap -----------------------------------------------------------------------------------------

WORK_S = 1.3
TICKS = 10
TRIGGERS = 8
THREADS = 4
BUFFER = 3


@dataclass
class Seen:
    """The most that was seen of a schedule's runs at a moment."""

    running: Counter[str]
    waiting: Counter[str]


def watch(fleet: Cluster, seen: Seen) -> None:
    rows = fleet.sql(
        "SELECT s.name, count(*) FILTER (WHERE r.state = 'running') AS running, "
        "count(*) FILTER (WHERE r.state = 'waiting') AS waiting "
        "FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "WHERE r.state IN ('waiting', 'running') GROUP BY s.name"
    )
    for row in rows:
        for most, count in ((seen.running, row["running"]), (seen.waiting, row["waiting"])):
            most[row["name"]] = max(most[row["name"]], count)


def test_no_two_runs_of_a_schedule_overlap_that_must_not_whoever_starts_them(
    fleet: Cluster, schedules: ScheduleStore, measured: Measured
) -> None:
    fleet.add_beat("b1")
    for n in range(4):
        fleet.add_worker(f"w{n}")
    job = Job("effects.spanned", (WORK_S,))
    specs = [
        ScheduleSpec(overlap.value, Every(1.0), job, overlap=overlap, buffer_max=BUFFER)
        for overlap in Overlap
    ]
    first = ticking.begin(schedules, specs)
    triggered = [never(f"trigger-{overlap}", job, overlap=overlap, buffer_max=BUFFER) for overlap in Overlap]
    ticking.begin(schedules, triggered)
    begin = threading.Barrier(THREADS)

    def pull(thread: int) -> None:
        begin.wait(30)
        for n in range(TRIGGERS):
            for spec in triggered:
                schedules.trigger(spec.name, key=f"{thread}/{n}")

    seen = Seen(Counter(), Counter())
    with ThreadPoolExecutor(THREADS) as pool:
        pulls = [pool.submit(pull, thread) for thread in range(THREADS)]
        until = first["skip"] + timedelta(seconds=TICKS)

        def is_over() -> bool:
            watch(fleet, seen)
            return all(pulled.done() for pulled in pulls) and database_now(fleet) > until

        wait_until(is_over, limit_s=LIMIT_S, what="all were triggered, and have ticked")
        for pulled in pulls:
            pulled.result()
    ticking.end_while(lambda: watch(fleet, seen), fleet, schedules, first)
    account = ticking.account(fleet, {**first, **{s.name: tick_of(fleet, s.name) for s in triggered}})
    measured("overlap policies", account)
    for prefix, kind in (("", "tick"), ("trigger-", "trigger")):
        check_overlaps(fleet, seen, prefix, kind)
    assert seen.running.pop("allow_all") > 1
    assert seen.running.pop("trigger-allow_all") > 1
    assert set(seen.running.values()) == {1}


def tick_of(fleet: Cluster, name: str) -> Any:
    return fleet.sql("SELECT next_tick_at FROM feedq.schedule WHERE name = %s", (name,))[0]["next_tick_at"]


def check_overlaps(fleet: Cluster, seen: Seen, prefix: str, kind: str) -> None:
    states = {overlap: states_of(fleet, prefix + overlap, kind) for overlap in Overlap}
    totals = {overlap: counted.total() for overlap, counted in states.items()}
    if kind == "trigger":
        assert set(totals.values()) == {THREADS * TRIGGERS}
    wanted = {
        Overlap.SKIP: {"succeeded", "skipped_overlap"},
        Overlap.BUFFER_ONE: {"succeeded", "skipped_overlap"},
        Overlap.BUFFER_ALL: {"succeeded", "skipped_overlap"},
        Overlap.CANCEL_OTHER: {"succeeded", "cancelled"},
        Overlap.ALLOW_ALL: {"succeeded"},
    }
    for overlap, names in wanted.items():
        assert states[overlap].keys() == names, (prefix, overlap, states[overlap])
    assert seen.waiting[prefix + Overlap.SKIP] <= 1
    assert seen.waiting[prefix + Overlap.BUFFER_ONE] <= 1
    assert seen.waiting[prefix + Overlap.BUFFER_ALL] <= BUFFER
    assert seen.waiting[prefix + Overlap.CANCEL_OTHER] <= 1


# -- spread and priority -----------------------------------------------------------------------------

RUNS_PER_SEGMENT = 20
RUNS = RUNS_PER_SEGMENT * SEGMENTS
RUN_S = 0.03
"""Their slots are what limits the workers, not the cores of a machine that they share with its other work."""
UNEVEN_MAX = 0.05


def evenly_hashed(schedule_id: int) -> list[datetime]:
    """Ticks that fall evenly upon all segments: others would differ by chance, by more than is to be seen."""
    wanted = Counter(dict.fromkeys(range(SEGMENTS), RUNS_PER_SEGMENT))
    ticks: list[datetime] = []
    tick = datetime.fromisoformat("2026-01-01T00:00:00Z")
    while len(ticks) < RUNS:
        segment = segment_of(schedule_id, instant(tick))
        if wanted[segment]:
            wanted[segment] -= 1
            ticks.append(tick)
        tick += timedelta(minutes=1)
    return ticks


def test_thousands_of_short_runs_are_spread_evenly_over_equal_workers(
    fleet: Cluster, schedules: ScheduleStore, measured: Measured
) -> None:
    fleet.add_beat("b1")
    for n in range(4):
        fleet.add_worker(f"w{n}")
    short = schedules.add(never("short", Job("effects.nothing", (RUN_S,)), overlap=Overlap.ALLOW_ALL))
    made, _ = schedules.backfill("short", evenly_hashed(short.id))
    assert made == RUNS
    wait_until(
        lambda: not ticking.unfinished(fleet),
        limit_s=LIMIT_S,
        interval_s=0.5,
        what="all short runs have ended",
    )
    rows = fleet.sql(
        "SELECT w.name, count(*) AS runs FROM feedq.run r JOIN feedq.worker w ON w.id = r.worker_id "
        "WHERE r.state = 'succeeded' GROUP BY w.name ORDER BY w.name"
    )
    spread = {row["name"].partition("@")[0]: row["runs"] for row in rows}
    measured(f"{RUNS} short runs on four workers", spread)
    assert sum(spread.values()) == RUNS
    equal = RUNS / 4
    assert all(abs(runs - equal) <= UNEVEN_MAX * equal for runs in spread.values()), spread


def test_a_run_of_low_priority_starts_while_those_of_high_priority_take_every_slot(
    fleet: Cluster, measured: Measured
) -> None:
    ageing_s = 0.2
    fleet.env |= {"FEEDQ_AGEING_S": str(ageing_s), "FEEDQ_JOB_SLOTS": "2"}
    fleet.add_worker("w0")
    store = PostgresStore(fleet.database_url, ageing_s=ageing_s)
    try:
        schedules = store.jobs.schedules
        busy = Job("effects.noted", (0.4,), priority=10)
        schedules.add(never("high", busy, overlap=Overlap.ALLOW_ALL))
        schedules.add(never("low", Job("effects.noted", (0.0,), priority=-10)))
        waiting = (
            "SELECT count(*) AS n FROM feedq.run WHERE state = 'waiting' AND (job ->> 'priority')::int = 10"
        )
        left: list[int] = []

        def keep_busy() -> int:
            left.append(fleet.sql(waiting)[0]["n"])
            for _ in range(20 - left[-1]):
                schedules.trigger("high")
            return left[-1]

        wait_until(lambda: keep_busy() > 10, limit_s=LIMIT_S, what="more wait than can start")
        left.clear()
        low = schedules.trigger("low")

        def has_started() -> bool:
            keep_busy()
            return schedules.run(low.id).started_at is not None

        wait_until(has_started, limit_s=LIMIT_S, what="the run of low priority has started")
        started = fleet.sql(
            "SELECT extract(epoch FROM started_at - due_at)::float8 AS waited_s FROM feedq.run WHERE id = %s",
            (low.id,),
        )
        measured("a run of low priority waited", started[0]["waited_s"])
        # All the time others waited that go before it; and it waited for as long as its priority costs.
        assert min(left) > 0
        assert started[0]["waited_s"] >= 20 * ageing_s
        schedules.purge("high")
    finally:
        store.close()
