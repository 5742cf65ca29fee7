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
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType

from feedq.core.schedule.model import RunState
from feedq.core.schedule.spec import Retries, ScheduleSpec, Semantics

LOSSES_MAX = 10
"""The most attempts of one run that may be lost with their workers or sessions: a job that kills its worker
must end some day."""


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


def counts_as_failure(state: RunState) -> bool:
    """Return whether a run that ended so is one more failure in a row. `SUCCEEDED` ends the row; all others
    leave it."""
    return state in (RunState.FAILED, RunState.TIMED_OUT, RunState.LOST)


# -- after an attempt --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after so many seconds, on any worker."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ends:
    """The run is over, in this state."""

    state: RunState


def after_attempt(job: ScheduleSpec, *, attempt: int, ended: RunState) -> RetryIn | Ends:
    """Decide after the ``attempt``-th attempt (1 is the first) `SUCCEEDED`, `FAILED`, `TIMED_OUT` or was
    `CANCELLED`."""
    assert attempt >= 1, attempt
    if ended in (RunState.SUCCEEDED, RunState.CANCELLED):
        return Ends(ended)
    if ended not in (RunState.FAILED, RunState.TIMED_OUT):
        raise ValueError(f"an attempt does not end {ended!s}")
    if attempt > job.retries.limit:
        return Ends(ended)
    return RetryIn(_wait_s(job.retries, attempt))


def after_loss(job: ScheduleSpec, *, losses: int) -> RetryIn | Ends:
    """Decide after an attempt that ended with its worker, or with the session of its transaction; ``losses``
    counts those of this run, this one included."""
    assert losses >= 1, losses
    if job.semantics is Semantics.AT_MOST_ONCE or losses >= LOSSES_MAX:
        return Ends(RunState.LOST)
    return RetryIn(0.0)


def _wait_s(retries: Retries, attempt: int) -> float:
    try:
        bound_s = retries.first * retries.factor ** (attempt - 1)
    except OverflowError:
        bound_s = inf if retries.first > 0 else 0.0
    return min(retries.max, bound_s)
