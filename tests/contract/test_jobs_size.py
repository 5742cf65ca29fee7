"""What must hold of firing and claiming at size: they read few rows, whatever the planner takes the tables for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from feedq.control.store.jobs.claiming import CROWD
from feedq.core.schedule.model import Job, Overlap, Queue
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one

RUNS = 5_000
FEW = 1_000
"""A batch and its crowd, each with the look-ups that decide about it; and what the planner reads."""


def many(jobs: JobsHarness, sql: str, *, analyzed: bool) -> None:
    """Runs by this SELECT; before or after the planner has been told what there is."""
    jobs.execute("ANALYZE feedq.run, feedq.schedule")
    columns = "schedule_id, kind, key, tick_at, due_at, rank_at, job, queue"
    jobs.execute(f"INSERT INTO feedq.run ({columns}) {sql}", RUNS)
    if analyzed:
        jobs.execute("ANALYZE feedq.run")


def rows_read(jobs: JobsHarness) -> int:
    """Rows and entries of indexes of schedules and runs that anybody has read so far."""
    jobs.end_session()
    ((rows,),) = jobs.execute(
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint "
        "FROM pg_stat_user_tables WHERE schemaname = 'feedq' AND relname IN ('run', 'schedule')"
    )
    ((entries,),) = jobs.execute(
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes "
        "WHERE schemaname = 'feedq' AND relname IN ('run', 'schedule')"
    )
    return int(str(rows)) + int(str(entries))


def read_by(jobs: JobsHarness, work: Callable[[], object]) -> int:
    before = rows_read(jobs)
    work()
    # A backend tells its counters when it ends, and the pool's would keep theirs for a while.
    jobs.store._database._engine.dispose()
    return rows_read(jobs) - before


def settle(jobs: JobsHarness) -> None:
    """Until what was read before has all been told."""
    jobs.store._database._engine.dispose()
    while read_by(jobs, lambda: time.sleep(0.05)):
        pass


PLAIN = """
    SELECT s.id, 'tick', 'k' || n, now(), now() - n * interval '1 s', now() - n * interval '1 s', s.job, 'default'
    FROM generate_series(1, %s) n JOIN feedq.schedule s ON s.name = 's' || n
"""
IN_A_FULL_QUEUE = PLAIN.replace("'default'", "'full'")
BACKFILL = """
    SELECT s.id, 'backfill', 'k' || n, now() - n * interval '1 h', now(), now() - interval '1 h', s.job, 'default'
    FROM generate_series(1, %s) n, feedq.schedule s WHERE s.name = 's1'
"""


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("sql", [PLAIN, IN_A_FULL_QUEUE, BACKFILL], ids=["plain", "full queue", "backfill"])
def test_a_claim_reads_a_few_of_those_that_wait(jobs: JobsHarness, sql: str, analyzed: bool) -> None:
    worker = jobs.job_worker()
    jobs.execute(
        "INSERT INTO feedq.schedule (name, job, timing) "
        """SELECT 's' || n, '{"task": "t"}', '{"beat": true}' FROM generate_series(1, %s) n""",
        RUNS,
    )
    jobs.schedule("full")
    jobs.schedule("open")
    jobs.queues.set(Queue("full", concurrency=1))
    jobs.schedules.trigger("full")
    jobs.execute("UPDATE feedq.run SET queue = 'full'")
    claim_one(jobs, worker)
    many(jobs, sql, analyzed=analyzed)
    jobs.schedules.trigger("open")
    settle(jobs)
    taken: list[object] = []
    assert read_by(jobs, lambda: taken.extend(claim(jobs, worker))) <= FEW
    assert len(taken) == {PLAIN: 8, IN_A_FULL_QUEUE: 1, BACKFILL: 2}[sql]
    assert read_by(jobs, lambda: jobs.execute("SELECT count(job) FROM feedq.run")) >= RUNS, (
        "the counters work"
    )


def test_an_idle_look_at_many_schedules_reads_one_or_two(jobs: JobsHarness) -> None:
    jobs.execute(
        "INSERT INTO feedq.schedule (name, job, timing, next_tick_at, next_fire_at) "
        """SELECT 's' || n, '{"task": "t"}', '{"every_s": 60}', now() + interval '1 h', now() + interval '1 h' """
        "FROM generate_series(1, %s) n",
        RUNS,
    )
    settle(jobs)
    assert read_by(jobs, lambda: jobs.store.jobs.runs.fire_due(limit=100)) <= 10


def test_a_higher_priority_is_found_behind_however_many_fell_due_before(jobs: JobsHarness) -> None:
    jobs.schedule("crowd", overlap=Overlap.ALLOW_ALL)
    jobs.schedule("high", job=Job("tasks.report", priority=100))
    for n in range(CROWD + 2):
        jobs.schedules.trigger("crowd", key=str(n))
    jobs.schedules.trigger("high")
    assert claim_one(jobs, jobs.job_worker(), limit=1).schedule == "high"
