"""The contract of schedules: triggers, backfills, entries of beat, and cancelling."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from feedq.core.model import Worker, WorkerTarget
from feedq.core.moments import instant
from feedq.core.schedule.model import BACKFILL_MAX, Run, RunKind, RunState
from feedq.core.schedule.spec import Overlap
from feedq.errors import Conflict, InvalidInput, NotFound
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import fire, job_of_run
from tests.schedules import INTERVAL_S, job_of, job_spec

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
