"""A connector that does whatever one can do wrong; and the metadata by which feedq finds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from feedq.connectors.base import ConnectorOptions, Context
from feedq.core.model import JSON
from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch, Records

AT = datetime(2026, 1, 1, tzinfo=UTC)
BUSY_S = 20.0
"""Longer than anybody waits, and then it is over: it must not burden the tests that come after."""


class OddOptions(ConnectorOptions):
    """Says which."""

    how: str
    text: str = ""


class OddConnector:
    """Goes wrong as its options say."""

    Options: ClassVar[type[ConnectorOptions]] = OddOptions

    def __init__(self, options: OddOptions, context: Context) -> None:
        self._options = options
        self._context = context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Any, None]:
        self._context.on_connected()
        how = self._options.how
        match how:
            case "ends":
                return
            case "raises":
                raise ZeroDivisionError(self._options.text)
            case "exits":
                raise SystemExit(3)
            case "times out":
                raise TimeoutError(self._options.text)
            case "is silent":
                await asyncio.sleep(3_600)  # what it does wrong
            case "keeps the loop busy":
                time.sleep(BUSY_S)  # what it does wrong
            case "swallows its cancellation":
                await self._outlive(BUSY_S)
            case "gives nothing for ever":
                while True:
                    yield batch(b"", count=0)
            case "remembers its attempts":
                attempt = self._context.memory["attempts"] = self._context.memory.get("attempts", 0) + 1
                if attempt < 3:
                    raise SourceUnavailable("not yet")
                yield batch(b'{"seq": %d}' % attempt, cursor=attempt)
                await asyncio.Event().wait()
            case "gives no batch":
                yield 5
            case "has a cursor that is no JSON":
                yield batch(b"{}", cursor={"at": object()})
            case "repeats a secret":
                secret = self._context.secrets["token"]
                yield batch(b'{"said": "%s"}' % secret.encode(), cursor={"next": [f"/?token={secret}"]})
            case "is large":
                while True:
                    yield batch(b'"%s"' % (b"x" * 2**24))
        try:
            yield batch(b"{}", cursor=1)
        finally:
            if how == "hangs in its end":
                await asyncio.sleep(3_600)  # what it does wrong

    async def _outlive(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                await asyncio.sleep(until - time.monotonic())
            except asyncio.CancelledError:
                continue


def batch(record: bytes, *, cursor: Any = None, count: int = 1) -> Batch:
    return Records(records=tuple([record] * count)).batch(cursor=cursor, received_at=AT)


def install(directory: Path) -> None:
    """What an installed package leaves behind, in a directory of the module search path."""
    metadata = directory / "odd-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[feedq.connectors]\nodd = tests.live.odd_connector:OddConnector\n"
    )
