"""Scripted HTTP servers: what a request said, answers byte by byte; and a feed in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from feedq.connectors.base import Connector, Context, open_stream
from feedq.core.model import JSON, Batch
from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedqError
from feedq.testing.loopback import PATIENCE_S, RecordingGuard
from tests.fakes.clock import ManualClock


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def parameter(self, name: str) -> str | None:
        found = parse_qs(urlsplit(self.target).query).get(name)
        return found[0] if found else None


async def read_request(reader: asyncio.StreamReader) -> Asked:
    """Raises `ConnectionError` when the client is gone."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        raise ConnectionResetError from None
    first, *lines = head[:-4].split("\r\n")
    method, target, version = first.split(" ")
    assert version == "HTTP/1.1"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(headers) == len(lines), "a header came twice"
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, target, headers, body)


def head(status: str = "200 OK", **headers: str) -> bytes:
    """The head of an answer; names of headers with underscores for hyphens."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


POLL: Mapping[str, Any] = {"mode": "poll", "interval_s": 0.1}
LAST_CHUNK = b"0\r\n\r\n"


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer of a known length."""
    return head(status, content_length=str(len(body)), **headers) + body


@dataclass
class HttpFeed:
    """One feed's side: what a runner would give a connector of ``kind``."""

    kind: type[Connector]
    secrets: Mapping[str, str] = field(default_factory=dict)
    permissions: Permissions = DEFAULT
    clock: ManualClock = field(default_factory=ManualClock)
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    connected: int = 0

    def open(self, url: str, *, after: JSON = None, **source: Any) -> AsyncGenerator[Batch, None]:
        references = {name: "${env:" + name.upper() + "}" for name in self.secrets}
        options = self.kind.Options.model_validate({"url": url, "secrets": references, **source})
        context = Context(
            "acme/orders",
            self.clock,
            self.guard,
            self._connected,
            self.secrets,
            permissions=self.permissions,
        )
        return open_stream(self.kind, options, context=context, cursor=after)

    async def read_to_end(
        self, url: str, *, after: JSON = None, **source: Any
    ) -> tuple[list[Batch], FeedqError]:
        """All batches of one attempt, and the error that ended it."""
        batches: list[Batch] = []
        try:
            async with asyncio.timeout(PATIENCE_S), aclosing(self.open(url, after=after, **source)) as stream:
                async for batch in stream:
                    batches.append(batch)
        except FeedqError as error:
            assert not self.guard.watched
            self._look_for_secrets(error)
            return batches, error
        raise AssertionError("a stream ended without an error")

    async def take(self, count: int, url: str, *, after: JSON = None, **source: Any) -> list[Batch]:
        """The first batches with at least so many records."""
        batches: list[Batch] = []
        async with asyncio.timeout(PATIENCE_S), aclosing(self.open(url, after=after, **source)) as stream:
            while sum(batch.count for batch in batches) < count:
                batches.append(await anext(stream))
        assert not self.guard.watched
        return batches

    def _connected(self) -> None:
        self.connected += 1

    def _look_for_secrets(self, error: BaseException | None) -> None:
        while error is not None:
            for value in self.secrets.values():
                assert value not in f"{error} {error!r}", "an error holds a secret"
            error = error.__cause__


@dataclass
class Api:
    """Answers each request with what ``reply`` says, on connections that it keeps open."""

    reply: Callable[[Asked], bytes]
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    asked_at: list[float] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            asked = await read_request(reader)
            self.asked.append(asked)
            self.asked_at.append(asyncio.get_running_loop().time())
            writer.write(self.reply(asked))
            await writer.drain()

    async def asks(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.asked) < count:
                await asyncio.sleep(0.001)


def in_turn(*replies: bytes) -> Callable[[Asked], bytes]:
    """Each reply once, the last one for ever."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def url(port: int, target: str = "/orders") -> str:
    return f"http://127.0.0.1:{port}{target}"


def items(*numbers: int, **more: JSON) -> bytes:
    return orjson.dumps({"items": [{"seq": number} for number in numbers], **more})


def seqs(records: Sequence[bytes]) -> list[int]:
    return [json.loads(record)["seq"] for record in records]


def records_of(batches: list[Batch]) -> list[bytes]:
    return [record for batch in batches for record in batch.split()]
