"""Firing: ticks become rows once, and watermarks move behind them, whoever looks and is killed when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest

from feedq.control.store.jobs import firing
from feedq.core.schedule.model import RunKind, RunState, Schedule, ScheduleState
from feedq.core.schedule.spec import CatchUp, Overlap, ResumePolicy
from tests.contract.jobs_harness import JobsHarness
from tests.contract.jobs_stage import claim, claim_one, ended, finish, fire, job_of_run, runs_of, states
from tests.schedules import INTERVAL_S, Keys, job_of

S = RunState


class FiringHarness(JobsHarness):
    """Its schedules tick whole intervals from when they were made, so that no minute ends within a test."""

    def schedule(self, name: str = "nightly", **changes: object) -> Schedule:
        began = self.now() - timedelta(days=1)
        return super().schedule(name, **{"every": INTERVAL_S, "anchor": began, **changes})


@pytest.fixture
def jobs(control_database_url: str) -> Iterator[JobsHarness]:
    with closing(FiringHarness(control_database_url, ahead_days=1)) as made:
        yield made


def watermark(jobs: JobsHarness, name: str = "nightly") -> datetime:
    at = jobs.schedules.get(name).next_tick_at
    assert at is not None
    return at


def test_a_second_a_tick_that_is_left_out_all_day_is_one_row(jobs: JobsHarness) -> None:
    jobs.schedule(every=1.0, misfire_after=9e6)
    jobs.elapse(1)
    fire(jobs)
    claim_one(jobs, jobs.job_worker())
    begin = watermark(jobs)
    for _ in range(24):
        jobs.elapse(100)
        fire(jobs)
    ran, skipped = runs_of(jobs)
    assert (ran.state, skipped.state) == (S.RUNNING, S.SKIPPED_OVERLAP)
    assert 2_400 <= skipped.ticks <= 2_600
    assert states(jobs) == {S.RUNNING: 1, S.SKIPPED_OVERLAP: skipped.ticks}
    assert skipped.reason == "an earlier run has not ended"
    assert watermark(jobs) >= begin
    assert skipped.ended_at is not None
    assert jobs.now() - skipped.ended_at < timedelta(seconds=60), "kept as long as if it had just come"
    ((last,),) = jobs.execute("SELECT last_tick_at FROM feedq.run WHERE state = 'skipped_overlap'")
    assert last == watermark(jobs) - timedelta(seconds=1)


def test_a_tick_that_a_row_stands_for_already_is_not_counted_again(jobs: JobsHarness) -> None:
    jobs.schedule(misfire_after=0.0, catch_up={"policy": CatchUp.SKIP})
    jobs.elapse(10 * INTERVAL_S)
    before = watermark(jobs)
    fire(jobs)
    (missed,) = runs_of(jobs)
    assert missed.ticks > 8
    back = before + timedelta(seconds=3 * INTERVAL_S)
    jobs.execute("UPDATE feedq.schedule SET next_tick_at = %s, next_fire_at = %s", back, back)
    fire(jobs)
    (again,) = runs_of(jobs)
    assert (again.id, again.ticks) == (missed.id, missed.ticks)


def test_while_a_run_waits_or_runs_nobody_is_idle_though_no_tick_comes(jobs: JobsHarness) -> None:
    jobs.schedule()
    assert not jobs.store.jobs.runs.fire_due(limit=100).is_idle
    jobs.elapse(INTERVAL_S)
    fire(jobs)
    jobs.execute("UPDATE feedq.schedule SET state = 'paused'")
    worker = jobs.worker()
    for change in ("state = 'waiting'", "state = 'running', worker_id = %s"):
        jobs.execute(f"UPDATE feedq.run SET {change}", *([str(worker.id)] if "%s" in change else []))
        fired = jobs.store.jobs.runs.fire_due(limit=100)
        assert (fired.next_in_s, fired.is_idle) == (None, False)
    jobs.execute("UPDATE feedq.run SET state = 'succeeded', ended_at = feedq.clock()")
    assert jobs.store.jobs.runs.fire_due(limit=100).is_idle


def test_a_tick_becomes_a_run_and_the_watermark_moves_on(jobs: JobsHarness) -> None:
    schedule = jobs.schedule(args=["x"], queue="reports", priority=7, start_deadline=600)
    jobs.elapse(INTERVAL_S)
    tick = watermark(jobs)
    fired = jobs.store.jobs.runs.fire_due(limit=100)
    (run,) = runs_of(jobs)
    assert (run.state, run.kind, run.tick_at, run.due_at, run.ticks) == (
        S.WAITING,
        RunKind.TICK,
        tick,
        tick,
        1,
    )
    assert run.key == tick.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") + run.key[19:]
    assert run.key.endswith("Z")
    assert job_of_run(jobs, run) == job_of(schedule.spec)
    assert fired.runs == 1
    ((ahead, start_by, queue),) = jobs.execute("SELECT due_at - rank_at, start_by, queue FROM feedq.run")
    assert (ahead, queue) == (timedelta(seconds=7), "reports")
    assert start_by == tick + timedelta(seconds=600)
    assert watermark(jobs) == tick + timedelta(seconds=INTERVAL_S)
    assert fired.next_in_s is not None
    assert 0 < fired.next_in_s <= INTERVAL_S
    assert fire(jobs) == [], "and no second time"


def test_a_tick_that_was_backfilled_before_it_fell_due_is_not_doubled(jobs: JobsHarness) -> None:
    jobs.schedule()
    jobs.elapse(INTERVAL_S)
    jobs.schedules.backfill("nightly", [watermark(jobs)])
    assert fire(jobs) == []
    assert states(jobs) == {S.WAITING: 1}


def test_whatever_was_decided_a_watermark_never_goes_back(jobs: JobsHarness) -> None:
    schedule = jobs.schedule()
    back = watermark(jobs) - timedelta(seconds=INTERVAL_S)
    with jobs.database.transaction() as c:
        firing.write(c, [firing.Decided(schedule.id, "nightly", back, back)], [])
    assert jobs.schedules.get("nightly") == schedule
    with jobs.database.transaction() as c:
        firing.write(c, [firing.Decided(schedule.id, "nightly")], [])
    assert jobs.schedules.get("nightly").next_tick_at is None, "the end of all ticks is later than any"


def test_cancel_other_cancels_what_runs_and_tells_its_worker(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.CANCEL_OTHER)
    jobs.elapse(INTERVAL_S)
    fire(jobs)
    run = claim_one(jobs, worker)
    jobs.elapse(INTERVAL_S)
    with psycopg2.connect(jobs.url) as listener, listener.cursor() as cursor:
        cursor.execute(f"LISTEN feedq_worker_{worker.lock_key}")
        listener.commit()
        fire(jobs)
        cursor.execute("SELECT 1")
        listener.poll()
        assert listener.notifies, "the worker was notified"
    assert states(jobs) == {S.CANCELLED: 1, S.WAITING: 1}
    assert jobs.schedules.run(run.id).reason is not None
    assert jobs.store.jobs.runs.taken_away(worker.id, {run.id: run.fence}) == {run.id}
    assert claim_one(jobs, worker).id != run.id
    assert finish(jobs, worker, ended(run)) == []
    assert jobs.events("run_finish_rejected") == [], "it was cancelled on purpose"


# -- pauses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", ResumePolicy)
def test_a_pause_with_an_end_ends_by_itself(jobs: JobsHarness, resume: ResumePolicy) -> None:
    jobs.schedule(resume=resume, overlap=Overlap.ALLOW_ALL, catch_up={"policy": CatchUp.ALL})
    jobs.schedules.pause("nightly", until=jobs.now() + timedelta(seconds=5 * INTERVAL_S), reason="works")
    fired = jobs.store.jobs.runs.fire_due(limit=100)
    assert fired.next_in_s == pytest.approx(5 * INTERVAL_S, abs=10)
    before = watermark(jobs)
    jobs.elapse(5 * INTERVAL_S)
    before -= timedelta(seconds=5 * INTERVAL_S)
    made = fire(jobs)
    schedule = jobs.schedules.get("nightly")
    assert (schedule.state, schedule.paused_until, schedule.pause_reason) == (
        ScheduleState.ACTIVE,
        None,
        None,
    )
    assert watermark(jobs) > jobs.now()
    assert len(made) == (0 if resume is ResumePolicy.SKIP else 5)
    assert [kind for kind, _ in jobs.events("schedule_resumed")] == ["schedule_resumed"]


def test_what_is_due_and_paused_or_removed_is_left_alone_when_others_are_fired(jobs: JobsHarness) -> None:
    for name in ("due", "paused", "paused for longer", "removed", "removed in a pause"):
        jobs.schedule(name)
    jobs.schedules.pause("paused")
    jobs.schedules.pause("paused for longer", until=jobs.now() + timedelta(seconds=600))
    jobs.schedules.pause("removed in a pause", until=jobs.now() + timedelta(seconds=INTERVAL_S))
    for name in ("removed", "removed in a pause"):
        jobs.schedules.remove(name)
    jobs.elapse(INTERVAL_S)
    fire(jobs)
    assert [run.schedule for run in jobs.schedules.runs()] == ["due"]
    assert jobs.events("schedule_resumed") == []


# -- schedules that cannot be fired ------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"cron": "61 * * * *"},
        {"cron": "* * * * *", "zone": "Mars/Olympus"},
        {"moon": "full"},
        {"overlap": "wrestle"},
        {"task": 7},
        {"priority": "high"},
    ],
)
def test_a_schedule_that_cannot_be_fired_is_paused_and_stops_no_other(
    jobs: JobsHarness, damage: Keys
) -> None:
    jobs.schedule("bad")
    jobs.schedule("good")
    jobs.elapse(INTERVAL_S)
    jobs.damage("bad", damage)
    assert len(fire(jobs)) == 1
    assert states(jobs, "good") == {S.WAITING: 1}
    ((state, reason),) = jobs.execute("SELECT state, pause_reason FROM feedq.schedule WHERE name = 'bad'")
    assert state == "paused"
    assert str(reason).startswith("it cannot be fired: ")
    ((_, detail),) = jobs.events("schedule_paused")
    assert detail == {"schedule": "bad", "reason": reason}
    assert not jobs.store.jobs.runs.fire_due(limit=10).more


def test_of_too_much_a_look_decides_what_it_has_time_for(
    jobs: JobsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "DECIDE_S", 0.0)
    for n in range(3):
        jobs.schedule(f"s{n}")
    jobs.elapse(INTERVAL_S)
    looks = [jobs.store.jobs.runs.fire_due(limit=100) for _ in range(3)]
    assert [fired.runs for fired in looks] == [1, 1, 1]
    assert [fired.more for fired in looks] == [True, True, False]


# -- killed under way --------------------------------------------------------------------------------


# -- backfills ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.BUFFER_ONE, Overlap.BUFFER_ALL])
def test_a_backfill_silences_no_tick_and_a_tick_goes_before_what_has_not_begun_of_it(
    jobs: JobsHarness, overlap: Overlap
) -> None:
    """Nor does it silence a trigger."""
    worker = jobs.job_worker()
    jobs.schedule(overlap=overlap, buffer_max=1)
    past = [watermark(jobs) - timedelta(days=2, hours=n) for n in range(24)]
    assert jobs.schedules.backfill("nightly", past) == (24, 0)
    for asked in range(3):
        running = claim_one(jobs, worker)
        assert running.kind is RunKind.BACKFILL
        assert claim(jobs, worker) == [], "one at a time all the same"
        jobs.elapse(INTERVAL_S)
        if asked < 2:
            fire(jobs)
        else:
            assert jobs.schedules.trigger("nightly").state is S.BUFFERED
        finish(jobs, worker, ended(running))
        live = claim_one(jobs, worker)
        assert live.kind is (RunKind.TICK if asked < 2 else RunKind.TRIGGER)
        finish(jobs, worker, ended(live))
    assert S.SKIPPED_OVERLAP not in states(jobs)


def test_a_tick_that_waits_for_a_backfill_counts_for_the_next_one(jobs: JobsHarness) -> None:
    worker = jobs.job_worker()
    jobs.schedule(overlap=Overlap.SKIP)
    jobs.schedules.backfill("nightly", [watermark(jobs) - timedelta(days=2)])
    claim_one(jobs, worker)
    for _ in range(2):
        jobs.elapse(INTERVAL_S)
        fire(jobs)
    assert states(jobs) == {S.RUNNING: 1, S.BUFFERED: 1, S.SKIPPED_OVERLAP: 1}
