"""The contract of schedules: what people are shown, what is forgotten, and what each reads at size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from feedq.control.store.jobs import runs
from feedq.control.store.jobs.listing import UNREADABLE
from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.schedule.spec import Overlap
from feedq.errors import Unreadable
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import runs_of
from tests.schedules import INTERVAL_S, Keys, schedule_spec

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
        """SELECT id, n::text, at, at, at, 'succeeded', at, '{"name": "s", "task": "t"}' """
        "FROM generate_series(1, %s) n, feedq.schedule, feedq.now() AS at",
        RUNS,
    )
    jobs.execute(
        "INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, job) "
        """SELECT id, 'w', feedq.now(), feedq.now(), feedq.now(), '{"name": "s", "task": "t"}' """
        "FROM feedq.schedule ORDER BY id LIMIT 10"
    )
    jobs.execute(
        "UPDATE feedq.run SET state = 'failed', ended_at = feedq.now() - interval '99 days' "
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
        ("queues", 30, jobs.queues.listed),
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


def history(jobs: JobsHarness, name: str, ages_d: list[float], **keep: Keys) -> None:
    """A schedule with runs that ended so many days ago, the first first."""
    jobs.schedule(name, overlap=Overlap.ALLOW_ALL, task="t", **keep)
    for n, age in enumerate(ages_d):
        run = jobs.schedules.trigger(name, key=f"{n}")
        jobs.end(run)
        sql = "UPDATE feedq.run SET ended_at = ended_at - make_interval(secs => %s) WHERE id = %s"
        jobs.execute(sql, age * 86_400, run.id)


def trim(jobs: JobsHarness, *, days: int = 30, limit: int = 100) -> int:
    return jobs.store.jobs.runs.trim(older_than_days=days, limit=limit)


def kept(jobs: JobsHarness, name: str) -> list[str]:
    return [run.key.removeprefix("trigger:") for run in runs_of(jobs, name)]


def test_a_schedule_keeps_so_many_runs_and_others_keep_theirs(jobs: JobsHarness) -> None:
    history(jobs, "few", [0.0] * 6, keep={"runs": 2})
    history(jobs, "all", [0.0] * 6)
    assert trim(jobs) == 4
    assert (kept(jobs, "few"), len(kept(jobs, "all"))) == (["4", "5"], 6)
    assert trim(jobs) == 0


def test_a_schedule_keeps_its_history_shorter_or_longer_than_all_others(jobs: JobsHarness) -> None:
    ages = [40.0, 20.0, 5.0, 0.0]
    history(jobs, "short", ages, keep={"days": 10})
    history(jobs, "long", ages, keep={"days": 90})
    history(jobs, "usual", ages)
    trim(jobs)
    assert [len(kept(jobs, name)) for name in ("short", "long", "usual")] == [2, 4, 3]
    history(jobs, "both", ages, keep={"days": 30, "runs": 1})
    trim(jobs)
    assert kept(jobs, "both") == ["3"]


def test_what_has_not_ended_is_kept_however_many_there_are(jobs: JobsHarness) -> None:
    jobs.schedule("few", overlap=Overlap.ALLOW_ALL, keep={"runs": 1})
    first, *_ = [jobs.schedules.trigger("few", key=str(n)) for n in range(4)]
    assert trim(jobs) == 0
    jobs.end(first)
    assert trim(jobs) == 1
    assert kept(jobs, "few") == ["1", "2", "3"]


def test_much_is_deleted_a_page_at_a_time_of_a_few_schedules_at_a_time(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SCHEDULES_PER_SCAN", 2)
    for name in "abc":
        history(jobs, name, [0.0] * 4, keep={"runs": 1})
    assert [trim(jobs, limit=4) for _ in range(5)] == [4, 2, 3, 0, 0]
    assert [kept(jobs, name) for name in "abc"] == [["3"], ["3"], ["3"]]


# -- a schedule of a later release, which this one cannot read ---------------------------------------


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
