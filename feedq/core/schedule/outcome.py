"""The outcome of a run: its states and moves as one table, and what to do after an attempt that did not
succeed.

A run waits, is claimed by a worker under a fence, and ends; or it waits again, for another attempt. An attempt
is its worker's as long as the worker lives and the fence stands: until then nobody else ends it, however long it
takes, but who cancels it on purpose. Every move out of `RUNNING` ends that: what the
worker says afterwards matches no row. So a run ends once, whoever was killed, frozen or cut off when.

This module is pure: the table says which moves there are, and the statements of `feedq.control.store.jobs` make
them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType

from feedq.core.schedule.model import ClaimedRun, Finish, RunState
from feedq.core.schedule.spec import ScheduleSpec


class RunMove(StrEnum):
    """A transition of a run."""

    PROMOTE = "promote"
    """It is its turn: no other run of its schedule waits or runs, of those that go one at a time."""
    TAKE_BACK = "take_back"
    """It waits for its next attempt, and another run of its schedule comes first."""
    CLAIM = "claim"
    """A worker took it, under a new fence and before any code of the job."""
    SUCCEED = "succeed"
    FAIL = "fail"
    TIME_OUT = "time_out"
    RETRY = "retry"
    """It failed or timed out, and is to be tried again, later."""
    LOSE = "lose"
    """Its worker was declared gone, and it must not begin twice."""
    RUN_AGAIN = "run_again"
    """Its worker was declared gone, or its transaction was cut off: it is to be done at once, by any worker."""
    CANCEL = "cancel"
    """Cancelled by a person, or by a later run of a schedule that wants it so."""
    GIVE_BACK = "give_back"
    """Its worker is stopping and had not begun it."""
    MISS_DEADLINE = "miss_deadline"
    """Nobody started it in time."""


TRANSITIONS: Mapping[tuple[RunState, RunMove], RunState] = MappingProxyType(
    {
        (RunState.BUFFERED, RunMove.PROMOTE): RunState.WAITING,
        (RunState.BUFFERED, RunMove.CANCEL): RunState.CANCELLED,
        (RunState.BUFFERED, RunMove.MISS_DEADLINE): RunState.MISSED_DEADLINE,
        (RunState.WAITING, RunMove.TAKE_BACK): RunState.BUFFERED,
        (RunState.WAITING, RunMove.CLAIM): RunState.RUNNING,
        (RunState.WAITING, RunMove.CANCEL): RunState.CANCELLED,
        (RunState.WAITING, RunMove.MISS_DEADLINE): RunState.MISSED_DEADLINE,
        (RunState.RUNNING, RunMove.SUCCEED): RunState.SUCCEEDED,
        (RunState.RUNNING, RunMove.FAIL): RunState.FAILED,
        (RunState.RUNNING, RunMove.TIME_OUT): RunState.TIMED_OUT,
        (RunState.RUNNING, RunMove.RETRY): RunState.WAITING,
        (RunState.RUNNING, RunMove.LOSE): RunState.LOST,
        (RunState.RUNNING, RunMove.RUN_AGAIN): RunState.WAITING,
        (RunState.RUNNING, RunMove.CANCEL): RunState.CANCELLED,
        (RunState.RUNNING, RunMove.GIVE_BACK): RunState.WAITING,
    }
)

FIRST_STATES = frozenset(
    {
        RunState.BUFFERED,
        RunState.WAITING,
        RunState.SKIPPED_OVERLAP,
        RunState.MISSED_CATCHUP,
        RunState.MISSED_DEADLINE,
        RunState.CANCELLED,
    }
)
"""The states in which a run may come into being: to be run, or decided when its tick was fired."""

LEFT_OUT = frozenset({RunState.SKIPPED_OVERLAP, RunState.MISSED_CATCHUP, RunState.MISSED_DEADLINE})
"""The states, of these, of ticks for which nothing is done. Many in a row, for one reason, are one row with a
count."""


def states_before(move: RunMove) -> tuple[RunState, ...]:
    """The states that ``move`` may start from, for the WHERE clause of the statement that makes it."""
    return tuple(state for (state, m) in TRANSITIONS if m is move)


def unsuccessful(run: ClaimedRun, state: RunState, reason: str) -> Finish:
    """Return how a worker tells of an attempt that failed, timed out or was cancelled."""
    # Lost attempts use up no retries; and who cancels a run wants no other attempt.
    is_repeated = state in (RunState.FAILED, RunState.TIMED_OUT)
    in_s = retry_in_s(run.job, attempt=max(run.attempt - run.losses, 1)) if is_repeated else None
    return Finish(run.id, run.fence, state, reason, in_s)


def retry_in_s(job: ScheduleSpec, *, attempt: int) -> float | None:
    """The seconds until the next attempt, after the ``attempt``-th (1 is the first) failed or timed out; None:
    the run is over."""
    assert attempt >= 1, attempt
    if attempt > job.retries.limit:
        return None
    try:
        bound_s = job.retries.first * job.retries.factor ** (attempt - 1)
    except OverflowError:
        bound_s = inf if job.retries.first > 0 else 0.0
    return min(job.retries.max, bound_s)
