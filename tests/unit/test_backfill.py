"""From where to where a backfill goes, for each connector, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.connectors.base import parse_options
from feedq.core.model import JSON, Feed, FeedBackfill, FeedSpec, FeedView, Identity, Lease, Status
from feedq.errors import InvalidInput
from feedq.records.batch import Records
from feedq.verbs.backfills import ROWS_PER_S, part_done, plan
from tests.fakes.sink import SinkFile

NOW = datetime(2026, 12, 1, 8, tzinfo=UTC)
ME = Identity(UUID(int=1), UUID(int=2))
TCP: Mapping[str, Any] = {"url": "tcp://127.0.0.1:1", "cursor": "/seq", "hello": "{cursor}"}
REDIS: Mapping[str, Any] = {"url": "redis://127.0.0.1:1", "streams": ["a"]}
NATS: Mapping[str, Any] = {"url": "nats://127.0.0.1:1", "stream": "S"}
POLL: Mapping[str, Any] = {
    "url": "http://127.0.0.1/?after={cursor}",
    "mode": "poll",
    "records": "",
    "cursor": "/seq",
}
FILE: Mapping[str, Any] = {"path": "/var/log/x.log"}
PLACE = {"inode": 7, "offset": 9_000, "head": 1}


def planned(
    connector: str,
    source: Mapping[str, Any],
    stands: JSON,
    begin: JSON,
    end: JSON = None,
    *,
    key: tuple[str, ...] = ("seq",),
    rows_per_s: float | None = None,
) -> tuple[FeedSpec, FeedBackfill]:
    sink = {"table": "t", "columns": {"seq": "/seq"}, "key": list(key)}
    feed = Feed(
        1, FeedSpec(name="acme/orders", connector=connector, source=source, sink=sink), 1, NOW, NOW, ME
    )
    file = SinkFile()
    if stands is not None:
        file.put_checkpoint(1, 1, uuid4(), cursor=stands, feed=feed.name, identity=ME)
    return plan(file.sink(), feed, begin=begin, end=end, now=NOW, rows_per_s=rows_per_s)


@pytest.mark.parametrize(
    ("connector", "source", "stands", "begin", "bounds"),
    [
        ("tcp", TCP, 5_000, 10, (10, 5_000)),
        ("tcp", TCP, "2026-12-01T00:00Z", "2026-11-01", ("2026-11-01", "2026-12-01T00:00Z")),
        ("http", POLL, {"at": 5_000, "seen": 3}, 10, ({"at": 10}, {"at": 5_000, "seen": 3})),
        ("redis", REDIS, {"a": "90000-1"}, "10-4", ({"a": "10-4"}, {"a": "90000-1"})),
        (
            "nats",
            NATS,
            {"seq": 90, "created": "c"},
            0,
            ({"seq": 0, "created": "c"}, {"seq": 90, "created": "c"}),
        ),
        ("file", FILE, PLACE, 2_000, ({**PLACE, "offset": 2_000}, PLACE)),
    ],
)
def test_it_ends_where_the_feed_stands_and_begins_where_it_is_told(
    connector: str, source: Mapping[str, Any], stands: JSON, begin: JSON, bounds: tuple[JSON, JSON]
) -> None:
    spec, found = planned(connector, source, stands, begin)
    assert (found.begins_after, found.ends_at) == bounds
    assert spec.initial_cursor == bounds[0]
    assert spec.name == "acme/orders~backfill"


def test_an_end_beyond_where_the_feed_stands_is_where_it_stands() -> None:
    assert planned("tcp", TCP, 5_000, 10, 9_000)[1].ends_at == 5_000
    assert planned("tcp", TCP, 5_000, 10, 4_000)[1].ends_at == 4_000
    assert planned("tcp", TCP, None, 10, 9_000)[1].ends_at == 9_000
    assert planned("redis", REDIS, {"a": "90000-1"}, 10, "0s")[1].ends_at == {"a": "90000-1"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"key": ()}, "no key, so records that have landed would land again"),
        ({"stands": None}, "has landed nothing yet"),
        ({"begin": 5_000}, "there is nothing to land"),
        ({"begin": "here"}, "neither a whole number nor a time"),
        ({"source": {**TCP, "hello": ""}}, "do not contain {cursor}"),
        ({"source": {**TCP, "cursor": None}}, "without source.cursor, records have no position"),
        ({"connector": "mqtt", "source": {"url": "mqtt://127.0.0.1:1", "topics": ["t"]}}, "the cursor"),
        (
            {"connector": "redis", "source": {**REDIS, "streams": ["a", "b"]}, "begin": {"a": "1-0"}},
            "several streams",
        ),
        ({"connector": "file", "source": FILE, "stands": PLACE, "begin": 5}, "must be 0 or at least 1024"),
        ({"connector": "file", "source": FILE, "stands": PLACE, "begin": "1h"}, "hold no time"),
    ],
)
def test_what_there_can_be_no_backfill_of_is_refused_with_words(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        planned(**{"connector": "tcp", "source": TCP, "stands": 5_000, "begin": 0, **asked})


@pytest.mark.parametrize(
    ("limits", "said", "rows_per_s"),
    [({}, None, ROWS_PER_S), ({"rows_per_s": 50.0}, None, 50.0), ({"rows_per_s": 50.0}, 99.0, 99.0)],
)
def test_it_is_held_back_for_its_neighbours(
    limits: dict[str, float], said: float | None, rows_per_s: float
) -> None:
    more = {**limits, "bytes_per_s": 1e6}
    spec, _ = planned("tcp", {**TCP, "limits": more}, 5_000, 0, rows_per_s=said)
    assert spec.source["limits"] == {**more, "rows_per_s": rows_per_s}


def test_its_part_is_told_from_its_cursor() -> None:
    spec, backfill = planned("tcp", TCP, 5_000, 1_000)
    feed = Feed(2, spec, 1, NOW, NOW, ME, backfill=backfill)
    parts = [
        part_done(FeedView(feed, Lease(1, cursor=cursor), None, Status.STREAMING))
        for cursor in (None, 1_000, 2_000, 5_000, 6_000, "elsewhere")
    ]
    assert parts == [0.0, 0.0, 0.25, 1.0, 1.0, None]


@pytest.mark.parametrize("form", ["lines", "records"])
def test_a_batch_is_cut_at_the_first_record_that_lies_beyond(form: str) -> None:
    records = [b'{"seq": 3}', b'{"other": 1}', b'{"seq": 5}', b"no json", b'{"seq": 7}', b'{"seq": 4}']
    lines = b"".join(record + b"\n" for record in records)
    batch = (
        Records(lines).batch(cursor=4, received_at=NOW)
        if form == "lines"
        else Records(records=tuple(records)).batch(cursor=4, received_at=NOW)
    )
    options = parse_options("tcp", TCP)
    cut = options.cut(batch, 5, 2)
    assert cut is not None
    assert (list(cut.split()), cut.cursor) == (records[:4], 5)
    assert options.cut(Records(b'{"seq": 9}\n').batch(cursor=9, received_at=NOW), 5, 2) is None
    polled = parse_options("http", POLL).cut(batch, 5, {"at": 2})
    assert polled is not None
    assert polled.cursor == {"at": 5}


def test_no_feed_is_declared_under_the_name_of_a_backfill() -> None:
    declared = {"name": "acme/orders~backfill", "connector": "tcp", "source": TCP, "sink": {"table": "t"}}
    with pytest.raises(InvalidInput, match="must not end in ~backfill"):
        FeedSpec.valid(declared)
