"""Claims under the limits of queues: so many at a time, so many starts a second."""

from __future__ import annotations

import pytest

from feedq.core.schedule.spec import Overlap, Queue
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import (
    ask,
    claim,
    claim_one,
    ended,
    finish,
)


def waiting_in(jobs: JobsHarness, queue: str, runs: int) -> None:
    jobs.schedule(queue, task="tasks.report", queue=queue, overlap=Overlap.ALLOW_ALL)
    for n in range(runs):
        jobs.schedules.trigger(queue, key=str(n))


def test_a_queue_runs_as_many_at_a_time_as_it_may(jobs: JobsHarness) -> None:
    a, b = jobs.job_worker("a"), jobs.job_worker("b")
    jobs.queues.set(Queue(name="slow", concurrency=3))
    waiting_in(jobs, "slow", 6)
    first = claim(jobs, a, limit=2)
    second = claim(jobs, b)
    assert (len(first), len(second)) == (2, 1)
    assert claim(jobs, a) == []
    finish(jobs, a, ended(first[0]))
    assert len(claim(jobs, b)) == 1


def test_a_bucket_gives_out_its_tokens_and_fills_up_again(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.queues.set(Queue(name="calm", rate_per_s=0.01, burst=2))
    waiting_in(jobs, "calm", 6)
    assert len(claim(jobs, worker)) == 2
    granted = ask(jobs, worker)
    assert list(granted.runs) == []
    assert granted.next_in_s == pytest.approx(100, abs=30), "the next token"
    jobs.elapse(100)
    assert len(claim(jobs, worker)) == 1
    jobs.elapse(36_000)
    assert len(claim(jobs, worker)) == 2, "no more than its burst, however long nobody drew from it"


def test_a_full_queue_keeps_no_other_waiting(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.queues.set(Queue(name="full", concurrency=1))
    waiting_in(jobs, "full", 1)
    claim_one(jobs, worker)
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job, queue, exclusive) "
        "SELECT schedule_id, 'm' || n, due_at, due_at - interval '1 hour', due_at - interval '1 hour', job, "
        "queue, false FROM feedq.run, generate_series(1, 3000) n"
    )
    waiting_in(jobs, "open", 2)
    assert [run.schedule for run in claim(jobs, worker)] == ["open", "open"]


def test_a_limited_queue_is_not_starved_by_one_without_limits(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.queues.set(Queue(name="limited", concurrency=1))
    waiting_in(jobs, "limited", 2)
    waiting_in(jobs, "open", 20)
    taken = claim(jobs, worker, limit=4)
    assert [run.schedule for run in taken] == ["limited", "open", "open", "open"], (
        "by rank, as far as there is room"
    )
