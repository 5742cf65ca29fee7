"""What the settings of schedules mean at their smallest value and at their largest."""

from __future__ import annotations

import pytest

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.model import Job
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import ALL, claim, fall_due, offer
from tests.simulation.durations import Bounds

STEAL, AGEING, RETENTION = map(Bounds.of, ("steal_after_s", "ageing_s", "run_retention_days"))


def test_runs_of_others_are_taken_at_once_or_not_for_so_long(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule()
    (run_id,) = fall_due(jobs)
    ((segment,),) = jobs.execute("SELECT segment FROM feedq.run WHERE id = %s", run_id)
    others = tuple(s for s in ALL if s != segment)
    assert claim(jobs, worker, segments=others, steal_after_s=STEAL.largest) == []
    assert [run.id for run in claim(jobs, worker, segments=others, steal_after_s=STEAL.lowest)] == [run_id]


@pytest.mark.parametrize(
    ("ageing_s", "first"),
    # Worth nothing, a priority changes no order; worth a day a point, one point outweighs any wait of a test.
    [(AGEING.lowest, "early"), (AGEING.largest, "important")],
)
def test_a_point_of_priority_is_worth_nothing_or_a_day(
    jobs: JobsHarness, ageing_s: float, first: str
) -> None:
    worker = jobs.job_worker()
    schedules = ScheduleStore(jobs.database, ageing_s=ageing_s)
    store = PostgresStore(jobs.url, ageing_s=ageing_s)
    try:
        jobs.schedule("early", job=Job("tasks.report", priority=-100))
        jobs.schedule("important", job=Job("tasks.report", priority=100))
        schedules.trigger("early")
        jobs.elapse(60)
        schedules.trigger("important")
        granted = store.jobs.runs.claim(offer(worker, limit=1))
        assert [run.schedule for run in granted.runs] == [first]
        assert len(store.jobs.runs.claim(offer(worker, limit=2)).runs) == 1, "and then the other one"
    finally:
        store.close()


def test_history_of_runs_is_kept_for_no_day_or_for_ten_years(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.end(jobs.schedules.trigger("nightly"))

    def trimmed(days: float) -> int:
        return jobs.store.jobs.runs.trim(older_than_days=int(days), limit=100)

    assert trimmed(RETENTION.largest) == 0
    jobs.elapse(1)
    assert trimmed(RETENTION.lowest) == 1
    assert jobs.schedules.runs("nightly") == []
