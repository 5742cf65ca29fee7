"""The ticker, and how often it looks. Ticked by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from feedq.core.schedule.model import Fired
from feedq.worker.jobs import ticker as module
from feedq.worker.jobs.ticker import POLL_MAX_S, STAGGER_S, Peers, Ticker
from tests.unit.job_runs import MemoryRuns
from tests.waiting import until


class Stage:
    """A ticker over runs in memory."""

    def __init__(self) -> None:
        self.runs = MemoryRuns()
        self.told = 0
        self.ticker = Ticker(self.runs, tell_us=self.tell, retention_days=30, rng=Random(1))

    def fire_due(self) -> float:
        """Fire what is due, do what else is due, and return for how long to sleep."""
        self.ticker.firing.wake()
        until(lambda: self.ticker.firing.pause_s() == 0, "somebody woke it")
        for duty in self.ticker.duties:
            duty.attend()
        return self.ticker.firing.pause_s()

    def tell(self) -> None:
        self.told += 1


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_our_slots_are_told_of_what_was_fired_and_the_fleet_is_counted_first(stage: Stage) -> None:
    stage.runs.fleet = (2, 12)
    stage.runs.fires = [Fired(3, False, None), Fired(0, False, None)]
    stage.fire_due()
    assert (stage.ticker.peers.workers, stage.ticker.peers.slots, stage.told) == (2, 12, 1)
    stage.fire_due()
    assert stage.told == 1, "nothing was fired"
    stage.runs.fleet = (0, 0)
    stage.ticker._count_workers()
    assert stage.ticker.peers.workers == 1


def test_while_there_is_more_it_goes_on_firing_and_the_other_duties_have_their_turn(stage: Stage) -> None:
    stage.runs.fires = [Fired(1, True, None) for _ in range(1_000)]
    assert stage.fire_due() == 0
    assert stage.runs.asked["fire_due"] == stage.runs.asked["expire"] == 1


def test_it_looks_again_when_the_next_tick_falls_due(stage: Stage) -> None:
    stage.runs.next_in_s = 0.2
    assert 0.1 < stage.fire_due() <= 0.2 + STAGGER_S
    stage.runs.next_in_s = None
    assert stage.fire_due() > 0.3


def test_with_nothing_to_look_for_it_looks_seldom_until_there_is(stage: Stage) -> None:
    stage.runs.fires = [Fired(0, False, None, is_idle=True)]
    assert module.IDLE_POLL_S * 0.75 <= stage.fire_due() + STAGGER_S <= module.IDLE_POLL_S
    assert stage.ticker.peers.poll_s == module.IDLE_POLL_S, "and so do the slots"
    stage.runs.fires = [Fired(0, False, None)]
    assert stage.fire_due() <= module.POLL_S


def test_the_duties_are_done_at_intervals_and_not_with_each_look(stage: Stage) -> None:
    for _ in range(20):
        stage.fire_due()
    assert stage.runs.asked["fire_due"] == 20
    assert stage.runs.asked["workers"] == stage.runs.asked["expire"] == 1
    assert stage.runs.asked["trim"] == 0


def test_an_outage_is_told_once_and_ends_nothing(stage: Stage) -> None:
    stage.runs.is_away = True
    with capture_logs() as logs:
        for _ in range(3):
            stage.ticker.firing.attend()
            until(lambda: stage.ticker.firing.pause_s() == 0, "it is tried again")
    assert (stage.runs.asked["fire_due"], len(logs)) == (3, 1)
    stage.runs.is_away = False
    stage.runs.fires = [Fired(1, False, None)]
    stage.ticker.firing.attend()
    assert stage.told == 1


# -- pace --------------------------------------------------------------------------------------------


@given(st.integers(1, 5_000), st.one_of(st.none(), st.floats(0, 1e6)), st.integers(0, 2**32))
def test_a_look_is_never_far_away_and_the_looks_of_all_are_few(
    workers: int, next_in_s: float | None, seed: int
) -> None:
    pace = Peers(workers=workers)
    assert 0.5 <= pace.poll_s <= POLL_MAX_S
    assert workers / pace.poll_s <= max(50.001, workers / POLL_MAX_S)
    pause_s = pace.next_scan_s(next_in_s, rng=Random(seed))
    assert 0 <= pause_s <= pace.poll_s
