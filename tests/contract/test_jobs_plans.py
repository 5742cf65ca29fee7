"""Claims and successes by plans that were made when nothing waited."""

from __future__ import annotations

from contextlib import closing

import psycopg2

from feedq.core.schedule.spec import Overlap
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim

MANY = 20_000
FEW = 500
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
            'SELECT %s, \'x\' || n, now(), now(), now(), \'{"name": "nightly", "task": "tasks.report"}\', false '
            "FROM generate_series(1, %s) n",
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
        assert read <= FEW
        connection.commit()
    assert len(claim(jobs, worker)) > 0
