"""The contract of schedules: one that a later release has stored, and this one cannot read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feedq.errors import Unreadable
from feedq.schedule.model import Every, Job, RunState, ScheduleState
from feedq.store.jobs.rows import UNREADABLE
from feedq.store.jobs.schedules import PostgresSchedules
from tests.contract.jobs_harness import JobsHarness, schedule_spec

DAMAGES = (
    """policy = '{"warp": 9}'""",
    """timing = '{"moon": "full"}'""",
    """job = '{"task": "t", "warp": 9}'""",
)


@pytest.fixture(params=DAMAGES, ids=["policy", "timing", "job"])
def damaged(jobs: JobsHarness, request: pytest.FixtureRequest) -> JobsHarness:
    """Of three schedules the second cannot be read."""
    for name in ("a", "bad", "c"):
        jobs.schedule(name)
        jobs.schedules.trigger(name)
    jobs.execute(f"UPDATE feedq.schedule SET {request.param} WHERE name = 'bad'")
    return jobs


def test_lists_go_on_and_show_it_with_an_explanation(damaged: JobsHarness) -> None:
    a, bad, c = damaged.schedules.views()
    assert [view.schedule.spec.name for view in (a, bad, c)] == ["a", "bad", "c"]
    assert (bad.schedule.state, bad.waiting, bad.schedule.spec.job.task) == ("active", 1, UNREADABLE)
    assert "this release of feedq cannot read" in (bad.schedule.unreadable or "")
    assert (bad.schedule.pause_reason, a.schedule.unreadable) == (None, None)
    assert a.schedule == damaged.schedules.get("a")


def test_one_is_not_taken_for_unreadable_by_the_name_of_its_task(jobs: JobsHarness) -> None:
    added = jobs.schedule("a", job=Job(UNREADABLE))
    assert jobs.schedules.edit("a", added.spec) == added, "an edit that changes nothing"
    (view,) = jobs.schedules.views()
    assert view.schedule.unreadable is None


def test_a_run_whose_job_cannot_be_read_is_listed(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.trigger("nightly")
    jobs.execute("""UPDATE feedq.run SET job = '{"task": "t", "warp": 9}'""")
    assert [run.job.task for run in jobs.schedules.runs()] == [UNREADABLE]


@pytest.mark.parametrize(
    "act",
    [
        lambda schedules: schedules.specs(),
        lambda schedules: schedules.get("bad"),
        lambda schedules: schedules.view("bad"),
        lambda schedules: schedules.resume("bad"),
        lambda schedules: schedules.trigger("bad"),
    ],
    ids=["specs", "get", "view", "resume", "trigger"],
)
def test_what_needs_the_declaration_names_it_and_says_what_to_do(
    damaged: JobsHarness, act: Callable[[PostgresSchedules], object]
) -> None:
    with pytest.raises(Unreadable, match=r"schedule 'bad' .* upgrade feedq, or .* `feedq schedule edit`"):
        act(damaged.schedules)


def test_it_is_paused_purged_and_removed_all_the_same(damaged: JobsHarness) -> None:
    before = damaged.execute("SELECT job, timing, policy FROM feedq.schedule WHERE name = 'bad'")
    paused = damaged.schedules.pause("bad", reason="why")
    assert paused.state is ScheduleState.PAUSED
    assert paused.pause_reason == "why"
    assert paused.unreadable is not None
    assert damaged.execute("SELECT job, timing, policy FROM feedq.schedule WHERE name = 'bad'") == before
    assert damaged.schedules.purge("bad") == 1
    damaged.schedules.remove("bad")
    assert list(damaged.schedules.specs()) == ["a", "c"]


def test_an_edit_declares_it_anew(damaged: JobsHarness) -> None:
    spec = schedule_spec("bad", timing=Every(3600))
    at = damaged.now()
    edited = damaged.schedules.edit("bad", spec)
    assert edited == damaged.schedules.get("bad")
    assert (edited.spec, edited.generation, edited.pause_reason) == (spec, 2, None)
    assert edited.next_tick_at is not None
    assert edited.next_tick_at > at
    assert damaged.schedules.counts("bad") == {RunState.WAITING: 1}


def test_an_edit_that_differs_in_nothing_that_can_be_read_is_made(damaged: JobsHarness) -> None:
    damaged.schedules.edit("bad", schedule_spec("bad"))
    assert damaged.schedules.get("bad").spec == schedule_spec("bad")
