"""Limits of queues, the shares of workers, and whose turn it is among runs that go one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedq.control.store.jobs import runs
from feedq.core.schedule.model import ClaimedRun, QueueDepth, RunState
from feedq.core.schedule.spec import Overlap, Queue, Semantics
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import (
    ask,
    claim,
    claim_one,
    due_later,
    ended,
    finish,
    runs_of,
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


# -- runs of a schedule, one at a time ---------------------------------------------------------------

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
