"""Short words for the suites of runs: what workers offer, claim and finish."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from feedq.control.store.protocol import job_from
from feedq.core.model import Worker
from feedq.core.schedule.model import ClaimedRun, Finish, Granted, Offer, Run, RunState
from feedq.core.schedule.spec import ScheduleSpec
from feedq.worker.jobs.calling import unsuccessful
from tests.contract.jobs_harness import JobsHarness
from tests.schedules import INTERVAL_S


def offer(worker: Worker, *, limit: int = 8, slots: int = 0, fleet_slots: int = 0) -> Offer:
    return Offer(worker.id, limit, slots, fleet_slots)


def ask(jobs: JobsHarness, worker: Worker, **changes: Any) -> Granted:
    return jobs.store.jobs.runs.claim(offer(worker, **changes))


def claim(jobs: JobsHarness, worker: Worker, **changes: Any) -> list[ClaimedRun]:
    return list(ask(jobs, worker, **changes).runs)


def claim_one(jobs: JobsHarness, worker: Worker, **changes: Any) -> ClaimedRun:
    (run,) = claim(jobs, worker, **changes)
    return run


def started(jobs: JobsHarness, name: str = "nightly", **changes: object) -> tuple[Worker, ClaimedRun]:
    """A run of a new schedule, at a worker of its own."""
    jobs.triggered(name, **changes)
    worker = jobs.job_worker()
    return worker, claim_one(jobs, worker)


def ended(run: ClaimedRun, state: RunState = RunState.SUCCEEDED, reason: str | None = None) -> Finish:
    if state in (RunState.FAILED, RunState.TIMED_OUT):
        return replace(unsuccessful(run, state, ""), reason=reason)
    return Finish(run.id, run.fence, state, reason)


def finish(jobs: JobsHarness, worker: Worker, *finishes: Finish) -> list[int]:
    """As a worker does: what is busy is told again."""
    done: list[int] = []
    told = list(finishes)
    while told:
        finished = jobs.store.jobs.runs.finish(worker.id, told)
        done += finished.ended
        told = [one for one in told if one.run_id in finished.busy]
    return done


def fire(jobs: JobsHarness, *, limit: int = 1_000) -> list[int]:
    """Fire all that is due. Returns the ids of the runs that it made and that may start."""
    ((latest,),) = jobs.execute("SELECT coalesce(max(id), 0) FROM feedq.run")
    made, more = 0, True
    while more:
        fired = jobs.store.jobs.runs.fire_due(limit=limit)
        made, more = made + fired.runs, fired.more
    found = jobs.execute(
        "SELECT id FROM feedq.run WHERE id > %s AND state IN ('buffered', 'waiting') "
        "AND due_at <= feedq.clock() ORDER BY id",
        latest,
    )
    assert len(found) == made
    return [int(str(run_id)) for (run_id,) in found]


def fall_due(jobs: JobsHarness) -> list[int]:
    """Let the next tick of every schedule fall due, just so late that it is no misfire, and fire it."""
    jobs.execute(
        "UPDATE feedq.schedule SET next_tick_at = date_trunc('minute', feedq.clock()), "
        "next_fire_at = date_trunc('minute', feedq.clock()) WHERE next_tick_at IS NOT NULL"
    )
    return fire(jobs)


def states(jobs: JobsHarness, name: str = "nightly") -> dict[RunState, int]:
    return dict(jobs.schedules.counts(name))


def runs_of(jobs: JobsHarness, name: str = "nightly") -> list[Run]:
    """The oldest first."""
    return jobs.schedules.runs(name, limit=1_000)[::-1]


def job_of_run(jobs: JobsHarness, run: Run) -> ScheduleSpec:
    ((stored,),) = jobs.execute("SELECT job::text FROM feedq.run WHERE id = %s", run.id)
    return job_from(str(stored))


def due_later(jobs: JobsHarness, run: Run, seconds: float) -> None:
    """As if it fell due that much later, or earlier."""
    later = timedelta(seconds=seconds)
    jobs.execute(
        "UPDATE feedq.run SET due_at = due_at + %s, rank_at = rank_at + %s WHERE id = %s",
        later,
        later,
        run.id,
    )


assert INTERVAL_S == 60.0, "fall_due() goes by minutes"
