"""The contract of job queues: their limits, and how deep they are."""

from __future__ import annotations

import pytest

from feedq.core.schedule.spec import Overlap, Queue
from feedq.errors import NotFound
from tests.contract.jobs_harness import JobsHarness


def tokens(jobs: JobsHarness, name: str = "mail") -> float:
    ((count,),) = jobs.execute("SELECT tokens FROM feedq.job_queue WHERE name = %s", name)
    return float(str(count))


def test_limits_are_set_changed_and_removed(jobs: JobsHarness) -> None:
    assert jobs.queues.all() == []
    jobs.queues.set(Queue(name="slow", concurrency=1))
    jobs.queues.set(Queue(name="mail", rate_per_s=2.5, burst=10.0))
    assert jobs.queues.all() == [
        Queue(name="mail", rate_per_s=2.5, burst=10.0),
        Queue(name="slow", concurrency=1),
    ]
    jobs.queues.set(Queue(name="mail", concurrency=3))
    assert jobs.queues.all()[0] == Queue(name="mail", concurrency=3)
    jobs.queues.remove("mail")
    assert jobs.queues.all() == [Queue(name="slow", concurrency=1)]
    with pytest.raises(NotFound, match="'mail'"):
        jobs.queues.remove("mail")


def test_a_change_gives_no_starts_away_and_takes_none(jobs: JobsHarness) -> None:
    jobs.queues.set(Queue(name="mail", rate_per_s=0.001, burst=10.0))
    jobs.execute("UPDATE feedq.job_queue SET tokens = 2")
    jobs.queues.set(Queue(name="mail", rate_per_s=0.001, burst=20.0))
    assert tokens(jobs) == pytest.approx(2.0, abs=0.1), "a greater burst is filled as time goes by"
    jobs.elapse(5000)
    jobs.queues.set(Queue(name="mail", rate_per_s=9.0, burst=20.0))
    assert tokens(jobs) == pytest.approx(7.0, abs=0.1), "saved up at the old rate"
    jobs.queues.set(Queue(name="mail", rate_per_s=9.0, burst=3.0))
    assert tokens(jobs) == 3.0, "at most the burst"


def test_depths_are_of_what_has_not_ended_by_queue(jobs: JobsHarness) -> None:
    assert jobs.queues.depths() == {}
    worker = jobs.job_worker()
    for queue in ("mail", "slow"):
        jobs.schedule(queue, overlap=Overlap.ALLOW_ALL, task="t", queue=queue)
    waiting = [jobs.schedules.trigger("mail") for _ in range(3)]
    jobs.start(waiting[0], worker)
    jobs.end(waiting[1])
    jobs.start(jobs.schedules.trigger("slow"), worker)
    assert jobs.queues.depths() == {"mail": (1, 1), "slow": (0, 1)}
