"""Claims: which runs a worker gets, in which order, and when it may ask again."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from feedq.core.model import WorkerTarget
from feedq.core.schedule.model import ClaimedRun, RunKind, RunState
from feedq.core.schedule.spec import Overlap, Queue, Semantics
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import (
    ask,
    claim,
    claim_one,
    due_later,
    ended,
    fall_due,
    finish,
    runs_of,
)
from tests.schedules import Keys, job_spec


def test_a_claimed_run_is_running_under_a_new_fence(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    job: Keys = {
        "task": "tasks.report",
        "args": [1, "two"],
        "kwargs": {"day": "x"},
        "timeout": 90,
        "semantics": Semantics.TRANSACTIONAL,
    }
    jobs.schedule(**job)
    (run_id,) = fall_due(jobs)
    claimed = claim_one(jobs, worker)
    (run,) = runs_of(jobs)
    assert (run.id, run.state, run.worker_id, run.fence) == (
        run_id,
        RunState.RUNNING,
        worker.id,
        claimed.fence,
    )
    assert (claimed.job, claimed.attempt, claimed.kind) == (job_spec(**job), 1, RunKind.TICK)
    assert claimed.correlation_id == f"nightly/{run.key}"
    assert claimed.remaining_s == pytest.approx(90, abs=5)
    assert run.started_at is not None
    assert run.deadline_at is not None
    assert (run.deadline_at - run.started_at).total_seconds() == pytest.approx(90, abs=1)
    assert jobs.store.jobs.runs.held(worker.id) == {run_id: claimed.fence}


@pytest.mark.parametrize("how", ["gone", "draining", "cordoned", "unknown"])
def test_a_worker_that_is_not_serving_claims_nothing(jobs: JobsHarness, how: str) -> None:
    worker = jobs.job_worker()
    jobs.schedule()
    fall_due(jobs)
    if how == "gone":
        jobs.expire_workers(worker)
    elif how == "draining":
        jobs.store.workers.drain(worker.id)
    elif how == "cordoned":
        jobs.store.workers.set_target(worker.id, WorkerTarget.CORDONED)
    else:
        jobs.execute("DELETE FROM feedq.worker")
    assert claim(jobs, worker) == []
    assert [run.state for run in runs_of(jobs)] == [RunState.WAITING]


# -- how many ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [1, 3])
def test_of_twelve_runs_each_of_three_idle_workers_takes_four_however_often_it_asks(
    jobs: JobsHarness, asks: int
) -> None:
    workers = [jobs.job_worker(name) for name in "abc"]
    for n in range(12):
        jobs.triggered(f"s{n}")
    for worker in workers:
        held = 0
        for ask_number in range(asks):
            # However slow the machine: what has been due for a second is anybody's.
            jobs.execute("UPDATE feedq.run SET due_at = feedq.now() WHERE state = 'waiting'")
            granted = ask(jobs, worker, limit=8 - held, slots=8, fleet_slots=24)
            assert len(granted.runs) == (4 if ask_number == 0 else 0)
            held += len(granted.runs)
    ((waiting,),) = jobs.execute("SELECT count(*)::int FROM feedq.run WHERE state = 'waiting'")
    assert waiting == 0


# -- order -------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_waiting_makes_up_for_priority(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    for name, priority in (("low", -50), ("plain", 0), ("high", 50)):
        jobs.schedule(name, task="tasks.report", priority=priority)
    low = jobs.schedules.trigger("low")
    jobs.schedules.trigger("plain")
    jobs.schedules.trigger("high")
    assert [run.schedule for run in claim(jobs, worker, limit=2)] == ["high", "plain"]
    due_later(jobs, low, -60)
    jobs.schedules.trigger("plain", key="again")
    assert claim_one(jobs, worker, limit=1).schedule == "low", (
        "it waited for 60 s: more than 50 points are worth"
    )


def test_the_only_place_in_a_queue_goes_to_the_highest_priority(jobs: JobsHarness) -> None:
    """Not to the run that was made first, nor to the one that fell due first."""
    worker = jobs.job_worker()
    jobs.queues.set(Queue(name="narrow", concurrency=1))
    for name, priority in (("low", -50), ("plain", 0), ("high", 50)):
        jobs.triggered(name, task="tasks.report", priority=priority, queue="narrow")
    for name in ("high", "plain", "low"):
        run = claim_one(jobs, worker)
        assert run.schedule == name
        finish(jobs, worker, ended(run))


# -- overlap -----------------------------------------------------------------------------------------


# -- what cannot be read -----------------------------------------------------------------------------


def test_a_job_that_this_release_cannot_read_fails_and_harms_no_other(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule("good")
    bad = jobs.triggered("bad")
    jobs.schedules.trigger("good")
    jobs.execute("""UPDATE feedq.run SET job = '{"task": "t", "warp": 9}' WHERE id = %s""", bad.id)
    assert [run.schedule for run in claim(jobs, worker)] == ["good"]
    ((state, reason),) = jobs.execute("SELECT state, reason FROM feedq.run WHERE id = %s", bad.id)
    assert state == "failed"
    assert "warp" in str(reason)
    assert bad.id not in jobs.store.jobs.runs.held(worker.id)


# -- the answer that is lost -------------------------------------------------------------------------


def test_a_run_is_taken_away_when_fence_worker_or_state_are_others(jobs: JobsHarness) -> None:
    a, b = jobs.job_worker("a"), jobs.job_worker("b")
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for n in range(4):
        jobs.schedules.trigger("nightly", key=str(n))
    mine = claim(jobs, a)
    jobs.schedules.cancel_run(mine[0].id)
    finish(jobs, a, ended(mine[1], RunState.WAITING))
    assert claim_one(jobs, b).id == mine[1].id
    fences = {run.id: run.fence for run in mine} | {999: 1}
    assert jobs.store.jobs.runs.taken_away(a.id, fences) == {mine[0].id, mine[1].id, 999}
    assert jobs.store.jobs.runs.taken_away(b.id, {mine[2].id: mine[2].fence}) == {mine[2].id}
    finish(jobs, a, ended(mine[3], RunState.WAITING))
    (again,) = claim(jobs, a)
    assert again.id == mine[3].id
    assert jobs.store.jobs.runs.taken_away(a.id, {again.id: again.fence}) == set()
    assert jobs.store.jobs.runs.taken_away(a.id, {again.id: mine[3].fence}) == {again.id}, (
        "its own, and older"
    )


def test_workers_are_those_that_serve_and_have_slots(jobs: JobsHarness) -> None:
    jobs.job_worker("b", slots=2)
    jobs.job_worker("a", slots=4)
    jobs.worker("feeds-only")
    jobs.store.workers.drain(jobs.job_worker("draining").id)
    jobs.store.workers.set_target(jobs.job_worker("cordoned").id, WorkerTarget.CORDONED)
    jobs.store.workers.leave(jobs.job_worker("left").id)
    assert jobs.store.jobs.runs.workers() == (2, 6)


def test_the_least_busy_worker_is_notified_of_a_run_that_falls_due(jobs: JobsHarness) -> None:
    """For its slots: the busier one has more of them free."""
    busy, free = jobs.job_worker("busy", slots=8), jobs.job_worker("free", slots=2)
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for n in range(3):
        jobs.schedules.trigger("nightly", key=str(n))
    assert len(claim(jobs, busy, limit=3)) == 3
    with (
        closing(jobs.store.worker_listener(free)) as first,
        closing(jobs.store.worker_listener(busy)) as second,
    ):
        fall_due(jobs)
        assert first.wait(10)
        assert first.heard == {"runs"}
        assert not second.wait(0.1)


def test_retries_that_are_due_later_take_no_place_from_what_is_due(jobs: JobsHarness) -> None:
    """However many there are, and although they rank before it."""
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for n in range(40):
        jobs.schedules.trigger("nightly", key=f"later {n}")
    jobs.execute("UPDATE feedq.run SET due_at = due_at + interval '1 h', rank_at = rank_at - interval '1 h'")
    jobs.schedules.trigger("nightly", key="now")
    assert [run.key for run in claim(jobs, worker, limit=1)] == ["trigger:now"]
    assert claim(jobs, worker) == []


OLD, NEW = "tasks.report", "tasks.brand_new"

GPU = {"gpu": "yes"}


def add(jobs: JobsHarness, name: str, task: str, **job: object) -> None:
    jobs.schedule(name, overlap=Overlap.ALLOW_ALL, task=task, **job)


def test_a_worker_claims_only_runs_whose_task_it_knows(jobs: JobsHarness) -> None:
    """As in a rolling deploy: what is new waits for a worker that has it, and fails on none that has not."""
    old, new = jobs.job_worker("old", tasks=[OLD]), jobs.job_worker("new", tasks=[OLD, NEW])
    for name, task in (("a", OLD), ("b", NEW)):
        add(jobs, name, task)
    fall_due(jobs)
    assert [run.job.task for run in claim(jobs, old)] == [OLD]
    assert claim(jobs, old) == []
    assert [run.job.task for run in claim(jobs, new)] == [NEW]


def test_however_many_wait_that_it_cannot_do_it_finds_what_it_can(jobs: JobsHarness) -> None:
    old = jobs.job_worker("old", tasks=[OLD])
    add(jobs, "b", NEW)
    add(jobs, "a", OLD)
    jobs.schedules.trigger("b")
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job, exclusive) "
        "SELECT schedule_id, 'x' || n, tick_at, due_at, rank_at, job, false "
        "FROM feedq.run, generate_series(1, 2000) n"
    )
    jobs.schedules.trigger("a")
    assert claim_one(jobs, old).job.task == OLD


def test_a_job_asks_for_labels(jobs: JobsHarness) -> None:
    plain = jobs.job_worker("plain", tasks=[OLD])
    fast = jobs.job_worker("fast", tasks=[OLD], labels={"gpu": "yes", "zone": "eu"})
    other = jobs.job_worker("other", labels={"gpu": "no"})
    add(jobs, "a", OLD, selector={"required": GPU})
    run = jobs.schedules.trigger("a")
    assert claim(jobs, plain) == claim(jobs, other) == []
    claimed = claim_one(jobs, fast)
    assert (claimed.id, claimed.job.selector.required) == (run.id, GPU)


def test_lanes_keep_to_priority_among_all_that_a_worker_may_do(jobs: JobsHarness) -> None:
    worker = jobs.job_worker("a", tasks=[OLD, NEW], labels=GPU)
    add(jobs, "a", OLD, priority=-5)
    add(jobs, "b", NEW, priority=5)
    add(jobs, "c", OLD, selector={"required": GPU})
    for name in "abc":
        jobs.schedules.trigger(name)
    assert [run.schedule for run in claim(jobs, worker)] == ["b", "c", "a"]


def test_a_job_without_a_task_is_ended_by_whoever_finds_it(jobs: JobsHarness) -> None:
    add(jobs, "a", OLD)
    run = jobs.schedules.trigger("a")
    jobs.execute("UPDATE feedq.run SET job = '[]'")
    assert claim(jobs, jobs.job_worker("a", tasks=[OLD])) == []
    assert jobs.schedules.run(run.id).state is RunState.FAILED


def test_workers_that_know_the_same_share_a_row_and_none_stays_unused(jobs: JobsHarness) -> None:
    shared, gone = ["tasks.shared", "tasks.shared_too"], ["tasks.of_yesterday"]
    jobs.job_worker("a", tasks=shared)
    jobs.job_worker("b", tasks=shared[::-1] * 2)
    forgotten = jobs.job_worker("c", tasks=gone)
    count = "SELECT count(*) FROM feedq.task_set WHERE tasks && %s"
    assert jobs.execute(count, shared + gone) == [(2,)]
    jobs.execute("DELETE FROM feedq.worker WHERE id = %s", str(forgotten.id))
    jobs.execute("UPDATE feedq.task_set SET used_at = feedq.now() - interval '2 days'")
    jobs.job_worker("d", tasks=[OLD])
    assert jobs.execute(count, shared + gone) == [(1,)], "one that a worker refers to stays"


# -- what is said of it ------------------------------------------------------------------------------


def test_schedules_that_no_worker_can_serve_are_named(jobs: JobsHarness) -> None:
    for name, task, selector in (("a", OLD, {}), ("b", NEW, {}), ("c", OLD, GPU)):
        add(jobs, name, task, selector={"required": selector})
    names = ["a", "b", "c", "nobody"]
    assert jobs.schedules.unserved(names) == {}, "no worker runs jobs: that is another matter"
    jobs.job_worker("cannot", slots=0, labels=GPU)
    jobs.job_worker("old", tasks=[OLD])
    found = jobs.schedules.unserved(names)
    assert found == {
        "b": f"no worker knows task {NEW}: its runs wait until one does (FEEDQ_IMPORTS names its module)",
        "c": f"no worker that knows task {OLD} has the labels gpu=yes: its runs wait until one does",
    }
    assert jobs.schedules.view("b").unserved == found["b"]
    assert jobs.schedules.view("a").unserved is None
    jobs.job_worker("new", tasks=[OLD, NEW], labels=GPU)
    assert jobs.schedules.unserved(names) == {}


# -- at size: few rows are read, whatever the planner takes the tables for ---------------------------

RUNS = 5_000

FEW = 1_000

"""A batch and its crowd, each with the look-ups that decide about it; and what the planner reads."""

CROWD = 32

"""Candidates that a claim reads beyond those that it may take."""


def many(jobs: JobsHarness, sql: str, *, analyzed: bool) -> None:
    """Runs by this SELECT; before or after the planner has been told what there is."""
    jobs.execute("ANALYZE feedq.run, feedq.schedule")
    columns = "schedule_id, kind, key, tick_at, due_at, rank_at, job, queue, state"
    jobs.execute(f"INSERT INTO feedq.run ({columns}) {sql}", RUNS)
    if analyzed:
        jobs.execute("ANALYZE feedq.run")


PLAIN = """
    SELECT s.id, 'tick', 'k' || n, feedq.now(), feedq.now() - n * interval '1 s', feedq.now() - n * interval '1 s',
        s.declaration, 'default', 'waiting'
    FROM generate_series(1, %s) n JOIN feedq.schedule s ON s.name = 's' || n
