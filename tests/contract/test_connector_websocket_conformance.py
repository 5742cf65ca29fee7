"""The websocket connector does what every connector must, however its server frames and resumes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from feedq.connectors.websocket import WebsocketConnector
from feedq.testing.connector_conformance import ConnectorConformance, Journal, Served, serving
from tests.contract.websocket_server import BINARY, CONTINUATION, PING, TEXT, accept, frame, read_frame


class TestSubscribed(ConnectorConformance):
    """With the cursor in a subscription, and a frame a record, as nearly every server has it."""

    kind = WebsocketConnector

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accept(reader, writer)
            opcode, subscription = await read_frame(reader)
            assert opcode == TEXT
            sent = json.loads(subscription)["from"] or 0
            while True:
                for record in await journal.after(sent):
                    writer.write(frame(record))
                    sent += 1
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"ws://{where}/feed?token={{token}}",
            "subscribe": '{"from": {cursor}, "token": "{token}"}',
            "cursor": "/seq",
            "secrets": {"token": "${env:ACME_TOKEN}"},
        }


class TestInFragments(ConnectorConformance):
    """With the cursor in the URL, line breaks in the records, fragments, and pings between these."""

    kind = WebsocketConnector

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await accept(reader, writer)
            sent = int(parse_qs(urlsplit(asked.target).query).get("after", ["0"])[0])
            while True:
                for record in await journal.after(sent):
                    writer.write(_in_fragments(record))
                    sent += 1
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {"url": f"ws://{where}/?after={{cursor}}", "cursor": "/seq"}

    def record(self, seq: int, *, size: int = 0) -> bytes:
        return super().record(seq, size=size).replace(b", ", b",\n")


def _in_fragments(record: bytes) -> bytes:
    middle = len(record) // 2
    return b"".join(
        (
            frame(record[:middle], BINARY, fin=False),
            frame(b"there?", PING),
            frame(b"", CONTINUATION, fin=False),
            frame(record[middle:], CONTINUATION),
        )
    )
