"""Runs of a schedule one at a time: who has the turn, and who gets it next, however a run ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from feedq.control.store.jobs import runs
from feedq.core.schedule.model import ClaimedRun, RunState
from feedq.core.schedule.spec import Overlap, Semantics
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, due_later, ended, finish, runs_of

S = RunState
LIMIT = 100
LIMIT_S = 30.0


def in_line(jobs: JobsHarness, count: int, **keys: Any) -> list[int]:
    """So many triggers of one schedule that buffers all."""
    jobs.schedule(overlap=Overlap.BUFFER_ALL, **keys)
    return [jobs.schedules.trigger("nightly", key=str(n)).id for n in range(count)]


def states(jobs: JobsHarness) -> list[RunState]:
    return [run.state for run in runs_of(jobs)]


def worker_is_gone(jobs: JobsHarness, run: ClaimedRun) -> None:
    jobs.store.workers.leave(jobs.schedules.run(run.id).worker_id)  # type: ignore[arg-type]
    jobs.store.jobs.runs.expire(limit=LIMIT)


def succeeds_in_its_transaction(jobs: JobsHarness, run: ClaimedRun) -> None:
    worker_id = jobs.schedules.run(run.id).worker_id
    assert worker_id is not None
    with jobs.store.jobs.runs.transact(worker_id, run):
        pass


def ends_as(state: RunState) -> Callable[[JobsHarness, ClaimedRun], None]:
    def end(jobs: JobsHarness, run: ClaimedRun) -> None:
        worker_id = jobs.schedules.run(run.id).worker_id
        assert worker_id is not None
        assert jobs.store.jobs.runs.finish(worker_id, [ended(run, state)]).ended == [run.id]

    return end


@pytest.mark.parametrize(
    "end",
    [
        ends_as(S.SUCCEEDED),
        ends_as(S.FAILED),
        lambda jobs, run: jobs.schedules.cancel_run(run.id),
        worker_is_gone,
        succeeds_in_its_transaction,
    ],
    ids=["success", "failure", "cancelled", "worker gone", "transaction"],
)
def test_whoever_ends_a_run_promotes_the_next(
    jobs: JobsHarness, end: Callable[[JobsHarness, ClaimedRun], None]
) -> None:
    first, second, third = in_line(jobs, 3)
    assert states(jobs) == [S.WAITING, S.BUFFERED, S.BUFFERED]
    (run,) = claim(jobs, jobs.job_worker())
    assert run.id == first
    assert states(jobs) == [S.RUNNING, S.BUFFERED, S.BUFFERED]
    end(jobs, run)
    assert jobs.schedules.run(first).state.is_final
    assert states(jobs)[1:] == [S.WAITING, S.BUFFERED]
    assert claim_one(jobs, jobs.job_worker("other")).id == second != third


def test_a_run_that_missed_its_start_deadline_gives_its_turn_to_the_next(jobs: JobsHarness) -> None:
    in_line(jobs, 3, start_deadline=30)
    jobs.execute("UPDATE feedq.run SET start_by = feedq.clock() WHERE key IN ('trigger:0', 'trigger:1')")
    assert claim(jobs, jobs.job_worker()) == []
    assert states(jobs) == [S.MISSED_DEADLINE, S.MISSED_DEADLINE, S.WAITING]


def test_what_nobody_has_promoted_is_promoted_by_any_worker_and_once(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its worker is killed between the end of a run and the promotion, or frozen there."""
    worker = jobs.job_worker()
    first, second, third = in_line(jobs, 3)
    late = runs.promote_behind
    monkeypatch.setattr(runs, "promote_behind", lambda *_: None)
    finish(jobs, worker, ended(claim_one(jobs, worker)))
    assert states(jobs) == [S.SUCCEEDED, S.BUFFERED, S.BUFFERED]
    assert claim(jobs, worker) == []
    monkeypatch.undo()
    jobs.store.jobs.runs.expire(limit=LIMIT)
    assert states(jobs) == [S.SUCCEEDED, S.WAITING, S.BUFFERED]
    late(jobs.database, [first])  # it wakes
    jobs.store.jobs.runs.expire(limit=LIMIT)
    assert states(jobs) == [S.SUCCEEDED, S.WAITING, S.BUFFERED]
    assert claim_one(jobs, worker).id == second
    assert jobs.schedules.run(first).state is S.SUCCEEDED
    assert jobs.schedules.run(third).state is S.BUFFERED


