"""A runner waits for its turn before each connect, and tells what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from feedq.connectors import base
from feedq.connectors.base import parse_options
from feedq.core.clock import SystemClock
from feedq.core.model import Reason
from feedq.testing.loopback import serving
from feedq.worker.pacing import ConnectLimiter
from feedq.worker.runner import Interrupt
from tests.contract.loopback import unanswering, until_closed
from tests.live.test_runner import Bench, streaming
from tests.unit.data_path import DataPath, until

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


# -- what it tells meanwhile -------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "tcp": {"hello": [{"send": "", "expect": "OK"}]},
    "websocket": {},
    "sse": {},
    "http": {},
    "mqtt": {"topics": ["a"]},
    "redis": {"streams": ["a"]},
    "nats": {"stream": "a"},
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "UNANSWERED_S", 0.05)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await until_closed(reader)


async def what_it_says(kind: str, where: str) -> list[str]:
    """What a feed says by the time that it has said something."""
    said: list[str] = []
    scheme = {"websocket": "ws", "sse": "http"}.get(kind, kind)
    with DataPath() as path:
        bench = Bench(path, {"url": f"{scheme}://{where}", **KINDS[kind]}, connector=kind)
        bench.start()

        def has_said() -> bool:
            said.extend(filter(None, [bench.runner.progress.report().error]))
            return bool(said)

        await until(has_said, "it says something")
        await bench.stop()
    return [one.replace(f"{scheme}://{where}", "") for one in said]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_source_that_does_not_answer_is_named_while_it_is_waited_for(kind: str) -> None:
    with unanswering() as where:
        assert await what_it_says(kind, where) == ["connecting to : no answer for 0.05 s"]
    async with serving(silent) as port:
        assert await what_it_says(kind, f"127.0.0.1:{port}") == ["connecting to : no answer for 0.05 s"]


async def test_a_feed_that_is_connected_says_nothing_of_it() -> None:
    async with streaming() as bench:
        await bench.landed_at_least(1)
        # Longer than a source is waited for; to see that nothing is said takes a moment.
        await asyncio.sleep(0.1)
        assert bench.runner.progress.report().error is None
        await bench.stop()


async def noticed(connector: str, source: dict[str, Any], *, landed: int) -> list[Mapping[str, str | None]]:
    """What the reports of a feed say until so many of its records have landed."""
    reports: list[Mapping[str, str | None]] = []
    with DataPath() as path:
        bench = Bench(path, source, connector=connector)
        bench.start()
        await until(lambda: len(path.file.rows.get("acme/orders", [])) >= landed, f"{landed} landed")

        def is_told() -> bool:
            reports.extend(filter(None, [bench.runner.progress.report().noticed]))
            return bool(reports)

        await until(is_told, "it is told")
        await bench.stop()
        reports.extend(filter(None, [bench.runner.progress.report().noticed]))
    return reports


async def test_a_header_with_other_names_is_told_once_it_can_be_told_from_records(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("nr,cost\n1,2.5\n2,3.5\nnr,cost\n")
    csv = {"fields": ["id", "price"], "header": True}
    source = {"path": str(path), "start": "beginning", "format": "csv", "csv": csv}
    (told,) = await noticed("file", source, landed=4)
    assert told.keys() == {"header"}
    assert str(told["header"]).startswith("the first line, nr, cost, lands as a record")
