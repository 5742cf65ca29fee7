"""The pace of connecting: turns on a time that is moved by hand, and waiting for them on event loops."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.clock import SystemClock
from feedq.core.limits import CONNECT_BURST_S, CONNECT_FIRST_S, RateLimiter
from feedq.settings import Settings
from feedq.telemetry.metrics import REGISTRY
from feedq.worker.connect_limiter import HOSTS_KEPT, ConnectLimiter, ConnectTurns, Waiter

LIMIT_S = 10.0
HOUR_S = 3_600.0
LARGEST = 1_000_000.0
SMALLEST = 5e-324


class Stage:
    """The turns of one worker. Time goes where it is sent, by way of each moment at which somebody may connect."""

    def __init__(
        self,
        worker: float = 0.0,
        hosts: dict[str, float] | None = None,
        *,
        workers: int = 1,
        seed: int = 1,
        burst_s: float = 0.0,
    ) -> None:
        self.turns = ConnectTurns[Waiter](worker, hosts or {}, failover_burst_s=burst_s, rng=Random(seed))
        self.now = 1_000.0
        self.turns.share(workers, now=self.now)
        self.went: list[tuple[float, str | None]] = []

    def join(self, host: str | None, count: int = 1, *, after_loss: bool = False) -> list[Waiter]:
        waiters = [Waiter(host, after_loss=after_loss) for _ in range(count)]
        for waiter in waiters:
            self.turns.join(waiter, now=self.now)
            self._go()
        return waiters

    def leave(self, waiter: Waiter) -> None:
        self.turns.leave(waiter, now=self.now)
        self._go()

    def share(self, workers: int) -> None:
        self.turns.share(workers, now=self.now)
        self._go()

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (upcoming := self.turns.next()) is not None and upcoming[0] <= end:
            self.now = max(self.now, upcoming[0])
            self._go()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """As a process that was stopped: nobody looks in the meantime."""
        self.now += seconds
        self._go()

    def _go(self) -> None:
        self.went += [(self.now, waiter.host) for waiter in self.turns.let_through(self.now)]

    def times(self, host: str | None) -> list[float]:
        return [at for at, whose in self.went if whose == host]


def most_in(times: list[float], window_s: float) -> int:
    """The largest number of moments in any window."""
    times = sorted(times)
    return max(sum(1 for at in times[i:] if at < start + window_s) for i, start in enumerate(times))


# -- the rate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [SMALLEST, 1e-9, 0.01, 1.0, 200.0, LARGEST])
def test_one_feed_alone_never_waits(rate: float) -> None:
    stage = Stage(rate, {"a": rate})
    stage.join("a")
    assert len(stage.went) == 1


def test_without_rates_nobody_waits() -> None:
    stage = Stage(0, {"*": 0})
    stage.join("a", 10_000)
    assert len(stage.went) == 10_000


def test_the_largest_rates_are_as_good_as_none() -> None:
    stage = Stage(LARGEST, {"*": LARGEST})
    stage.join("a", 10_000)
    stage.wait(0.01)
    assert len(stage.went) == 10_000


def test_the_smallest_rate_lets_one_through_and_then_nobody_for_years() -> None:
    stage = Stage(0, {"a": SMALLEST})
    stage.join("a", 3)
    stage.wait(1e8)
    assert len(stage.went) == 1


@pytest.mark.parametrize("rate", [0.5, 4.0, 40.0, 200.0])
def test_a_cold_start_keeps_to_the_rate_of_the_host_in_every_window(rate: float) -> None:
    stage = Stage(0, {"a": rate})
    stage.join("a", 500)
    stage.wait(500 / rate)
    assert len(stage.went) == 500, "and is not slower than it says"
    for window_s in (1 / rate, 1.0, 10 / rate):
        assert most_in(stage.times("a"), window_s) <= rate * window_s + max(1, rate * CONNECT_BURST_S) + 2


# -- a failover ----------------------------------------------------------------------------------------

FAILOVER_S = 2.0


def test_feeds_of_a_lost_worker_connect_at_once_and_others_wait_until_that_is_made_up_for() -> None:
    stage = Stage(0, {"a": 100}, burst_s=FAILOVER_S)
    stage.join("a", 150, after_loss=True)
    assert len(stage.went) == 150
    stage.join("a", 10)
    assert len(stage.went) == 150
    stage.wait(150 / 100 - CONNECT_BURST_S - 0.05)
    assert len(stage.went) == 150, "what was taken ahead is not made up for"
    stage.wait(0.3)
    assert len(stage.went) == 160


def test_those_who_wait_already_are_overtaken_by_a_failover() -> None:
    stage = Stage(0, {"a": 100}, burst_s=FAILOVER_S)
    stage.join("a", 1_000)
    went = len(stage.went)
    lost = stage.join("a", 50, after_loss=True)
    assert not any(waiter.is_waiting for waiter in lost)
    assert len(stage.went) == went + 50


@pytest.mark.parametrize("rate", [1.0, 40.0, 200.0])
@pytest.mark.parametrize("workers", [1, 3])
def test_however_many_are_lost_a_host_sees_no_more_than_the_burst_on_top_of_its_rate(
    rate: float, workers: int
) -> None:
    fleet = [Stage(0, {"a": rate}, workers=workers, seed=n, burst_s=FAILOVER_S) for n in range(workers)]
    for stage in fleet:
        for _ in range(3):
            stage.join("a", 200, after_loss=True)
            stage.join("a", 20)
            stage.wait(3.0)
        stage.wait(1_000 / rate * workers)
    times = [at for stage in fleet for at in stage.times("a")]
    assert len(times) == workers * 660
    for window_s in (0.1, 1.0, 5.0, 20.0):
        most = rate * (window_s + FAILOVER_S + CONNECT_BURST_S) + workers * 3
        assert most_in(times, window_s) <= most


def test_without_a_failover_the_burst_changes_nothing() -> None:
    with_it, without = (Stage(50, {"a": 40}, burst_s=burst_s) for burst_s in (FAILOVER_S, 0.0))
    for stage in (with_it, without):
        stage.join("a", 300)
        stage.wait(10)
    assert with_it.went == without.went


def test_the_workers_own_pace_may_be_taken_ahead_too_and_so_far_only() -> None:
    stage = Stage(10, burst_s=FAILOVER_S)
    for n in range(100):
        stage.join(f"host{n}", after_loss=True)
    assert len(stage.went) == pytest.approx(10 * (FAILOVER_S + CONNECT_BURST_S), abs=2)
    stage.wait(1.0)
    assert len(stage.went) == pytest.approx(10 * (1 + FAILOVER_S + CONNECT_BURST_S), abs=3)


@pytest.mark.parametrize("burst_s", [0.0, 3_600.0])
def test_no_burst_and_the_largest(burst_s: float) -> None:
    stage = Stage(0, {"a": 1}, burst_s=burst_s)
    stage.join("a", 1_000, after_loss=True)
    assert len(stage.went) == (1_000 if burst_s else 1)


def test_who_takes_its_turn_back_after_a_loss_leaves_it_to_the_next() -> None:
    stage = Stage(0, {"a": 1}, burst_s=FAILOVER_S)
    lost = stage.join("a", 10, after_loss=True)
    went = len(stage.went)
    stage.leave(next(waiter for waiter in lost if not waiter.is_waiting))
    assert len(stage.went) == went + 1


def test_each_connects_at_a_random_moment_of_its_slot() -> None:
    stage = Stage(0, {"a": 10})
    stage.join("a", 400)
    stage.wait(40)
    moments = [at * 10 % 1 for at in stage.times("a")[10:]]
    for tenth in range(10):
        found = sum(tenth <= moment * 10 < tenth + 1 for moment in moments)
        assert 15 < found < 65, "evenly, 39 of a tenth of the slot each"


def test_the_workers_of_a_fleet_keep_to_the_rate_together_from_the_first_moment() -> None:
    fleet = [Stage(0, {"a": 40}, workers=100, seed=n) for n in range(100)]
    for stage in fleet:
        stage.join("a", 5)
        stage.wait(20)
    times = [at for stage in fleet for at in stage.times("a")]
    assert len(times) == 500
    at_once = sum(at == 1_000.0 for at in times)
    assert 25 <= at_once <= 55, f"{at_once} of 100 workers connect at once, where a second's worth is 40"
    for window_s in (0.1, 1.0, 5.0):
        assert most_in(times, window_s) <= 1.25 * 40 * (window_s + CONNECT_FIRST_S)


@pytest.mark.parametrize("workers", [1, 3, 50, 51, 100, 200])
def test_in_a_fleet_of_no_more_workers_than_the_rate_is_a_second_a_feed_alone_never_waits(
    workers: int,
) -> None:
    for seed in range(20):
        stage = Stage(0, {"a": 200}, workers=workers, seed=seed)
        for _ in range(3):
            asked_at = stage.now
            stage.join("a")
            assert stage.times("a")[-1] == asked_at
            stage.wait(2 * workers / 200)


def test_a_larger_fleet_lets_a_second_s_worth_of_first_ones_through_at_once() -> None:
    at_once = 0
    for seed in range(1_000):
        stage = Stage(0, {"a": 200}, workers=1_000, seed=seed)
        stage.join("a")
        at_once += len(stage.went)
    assert 150 <= at_once <= 250


def test_a_worker_whose_feeds_come_alone_again_and_again_keeps_to_its_part_of_the_rate() -> None:
    # Each comes when the one before it is through: whoever comes finds nobody waiting.
    stage = Stage(0, {"a": 200}, workers=100)
    for _ in range(400):
        stage.join("a")
        while stage.turns.waiting:
            stage.wait(0.05)
    took_s = stage.now - 1_000
    assert len(stage.went) <= 2 * took_s + 2, "a hundredth of 200 a second"


def test_what_was_not_used_for_a_while_is_not_saved_up() -> None:
    stage = Stage(0, {"a": 40})
    stage.join("a")
    stage.wait(HOUR_S)
    stage.join("a", 100)
    assert len(stage.times("a")) == 1 + 40 * CONNECT_BURST_S


def test_a_process_that_stood_still_does_not_make_up_for_it() -> None:
    stage = Stage(200, {"a": 40})
    stage.join("a", 1_000)
    stage.wait(1)
    before = len(stage.went)
    stage.stand_still(HOUR_S)
    assert len(stage.went) - before <= 40 * CONNECT_BURST_S + 1


# -- who goes first ------------------------------------------------------------------------------------


def test_feeds_of_one_host_go_in_the_order_in_which_they_came() -> None:
    stage = Stage(0, {"a": 1})
    waiters = stage.join("a", 20)
    for n in range(1, 20):
        stage.wait(2)
        gone = [not waiter.is_waiting for waiter in waiters]
        assert gone == sorted(gone, reverse=True), f"after {n} steps"
    stage.wait(40)
    assert not any(waiter.is_waiting for waiter in waiters)


def test_a_calm_host_does_not_wait_behind_five_thousand_feeds_of_a_busy_one() -> None:
    stage = Stage(500, {"*": 40})
    stage.join("busy", 5_000)
    stage.wait(3)
    asked_at = stage.now
    stage.join("calm")
    assert stage.times("calm") == [asked_at]


def test_nor_does_it_where_the_worker_s_own_pace_is_what_is_short() -> None:
    stage = Stage(10, {})
    stage.join("busy", 5_000)
    stage.wait(3)
    asked_at = stage.now
    stage.join("calm")
    stage.wait(1)
    assert stage.times("calm")[0] - asked_at <= 3 / 10, "it has every other turn"


def test_a_host_s_rate_holds_although_others_were_in_the_way_before() -> None:
    # All of its turns come due while the worker is busy with others: they must not go all at once afterwards.
    stage = Stage(500, {"a": 20})
    for n in range(100):
        stage.join(f"other-{n}", 50)
    stage.join("a", 400)
    stage.wait(60)
    assert len(stage.times("a")) == 400
    assert most_in(stage.times("a"), 1.0) <= 1.5 * 20
    assert most_in([at for at, _ in stage.went], 1.0) <= 1.25 * 500 + 2


def test_feeds_that_dial_nothing_keep_to_the_pace_of_the_worker_alone() -> None:
    stage = Stage(10, {"*": SMALLEST})
    stage.join(None, 100)
    stage.wait(10)
    assert len(stage.times(None)) == 100


def test_every_host_that_is_not_named_has_a_rate_of_its_own() -> None:
    stage = Stage(0, {"Named.Example": 4, "[::1]": 4, "free": 0, "*": 1})
    for host, at_once in (("named.example", 1), ("::1", 1), ("b", 1), ("c", 1), ("free", 50)):
        stage.join(host, 50)
        assert len(stage.times(host)) == at_once
    stage.wait(10)
    assert len(stage.times("named.example")) in (40, 41, 42)
    assert len(stage.times("b")) in (10, 11, 12)


# -- who leaves, and what changes ----------------------------------------------------------------------


def test_who_leaves_the_line_costs_those_behind_nothing() -> None:
    stage = Stage(0, {"a": 1})
    first, *others, last = stage.join("a", 1_000)
    assert not first.is_waiting
    for waiter in others:
        stage.leave(waiter)
    stage.wait(2)
    assert not last.is_waiting
    assert stage.turns.waiting == 0
    assert stage.turns.next() is None


def test_who_was_let_through_and_stops_just_then_gives_the_turn_back() -> None:
    for seed in range(20):
        stage = Stage(1, {"a": 1}, seed=seed)
        first, second = stage.join("a", 2)
        assert second.is_waiting
        stage.leave(first)
        assert not second.is_waiting, "in the slot that the first one did not use"


def test_fewer_workers_make_those_who_wait_already_faster_and_more_make_them_slower() -> None:
    for seed in range(10):
        stage = Stage(0, {"a": 10}, workers=100, seed=seed)
        stage.join("a", 300)
        stage.wait(15)
        assert len(stage.went) <= 4
        stage.share(1)
        stage.wait(2)
        assert 18 <= len(stage.went) <= 27
        stage.share(10)
        stage.wait(10)
        assert 25 <= len(stage.went) <= 40


@given(st.lists(st.tuples(st.sampled_from("jlwsp"), st.integers(0, 5), st.integers(1, 40)), max_size=60))
def test_whatever_happens_all_who_stay_get_through_and_nobody_else(steps: list[tuple[str, int, int]]) -> None:
    stage = Stage(30, {"0": 3, "1": 50, "*": 20})
    here: list[Waiter] = []
    joined = left = 0
    for kind, where, amount in steps:
        if kind == "j":
            here += stage.join(None if where == 5 else str(where), amount)
            joined += amount
        elif kind == "l" and here:
            waiter = here.pop((where * 7 + amount) % len(here))
            left += waiter.is_waiting
            stage.leave(waiter)
        elif kind == "w":
            stage.wait(amount / 100)
        elif kind == "s":
            stage.share(amount)
        elif kind == "p":
            stage.stand_still(amount)
        assert stage.turns.waiting + len(stage.went) + left == joined
        assert stage.turns.waiting == 0 or stage.turns.next() is not None, "somebody waits for nothing"
    stage.wait(HOUR_S)
    assert len(stage.went) == joined - left


def test_hosts_that_nobody_dials_any_more_are_forgotten() -> None:
    stage = Stage(0, {"*": 10})
    for n in range(5_000):
        stage.join(f"host-{n}")
        stage.wait(0.1)
    assert stage.turns.lines <= 2 * HOSTS_KEPT


def test_a_host_is_not_forgotten_before_its_slot_is_over() -> None:
    stage = Stage(0, {"a": 0.001, "*": 10})
    stage.join("a")
    for n in range(2 * HOSTS_KEPT):
        stage.join(f"host-{n}")
        stage.wait(1)
    stage.join("a")
    assert len(stage.times("a")) == 1


def test_a_rested_gate_is_as_good_as_new() -> None:
    for share in (1.0, 0.01):
        gate = RateLimiter(10, share=share, rng=Random(1))
        gate.arrive(100.0)
        gate.let_through(100.0)
        assert not gate.is_rested(100.0)
        assert gate.is_rested(100.0 + 2 / (10 * share) + CONNECT_BURST_S)


# -- on an event loop ----------------------------------------------------------------------------------


def connect_limiter(worker: float = 0.0, hosts: dict[str, float] | None = None) -> ConnectLimiter:
    return ConnectLimiter(worker, hosts or {}, SystemClock(), rng=Random(1))


def sample(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


async def test_those_who_wait_are_woken_at_their_turns() -> None:
    paced = connect_limiter(0, {"a": 100})
    before = sample("feedq_connects_total")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(paced.turn("a") for _ in range(60)))
    assert sample("feedq_connects_total") - before == 60
    assert sample("feedq_connects_waiting") == 0


async def test_who_is_cancelled_lets_the_next_one_through() -> None:
    paced = connect_limiter(0, {"a": 2})
    await paced.turn("a")
    waiting = [asyncio.create_task(paced.turn("a")) for _ in range(1_000)]
    await asyncio.sleep(0)
    assert sample("feedq_connects_waiting") == 1_000
    for task in waiting[:-1]:
        task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await waiting[-1]
    assert sample("feedq_connects_waiting") == 0


async def test_a_new_share_is_heard_by_those_who_wait() -> None:
    paced = connect_limiter(0, {"a": 100})
    paced.share(1_000_000)
    tasks = [asyncio.create_task(paced.turn("a")) for _ in range(10)]
    await asyncio.sleep(0)
    assert not all(task.done() for task in tasks)
    paced.share(0)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)


def test_settings_accept_no_pace_and_the_largest() -> None:
    for rate in (0.0, SMALLEST, LARGEST):
        settings = Settings(connects_per_s=rate, host_connects_per_s={"*": rate, "a": rate})
        made = ConnectLimiter(
            settings.connects_per_s, settings.host_connects_per_s, SystemClock(), rng=Random(1)
        )
        asyncio.run(asyncio.wait_for(made.turn("a"), LIMIT_S))
