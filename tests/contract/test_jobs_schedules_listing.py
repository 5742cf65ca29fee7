"""The contract of schedules: what people are shown, what is forgotten, and what each reads at size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.schedule.spec import Overlap
from tests.contract.jobs_harness import JobsHarness

SOME_TICK = datetime(2026, 3, 1, 10, tzinfo=UTC)
SCHEDULES = 2_000
RUNS = 4
"""Of each of them."""
PLANNER_ROWS = 60
"""The planner reads the first and the last row of an index now and then, however many there are."""


# -- one and many ------------------------------------------------------------------------------------


def test_a_view_has_the_newest_run_that_does_not_wait(jobs: JobsHarness) -> None:
    added = jobs.schedule(overlap=Overlap.BUFFER_ONE)
    view = jobs.schedules.view("nightly")
    assert (view.schedule, view.last, view.waiting, view.running) == (added, None, 0, 0)
    worker = jobs.job_worker()
    first = jobs.schedules.trigger("nightly")
    assert jobs.schedules.view("nightly").last is None, "it has not begun"
    jobs.start(first, worker)
    view = jobs.schedules.view("nightly")
    assert view.last == jobs.schedules.run(first.id)
    assert view.last is not None
    assert (view.last.worker, view.waiting, view.running) == ("a", 0, 1)
    waiting, skipped = jobs.schedules.trigger("nightly"), jobs.schedules.trigger("nightly")
    view = jobs.schedules.view("nightly")
    assert (view.last, view.waiting, view.running) == (skipped, 1, 1)
    assert waiting.state is RunState.BUFFERED


def test_pages_are_in_order_of_name_and_follow_each_other(jobs: JobsHarness) -> None:
    names = ["Z", "a", "a/b", "a/c", "a0", "b", "ä", "\U0010fffd"]
    for name in reversed(names):
        jobs.schedule(name)
    found: list[str] = []
    while page := jobs.schedules.views(after=found[-1] if found else "", limit=3):
        found += [view.schedule.spec.name for view in page]
    assert found == names
    assert [v.schedule.spec.name for v in jobs.schedules.views(prefix="a")] == ["a", "a/b", "a/c", "a0"]
    assert [v.schedule.spec.name for v in jobs.schedules.views(prefix="a/", after="a/b")] == ["a/c"]
    assert jobs.schedules.views(prefix="%") == [], "it is plain text"
    jobs.schedules.pause("a/c")
    paused, active = ScheduleState.PAUSED, ScheduleState.ACTIVE
    assert [v.schedule.spec.name for v in jobs.schedules.views(state=paused)] == ["a/c"]
    assert [v.schedule.spec.name for v in jobs.schedules.views(prefix="a/", state=active)] == ["a/b"]
    assert jobs.schedules.views(limit=-1) == []


def test_runs_come_newest_first_and_by_state(jobs: JobsHarness) -> None:
    jobs.schedule("a", overlap=Overlap.ALLOW_ALL)
    jobs.schedule("b", overlap=Overlap.SKIP)
    states = [RunState.SUCCEEDED, RunState.FAILED, RunState.LOST]
    ended = [jobs.schedules.trigger("a") for _ in states]
    for run, state in zip(ended, states, strict=True):
        jobs.end(run, state)
    waiting = jobs.schedules.trigger("b")
    skipped = jobs.schedules.trigger("b")
    newest_first = [skipped.id, waiting.id, *[run.id for run in ended][::-1]]
    schedules = jobs.schedules
    assert [run.id for run in schedules.runs()] == newest_first
    assert [run.id for run in schedules.runs(limit=2)] == newest_first[:2]
    assert [run.id for run in schedules.runs("a")] == newest_first[2:]
    found = schedules.runs(states=[RunState.FAILED, RunState.SKIPPED_OVERLAP])
    assert [run.id for run in found] == [skipped.id, ended[1].id]
    assert [run.state for run in schedules.runs("a", states=[RunState.LOST])] == [RunState.LOST]
    assert schedules.runs("b", states=[RunState.LOST]) == []
    assert [run.id for run in schedules.runs(states=[RunState.WAITING])] == [waiting.id]
    assert schedules.runs(limit=0) == []


def test_history_under_a_name_is_that_of_the_schedule_that_has_it_or_had_it_last(jobs: JobsHarness) -> None:
    for number in range(2):
        jobs.schedule()
        jobs.schedules.trigger("nightly", key=f"of the {number + 1}. schedule")
        jobs.schedules.remove("nightly")
    assert [run.key for run in jobs.schedules.runs("nightly")] == ["trigger:of the 2. schedule"]
    assert jobs.schedules.counts("nightly") == {RunState.CANCELLED: 1}
    jobs.schedule()
    assert jobs.schedules.runs("nightly") == []


# -- retention ---------------------------------------------------------------------------------------


def trimmed(jobs: JobsHarness, *, limit: int = 100) -> int:
    return jobs.store.jobs.runs.trim(older_than_days=30, limit=limit)


def test_what_ended_long_ago_is_deleted_the_oldest_first(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.backfill("nightly", [SOME_TICK + timedelta(hours=n) for n in range(4)])
    *old, young, waiting = jobs.schedules.runs("nightly")[::-1]
    for run in reversed(old):
        jobs.end(run)
    jobs.elapse(31 * 86_400)
    jobs.end(young)
    assert trimmed(jobs, limit=1) == 1
    assert [run.id for run in jobs.schedules.runs("nightly")] == [waiting.id, young.id, old[0].id]
    assert [trimmed(jobs), trimmed(jobs)] == [1, 0]
    assert [run.id for run in jobs.schedules.runs("nightly")] == [waiting.id, young.id]


def test_a_removed_schedule_goes_with_the_last_of_its_history(jobs: JobsHarness) -> None:
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    worker = jobs.job_worker()
    old, running = jobs.schedules.trigger("nightly"), jobs.schedules.trigger("nightly")
    jobs.start(running, worker)
    jobs.schedules.cancel_run(old.id)
    jobs.schedules.remove("nightly")
    kept = jobs.schedule("kept")
    jobs.elapse(31 * 86_400)
    assert trimmed(jobs) == 1
    assert [run.id for run in jobs.schedules.runs("nightly")] == [running.id], "it has not ended, however old"
    jobs.end(running)
    assert trimmed(jobs) == 0
    jobs.elapse(31 * 86_400)
    assert trimmed(jobs) == 1
    assert jobs.execute("SELECT id FROM feedq.schedule") == [(kept.id,)]


# -- at size -----------------------------------------------------------------------------------------


def many(jobs: JobsHarness) -> None:
    """Schedules ``s0000`` and so on, each with runs that ended, and ten of them with one that waits."""
    jobs.execute(
        "INSERT INTO feedq.schedule (name, declaration) SELECT s.name, "
        "jsonb_build_object('name', s.name, 'task', 't', 'every', 60) "
        "FROM generate_series(0, %s) n, lpad(n::text, 4, '0') AS digits, concat('s', digits) AS s (name)",
        SCHEDULES - 1,
    )
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, state, ended_at, job) "
        """SELECT id, n::text, now(), now(), now(), 'succeeded', now(), '{"name": "s", "task": "t"}' """
        "FROM generate_series(1, %s) n, feedq.schedule",
        RUNS,
    )
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job) "
        """SELECT id, 'w', now(), now(), now(), '{"name": "s", "task": "t"}' """
        "FROM feedq.schedule ORDER BY id LIMIT 10"
    )
    jobs.execute(
        "UPDATE feedq.run SET state = 'failed', ended_at = now() - interval '99 days' "
        "WHERE id IN (SELECT id FROM feedq.run WHERE state = 'succeeded' ORDER BY id LIMIT 5)"
    )


@pytest.mark.parametrize("is_analyzed", [True, False], ids=["with statistics", "without statistics"])
def test_what_is_read_does_not_grow_with_what_there_is(jobs: JobsHarness, is_analyzed: bool) -> None:
    many(jobs)
    if is_analyzed:
        jobs.execute("ANALYZE feedq.schedule, feedq.run")
    schedules, page = jobs.schedules, 100
    failed = [RunState.FAILED]
    acts: list[tuple[str, int, Callable[[], object]]] = [
        # Of each: the schedule, perhaps read twice, its newest run, and those of it that have not ended.
        ("a page", 4 * page, partial(schedules.views, after="s1000", limit=page)),
        ("a page by prefix", 4 * page, partial(schedules.views, prefix="s19", limit=page)),
        ("a view", 10, partial(schedules.view, "s1000")),
        ("runs of one", 2 * RUNS, partial(schedules.runs, "s1000")),
        ("newest runs", 3 * page, partial(schedules.runs, limit=page)),
        ("failed runs", 30, partial(schedules.runs, states=failed)),
        ("counts", 2 * RUNS, partial(schedules.counts, "s1000")),
        ("depths", 30, jobs.queues.depths),
        ("a trigger", 20, partial(schedules.trigger, "s1000")),
        ("a trigger again", 20, partial(schedules.trigger, "s1001", key="k")),
        ("a purge", 20, partial(schedules.purge, "s0001")),
        ("a removal", 20, partial(schedules.remove, "s0002")),
        ("retention", 60, partial(trimmed, jobs)),
    ]
    for what, most, act in acts:
        read = jobs.rows_read_by(act)
        assert read <= most + PLANNER_ROWS, what
    assert jobs.rows_read_by(jobs.declared) >= SCHEDULES - 1, "the counters work"
