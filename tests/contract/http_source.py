"""Scripted HTTP servers: what a request said, answers byte by byte; and a feed in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from feedq.core.model import JSON
from feedq.testing.loopback import PATIENCE_S


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
    return msgspec.json.encode({"items": [{"seq": number} for number in numbers], **more})


def seqs(records: Sequence[bytes]) -> list[int]:
    return [json.loads(record)["seq"] for record in records]
