"""Limits of queues, and the shares of workers: how many runs each takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedq.core.schedule.model import QueueDepth
from feedq.core.schedule.spec import Overlap, Queue
from feedq.errors import NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import (
    ask,
    claim,
    claim_one,
)


def waiting_in(jobs: JobsHarness, queue: str, runs: int) -> None:
    jobs.schedule(queue, task="tasks.report", queue=queue, overlap=Overlap.ALLOW_ALL)
    for n in range(runs):
        jobs.schedules.trigger(queue, key=str(n))


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
    assert jobs.queues.listed() == []
    worker = jobs.job_worker()
    for queue in ("mail", "slow"):
        jobs.schedule(queue, overlap=Overlap.ALLOW_ALL, task="t", queue=queue)
    waiting = [jobs.schedules.trigger("mail") for _ in range(3)]
    jobs.start(waiting[0], worker)
    jobs.end(waiting[1])
    jobs.start(jobs.schedules.trigger("slow"), worker)
    jobs.queues.set(Queue(name="mail", concurrency=2))
    jobs.queues.set(Queue(name="none", concurrency=2))
    assert jobs.queues.listed() == [
        QueueDepth("mail", Queue(name="mail", concurrency=2), 1, 1),
        QueueDepth("none", Queue(name="none", concurrency=2), 0, 0),
        QueueDepth("slow", None, 0, 1),
    ]


FLEETS = st.lists(st.integers(1, 20), min_size=1, max_size=8)

on_one_database = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

Share = Callable[..., int]


@pytest.fixture
def share_of(jobs: JobsHarness) -> Iterator[Share]:
    with jobs.transaction() as c:

        def ask(free: int, slots: int, fleet_slots: int, *, due: int, left_over: int, running: int) -> int:
            c.execute(
                "SELECT feedq_1.share_of(%s, %s, %s, %s, %s, %s)",
                (free, slots, fleet_slots, due, left_over, running),
            )
            (share,) = c.fetchone() or (None,)
            return int(str(share))

        yield ask


def take(share_of: Share, slots: list[int], held: list[int], worker: int, due: int) -> int:
    free, its = slots[worker] - held[worker], slots[worker]
    return min(share_of(free, its, sum(slots), due=due, left_over=0, running=sum(held)), due)


@on_one_database
@given(slots=FLEETS, due=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_idle_workers_take_all_that_is_due_in_proportion_to_their_slots_in_whatever_order_they_ask(
    share_of: Share, slots: list[int], due: int, seed: int
) -> None:
    held, left, rng = [0] * len(slots), due, Random(seed)
    for worker in rng.choices(range(len(slots)), k=8) + rng.sample(range(len(slots)), len(slots)):
        taken = take(share_of, slots, held, worker, left)
        held[worker] += taken
        left -= taken
    assert left == max(due - sum(slots), 0)
    total = min(due, sum(slots))
    assert all(has <= ceil(total * its / sum(slots)) or left for has, its in zip(held, slots, strict=True))


@on_one_database
@given(
    fleet=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=8),
    due=st.integers(1, 50),
)
def test_the_least_busy_worker_may_always_take_one_if_it_has_room(
    share_of: Share, fleet: list[tuple[int, int]], due: int
) -> None:
    """It is the one that is told of a run: nobody else has to come."""
    slots, held = [its for its, _ in fleet], [min(its, has) for its, has in fleet]
    least = min(range(len(fleet)), key=lambda n: held[n] / slots[n])
    if held[least] < slots[least]:
        assert take(share_of, slots, held, least, due) >= 1


def test_who_is_alone_takes_as_much_as_it_has_room_for(share_of: Share) -> None:
    assert share_of(5, 8, 8, due=1, left_over=0, running=3) == 5
    assert share_of(5, 0, 0, due=0, left_over=0, running=0) == 5


@on_one_database
@given(free=st.integers(0, 8), left_over=st.integers(0, 8))
def test_what_nobody_has_taken_for_a_second_is_beyond_the_share(
    share_of: Share, free: int, left_over: int
) -> None:
    share = share_of(free, 8, 80, due=left_over, left_over=left_over, running=8 - free)
    assert share >= min(free, left_over)
