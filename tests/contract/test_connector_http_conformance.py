"""The http and sse connectors do what every connector must."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from feedq.connectors.http import HttpConnector
from feedq.connectors.sse import SseConnector
from feedq.testing.connector_conformance import ConnectorConformance, Journal, Served, serving
from tests.contract.http_source import answer, chunk, head, read_request

TOKEN = {"headers": {"Authorization": "Bearer {token}"}, "secrets": {"token": "${env:ACME_TOKEN}"}}


class TestHttpStream(ConnectorConformance):
    """An answer of NDJSON that never ends, in chunks, to a request that holds the cursor."""

    kind = HttpConnector

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sent = int((await read_request(reader)).parameter("after") or 0)
            writer.write(head(transfer_encoding="chunked", content_type="application/x-ndjson"))
            while True:
                for record in await journal.after(sent):
                    writer.write(chunk(record + b"\n"))
                    sent += 1
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {"url": f"http://{where}/orders?after={{cursor}}&key={{token}}", "cursor": "/seq", **TOKEN}


class TestHttpPoll(ConnectorConformance):
    """Pages with the cursor of the next one, from a source that answers once it has something."""

    kind = HttpConnector
    notices_silence = False
    page_records = 50

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                asked = await read_request(reader)
                after = int(asked.parameter("after") or 0)
                records = (await journal.after(after))[: self.page_records]
                items = b",".join(records)
                body = b'{"data": {"items": [%b]}, "next": %d}' % (items, after + len(records))
                # A kept connection that ends right after a request is made anew without a word.
                writer.write(answer(body, connection="close"))
                await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"http://{where}/orders?after={{cursor}}&key={{token}}",
            "mode": "poll",
            "interval_s": 0.1,
            "records": "/data/items",
            "next_cursor": "/next",
            **TOKEN,
        }


class TestSse(ConnectorConformance):
    """Events with ids, from a source that resumes after the last one."""

    kind = SseConnector

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sent = int((await read_request(reader)).headers.get("last-event-id", 0))
            writer.write(head(transfer_encoding="chunked", content_type="text/event-stream"))
            while True:
                for record in await journal.after(sent):
                    sent += 1
                    writer.write(chunk(b"id: %d\ndata: %b\n\n" % (sent, record)))
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {"url": f"http://{where}/events?key={{token}}", **TOKEN}


class TestSseByCursor(TestSse):
    """Events with CRLF whose data says where they stand, in envelopes, for which a POST asks."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        journal = Journal()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await read_request(reader)
            assert "last-event-id" not in asked.headers
            sent = json.loads(asked.body)["after"] or 0
            writer.write(head(transfer_encoding="chunked", content_type="text/event-stream; charset=utf-8"))
            while True:
                for record in await journal.after(sent):
                    sent += 1
                    writer.write(chunk(b": hello\r\ndata: %b\r\n\r\n" % record))
                    await writer.drain()

        async with serving(script) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    def options(self, where: str) -> dict[str, Any]:
        return {
            **super().options(where),
            "method": "POST",
            "body": '{"after": {cursor}}',
            "envelope": True,
            "cursor": "/data/seq",
        }

    def landed(self, record: bytes) -> bytes:
        return b'{"id":null,"event":"message","data":%b}' % record
