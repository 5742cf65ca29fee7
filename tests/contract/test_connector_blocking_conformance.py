"""A blocking connector does what every connector must: one over TCP, and one that only asks now and then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.blocking import dialed
from feedq.core.model import JSON, Batch
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.framing import CursorReader, LineFramer
from feedq.testing.connector_conformance import ConnectorConformance, Journal, Served, serving


class PlainOptions(ConnectorOptions):
    host: str = Field(description="Where the source listens.")
    port: int = Field(description="And on which port.")
    max_record_bytes: int = Field(default=2**20, description="A larger record fails the feed.")
    idle_timeout_s: float = Field(default=60.0, description="A silent source is connected to anew.")


class PlainConnector:
    """Lines over TCP, after a hello that carries the cursor."""

    Options: ClassVar[type[ConnectorOptions]] = PlainOptions

    def __init__(self, options: PlainOptions, context: Context) -> None:
        self._options = options
        self._context = context

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        options = self._options
        framer, reader = LineFramer(options.max_record_bytes), CursorReader("/seq")
        with dialed(options.host, options.port, context=self._context, timeout_s=10) as sock:
            try:
                sock.settimeout(options.idle_timeout_s)
                sock.sendall(json.dumps({"from": cursor}).encode() + b"\n")
                self._context.on_connected()
                while data := sock.recv(65_536):
                    framed = framer.push(data)
                    if framed:
                        cursor = reader.after(framed, cursor)
                        yield framed.batch(cursor=cursor, received_at=self._context.clock.now())
                    if framed.oversize:
                        raise FeedMisconfigured("a record over source.max_record_bytes")
            except TimeoutError:
                raise SourceSilent("nothing received") from None
            except OSError as error:
                raise SourceUnavailable(f"broke off: {error}") from error
        raise SourceUnavailable("closed by the peer")


class TestPlainTcp(ConnectorConformance):
    kind = PlainConnector
    answers = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sent = json.loads(await reader.readline())["from"] or 0
            while True:
                for record in await journal.after(sent):
                    writer.write(record + b"\n")
                    sent += 1
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        host, _, port = where.rpartition(":")
        return {"host": host, "port": int(port), "secrets": {"token": "${env:ACME_TOKEN}"}}


class SpoolOptions(ConnectorOptions):
    directory: Path = Field(description="Where files appear, each one record.")
    every_s: float = Field(default=0.01, description="Seconds between two looks.")


class SpoolConnector:
    """Files that appear in a directory, in the order of their names."""

    Options: ClassVar[type[ConnectorOptions]] = SpoolOptions

    def __init__(self, options: SpoolOptions, context: Context) -> None:
        self._options = options
        self._context = context

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        last = cursor if isinstance(cursor, str) else ""
        self._context.on_connected()
        while not self._context.stopping.wait(self._options.every_s):
            for path in sorted(p for p in self._options.directory.glob("*.json") if p.name > last):
                last = path.name
                yield Batch.of_records(
                    [path.read_bytes()], cursor=last, received_at=self._context.clock.now()
                )


class TestSpool(ConnectorConformance):
    kind = SpoolConnector
    dials = False
    limits_records = False
    notices_silence = False

    @pytest.fixture(autouse=True)
    def _spool(self, tmp_path: Path) -> None:
        self._directory = tmp_path

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def send(records: Sequence[bytes]) -> None:
            await journal.send(records)
            for number in range(len(journal.records) - len(records), len(journal.records)):
                spooled = self._directory / f"{number:06}"
                spooled.write_bytes(journal.records[number])
                spooled.rename(spooled.with_suffix(".json"))

        yield Served(str(self._directory), send)

    def options(self, where: str) -> dict[str, Any]:
        return {"directory": where}
