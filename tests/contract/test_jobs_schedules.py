"""The contract of schedules: declaring and changing them, triggers, backfills, entries of beat, cancelling."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from feedq.core.model import Worker, WorkerTarget
from feedq.core.moments import instant
from feedq.core.schedule.model import BACKFILL_MAX, Run, RunKind, RunState, ScheduleState
from feedq.core.schedule.spec import CatchUp, Overlap, ResumePolicy, ScheduleSpec, Semantics
from feedq.core.schedule.ticks import next_tick
from feedq.errors import Conflict, InvalidInput, NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import fire, job_of_run
from tests.schedules import INTERVAL_S, Keys, job_of, job_spec, schedule_spec

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


# -- what is asked of them ---------------------------------------------------------------------------

SOME_TICK = datetime(2026, 3, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def worker(jobs: JobsHarness) -> Worker:
    return jobs.job_worker()


def columns(jobs: JobsHarness, run: Run, *names: str) -> tuple[Any, ...]:
    """What else its row says."""
    (row,) = jobs.execute(f"SELECT {', '.join(names)} FROM feedq.run WHERE id = %s", run.id)
    return row


# -- triggers ----------------------------------------------------------------------------------------


def test_a_trigger_is_a_run_that_is_due_now(jobs: JobsHarness) -> None:
    schedule = jobs.schedule(task="tasks.report", queue="reports", priority=5, start_deadline=30.0)
    before = jobs.now()
    run = jobs.schedules.trigger("nightly")
    assert before <= run.due_at <= jobs.now()
    assert (run.schedule, run.kind, run.state) == ("nightly", RunKind.TRIGGER, RunState.WAITING)
    assert (run.tick_at, run.attempt, run.fence) == (run.due_at, 1, 0)
    assert job_of_run(jobs, run) == job_of(schedule.spec)
    queue, exclusive, start_by, rank_at = columns(jobs, run, "queue", "exclusive", "start_by", "rank_at")
    assert (queue, exclusive) == ("reports", True)
    assert start_by == run.due_at + timedelta(seconds=30)
    # A point of priority is worth a second of waiting.
    assert rank_at == run.due_at - timedelta(seconds=5)
    assert jobs.schedules.run(run.id) == run
    assert jobs.schedules.get("nightly").next_tick_at == schedule.next_tick_at, "a trigger is no tick"


def test_a_key_gives_the_run_of_then(jobs: JobsHarness, worker: Worker) -> None:
    jobs.schedule()
    first = jobs.schedules.trigger("nightly", key="order-17")
    jobs.start(first, worker)
    jobs.end(first)
    again = jobs.schedules.trigger("nightly", key="order-17")
    assert (again.id, again.state) == (first.id, RunState.SUCCEEDED)
    assert len(jobs.schedules.runs("nightly")) == 1


def test_no_trigger_takes_the_place_of_a_tick(jobs: JobsHarness) -> None:
    """Neither of one to come nor of one that has been fired, and the other way round."""
    schedule = jobs.schedule(overlap=Overlap.ALLOW_ALL)
    assert schedule.next_tick_at is not None
    coming = schedule.next_tick_at
    triggered = jobs.schedules.trigger("nightly", key=instant(coming))
    assert (triggered.kind, triggered.key) == (RunKind.TRIGGER, f"trigger:{instant(coming)}")
    jobs.elapse(INTERVAL_S)
    fire(jobs)
    (tick,) = [run for run in jobs.schedules.runs("nightly") if run.kind is RunKind.TICK]
    again = jobs.schedules.trigger("nightly", key=tick.key)
    assert again.id not in (tick.id, triggered.id)
    assert jobs.schedules.backfill("nightly", [coming - timedelta(days=1)]) == (1, 0)


def test_a_trigger_may_bring_a_job_of_its_own(jobs: JobsHarness) -> None:
    jobs.schedule()
    job = job_spec(args=["once"], queue="slow")
    run = jobs.schedules.trigger("nightly", job=job)
    assert job_of_run(jobs, run) == job
    assert columns(jobs, run, "queue") == ("slow",)
    assert jobs.schedules.get("nightly").spec.args == []


def test_a_trigger_works_on_a_paused_schedule_and_on_no_removed_one(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.schedules.pause("nightly")
    assert jobs.schedules.trigger("nightly").state is RunState.WAITING
    jobs.schedules.remove("nightly")
    with pytest.raises(NotFound):
        jobs.schedules.trigger("nightly")


def test_a_trigger_notifies_one_worker_that_serves_and_has_a_slot_free(
    jobs: JobsHarness, worker: Worker
) -> None:
    jobs.schedule(overlap=Overlap.ALLOW_ALL)
    none, full, cordoned = jobs.job_worker("b", slots=0), jobs.job_worker("c", slots=1), jobs.job_worker("d")
    expired, draining = jobs.job_worker("e", ttl_s=0.0), jobs.job_worker("f")
    jobs.start(jobs.schedules.trigger("nightly"), full)
    jobs.store.workers.set_target(cordoned.id, WorkerTarget.CORDONED)
    jobs.store.workers.drain(draining.id)
    everybody = (worker, none, full, cordoned, expired, draining)
    assert jobs.notified(lambda: jobs.schedules.trigger("nightly"), *everybody) == {"a"}
    jobs.store.workers.set_target(worker.id, WorkerTarget.DRAINED)
    assert jobs.notified(lambda: jobs.schedules.trigger("nightly"), *everybody) == {"c"}, (
        "full, but soon free"
    )


# -- overlap -----------------------------------------------------------------------------------------


def test_skip_leaves_a_trigger_out_while_a_run_has_not_ended(jobs: JobsHarness, worker: Worker) -> None:
    first = jobs.triggered(overlap=Overlap.SKIP)
    assert jobs.schedules.trigger("nightly", key="while it waits").state is RunState.SKIPPED_OVERLAP
    jobs.start(first, worker)
    skipped = jobs.schedules.trigger("nightly", key="while it runs")
    assert (skipped.state, skipped.reason) == (RunState.SKIPPED_OVERLAP, "an earlier run has not ended")
    assert skipped.ended_at is not None
    jobs.end(first)
    assert jobs.schedules.trigger("nightly").state is RunState.WAITING
    assert jobs.schedules.trigger("nightly", key="while it runs") == skipped, "that one has been decided"


@pytest.mark.parametrize(
    ("overlap", "waits"),
    [(Overlap.BUFFER_ONE, 1), (Overlap.BUFFER_ALL, 2), (Overlap.ALLOW_ALL, 3)],
)
def test_as_many_triggers_wait_beside_a_run_as_the_policy_lets(
    jobs: JobsHarness, worker: Worker, overlap: Overlap, waits: int
) -> None:
    jobs.schedule(overlap=overlap, buffer_max=2)
    jobs.start(jobs.schedules.trigger("nightly"), worker)
    runs = [jobs.schedules.trigger("nightly") for _ in range(3)]
    waiting = RunState.WAITING if overlap is Overlap.ALLOW_ALL else RunState.BUFFERED
    states = [waiting] * waits + [RunState.SKIPPED_OVERLAP] * (3 - waits)
    assert [run.state for run in runs] == states
    assert columns(jobs, runs[0], "exclusive") == (overlap is not Overlap.ALLOW_ALL,)


def test_cancel_other_ends_what_has_not_ended(jobs: JobsHarness, worker: Worker) -> None:
    jobs.schedule(overlap=Overlap.CANCEL_OTHER)
    other = jobs.job_worker("b")
    first, waiting = jobs.schedules.trigger("nightly"), None
    jobs.start(first, worker)
    assert jobs.schedules.backfill("nightly", [SOME_TICK]) == (1, 0)
    (waiting,) = jobs.schedules.runs("nightly", states=[RunState.BUFFERED])
    # The other has nothing to stop; but the new run may go to it.
    jobs.store.workers.set_target(other.id, WorkerTarget.CORDONED)
    assert jobs.notified(lambda: jobs.schedules.trigger("nightly", key="new"), worker, other) == {"a"}
    for ended in (first, waiting):
        run = jobs.schedules.run(ended.id)
        assert run.state is RunState.CANCELLED
        assert run.reason == "overlap is cancel_other, and the trigger new came"
    assert jobs.schedules.trigger("nightly", key="new").state is RunState.WAITING


# -- backfills ---------------------------------------------------------------------------------------


def test_a_backfill_makes_runs_in_the_order_of_their_ticks(jobs: JobsHarness, worker: Worker) -> None:
    jobs.schedule(task="tasks.report", priority=3, start_deadline=1.0)
    ticks = [SOME_TICK + n * HOUR for n in (2, 0, 1, 0)]
    made: list[tuple[int, int]] = []
    assert jobs.notified(lambda: made.append(jobs.schedules.backfill("nightly", ticks)), worker) == {"a"}
    assert made == [(3, 0)]
    runs = jobs.schedules.runs("nightly")[::-1]
    assert [run.tick_at for run in runs] == [SOME_TICK, SOME_TICK + HOUR, SOME_TICK + 2 * HOUR]
    assert [run.key for run in runs] == [f"2026-03-01T{hour}:00:00Z" for hour in (10, 11, 12)]
    assert {run.kind for run in runs} == {RunKind.BACKFILL}
    assert [run.state for run in runs] == [RunState.WAITING, RunState.BUFFERED, RunState.BUFFERED]
    ranks = [columns(jobs, run, "rank_at")[0] for run in runs]
    assert ranks == sorted(set(ranks)), "each after the one before"
    assert {columns(jobs, run, "exclusive", "start_by") for run in runs} == {(True, None)}


def test_a_backfill_notifies_as_many_workers_as_can_begin_at_once(jobs: JobsHarness, worker: Worker) -> None:
    everybody = (worker, jobs.job_worker("b"), jobs.job_worker("c"))
    ticks = iter(SOME_TICK + n * HOUR for n in range(100))

    def notified(name: str, count: int) -> set[str]:
        wanted = [next(ticks) for _ in range(count)]
        return jobs.notified(lambda: jobs.schedules.backfill(name, wanted), *everybody)

    jobs.schedule("many", overlap=Overlap.ALLOW_ALL)
    assert notified("many", 10) == {"a", "b", "c"}
    assert len(notified("many", 2)) == 2
    jobs.schedule("one", overlap=Overlap.SKIP)
    assert len(notified("one", 10)) == 1, "one runs at a time"


def test_a_backfill_over_ticks_that_ran_makes_nothing(jobs: JobsHarness, worker: Worker) -> None:
    jobs.schedule()
    ticks = [SOME_TICK + n * HOUR for n in range(4)]
    assert jobs.schedules.backfill("nightly", ticks[:2]) == (2, 0)
    for run in jobs.schedules.runs("nightly"):
        jobs.end(run)
    assert jobs.schedules.backfill("nightly", ticks) == (2, 2)
    elsewhere = datetime.fromisoformat("2026-03-01T11:00:00+01:00")
    assert jobs.schedules.backfill("nightly", [elsewhere]) == (0, 1), "the same tick"
    # Nor is anybody told, or anything written, when there is nothing to do.
    assert jobs.notified(lambda: jobs.schedules.backfill("nightly", ticks), worker) == set()
    assert len(jobs.schedules.runs("nightly")) == 4
    assert jobs.schedules.backfill("nightly", []) == (0, 0)


def test_a_backfill_has_a_size_and_its_ticks_a_zone(jobs: JobsHarness) -> None:
    jobs.schedule()
    ticks = [SOME_TICK + timedelta(seconds=n) for n in range(BACKFILL_MAX + 1)]
    with pytest.raises(InvalidInput, match="10001 ticks is too large"):
        jobs.schedules.backfill("nightly", ticks)
    with pytest.raises(InvalidInput, match="offset"):
        jobs.schedules.backfill("nightly", [datetime(2026, 3, 1)])  # noqa: DTZ001 -- what is refused
    assert jobs.schedules.runs("nightly") == []
    assert jobs.schedules.backfill("nightly", ticks[1:]) == (BACKFILL_MAX, 0)


# -- cancelling --------------------------------------------------------------------------------------


def test_a_purge_cancels_what_waits_and_nothing_else(jobs: JobsHarness, worker: Worker) -> None:
    untouched = jobs.triggered("other")
    running = jobs.triggered(overlap=Overlap.ALLOW_ALL)
    jobs.start(running, worker)
    jobs.schedules.backfill("nightly", [SOME_TICK, SOME_TICK + HOUR])
    assert jobs.schedules.purge("nightly") == 2
    assert jobs.schedules.purge("nightly") == 0
    assert jobs.schedules.counts("nightly") == {RunState.RUNNING: 1, RunState.CANCELLED: 2}
    assert jobs.schedules.run(untouched.id) == untouched


def test_the_worker_of_a_running_run_hears_of_its_end(jobs: JobsHarness, worker: Worker) -> None:
    jobs.schedule()
    other, run = jobs.job_worker("b"), jobs.schedules.trigger("nightly")
    fence = jobs.start(run, worker)
    cancelled: list[Run] = []
    assert jobs.notified(lambda: cancelled.append(jobs.schedules.cancel_run(run.id)), worker, other) == {"a"}
    assert (cancelled[0].state, cancelled[0].worker, cancelled[0].fence) == (RunState.CANCELLED, "a", fence)


def test_what_has_ended_or_never_was_cannot_be_cancelled(jobs: JobsHarness) -> None:
    run = jobs.triggered()
    jobs.schedules.cancel_run(run.id)
    before = jobs.schedules.run(run.id)
    with pytest.raises(Conflict, match=f"run {run.id} of nightly has ended"):
        jobs.schedules.cancel_run(run.id)
    assert jobs.schedules.run(run.id) == before
    with pytest.raises(NotFound, match="no run 99"):
        jobs.schedules.cancel_run(99)


# -- beat --------------------------------------------------------------------------------------------


def test_an_entry_of_beat_is_enqueued_once_a_tick(jobs: JobsHarness, worker: Worker) -> None:
    job = job_spec("beat:clean", args=[1])
    assert jobs.notified(lambda: jobs.schedules.once(job, "k1", SOME_TICK), worker) == {"a"}
    assert jobs.notified(lambda: jobs.schedules.once(job, "k1", SOME_TICK), worker) == set()
    assert jobs.schedules.once(job, "k1", SOME_TICK) is False
    assert jobs.schedules.once(job, "k2", SOME_TICK) is True
    first = jobs.schedules.runs("beat:clean")[-1]
    assert (first.kind, first.state, first.key) == (RunKind.BEAT, RunState.WAITING, "k1")
    assert (first.tick_at, job_of_run(jobs, first)) == (SOME_TICK, job)
    assert columns(jobs, first, "exclusive") == (False,)


def test_the_schedule_behind_an_entry_is_shown_and_never_fires(jobs: JobsHarness) -> None:
    for key in ("k0", "k1"):
        jobs.schedules.once(job_spec("beat:clean", task="tasks.clean"), key, SOME_TICK)
    schedule = jobs.schedules.get("beat:clean")
    assert (schedule.next_tick_at, schedule.next_fire_at, schedule.generation) == (None, None, 1)
    assert [view.schedule.spec.name for view in jobs.schedules.views()] == ["beat:clean"]
    assert jobs.declared() == {}, "nobody declared it in a manifest"
    jobs.schedules.once(job_spec("beat:clean", task="tasks.sweep"), "k2", SOME_TICK)
    schedule = jobs.schedules.get("beat:clean")
    assert (schedule.spec.task, schedule.generation) == ("tasks.sweep", 2)
    tasks = [run.task for run in jobs.schedules.runs("beat:clean")]
    assert tasks == ["tasks.sweep", "tasks.clean", "tasks.clean"]
