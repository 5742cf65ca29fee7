"""Claims and successes by statements that are planned once a session, on whatever waited or did not wait then."""

from __future__ import annotations

import pytest

from feedq.control.store.database import PreparedStatement
from feedq.control.store.jobs import prepared
from feedq.control.store.jobs.prepared import PreparedRuns
from feedq.core.schedule.spec import Overlap
from feedq.errors import Unavailable
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, ended, finish, offer

MANY = 20_000


def prepared_of(jobs: JobsHarness) -> PreparedRuns:
    return jobs.store.jobs.runs._prepared


def plan(jobs: JobsHarness, statement: PreparedStatement) -> str:
    """As the session would execute it now."""
    session = prepared_of(jobs)._session
    assert session is not None
    values = {
        "free": 8,
        "counted": 24,
        "open": [],
        "queues": ["default"],
        "tasks": ["tasks.report"],
        "selectors": ["{}"],
        "worker_id": "00000000-0000-0000-0000-000000000000",
        "limit": 8,
        "looked_at": 40,
        "ahead_max_s": 100.0,
        "ids": [1],
        "fences": [1],
    }
    with session.cursor() as cursor:
        cursor.execute("EXPLAIN " + statement.execute, values)
        return "\n".join(row[0] for row in cursor.fetchall())


def test_plans_that_were_made_when_nothing_waited_are_right_when_many_do(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    schedule = jobs.schedule(overlap=Overlap.ALLOW_ALL)
    jobs.execute("ANALYZE feedq.run")
    assert claim(jobs, worker) == []
    assert prepared_of(jobs)._session is None, "with nothing to claim there is no need of one"
    prepared_of(jobs)._open()
    before = {s: plan(jobs, s) for s in (prepared._DUE_SCAN, prepared._CLAIM, prepared._SUCCEED)}
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job, exclusive) "
        'SELECT %s, \'x\' || n, now(), now(), now(), \'{"name": "nightly", "task": "tasks.report"}\', false '
        "FROM generate_series(1, %s) n",
        schedule.id,
        MANY,
    )
    succeed = before[prepared._SUCCEED]
    assert "using run_pkey" in succeed, succeed
    for statement, planned in before.items():
        assert plan(jobs, statement) == planned, "planned once"
        assert "Seq Scan on run" not in planned
        assert "Bitmap" not in planned
    look, take = before[prepared._DUE_SCAN], before[prepared._CLAIM]
    for index in ("run_lane", "run_start_by", "run_waiting_due"):
        assert f"using {index}" in look, look
    for index in ("run_lane", "run_pkey"):
        assert f"using {index}" in take, take
    # Other ways to the same rows go through all that wait.
    for wrong in ("run_unfinished", "run_of_schedule", "run_key"):
        assert f"using {wrong}" not in look + take + succeed
    assert len(claim(jobs, worker)) == 8


def test_a_backlog_is_worked_off_without_a_look_each_time(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = PreparedRuns._execute

    def execute(self: PreparedRuns, statement: PreparedStatement, parameters: object) -> object:
        asked.append(statement.execute.split()[1])
        return real(self, statement, parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(PreparedRuns, "_execute", execute)
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    for _ in range(5):
        jobs.schedules.trigger("nightly")
    taken = [len(claim(jobs, worker, limit=2)) for _ in range(4)]
    assert taken == [2, 2, 1, 0]
    # The third found less than it asked for.
    assert asked == ["feedq_first", "feedq_due_scan", *["feedq_claim"] * 3, "feedq_first"]


def test_behind_a_pooler_it_goes_the_other_way(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    jobs.schedules.trigger("nightly")
    run = claim_one(jobs, worker)
    session = prepared_of(jobs)._session
    assert session is not None
    with session.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")  # as on another backend
    assert finish(jobs, worker, ended(run)) == [run.id]
    jobs.schedules.trigger("nightly")
    again = claim_one(jobs, worker)
    assert finish(jobs, worker, ended(again)) == [again.id]
    assert prepared_of(jobs)._session is None


def test_a_session_that_is_cut_off_is_opened_anew(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule()
    jobs.schedules.trigger("nightly")
    assert claim(jobs, worker, limit=0) == []
    run = claim_one(jobs, worker)
    cut = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'feedq-runs'"
    assert jobs.execute(cut) == [(True,)]
    with pytest.raises(Unavailable):
        finish(jobs, worker, ended(run))
    assert finish(jobs, worker, ended(run)) == [run.id]


def test_who_uses_it_at_the_same_time_goes_the_other_way(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule()
    jobs.schedules.trigger("nightly")
    held = prepared_of(jobs)
    with held._lock:
        assert held.claim(offer(worker), is_due=True) is None
        assert claim_one(jobs, worker).schedule == "nightly"
