"""Expiry: what becomes of runs whose worker is gone, and that no others end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from feedq.core.model import Worker
from feedq.core.schedule.model import ClaimedRun, RunState
from feedq.core.schedule.spec import Semantics
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, ended, finish, started
from tests.schedules import Keys

S = RunState
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