def test_of_many_lines_a_few_are_looked_at_each_time_and_none_is_left_out(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.control.store.jobs.runs.LINES_PER_SCAN", 2)
    for n in range(5):
        jobs.schedule(f"s{n}", overlap=Overlap.BUFFER_ALL)
        jobs.schedules.trigger(f"s{n}", key="a")
        jobs.schedules.trigger(f"s{n}", key="b")
    jobs.execute("UPDATE feedq.run SET state = 'cancelled', ended_at = feedq.clock() WHERE key = 'trigger:a'")
    promoted = []
    for _ in range(3):
        jobs.store.jobs.runs.expire(limit=LIMIT)
        promoted.append(len(jobs.schedules.runs(states=[S.WAITING])))
    assert promoted == [2, 4, 5]


def test_a_retry_gives_its_turn_up_until_it_is_due_and_then_goes_first(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    in_line(jobs, 2, retries={"limit": 1, "first": 60.0, "max": 60.0})
    finish(jobs, worker, ended(claim_one(jobs, worker), S.FAILED))
    assert states(jobs)[1] is S.WAITING
    jobs.schedules.trigger("nightly", key="last")
    second = claim_one(jobs, worker)
    assert second.key == "trigger:1"
    assert states(jobs) == [S.BUFFERED, S.RUNNING, S.BUFFERED]
    due_later(jobs, runs_of(jobs)[0], -120)
    finish(jobs, worker, ended(second))
    assert claim_one(jobs, worker).key == "trigger:0"


def test_a_retry_that_is_alone_waits_for_its_time_and_a_new_run_goes_before_it(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    in_line(jobs, 1, retries={"limit": 1, "first": 60.0, "max": 60.0})
    finish(jobs, worker, ended(claim_one(jobs, worker), S.FAILED))
    assert states(jobs) == [S.WAITING]
    jobs.schedules.trigger("nightly", key="new")
    assert states(jobs) == [S.BUFFERED, S.WAITING]
    finish(jobs, worker, ended(claim_one(jobs, worker)))
    assert states(jobs) == [S.WAITING, S.SUCCEEDED]
    assert claim(jobs, worker) == [], "it is not due"


def test_a_retry_that_is_claimed_as_it_was_to_give_its_turn_up_keeps_it(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    worker = jobs.job_worker()
    in_line(jobs, 1, retries={"limit": 1, "first": 60.0, "max": 60.0})
    finish(jobs, worker, ended(claim_one(jobs, worker), S.FAILED))
    with jobs.transaction() as claims:
        claims.execute("UPDATE feedq.run SET state = 'running', worker_id = %s", (str(worker.id),))
        triggered = threads.submit(jobs.schedules.trigger, "nightly", key="new")
        jobs.wait_until_blocked(triggered)
    assert triggered.result(LIMIT_S).state is S.BUFFERED
    assert states(jobs) == [S.RUNNING, S.BUFFERED]


def test_runs_that_go_one_at_a_time_wait_for_those_that_do_not(jobs: JobsHarness) -> None:
    """After an edit of the overlap policy."""
    worker = jobs.job_worker()
    schedule = jobs.schedule(overlap=Overlap.ALLOW_ALL, semantics=Semantics.AT_LEAST_ONCE)
    for n in range(2):
        jobs.schedules.trigger("nightly", key=str(n))
    running = claim(jobs, worker)
    jobs.schedules.edit("nightly", schedule.spec.model_copy(update={"overlap": Overlap.BUFFER_ALL}))
    jobs.schedules.trigger("nightly", key="one at a time")
    for run in running:
        assert states(jobs)[2] is S.BUFFERED
        finish(jobs, worker, ended(run))
    assert states(jobs)[2] is S.WAITING
