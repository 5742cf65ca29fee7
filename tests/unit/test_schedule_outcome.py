"""Outcomes of runs: one table of moves, retries with backoff, and jobs that kill their workers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.schedule.model import RunState
from feedq.core.schedule.outcome import (
    FIRST_STATES,
    LOSSES_MAX,
    TRANSITIONS,
    Ends,
    RetryIn,
    RunMove,
    after_attempt,
    after_loss,
    counts_as_failure,
    states_before,
)
from feedq.core.schedule.spec import ScheduleSpec, Semantics
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


def test_failures_in_a_row_are_those_that_somebody_should_look_at() -> None:
    failures = {state for state in RunState if counts_as_failure(state)}
    assert failures == {RunState.FAILED, RunState.TIMED_OUT, RunState.LOST}


# -- retries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [RunState.FAILED, RunState.TIMED_OUT])
def test_attempts_are_repeated_up_to_the_limit_waiting_longer_each_time(ended: RunState) -> None:
    job = job_with(limit=4, first=10, factor=3, max=100)
    decisions = [after_attempt(job, attempt=n, ended=ended) for n in range(1, 7)]
    assert decisions == [RetryIn(10), RetryIn(30), RetryIn(90), RetryIn(100), Ends(ended), Ends(ended)]


@pytest.mark.parametrize("ended", set(RunState) - {s for _, s in TRANSITIONS.items()} | {RunState.LOST})
def test_an_attempt_cannot_end_in_a_state_that_workers_do_not_tell(ended: RunState) -> None:
    with pytest.raises(ValueError, match="does not end"):
        after_attempt(job_with(limit=4), attempt=1, ended=ended)


durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))


@given(st.integers(1, 10**6), durations, st.floats(1, 100), durations)
def test_a_wait_is_never_negative_nor_beyond_its_maximum(
    attempt: int, first: float, factor: float, longest: float
) -> None:
    job = job_with(limit=10**6, first=first, factor=factor, max=longest)
    decision = after_attempt(job, attempt=attempt, ended=RunState.FAILED)
    assert isinstance(decision, RetryIn)
    assert 0 <= decision.seconds <= longest
    assert decision.seconds >= min(first, longest)
    earlier = after_attempt(job, attempt=max(attempt - 1, 1), ended=RunState.FAILED)
    assert isinstance(earlier, RetryIn)
    assert earlier.seconds <= decision.seconds


# -- lost workers ------------------------------------------------------------------------------------


def test_a_run_at_most_once_is_lost_with_its_worker() -> None:
    assert after_loss(job_spec(), losses=1) == Ends(RunState.LOST)


@pytest.mark.parametrize("semantics", [Semantics.AT_LEAST_ONCE, Semantics.TRANSACTIONAL])
def test_others_are_run_again_until_they_have_cost_too_many_workers(semantics: Semantics) -> None:
    job = job_spec(semantics=semantics)
    decisions = [after_loss(job, losses=n) for n in range(1, LOSSES_MAX + 2)]
    assert decisions == [RetryIn(0)] * (LOSSES_MAX - 1) + [Ends(RunState.LOST)] * 2
