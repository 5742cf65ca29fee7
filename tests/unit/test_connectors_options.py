"""Options of the tcp connector, and those it shares with others: what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.base import Context, parse_options
from feedq.connectors.reading import RecordStream
from feedq.connectors.tcp import Hello, TcpOptions
from feedq.connectors.wire.connection import READ_BYTES
from feedq.connectors.wire.remote import Location
from feedq.core.clock import SystemClock
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, InvalidInput
from feedq.records.template import compile_template, fill_in, unescape
from feedq.records.turns import PIECE_BYTES
from feedq.testing.loopback import RecordingGuard

URL = "tcp://127.0.0.1:7001"


def options(**source: Any) -> TcpOptions:
    parsed = parse_options("tcp", {"url": URL, **source})
    assert isinstance(parsed, TcpOptions)
    return parsed


def refusal(**source: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        options(**source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("tcp://127.0.0.1:7001", Location("tcp", "127.0.0.1", 7001, tls=False, target="")),
        ("tls://feeds.example:443", Location("tls", "feeds.example", 443, tls=True, target="")),
        ("tcp://[::1]:65535", Location("tcp", "::1", 65535, tls=False, target="")),
        ("tcp://[fe80::1%eth0]:1", Location("tcp", "fe80::1%eth0", 1, tls=False, target="")),
        ("tcp://bücher.example:1", Location("tcp", "bücher.example", 1, tls=False, target="")),
    ],
)
def test_a_url_is_read_and_shown_alike(url: str, location: Location) -> None:
    assert options(url=url).location == location
    assert str(location) == url


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must be tcp://host:port or tls://host:port"),
        ("http://host:80", "must be tcp://host:port or tls://host:port"),
        ("tcp://host", "needs a port"),
        ("tcp://host:65536", "cannot be read"),
        ("tcp://:7001", "needs a host"),
        ("tcp://a..b:7001", "an invalid host"),
        ("tcp://host:7001/path", "something after the port"),
        ("tcp://ho st:7001", "a space or a control character"),
    ],
)
def test_a_bad_url_is_refused_with_the_shape_it_must_have(url: str, complaint: str) -> None:
    message = refusal(url=url)
    assert message.startswith("source.url: ")
    assert complaint in message


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    message = refusal(url="tcp://user:hunter2@host:7001")
    assert message.startswith("source.url: takes no user and password")
    assert "hunter2" not in message


def test_a_missing_url_and_an_unknown_option_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"^source\.url: Field required$"):
        parse_options("tcp", {})
    assert refusal(colour="red").startswith("source.colour: unknown option; known are buffer_bytes, ")


def test_every_wrong_option_is_named_at_once() -> None:
    message = refusal(url="x", hello=r"\q", cursor="seq")
    assert all(f"source.{option}: " in message for option in ("url", "hello", "cursor"))


@pytest.mark.parametrize("option", ["connect_timeout_s", "idle_timeout_s"])
def test_durations_have_both_ends(option: str) -> None:
    assert getattr(options(**{option: 86_400}), option) == 86_400
    assert refusal(**{option: 86_401}).startswith(f"source.{option}: ")
    assert refusal(**{option: -1}).startswith(f"source.{option}: ")
    assert refusal(**{option: float("nan")}).startswith(f"source.{option}: ")


def test_an_idle_timeout_of_zero_is_none_and_a_connect_timeout_of_zero_is_refused() -> None:
    assert options(idle_timeout_s=0).idle_timeout_s == 0
    assert refusal(connect_timeout_s=0).startswith("source.connect_timeout_s: ")


@pytest.mark.parametrize(("option", "most"), [("max_record_bytes", 32 * 2**20), ("buffer_bytes", 16 * 2**20)])
def test_sizes_have_both_ends(option: str, most: int) -> None:
    assert getattr(options(**{option: 1}), option) == 1
    assert getattr(options(**{option: most}), option) == most
    assert refusal(**{option: 0}).startswith(f"source.{option}: ")
    assert refusal(**{option: most + 1}).startswith(f"source.{option}: ")


def test_a_hello_is_a_text_or_several_each_perhaps_with_what_it_expects() -> None:
    assert options().hello == options(hello="").hello == ()
    assert options(hello="{token}", secrets={"token": "${env:A}"}).hello == (Hello(send="{token}"),)
    several = options(hello=["a", {"send": "b", "expect": "ok"}, {"expect": "ready"}]).hello
    assert several == (Hello(send="a"), Hello(send="b", expect="ok"), Hello(expect="ready"))


def test_a_cursor_may_point_into_csv() -> None:
    source = {"format": "csv", "csv": {"fields": ["seq"]}}
    assert options(**source, cursor="/seq").cursor == "/seq"
    assert refusal(**source, cursor="/sqe").startswith("source.cursor: ")


def test_csv_whose_fields_its_first_line_names_is_given_as_json() -> None:
    named = options(format="csv", csv={"header": True}, cursor="/seq")
    assert (named.record_format, named.record_csv) == ("json", None)
    assert options(format="csv", csv={"fields": ["seq"]}).record_format == "csv"
    (batch,) = a_stream(named).take(b"seq,price\n1,2.50\n2,3\n")
    assert (batch.lines, batch.cursor) == (b'{"seq":1,"price":"2.50"}\n{"seq":2,"price":3}\n', 2)
    assert refusal(format="csv", csv={}).startswith("source.csv.header: must be true")


def test_a_stream_lands_what_came_before_and_says_behind_which_cursor_it_cannot_go_on() -> None:
    stream = a_stream(options(cursor="/seq", max_record_bytes=9), cursor=3)
    assert not stream.was_heard
    assert [one.cursor for one in stream.take(b'{"seq":4')] == []
    assert stream.was_heard
    taken = stream.take(b'}\n{"seq":5}\n{"seq":6, "x": 1}\n')
    batch = next(taken)
    assert (batch.split(), batch.cursor) == ((b'{"seq":4}', b'{"seq":5}'), 5)
    with pytest.raises(FeedMisconfigured, match=r"record of more than 9 bytes after cursor 5; raise"):
        next(taken)


def a_stream(source: TcpOptions, *, cursor: JSON = None) -> RecordStream[bytes | bytearray]:
    context = Context(
        feed="a/b", clock=SystemClock(), guard=RecordingGuard(), on_connected=lambda: None, secrets={}
    )
    return source.record_stream(source.stream_framer(), context, where=URL, cursor=cursor)


# -- every connector ---------------------------------------------------------------------------------------

MINIMAL: dict[str, dict[str, Any]] = {
    "tcp": {"url": URL},
    "mqtt": {"url": "mqtt://127.0.0.1", "topics": ["plant/#"]},
    "nats": {"url": "nats://127.0.0.1", "stream": "orders"},
    "redis": {"url": "redis://127.0.0.1", "streams": ["orders"]},
    "websocket": {"url": "ws://feeds.example"},
}
HTTP = {"url": "http://127.0.0.1/orders?after={cursor}"}
POLL = {**HTTP, "mode": "poll"}
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "tcp": [
        ({"hello": "{tokn}"}, "source.hello: {tokn} is not a placeholder"),
        ({"hello": 5}, "source.hello: must be a text, or a list of texts"),
        ({"hello": [{"say": "a"}]}, "source.hello.0.say: unknown option"),
        (
            {"ping": {"prefix": "", "answer": "x"}},
            "source.ping.prefix: String should have at least 1 character",
        ),
        ({"cursor": "/seq", "format": "text"}, "source.cursor: needs source.format json or csv, not text"),
        ({"framing": "delimiter"}, "source.delimiter: must not be empty with source.framing delimiter"),
        ({"length_bytes": 4}, "source.length_bytes: needs source.framing length"),
        ({"ca_file": "/ca.pem"}, "source.ca_file: needs a tls:// source.url"),
        ({"url": "tls://a:1", "key_file": "/key.pem"}, "source.key_file: needs source.cert_file"),
        ({"secrets": {"token": "hunter2"}}, "source.secrets: 'token' is not a reference"),
        ({"secrets": {"cursor": "${env:A}"}}, "source.secrets: 'cursor' has another meaning"),
    ],
    "mqtt": [
        ({"url": "tcp://host:1883"}, "source.url: must be mqtt://host or mqtts://host"),
        ({"topics": ["a", "a"]}, "source.topics: names a topic filter twice"),
        ({"password": "x"}, "source.password: needs source.username"),
        ({"envelope": True, "format": "text"}, "source.envelope: needs source.format json"),
    ],
    "nats": [
        ({"url": "tcp://host:4222"}, "source.url: must be nats://host or tls://host"),
        ({"stream": "a.b"}, "source.stream: must be a name"),
        ({"token": "x", "username": "y"}, "source.token: cannot be combined with source.username"),
    ],
    "redis": [
        ({"url": "http://host"}, "source.url: must be redis://host or rediss://host"),
        ({"url": "redis://host/orders"}, "source.url: has a path that is not a database"),
        ({"url": "redis://user:s3cret@host"}, "source.url: takes no user and password"),
        ({"streams": [""]}, "source.streams: holds an empty name"),
        (
            {"format": "csv", "csv": {"fields": ["a"], "header": True}},
            "source.csv: messages have no header lines",
        ),
    ],
    "websocket": [
        ({"url": "http://feeds.example"}, "source.url: must be ws://host or wss://host"),
        ({"url": "ws://{name}.example/"}, "source.url: takes placeholders in its path and query only"),
        (
            {"url": "ws://feeds.example/{cursor}"},
            "source.initial_cursor: is needed for a {cursor} in the path",
        ),
        (
            {"headers": {"Sec-WebSocket-Key": "x"}},
            "source.headers: 'Sec-WebSocket-Key' is set by feedq itself",
        ),
        (
            {"format": "csv", "csv": {"header": True}},
            "source.csv: needs fields: only the first line of a file or a stream can name them",
        ),
        ({"ignore": [{}]}, "source.ignore: holds an entry without a pointer"),
    ],
    "http": [
        ({"url": "ftp://acme.test/"}, "source.url: must be http://host or https://host"),
        ({**HTTP, "body": "x"}, "source.body: needs source.method POST"),
        ({**HTTP, "method": "POST", "body": "{s3cret}"}, "source.body: {s3cret} is not a placeholder"),
        ({**HTTP, "interval_s": 5, "records": ""}, "source: interval_s, records need source.mode poll"),
        ({**POLL, "framing": "lines"}, "source: framing need source.records framed"),
        ({**POLL, "cursor": "/seq"}, "source: cursor points into a record, and needs records"),
        (
            {**POLL, "records": "", "cursor": "/seq", "next_cursor": "/next"},
            "source: cursor and next_cursor cannot be combined",
        ),
        (
            {"url": "http://acme.test", "mode": "poll", "records": "", "cursor": "/seq"},
            "source: cursor has no effect without {cursor} in url, headers or body",
        ),
        (
            {"url": "http://acme.test", "mode": "poll", "next_cursor": "/next"},
            "source: next_cursor has no effect without {cursor}",
        ),
    ],
    "sse": [
        ({**HTTP, "envelope": True, "format": "text"}, "source.envelope: needs source.format json, not text"),
        ({**HTTP, "mode": "poll"}, "source.mode: unknown option"),
    ],
    "file": [
        ({}, "source.path: Field required"),
        ({"path": "log"}, "source.path: must be the absolute path of a file"),
        ({"path": "/a", "framing": "length", "start": "end"}, "source.start: needs source.framing lines"),
    ],
    "exec": [
        ({}, "source.command: Field required"),
        ({"command": ["sh"]}, "source.command: must begin with the absolute path of a program"),
        ({"command": ["/bin/sh", "{tokn}"]}, "source.command: {tokn} is not a placeholder"),
        (
            {"command": ["/bin/sh", "-t{token}"], "secrets": {"token": "${env:A}"}},
            "source.command: must not hold a secret ({token})",
        ),
        ({"command": ["/bin/sh"], "env": {"A-B": "1"}}, "source.env: 'A-B' cannot name a variable"),
        (
            {"command": ["/bin/sh"], "env": {"LD_PRELOAD": "/x.so"}},
            "source.env: LD_PRELOAD would make the program run other code",
        ),
    ],
}


@pytest.mark.parametrize(
    ("connector", "source", "complaint"),
    [(connector, *case) for connector, cases in WRONG.items() for case in cases],
)
def test_a_wrong_option_is_refused_by_name(connector: str, source: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_options(connector, {**MINIMAL.get(connector, {}), **source})
    assert complaint in str(caught.value)
    assert "s3cret@" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        {"format": "csv", "csv": {"fields": ["a"]}},
        {"framing": "delimiter", "delimiter": ";"},
        {"ping": {"prefix": "PING", "answer": "PONG"}},
    ],
)
def test_only_lines_that_are_quick_to_look_at_come_in_large_pieces(source: dict[str, Any]) -> None:
    assert options().piece_bytes == options(cursor="/seq").piece_bytes == READ_BYTES
    assert options(**source).piece_bytes == PIECE_BYTES


# -- templates ---------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"))
HELLO = r'{"feed": {name}, "from": {cursor}}\n'


def render(text: str, *, feed: str = "acme/orders", cursor: JSON = None, **secrets: str) -> bytes:
    return fill_in(text, feed=feed, cursor=cursor, secrets=secrets)


@given(texts, st.integers() | texts | st.none())
def test_a_json_hello_stays_json_whatever_fills_it(feed: str, cursor: int | str | None) -> None:
    # A backfill asks in the name of its feed.
    asked = feed.removesuffix("~backfill")
    assert msgspec.json.decode(render(HELLO, feed=feed, cursor=cursor)) == {"feed": asked, "from": cursor}


def test_what_is_filled_in_is_not_looked_at_again() -> None:
    assert render("{token} {cursor}", cursor="{token}", token=r"{cursor}\n") == rb'{cursor}\n "{token}"'


def test_a_secret_that_is_not_utf8_goes_out_as_it_came_in() -> None:
    assert render("{token}", token=b"\xff!".decode("utf-8", "surrogateescape")) == b"\xff!"


@pytest.mark.parametrize("text", ["{}", "{ name }", '{"name"}', "{{", "{na me}", "{1}", "{name", "name}", ""])
def test_other_braces_are_literal(text: str) -> None:
    assert render(text) == text.encode()


def test_an_unknown_placeholder_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ValueError, match=r"\{tokn\} is not a placeholder; known are cursor, name, token"):
        compile_template("{tokn}", secrets={"token"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\n\r\t\0", b"\n\r\t\0"),
        (r"\\n", b"\\n"),
        (r"\\", b"\\"),
        (r"\x00\xfF\x41", b"\x00\xffA"),
        ("\n", b"\n"),
        ("ä", "ä".encode()),
        ("", b""),
    ],
)
def test_escapes(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", [r"\q", r"\x4", r"\xzz", "\\", r"\u0041", "\\\n", r"\{name}"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown escape .*known are"):
        compile_template(text)
