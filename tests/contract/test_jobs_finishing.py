"""Finishing: an attempt ends once, by who holds it; retries, failures in a row, and who is turned away."""

from __future__ import annotations

import pytest

from feedq.core.model import Worker
from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.schedule.spec import Overlap
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import ask, claim, claim_one, ended, finish, started
from tests.schedules import Keys

S = RunState
RETRIED: Keys = {"task": "tasks.report", "retries": {"limit": 2, "first": 20.0, "factor": 3.0}}


def one_more(jobs: JobsHarness, worker: Worker, state: RunState, name: str = "nightly") -> None:
    """A further run that ends like this."""
    jobs.schedules.trigger(name)
    run = claim_one(jobs, worker)
    assert finish(jobs, worker, ended(run, state)) == [run.id]


def failures(jobs: JobsHarness, name: str = "nightly") -> int:
    return jobs.schedules.get(name).failures


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED])
def test_an_attempt_ends_as_its_worker_says(jobs: JobsHarness, state: RunState) -> None:
    worker, run = started(jobs)
    assert finish(jobs, worker, ended(run, state, "because")) == [run.id]
    row = jobs.schedules.run(run.id)
    assert (row.state, row.reason, row.attempt, row.worker) == (state, "because", 1, "a")
    assert row.ended_at is not None
    assert jobs.events("run_finish_rejected") == []


