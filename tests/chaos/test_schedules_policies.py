"""What becomes of ticks that fall due while others run."""

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
from feedq.core.schedule.spec import Overlap
from tests.chaos import ticking
from tests.cluster import Cluster, wait_until
from tests.schedules import Keys, never, schedule_spec

pytestmark = pytest.mark.timeout(180)

Measured = Callable[[str, object], None]

LIMIT_S = 60.0


def database_now(fleet: Cluster) -> datetime:
    (row,) = fleet.sql("SELECT clock_timestamp() AS now")
    now: datetime = row["now"]
    return now


def states_of(fleet: Cluster, name: str, kind: str = "tick") -> Counter[str]:
    rows = fleet.sql(
        "SELECT r.state, sum(r.ticks)::int AS ticks "
        "FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "WHERE s.name = %s AND r.kind = %s GROUP BY r.state",
        (name, kind),
    )
    return Counter({row["state"]: row["ticks"] for row in rows})


# -- overlap -----------------------------------------------------------------------------------------

WORK_S = 1.3
TICKS = 10
TRIGGERS = 8
THREADS = 4
BUFFER = 2


@dataclass
class Seen:
    """The most that was seen of a schedule's runs at a moment."""

    running: Counter[str]
    waiting: Counter[str]


def watch(fleet: Cluster, seen: Seen) -> None:
    rows = fleet.sql(
        "SELECT s.name, count(*) FILTER (WHERE r.state = 'running') AS running, "
        "count(*) FILTER (WHERE r.state IN ('buffered', 'waiting')) AS waiting "
        "FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "WHERE r.ended_at IS NULL GROUP BY s.name"
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
    job: Keys = {"task": "effects.spanned", "args": [WORK_S]}
    specs = [
        schedule_spec(
            overlap.value,
            every=1.0,
            task="effects.spanned",
            args=[WORK_S],
            overlap=overlap,
            buffer_max=BUFFER,
        )
        for overlap in Overlap
    ]
    first = ticking.begin(schedules, specs)
    triggered = [
        never(f"trigger-{overlap}", **job, overlap=overlap, buffer_max=BUFFER) for overlap in Overlap
    ]
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
