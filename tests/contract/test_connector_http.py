"""The http connector reading one answer that never ends, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from feedq.connectors.http import HttpConnector
from feedq.connectors.http_client import location_of, places_for_headers
from feedq.core.permission import Permissions, parse_networks
from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from feedq.records.turns import PIECE_BYTES
from feedq.testing.loopback import Script as Serve
from feedq.testing.loopback import serving
from tests.certificates import Authority
from tests.contract.http_source import (
    LAST_CHUNK,
    Asked,
    answer,
    chunk,
    head,
    read_request,
)
from tests.contract.loopback import Feed, assert_told, records_of, until_closed

LINES = b"".join(b'{"seq": %d}\n' % n for n in range(1, 101))


def url(port: int, target: str = "/orders") -> str:
    return f"http://127.0.0.1:{port}{target}"


class Script:
    """Answers each request with the next of these bytes, then closes; keeps what was asked."""

    def __init__(self, *answers: bytes, crumbs: int = 0, stays: bool = False) -> None:
        self.asked: list[Asked] = []
        self._answers = list(answers)
        self._crumbs = crumbs
        self._stays = stays

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await read_request(reader))
        sent = self._answers[min(len(self.asked), len(self._answers)) - 1]
        step = self._crumbs or len(sent) or 1
        for start in range(0, len(sent), step):
            writer.write(sent[start : start + step])
            await writer.drain()
            if self._crumbs:
                # The connector gets to see each crumb by itself.
                await asyncio.sleep(0)
        if self._stays:
            await until_closed(reader)


# -- what comes through --------------------------------------------------------------------------------


@pytest.mark.parametrize("crumbs", [0, 1])
@pytest.mark.parametrize(
    "sent",
    [
        answer(LINES),
        head() + LINES,
        head(transfer_encoding="chunked") + chunk(LINES) + LAST_CHUNK,
        head(transfer_encoding="chunked") + b"".join(map(chunk, LINES.splitlines(True))) + LAST_CHUNK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(LINES),
        answer(gzip.compress(LINES), content_encoding="gzip"),
        answer(gzip.compress(LINES[:50]) + gzip.compress(LINES[50:]), content_encoding="x-gzip"),
        head(content_encoding="GZIP", transfer_encoding="chunked")
        + b"".join(chunk(gzip.compress(LINES)[i : i + 9]) for i in range(0, len(gzip.compress(LINES)), 9))
        + LAST_CHUNK,
    ],
    ids=["length", "close", "one chunk", "chunks", "continue", "gzip", "gzips", "gzip in chunks"],
)
async def test_an_answer_comes_through_however_it_is_framed_packed_and_cut(sent: bytes, crumbs: int) -> None:
    feed = Feed(HttpConnector)
    async with serving(Script(sent, crumbs=crumbs)) as port:
        batches, error = await feed.read_to_end(url(port), cursor="/seq")
    assert records_of(batches) == LINES.splitlines()
    assert batches[-1].cursor == 100
    assert feed.connected == 1
    assert str(error) == f"http://127.0.0.1:{port}: the source ended its answer"


async def test_the_request_says_what_the_options_do() -> None:
    script = Script(answer(b'{"seq": 8}\n'))
    feed = Feed(HttpConnector, secrets={"token": "a b/c"})
    source: dict[str, Any] = {
        "headers": {"X-Key": "{token}", "X-Feed": "{name}", "X-At": "{cursor}", "User-Agent": "mine"},
        "cursor": "/seq",
    }
    async with serving(script) as port:
        where = url(port, "/o/{name}?key={token}&after={cursor}&all=1")
        await feed.read_to_end(where, **source)
        await feed.read_to_end(where, after="ü&7", **source)
    first, second = script.asked
    assert first.target == "/o/acme%2Forders?key=a%20b%2Fc&all=1"
    assert second.target == "/o/acme%2Forders?key=a%20b%2Fc&after=%C3%BC%267&all=1"
    assert first.method == "GET"
    assert first.headers["host"] == f"127.0.0.1:{port}"
    assert first.headers["x-key"] == "a b/c"
    assert first.headers["x-feed"] == "acme/orders"
    assert first.headers["user-agent"] == "mine"
    assert first.headers["accept-encoding"] == "gzip"
    assert "x-at" not in first.headers
    assert second.headers["x-at"] == "ü&7".encode().decode("latin-1")


async def test_a_body_is_sent_with_json_in_its_places() -> None:
    script = Script(answer(b'{"seq": 8}\n'))
    body = r'{"feed": {name}, "after": {cursor}, "token": "{token}"}\n'
    headers = {"Content-Type": "application/json"}
    source: dict[str, Any] = {"method": "POST", "body": body, "headers": headers}
    async with serving(script) as port:
        feed = Feed(HttpConnector, secrets={"token": "s3cret"})
        await feed.read_to_end(url(port), **source)
        await feed.read_to_end(url(port), after=7, **source)
    assert [json.loads(asked.body) for asked in script.asked] == [
        {"feed": "acme/orders", "after": after, "token": "s3cret"} for after in (None, 7)
    ]
    assert script.asked[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("sent", "kind", "counts"),
    [
        (answer(b'{"seq": 1}\n{"seq": 2}'), "json", True),
        (head(transfer_encoding="chunked") + chunk(b'{"seq": 1}\n[2]') + LAST_CHUNK, "json", True),
        (head() + b'{"seq": 1}\n{"seq": 2}', "json", False),
        (answer(b'{"seq": 1}\n{"seq": 2'), "json", False),
        (answer(b'{"seq": 1}\n12'), "json", False),
        (answer(b"one\ntwo"), "text", False),
    ],
)
async def test_a_record_without_its_end_mark_counts_only_if_it_is_sure_to_be_whole(
    sent: bytes, kind: str, counts: bool
) -> None:
    async with serving(Script(sent)) as port:
        batches, error = await Feed(HttpConnector).read_to_end(url(port), format=kind)
    assert len(records_of(batches)) == 1 + counts
    assert ("in the middle of a record" in str(error)) is not counts


# -- what an answer says -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 405, 410, 422])
async def test_a_request_that_is_refused_fails_the_feed(status: int) -> None:
    feed = Feed(HttpConnector, secrets={"token": "s3cret"})
    async with serving(Script(answer(b"s3cret", f"{status} s3cret"))) as port:
        batches, error = await feed.read_to_end(url(port, "/?key={token}"))
    assert batches == []
    assert isinstance(error, FeedMisconfigured)
    assert str(error).startswith(f"http://127.0.0.1:{port}: ")
    assert f"({status})" in str(error)
    assert "check source." in str(error)
    assert not feed.connected


@pytest.mark.parametrize(
    ("status", "retry_after", "says"),
    [
        (500, "", "answered 500 Internal Server Error"),
        (429, "17", "answered 429 Too Many Requests, and asks us to try again in 17 s"),
        (503, "soon", "answered 503 Service Unavailable"),
        (404, "", "has nothing there; check source.url (404)"),
        (204, "", "answered 204, and without content"),
        (302, "", "answered 302 Found"),
    ],
)
async def test_trouble_of_the_source_is_told(status: int, retry_after: str, says: str) -> None:
    headers = {"retry_after": retry_after} if retry_after else {}
    sent = head(f"{status} Whatever", content_length="0", **headers)
    async with serving(Script(sent)) as port:
        _, error = await Feed(HttpConnector).read_to_end(url(port))
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"http://127.0.0.1:{port}: {says}"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "closed by the peer before it answered"),
        (b"SSH-2.0-s3cret\r\n\r\n", "is not HTTP/1.1"),
        (head(content_length="100") + b'{"seq": 1}\n', "closed by the peer in the middle of its answer"),
        (
            head(transfer_encoding="chunked") + b'b\r\n{"seq": 1}\n',
            "closed by the peer in the middle of its answer",
        ),
        (head(transfer_encoding="chunked") + b's3cret\r\n{"seq": 1}\n', "is not HTTP/1.1"),
        (head(content_encoding="a, s3cret b") + b"x", "the content encoding that it names"),
        (answer(b"s3cret", content_encoding="gzip"), "its gzip data cannot be unpacked"),
        (answer(gzip.compress(LINES)[:-9], content_encoding="gzip"), "its gzip data is incomplete"),
    ],
    ids=range(8),
)
async def test_what_is_no_proper_answer_is_told_and_not_quoted(sent: bytes, says: str) -> None:
    feed = Feed(HttpConnector, secrets={"token": "s3cret"})
    async with serving(Script(sent)) as port:
        _, error = await feed.read_to_end(url(port, "/?key={token}"))
    assert_told(error, SourceUnavailable, says)


async def test_an_answer_that_goes_silent_is_stalled_and_crumbs_are_signs_of_life() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head(transfer_encoding="chunked"))
        for _ in range(30):
            writer.write(chunk(b"\n"))
            await writer.drain()
            await asyncio.sleep(0.1)
        await until_closed(reader)

    began = asyncio.get_running_loop().time()
    async with serving(script) as port:
        _, error = await Feed(HttpConnector).read_to_end(url(port), idle_timeout_s=2)
    assert_told(error, SourceSilent, "nothing received for 2 s (source.idle_timeout_s)")
    assert asyncio.get_running_loop().time() - began > 4


async def test_a_little_gzip_that_holds_much_is_unpacked_only_as_it_is_taken() -> None:
    packed = gzip.compress((b"x" * 99 + b"\n") * 400_000)
    async with serving(Script(answer(packed, content_encoding="gzip"))) as port:
        feed = Feed(HttpConnector)
        async with aclosing(feed.open(url(port), format="text")) as stream:
            for _ in range(20):
                assert (await anext(stream)).size <= 512 * 1024


async def test_a_little_gzip_that_holds_much_and_no_record_leaves_the_loop_to_others() -> None:
    pieces = 200
    packed = gzip.compress(b"\n" * (pieces * PIECE_BYTES))
    async with serving(Script(answer(packed, content_encoding="gzip"))) as port:
        reading = asyncio.ensure_future(Feed(HttpConnector).read_to_end(url(port), format="text"))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
    batches, _ = await reading
    assert batches == []
    assert turns > pieces


# -- secrets and the environment -----------------------------------------------------------------------


async def test_a_secret_that_no_header_can_hold_is_told_and_not_shown() -> None:
    feed = Feed(HttpConnector, secrets={"token": "s3\ncret"})
    _, error = await feed.read_to_end("http://127.0.0.1:1/", headers={"X-Key": "{token}"})
    assert_told(error, FeedMisconfigured, "X-Key")


LINE = b'{"seq": 1}\n'

SECRETS = {"token": "s3cret"}


class Site:
    """Redirects from paths to addresses, and answers everywhere else."""

    def __init__(self, redirects: Mapping[str, Callable[[], str]], *, status: str = "302 Found") -> None:
        self.asked: list[Asked] = []
        self._redirects = redirects
        self._status = status

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read_request(reader)
        self.asked.append(asked)
        there = self._redirects.get(asked.target.partition("?")[0])
        if there is None:
            writer.write(answer(LINE))
        else:
            writer.write(head(self._status, location=there(), content_length="5") + b"moved")
        await writer.drain()


async def ended(site: Site, *, feed: Feed | None = None, **source: Any) -> tuple[list[bytes], FeedqError]:
    async with serving(site) as port:
        batches, error = await (feed or Feed(HttpConnector)).read_to_end(url(port, "/old"), **source)
    return records_of(batches), error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_on_the_same_host_are_followed_with_all_headers(status: int) -> None:
    site = Site({"/old": lambda: "/new?page=2"}, status=f"{status} Moved")
    feed = Feed(HttpConnector, secrets=SECRETS)
    records, _ = await ended(site, feed=feed, headers={"X-Key": "{token}"})
    assert records == [LINE[:-1]]
    assert [asked.target for asked in site.asked] == ["/old", "/new?page=2"]
    assert site.asked[1].headers["x-key"] == "s3cret"
    assert feed.guard.seen == 2


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.1"])
async def test_headers_of_the_feed_do_not_go_to_another_host_or_port(host: str) -> None:
    elsewhere = Site({})
    async with serving(elsewhere, host=host) as port:
        home = Site({"/old": lambda: f"http://{host}:{port}/new"})
        feed = Feed(HttpConnector, secrets=SECRETS)
        headers = {"Authorization": "Bearer {token}", "X-Key": "{token}", "Cookie": "k={token}"}
        records, _ = await ended(home, feed=feed, headers=headers)
    assert records == [LINE[:-1]]
    assert set(elsewhere.asked[0].headers) == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "connection",
    }
    assert "s3cret" not in str(elsewhere.asked)


@pytest.mark.parametrize(
    ("home", "there", "are_sent"),
    [
        ("http://a.test/", "https://a.test/x", True),
        ("http://a.test:80/", "https://A.test:443/x", True),
        ("http://a.test:8080/", "https://a.test/x", False),
        ("http://a.test/", "https://a.test:8443/x", False),
        ("http://a.test/", "https://b.test/x", False),
        ("https://a.test/", "http://a.test/x", False),
    ],
)
def test_headers_go_along_where_the_same_host_moves_to_tls(home: str, there: str, *, are_sent: bool) -> None:
    places = places_for_headers(location_of(httpx.URL(home)))
    assert (location_of(httpx.URL(there)) in places) is are_sent


async def test_whoever_refuses_a_redirected_request_without_the_headers_is_named() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head("401 Unauthorized", content_length="0"))
        await writer.drain()

    async with serving(refuses, host="127.0.0.2") as port:
        home = Site({"/old": lambda: f"http://127.0.0.2:{port}/new"})
        _, error = await ended(home, headers={"Authorization": "x"})
    assert_told(
        error, FeedMisconfigured, f"if they are meant for http://127.0.0.2:{port}, set source.url to it"
    )


async def test_a_redirect_to_an_address_that_is_denied_is_not_followed() -> None:
    elsewhere = Site({})
    async with serving(elsewhere, host="127.0.0.2") as port:
        home = Site({"/old": lambda: f"http://127.0.0.2:{port}/new"})
        permissions = Permissions(deny=parse_networks(["127.0.0.2/32"]))
        _, error = await ended(home, feed=Feed(HttpConnector, permissions=permissions))
    assert_told(error, FeedMisconfigured, "FEEDQ_EGRESS_DENY")
    assert elsewhere.asked == []


async def test_a_circle_of_redirects_ends() -> None:
    site = Site({"/old": lambda: "/new", "/new": lambda: "/old"})
    _, error = await ended(site)
    assert_told(error, SourceUnavailable, "more than 5 redirects")
    assert len(site.asked) == 6


@pytest.mark.parametrize(
    "there",
    [
        "ftp://127.0.0.1/x",
        "http://[::1",
        "http://a:b/",
        "mailto:x@y.z",
        "http://xn--/x",
        "http://a..b/x",
        f"http://{'a' * 70}/x",
    ],
)
async def test_a_redirect_to_nowhere_is_told(there: str) -> None:
    _, error = await ended(Site({"/old": lambda: there}))
    assert isinstance(error, SourceUnavailable)
    assert there not in str(error)


async def test_a_body_is_not_sent_to_another_host() -> None:
    elsewhere = Site({})
    async with serving(elsewhere) as port:
        home = Site({"/old": lambda: f"http://127.0.0.1:{port}/new"}, status="307 Temporary Redirect")
        feed = Feed(HttpConnector, secrets=SECRETS)
        _, error = await ended(home, feed=feed, method="POST", body="{token}")
    assert_told(error, FeedMisconfigured, "source.body")
    assert elsewhere.asked == []


async def test_a_post_that_is_seen_off_to_another_place_goes_on_as_a_get() -> None:
    site = Site({"/old": lambda: "/new"}, status="303 See Other")
    records, _ = await ended(site, method="POST", body="please")
    assert records == [LINE[:-1]]
    assert [(asked.method, asked.body) for asked in site.asked] == [("POST", b"please"), ("GET", b"")]


# -- with TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_the_name_of_the_server_and_a_client_certificate_are_for_home_only(
    authority: Authority,
) -> None:
    seen: list[tuple[str | None, bool]] = []

    def script_at(there: str | None) -> Serve:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            seen.append((there, bool(writer.get_extra_info("peercert"))))
            writer.write(
                answer(LINE) if there is None else head("302 Found", location=there, content_length="0")
            )
            await writer.drain()

        return script

    lenient = authority.server("localhost", client=ssl.CERT_OPTIONAL)
    async with serving(script_at(None), tls=lenient) as away:
        there = f"https://localhost:{away}/"
        home_tls = authority.server("orders.acme.test", client=ssl.CERT_REQUIRED)
        async with serving(script_at(there), tls=home_tls) as home:
            source = {
                "ca_file": authority.ca_file,
                **authority.files("client@acme.test"),
                "server_name": "orders.acme.test",
            }
            where = f"https://127.0.0.1:{home}/"
            batches, _ = await Feed(HttpConnector).read_to_end(where, **source)
    assert records_of(batches) == [LINE[:-1]]
    assert seen == [(there, True), (None, False)]


async def test_a_redirect_that_gives_up_tls_is_not_followed(authority: Authority) -> None:
    plain = Site({})
    async with serving(plain) as port:
        site = Site({"/old": lambda: url(port)})
        async with serving(site, tls=authority.server("127.0.0.1")) as home:
            where = f"https://127.0.0.1:{home}/old"
            _, error = await Feed(HttpConnector).read_to_end(where, ca_file=authority.ca_file)
    assert_told(error, FeedMisconfigured, "without TLS")
    assert plain.asked == []
