"""What a runner tells while its feed runs: what it waits for, and what it notices."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors import base
from feedq.testing.loopback import serving
from tests.contract.loopback import unanswering, until_closed
from tests.live.test_runner import Bench, streaming
from tests.unit.data_path import DataPath, until

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
        await until(lambda: len(path.tables.rows.get("acme/orders", [])) >= landed, f"{landed} landed")

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
