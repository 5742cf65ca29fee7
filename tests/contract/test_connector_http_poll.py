"""The http connector that polls: what it asks, what it lands, and where it goes on after a crash anywhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from feedq.connectors.http import HttpConnector
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.loopback import PATIENCE_S, serving
from tests.contract.http_source import (
    POLL,
    Api,
    Asked,
    answer,
    head,
    in_turn,
    items,
    read_request,
    seqs,
    url,
)
from tests.contract.loopback import Feed, records_of, until_closed

# -- answers that do not change ------------------------------------------------------------------------


async def test_an_answer_with_the_same_etag_is_not_fetched_again_not_even_after_a_restart() -> None:
    def reply(asked: Asked) -> bytes:
        if asked.headers.get("if-none-match") == '"v1"':
            return head("304 Not Modified", etag='"v1"')
        return answer(b"one", etag='"v1"', last_modified="Thu, 01 Jan 2026 00:00:00 GMT")

    api = Api(reply)
    source = {**POLL, "format": "bytes"}
    async with serving(api) as port:
        (batch,) = await Feed(HttpConnector).take(1, url(port), **source)
        before = len(api.asked)
        feed = Feed(HttpConnector)
        async with aclosing(feed.open(url(port), after=batch.cursor, **source)) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await api.asks(before + 3)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
    assert batch.split() == (b"one",)
    assert all(a.headers["if-none-match"] == '"v1"' for a in api.asked[before:])
    assert api.asked[before].headers["if-modified-since"] == "Thu, 01 Jan 2026 00:00:00 GMT"
    assert feed.connected == 1
    # An answer without content does not end the connection.
    assert api.connections == 2


async def test_an_answer_with_the_same_content_lands_once() -> None:
    api = Api(in_turn(answer(b"one"), answer(b"one"), answer(b"one"), answer(b"two")))
    async with serving(api) as port:
        batches = await Feed(HttpConnector).take(2, url(port), **POLL, format="bytes")
    assert records_of(batches) == [b"one", b"two"]
    assert len(api.asked) == 4


async def test_of_a_list_that_grows_only_what_is_new_lands() -> None:
    def make() -> Api:
        return Api(in_turn(*(answer(items(*range(1, n))) for n in (1, 3, 3, 6, 7)), answer(items(1, 9))))

    async with serving(make()) as port:
        batches = await Feed(HttpConnector).take(8, url(port), **POLL, records="/items")
    # The last list begins otherwise than what is known: all of it lands.
    assert [seqs(b.split()) for b in batches] == [[1, 2], [3, 4, 5], [6], [1, 9]]


# -- what an answer is ---------------------------------------------------------------------------------


async def test_records_stand_as_the_source_wrote_them() -> None:
    body = (
        b'\xef\xbb\xbf{"data": [{"n":  1.10, "big": 12345678901234567890123}, "\xc3\xbc",\n null, [1,\n2]]}'
    )

    async with serving(Api(lambda _: answer(body))) as port:
        batches = await Feed(HttpConnector).take(4, url(port), **POLL, records="/data")
    assert records_of(batches) == [
        b'{"n":  1.10, "big": 12345678901234567890123}',
        b'"\xc3\xbc"',
        b"null",
        b"[1,\n2]",
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"<html>", "is no JSON"), (b'{"error": 1}', "no list at '/items'"), (b"[1]", "no list")],
)
async def test_an_answer_without_the_list_is_told(body: bytes, says: str) -> None:
    async with serving(Api(lambda _: answer(body))) as port:
        _, error = await Feed(HttpConnector).read_to_end(url(port), **POLL, records="/items")
    assert isinstance(error, SourceUnavailable)
    assert says in str(error)


@pytest.mark.parametrize("records", ["/items", "framed"])
async def test_a_record_over_the_limit_lands_what_is_before_it_and_goes_on_there_once_it_is_raised(
    records: str,
) -> None:
    large = [b'{"seq": 1}', b'{"seq": 2, "pad": "%b"}' % (b"x" * 200), b'{"seq": 3}']
    body = b"\n".join(large) if records == "framed" else b'{"items": [%b]}' % b",".join(large)

    async with serving(Api(lambda _: answer(body, etag='"v1"'))) as port:
        source = {**POLL, "records": records}
        batches, error = await Feed(HttpConnector).read_to_end(url(port), **source, max_record_bytes=100)
        assert isinstance(error, FeedMisconfigured)
        assert "max_record_bytes" in str(error)
        assert seqs(records_of(batches)) == [1]
        cursor = batches[-1].cursor
        rest = await Feed(HttpConnector).take(2, url(port), after=cursor, **source, max_record_bytes=300)
    assert seqs(records_of(rest)) == [2, 3]


# -- waiting -------------------------------------------------------------------------------------------


async def test_a_source_that_says_when_to_ask_again_is_asked_then() -> None:
    busy = answer(b"", "429 Too Many Requests", retry_after="1")
    api = Api(in_turn(busy, answer(b"one")))
    async with serving(api) as port:
        batches = await Feed(HttpConnector).take(1, url(port), **POLL, format="text")
    assert records_of(batches) == [b"one"]
    assert api.asked_at[1] - api.asked_at[0] > 0.95


async def test_a_connection_that_the_source_closed_between_polls_is_made_anew() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await read_request(reader))
        writer.write(answer(b"%d" % len(asked)))
        await writer.drain()

    asked: list[Asked] = []
    async with serving(script) as port:
        batches = await Feed(HttpConnector).take(3, url(port), **POLL, format="text")
    assert records_of(batches) == [b"1", b"2", b"3"]


async def test_no_connection_is_held_for_long_between_polls() -> None:
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"one"))
        await until_closed(reader)
        gone.set()

    feed = Feed(HttpConnector)
    source: dict[str, Any] = {"mode": "poll", "interval_s": 30, "format": "text"}
    async with serving(script) as port, aclosing(feed.open(url(port), **source)) as stream:
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
        assert not feed.guard.watched
        waiting.cancel()
        await asyncio.wait([waiting])
