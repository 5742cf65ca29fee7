"""Options of the http and sse connectors: what goes together, and what a mistake is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.connectors.http import HttpOptions
from feedq.connectors.protocol.http_client import named
from feedq.connectors.protocol.request_options import RETRY_AFTER_S_MAX, retry_after_s
from feedq.errors import InvalidInput

HTTP = {"url": "http://127.0.0.1/orders?after={cursor}"}
POLL = {**HTTP, "mode": "poll"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def told(connector: str, **source: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_options(connector, source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("connector", "source"),
    [
        ("http", HTTP),
        ("http", {**HTTP, "framing": "length", "format": "bytes"}),
        ("http", {**HTTP, "cursor": "/seq", "headers": {"X-Key": "{cursor}"}}),
        ("http", {"url": "https://acme.test", "method": "POST", "body": '{"from": {cursor}}'}),
        ("http", POLL),
        ("http", {**POLL, "records": "", "cursor": "/seq"}),
        ("http", {**POLL, "records": "/items", "next_cursor": "/next"}),
        ("http", {**POLL, "records": "/items", "next_page": "link"}),
        ("http", {**POLL, "next_page": "/next", "format": "json"}),
        ("http", {**POLL, "next_page": "link", "format": "bytes"}),
        ("http", {**POLL, "format": "csv", "csv": {"fields": ["a"]}, "records": "framed"}),
        ("http", {**POLL, "format": "text", "records": "framed", "framing": "delimiter", "delimiter": r"\0"}),
        ("sse", {"url": "https://acme.test/events"}),
        ("sse", {**HTTP, "events": ["update"], "envelope": True, "cursor": "/data/seq"}),
    ],
)
def test_options_that_go_together_are_accepted(connector: str, source: dict[str, Any]) -> None:
    parse_options(connector, source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"url": "ftp://acme.test/"}, "source.url: must be http://host or https://host"),
        ({"url": "http://s3cret@acme.test/"}, "source.url: takes no user and password"),
        ({"url": "http://a..b/"}, "source.url: has a host that cannot be one"),
        ({**HTTP, "verify": False}, "source.verify: needs a https:// source.url"),
        ({**HTTP, "method": "PUT"}, "source.method: "),
        ({**HTTP, "body": "x"}, "source.body: needs source.method POST"),
        ({**HTTP, "method": "POST", "body": "{s3cret}"}, "source.body: {s3cret} is no placeholder"),
        ({**HTTP, "headers": {"Content-Length": "1"}}, "source.headers: 'Content-Length' is set by feedq"),
        ({**HTTP, "headers": {"Expect": "1"}}, "source.headers: 'Expect' is set by feedq"),
        ({**HTTP, "interval_s": 5, "records": ""}, "source: interval_s, records need source.mode poll"),
        ({**HTTP, "next_cursor": "/x"}, "source: next_cursor need source.mode poll"),
        ({**POLL, "interval_s": 0}, "source.interval_s: "),
        ({**POLL, "records": "items"}, "source.records: 'items' is no JSON pointer"),
        ({**POLL, "next_cursor": "next"}, "source.next_cursor: 'next' is no JSON pointer"),
        ({**POLL, "next_page": "next"}, "source.next_page: 'next' is no JSON pointer"),
        (
            {**POLL, "records": "/x", "format": "text"},
            "source.records: is a JSON pointer and needs source.format json",
        ),
        ({**POLL, "framing": "lines"}, "source: framing need source.records framed"),
        ({**POLL, "format": "csv", "csv": {"fields": ["a"]}}, "source: format csv needs records: framed"),
        ({**POLL, "cursor": "/seq"}, "source: cursor points into a record, and needs records"),
        (
            {**POLL, "records": "", "cursor": "/seq", "next_cursor": "/next"},
            "source: cursor and next_cursor exclude each other",
        ),
        (
            {"url": "http://acme.test", "mode": "poll", "records": "", "cursor": "/seq"},
            "source: cursor is of no use without {cursor} in url, headers or body",
        ),
        (
            {"url": "http://acme.test", "mode": "poll", "next_cursor": "/next"},
            "source: next_cursor is of no use without {cursor}",
        ),
        ({"url": "http://acme.test/{cursor}"}, "source.initial_cursor: is needed"),
    ],
)
def test_a_mistake_in_http_options_is_told_by_its_name(source: dict[str, Any], says: str) -> None:
    message = told("http", **source)
    assert says in message
    assert "s3cret@" not in message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({**HTTP, "envelope": True, "format": "text"}, "source.envelope: needs source.format json, not text"),
        ({**HTTP, "events": []}, "source.events: "),
        ({**HTTP, "mode": "poll"}, "source.mode: unknown option"),
    ],
)
def test_a_mistake_in_sse_options_is_told_by_its_name(source: dict[str, Any], says: str) -> None:
    assert says in told("sse", **source)


def test_every_option_is_described() -> None:
    assert all(field.description for field in HttpOptions.model_fields.values())


# -- headers of answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("999999999", RETRY_AFTER_S_MAX),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", RETRY_AFTER_S_MAX),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_s(text, now=NOW) == seconds


def test_only_a_word_of_a_header_is_shown() -> None:
    assert named("text/html") == "'text/html'"
    assert named("s3cret of ours") == "that it names"
    assert named("x" * 100) == "that it names"
