"""The http connector that polls: what it asks, what it lands, and where it goes on after a crash anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from feedq.connectors import http_polling
from feedq.connectors.http import HttpConnector
from feedq.core.model import JSON
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
from tests.contract.loopback import Feed, assert_told, records_of, until_closed

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
    [(b"<html>", "is not JSON"), (b'{"error": 1}', "no list at '/items'"), (b"[1]", "no list")],
)
async def test_an_answer_without_the_list_is_told(body: bytes, says: str) -> None:
    async with serving(Api(lambda _: answer(body))) as port:
        _, error = await Feed(HttpConnector).read_to_end(url(port), **POLL, records="/items")
    assert_told(error, SourceUnavailable, says)


@pytest.mark.parametrize("records", ["/items", "framed"])
async def test_a_record_over_the_limit_lands_what_is_before_it_and_goes_on_there_once_it_is_raised(
    records: str,
) -> None:
    large = [b'{"seq": 1}', b'{"seq": 2, "pad": "%b"}' % (b"x" * 200), b'{"seq": 3}']
    body = b"\n".join(large) if records == "framed" else b'{"items": [%b]}' % b",".join(large)

    async with serving(Api(lambda _: answer(body, etag='"v1"'))) as port:
        source = {**POLL, "records": records}
        batches, error = await Feed(HttpConnector).read_to_end(url(port), **source, max_record_bytes=100)
        assert_told(error, FeedMisconfigured, "max_record_bytes")
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


CLOCK_S = 0.002

"""The clock of uvloop counts whole milliseconds, and so does each of two moments between which time is taken."""


async def crash_anywhere(make: Callable[[], Api], expected: Sequence[int], **source: Any) -> None:
    """Whichever batch is the last that was committed, those that come after it are landed by the next attempt."""
    async with serving(make()) as port:
        batches = await Feed(HttpConnector).take(len(expected), url(port, source["target"]), **_plain(source))
    assert seqs(records_of(batches)) == list(expected)
    for committed in range(len(batches)):
        landed = records_of(batches[: committed + 1])
        async with serving(make()) as port:
            left = len(expected) - len(landed)
            if left:
                cursor = json.loads(json.dumps(batches[committed].cursor))
                after = await Feed(HttpConnector).take(
                    left, url(port, source["target"]), after=cursor, **_plain(source)
                )
                landed += records_of(after)
        assert seqs(landed) == list(expected)


def _plain(source: dict[str, Any]) -> dict[str, Any]:
    return {**POLL, **{name: value for name, value in source.items() if name != "target"}}


# -- cursors and pages ---------------------------------------------------------------------------------


def numbered(asked: Asked, *, last: int, size: int = 3) -> list[int]:
    after = int(asked.parameter("after") or 0)
    return list(range(after + 1, min(after + size, last) + 1))


async def test_pages_are_asked_for_at_once_and_the_next_poll_waits() -> None:
    api = Api(lambda asked: answer(items(*numbered(asked, last=10))))
    source: dict[str, Any] = {"mode": "poll", "interval_s": 0.7, "records": "/items", "cursor": "/seq"}
    async with serving(api) as port:
        feed = Feed(HttpConnector)
        begun = asyncio.get_running_loop().time()
        async with aclosing(feed.open(url(port, "/orders?after={cursor}"), **source)) as stream:
            while len(api.asked) < 4:
                await anext(stream)
            waiting = asyncio.ensure_future(anext(stream))
            await api.asks(7)
            waiting.cancel()
            await asyncio.wait([waiting])
    assert [asked.target for asked in api.asked[:6]] == [
        "/orders",
        *(f"/orders?after={n}" for n in (3, 6, 9, 10, 10)),
    ]
    # 0.7 s after the poll before it began, whatever that took.
    assert api.asked_at[5] - begun > 0.7 - CLOCK_S
    assert api.asked_at[6] - begun > 1.4 - CLOCK_S
    assert api.connections == 1


async def test_an_answer_without_content_holds_no_records() -> None:
    answers = iter([answer(b""), answer(items(1, next=None)), answer(b"")])
    async with serving(Api(lambda _: next(answers, answer(items(2))))) as port:
        source = {**POLL, "interval_s": 0.1, "records": "/items", "next_page": "/next"}
        feed = Feed(HttpConnector)
        assert seqs(records_of(await feed.take(2, url(port, "/orders"), **source))) == [1, 2]


@pytest.mark.parametrize("end", [None, ""])
async def test_where_there_is_no_next_cursor_the_last_one_is_asked_with_again(end: JSON) -> None:
    def make() -> Api:
        growing = [10]

        def reply(asked: Asked) -> bytes:
            numbers = numbered(asked, last=growing[0])
            is_last = numbers[-1] == growing[0]
            if is_last:
                growing[0] = 11
            return answer(items(*numbers, next=end if is_last else str(numbers[-1])))

        return Api(reply)

    # What the last page had before it grew is not landed again.
    source = {"records": "/items", "next_cursor": "/next", "target": "/orders?after={cursor}"}
    async with serving(make()) as port:
        batches = await Feed(HttpConnector).take(11, url(port, source["target"]), **_plain(source))
    assert seqs(records_of(batches)) == list(range(1, 12))


def paged(asked: Asked, *, by_link: bool) -> bytes:
    page = int(asked.parameter("page") or 1)
    numbers = range(page * 2 - 1, page * 2 + 1)
    there = f"/orders?page={page + 1}&key={asked.parameter('key')}" if page < 4 else None
    if by_link:
        link = {"link": f'<{there}>; rel="next", </orders?page=4>; rel="last"'} if there else {}
        return answer(items(*numbers), **link)
    return answer(items(*numbers, links={"next": there}))


@pytest.mark.parametrize("next_page", ["link", "/links/next"])
async def test_a_poll_reads_all_pages_and_after_a_restart_begins_at_the_first(next_page: str) -> None:
    secrets = {"token": "s3cret"}
    source = {**POLL, "records": "/items", "next_page": next_page, "interval_s": 60.0}
    cursor: JSON = None
    for _ in range(2):
        api = Api(lambda asked: paged(asked, by_link=next_page == "link"))
        async with serving(api) as port:
            feed = Feed(HttpConnector, secrets=secrets)
            batches = await feed.take(8, url(port, "/orders?key={token}"), after=cursor, **source)
        assert seqs(records_of(batches)) == list(range(1, 9))
        assert api.asked[0].target == "/orders?key=s3cret"
        assert [asked.parameter("key") for asked in api.asked] == ["s3cret"] * 4
        cursor = batches[1].cursor
        # Neither a page nor the secret that the source repeats in its address.
        assert cursor == {"at": None}


@pytest.mark.parametrize(
    "link",
    [
        '<{there}>; title="a=b"; rel="next"',
        '<{there}>; title="a, <b>; rel=\\"prev\\""; rel="next"',
        "<{there}>;rel=next",
        '<{there}>; REL = "Next"',
        '<{there}>; rel="last next"; rel="prev"',
        '</first>; rel="first", <{there}>; rel="next"; type="a/b"',
        '</first>; rel="first",<{there}> ;type=x; rel=next,</last>; rel=last',
        "</a,b>; rel=prev; title*=UTF-8''%e2%82%ac, <{there}>; rel=\"next\" , ,",
    ],
)
async def test_the_header_link_is_read_as_its_standard_says(link: str) -> None:
    def reply(asked: Asked) -> bytes:
        if asked.parameter("page"):
            return answer(items(2), link='</orders>; rel="prev"; title="; rel=next"')
        return answer(items(1), link=link.format(there="/orders?page=2,3"))

    async with serving(Api(reply)) as port:
        feed = Feed(HttpConnector)
        source = {**POLL, "records": "/items", "next_page": "link", "interval_s": 60.0}
        assert seqs(records_of(await feed.take(2, url(port, "/orders"), **source))) == [1, 2]
    assert feed.drivers[0].noticed == []


@pytest.mark.parametrize(
    ("next_page", "said"),
    [
        ("link", "does not follow RFC 8288, so no next page"),
        ("/next", "source.next_page '/next' does not lead to an address"),
    ],
)
async def test_a_next_page_that_is_told_in_no_way_that_we_read_is_noticed(next_page: str, said: str) -> None:
    async with serving(Api(lambda _: answer(items(1, next={"href": "/x"}), link="/x; rel=next"))) as port:
        feed = Feed(HttpConnector)
        await feed.take(1, url(port, "/orders"), **{**POLL, "records": "/items", "next_page": next_page})
    assert [(key, said in str(text)) for key, text in feed.drivers[0].noticed] == [("next_page", True)]


async def test_pages_of_records_with_a_cursor_land_exactly_once_whatever_crashes() -> None:
    def make() -> Api:
        def reply(asked: Asked) -> bytes:
            numbers = numbered(asked, last=10)
            there = {"link": f'</orders?after={numbers[-1]}>; rel="next"'} if len(numbers) == 3 else {}
            return answer(items(*numbers), **there)

        return Api(reply)

    source = {"records": "/items", "next_page": "link", "cursor": "/seq", "interval_s": 60.0}
    await crash_anywhere(make, range(1, 11), target="/orders?after={cursor}", **source)


async def test_a_cursor_that_each_page_tells_counts_once_all_pages_have_landed() -> None:
    """It may lie behind all of them: whoever kept it with the first page would lose the others in a crash."""

    def reply(asked: Asked) -> bytes:
        if asked.parameter("since") == "now":
            return answer(items(now="now"))
        page = int(asked.parameter("page") or 1)
        there = f"/orders?page={page + 1}" if page < 3 else None
        return answer(items(2 * page - 1, 2 * page, now="now", more=there))

    source = {**POLL, "records": "/items", "next_page": "/more", "next_cursor": "/now"}
    async with serving(Api(reply)) as port:
        where = url(port, "/orders?since={cursor}")
        batches = await Feed(HttpConnector).take(6, where, **source)
        assert [batch.cursor for batch in batches] == [{"at": None}, {"at": None}, {"at": "now"}]
        again = await Feed(HttpConnector).take(6, where, after=batches[1].cursor, **source)
    assert seqs(records_of(again)) == [1, 2, 3, 4, 5, 6]


async def test_a_page_on_another_host_is_asked_for_without_the_headers_of_the_feed() -> None:
    elsewhere = Api(lambda _: answer(items(2)))
    async with serving(elsewhere, host="127.0.0.2") as port:
        there = f"http://127.0.0.2:{port}/more"
        home = Api(lambda _: answer(items(1, next=there)))
        feed = Feed(HttpConnector, secrets={"token": "s3cret"})
        source = {**POLL, "records": "/items", "next_page": "/next", "headers": {"X-Key": "{token}"}}
        async with serving(home) as home_port:
            batches = await feed.take(2, url(home_port), **source)
    assert seqs(records_of(batches)) == [1, 2]
    assert "s3cret" in str(home.asked)
    assert "s3cret" not in str(elsewhere.asked)


async def test_pages_in_a_circle_are_told() -> None:
    def reply(asked: Asked) -> bytes:
        there = "/b" if asked.target == "/a" else "/a"
        return answer(items(1), link=f'<{there}>; rel="next"')

    async with serving(Api(reply)) as port:
        source = {**POLL, "records": "/items", "next_page": "link"}
        _, error = await Feed(HttpConnector).read_to_end(url(port, "/a"), **source)
    assert_told(error, SourceUnavailable, "lead in a circle")


async def test_a_poll_asks_for_a_bounded_number_of_pages_and_the_next_one_goes_on_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_polling, "PAGES_MAX", 4, raising=False)

    def reply(asked: Asked) -> bytes:
        page = int(asked.parameter("page") or 1)
        return answer(items(page, more=f"/orders?page={page + 1}"))

    api = Api(reply)
    # From poll to poll: how long four pages take on a busy machine is missing from the pause behind them.
    source = {**POLL, "interval_s": 4, "records": "/items", "next_page": "/more"}
    async with serving(api) as port:
        batches = await Feed(HttpConnector).take(10, url(port), **source)
    assert seqs(records_of(batches)) == list(range(1, 11))
    pauses = [later - earlier > 1.5 for earlier, later in pairwise(api.asked_at)]
    assert pauses == [False] * 4 + [True] + [False] * 4


@pytest.mark.parametrize(
    ("there", "kind", "says"),
    [
        ("ftp://x/", SourceUnavailable, "an address that is not http:// or https://"),
        ("http://[::1", SourceUnavailable, "is invalid"),
        ("http://xn--/x", SourceUnavailable, "an address that is not http:// or https://"),
        ("http://a..b/x", SourceUnavailable, "an address that is not http:// or https://"),
        ("/" + "x" * 9000, FeedMisconfigured, "at most 8192 are allowed"),
    ],
)
async def test_a_next_page_that_cannot_be_asked_for_is_told(
    there: str, kind: type[Exception], says: str
) -> None:
    async with serving(Api(lambda _: answer(items(1, next=there)))) as port:
        source = {**POLL, "records": "/items", "next_page": "/next"}
        _, error = await Feed(HttpConnector).read_to_end(url(port), **source)
    assert_told(error, kind, says)


async def test_a_body_is_not_sent_to_the_host_of_another_page() -> None:
    elsewhere = Api(lambda _: answer(items(2)))
    async with serving(elsewhere, host="127.0.0.2") as port:
        there = f"http://127.0.0.2:{port}/more"
        home = Api(lambda _: answer(items(1, next=there)))
        source = {**POLL, "records": "/items", "next_page": "/next", "method": "POST", "body": "{token}"}
        async with serving(home) as home_port:
            feed = Feed(HttpConnector, secrets={"token": "s3cret"})
            _, error = await feed.read_to_end(url(home_port), **source)
        assert_told(error, FeedMisconfigured, "would get source.body too")
    assert home.asked[0].body == b"s3cret"
    assert elsewhere.asked == []
