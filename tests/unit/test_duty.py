"""Duties of a thread: when each is due, whoever wakes it and however it ends."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from feedq.errors import Unavailable
from feedq.worker import duty as module
from feedq.worker.duty import RETRY_S, Duty


class Stage:
    """A duty, its clock, and what is to happen when it is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.done = 1000.0, 0
        self.error: Exception | None = None
        self.is_woken_meanwhile = False
        self.duty = Duty("test", self.do, woken_s=0.1)
        monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def do(self) -> float:
        self.done += 1
        if self.is_woken_meanwhile:
            self.duty.wake()
        if self.error is not None:
            raise self.error
        return 5.0


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_it_is_done_when_it_is_due_and_no_sooner(stage: Stage) -> None:
    stage.duty.attend()
    stage.now += 4.9
    stage.duty.attend()
    assert stage.done == 1
    assert stage.duty.pause_s() == pytest.approx(0.1)
    stage.now += 0.2
    stage.duty.attend()
    assert stage.done == 2


def test_who_wakes_it_has_it_done_sooner_but_not_too_often(stage: Stage) -> None:
    stage.duty.attend()
    stage.duty.wake()
    stage.duty.attend()
    assert stage.done == 1
    assert stage.duty.pause_s() == pytest.approx(0.1)
    stage.now += 0.2
    stage.duty.attend()
    assert (stage.done, stage.duty.pause_s()) == (2, 5.0)


def test_who_wakes_it_while_it_is_done_has_it_done_again(stage: Stage) -> None:
    stage.is_woken_meanwhile = True
    stage.duty.attend()
    assert stage.duty.pause_s() == pytest.approx(0.1)


@pytest.mark.parametrize("error", [Unavailable("for the test"), ValueError("for the test")])
def test_one_that_fails_is_tried_again_after_a_pause_whoever_wakes_it(stage: Stage, error: Exception) -> None:
    stage.error = error
    with capture_logs() as logs:
        stage.duty.attend()
        stage.duty.wake()
        assert stage.duty.pause_s() == RETRY_S
        stage.now += RETRY_S
        stage.duty.attend()
    assert stage.done == 2
    assert len(logs) == (1 if isinstance(error, Unavailable) else 2), "an outage is told of once"
    stage.error = None
    stage.now += RETRY_S
    stage.duty.attend()
    assert stage.duty.pause_s() == 5.0
