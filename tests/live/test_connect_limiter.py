"""The pace of connecting, on an event loop whose time passes only while everybody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.clock import SystemClock
from feedq.core.limits import CONNECT_BURST_S, CONNECT_FIRST_S
from feedq.worker.pacing import HOSTS_KEPT, ConnectLimiter

HOUR_S = 3_600.0
FAILOVER_S = 2.0


class SkippingSelector(selectors.DefaultSelector):
    """Waits for nothing: the time that it was to wait has passed at once."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class SkippingClock(SystemClock):
    """The time of such a selector."""

    def __init__(self, selector: SkippingSelector) -> None:
        self.selector = selector

    def monotonic(self) -> float:
        return self.selector.now

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new loop that goes by it."""
        made = asyncio.SelectorEventLoop(self.selector)
        made.time = self.monotonic  # type: ignore[method-assign]
        return made


class Stage:
    """The limiter of one worker, and the feeds that wait for it."""

    def __init__(
        self,
        worker: float = 0.0,
        hosts: dict[str, float] | None = None,
        *,
        workers: int = 1,
        seed: int = 1,
        burst_s: float = 0.0,
    ) -> None:
        self.clock = SkippingClock(SkippingSelector())
        self.loop = self.clock.loop()
        self.limiter = ConnectLimiter(
            worker, hosts or {}, self.clock, failover_burst_s=burst_s, rng=Random(seed)
        )
        self.limiter.share(workers)
        self.went: list[tuple[float, str | None]] = []

    @property
    def now(self) -> float:
        return self.clock.selector.now

    async def _connect(self, host: str | None, after_loss: bool) -> None:
        await self.limiter.turn(host, after_loss=after_loss)
        self.went.append((self.now, host))

    def join(self, host: str | None, count: int = 1, *, after_loss: bool = False) -> list[asyncio.Task[None]]:
        tasks = [self.loop.create_task(self._connect(host, after_loss)) for _ in range(count)]
        self._settle()
        return tasks

    def leave(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._settle()

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))  # takes none: see SkippingSelector

    def stand_still(self, seconds: float) -> None:
        """As a process that was stopped: nobody looks in the meantime."""
        self.clock.selector.now += seconds
        self._settle()

    def _settle(self) -> None:
        """Let everybody go on who can without any time passing."""
        before = -1
        while before != (before := len(self.went) + self.limiter.waiting):
            for _ in range(5):
                self.loop.run_until_complete(asyncio.sleep(0))

    def times(self, host: str | None) -> list[float]:
        return [at for at, whose in self.went if whose == host]


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(*rates: object, **how: object) -> Stage:
        made.append(Stage(*rates, **how))  # type: ignore[arg-type]  # as the class has them
        return made[-1]

    yield make
    for one in made:
        close(one)


def close(stage: Stage) -> None:
    for task in asyncio.all_tasks(stage.loop):
        task.cancel()
    stage.loop.run_until_complete(asyncio.sleep(0))
    stage.loop.close()


Make = Callable[..., Stage]


def most_in(times: list[float], window_s: float) -> int:
    """The largest number of moments in any window."""
    times = sorted(times)
    return max(sum(1 for at in times[i:] if at < start + window_s) for i, start in enumerate(times))


# -- the rate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 40.0, 200.0])
def test_a_cold_start_keeps_to_the_rate_of_the_host_in_every_window(rate: float, stage: Make) -> None:
    made = stage(0, {"a": rate})
    made.join("a", 300)
    made.wait(300 / rate)
    assert len(made.went) == 300, "and is not slower than it says"
    for window_s in (1 / rate, 1.0, 10 / rate):
        assert most_in(made.times("a"), window_s) <= rate * window_s + max(1, rate * CONNECT_BURST_S) + 2


def test_every_host_that_is_not_named_has_a_rate_of_its_own(stage: Make) -> None:
    made = stage(0, {"Named.Example": 4, "[::1]": 4, "free": 0, "*": 1})
    for host, at_once in (("named.example", 1), ("::1", 1), ("b", 1), ("c", 1), ("free", 50)):
        made.join(host, 50)
        assert len(made.times(host)) == at_once
    made.wait(10)
    assert len(made.times("named.example")) in (40, 41, 42)
    assert len(made.times("b")) in (10, 11, 12)


# -- a fleet -------------------------------------------------------------------------------------------


def test_the_workers_of_a_fleet_keep_to_the_rate_together_from_the_first_moment(stage: Make) -> None:
    fleet = [stage(0, {"a": 40}, workers=100, seed=n) for n in range(100)]
    for made in fleet:
        made.join("a", 5)
        made.wait(20)
    times = [at for made in fleet for at in made.times("a")]
    assert len(times) == 500
    at_once = sum(at == 1_000.0 for at in times)
    assert 25 <= at_once <= 55, f"{at_once} of 100 workers connect at once, where a second's worth is 40"
    for window_s in (0.1, 1.0, 5.0):
        assert most_in(times, window_s) <= 1.25 * 40 * (window_s + CONNECT_FIRST_S)


def test_a_worker_whose_feeds_come_alone_again_and_again_keeps_to_its_part_of_the_rate(stage: Make) -> None:
    # Each comes when the one before it is through: whoever comes finds nobody waiting.
    made = stage(0, {"a": 200}, workers=100)
    for _ in range(100):
        made.join("a")
        while made.limiter.waiting:
            made.wait(0.05)
    assert len(made.went) <= 2 * (made.now - 1_000) + 2, "a hundredth of 200 a second"


# -- a failover ----------------------------------------------------------------------------------------


def test_feeds_of_a_lost_worker_overtake_all_and_others_wait_until_that_is_made_up_for(stage: Make) -> None:
    made = stage(0, {"a": 100}, burst_s=FAILOVER_S)
    waiting = made.join("a", 200)
    went = len(made.went)
    lost = made.join("a", 150, after_loss=True)
    assert all(task.done() for task in lost)
    assert len(made.went) == went + 150
    made.wait(150 / 100 - CONNECT_BURST_S - 0.05)
    assert len(made.went) == went + 150, "what was taken ahead is not made up for"
    made.wait(HOUR_S)
    assert all(task.done() for task in waiting)


@pytest.mark.parametrize("rate", [1.0, 200.0])
@pytest.mark.parametrize("workers", [1, 3])
def test_however_many_are_lost_a_host_sees_no_more_than_the_burst_on_top_of_its_rate(
    rate: float, workers: int, stage: Make
) -> None:
    fleet = [stage(0, {"a": rate}, workers=workers, seed=n, burst_s=FAILOVER_S) for n in range(workers)]
    for made in fleet:
        for _ in range(3):
            made.join("a", 100, after_loss=True)
            made.join("a", 10)
            made.wait(3.0)
        made.wait(500 / rate * workers)
    times = [at for made in fleet for at in made.times("a")]
    assert len(times) == workers * 330
    for window_s in (0.1, 1.0, 5.0, 20.0):
        most = rate * (window_s + FAILOVER_S + CONNECT_BURST_S) + workers * 3
        assert most_in(times, window_s) <= most


# -- who goes first, and who leaves --------------------------------------------------------------------


def test_a_calm_host_does_not_wait_behind_thousands_of_feeds_of_a_busy_one(stage: Make) -> None:
    made = stage(500, {"*": 40})
    made.join("busy", 2_000)
    made.wait(3)
    asked_at = made.now
    made.join("calm")
    assert made.times("calm") == [asked_at]


@given(st.lists(st.tuples(st.sampled_from("jlwsp"), st.integers(0, 5), st.integers(1, 20)), max_size=30))
def test_whatever_happens_all_who_stay_get_through_and_nobody_else(steps: list[tuple[str, int, int]]) -> None:
    made = Stage(30, {"0": 3, "1": 50, "*": 20})
    here: list[asyncio.Task[None]] = []
    joined = left = 0
    for kind, where, amount in steps:
        if kind == "j":
            here += made.join(None if where == 5 else str(where), amount)
            joined += amount
        elif kind == "l" and here:
            task = here.pop((where * 7 + amount) % len(here))
            left += not task.done()
            made.leave(task)
        elif kind == "w":
            made.wait(amount / 100)
        elif kind == "s":
            made.limiter.share(amount)
        elif kind == "p":
            made.stand_still(amount)
        assert made.limiter.waiting + len(made.went) + left == joined
    made.wait(HOUR_S)
    assert len(made.went) == joined - left
    close(made)


# -- what is remembered, and counted -------------------------------------------------------------------


def test_hosts_that_nobody_dials_any_more_are_forgotten_but_not_before_their_slot_is_over(
    stage: Make,
) -> None:
    made = stage(0, {"a": 0.0001, "*": 10})
    made.join("a")
    for n in range(20 * HOSTS_KEPT):
        made.join(f"host-{n}")
        made.wait(0.1)
    assert len(made.limiter._hosts) <= 2 * HOSTS_KEPT
    made.join("a")
    assert len(made.times("a")) == 1
