"""Who is told to stop, and when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from feedq.runtime import running_feeds
from feedq.runtime.interrupt import Interrupt
from feedq.runtime.running_feeds import SHOW_TICKS, SHOWN_MAX, STOP_TOGETHER, RunningFeeds


class Told:
    """Stands for a runner: notes that it was told to stop."""

    def __init__(self, feed_id: int, told: list[int]) -> None:
        self.key = (feed_id, 1)
        self.feed = SimpleNamespace(id=feed_id, name=f"f{feed_id}")
        self._told = told

    def interrupt(self, why: Interrupt) -> None:
        assert why is Interrupt.STOP
        self._told.append(self.key[0])


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, which take no time."""
    taken: list[float] = []
    sleep = asyncio.sleep

    async def pause(delay_s: float) -> None:
        taken.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return taken


def full(feeds: int, told: list[int]) -> RunningFeeds:
    made = RunningFeeds(asyncio.get_running_loop())
    for feed_id in range(feeds):
        runner: Any = Told(feed_id, told)
        nobody: Any = None
        made.add(runner, nobody)
    return made


@pytest.mark.parametrize("feeds", [0, 1, STOP_TOGETHER, STOP_TOGETHER + 1, 7 * STOP_TOGETHER])
async def test_everybody_is_told_once_some_at_a_time(pauses: list[float], feeds: int) -> None:
    told: list[int] = []
    await full(feeds, told).stop_all(within_s=60.0)
    assert told == list(range(feeds))
    assert len(pauses) == max(0, (feeds - 1) // STOP_TOGETHER)


async def test_the_first_are_told_before_the_first_pause(pauses: list[float]) -> None:
    told: list[int] = []
    stopping = full(3 * STOP_TOGETHER, told).stop_all(within_s=60.0)
    stopping.send(None)
    assert told == list(range(STOP_TOGETHER))
    stopping.close()


@pytest.mark.parametrize("within_s", [0.0, 0.3, 1e9])
async def test_the_pauses_take_no_more_than_the_time_that_there_is(
    pauses: list[float], within_s: float
) -> None:
    told: list[int] = []
    await full(10_000, told).stop_all(within_s=within_s)
    assert len(told) == 10_000
    assert sum(pauses) <= min(within_s, 10_000 / STOP_TOGETHER * running_feeds.STOP_PAUSE_S)


class Shown:
    """Stands for the audience of a tenure: counts how often it was shown."""

    def __init__(self) -> None:
        self.times = 0

    def progress(self, _: str) -> None:
        self.times += 1


@pytest.mark.parametrize("feeds", [1, 200, 3 * SHOWN_MAX * SHOW_TICKS])
async def test_every_feed_shows_itself_in_turn_and_never_many_at_once(feeds: int) -> None:
    made = RunningFeeds(asyncio.get_running_loop())
    audiences = [Shown() for _ in range(feeds)]
    for feed_id, audience in enumerate(audiences):
        runner: Any = Told(feed_id, [])
        runner.status = lambda _: "streaming"
        its_audience: Any = audience
        made.add(runner, its_audience)
    rounds = max(SHOW_TICKS, feeds // SHOWN_MAX)
    shown_before = 0
    for tick in range(rounds):
        made.show(tick, owner=None)
        shown = sum(audience.times for audience in audiences)
        assert shown - shown_before <= SHOWN_MAX
        shown_before = shown
    assert {audience.times for audience in audiences} == {1}
