"""Outcomes of runs: one table of moves, retries with backoff, and jobs that kill their workers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.schedule.model import RunState
from feedq.core.schedule.outcome import (
    FIRST_STATES,
    TRANSITIONS,
    RunMove,
    retry_in_s,
    states_before,
)
from feedq.core.schedule.spec import ScheduleSpec
from tests.schedules import job_spec

DAY_S = 86_400.0


def job_with(**retries: float) -> ScheduleSpec:
    return job_spec(retries=retries)


# -- the table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "move"), list(product(RunState, RunMove)))
def test_a_move_may_start_from_the_states_of_its_pairs_alone(state: RunState, move: RunMove) -> None:
    assert (state in states_before(move)) == ((state, move) in TRANSITIONS)


def test_every_move_can_be_made_and_every_state_reached() -> None:
    assert {move for _, move in TRANSITIONS} == set(RunMove)
    assert set(TRANSITIONS.values()) | FIRST_STATES == set(RunState)


def test_a_run_that_is_to_be_repeated_waits() -> None:
    assert {TRANSITIONS[RunState.RUNNING, move] for move in (RunMove.RETRY, RunMove.RUN_AGAIN)} == {
        RunState.WAITING
    }


# -- retries -----------------------------------------------------------------------------------------


def test_attempts_are_repeated_up_to_the_limit_waiting_longer_each_time() -> None:
    job = job_with(limit=4, first=10, factor=3, max=100)
    waits = [retry_in_s(job, attempt=n) for n in range(1, 7)]
    assert waits == [10, 30, 90, 100, None, None]


durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))


@given(st.integers(1, 10**6), durations, st.floats(1, 100), durations)
def test_a_wait_is_never_negative_nor_beyond_its_maximum(
    attempt: int, first: float, factor: float, longest: float
) -> None:
    job = job_with(limit=10**6, first=first, factor=factor, max=longest)
    wait_s = retry_in_s(job, attempt=attempt)
    assert wait_s is not None
    assert min(first, longest) <= wait_s <= longest
    earlier_s = retry_in_s(job, attempt=max(attempt - 1, 1))
    assert earlier_s is not None
    assert earlier_s <= wait_s
