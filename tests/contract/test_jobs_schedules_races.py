"""What only threads can show of schedules: several at once, decided by row locks and unique keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from threading import Barrier

import pytest

from feedq.control.store.database import Database
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.model import Run, RunState
from feedq.core.schedule.spec import Overlap
from feedq.errors import Conflict, NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim
from tests.schedules import job_spec, schedule_spec
from tests.waiting import rounds_for

SOME_TICK = datetime(2026, 3, 1, 10, tzinfo=UTC)
THREADS = 6
ROUNDS = 5
WAIT_S = 20.0
HAMMER_S = 1.5


def at_once(threads: ThreadPoolExecutor, act: Callable[[], object]) -> list[object]:
    """What as many threads get that do this at the same moment."""
    gate = Barrier(THREADS)

    def attempt() -> object:
        gate.wait(WAIT_S)
        try:
            return act()
        except (Conflict, NotFound) as error:
            return error

    return [job.result(WAIT_S) for job in [threads.submit(attempt) for _ in range(THREADS)]]


FIRING = """
    WITH due AS (SELECT id, declaration AS job FROM feedq.schedule WHERE name = 'nightly' FOR NO KEY UPDATE)
    INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job)
    SELECT id, 'fired', feedq.clock(), feedq.clock(), feedq.clock(), job FROM due
"""
ADVANCE = """
    UPDATE feedq.schedule SET next_tick_at = next_tick_at + interval '1 hour',
        next_fire_at = next_fire_at + interval '1 hour'
