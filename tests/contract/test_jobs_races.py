"""What only threads can show: many nodes that fire, claim, finish and expire the same few rows at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

from feedq.core.model import Worker
from feedq.core.schedule.model import Finish, RunState
from feedq.core.schedule.spec import Overlap, Queue, Semantics
from feedq.errors import Conflict, NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, ended, finish, fire, offer, runs_of, states
from tests.schedules import INTERVAL_S
from tests.waiting import rounds_for, until

S = RunState
WAIT_S = 30.0
HAMMER_S = 3.0


def at_once(threads: ThreadPoolExecutor, *works: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        barrier.wait(WAIT_S)
        return work()

    return [job.result(WAIT_S) for job in [threads.submit(begin, work) for work in works]]


# -- a row that a person has locked and forgotten ------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "table"), [(S.SUCCEEDED, "run"), (S.FAILED, "run"), (S.FAILED, "schedule")]
)
def test_a_locked_row_delays_the_end_of_its_own_run_alone(
    jobs: JobsHarness, state: RunState, table: str
) -> None:
    worker = jobs.job_worker()
    for name in ("locked", "other"):
        jobs.triggered(name)
    runs = {run.schedule: run for run in claim(jobs, worker)}
    ends = [ended(run, state) for run in runs.values()]
    which = {"run": runs["locked"].id, "schedule": jobs.schedules.get("locked").id}[table]
    with jobs.transaction() as person:
        person.execute(f"SELECT FROM feedq.{table} WHERE id = %s FOR UPDATE", (which,))
        finished = jobs.store.jobs.runs.finish(worker.id, ends)
        assert (finished.ended, finished.busy) == ([runs["other"].id], [runs["locked"].id])
    assert jobs.store.jobs.runs.finish(worker.id, ends[:1]).ended == [runs["locked"].id]
    assert states(jobs, "locked") == states(jobs, "other") == {state: 1}


def test_a_locked_run_that_a_tick_was_to_cancel_keeps_its_turn_and_no_other_schedule_waits(
    jobs: JobsHarness,
) -> None:
    worker = jobs.job_worker()
    run = jobs.triggered("locked", overlap=Overlap.CANCEL_OTHER)
    claimed = claim_one(jobs, worker)
    jobs.schedule("other")
    jobs.elapse(INTERVAL_S)
    with jobs.transaction() as person:
        person.execute("SELECT FROM feedq.run WHERE id = %s FOR UPDATE", (run.id,))
        assert len(fire(jobs)) == 2
        assert states(jobs, "locked") == {S.RUNNING: 1, S.BUFFERED: 1}
        assert claim_one(jobs, worker).schedule == "other"
    finish(jobs, worker, ended(claimed))
    assert claim_one(jobs, worker).schedule == "locked"


def test_a_locked_queue_delays_its_own_runs_alone(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    for name in ("locked", "other"):
        jobs.queues.set(Queue(name=name, concurrency=5))
        jobs.triggered(name, queue=name)
    with jobs.transaction() as person:
        person.execute("SELECT FROM feedq.job_queue WHERE name = 'locked' FOR UPDATE")
        assert [run.schedule for run in claim(jobs, worker)] == ["other"]
    assert [run.schedule for run in claim(jobs, worker)] == ["locked"]


def test_all_but_a_locked_run_are_taken_over(jobs: JobsHarness) -> None:
    was = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for n in range(2):
        jobs.schedules.trigger("nightly", key=str(n))
    first, second = claim(jobs, was)
    jobs.expire_workers(was)
    worker = jobs.job_worker("b")
    fences = {run.id: run.fence for run in (first, second)}
    with jobs.transaction() as person:
        person.execute("SELECT FROM feedq.run WHERE id = %s FOR UPDATE", (first.id,))
        assert jobs.store.jobs.runs.take_over(worker.id, was.id, fences) == {second.id}


# -- many nodes ----------------------------------------------------------------------------------------


def test_of_many_nodes_that_fire_at_once_each_tick_is_fired_by_one(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    for n in range(200):
        jobs.schedule(f"s{n:03}", every=1.0, overlap=Overlap.ALLOW_ALL, misfire_after=600.0)
    made: list[int] = []
    for _ in range(3):
        jobs.elapse(4)

        def share() -> None:
            more = True
            while more:
                fired = jobs.store.jobs.runs.fire_due(limit=20)
                made.append(fired.runs)
                more = fired.more or (fired.next_in_s or 0.0) == 0.0

        at_once(threads, *[share] * 4)
    assert [(sum(made),)] == jobs.execute("SELECT count(*) FROM feedq.run")
    assert sum(made) >= 200 * 12
    ticks = jobs.execute(
        "SELECT s.name, count(*), count(DISTINCT r.tick_at), max(r.tick_at) - min(r.tick_at), "
        "max(r.tick_at) < max(s.next_tick_at) FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
        "GROUP BY s.name"
    )
    assert len(ticks) == 200
    for _, rows, distinct, span, is_behind in ticks:
        # Each second has its tick: none twice, none left out.
        assert isinstance(span, timedelta)
        assert rows == distinct == span.total_seconds() + 1
        assert is_behind


def test_a_schedule_that_somebody_edits_is_passed_over_and_fired_by_the_next_look(jobs: JobsHarness) -> None:
    jobs.schedule("edited")
    jobs.schedule("other")
    jobs.elapse(INTERVAL_S)
    with jobs.transaction() as somebody:
        somebody.execute("SELECT FROM feedq.schedule WHERE name = 'edited' FOR UPDATE")
        fired = jobs.store.jobs.runs.fire_due(limit=10)
        assert fired.runs == 1
        again = jobs.store.jobs.runs.fire_due(limit=10)
        assert again.runs == 0
        assert again.next_in_s is not None
        assert again.next_in_s > 0, "not at once: the other would be asked without end"
    assert len(fire(jobs)) == 1


def test_a_run_claimed_by_many_at_once_is_granted_to_one(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    workers = [jobs.job_worker(str(n)) for n in range(8)]
    for round_ in range(10):
        jobs.triggered(f"s{round_}")
        granted = at_once(threads, *[partial(claim, jobs, w) for w in workers])
        assert [len(runs) for runs in granted if runs] == [1]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_run_that_was_claimed_while_another_looked_is_not_claimed_again(
    jobs: JobsHarness, threads: ThreadPoolExecutor, has_failed: bool
) -> None:
    """The slow one has seen it waiting; when it comes to lock the row, that is running, and nobody holds it. Or it
    waits again, for a retry that is not due."""
    fast, slow = jobs.job_worker("fast"), jobs.job_worker("slow")
    run = jobs.triggered(overlap=Overlap.ALLOW_ALL, task="tasks.report", retries={"limit": 1, "first": 60.0})
    ((source,),) = jobs.execute("SELECT pg_get_functiondef('feedq_1.claim_runs'::regproc)")
    # Between its look and its locks it waits for the test.
    slowly = str(source).replace(
        "SELECT * FROM candidate ORDER", "SELECT *, pg_advisory_xact_lock(7) FROM candidate ORDER"
    )
    assert slowly != source
    jobs.execute(slowly.replace("claim_runs", "claim_slowly").replace("%", "%%"))

    def claim_slowly() -> object:
        with jobs.transaction() as c:
            c.execute("SELECT feedq_1.claim_slowly(%s, 4, 0, 0) ->> 'runs'", (str(slow.id),))
            return c.fetchone()

    with jobs.transaction() as holding:
        holding.execute("SELECT pg_advisory_xact_lock(7)")
        late = threads.submit(claim_slowly)
        jobs.wait_until_blocked(late)
        claimed = claim_one(jobs, fast)
        assert claimed.id == run.id
        if has_failed:
            assert finish(jobs, fast, ended(claimed, S.FAILED)) == [run.id]
    assert late.result(WAIT_S) == ("[]",)
    assert jobs.schedules.run(run.id).worker_id == (None if has_failed else fast.id)


def test_two_that_claim_two_runs_of_a_schedule_at_the_same_moment_get_one(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    """Neither waits for the other."""
    jobs.schedule(overlap=Overlap.BUFFER_ALL)
    left = [jobs.schedules.trigger("nightly", key=str(n)).id for n in range(12)]
    workers = [jobs.job_worker(str(n)) for n in range(6)]
    while left:
        granted = at_once(threads, *[partial(claim, jobs, w) for w in workers])
        running = [(w, run) for w, runs in zip(workers, granted, strict=False) for run in runs]
        assert [run.id for _, run in running] in ([], left[:1]), "one, and that the oldest"
        for worker, run in running:
            assert finish(jobs, worker, ended(run)) == [run.id]
            left.remove(run.id)


def test_a_claim_waits_for_nobody_who_holds_a_run_or_a_schedule(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    for name in ("held", "free"):
        jobs.triggered(name)
    with jobs.transaction() as somebody:
        somebody.execute("SELECT FROM feedq.schedule FOR UPDATE")
        somebody.execute(
            "SELECT r.id FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id "
            "WHERE s.name = 'held' FOR UPDATE OF r"
        )
        granted = jobs.store.jobs.runs.claim(offer(worker))
        assert [run.schedule for run in granted.runs] == ["free"]
        assert granted.next_in_s is not None
        assert granted.next_in_s < 1, "worth asking again soon: it is held for a moment"


def test_limits_of_queues_hold_whoever_claims_at_once(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    jobs.queues.set(Queue(name="narrow", concurrency=5))
    jobs.queues.set(Queue(name="slow", rate_per_s=0.001, burst=7))
    for queue in ("narrow", "slow", "open"):
        jobs.schedule(queue, task="tasks.report", queue=queue, overlap=Overlap.ALLOW_ALL)
        for n in range(20):
            jobs.schedules.trigger(queue, key=str(n))
    workers = [jobs.job_worker(str(n)) for n in range(6)]

    def take(worker: Worker) -> None:
        for _ in range(10):
            claim(jobs, worker, limit=3)

    at_once(threads, *[partial(take, w) for w in workers])
    running = {name: states(jobs, name).get(S.RUNNING, 0) for name in ("narrow", "slow", "open")}
    assert running == {"narrow": 5, "slow": 7, "open": 20}


def test_a_finish_and_an_expiry_at_once_end_a_run_once(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    for round_ in range(10):
        name = f"s{round_}"
        jobs.triggered(name, task="tasks.report", semantics=Semantics.AT_LEAST_ONCE)
        worker = jobs.job_worker(name)
        run = claim_one(jobs, worker)
        jobs.expire_workers(worker)
        done, expired = at_once(
            threads,
            partial(finish, jobs, worker, ended(run)),
            lambda: jobs.store.jobs.runs.expire(limit=10),
        )
        state = jobs.schedules.run(run.id).state
        assert (done, expired, state) in (([run.id], 0, S.SUCCEEDED), ([], 1, S.WAITING))
        if state is S.WAITING:
            jobs.schedules.purge(name)


def test_failures_that_are_told_at_once_are_all_counted(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for n in range(4):
        jobs.schedules.trigger("nightly", key=str(n))
    runs = claim(jobs, worker)
    waiting = (
        "SELECT count(*)::int FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with jobs.waiting_long(), jobs.transaction() as somebody:
        somebody.execute("SELECT FROM feedq.schedule FOR UPDATE")
        told = [threads.submit(finish, jobs, worker, ended(run, S.FAILED)) for run in runs]
        until(lambda: jobs.execute(waiting) == [(len(runs),)], "they wait for the schedule")
    assert [job.result(WAIT_S) for job in told] == [[run.id] for run in runs]
    assert jobs.schedules.get("nightly").failures == len(runs) == 4


# -- everything at once ------------------------------------------------------------------------------


class Fleet:
    """Workers that take, end, drop and lose runs; and nodes that fire, expire, cancel and edit."""

    def __init__(self, jobs: JobsHarness, workers: int) -> None:
        self.jobs = jobs
        self.workers = [jobs.job_worker(str(n)) for n in range(workers)]
        self.starts: Counter[tuple[int, int]] = Counter()

    def repeat(self, work: Callable[[Random], object], seed: int) -> None:
        rng = Random(seed)
        for _ in rounds_for(HAMMER_S):
            work(rng)

    def run(self, number: int, rng: Random) -> None:
        worker = self.workers[number]
        granted = claim(
            self.jobs, worker, limit=rng.randint(1, 8), slots=8, fleet_slots=8 * len(self.workers)
        )
        self.starts.update((run.id, run.fence) for run in granted)
        outcomes = (S.SUCCEEDED, S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.WAITING)
        finishes = [ended(run, rng.choice(outcomes)) for run in granted if rng.random() < 0.9]
        rng.shuffle(finishes)
        finish(self.jobs, worker, *finishes)

    def recover(self, worker: Worker) -> None:
        """What it holds and does not know of it gives up."""
        held = self.jobs.store.jobs.runs.held(worker.id)
        finishes = [Finish(run_id, fence, S.FAILED) for run_id, fence in held.items()]
        finish(self.jobs, worker, *finishes)

    def lose_a_worker(self, rng: Random) -> None:
        at = rng.randrange(len(self.workers))
        self.jobs.store.workers.leave(self.workers[at].id)
        self.workers[at] = self.jobs.job_worker(str(at))
        self.jobs.store.jobs.runs.expire(limit=20)

    def meddle(self, rng: Random) -> None:
        name = rng.choice([schedule.schedule.spec.name for schedule in self.jobs.schedules.views()])
        running = self.jobs.schedules.runs(states=[S.RUNNING, S.WAITING, S.BUFFERED], limit=20)
        try:
            match rng.randrange(4):
                case 0:
                    self.jobs.schedules.trigger(name)
                case 1 if running:
                    self.jobs.schedules.cancel_run(rng.choice(running).id)
                case 2:
                    self.jobs.schedules.purge(name)
                case _:
                    self.jobs.schedules.resume(name)
        except (Conflict, NotFound):
            pass  # it has ended meanwhile


def test_everything_at_once_never_deadlocks_and_every_run_ends_once(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    """A deadlock would surface as `Unavailable`, a run that is in two places as an error of an index."""
    for n, overlap in enumerate([*Overlap] * 2):
        job = {
            "task": "tasks.report",
            "semantics": list(Semantics)[n % 3],
            "retries": {"limit": 2, "first": 0.05},
            "timeout": 0.5,
            "queue": "limited" if n % 4 == 0 else "default",
            "priority": n - 5,
        }
        jobs.schedule(f"s{n}", every=0.2, overlap=overlap, **job, pause_on_failure=20)
    jobs.queues.set(Queue(name="limited", rate_per_s=100, burst=5, concurrency=3))
    fleet = Fleet(jobs, 4)
    works: list[Callable[[Random], object]] = [
        *[partial(fleet.run, n) for n in range(4)],
        lambda rng: jobs.store.jobs.runs.fire_due(limit=rng.randint(1, 12)),
        lambda rng: jobs.store.jobs.runs.fire_due(limit=rng.randint(1, 12)),
        lambda rng: jobs.store.jobs.runs.expire(limit=rng.randint(1, 20)),
        fleet.lose_a_worker,
        fleet.meddle,
        fleet.meddle,
    ]
    for doing in [threads.submit(fleet.repeat, work, n) for n, work in enumerate(works)]:
        doing.result(HAMMER_S + WAIT_S)
    assert set(fleet.starts.values()) == {1}, "no fence was given out twice"
    check(jobs)
    drain(jobs, fleet)


def check(jobs: JobsHarness) -> None:
    """What must hold at any moment."""
    assert (
        jobs.execute(
            "SELECT schedule_id FROM feedq.run WHERE state = 'running' AND exclusive "
            "GROUP BY 1 HAVING count(*) > 1"
        )
        == []
    )
    assert (
        jobs.execute("SELECT id FROM feedq.run WHERE state = 'running' AND (fence = 0 OR worker_id IS NULL)")
        == []
    )
    ((running,),) = jobs.execute(
        "SELECT count(*)::int FROM feedq.run WHERE state = 'running' AND queue = 'limited'"
    )
    assert int(str(running)) <= 3
    # Each tick from the first to the watermark has its run, and one only.
    gaps = jobs.execute(
        "SELECT s.name FROM feedq.schedule s JOIN feedq.run r ON r.schedule_id = s.id WHERE r.kind = 'tick' "
        "GROUP BY s.id HAVING sum(r.ticks) <> round(extract(epoch FROM s.next_tick_at - min(r.tick_at)) / 0.2)"
    )
    assert gaps == []


def drain(jobs: JobsHarness, fleet: Fleet) -> None:
    """No more ticks: all that is left is run, and ends."""
    jobs.execute("UPDATE feedq.schedule SET state = 'paused'")
    deadline = time.monotonic() + WAIT_S
    while jobs.execute("SELECT 1 FROM feedq.run WHERE ended_at IS NULL"):
        assert time.monotonic() < deadline, runs_of(jobs, "s0")[-3:]
        jobs.store.jobs.runs.expire(limit=100)
        for worker in fleet.workers:
            fleet.recover(worker)
            granted = claim(jobs, worker)
            finish(jobs, worker, *map(ended, granted))