"""

IN_A_FULL_QUEUE = PLAIN.replace("'default'", "'full'")

BACKFILL = """
    SELECT s.id, 'backfill', 'k' || n, feedq.now() - n * interval '1 h', feedq.now(), feedq.now() - interval '1 h',
        s.declaration, 'default', CASE n WHEN 1 THEN 'waiting' ELSE 'buffered' END
    FROM generate_series(1, %s) n, feedq.schedule s WHERE s.name = 's1'
"""


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("sql", [PLAIN, IN_A_FULL_QUEUE, BACKFILL], ids=["plain", "full queue", "backfill"])
def test_a_claim_reads_a_few_of_those_that_wait(jobs: JobsHarness, sql: str, analyzed: bool) -> None:
    worker = jobs.job_worker()
    jobs.execute(
        "INSERT INTO feedq.schedule (name, declaration) SELECT 's' || n, "
        """jsonb_build_object('name', 's' || n, 'task', 't') FROM generate_series(1, %s) n""",
        RUNS,
    )
    jobs.schedule("full")
    jobs.schedule("open")
    jobs.queues.set(Queue(name="full", concurrency=1))
    jobs.schedules.trigger("full")
    jobs.execute("UPDATE feedq.run SET queue = 'full'")
    claim_one(jobs, worker)
    many(jobs, sql, analyzed=analyzed)
    jobs.schedules.trigger("open")
    taken: list[ClaimedRun] = []
    assert jobs.rows_read_by(lambda: taken.extend(claim(jobs, worker)), entries=True) <= FEW
    assert len(taken) == {PLAIN: 8, IN_A_FULL_QUEUE: 1, BACKFILL: 2}[sql]
    ends = [ended(run) for run in taken]
    assert jobs.rows_read_by(lambda: finish(jobs, worker, *ends), entries=True) <= FEW, (
        "and to promote the next"
    )
    if sql is BACKFILL:
        assert claim_one(jobs, worker).schedule == "s1"
    counted = jobs.rows_read_by(lambda: jobs.execute("SELECT count(job) FROM feedq.run"))
    assert counted >= RUNS, "the counters work"


def test_an_idle_look_at_many_schedules_reads_one_or_two(jobs: JobsHarness) -> None:
    jobs.execute(
        "INSERT INTO feedq.schedule (name, declaration, next_tick_at, next_fire_at) "
        """SELECT 's' || n, '{"task": "t", "every": 60}', at, at """
        "FROM generate_series(1, %s) n, (SELECT feedq.now() + interval '1 h' AS at) later",
        RUNS,
    )
    assert jobs.rows_read_by(lambda: jobs.store.jobs.runs.fire_due(limit=100), entries=True) <= 10


def test_a_higher_priority_is_found_behind_however_many_fell_due_before(jobs: JobsHarness) -> None:
    jobs.schedule("crowd", overlap=Overlap.ALLOW_ALL)
    jobs.schedule("high", task="tasks.report", priority=100)
    for n in range(CROWD + 2):
        jobs.schedules.trigger("crowd", key=str(n))
    jobs.schedules.trigger("high")
    assert claim_one(jobs, jobs.job_worker(), limit=1).schedule == "high"


MANY = 20_000

FEW_READ = 500

READ = """
    SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
    WHERE relid = 'feedq.run'::regclass
