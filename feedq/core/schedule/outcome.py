"""What becomes of an attempt that did not succeed, as far as its job decides it.

A run waits, is claimed by a worker under a fence, and ends; or it waits again, for another attempt. The moves from
state to state are functions of the database (`feedq/control/sql/runs.sql` and `ends.sql`). An attempt is its
worker's as long as the worker lives and the fence stands: until then nobody else ends it, however long it takes,
but who cancels it on purpose. So a run ends once, whoever was killed, frozen or cut off when."""

from __future__ import annotations

from math import inf

from feedq.core.schedule.model import ClaimedRun, Finish, RunState
from feedq.core.schedule.spec import ScheduleSpec


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
