"""Which cursor follows from a person's wish, for each connector, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.core.model import JSON
from feedq.errors import InvalidInput
from feedq.sinks.base import check_cursor
from tests.fakes.sink import SinkFile
from tests.unit.command import Command

pytestmark = pytest.mark.usefixtures("control")

NAME = "acme/orders"
TCP: Mapping[str, Any] = {"url": "tcp://127.0.0.1:1", "cursor": "/seq"}
REDIS: Mapping[str, Any] = {"url": "redis://127.0.0.1:1", "streams": ["a", "b"]}
NATS: Mapping[str, Any] = {"url": "nats://127.0.0.1:1", "stream": "S"}
POLL: Mapping[str, Any] = {"url": "http://127.0.0.1/?after={cursor}", "mode": "poll", "next_cursor": "/next"}
MQTT: Mapping[str, Any] = {"url": "mqtt://127.0.0.1:1", "topics": ["t"]}
FILE: Mapping[str, Any] = {"path": "/var/log/x.log"}
KEYED: Mapping[str, Any] = {"columns": {"seq": "/seq"}, "key": ["seq"]}


@pytest.mark.parametrize(
    ("connector", "source", "cursor", "after"),
    [
        ("tcp", TCP, 5_000, 4_000),
        ("tcp", TCP, 300, 0),
        ("sse", {"url": "http://127.0.0.1/"}, "5000", "4000"),
        ("http", POLL, {"at": 5_000, "etag": "x", "seen": 3}, {"at": 4_000}),
        ("nats", NATS, {"seq": 5_000, "created": "c"}, {"seq": 4_000, "created": "c"}),
    ],
)
def test_cursors_that_count_go_back_by_records(
    connector: str, source: Mapping[str, Any], cursor: JSON, after: JSON
) -> None:
    assert parse_options(connector, source).cursor_back(cursor, 1_000) == after


def test_entries_of_redis_go_back_to_a_time_and_never_forward() -> None:
    at = datetime(2026, 11, 24, tzinfo=UTC)
    ms = int(at.timestamp() * 1000)
    options = parse_options("redis", REDIS)
    early = f"{ms - 5}-1"
    assert options.cursor_at({"a": f"{ms + 9_000}-0", "b": early}, at) == {
        "a": f"{ms - 1}-{2**64 - 1}",
        "b": early,
    }


@pytest.mark.parametrize(
    ("connector", "source", "cursor"),
    [
        ("redis", REDIS, {"a": "1-0"}),
        ("file", FILE, {"inode": 1, "offset": 2, "head": 3}),
        ("tcp", TCP, "2026-11-24T08:00Z"),
        ("tcp", TCP, True),
        ("mqtt", MQTT, {"client_id": "x", "topics": []}),
    ],
)
def test_cursors_that_do_not_count_are_not_guessed_at(
    connector: str, source: Mapping[str, Any], cursor: JSON
) -> None:
    with pytest.raises(ValueError, match="count"):
        parse_options(connector, source).cursor_back(cursor, 1)


@pytest.mark.parametrize(
    ("connector", "source", "good", "bad"),
    [
        ("redis", REDIS, {"a": "1-0"}, {"a": 1}),
        ("nats", NATS, {"seq": 1, "created": "c"}, 1),
        ("file", FILE, {"inode": 1, "offset": 2, "head": 3}, {"offset": 2}),
        ("mqtt", MQTT, None, {"client_id": "x"}),
        ("tcp", TCP, 1.5, float("nan")),
    ],
)
def test_what_is_no_cursor_of_a_connector_is_refused(
    connector: str, source: Mapping[str, Any], good: JSON, bad: JSON
) -> None:
    options = parse_options(connector, source)
    check_cursor(options, good)
    with pytest.raises(InvalidInput, match="the cursor "):
        check_cursor(options, bad)


@pytest.fixture
def command() -> Command:
    """The command, on a feed that has landed nothing yet."""
    made = Command(SinkFile(environment="default").sink())
    made.feed(NAME, source=TCP)
    return made


def of_cursor(verb: str, *arguments: str) -> tuple[str, ...]:
    return ("feed", "cursor", verb, NAME, *arguments)


def test_a_sink_without_a_key_is_told_what_comes_twice(command: Command) -> None:
    command.ok(*of_cursor("set", "5000", "--yes"))
    assert "will be duplicated" in command.run(*of_cursor("rewind", "--records", "5", "--dry-run")).output
    command.store.feeds.edit(command.spec(NAME).model_copy(update={"sink": {"table": "t", **KEYED}}))
    ran = command.run(*of_cursor("rewind", "--records", "5", "--yes"))
    assert (ran.exit_code, "twice" in ran.output) == (0, False)


def test_a_text_that_is_no_json_is_a_cursor_too(command: Command) -> None:
    for given, after in (("2026-11-24T08:00Z", "2026-11-24T08:00Z"), ('"7"', "7")):
        assert command.json(*of_cursor("set", given, "--yes"))["change"]["after"] == after


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rewind", "--yes"), "give one of --records, --to and --to-start"),
        (("rewind", "--records", "5", "--yes"), "has no cursor yet"),
        (("set", "5"), "continues after cursor 5 (before: none); its sink has no key, so records"),
        (("rewind", "--to", "yesterday", "--yes"), "--to: 'yesterday' is not a time"),
    ],
)
def test_what_cannot_be_done_is_refused_with_words(
    command: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(command.refused(*of_cursor(*arguments)).split())
