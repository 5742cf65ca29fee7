"""The redis connector: wrong options are refused by name, and answers that are none are told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from feedq.connectors.base import parse_options
from feedq.connectors.protocol.resp import DEPTH_MAX, BrokenAnswer, RedisLink
from feedq.connectors.redis import RedisOptions
from feedq.connectors.wire.connection import Connection

MINIMAL = {"url": "redis://127.0.0.1", "streams": ["orders"]}


def options(**source: Any) -> RedisOptions:
    parsed = parse_options("redis", {**MINIMAL, **source})
    assert isinstance(parsed, RedisOptions)
    return parsed


class Said:
    """A connection on which a server has said something, all at once, and then nothing."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]

    async def receive(self) -> bytes:
        return self._pieces.pop(0)


def link(*said: bytes) -> RedisLink:
    return RedisLink(cast("Connection", Said(*said)), where="host")


async def test_answers_are_read_however_they_are_cut() -> None:
    said = b"*4\r\n$3\r\nabc\r\n:-7\r\n$-1\r\n*1\r\n+OK\r\n"
    assert await link(said).answer() == [b"abc", -7, None, [b"OK"]]
    assert await link(*(said[n : n + 1] for n in range(len(said)))).answer() == [b"abc", -7, None, [b"OK"]]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"$3\r\nabcd\r\n", "a text that is not as long as it says"),
        (b"*1\r\n" * (DEPTH_MAX + 1) + b":1\r\n", "nested deeper"),
        (b"$x\r\n", "a length that is none"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not Redis's protocol"),
    ],
)
async def test_what_no_redis_answers_is_told(said: bytes, complaint: str) -> None:
    with pytest.raises(BrokenAnswer, match=complaint):
        await link(said).answer()
