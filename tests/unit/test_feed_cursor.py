"""Which cursor follows from a person's wish, for each connector, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner, Result

from feedq.cli import main
from feedq.connectors.base import parse_options
from feedq.core.model import JSON, FeedSpec
from feedq.errors import InvalidInput
from feedq.sinks.checkpoints import check_cursor
from tests.fakes.control import current
from tests.fakes.sink import MemorySink, MemoryTables
from tests.unit.command import FakeInvocation

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


class Bench:
    """The command, on a feed that has landed something."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.store = current().fresh_store()
        self.feed = self.store.feeds.add(
            FeedSpec(name=NAME, connector="tcp", source=TCP, sink={"table": "t"})
        )
        self.sink = MemorySink(
            "memory://", environment="default", worker_id=uuid4(), role="cli", tables=self.tables
        )

    def run(self, verb: str, *arguments: str) -> Result:
        invocation = FakeInvocation(self.store, sinks={"default": self.sink})
        return CliRunner().invoke(main, ["feed", "cursor", verb, NAME, *arguments], obj=invocation)

    def json(self, verb: str, *arguments: str) -> Any:
        ran = self.run(verb, *arguments, "--json")
        assert ran.exit_code == 0, ran.output
        return msgspec.json.decode(ran.stdout)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_sink_without_a_key_is_told_what_comes_twice(bench: Bench) -> None:
    bench.json("set", "5000", "--yes")
    assert "will be duplicated" in bench.run("rewind", "--records", "5", "--dry-run").output
    bench.store.feeds.edit(bench.feed.spec.model_copy(update={"sink": {"table": "t", **KEYED}}))
    ran = bench.run("rewind", "--records", "5", "--yes")
    assert (ran.exit_code, "twice" in ran.output) == (0, False)


def test_a_text_that_is_no_json_is_a_cursor_too(bench: Bench) -> None:
    assert bench.json("set", "2026-11-24T08:00Z", "--yes")["change"]["after"] == "2026-11-24T08:00Z"
    assert bench.json("set", '"7"', "--yes")["change"]["after"] == "7"


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
    bench: Bench, arguments: tuple[str, ...], said: str
) -> None:
    ran = bench.run(*arguments)
    assert ran.exit_code == 2
    assert said in " ".join(ran.stderr.split())
