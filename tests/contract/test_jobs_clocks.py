"""Whose clock counts: the database's, however wrong that of the process is which asks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from feedq.core.schedule.model import RunState, Schedule
from feedq.core.schedule.spec import Overlap, Queue
from feedq.core.schedule.ticks import next_tick
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import ask, claim, claim_one, ended, fall_due, finish, fire, runs_of
from tests.schedules import INTERVAL_S, schedule_spec

WRONG_BY = timedelta(days=1)
"""More than anything here lasts, and no more than what is made up for."""
CLOCKS = """
    CREATE OR REPLACE FUNCTION feedq.now() RETURNS timestamptz LANGUAGE sql STABLE
        RETURN statement_timestamp() + interval '{by}';
    CREATE OR REPLACE FUNCTION feedq.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
        RETURN clock_timestamp() + interval '{by}';
"""


@pytest.fixture(params=[WRONG_BY, -WRONG_BY], ids=["ahead", "behind"])
def jobs(control_database_url: str, request: pytest.FixtureRequest) -> Iterator[JobsHarness]:
    """A database whose clock differs by a day from that of this process."""
    made = JobsHarness(control_database_url)
    made.execute(CLOCKS.format(by=request.param))
    yield made
    made.execute(CLOCKS.format(by=timedelta()))
    made.close()


def assert_begins_now(jobs: JobsHarness, schedule: Schedule, before: datetime) -> None:
    assert schedule.next_tick_at in {next_tick(schedule.spec, after=at) for at in (before, jobs.now())}


def test_the_two_clocks_do_differ(jobs: JobsHarness) -> None:
    off = abs(jobs.now() - datetime.now(jobs.now().tzinfo))
    assert off > WRONG_BY / 2


def test_a_schedule_begins_goes_on_and_is_fired_by_the_databases_clock(jobs: JobsHarness) -> None:
    before = jobs.now()
    assert_begins_now(jobs, jobs.schedule(overlap=Overlap.ALLOW_ALL), before)
    jobs.elapse(INTERVAL_S)
    assert len(fire(jobs)) == 1
    (run,) = runs_of(jobs)
    assert run.state is RunState.WAITING
    assert abs(run.due_at - jobs.now()) <= timedelta(seconds=2 * INTERVAL_S)
    assert_begins_now(jobs, jobs.schedules.get("nightly"), run.tick_at)
    before = jobs.now()
    assert_begins_now(jobs, jobs.schedules.edit("nightly", schedule_spec(every=7.0)), before)
    jobs.schedules.pause("nightly")
    jobs.elapse(INTERVAL_S)
    before = jobs.now()
    assert_begins_now(jobs, jobs.schedules.resume("nightly"), before)


def test_a_pause_ends_by_the_databases_clock(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.pause("nightly", until=jobs.now() + timedelta(seconds=INTERVAL_S))
    assert jobs.store.jobs.runs.fire_due(limit=10).next_in_s == pytest.approx(INTERVAL_S, abs=10)
    jobs.elapse(INTERVAL_S)
    before = jobs.now()
    fire(jobs)
    assert_begins_now(jobs, jobs.schedules.get("nightly"), before)


def test_a_run_is_claimed_timed_out_and_repeated_by_the_databases_clock(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.queues.set(Queue(name="calm", rate_per_s=0.001, burst=1))
    retries = {"limit": 1, "first": 20.0}
    jobs.schedule(task="tasks.report", timeout=30.0, retries=retries, start_deadline=600.0)
    jobs.schedule("calm", task="tasks.report", queue="calm", overlap=Overlap.ALLOW_ALL)
    fall_due(jobs)
    first, other = sorted(claim(jobs, worker), key=lambda run: run.schedule, reverse=True)
    assert first.remaining_s == pytest.approx(30, abs=5)
    assert 0 <= first.waited_s < 2 * INTERVAL_S
    finish(jobs, worker, ended(other))
    jobs.elapse(30)
    finish(jobs, worker, ended(first, RunState.TIMED_OUT))
    assert ask(jobs, worker).next_in_s == pytest.approx(20, abs=5)
    jobs.elapse(20)
    assert claim_one(jobs, worker).attempt == 2
    assert jobs.store.jobs.runs.trim(older_than_days=1, limit=10) == 0
