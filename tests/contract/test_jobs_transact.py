"""Transactional jobs: what a job writes and the success of its run are kept together, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from feedq.control.store.database import Connection
from feedq.control.store.jobs import sessions
from feedq.core.model import Worker
from feedq.core.schedule.model import ClaimedRun, RunState
from feedq.core.schedule.spec import Semantics
from feedq.errors import JobSessionLost, RunCancelled, RunTakenAway
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim_one, ended, finish
from tests.schedules import Keys
from tests.waiting import until

S = RunState
WAIT_S = 30.0
REJECTED = "run_finish_rejected"
JOB: Keys = {"semantics": Semantics.TRANSACTIONAL}
WRITE = text("INSERT INTO effect (run) VALUES (:run)")


@pytest.fixture(autouse=True)
def effects(jobs: JobsHarness) -> Iterator[None]:
    """A table of the user's, in which each run leaves a row."""
    jobs.execute("CREATE TABLE effect (run bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    yield
    jobs.execute("DROP TABLE effect")


def started(jobs: JobsHarness, *, timeout_s: float | None = 3600.0) -> tuple[Worker, ClaimedRun]:
    jobs.triggered(**JOB, timeout=timeout_s)
    worker = jobs.job_worker()
    return worker, claim_one(jobs, worker)


Step = Callable[[Session], object]


def work(jobs: JobsHarness, worker: Worker, run: ClaimedRun, *steps: Step) -> None:
    """A job that writes, and does this."""
    with jobs.store.jobs.runs.transact(worker.id, run) as session:
        session.execute(WRITE, {"run": run.id})
        for step in steps:
            step(session)


def fail(session: Session) -> None:
    raise ZeroDivisionError


def kept(jobs: JobsHarness) -> int:
    return len(jobs.execute("SELECT 1 FROM effect"))


def rejected(jobs: JobsHarness) -> list[tuple[object, ...]]:
    """Fence and worker of each end that was turned away, the end that it said, and how the run stood."""
    keys = ("fence", "worker", "state", "found")
    return [tuple(detail[key] for key in keys) for _, detail in jobs.events(REJECTED)]


def state(jobs: JobsHarness, run: ClaimedRun) -> RunState:
    return jobs.schedules.run(run.id).state


def test_the_effect_and_the_success_become_visible_together(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    with jobs.store.jobs.runs.transact(worker.id, run) as session:
        session.execute(WRITE, {"run": run.id})
        assert (kept(jobs), state(jobs, run)) == (0, S.RUNNING)
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)
    assert finish(jobs, worker, ended(run)) == [], "it has been finished"


def test_an_exception_keeps_nothing_and_passes_through(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    with pytest.raises(ZeroDivisionError):
        work(jobs, worker, run, fail)
    assert (kept(jobs), state(jobs, run)) == (0, S.RUNNING)
    assert finish(jobs, worker, ended(run, S.FAILED)) == [run.id]


def test_what_the_job_commits_and_rolls_back_by_itself_is_up_to_the_end(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    with pytest.raises(ZeroDivisionError):
        work(jobs, worker, run, Session.commit, fail)
    assert kept(jobs) == 0
    with jobs.store.jobs.runs.transact(worker.id, run) as session:
        session.execute(WRITE, {"run": 2})
        session.commit()
        session.execute(WRITE, {"run": 3})
        session.rollback()
    assert jobs.execute("SELECT run FROM effect") == [(2,)]


# -- taken away under way ----------------------------------------------------------------------------


def test_a_cancelled_run_keeps_nothing(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    with pytest.raises(RunTakenAway, match="nightly"):
        work(jobs, worker, run, lambda _: jobs.schedules.cancel_run(run.id))
    assert (kept(jobs), state(jobs, run)) == (0, S.CANCELLED)
    assert jobs.events(REJECTED) == [], "it was cancelled on purpose"


def test_a_run_that_was_taken_over_under_way_is_kept(jobs: JobsHarness) -> None:
    """It began under a session that is gone, and its process has another one by now."""
    was, run = started(jobs)
    jobs.expire_workers(was)
    worker = jobs.job_worker("b")
    assert jobs.store.jobs.runs.take_over(worker.id, was.id, {run.id: run.fence}) == {run.id}
    work(jobs, was, run)
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)


def test_a_zombie_keeps_nothing_and_its_successor_everything(jobs: JobsHarness) -> None:
    """It wakes up when its run has been done by another; the server did not find its session to end it."""
    worker, run = started(jobs)
    jobs.expire_workers(worker)

    def meanwhile(session: Session) -> None:
        session.execute(text("SET LOCAL application_name = 'not to be found'"))
        assert jobs.store.jobs.runs.expire(limit=10) == 1
        other = jobs.job_worker("b")
        with jobs.store.jobs.runs.transact(other.id, claim_one(jobs, other)) as its:
            its.execute(WRITE, {"run": 77})

    with pytest.raises(RunTakenAway):
        work(jobs, worker, run, meanwhile)
    assert jobs.execute("SELECT run FROM effect") == [(77,)]
    assert state(jobs, run) is S.SUCCEEDED
    assert rejected(jobs) == [(run.fence, str(worker.id), "succeeded", "succeeded")]


def test_an_attempt_keeps_nothing_once_its_own_worker_is_at_the_next_one(jobs: JobsHarness) -> None:
    """Its time was up, and the retry came to the same worker: only the fence tells the two apart."""
    jobs.triggered(**JOB, timeout=30.0, retries={"limit": 1, "first": 0.0})
    worker = jobs.job_worker()
    run = claim_one(jobs, worker)
    retries: list[ClaimedRun] = []

    def meanwhile(_: Session) -> None:
        assert finish(jobs, worker, ended(run, S.TIMED_OUT)) == [run.id]
        retries.append(claim_one(jobs, worker))

    with pytest.raises(RunTakenAway):
        work(jobs, worker, run, meanwhile)
    row = jobs.schedules.run(run.id)
    assert (kept(jobs), row.state, row.fence) == (0, S.RUNNING, retries[0].fence)


def test_a_frozen_zombie_does_not_hold_up_its_successor_with_what_it_has_locked(jobs: JobsHarness) -> None:
    worker, run = started(jobs, timeout_s=None)
    jobs.execute("INSERT INTO effect VALUES (7)")
    jobs.expire_workers(worker)

    def write(session: Session) -> None:
        # By itself it would wait as long as its run may take, which is for ever.
        session.execute(text("SET LOCAL lock_timeout = '10s'"))
        session.execute(text("UPDATE effect SET run = run + 1 WHERE run < 10"))

    def meanwhile(_: Session) -> None:
        assert jobs.store.jobs.runs.expire(limit=10) == 1
        other = jobs.job_worker("b")
        with jobs.store.jobs.runs.transact(other.id, claim_one(jobs, other)) as session:
            write(session)

    with pytest.raises(JobSessionLost):
        work(jobs, worker, run, write, meanwhile, write)
    assert jobs.execute("SELECT run FROM effect") == [(8,)]
    assert state(jobs, run) is S.SUCCEEDED


def test_a_run_that_is_about_to_be_committed_is_not_expired(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the completing update and the commit its row is locked: the expiry passes it over."""
    worker, run = started(jobs)
    jobs.expire_workers(worker)
    real = sessions.complete

    def complete(c: Connection, worker_id: UUID, claimed: ClaimedRun) -> None:
        real(c, worker_id, claimed)
        assert jobs.store.jobs.runs.expire(limit=10) == 0

    monkeypatch.setattr(sessions, "complete", complete)
    work(jobs, worker, run)
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)
    assert jobs.store.jobs.runs.expire(limit=10) == 0


# -- cut off under way -------------------------------------------------------------------------------


def cut_off(jobs: JobsHarness, run: ClaimedRun) -> None:
    jobs.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
        f"feedq-job/{run.id}/{run.fence}",
    )


def test_killed_before_the_commit_nothing_is_kept(jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, run = started(jobs)
    real = sessions.complete

    def complete(c: Connection, worker_id: UUID, claimed: ClaimedRun) -> None:
        real(c, worker_id, claimed)
        cut_off(jobs, run)

    monkeypatch.setattr(sessions, "complete", complete)
    with pytest.raises(JobSessionLost):
        work(jobs, worker, run)
    assert (kept(jobs), state(jobs, run)) == (0, S.RUNNING)
    monkeypatch.setattr(sessions, "complete", real)
    work(jobs, worker, run)
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError("no"), JobSessionLost), (RunCancelled("its time is up"), RunCancelled)]
)
def test_a_job_that_gives_up_after_its_session_was_cut_off_unheard_does_not_fail(
    jobs: JobsHarness, error: Exception, told: type[Exception]
) -> None:
    """It has asked nothing of its session, so the driver does not know yet."""
    worker, run = started(jobs)

    def give_up() -> None:
        with jobs.store.jobs.runs.transact(worker.id, run):
            cut_off(jobs, run)
            raise error

    with pytest.raises(told):
        give_up()
    assert state(jobs, run) is S.RUNNING


def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, run = started(jobs)

    def commit(c: sqlalchemy.Connection) -> None:
        real(c)
        raise OperationalError("COMMIT", {}, psycopg2.OperationalError("the answer was lost"))

    real = sqlalchemy.Connection.commit
    monkeypatch.setattr(sqlalchemy.Connection, "commit", commit)
    work(jobs, worker, run)
    monkeypatch.undo()
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)


def test_a_commit_that_failed_is_not_taken_for_that_of_the_next_attempt(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, run = started(jobs)

    def commit(c: sqlalchemy.Connection) -> None:
        """Cut off; and before anybody asks what became of it, another has done the run."""
        monkeypatch.undo()
        cut_off(jobs, run)
        jobs.expire_workers(worker)
        assert jobs.store.jobs.runs.expire(limit=10) == 1
        other = jobs.job_worker("b")
        with jobs.store.jobs.runs.transact(other.id, claim_one(jobs, other)) as its:
            its.execute(WRITE, {"run": 77})
        c.commit()

    monkeypatch.setattr(sqlalchemy.Connection, "commit", commit)
    with pytest.raises(JobSessionLost):
        work(jobs, worker, run)
    assert jobs.execute("SELECT run FROM effect") == [(77,)]
    assert state(jobs, run) is S.SUCCEEDED


def wrapped(session: Session) -> None:
    try:
        session.execute(WRITE, {"run": 2})
    except OperationalError as error:
        raise ValueError("an error of the job's own making") from error


@pytest.mark.parametrize("write", [lambda session: session.execute(WRITE, {"run": 2}), wrapped])
def test_a_session_that_is_cut_under_way_is_no_failure_and_the_run_is_done_again(
    jobs: JobsHarness, write: Callable[[Session], object]
) -> None:
    worker, run = started(jobs)
    with pytest.raises(JobSessionLost, match=r"nightly.*nothing that it wrote was kept"):
        work(jobs, worker, run, lambda _: cut_off(jobs, run), write)
    assert finish(jobs, worker, ended(run, S.LOST, "cut off")) == [run.id]
    row = jobs.schedules.run(run.id)
    assert (row.state, row.attempt, row.reason) == (S.WAITING, 2, "cut off")
    assert jobs.schedules.get("nightly").failures == 0
    ((_, detail),) = jobs.events("run_lost")
    assert (detail["attempt"], detail["state"]) == (1, "waiting")
    work(jobs, worker, claim_one(jobs, worker))
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)


def test_without_a_session_nothing_is_begun_and_the_run_is_done_again(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, run = started(jobs)

    def refuse(*_: object, **__: object) -> None:
        raise psycopg2.OperationalError("too many clients already")

    monkeypatch.setattr(psycopg2, "connect", refuse)
    with pytest.raises(JobSessionLost, match="too many clients"):
        work(jobs, worker, run, fail)


def test_a_commit_that_had_happened_after_all_stands_and_is_no_rejection(jobs: JobsHarness) -> None:
    """Its worker could not even ask, and says that nothing was kept."""
    worker, run = started(jobs)
    work(jobs, worker, run)
    assert finish(jobs, worker, ended(run, S.LOST)) == []
    assert (kept(jobs), state(jobs, run)) == (1, S.SUCCEEDED)
    assert rejected(jobs) == []


# -- connections -------------------------------------------------------------------------------------


def test_many_long_jobs_leave_the_others_their_connections(jobs: JobsHarness) -> None:
    worker, run = started(jobs)
    all_are_in, go_on = threading.Barrier(13), threading.Event()

    def wait() -> None:
        with jobs.store.jobs.runs.transact(worker.id, run) as session:
            session.execute(text("SELECT 1"))
            all_are_in.wait(WAIT_S)
            go_on.wait(WAIT_S)

    with ThreadPoolExecutor(12) as threads:
        waiting = [threads.submit(wait) for _ in range(12)]
        all_are_in.wait(WAIT_S)
        assert jobs.store.jobs.runs.held(worker.id) == {run.id: run.fence}
        go_on.set()
        errors = [job.exception(WAIT_S) for job in waiting]
    assert sorted(map(type, errors), key=str) == sorted([type(None)] + [RunTakenAway] * 11, key=str)


def test_a_silent_job_keeps_its_transaction_as_long_as_its_run_may_take(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MARGIN_S", 0.0)
    worker, run = started(jobs, timeout_s=1.0)

    def freeze(_: Session) -> None:
        sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'feedq-job/%%'"
        until(lambda: not jobs.execute(sessions), "a frozen job lets go of what it has locked")

    with pytest.raises(JobSessionLost):
        work(jobs, worker, run, freeze, lambda session: session.execute(WRITE, {"run": 2}))
    assert kept(jobs) == 0
