"""The sse connector against scripted servers, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from feedq.connectors.sse import SseConnector
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.testing.loopback import serving
from tests.contract.http_source import (
    LAST_CHUNK,
    Asked,
    answer,
    chunk,
    head,
    read_request,
)
from tests.contract.loopback import Feed, assert_told, records_of, until_closed

EVENTS = {"content_type": "text/event-stream"}


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/events"


def event(number: int, *lines: bytes) -> bytes:
    return b"".join(line + b"\n" for line in (b"id: %d" % number, *lines, b'data: {"seq": %d}' % number, b""))


class Stream:
    """Answers each request with the next of these bodies, in chunks; then ends the answer, or stays silent."""

    def __init__(self, *bodies: bytes, stays: bool = False, breaks: bool = False) -> None:
        self.asked: list[Asked] = []
        self.asked_at: list[float] = []
        self._bodies = bodies
        self._stays = stays
        self._breaks = breaks

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.asked.append(await read_request(reader))
            self.asked_at.append(asyncio.get_running_loop().time())
            is_last = len(self.asked) >= len(self._bodies)
            body = self._bodies[min(len(self.asked), len(self._bodies)) - 1]
            writer.write(head(transfer_encoding="chunked", **EVENTS) + (chunk(body) if body else b""))
            await writer.drain()
            if is_last and self._stays:
                await until_closed(reader)
                return
            if self._breaks:
                return
            writer.write(LAST_CHUNK)
            await writer.drain()


# -- events --------------------------------------------------------------------------------------------


async def test_events_become_records_and_their_ids_the_cursor() -> None:
    stream = Stream(b"".join(event(n) for n in range(1, 51)), stays=True)
    feed = Feed(SseConnector)
    async with serving(stream) as port:
        batches = await feed.take(50, url(port))
    assert records_of(batches) == [b'{"seq": %d}' % n for n in range(1, 51)]
    assert batches[-1].cursor == "50"
    (asked,) = stream.asked
    assert asked.headers["accept"] == "text/event-stream"
    assert asked.headers["cache-control"] == "no-store"
    assert "last-event-id" not in asked.headers


@pytest.mark.parametrize(
    ("cursor", "sent"),
    [
        ("50", "50"),
        ("größe/1", "größe/1"),
        ('[{"offset": 3}]', '[{"offset": 3}]'),
        (17, "17"),
        ([1, 2], "[1,2]"),
    ],
)
async def test_the_last_id_goes_back_to_the_source(cursor: JSON, sent: str) -> None:
    stream = Stream(b"data: x\n\n", stays=True)
    async with serving(stream) as port:
        batches = await Feed(SseConnector).take(1, url(port), after=cursor, format="text")
    assert stream.asked[0].headers["last-event-id"].encode("latin-1").decode() == sent
    # Events without an id do not move it.
    assert batches[0].cursor == cursor


@pytest.mark.parametrize(("cursor", "sent"), [(" 5\t", "5"), ("a b ", "a b"), (" ", None)])
async def test_spaces_around_an_id_which_no_header_can_hold_do_not_fail_the_feed(
    cursor: str, sent: str | None
) -> None:
    stream = Stream(b"id: " + cursor.encode() + b"\ndata: 1\n\n", b"data: 2\n\n", stays=True)
    async with serving(stream) as port:
        batches = await Feed(SseConnector).take(2, url(port), format="text")
    assert records_of(batches) == [b"1", b"2"]
    assert stream.asked[1].headers.get("last-event-id") == sent
    assert batches[-1].cursor == cursor


async def test_only_the_wanted_events_are_records_and_the_others_move_the_cursor() -> None:
    body = event(1, b"event: update") + event(2, b"event: other") + event(3) + event(4, b"event: other")
    async with serving(Stream(body, stays=True)) as port:
        batches = await Feed(SseConnector).take(2, url(port), events=["update", "message"])
    assert records_of(batches) == [b'{"seq": 1}', b'{"seq": 3}']
    assert batches[-1].cursor == "4"


# -- answers that end ----------------------------------------------------------------------------------


async def test_an_answer_that_ended_in_order_is_asked_for_again_after_the_time_that_it_said() -> None:
    stream = Stream(b"retry: 400\n" + event(1), b": nothing yet\n\n", event(2), stays=True)
    feed = Feed(SseConnector)
    async with serving(stream) as port:
        batches = await feed.take(2, url(port), after="0")
    assert [batch.cursor for batch in batches] == ["1", "2"]
    assert [asked.headers["last-event-id"] for asked in stream.asked] == ["0", "1", "1"]
    gaps = [after - before for before, after in pairwise(stream.asked_at)]
    assert all(gap > 0.38 for gap in gaps)


async def test_what_broke_off_is_told_after_the_time_that_the_source_said() -> None:
    loop = asyncio.get_running_loop()
    stream = Stream(b"retry: 400\n" + event(1), breaks=True)
    async with serving(stream) as port:
        batches, error = await Feed(SseConnector).read_to_end(url(port))
    assert len(batches) == 1
    assert_told(error, SourceUnavailable, "in the middle of its answer")
    assert loop.time() - stream.asked_at[0] > 0.38


async def test_comments_are_signs_of_life_and_silence_is_told() -> None:
    loop = asyncio.get_running_loop()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head(transfer_encoding="chunked", **EVENTS) + chunk(b"retry: 60000\n"))
        for _ in range(30):
            writer.write(chunk(b": ping\n\n"))
            await writer.drain()
            await asyncio.sleep(0.1)
        await until_closed(reader)

    began = loop.time()
    async with serving(script) as port:
        batches, error = await Feed(SseConnector).read_to_end(url(port), idle_timeout_s=2)
    assert batches == []
    assert isinstance(error, SourceSilent)
    # Silence has been waited for long enough: there is no retry on top of it.
    assert 4 < loop.time() - began < 30


# -- answers that are no event stream ------------------------------------------------------------------


async def test_no_content_says_to_stop() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head("204 No Content"))

    feed = Feed(SseConnector)
    async with serving(script) as port:
        _, error = await feed.read_to_end(url(port))
    assert_told(error, FeedMisconfigured, "answered 204, which tells clients to stop asking")
    assert not feed.connected


@pytest.mark.parametrize(
    ("media_type", "says"),
    [
        ("text/html; charset=utf-8", "'text/html'"),
        ("", "that it names"),
        ("application/json", "'application/json'"),
    ],
)
async def test_another_kind_of_content_is_told(media_type: str, says: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"<html>", content_type=media_type))
        await writer.drain()

    feed = Feed(SseConnector)
    async with serving(script) as port:
        _, error = await feed.read_to_end(url(port))
    assert_told(error, SourceUnavailable, says)
    assert not feed.connected
