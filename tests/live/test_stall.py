"""A loop that stands still is told from a process that gets no processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.worker.activity import LAPSE_MAX_S, LoopSample, Scheduling, StallClock
from tests.cluster import wait_until


def test_a_loop_that_does_not_turn_is_stalled_for_as_long_as_it_could_have() -> None:
    clock = StallClock()
    looks = [clock.observe(LoopSample(at=n / 2, ticks=7)) for n in range(12)]
    assert looks[-1] == pytest.approx(5.5)
    assert clock.observe(LoopSample(at=6.5, ticks=8)) == 0.0


def test_what_it_waited_for_a_processor_does_not_count() -> None:
    clock = StallClock()
    for n in range(100):
        clock.observe(LoopSample(at=n / 2, ticks=7, waited_s=n * 0.4))
    assert clock.stalled_s == pytest.approx(99 * 0.1)


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 3), st.floats(0, 1e4), st.booleans()), max_size=50)
)
def test_it_never_counts_more_than_has_passed(
    steps: list[tuple[float, int, float, bool]],
) -> None:
    clock = StallClock()
    at = waited_s = 0.0
    ticks = 0
    for lapse_s, turned, starved_s, stopped in steps:
        at, ticks, waited_s = at + lapse_s, ticks + turned, waited_s + starved_s
        before = clock.stalled_s
        after = clock.observe(LoopSample(at, ticks, waited_s, stopped))
        assert 0.0 <= after <= before + min(lapse_s, LAPSE_MAX_S) + 1e-9


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_the_kernel_says_that_a_process_is_stopped(busy: subprocess.Popen[bytes]) -> None:
    scheduling = Scheduling(busy.pid)
    assert not scheduling.is_stopped
    os.kill(busy.pid, signal.SIGSTOP)
    wait_until(lambda: scheduling.is_stopped, limit_s=30, what="stopped")


def test_the_kernel_says_how_long_a_process_waited_for_a_processor(busy: subprocess.Popen[bytes]) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        scheduling = Scheduling(busy.pid)
        assert scheduling.waited_s == 0.0, "what was before the first look is not known"
        wait_until(lambda: scheduling.waited_s > 0.2, limit_s=30, what="it waits behind the others")
    finally:
        for other in others:
            other.kill()
            other.wait()
