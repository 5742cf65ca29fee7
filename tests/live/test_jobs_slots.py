"""The job slots of a worker: what is claimed when, and how each kind of end is told. Ticked by hand, mostly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event
from uuid import UUID

import pytest

from feedq import run_context
from feedq.core.schedule.model import ClaimedRun, Granted, Offer
from feedq.errors import Unavailable
from feedq.telemetry.metrics import JOB_SLOTS
from feedq.worker.jobs.slots import Slots
from feedq.worker.jobs.ticker import Peers
from feedq.worker.thread_pool import ThreadPool
from tests.unit.job_runs import ME, MemoryRuns, new_session
from tests.waiting import until

LIMIT_S = 30.0


class Stage:
    """Slots over runs in memory, and jobs that end when they are let go."""

    def __init__(self, count: int = 2) -> None:
        self.runs = MemoryRuns()
        self.session: UUID | None = ME
        self.peers = Peers(workers=3, slots=24)
        self.begun: list[int] = []
        self.told_to_stop: list[str] = []
        self.go_on = Event()
        self.heeds = True
        self.error: Exception | None = None
        self.slots = Slots(
            self.runs,
            self.job,
            count=count,
            session=lambda: self.session,
            is_trusted=lambda: True,
            peers=lambda: self.peers,
            threads=ThreadPool(),
            on_change=lambda: None,
        )

    def job(self, run: ClaimedRun) -> None:
        self.begun.append(run.id)
        deadline = time.monotonic() + LIMIT_S
        while not self.go_on.wait(0.005) and time.monotonic() < deadline:
            if self.heeds and run_context().is_cancelled:
                self.told_to_stop.append(run_context().why or "")
                run_context().raise_if_cancelled()
        if self.error is not None:
            raise self.error

    def claim(self) -> None:
        self.slots.wake()
        self.slots.turn()

    def begin(self, *runs: int) -> None:
        """These runs, and no others, run."""
        for run_id in runs:
            self.runs.add(run_id)
        self.claim()
        until(lambda: sorted(self.begun) == sorted(runs), "they run")

    def release(self) -> None:
        self.go_on.set()
        until(lambda: self.slots.running == 0, "all have ended")

    def is_over(self) -> bool:
        return not self.slots._attempts


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.go_on.set()
    until(made.is_over, "every job has ended")


def test_no_more_is_claimed_than_there_are_free_slots(stage: Stage) -> None:
    for run_id in range(1, 6):
        stage.runs.add(run_id)
    stage.claim()
    until(lambda: len(stage.begun) == 2, "two run")
    stage.claim()
    assert [offer.limit for offer in stage.runs.offers] == [2]
    assert sorted(stage.runs.states().values()) == ["running"] * 2 + ["waiting"] * 3
    stage.release()
    stage.slots.turn()
    assert stage.runs.states()[1] == stage.runs.states()[2] == "succeeded"
    assert stage.runs.offers[-1].limit == 2, "a slot that is free is offered at once"


def test_nothing_is_claimed_without_need(stage: Stage) -> None:
    stage.slots.turn()
    stage.slots.turn()
    assert stage.runs.asked["claim"] == 1
    stage.slots.notified()
    stage.slots.turn()
    assert stage.runs.asked["claim"] == 2


def test_who_is_not_trusted_or_not_registered_claims_nothing_and_goes_on_when_it_is(stage: Stage) -> None:
    stage.runs.add(1)
    stage.session = None
    stage.claim()
    assert stage.runs.asked["claim"] == 0
    stage.session = ME
    stage.claim()
    assert stage.runs.states() == {1: "running"}


def test_ends_wait_for_a_database_that_is_away_and_keep_their_slots(stage: Stage) -> None:
    stage.begin(1, 2)
    stage.runs.is_away = True
    stage.release()
    for _ in range(3):
        with pytest.raises(Unavailable):
            stage.slots.turn()
    assert not stage.slots.is_idle
    stage.runs.is_away = False
    stage.runs.add(3)
    offers = len(stage.runs.offers)
    stage.slots.turn()
    assert stage.runs.states() == {1: "succeeded", 2: "succeeded", 3: "running"}
    assert len(stage.runs.offers) == offers + 1


def test_one_end_that_cannot_be_stored_keeps_no_other_from_being_told(stage: Stage) -> None:
    stage.begin(1, 2)
    stage.runs.cannot_end = {1}
    stage.release()
    stage.slots.turn()
    assert stage.runs.states() == {1: "running", 2: "succeeded"}
    assert stage.slots.is_idle


def test_the_end_of_a_run_that_somebody_has_locked_is_told_again(stage: Stage) -> None:
    stage.begin(1, 2)
    stage.runs.busy = {1}
    stage.release()
    stage.slots.turn()
    assert stage.runs.states() == {1: "running", 2: "succeeded"}
    assert not stage.slots.is_idle
    stage.runs.busy = set()
    stage.slots.turn()
    assert stage.runs.states() == {1: "succeeded", 2: "succeeded"}
    assert stage.slots.is_idle


def test_an_end_whose_answer_was_lost_is_told_once_more_and_changes_nothing(stage: Stage) -> None:
    stage.runs.add(1)
    stage.claim()
    stage.release()
    stage.runs.loses_answer_of = "finish"
    with pytest.raises(Unavailable):
        stage.slots.turn()
    stage.slots.turn()
    assert stage.runs.states() == {1: "succeeded"}
    assert stage.slots.is_idle
    assert len(stage.runs.rejected) == 1


def test_a_claim_whose_answer_was_lost_is_given_back_and_runs_after_all(stage: Stage) -> None:
    stage.begin(1)
    stage.runs.add(2)
    stage.runs.loses_answer_of = "claim"
    with pytest.raises(Unavailable):
        stage.claim()
    assert stage.runs.states() == {1: "running", 2: "running"}
    assert stage.begun == [1]
    stage.claim()
    until(lambda: stage.begun == [1, 2], "claimed once more, under a new fence")
    stage.release()
    stage.slots.turn()
    assert stage.runs.states() == {1: "succeeded", 2: "succeeded"}
    assert stage.begun == [1, 2], "neither ran twice"


def test_a_worker_that_is_leaving_gives_back_what_it_never_heard_of(stage: Stage) -> None:
    stage.runs.add(1)
    stage.runs.loses_answer_of = "claim"
    with pytest.raises(Unavailable):
        stage.claim()
    assert stage.slots.has_unanswered_claim
    stage.slots.drain()
    stage.slots.turn()
    assert not stage.slots.has_unanswered_claim
    assert stage.runs.states() == {1: "waiting"}


def test_a_time_out_ends_the_run_whatever_its_job_does(stage: Stage) -> None:
    stage.runs.remaining_s = 0.02
    stage.heeds = False
    stage.runs.add(1, timeout=2.0)
    stage.claim()
    until(lambda: stage.begun, "it runs")
    until(lambda: next(iter(stage.slots._attempts)).context.is_overdue, "its time is up")
    stage.runs.remaining_s = None
    stage.runs.add(2)
    stage.claim()
    assert stage.runs.states() == {1: "timed_out", 2: "running"}
    assert stage.runs.rows[1].reason == "timed out after 2 s"
    assert stage.runs.offers[-1].limit == 2, "a stuck thread takes no slot"
    assert JOB_SLOTS.labels("stuck")._value.get() == 1
    stage.release()
    until(stage.is_over, "its thread has ended, too")
    stage.slots.turn()
    assert stage.runs.states() == {1: "timed_out", 2: "succeeded"}
    assert stage.runs.rejected == []


def test_with_as_many_stuck_threads_as_slots_nothing_is_claimed_until_one_ends(
    stage: Stage, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    stage.heeds = False
    stage.runs.remaining_s = 0.0
    stage.runs.add(1)
    stage.runs.add(2)
    stage.claim()
    stage.slots.turn()
    assert stage.runs.states() == {1: "timed_out", 2: "timed_out"}
    stage.runs.add(3)
    for _ in range(3):
        stage.claim()
    assert stage.runs.states()[3] == "waiting"
    # To the terminal, or to Python's logging where another test has set that up.
    said = caplog.text + "".join(capsys.readouterr())
    assert said.count("ignored their time-out") == 1
    stage.go_on.set()
    until(stage.is_over, "the stuck threads have ended")
    stage.claim()
    assert stage.runs.states()[3] == "running"


def test_a_job_is_told_when_its_run_was_taken_away_and_its_end_is_not_heard(stage: Stage) -> None:
    stage.runs.add(1)
    stage.claim()
    until(lambda: stage.begun, "it runs")
    stage.runs.take_away(1)
    stage.slots.notified()
    stage.slots.turn()
    until(lambda: stage.told_to_stop, "it is told")
    until(stage.is_over, "it heeds it")
    stage.slots.turn()
    assert stage.runs.asked["finish"] == 0
    assert stage.runs.states() == {1: "cancelled"}


def begin_two(stage: Stage) -> None:
    for run_id in (1, 2):
        stage.runs.add(run_id)
    stage.claim()
    until(lambda: len(stage.begun) == 2, "both run")


def test_with_its_session_gone_what_runs_goes_on_under_the_next_one(stage: Stage) -> None:
    begin_two(stage)
    stage.session = None
    stage.slots.turn()
    assert stage.runs.asked["take_over"] == 0, "there is no next one yet"
    stage.session = new_session()
    stage.slots.turn()
    assert {row.worker_id for row in stage.runs.rows.values()} == {stage.session}
    stage.release()
    stage.slots.turn()
    assert stage.runs.states() == {1: "succeeded", 2: "succeeded"}
    assert stage.told_to_stop == []
    stage.runs.add(3)
    stage.claim()
    assert stage.runs.offers[-1].worker_id == stage.session


def test_a_claim_that_is_answered_after_its_session_is_gone_begins_nothing(stage: Stage) -> None:
    stage.runs.add(1)
    claim = stage.runs.claim

    def slow(offer: Offer) -> Granted:
        granted = claim(offer)
        stage.session = None
        return granted

    stage.runs.claim = slow  # type: ignore[method-assign] # what happens meanwhile is the point
    stage.claim()
    assert stage.begun == []
    stage.claim()
    assert stage.runs.asked["claim"] == 1, "nor is anything claimed under it again"


def test_what_is_granted_while_a_drain_begins_goes_back_as_it_was(stage: Stage) -> None:
    stage.runs.add(1)
    claim = stage.runs.claim

    def slow(offer: Offer) -> Granted:
        granted = claim(offer)
        stage.slots.drain()
        return granted

    stage.runs.claim = slow  # type: ignore[method-assign] # what happens meanwhile is the point
    stage.claim()
    stage.slots.turn()
    assert stage.begun == []
    assert stage.runs.states() == {1: "waiting"}
