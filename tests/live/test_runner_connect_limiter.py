"""A runner waits for its turn before it connects, the first time and every other."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.core.clock import SystemClock
from feedq.core.model import Reason
from feedq.worker.pacing import ConnectLimiter
from feedq.worker.runner import Interrupt
from tests.live.test_runner import streaming
from tests.unit.data_path import until

NEXT_YEAR = 1e-8
"""A rate at which the first one goes, and the next one in years."""


def connect_limiter() -> ConnectLimiter:
    return ConnectLimiter(0, {"127.0.0.1": NEXT_YEAR}, SystemClock(), rng=Random(1))


def waiting(paced: ConnectLimiter) -> int:
    return paced.waiting


@pytest.mark.parametrize("why", [Interrupt.STOP, Interrupt.LOST])
async def test_a_feed_that_waits_for_its_turn_is_connecting_and_ends_at_once_when_told_to(
    why: Interrupt,
) -> None:
    paced = connect_limiter()
    await paced.turn("127.0.0.1")
    async with streaming(connect_limiter=paced) as bench:
        await until(lambda: waiting(paced) == 1, "it waits")
        assert bench.runner.progress.status(is_still=False) == "connecting"
        bench.runner.interrupt(why, reason=Reason.PAUSED)
        release = await bench.end()
    assert bench.source.hellos == []
    assert waiting(paced) == 0
    assert (release and release.reason) == (Reason.PAUSED if why is Interrupt.STOP else None)


async def test_a_feed_that_is_suspended_while_it_waits_lines_up_again() -> None:
    paced = connect_limiter()
    await paced.turn("127.0.0.1")
    async with streaming(connect_limiter=paced) as bench:
        await until(lambda: waiting(paced) == 1, "it waits")
        bench.trusted.clear()
        bench.runner.interrupt(Interrupt.SUSPEND)
        await until(lambda: waiting(paced) == 0, "it left the line")
        bench.trusted.set()
        await until(lambda: waiting(paced) == 1, "it waits again")
        bench.runner.interrupt(Interrupt.LOST)
        await bench.end()


async def test_a_reconnect_is_paced_like_a_first_connect() -> None:
    paced = connect_limiter()
    async with streaming(connect_limiter=paced) as bench:
        await bench.landed_at_least(3)
        bench.runner.sockets.cut()
        await until(lambda: waiting(paced) == 1, "it waits for its next turn")
        # Long enough for a connection that should not be made.
        await asyncio.sleep(0.05)
        assert len(bench.source.hellos) == 1
        await bench.stop()


REMOTE: dict[str, dict[str, Any]] = {
    "tcp": {"url": "tcp://Feeds.Example:7001"},
    "websocket": {"url": "wss://Feeds.Example/stream"},
    "sse": {"url": "https://Feeds.Example/stream?a=1"},
    "http": {"url": "http://Feeds.Example:8080/"},
    "mqtt": {"url": "mqtt://Feeds.Example", "topics": ["a"]},
    "redis": {"url": "redis://Feeds.Example", "streams": ["a"]},
    "nats": {"url": "nats://Feeds.Example", "stream": "a"},
}
LOCAL: dict[str, dict[str, Any]] = {"file": {"path": "/a"}, "exec": {"command": ["/bin/a"]}}


@pytest.mark.parametrize(("kind", "source"), REMOTE.items())
def test_the_host_of_a_feed_is_known_by_its_url_without_regard_to_case_or_port(
    kind: str, source: dict[str, Any]
) -> None:
    assert parse_options(kind, source).remote_host == "feeds.example"


@pytest.mark.parametrize(("kind", "source"), LOCAL.items())
def test_a_feed_of_a_file_or_a_program_has_none(kind: str, source: dict[str, Any]) -> None:
    assert parse_options(kind, source).remote_host is None
