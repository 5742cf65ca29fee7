"""The contract of schedules: declaring, editing, pausing and removing them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from feedq.core.schedule.model import RunState, ScheduleState
from feedq.core.schedule.spec import CatchUp, Overlap, ResumePolicy, ScheduleSpec, Semantics
from feedq.core.schedule.ticks import next_tick
from feedq.errors import Conflict, InvalidInput, NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.schedules import Keys, job_spec, schedule_spec

EVERYTHING = schedule_spec(
    "acme/report-ä",
    cron=("H 2 * * 1-5",),
    zone="Europe/Berlin",
    task="tasks.report",
    args=["a", 1, [2.5, None]],
    kwargs={"day": "yesterday", "deep": {"er": [True]}},
    semantics=Semantics.TRANSACTIONAL,
    timeout=None,
    retries={"limit": 3, "first": 0.5, "factor": 3.0, "max": 60.0},
    queue="reports",
    priority=-7,
    jitter=30.0,
    start_deadline=0.5,
    overlap=Overlap.BUFFER_ALL,
    buffer_max=7,
    misfire_after=0.0,
    resume=ResumePolicy.CATCH_UP,
    pause_on_failure=1,
    paused=True,
    start=datetime(2026, 1, 1, tzinfo=UTC),
    end=datetime(2999, 1, 1, tzinfo=UTC),
    exclude=("2026-12-25", "2026-12-31..2027-01-02"),
    catch_up={"policy": CatchUp.ALL, "window": 0.0, "max": 3},
    keep={"runs": 1_000, "days": 30},
)
"""Nothing in it is as it would be by default."""


# -- adding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        EVERYTHING,
        schedule_spec(every=0.25, anchor=datetime(2026, 1, 1, tzinfo=UTC)),
        schedule_spec(at=(datetime(2999, 1, 1, tzinfo=UTC),)),
        schedule_spec(at=(datetime(2998, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC))),
        schedule_spec(cron=("@daily", "@hourly")),
    ],
    ids=["everything", "every", "once", "twice", "two crons"],
)
def test_a_schedule_is_read_as_it_was_declared(jobs: JobsHarness, spec: ScheduleSpec) -> None:
    added = jobs.schedules.add(spec)
    assert added.spec == spec
    assert jobs.schedules.get(spec.name) == added
    assert jobs.declared() == {spec.name: spec}


def test_its_first_tick_is_the_first_after_now(jobs: JobsHarness) -> None:
    before = jobs.now()
    schedule = jobs.schedule()
    after = jobs.now()
    assert schedule.next_tick_at in {next_tick(schedule.spec, after=at) for at in (before, after)}
    assert schedule.next_fire_at == schedule.next_tick_at
    assert (schedule.state, schedule.generation, schedule.failures) == (ScheduleState.ACTIVE, 1, 0)
    assert before <= schedule.created_at <= after


def test_a_name_is_given_once(jobs: JobsHarness) -> None:
    first = jobs.schedule("nightly")
    with pytest.raises(Conflict, match="'nightly' exists already"):
        jobs.schedule("nightly", every=5)
    assert jobs.schedules.get("nightly") == first


# -- editing -----------------------------------------------------------------------------------------


def overdue(jobs: JobsHarness, **changes: Any) -> datetime:
    """A schedule ``nightly`` whose watermark was passed ten minutes ago. Returns the watermark."""
    jobs.schedule(**changes)
    jobs.elapse(600)
    tick = jobs.schedules.get("nightly").next_tick_at
    assert tick is not None
    assert tick < jobs.now()
    return tick


def test_an_edit_with_the_same_timing_keeps_the_watermark(jobs: JobsHarness) -> None:
    tick = overdue(jobs)
    edited = jobs.schedules.edit("nightly", schedule_spec(task="tasks.other"))
    assert (edited.next_tick_at, edited.next_fire_at) == (tick, tick)
    assert (edited.generation, edited.spec.task) == (2, "tasks.other")
    assert jobs.schedules.get("nightly") == edited


def test_an_edit_with_another_timing_begins_at_the_first_tick_after_now(jobs: JobsHarness) -> None:
    overdue(jobs)
    spec = schedule_spec(every=7.0)
    before = jobs.now()
    edited = jobs.schedules.edit("nightly", spec)
    assert edited.next_tick_at in {next_tick(spec, after=at) for at in (before, jobs.now())}


@pytest.mark.parametrize(
    "bound",
    [
        {"start": datetime(2998, 1, 1, tzinfo=UTC)},
        {"end": datetime(2998, 1, 1, tzinfo=UTC)},
        {"exclude": ("2026-01-01..2998-12-31",)},
    ],
    ids=["start", "end", "exclude"],
)
def test_an_edit_of_what_bounds_its_ticks_begins_at_the_first_of_them_after_now(
    jobs: JobsHarness, bound: dict[str, Any]
) -> None:
    spec = jobs.schedule(every=3600).spec
    edited = jobs.schedules.edit(spec.name, spec.model_copy(update=bound))
    assert edited.next_tick_at == next_tick(edited.spec, after=jobs.now())
    assert edited.next_fire_at == edited.next_tick_at


def test_runs_that_wait_keep_the_job_they_were_made_with(jobs: JobsHarness) -> None:
    waiting = jobs.triggered()
    jobs.schedules.edit("nightly", schedule_spec(task="tasks.other", queue="other", priority=9))
    assert jobs.schedules.run(waiting.id) == waiting
    assert waiting.task == "tasks.report"


def test_a_new_name_brings_other_hashed_ticks_and_the_first_of_them_is_not_left_out(
    jobs: JobsHarness,
) -> None:
    # Once a month, on a day that is hashed from the name.
    hashed: Keys = {"cron": ("H H H * *",)}
    jobs.schedule("nightly", **hashed)
    for name in ("daily", "weekly", "monthly", "yearly"):
        before = jobs.now()
        (current,) = jobs.declared()
        renamed = jobs.schedules.edit(current, schedule_spec(name, **hashed))
        assert renamed.next_tick_at in {next_tick(renamed.spec, after=at) for at in (before, jobs.now())}
        assert renamed.next_fire_at == renamed.next_tick_at


def test_an_edit_can_pause_and_end_that_pause(jobs: JobsHarness) -> None:
    jobs.schedule()
    assert jobs.schedules.edit("nightly", schedule_spec(paused=True)).state is ScheduleState.PAUSED
    jobs.elapse(600)
    resumed = jobs.schedules.edit("nightly", schedule_spec(paused=False))
    assert resumed.state is ScheduleState.ACTIVE
    # As its policy is to skip what fell due in a pause.
    assert resumed.next_tick_at is not None
    assert resumed.next_tick_at > jobs.now() - timedelta(seconds=1)
    assert jobs.events("schedule_paused", "schedule_resumed") == [
        ("schedule_paused", {"schedule": "nightly", "reason": "declared as paused"}),
        ("schedule_resumed", {"schedule": "nightly", "reason": "declared so"}),
    ]


@pytest.mark.parametrize("declared", [False, True])
def test_an_edit_ends_no_pause_by_hand(jobs: JobsHarness, declared: bool) -> None:
    jobs.schedule(paused=declared)
    jobs.schedules.pause("nightly", reason="the server moves")
    edited = jobs.schedules.edit("nightly", schedule_spec(jitter=1.0))
    assert (edited.state, edited.pause_reason) == (ScheduleState.PAUSED, "the server moves")


# -- pausing -----------------------------------------------------------------------------------------


def test_a_pause_keeps_the_watermark_and_says_why(jobs: JobsHarness) -> None:
    added = jobs.schedule()
    until = datetime(2999, 1, 1, tzinfo=UTC)
    paused = jobs.schedules.pause("nightly", until=until, reason="the server moves")
    assert (paused.state, paused.paused_until, paused.pause_reason) == (
        ScheduleState.PAUSED,
        until,
        "the server moves",
    )
    assert (paused.next_tick_at, paused.generation) == (added.next_tick_at, 1)
    assert jobs.schedules.get("nightly") == paused


def test_the_end_of_a_pause_has_a_zone_and_its_reason_can_be_printed(jobs: JobsHarness) -> None:
    jobs.schedule()
    with pytest.raises(InvalidInput, match="until"):
        jobs.schedules.pause("nightly", until=datetime(2999, 1, 1))  # noqa: DTZ001 -- what is refused
    with pytest.raises(InvalidInput, match="reason"):
        jobs.schedules.pause("nightly", reason="\0")
    assert jobs.schedules.get("nightly").state is ScheduleState.ACTIVE


def test_resuming_skips_the_ticks_of_the_pause(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.pause("nightly", reason="why")
    jobs.elapse(600)
    before = jobs.now()
    resumed = jobs.schedules.resume("nightly")
    assert resumed.next_tick_at in {next_tick(resumed.spec, after=at) for at in (before, jobs.now())}
    assert (resumed.state, resumed.paused_until, resumed.pause_reason) == (ScheduleState.ACTIVE, None, None)


# -- removing ----------------------------------------------------------------------------------------


def test_removing_cancels_what_waits_and_lets_run_what_runs(jobs: JobsHarness) -> None:
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    worker = jobs.job_worker()
    running, waiting = jobs.schedules.trigger("nightly"), jobs.schedules.trigger("nightly")
    jobs.start(running, worker)
    jobs.schedules.remove("nightly")
    assert jobs.schedules.run(running.id).state is RunState.RUNNING
    cancelled = jobs.schedules.run(waiting.id)
    assert (cancelled.state, cancelled.reason) == (RunState.CANCELLED, "its schedule was removed")
    assert cancelled.ended_at is not None
    assert jobs.declared() == {}
    assert jobs.schedules.views() == []
    with pytest.raises(NotFound):
        jobs.schedules.get("nightly")
    assert {run.id for run in jobs.schedules.runs("nightly")} == {running.id, waiting.id}, "history stays"


def test_one_declared_anew_is_another_schedule_and_fires_nothing_past(jobs: JobsHarness) -> None:
    tick = overdue(jobs)
    old = jobs.schedules.get("nightly")
    assert jobs.schedules.backfill("nightly", [tick]) == (1, 0)
    jobs.schedules.remove("nightly")
    new = jobs.schedule()
    assert new.id != old.id
    assert new.next_tick_at is not None
    assert new.next_tick_at > jobs.now() - timedelta(seconds=1)
    assert jobs.schedules.runs("nightly") == []
    # The keys of the two do not clash.
    assert jobs.schedules.backfill("nightly", [tick]) == (1, 0)
    assert len(jobs.schedules.runs()) == 2


# -- history -----------------------------------------------------------------------------------------


def test_each_verb_is_a_line_of_history(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.edit("nightly", schedule_spec(jitter=1.0, every=5))
    jobs.schedules.pause("nightly", until=datetime(2999, 1, 1, tzinfo=UTC), reason="why")
    jobs.schedules.resume("nightly")
    jobs.schedules.trigger("nightly")
    jobs.schedules.remove("nightly")
    assert jobs.execute("SELECT kind, detail FROM feedq.event WHERE kind LIKE 'schedule%%' ORDER BY id") == [
        ("schedule_added", {"schedule": "nightly", "generation": 1}),
        ("schedule_edited", {"schedule": "nightly", "generation": 2, "changed": ["every", "jitter"]}),
        ("schedule_paused", {"schedule": "nightly", "reason": "why", "until": "2999-01-01T00:00:00+00:00"}),
        ("schedule_resumed", {"schedule": "nightly"}),
        ("schedule_removed", {"schedule": "nightly", "cancelled": 1}),
    ]


def test_a_schedule_of_beat_is_edited_in_its_file(jobs: JobsHarness) -> None:
    jobs.schedules.once(job_spec("beat:clean", task="tasks.clean"), "k", jobs.now())
    with pytest.raises(Conflict, match="edit it there"):
        jobs.schedules.edit("beat:clean", schedule_spec("beat:clean"))
    jobs.schedule()
    with pytest.raises(Conflict, match="edit it there"):
        jobs.schedules.edit("nightly", schedule_spec("beat:nightly"))


# -- the bell ----------------------------------------------------------------------------------------


def test_a_tick_that_comes_soon_is_told_to_one_worker(jobs: JobsHarness) -> None:
    """Nobody may look before it falls due; of all others somebody knows in time."""
    worker, cordoned = jobs.job_worker(), jobs.job_worker("b")
    jobs.execute("UPDATE feedq.worker SET target_state = 'cordoned' WHERE id = %s", cordoned.id)
    far: Keys = {"every": 86_400.0, "anchor": datetime.now(UTC) + timedelta(hours=12)}
    soon, later, asleep = (
        schedule_spec("soon", every=0.9),
        schedule_spec("later", **far),
        schedule_spec("asleep", every=0.9, paused=True),
    )
    changes = {
        "add soon": lambda: jobs.schedules.add(soon),
        "add later": lambda: jobs.schedules.add(later),
        "add asleep": lambda: jobs.schedules.add(asleep),
        "make it sooner": lambda: jobs.schedules.edit(
            "later", later.model_copy(update={"every": 0.9, "anchor": None})
        ),
        "make it later": lambda: jobs.schedules.edit("later", later),
        "pause": lambda: jobs.schedules.pause("soon"),
        "resume": lambda: jobs.schedules.resume("soon"),
        "declare as awake": lambda: jobs.schedules.edit("asleep", asleep.model_copy(update={"paused": None})),
    }
    notified = {what: jobs.notified(act, worker, cordoned) for what, act in changes.items()}
    assert [what for what, names in notified.items() if names] == [
        *("add soon", "make it sooner", "resume", "declare as awake")
    ]
    assert set().union(*notified.values()) == {worker.name}
