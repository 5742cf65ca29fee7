"""The tcp connector does what every connector must."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from feedq.connectors.tcp import TcpConnector
from feedq.testing.connector_conformance import ConnectorConformance, Journal, Served, serving


class TestTcpThatResumes(ConnectorConformance):
    """With a source that sends what comes after the cursor in its hello."""

    kind = TcpConnector
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
        return {
            "url": f"tcp://{where}",
            "hello": r'{"from": {cursor}, "token": "{token}"}\n',
            "cursor": "/seq",
            "secrets": {"token": "${env:ACME_TOKEN}"},
        }


class TestTcpThatBeginsAnew(ConnectorConformance):
    """With a source that knows no cursor, and records that end with bytes of its own."""

    kind = TcpConnector
    answers = False
    resumes = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sent = 0
            while True:
                for record in await journal.after(sent):
                    writer.write(record + b"\0\r\n")
                    sent += 1
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"tcp://{where}",
            "framing": "delimiter",
            "delimiter": r"\0\r\n",
            "format": "bytes",
        }

    def record(self, seq: int, *, size: int = 0) -> bytes:
        return super().record(seq, size=size).replace(b"p", b"\n")
