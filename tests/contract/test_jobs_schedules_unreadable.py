"""The contract of schedules: one that a later release has stored, and this one cannot read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feedq.control.store.jobs.listing import UNREADABLE
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.schedule.spec import Overlap
from feedq.errors import Unreadable
from tests.contract.jobs_harness import JobsHarness
from tests.schedules import INTERVAL_S, schedule_spec


@pytest.fixture(params=[{"moon": "full"}, {"task": {"name": "t"}}], ids=["another key", "another value"])
def damaged(jobs: JobsHarness, request: pytest.FixtureRequest) -> JobsHarness:
    """Of three schedules the second cannot be read."""
    for name in ("a", "bad", "c"):
        jobs.triggered(name)
    jobs.damage("bad", request.param)
    return jobs


def test_lists_go_on_and_show_it_with_an_explanation(damaged: JobsHarness) -> None:
    a, bad, c = damaged.schedules.views()
    assert [view.schedule.spec.name for view in (a, bad, c)] == ["a", "bad", "c"]
    assert (bad.schedule.state, bad.waiting, bad.schedule.spec.task) == ("active", 1, UNREADABLE)
    assert "this release of feedq cannot read" in (bad.schedule.unreadable or "")
    assert (bad.schedule.pause_reason, a.schedule.unreadable) == (None, None)
    assert a.schedule == damaged.schedules.get("a")


@pytest.mark.parametrize(
    "act",
    [
        lambda schedules: schedules.get("bad"),
        lambda schedules: schedules.view("bad"),
        lambda schedules: schedules.resume("bad"),
        lambda schedules: schedules.trigger("bad"),
    ],
    ids=["get", "view", "resume", "trigger"],
)
def test_what_needs_the_declaration_names_it_and_says_what_to_do(
    damaged: JobsHarness, act: Callable[[ScheduleStore], object]
) -> None:
    with pytest.raises(Unreadable, match=r"schedule 'bad' .* upgrade feedq, or .* `feedq apply`"):
        act(damaged.schedules)


def test_it_is_paused_purged_and_removed_all_the_same(damaged: JobsHarness) -> None:
    before = damaged.execute("SELECT declaration FROM feedq.schedule WHERE name = 'bad'")
    paused = damaged.schedules.pause("bad", reason="why")
    assert paused.state is ScheduleState.PAUSED
    assert paused.pause_reason == "why"
    assert paused.unreadable is not None
    assert damaged.execute("SELECT declaration FROM feedq.schedule WHERE name = 'bad'") == before
    assert damaged.schedules.purge("bad") == 1
    damaged.schedules.remove("bad")
    assert list(damaged.declared()) == ["a", "c"]


def test_an_edit_declares_it_anew(damaged: JobsHarness) -> None:
    spec = schedule_spec("bad", every=3600)
    at = damaged.now()
    edited = damaged.schedules.edit("bad", spec)
    assert edited == damaged.schedules.get("bad")
    assert (edited.spec, edited.generation, edited.pause_reason) == (spec, 2, None)
    assert edited.next_tick_at is not None
    assert edited.next_tick_at > at
    assert damaged.schedules.counts("bad") == {RunState.WAITING: 1}


def fired(damaged: JobsHarness) -> str | None:
    """The reason why the bad one is paused, once it has fallen due."""
    damaged.elapse(INTERVAL_S)
    damaged.store.jobs.runs.fire_due(limit=10)
    view = damaged.schedules.views(prefix="bad")[0]
    assert view.schedule.state is ScheduleState.PAUSED
    return view.schedule.pause_reason


def test_one_that_firing_has_paused_ticks_again_once_it_is_declared_anew(damaged: JobsHarness) -> None:
    assert str(fired(damaged)).startswith("it cannot be fired: schedule 'bad' ")
    edited = damaged.schedules.edit("bad", schedule_spec("bad", overlap=Overlap.ALLOW_ALL))
    assert (edited.state, edited.pause_reason) == (ScheduleState.ACTIVE, None)
    assert [kind for kind, _ in damaged.events("schedule_paused", "schedule_resumed")] == [
        "schedule_paused",
        "schedule_resumed",
    ]
    damaged.elapse(INTERVAL_S)
    damaged.store.jobs.runs.fire_due(limit=10)
    assert damaged.schedules.counts("bad") == {RunState.WAITING: 2}, "the trigger and a tick"
