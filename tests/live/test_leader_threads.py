"""The threads of the elected beat, by the real clock: how often they work, whatever fails, and that they end."""

from __future__ import annotations

from threading import Event
from typing import cast

import pytest

from feedq.control import leader_threads
from feedq.control.leader_threads import LandedKeeper
from feedq.control.store.landed_counts import LandedCounts
from feedq.errors import Unavailable


class Counted:
    """Counts how often it is asked; the database is away at first."""

    def __init__(self) -> None:
        self.asked = 0
        self.again = Event()

    def count(self) -> float:
        self.asked += 1
        if self.asked == 1:
            raise Unavailable("control database: away")
        if self.asked == 3:
            self.again.set()
        return 0.0


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_threads, "LANDED_LOOK_S", 0.001)
    monkeypatch.setattr(leader_threads, "LANDED_AFTER_S", 0.001)


def test_the_elected_beat_counts_again_and_again_whatever_fails() -> None:
    counted = Counted()
    thread = LandedKeeper(lambda: cast(LandedCounts, counted), lambda: True)
    thread.start()
    assert counted.again.wait(30)
    thread.stop()
    assert not thread.is_alive()


def test_a_beat_that_was_not_elected_counts_nothing() -> None:
    counted, looked = Counted(), Event()

    def leads() -> bool:
        looked.set()
        return False

    thread = LandedKeeper(lambda: cast(LandedCounts, counted), leads)
    thread.start()
    assert looked.wait(30)
    thread.stop()
    assert counted.asked == 0
