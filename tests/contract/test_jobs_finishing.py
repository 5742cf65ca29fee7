"""Finishing and expiry: an attempt ends once, by who holds it or when its worker is gone; retries and failures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from feedq.core.model import Worker
from feedq.core.schedule.model import ClaimedRun, RunState, ScheduleState
from feedq.core.schedule.spec import Overlap, Semantics
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


# -- runs whose worker is gone -----------------------------------------------------------------------

WAIT_S = 20.0
GRACE_S = 1.0
"""For which what a worker runs is left alone that was declared gone on a suspicion: `feedq_1.has_runs`."""
LOSSES_MAX = 10
"""`feedq_1.end_attempt`"""


def job(semantics: Semantics = Semantics.AT_MOST_ONCE, **changes: Any) -> Keys:
    return {"task": "tasks.report", "semantics": semantics, **changes}


AGAIN = job(Semantics.AT_LEAST_ONCE)


def expire(jobs: JobsHarness, *, limit: int = 100) -> int:
    return jobs.store.jobs.runs.expire(limit=limit)


def test_an_at_most_once_run_is_lost_with_its_worker(jobs: JobsHarness) -> None:
    worker, run = started(jobs, **job(retries={"limit": 5}))
    jobs.expire_workers(worker)
    assert expire(jobs) == 1
    row = jobs.schedules.run(run.id)
    assert (row.state, row.reason) == (S.LOST, "its worker was declared gone")
    assert claim(jobs, jobs.job_worker("b")) == []
    assert jobs.schedules.get("nightly").failures == 1
    ((_, detail),) = jobs.events("run_lost")
    assert detail == {"schedule": "nightly", "key": run.key, "run": run.id, "attempt": 1, "state": "lost"}
    assert expire(jobs) == 0


def crash(jobs: JobsHarness, worker: Worker) -> None:
    """Declared gone because it has lost its sessions, not because its heartbeats stayed away."""
    jobs.execute("UPDATE feedq.worker SET suspected_at = feedq.clock() WHERE id = %s", worker.id)
    jobs.expire_workers(worker)


def take_over(jobs: JobsHarness, worker: Worker, was: Worker, *runs: ClaimedRun) -> set[int]:
    return jobs.store.jobs.runs.take_over(worker.id, was.id, {run.id: run.fence for run in runs})


def test_what_a_crashed_worker_runs_is_left_alone_for_a_moment(jobs: JobsHarness) -> None:
    worker, run = started(jobs, **AGAIN)
    crash(jobs, worker)
    assert expire(jobs) == 0
    jobs.elapse(GRACE_S)
    assert expire(jobs) == 1
    assert jobs.schedules.run(run.id).state is S.WAITING


def test_a_suspicion_from_before_the_clock_was_put_back_gives_no_grace_without_an_end(
    jobs: JobsHarness,
) -> None:
    worker, _ = started(jobs)
    crash(jobs, worker)
    jobs.put_clock_back(3_600)
    assert expire(jobs) == 1


def test_a_worker_that_lives_takes_its_runs_over_in_its_next_session(jobs: JobsHarness) -> None:
    was, run = started(jobs)
    crash(jobs, was)
    worker = jobs.job_worker()
    assert take_over(jobs, worker, was, run) == {run.id}
    assert take_over(jobs, worker, was, run) == set(), "it is its own already"
    jobs.elapse(GRACE_S)
    assert expire(jobs) == 0
    assert jobs.store.jobs.runs.held(worker.id) == {run.id: run.fence}
    assert finish(jobs, worker, ended(run)) == [run.id]


def test_nothing_is_taken_over_that_was_taken_away_or_is_not_its_own(jobs: JobsHarness) -> None:
    was, run = started(jobs, **AGAIN)
    other, others = started(jobs, "other")
    crash(jobs, was)
    jobs.elapse(GRACE_S)
    worker = jobs.job_worker()
    assert take_over(jobs, worker, was, replace(run, fence=run.fence - 1), others) == set()
    assert expire(jobs) == 1
    assert take_over(jobs, worker, was, run) == set(), "it waits"
    again = claim_one(jobs, other)
    assert take_over(jobs, worker, was, run) == set(), "it runs elsewhere"
    assert take_over(jobs, was, other, others) == set(), "who is gone takes nothing"
    assert jobs.store.jobs.runs.held(other.id) == {others.id: others.fence, again.id: again.fence}


def test_the_zombie_cannot_finish_what_was_taken_from_it(jobs: JobsHarness) -> None:
    worker, run = started(jobs, **AGAIN)
    jobs.expire_workers(worker)
    expire(jobs)
    assert finish(jobs, worker, ended(run)) == [], "waiting for another"
    other = jobs.job_worker("b")
    again = claim_one(jobs, other)
    assert finish(jobs, worker, ended(run, S.FAILED)) == [], "running elsewhere"
    assert finish(jobs, other, ended(again)) == [run.id]
    assert finish(jobs, worker, ended(run)) == [], "over"
    assert len(jobs.events("run_finish_rejected")) == 3
    assert jobs.store.jobs.runs.taken_away(worker.id, {run.id: run.fence}) == {run.id}


def test_a_job_that_kills_its_workers_ends_some_day(jobs: JobsHarness) -> None:
    run = jobs.triggered(**AGAIN)
    for attempt in range(1, LOSSES_MAX + 1):
        worker = jobs.job_worker(f"w{attempt}")
        assert claim_one(jobs, worker).attempt == attempt
        jobs.expire_workers(worker)
        assert expire(jobs) == 1
    assert jobs.schedules.run(run.id).state is S.LOST


# -- deadlines ---------------------------------------------------------------------------------------


EVERY = pytest.mark.parametrize("semantics", Semantics)


@EVERY
def test_nobody_else_ends_a_run_past_its_deadline_while_its_worker_lives(
    jobs: JobsHarness, semantics: Semantics
) -> None:
    """Its worker may have ended it in time, and wait for the database to say so."""
    worker, run = started(jobs, **job(semantics, timeout=30))
    jobs.elapse(3_600)
    assert expire(jobs) == 0
    assert finish(jobs, worker, ended(run)) == [run.id]
    row = jobs.schedules.run(run.id)
    assert (row.state, row.attempt) == (S.SUCCEEDED, 1)
    assert jobs.events("run_finish_rejected", "run_lost") == []


@EVERY
def test_a_run_past_its_deadline_is_judged_by_its_semantics_when_its_worker_is_gone(
    jobs: JobsHarness, semantics: Semantics
) -> None:
    """All workers were down for longer than it may take: of how far it came its deadline says nothing."""
    worker, run = started(jobs, **job(semantics, timeout=30), start_deadline=1.0)
    jobs.elapse(3_600)
    jobs.expire_workers(worker)
    assert expire(jobs) == 1
    row = jobs.schedules.run(run.id)
    if semantics is Semantics.AT_MOST_ONCE:
        assert (row.state, row.attempt) == (S.LOST, 1)
    else:
        ((_, detail),) = jobs.events("run_lost")
        assert (detail["state"], jobs.schedules.get("nightly").failures) == ("waiting", 0)
        again = claim_one(jobs, jobs.job_worker("b"))
        assert (again.id, again.attempt, again.fence > run.fence) == (run.id, 2, True)
        assert again.remaining_s == pytest.approx(30, abs=5), "it has all of its time again"


def test_where_nobody_claims_start_deadlines_are_missed_all_the_same(jobs: JobsHarness) -> None:
    run = jobs.triggered(start_deadline=30)
    jobs.elapse(30)
    expire(jobs)
    assert jobs.schedules.run(run.id).state is S.MISSED_DEADLINE


# -- several at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["schedule", "run"])
def test_what_somebody_holds_is_left_to_the_next_look(jobs: JobsHarness, table: str) -> None:
    worker, run = started(jobs)
    jobs.expire_workers(worker)
    with jobs.transaction() as other:
        other.execute(f"SELECT FROM feedq.{table} FOR UPDATE")
        assert expire(jobs) == 0, "and nobody waits"
    assert expire(jobs) == 1
    assert jobs.schedules.run(run.id).state is S.LOST


def test_a_run_that_somebody_else_has_by_then_is_not_taken_away(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    """Between the look and the lock it was given back, and claimed by a worker that lives."""
    worker, run = started(jobs)
    jobs.expire_workers(worker)
    other = jobs.job_worker("b")
    # A lock that expiry waits for, between the two.
    with jobs.transaction() as holding:
        holding.execute("LOCK TABLE feedq.schedule IN ACCESS EXCLUSIVE MODE")
        expiring = threads.submit(expire, jobs)
        jobs.wait_until_blocked(expiring)
        sql = "UPDATE feedq.run SET worker_id = %s, fence = nextval('feedq.run_fence')"
        jobs.execute(sql, str(other.id))
    assert expiring.result(WAIT_S) == 0
    row = jobs.schedules.run(run.id)
    assert (row.state, row.worker_id) == (S.RUNNING, other.id)
