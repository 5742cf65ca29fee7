"""Schedules under random faults, seed by seed, and broken in one place each: few seeds must find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from feedq.core.schedule import ticks
from feedq.core.schedule.model import Job, Schedule, ScheduleState
from feedq.core.schedule.outcome import RetryIn
from feedq.core.schedule.ticks import Firing
from tests.simulation import schedules
from tests.simulation.schedules import Claimed, ScheduleTrouble, SimulatedRun, TickBroken, run_schedules

SEEDS = 200

Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(20))
def test_every_tick_is_in_one_state_whatever_fails(seed: int) -> None:
    print(f"replay with: make simulate SEED={seed}")
    run_schedules(seed)


def test_a_seed_is_the_same_story_every_time() -> None:
    assert run_schedules(7).lines == run_schedules(7).lines


def the_watermark_is_committed_before_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a node may die in between."""

    def write(self: ScheduleTrouble, number: int, firing: Firing) -> None:
        self.advance(number, firing)
        if self.rng.random() < 0.95:
            _write(self, number, firing)

    _write = ScheduleTrouble.write
    monkeypatch.setattr(ScheduleTrouble, "write", write)


def a_tick_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: ScheduleTrouble, number: int, firing: Firing) -> None:
        for made in firing.runs:
            key = f"{made.key} {len(self.rows[number])}"
            self.rows[number][key] = SimulatedRun(number, made, made.state, made.due_at)
        self.advance(number, firing)

    monkeypatch.setattr(ScheduleTrouble, "write", write)


def the_watermark_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: ScheduleTrouble, number: int, firing: Firing) -> None:
        self.schedules[number] = replace(
            self.schedules[number], next_tick_at=firing.next_tick_at, next_fire_at=firing.next_fire_at
        )

    monkeypatch.setattr(ScheduleTrouble, "advance", advance)


def a_result_needs_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_theirs(self: ScheduleTrouble, claimed: Claimed) -> bool:
        return not claimed.run.state.is_final or claimed.fence < claimed.run.fence

    monkeypatch.setattr(ScheduleTrouble, "is_theirs", is_theirs)


def what_is_lost_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_loss(job: Job, *, losses: int) -> RetryIn:
        return RetryIn(0.0)

    monkeypatch.setattr(schedules, "after_loss", after_loss)


def a_resumed_schedule_makes_up_for_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    def resumed(schedule: Schedule, *, now: datetime) -> Schedule:
        return replace(schedule, state=ScheduleState.ACTIVE)

    monkeypatch.setattr(ticks, "resumed", resumed)


def misfires_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks._Judge, "miss", lambda *_: None)


def ticks_left_out_in_a_row_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_out(self: Any, run: Any) -> None:
        if not self.runs or self.runs[-1].state is not run.state:
            self.runs.append(run)

    monkeypatch.setattr(ticks._Judge, "_leave_out", leave_out)


def overlaps_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "refusal", lambda *_: None)


MUTANTS: Sequence[Mutate] = (
    the_watermark_is_committed_before_the_rows,
    a_tick_has_no_key,
    the_watermark_goes_back,
    a_result_needs_no_fence,
    what_is_lost_begins_again,
    a_resumed_schedule_makes_up_for_its_pause,
    misfires_are_not_counted,
    ticks_left_out_in_a_row_are_one,
    overlaps_do_not_matter,
)


@pytest.mark.parametrize("mutate", MUTANTS)
def test_few_seeds_find_it(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)

    def run_seeds() -> None:
        for seed in range(SEEDS):
            run_schedules(seed)

    with pytest.raises(TickBroken):
        run_seeds()
