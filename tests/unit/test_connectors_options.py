"""Options of the tcp connector: what is wrong is refused by name, and what there is is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.base import load_connector, parse_options
from feedq.connectors.endpoint import Endpoint, parse_endpoint
from feedq.connectors.tcp import TcpOptions
from feedq.errors import InvalidInput

URL = "tcp://127.0.0.1:7001"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "connectors.md"


def options(**source: Any) -> TcpOptions:
    parsed = parse_options("tcp", {"url": URL, **source})
    assert isinstance(parsed, TcpOptions)
    return parsed


def refusal(**source: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        options(**source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("tcp://127.0.0.1:7001", Endpoint("127.0.0.1", 7001, tls=False)),
        ("tls://feeds.example:443", Endpoint("feeds.example", 443, tls=True)),
        ("tcp://[::1]:65535", Endpoint("::1", 65535, tls=False)),
        ("tcp://[fe80::1%eth0]:1", Endpoint("fe80::1%eth0", 1, tls=False)),
        ("tcp://bücher.example:1", Endpoint("bücher.example", 1, tls=False)),
    ],
)
def test_an_endpoint_is_read_and_shown_alike(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint
    assert str(endpoint) == url


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
        ({"cursor": "/seq", "format": "text"}, "source.cursor: needs source.format json, not text"),
        ({"framing": "frames"}, "source.framing: Input should be 'lines' or 'delimiter'"),
        ({"framing": "delimiter"}, "source.delimiter: must not be empty with source.framing delimiter"),
        ({"framing": "delimiter", "delimiter": ""}, "source.delimiter: must not be empty"),
        ({"framing": "delimiter", "delimiter": r"\y"}, "source.delimiter: unknown escape"),
        ({"delimiter": "|"}, "source.delimiter: needs source.framing delimiter"),
        ({"format": "xml"}, "source.format: Input should be 'json', 'text' or 'bytes'"),
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


@pytest.mark.parametrize("option", ["max_record_bytes", "buffer_bytes"])
def test_sizes_have_both_ends(option: str) -> None:
    assert getattr(options(**{option: 1}), option) == 1
    assert getattr(options(**{option: 64 * 2**20}), option) == 64 * 2**20
    assert refusal(**{option: 0}).startswith(f"source.{option}: ")
    assert refusal(**{option: 64 * 2**20 + 1}).startswith(f"source.{option}: ")


def test_known_secrets_may_stand_in_a_hello() -> None:
    assert options(hello="{token}", secrets={"token": "${env:A}"}).hello == "{token}"


def test_every_option_is_documented_with_its_default() -> None:
    documented = DOCS.read_text(encoding="utf-8")
    missing = [row for row in option_rows() if row not in documented]
    assert not missing, "add to docs/reference/connectors.md:\n" + "\n".join(missing)


def option_rows() -> list[str]:
    """A Markdown row an option, as the reference must have it."""
    rows = []
    for name, field in load_connector("tcp").Options.model_fields.items():
        assert field.description, f"{name} has no description"
        default = "required" if field.is_required() else show_default(field.default)
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return rows


def show_default(value: Any) -> str:
    match value:
        case None | "":
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
    return "–" if value == {} else f"`{value}`"