"""
"""Together they do to rows what firing does, as slowly as a test wants."""


def test_one_key_is_one_run(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for number in range(ROUNDS):
        found = at_once(threads, partial(jobs.schedules.trigger, "nightly", key=f"k{number}"))
        assert len({run.id for run in found if isinstance(run, Run)}) == 1
        assert not any(isinstance(run, Exception) for run in found)
    assert len(jobs.schedules.runs("nightly")) == ROUNDS


def test_of_triggers_that_must_not_overlap_one_waits(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    for number in range(ROUNDS):
        jobs.schedule(f"s{number}", overlap=Overlap.SKIP)
        found = at_once(threads, partial(jobs.schedules.trigger, f"s{number}"))
        states = Counter(run.state for run in found if isinstance(run, Run))
        assert states == {RunState.WAITING: 1, RunState.SKIPPED_OVERLAP: THREADS - 1}


def test_of_backfills_at_once_each_tick_is_made_by_one(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    jobs.schedule()
    ticks = [SOME_TICK + timedelta(hours=n) for n in range(200)]
    found = at_once(threads, partial(jobs.schedules.backfill, "nightly", ticks))
    assert sorted(result for result in found if isinstance(result, tuple))[-1] == (200, 0)
    assert sum(result[0] for result in found if isinstance(result, tuple)) == 200
    assert jobs.schedules.counts("nightly") == {RunState.WAITING: 1, RunState.BUFFERED: 199}


def test_of_beats_at_the_same_moment_one_enqueues(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    for number in range(ROUNDS):
        # The first time there is no schedule behind the entry yet.
        entry = f"e{number % 2}"
        act = partial(jobs.schedules.once, job_spec(f"beat:{entry}"), f"k{number}", SOME_TICK)
        assert Counter(at_once(threads, act)) == {True: 1, False: THREADS - 1}
    assert len(jobs.schedules.runs()) == ROUNDS
    assert len(jobs.schedules.views()) == 2


@pytest.mark.parametrize("verb", ["remove", "purge"])
def test_what_is_fired_meanwhile_is_cancelled_too(
    jobs: JobsHarness, threads: ThreadPoolExecutor, verb: str
) -> None:
    jobs.schedule()
    with jobs.transaction() as firing:
        firing.execute(FIRING)
        doing: Future[object] = threads.submit(getattr(jobs.schedules, verb), "nightly")
        jobs.wait_until_blocked(doing)
    doing.result(WAIT_S)
    assert jobs.schedules.counts("nightly") == {RunState.CANCELLED: 1}


def test_a_trigger_sees_what_is_fired_meanwhile(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    jobs.schedule(overlap=Overlap.SKIP)
    with jobs.transaction() as firing:
        firing.execute(FIRING)
        trigger: Future[object] = threads.submit(jobs.schedules.trigger, "nightly")
        jobs.wait_until_blocked(trigger)
    run = trigger.result(WAIT_S)
    assert isinstance(run, Run)
    assert run.state is RunState.SKIPPED_OVERLAP


def test_what_is_removed_meanwhile_gets_no_run(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    jobs.schedule()
    with jobs.transaction() as removing:
        removing.execute("UPDATE feedq.schedule SET removed_at = feedq.clock()")
        trigger: Future[object] = threads.submit(jobs.schedules.trigger, "nightly")
        jobs.wait_until_blocked(trigger)
    with pytest.raises(NotFound):
        trigger.result(WAIT_S)
    assert jobs.schedules.runs() == []


@pytest.mark.parametrize("verb", ["edit", "pause"])
def test_the_watermark_is_not_put_back_behind_what_is_fired_meanwhile(
    jobs: JobsHarness, threads: ThreadPoolExecutor, verb: str
) -> None:
    before = jobs.schedule()
    arguments = [schedule_spec(jitter=5.0)] if verb == "edit" else []
    with jobs.transaction() as firing:
        firing.execute(FIRING)
        firing.execute(ADVANCE)
        doing: Future[object] = threads.submit(getattr(jobs.schedules, verb), "nightly", *arguments)
        jobs.wait_until_blocked(doing)
    doing.result(WAIT_S)
    after = jobs.schedules.get("nightly").next_tick_at
    assert after is not None
    assert before.next_tick_at is not None
    assert after - before.next_tick_at == timedelta(hours=1)


def test_a_claimed_job_that_cannot_be_read_is_ended_in_the_order_of_locks_of_everybody_else(
    jobs: JobsHarness, threads: ThreadPoolExecutor
) -> None:
    worker = jobs.job_worker()
    jobs.triggered()
    jobs.execute("""UPDATE feedq.run SET job = '{"task": "t", "warp": 9}'""")
    with jobs.waiting_long(), jobs.transaction() as other:
        other.execute("SELECT FROM feedq.schedule FOR UPDATE")
        claiming = threads.submit(claim, jobs, worker)
        jobs.wait_until_blocked(claiming)
        # The schedule and then its runs: who held the run meanwhile would close the circle.
        other.execute("UPDATE feedq.run SET state = 'cancelled', ended_at = feedq.clock()")
    assert claiming.result(WAIT_S) == []
    assert jobs.schedules.counts("nightly") == {RunState.CANCELLED: 1}
    assert jobs.execute("SELECT failures FROM feedq.schedule") == [(0,)]


def test_pages_wait_for_nobody(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    run = jobs.triggered()
    with jobs.transaction() as firing:
        firing.execute("SELECT FROM feedq.schedule FOR UPDATE")
        firing.execute("SELECT FROM feedq.run FOR UPDATE")
        schedules = jobs.schedules
        for read in (
            partial(schedules.get, "nightly"),
            partial(schedules.view, "nightly"),
            schedules.views,
            schedules.declared,
            schedules.runs,
            partial(schedules.run, run.id),
            partial(schedules.counts, "nightly"),
            jobs.queues.listed,
        ):
            threads.submit(read).result(WAIT_S)


def test_everything_at_once_never_deadlocks(jobs: JobsHarness, threads: ThreadPoolExecutor) -> None:
    """People, beats and workers on the same few schedules; a deadlock would surface as `Unavailable`."""
    schedules, worker = jobs.schedules, jobs.job_worker(slots=100)
    names = ["a", "b", "c"]

    def repeat(seed: int, work: Callable[[Random], object]) -> None:
        rng = Random(seed)
        for _ in rounds_for(HAMMER_S):
            # Somebody else may be quicker: that is what this is about.
            with suppress(NotFound, Conflict):
                work(rng)

    def ask(rng: Random) -> None:
        name = rng.choice(names)
        schedules.trigger(name)
        schedules.backfill(name, [SOME_TICK + timedelta(hours=rng.randrange(99)) for _ in range(9)])

    def declare(rng: Random) -> None:
        name = rng.choice(names)
        spec = schedule_spec(name, every=rng.randrange(5, 99), overlap=rng.choice(list(Overlap)))
        schedules.edit(name, spec) if name in jobs.declared() else schedules.add(spec)
        rng.choice([schedules.pause, schedules.resume, schedules.remove])(name)

    def end(rng: Random) -> None:
        for run in schedules.runs(states=[RunState.WAITING, RunState.RUNNING], limit=9):
            acts: list[Callable[[], object]] = [
                partial(schedules.cancel_run, run.id),
                partial(schedules.purge, run.schedule),
            ]
            rng.choice(acts)()

    def work(_: Random) -> None:
        jobs.execute(
            "UPDATE feedq.run SET state = 'running', worker_id = %s, exclusive = false WHERE id IN "
            "(SELECT id FROM feedq.run WHERE state = 'waiting' ORDER BY id LIMIT 9 FOR UPDATE SKIP LOCKED)",
            str(worker.id),
        )

    def beat(rng: Random) -> None:
        beats.once(job_spec("beat:clean"), f"k{rng.randrange(99)}", SOME_TICK)

    # With connections of its own, as another process has: those of a pool go to whoever is quickest.
    with closing(Database(jobs.url, application_name="feedq-beat")) as database:
        beats = ScheduleStore(database)
        acts = [ask, ask, declare, declare, end, work, beat]
        doing = [threads.submit(repeat, number, act) for number, act in enumerate(acts)]
        for job in doing:
            job.result(HAMMER_S + WAIT_S)
    live = [view.schedule.id for view in schedules.views()]
    left = jobs.execute("SELECT DISTINCT schedule_id FROM feedq.run WHERE state = 'waiting'")
    assert {schedule_id for (schedule_id,) in left} <= set(live), "none waits of a schedule that was removed"
