"""What ticks become when they fall due: misfires, catch-up, overlap, and looks that are bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, takewhile
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedq.core.schedule.model import NewRun, RunState, Schedule, ScheduleState
from feedq.core.schedule.spec import CatchUp, Overlap, ResumePolicy
from feedq.core.schedule.ticks import (
    Firing,
    Unfinished,
    begin,
    fire,
    fire_time,
    next_tick,
    resumed,
    ticks_after,
)
from tests.schedules import Keys, schedule_spec

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOTHING = Unfinished()

WAITING = RunState.WAITING
BUFFERED = RunState.BUFFERED
SKIPPED = RunState.SKIPPED_OVERLAP
MISSED = RunState.MISSED_CATCHUP
LATE = RunState.MISSED_DEADLINE
CANCELLED = RunState.CANCELLED


def scheduled(timing: Keys | None = None, *, since: datetime = BEGIN, **policy: Any) -> Schedule:
    """With its watermark at the first tick from ``since`` on."""
    spec = schedule_spec("report", **timing or {}, **policy)
    schedule = Schedule(
        id=7,
        spec=spec,
        state=ScheduleState.ACTIVE,
        paused_until=None,
        pause_reason=None,
        generation=1,
        next_tick_at=None,
        next_fire_at=None,
        failures=0,
        created_at=BEGIN,
        updated_at=BEGIN,
    )
    return begin(schedule, now=since - timedelta(microseconds=1))


def watermark_of(schedule: Schedule) -> tuple[datetime | None, datetime | None]:
    """With the moment at which it fires."""
    return schedule.next_tick_at, schedule.next_fire_at


def moved(schedule: Schedule, firing: Firing) -> Schedule:
    return replace(schedule, next_tick_at=firing.next_tick_at, next_fire_at=firing.next_fire_at)


# -- on time -----------------------------------------------------------------------------------------


def test_a_run_is_due_when_its_tick_fires_and_not_earlier() -> None:
    schedule = scheduled(jitter=60, misfire_after=300)
    assert schedule.next_fire_at is not None
    assert schedule.next_fire_at > BEGIN
    early = fire(schedule, now=schedule.next_fire_at - timedelta(microseconds=1), unfinished=NOTHING)
    assert early.runs == []
    assert (early.next_tick_at, early.next_fire_at) == (BEGIN, schedule.next_fire_at)
    firing = fire(schedule, now=schedule.next_fire_at, unfinished=NOTHING)
    assert [run.due_at for run in firing.runs] == [schedule.next_fire_at]
    assert firing.next_fire_at == fire_time(schedule.spec, schedule_id=7, tick=BEGIN + MINUTE)


# -- overlap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "waiting", "running", "states"),
    [
        (Overlap.SKIP, 0, 0, [WAITING, SKIPPED, SKIPPED]),
        (Overlap.SKIP, 0, 1, [SKIPPED, SKIPPED, SKIPPED]),
        (Overlap.BUFFER_ONE, 0, 1, [BUFFERED, SKIPPED, SKIPPED]),
        (Overlap.BUFFER_ONE, 1, 1, [SKIPPED, SKIPPED, SKIPPED]),
        (Overlap.BUFFER_ALL, 0, 0, [WAITING, BUFFERED, SKIPPED]),
        (Overlap.BUFFER_ALL, 0, 1, [BUFFERED, BUFFERED, SKIPPED]),
        (Overlap.BUFFER_ALL, 2, 0, [SKIPPED, SKIPPED, SKIPPED]),
        (Overlap.CANCEL_OTHER, 0, 0, [CANCELLED, CANCELLED, WAITING]),
        (Overlap.ALLOW_ALL, 9, 9, [WAITING, WAITING, WAITING]),
    ],
)
def test_the_overlap_policy_judges_ticks_one_after_the_other(
    overlap: Overlap, waiting: int, running: int, states: list[RunState]
) -> None:
    schedule = scheduled({"every": 20}, overlap=overlap, buffer_max=2)
    firing = fire(schedule, now=BEGIN + timedelta(seconds=40), unfinished=Unfinished(waiting, running))
    assert [run.state for run in firing.runs for _ in range(run.ticks)] == states
    assert bool(firing.cancel_others) == (overlap is Overlap.CANCEL_OTHER)
    assert all((run.reason is None) == (run.state in (WAITING, BUFFERED)) for run in firing.runs)


# -- misfires ----------------------------------------------------------------------------------------


def test_what_is_made_up_for_is_due_now_and_its_start_deadline_counts_from_now() -> None:
    schedule = scheduled(start_deadline=10)
    firing = fire(schedule, now=BEGIN + timedelta(seconds=61), unfinished=Unfinished(1, 1))
    made_up = firing.runs[0]
    assert (made_up.tick_at, made_up.state) == (BEGIN, BUFFERED)
    assert made_up.due_at == BEGIN + timedelta(seconds=61)
    assert made_up.start_by == BEGIN + timedelta(seconds=71)


@pytest.mark.parametrize("dates", [(), ("2026-01-01",), ("2026-01-02", "2026-01-03")])
@pytest.mark.parametrize("timing", [{"every": 600}, {"cron": ("*/10 * * * *",)}])
def test_what_is_missed_has_no_tick_that_is_left_out_or_from_the_end_on(
    timing: Keys, dates: tuple[str, ...]
) -> None:
    end = BEGIN + timedelta(days=3, hours=12, minutes=5)
    schedule = scheduled(timing, exclude=dates, end=end, catch_up={"policy": CatchUp.ALL, "max": 3})
    expected = list(ticks_after(schedule.spec, after=BEGIN - timedelta(microseconds=1)))
    assert len(expected) == 505 - 144 * len(dates)
    firing = fire(schedule, now=BEGIN + timedelta(days=3, hours=13), unfinished=NOTHING)
    missed, *made_up = firing.runs
    assert (missed.tick_at, missed.ticks, missed.last_tick_at) == (
        expected[0],
        len(expected) - 3,
        expected[-4],
    )
    assert [run.tick_at for run in made_up] == expected[-3:]
    assert (firing.next_tick_at, firing.more) == (None, False)


# -- many misfires -----------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_million_missed_ticks_of_an_interval_are_one_look(catch_up: CatchUp) -> None:
    schedule = scheduled({"every": 1}, misfire_after=5, catch_up={"policy": catch_up, "max": 10})
    begun = process_time()
    firing = fire(schedule, now=BEGIN + timedelta(seconds=1_000_005), unfinished=NOTHING)
    assert process_time() - begun < 5
    made_up = {CatchUp.SKIP: 0, CatchUp.LATEST: 1, CatchUp.ALL: 10}[catch_up]
    assert firing.runs[0].ticks == 1_000_000 - made_up
    assert [run.state for run in firing.runs[1 : made_up + 1]] == [WAITING, *[BUFFERED] * 9][:made_up]
    assert sum(run.ticks for run in firing.runs) == 1_000_000 + 6
    assert len(firing.runs) <= 1 + made_up + 2
    assert not firing.more


@pytest.mark.parametrize("window_s", [86_400, 86_400 * 30], ids=["window", "no window"])
def test_a_look_at_many_missed_ticks_of_cron_is_bounded(window_s: float) -> None:
    schedule = scheduled(
        {"cron": ("* * * * *",)}, catch_up={"policy": CatchUp.ALL, "max": 50, "window": window_s}
    )
    looks = list(looked(schedule, now=BEGIN + timedelta(days=20), limit=5_000))
    assert [firing.more for firing in looks] == [True] * 5 + [False]
    assert [len(firing.runs) for firing in looks[:-1]] == [1] * 5
    assert sum(run.ticks for firing in looks for run in firing.runs if run.state is MISSED) == 28_800 - 51
    waiting = [run.tick_at for firing in looks for run in firing.runs if run.state in (WAITING, BUFFERED)]
    assert waiting == [BEGIN + timedelta(days=20) - n * MINUTE for n in range(51, 1, -1)]


# -- against a reference -----------------------------------------------------------------------------


def looked(schedule: Schedule, *, now: datetime, limit: int) -> Iterator[Firing]:
    """One look after the other, as the store would have them."""
    waiting = running = 0
    while True:
        firing = fire(schedule, now=now, unfinished=Unfinished(waiting, running), limit=limit)
        yield firing
        if not firing.more:
            return
        assert firing.next_tick_at is not None
        assert schedule.next_tick_at is not None
        assert firing.next_tick_at > schedule.next_tick_at
        waiting = 0 if firing.cancel_others else waiting
        waiting += sum(run.state in (WAITING, BUFFERED) for run in firing.runs)
        schedule = moved(schedule, firing)


@dataclass(frozen=True)
class Decided:
    """One tick and its state."""

    tick_at: datetime
    state: RunState


def naive(schedule: Schedule, *, now: datetime) -> list[Decided]:
    """Each tick by itself, with all of them at hand."""
    spec = schedule.spec
    assert schedule.next_tick_at is not None
    ticks = ticks_after(spec, after=schedule.next_tick_at - timedelta(microseconds=1))
    fires = {
        tick: fire_time(spec, schedule_id=schedule.id, tick=tick) for tick in takewhile(now.__ge__, ticks)
    }
    due = [tick for tick, fires_at in fires.items() if fires_at <= now]
    misfires = [tick for tick in due if now - fires[tick] > timedelta(seconds=spec.misfire_after)]
    recent = [tick for tick in misfires if now - tick <= timedelta(seconds=spec.catch_up.window)]
    keep = {CatchUp.SKIP: 0, CatchUp.LATEST: 1, CatchUp.ALL: spec.catch_up.max}[spec.catch_up.policy]
    if spec.overlap is Overlap.CANCEL_OTHER:
        keep = min(keep, 1)
    made_up = recent[max(len(recent) - keep, 0) :]
    states: dict[datetime, RunState] = {}
    for tick in due:
        waiting = [t for t, state in states.items() if state in (WAITING, BUFFERED)]
        full = {
            Overlap.SKIP: len(waiting) > 0,
            Overlap.BUFFER_ONE: len(waiting) > 0,
            Overlap.BUFFER_ALL: len(waiting) >= spec.buffer_max,
        }.get(spec.overlap, False)
        deadline_s = spec.start_deadline
        if tick in misfires and tick not in made_up:
            states[tick] = MISSED
        elif tick not in made_up and deadline_s and now - fires[tick] > timedelta(seconds=deadline_s):
            states[tick] = LATE
        elif tick not in made_up and full:
            states[tick] = SKIPPED
        else:
            if spec.overlap is Overlap.CANCEL_OTHER:
                states |= dict.fromkeys(waiting, CANCELLED)
            is_alone = spec.overlap in (Overlap.CANCEL_OTHER, Overlap.ALLOW_ALL) or not waiting
            states[tick] = WAITING if is_alone else BUFFERED
    return [Decided(tick, state) for tick, state in states.items()]


def spread_out(schedule: Schedule, runs: Sequence[NewRun]) -> list[Decided]:
    """One entry a tick, also of rows that stand for several."""
    found: list[Decided] = []
    for run in runs:
        ticks = [run.tick_at]
        while len(ticks) < run.ticks:
            following = next_tick(schedule.spec, after=ticks[-1])
            assert following is not None
            ticks.append(following)
        assert run.last_tick_at == (ticks[-1] if run.ticks > 1 else None)
        found += [Decided(tick, run.state) for tick in ticks]
    return found


timings = st.sampled_from(
    [
        {"every": 60},
        {"every": 45.5, "anchor": BEGIN + timedelta(seconds=11)},
        {"cron": ("* * * * *",)},
        {"cron": ("*/3 * * * *",), "zone": "Europe/Berlin"},
        {"cron": ("1,2,3,20,21 * * * *",)},
        {"at": (BEGIN + timedelta(minutes=7),)},
    ]
)
lengths = st.one_of(st.sampled_from([0.0, 60.0, 120.0, 1000.0, 86_400.0]), st.floats(0, 4000))
"""Of windows, in seconds; schedules are looked at up to 4,000 s after they began."""
delays = st.sampled_from([second / 2 for second in range(8_000)])
"""Sampled, because numbers that are drawn tend to be small."""
policies = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(Overlap),
        "buffer_max": st.integers(1, 5),
        "catch_up": st.fixed_dictionaries(
            {"policy": st.sampled_from(CatchUp), "max": st.integers(1, 12), "window": lengths}
        ),
        "misfire_after": lengths,
        "start_deadline": st.one_of(st.none(), st.floats(0.5, 4000)),
        "jitter": st.sampled_from([0.0, 5.0, 100.0]),
        "end": st.sampled_from([None, BEGIN + 10 * MINUTE]),
    }
)


@settings(max_examples=6 * settings().max_examples)
@given(timings, policies, delays, st.integers(1, 12))
def test_many_bounded_looks_decide_what_one_unbounded_look_would(
    timing: Keys, policy: dict[str, Any], seconds_later: float, limit: int
) -> None:
    schedule = scheduled(timing, **policy)
    now = BEGIN + timedelta(seconds=seconds_later)
    expected = naive(schedule, now=now)
    looks = list(looked(schedule, now=now, limit=limit))
    ended: list[NewRun] = []
    for firing in looks:
        if firing.cancel_others:
            ended = [replace(run, state=CANCELLED) if run.state is WAITING else run for run in ended]
        ended += firing.runs
        assert len(firing.runs) <= limit + 1 + policy["catch_up"]["max"]
    assert spread_out(schedule, ended) == expected
    last = expected[-1].tick_at if expected else BEGIN - timedelta(microseconds=1)
    assert looks[-1].next_tick_at == next_tick(schedule.spec, after=last)
    if len(looks) == 1:
        rows = [state for state, _ in groupby(run.state for run in ended)]
        assert rows.count(MISSED) <= 1


@settings(deadline=None)
@given(timings, policies, st.lists(st.floats(0.001, 900), max_size=12), st.integers(1, 40))
def test_every_tick_ends_in_exactly_one_state_whenever_somebody_looks(
    timing: Keys, policy: dict[str, Any], waits: list[float], limit: int
) -> None:
    schedule = scheduled(timing, **policy)
    first, now, decided = schedule, BEGIN, []
    for wait_s in waits:
        now += timedelta(seconds=wait_s)
        firing = fire(schedule, now=now, unfinished=NOTHING, limit=limit)
        decided += spread_out(schedule, firing.runs)
        schedule = moved(schedule, firing)
        if schedule.next_tick_at is not None:
            fires_at = fire_time(schedule.spec, schedule_id=schedule.id, tick=schedule.next_tick_at)
            assert schedule.next_fire_at == fires_at
            assert firing.more == (fires_at <= now)
    expected = [tick.tick_at for tick in naive(first, now=now)] if first.next_tick_at else []
    undecided = [tick for tick in expected if schedule.next_tick_at and tick >= schedule.next_tick_at]
    assert [tick.tick_at for tick in decided] + undecided == expected


# -- beginning and going on --------------------------------------------------------------------------


@given(
    timing=st.sampled_from(
        [
            {"every": 7},
            {"every": 3600},
            {"cron": ("*/5 0-11 * * *",)},
            {"cron": ("30 2 * * *",), "zone": "Europe/Berlin"},
        ]
    ),
    watermark=st.integers(0, 400_000),
    paused_s=st.floats(0, 400_000),
    jitter_s=st.sampled_from([0.0, 3.5, 1800.0, 90_000.0]),
)
def test_after_a_pause_exactly_the_ticks_that_fire_later_are_to_come(
    timing: Keys, watermark: int, paused_s: float, jitter_s: float
) -> None:
    schedule = scheduled(timing, since=BEGIN + timedelta(seconds=watermark), jitter=jitter_s)
    first = schedule.next_tick_at
    assert first is not None
    now = first + timedelta(seconds=paused_s)
    # Two days before: no tick is put off to the next one, and these come once a day at least.
    ticks = ticks_after(schedule.spec, after=max(first - timedelta(microseconds=1), now - timedelta(days=2)))
    fires = ((tick, fire_time(schedule.spec, schedule_id=7, tick=tick)) for tick in ticks)
    assert watermark_of(resumed(schedule, now=now)) == next(found for found in fires if found[1] > now)


@pytest.mark.parametrize("resume", ResumePolicy)
def test_a_pause_never_moves_the_watermark_back(resume: ResumePolicy) -> None:
    schedule = scheduled(since=BEGIN + 9 * MINUTE, resume=resume)
    assert watermark_of(resumed(schedule, now=BEGIN)) == (BEGIN + 9 * MINUTE, BEGIN + 9 * MINUTE)
    over = replace(schedule, next_tick_at=None, next_fire_at=None)
    assert watermark_of(resumed(over, now=BEGIN)) == (None, None)