def test_a_reason_of_any_length_and_content_can_be_kept(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    assert finish(jobs, worker, ended(run, S.FAILED, "nul \x00, half \ud800 " + "x" * 100_000)) == [run.id]
    assert 1_000 < len(str(jobs.schedules.run(run.id).reason)) < 10_000


# -- who is turned away ------------------------------------------------------------------------------


def test_a_second_finish_has_no_effect(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    assert finish(jobs, worker, ended(run), ended(run, S.FAILED)) == [run.id]
    assert finish(jobs, worker, ended(run, S.FAILED)) == []
    assert jobs.schedules.run(run.id).state is S.SUCCEEDED
    assert failures(jobs) == 0
    assert len(jobs.events("run_finish_rejected")) == 2


def test_another_worker_cannot_finish_it(jobs: JobsHarness) -> None:
    _, run = started(jobs)
    assert finish(jobs, jobs.job_worker("b"), ended(run)) == []
    assert jobs.schedules.run(run.id).state is S.RUNNING


def test_a_stale_fence_cannot_finish_it(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    finish(jobs, worker, ended(run, S.WAITING))
    again = claim_one(jobs, worker)
    assert finish(jobs, worker, ended(run)) == []
    row = jobs.schedules.run(run.id)
    assert (row.state, row.fence) == (S.RUNNING, again.fence)
    ((_, detail),) = jobs.events("run_finish_rejected")
    assert detail == {
        "schedule": "nightly",
        "key": run.key,
        "run": run.id,
        "fence": run.fence,
        "worker": str(worker.id),
        "state": "succeeded",
        "found": "running",
    }


# -- retries -----------------------------------------------------------------------------------------


def test_a_failed_attempt_waits_for_the_next_longer_each_time(jobs: JobsHarness) -> None:
    worker, run = started(jobs, **RETRIED)
    for attempt, wait_s in ((1, 20.0), (2, 60.0)):
        assert run.attempt == attempt
        assert finish(jobs, worker, ended(run, S.FAILED, "no luck")) == [run.id]
        row = jobs.schedules.run(run.id)
        assert (row.state, row.attempt, row.reason, row.worker_id) == (
            S.WAITING,
            attempt + 1,
            "no luck",
            None,
        )
        granted = ask(jobs, worker)
        assert not granted.runs
        assert granted.next_in_s == pytest.approx(wait_s, abs=5)
        jobs.elapse(wait_s)
        run = claim_one(jobs, worker)
    finish(jobs, worker, ended(run, S.FAILED))
    assert jobs.schedules.run(run.id).state is S.FAILED
    assert failures(jobs) == 1, "one run"


def test_a_retry_has_its_start_deadline_anew_and_ranks_by_when_it_is_due(jobs: JobsHarness) -> None:
    worker, run = started(jobs, **RETRIED, start_deadline=5.0)
    ((due, rank, start_by),) = jobs.execute("SELECT due_at, rank_at, start_by FROM feedq.run")
    finish(jobs, worker, ended(run, S.FAILED))
    (row,) = jobs.execute(
        "SELECT due_at - %s > interval '19 s', due_at - rank_at = %s - %s::timestamptz, "
        "start_by - due_at = %s - %s::timestamptz FROM feedq.run",
        due, due, rank, start_by, due,
    )  # fmt: skip
    assert row == (True, True, True)
    jobs.elapse(20)
    assert claim_one(jobs, worker).attempt == 2


def test_what_is_given_back_for_a_removed_schedule_is_cancelled(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    jobs.schedules.remove("nightly")
    assert finish(jobs, worker, ended(run, S.WAITING)) == [run.id]
    assert jobs.schedules.run(run.id).state is S.CANCELLED


def test_what_is_given_back_is_as_it_was(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    finish(jobs, worker, ended(run, S.WAITING, "the worker is stopping"))
    row = jobs.schedules.run(run.id)
    assert (row.state, row.attempt, row.due_at) == (S.WAITING, 1, run.due_at)
    assert (row.worker_id, row.started_at, row.deadline_at, row.ended_at) == (None, None, None, None)
    assert failures(jobs) == 0


# -- failures in a row -------------------------------------------------------------------------------


def test_failures_in_a_row_are_counted_and_a_success_ends_the_row(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    finish(jobs, worker, ended(run, S.FAILED))
    one_more(jobs, worker, S.TIMED_OUT)
    assert failures(jobs) == 2
    one_more(jobs, worker, S.CANCELLED)
    assert failures(jobs) == 2, "neither a failure nor a success"
    one_more(jobs, worker, S.SUCCEEDED)
    assert failures(jobs) == 0


def test_too_many_failures_in_a_row_pause_the_schedule(jobs: JobsHarness) -> None:
    worker, run = started(jobs, pause_on_failure=2)
    finish(jobs, worker, ended(run, S.FAILED))
    assert jobs.schedules.get("nightly").state is ScheduleState.ACTIVE
    one_more(jobs, worker, S.FAILED)
    schedule = jobs.schedules.get("nightly")
    assert (schedule.state, schedule.pause_reason) == (
        ScheduleState.PAUSED,
        "2 runs in a row did not succeed",
    )
    ((_, detail),) = jobs.events("schedule_paused")
    assert detail == {"schedule": "nightly", "reason": schedule.pause_reason}
    one_more(jobs, worker, S.FAILED)
    assert len(jobs.events("schedule_paused")) == 1, "a trigger may still run, and pauses it no further"
    assert jobs.schedules.resume("nightly").failures == 0


def test_failures_of_one_batch_are_counted_in_the_order_they_are_told(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL, pause_on_failure=3)
    for n in range(5):
        jobs.schedules.trigger("nightly", key=str(n))
    told = (S.FAILED, S.FAILED, S.SUCCEEDED, S.FAILED, S.FAILED)
    runs = claim(jobs, worker)
    finish(jobs, worker, *(ended(run, state) for run, state in zip(runs, told, strict=True)))
    schedule = jobs.schedules.get("nightly")
    assert (schedule.failures, schedule.state) == (2, ScheduleState.ACTIVE)


def test_a_declaration_that_cannot_be_read_keeps_no_run_from_ending(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    jobs.damage("nightly", {"warp": 9, "pause_on_failure": 1})
    assert finish(jobs, worker, ended(run, S.FAILED)) == [run.id]
    assert jobs.execute("SELECT state, failures FROM feedq.schedule") == [("paused", 1)]


# -- cut off under way -------------------------------------------------------------------------------


def test_a_success_after_successes_waits_for_nobody_who_holds_the_schedule(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    with jobs.transaction() as other:
        other.execute("SELECT FROM feedq.schedule FOR UPDATE")
        assert finish(jobs, worker, ended(run)) == [run.id]