"""


def test_plans_that_were_made_when_nothing_waited_are_right_when_many_do(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    schedule = jobs.schedule(overlap=Overlap.ALLOW_ALL)
    jobs.execute("ANALYZE feedq.run")
    with closing(psycopg2.connect(jobs.url)) as connection, connection.cursor() as cursor:
        for _ in range(10):
            jobs.schedules.trigger("nightly")
            cursor.execute("SELECT feedq_1.claim_runs(%s, 8, 8, 24)", (str(worker.id),))
            cursor.execute("SELECT feedq_1.succeed(%s, '{1}', '{1}')", (str(worker.id),))
            connection.commit()
        jobs.execute(
            "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job, exclusive) "
            'SELECT %s, \'x\' || n, at, at, at, \'{"name": "nightly", "task": "tasks.report"}\', false '
            "FROM generate_series(1, %s) n, feedq.now() AS at",
            schedule.id,
            MANY,
        )
        cursor.execute(
            "SELECT json_array_length(feedq_1.claim_runs(%s, 8, 8, 24) -> 'runs')", (str(worker.id),)
        )
        assert cursor.fetchone() == (8,)
        cursor.execute("SELECT feedq_1.succeed(%s, '{1,2,3}', '{1,2,3}')", (str(worker.id),))
        cursor.execute(READ)
        (read,) = cursor.fetchone() or (None,)
        assert read <= FEW_READ
        connection.commit()
    assert len(claim(jobs, worker)) > 0
