"""Jobs of one worker process as a whole: what reaches the slots, and how it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest

from feedq import run_context
from feedq.control.store.worker_session import NotifyReason
from feedq.core.schedule.model import ClaimedRun, Fired
from feedq.settings import Settings
from feedq.worker.jobs import job_service as module
from feedq.worker.jobs import ticker
from feedq.worker.jobs.job_service import Jobs
from feedq.worker.thread_pool import ThreadPool
from tests.unit.job_runs import ME, MemoryRuns
from tests.waiting import until

LIMIT_S = 30.0


class Stage:
    """Jobs over runs in memory."""

    def __init__(self, *, drain_s: float = LIMIT_S) -> None:
        self.runs = MemoryRuns()
        self.begun: list[int] = []
        self.told_to_stop: list[str] = []
        self.go_on = Event()
        self.jobs = Jobs(
            self.runs,
            Settings(job_drain_s=drain_s),
            session=lambda: ME,
            is_trusted=lambda: True,
            call=self.job,
            count=2,
            threads=ThreadPool(),
        )

    def begin(self, run_id: int) -> None:
        """Have a run begin in one of our slots."""
        self.runs.add(run_id)
        self.jobs.notified([NotifyReason.RUNS])
        until(lambda: run_id in self.begun, "it runs")

    def job(self, run: ClaimedRun) -> None:
        self.begun.append(run.id)
        deadline = time.monotonic() + LIMIT_S
        while not self.go_on.wait(0.005) and time.monotonic() < deadline:
            if run_context().is_cancelled:
                self.told_to_stop.append(run_context().why or "")
                return


@pytest.fixture
def make() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def stage(**options: Any) -> Stage:
        made.append(Stage(**options))
        made[-1].jobs.start()
        return made[-1]

    yield stage
    for one in made:
        one.go_on.set()
        one.jobs.force_stop()
        one.jobs.join()
    until(lambda: not any(one.jobs._thread.is_alive() for one in made), "their threads have ended")


def test_what_the_ticker_fires_runs_in_our_slots_at_once(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.runs.add(5)
    stage.runs.fires = [Fired(1, False, None)]
    until(lambda: stage.begun == [5], "it runs")


def test_notifications_reach_the_slots(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.runs.add(5)
    stage.jobs.notified([NotifyReason.RUNS])
    until(lambda: stage.begun == [5], "it runs")
    stage.runs.take_away(5)
    stage.jobs.notified([NotifyReason.JOBS])
    until(lambda: stage.told_to_stop, "it is told")


def test_the_ticker_scans_at_once_when_a_schedule_may_have_changed(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker, "POLL_S", 60.0)
    monkeypatch.setattr(ticker, "POLL_MAX_S", 60.0)
    stage = make()
    until(lambda: stage.runs.asked["fire_due"] > 0, "it has scanned")
    scans = stage.runs.asked["fire_due"]
    stage.jobs.notified(["of a later release"])
    until(lambda: stage.runs.asked["fire_due"] > scans, "it scans again")


def test_leaving_waits_for_what_runs_and_takes_nothing_more(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.begin(5)
    stage.jobs.drain()
    assert stage.jobs.is_busy
    leaving = Thread(target=stage.jobs.join, daemon=True)
    leaving.start()
    stage.runs.add(6)
    stage.jobs.notified([NotifyReason.RUNS])
    leaving.join(0.3)
    assert leaving.is_alive()
    stage.go_on.set()
    leaving.join(LIMIT_S)
    assert not leaving.is_alive()
    assert stage.runs.states() == {5: "succeeded", 6: "waiting"}
    assert not stage.jobs.is_busy


def test_what_does_not_end_in_time_is_told_to_stop_and_left_to_the_database(
    make: Callable[..., Stage],
) -> None:
    stage = make(drain_s=0.2)
    stage.begin(5)
    stage.jobs.join()
    until(lambda: stage.told_to_stop == ["its worker is leaving"], "it is told")
    assert stage.runs.states() == {5: "running"}
    assert not stage.jobs.is_busy


def test_the_last_ends_are_told_as_long_as_there_is_hope(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.3)
    stage = make()
    stage.begin(5)
    stage.runs.is_away = True
    stage.go_on.set()
    until(lambda: not stage.jobs.slots.running, "its job has ended")
    began = time.monotonic()
    stage.jobs.join()
    assert 0.3 <= time.monotonic() - began < LIMIT_S
    assert stage.runs.states() == {5: "running"}


def test_an_outage_ends_nothing(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.go_on.set()
    stage.begin(1)
    until(lambda: stage.runs.states()[1] == "succeeded", "it was woken")
    stage.runs.add(2)
    until(lambda: stage.runs.states()[2] == "succeeded", "found by its own look")
    stage.runs.is_away = True
    stage.runs.add(3)
    stage.jobs.notified([NotifyReason.RUNS])
    asked = stage.runs.asked.copy()
    until(
        lambda: all(stage.runs.asked[it] > asked[it] + 1 for it in ("held", "fire_due")),
        "both are tried again",
    )
    stage.runs.is_away = False
    until(lambda: stage.runs.states()[3] == "succeeded", "back")


def test_a_scan_that_always_fails_keeps_no_run_from_being_claimed(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> Fired:
        raise ValueError("for the test")

    stage = make()
    monkeypatch.setattr(stage.runs, "fire_due", broken)
    stage.go_on.set()
    stage.begin(5)
    until(lambda: stage.runs.states() == {5: "succeeded"}, "it has ended")
