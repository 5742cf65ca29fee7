"""Redirects of HTTP sources: how far they are followed, and what goes along."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.http import HttpConnector
from feedq.core.permission import Permissions, parse_networks
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.testing.loopback import Script, serving
from tests.certificates import Authority
from tests.contract.http_source import (
    Asked,
    answer,
    head,
    read_request,
)
from tests.contract.loopback import Feed, records_of

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


def url(port: int, target: str = "/") -> str:
    return f"http://127.0.0.1:{port}{target}"


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


async def test_a_redirect_to_an_address_that_is_denied_is_not_followed() -> None:
    elsewhere = Site({})
    async with serving(elsewhere, host="127.0.0.2") as port:
        home = Site({"/old": lambda: f"http://127.0.0.2:{port}/new"})
        permissions = Permissions(deny=parse_networks(["127.0.0.2/32"]))
        _, error = await ended(home, feed=Feed(HttpConnector, permissions=permissions))
    assert isinstance(error, FeedMisconfigured)
    assert "FEEDQ_EGRESS_DENY" in str(error)
    assert elsewhere.asked == []


async def test_a_circle_of_redirects_ends() -> None:
    site = Site({"/old": lambda: "/new", "/new": lambda: "/old"})
    _, error = await ended(site)
    assert isinstance(error, SourceUnavailable)
    assert "more than 5 redirects" in str(error)
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
    assert isinstance(error, FeedMisconfigured)
    assert "source.body" in str(error)
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


async def test_an_answer_comes_through_tls(authority: Authority) -> None:
    async with serving(Site({}), tls=authority.server("127.0.0.1")) as port:
        where = f"https://127.0.0.1:{port}/"
        batches, error = await Feed(HttpConnector).read_to_end(where, ca_file=authority.ca_file)
        _, refused = await Feed(HttpConnector).read_to_end(where)
    assert records_of(batches) == [LINE[:-1]]
    assert isinstance(error, SourceUnavailable)
    assert "certificate is not accepted" in str(refused)


async def test_the_name_of_the_server_and_a_client_certificate_are_for_home_only(
    authority: Authority,
) -> None:
    seen: list[tuple[str | None, bool]] = []

    def script_at(there: str | None) -> Script:
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
    assert isinstance(error, FeedMisconfigured)
    assert "without TLS" in str(error)
    assert plain.asked == []
