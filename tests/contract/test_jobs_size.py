"""What must hold of firing and claiming at size: they read few rows, whatever the planner takes the tables for."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from feedq.core.schedule.model import ClaimedRun
from feedq.core.schedule.spec import Overlap, Queue
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, ended, finish

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
