"""Options of the tcp connector, and those it shares with others: what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.connectors.tcp import Hello, TcpOptions
from feedq.connectors.wire.remote import Location
from feedq.errors import InvalidInput

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
        ("127.0.0.1:7001", "must be tcp://host:port or tls://host:port"),
        ("http://host:80", "must be tcp://host:port or tls://host:port"),
        ("tcp://host", "needs a port"),
        ("tcp://host:", "needs a port"),
        ("tcp://host:0", "needs a port"),
        ("tcp://host:65536", "cannot be read"),
        ("tcp://host:http", "cannot be read"),
        ("tcp://:7001", "needs a host"),
        ("tcp://[::1:7001", "cannot be read"),
        ("tcp://::1:7001", "cannot be"),
        ("tcp://[nonsense]:7001", "cannot be"),
        ("tcp://a..b:7001", "a host that cannot be one"),
        (f"tcp://{'a' * 64}:7001", "a host that cannot be one"),
        ("tcp://host:7001/path", "something after the port"),
        ("tcp://host:7001?x=1", "something after the port"),
        ("tcp://host:7001#", "something after the port"),
        ("tcp://ho st:7001", "a space or a control character"),
        ("tcp://host:7001\n", "a space or a control character"),
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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"hello": "{tokn}"}, "source.hello: {tokn} is no placeholder"),
        ({"hello": r"\q"}, r"source.hello: unknown escape '\\q'"),
        ({"cursor": "seq"}, "source.cursor: 'seq' is no JSON pointer"),
        ({"hello": 5}, "source.hello: must be a text, or a list of texts"),
        ({"hello": ["a", "{tokn}"]}, "source.hello: {tokn} is no placeholder"),
        ({"hello": [{"say": "a"}]}, "source.hello.0.say: unknown option"),
        ({"hello": [{"expect": r"\q"}]}, r"source.hello.0.expect: unknown escape '\\q'"),
        ({"hello": [{"expect": "x" * 65_537}]}, "source.hello.0.expect: must be at most 65536 bytes"),
        (
            {"ping": {"prefix": "", "answer": "x"}},
            "source.ping.prefix: String should have at least 1 character",
        ),
        ({"ping": {"prefix": r"\q", "answer": "x"}}, "source.ping.prefix: unknown escape"),
        ({"ping": {"prefix": "a"}}, "source.ping.answer: Field required"),
        ({"ping": {"prefix": "a", "answer": "{token}"}}, "source.ping.answer: {token} is no placeholder"),
        ({"cursor": "/seq", "format": "text"}, "source.cursor: needs source.format json or csv, not text"),
        ({"framing": "frames"}, "source.framing: Input should be 'lines', 'delimiter' or 'length'"),
        ({"framing": "delimiter"}, "source.delimiter: must not be empty with source.framing delimiter"),
        ({"framing": "delimiter", "delimiter": ""}, "source.delimiter: must not be empty"),
        ({"framing": "delimiter", "delimiter": r"\y"}, "source.delimiter: unknown escape"),
        ({"delimiter": "|"}, "source.delimiter: needs source.framing delimiter"),
        ({"length_bytes": 4}, "source.length_bytes: needs source.framing length"),
        ({"length_order": "little"}, "source.length_order: needs source.framing length"),
        ({"length_counts_itself": False}, "source.length_counts_itself: needs source.framing length"),
        ({"framing": "length", "length_bytes": 3}, "source.length_bytes: Input should be 1, 2 or 4"),
        ({"framing": "length", "delimiter": "|"}, "source.delimiter: needs source.framing delimiter"),
        ({"format": "xml"}, "source.format: Input should be 'json', 'csv', 'text' or 'bytes'"),
        ({"verify": False}, "source.verify: needs a tls:// source.url"),
        ({"ca_file": "/ca.pem"}, "source.ca_file: needs a tls:// source.url"),
        ({"server_name": "a"}, "source.server_name: needs a tls:// source.url"),
        ({"url": "tls://a:1", "key_file": "/key.pem"}, "source.key_file: needs source.cert_file"),
        ({"secrets": {"token": "hunter2"}}, "source.secrets: 'token' is no reference"),
        ({"secrets": {"cursor": "${env:A}"}}, "source.secrets: 'cursor' stands for something else"),
        ({"secrets": {"a-b": "${env:A}"}}, "source.secrets: 'a-b' cannot name a secret"),
    ],
)
def test_a_wrong_option_is_refused_by_name(source: dict[str, Any], message: str) -> None:
    assert refusal(**source).startswith(message)


def test_a_secret_written_into_the_feed_is_not_repeated() -> None:
    assert "hunter2" not in refusal(secrets={"token": "hunter2"})


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
