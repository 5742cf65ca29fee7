"""Fields that no column takes: ignored, reported, or made columns. On PostgreSQL and SQLite."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from feedq.core.notices import new_fields, notice_sentences
from feedq.errors import InvalidInput
from feedq.records.batch import Batch
from feedq.sinks import field_watch
from feedq.sinks.base import FeedWrite, Target, Written
from feedq.sinks.field_watch import FAULT, FIELDS_MAX, FieldWatch
from feedq.sinks.mapping import ColumnType, Drift, sources_of
from feedq.sinks.target_table import FILLED_MAX
from tests.contract.sink_harness import PostgresSinkHarness, SqliteHarness
from tests.contract.sink_stage import batch, fence, lines, run_together, write

ORDERS = Target("orders", "json", sources_of({"seq": "/seq", "sku": "/line/sku"}))
ODD = 'a "b"; ü'


@pytest.fixture(params=["postgresql", "sqlite"])
def harness(request: pytest.FixtureRequest) -> PostgresSinkHarness | SqliteHarness:
    made: PostgresSinkHarness | SqliteHarness = request.getfixturevalue(f"{request.param}_sink")
    made.query("CREATE TABLE orders (seq bigint, sku text)")
    return made


def order(seq: object, **more: Any) -> bytes:
    return json.dumps({"seq": seq, "line": {"sku": "s", "other": 1}, **more}).encode()


class DriftingFeed:
    """A feed with its watch, written by one sink."""

    def __init__(
        self, harness: PostgresSinkHarness | SqliteHarness, drift: Drift, *, number: int = 1, **changes: Any
    ) -> None:
        self.harness, self.number = harness, number
        self.target = replace(ORDERS, drift=drift, **changes)
        self.watch = FieldWatch()
        self.sink = harness.sink()
        fence(self.sink, number, 1, self.target)

    def write(self, *batches: Batch) -> Written:
        made: FeedWrite = replace(write(self.number, 1, *batches, target=self.target), watch=self.watch)
        return self.sink.write([made])

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return self.harness.query(f"SELECT {columns} FROM orders ORDER BY seq")


def test_new_fields_are_told_once_each_with_their_type(harness: PostgresSinkHarness | SqliteHarness) -> None:
    feed = DriftingFeed(harness, Drift.EVENT)
    assert feed.write(lines(order(1), order(2))).landed == {(1, 1): 2}
    assert feed.watch.news() == {}
    feed.write(lines(order(3, price=1), order(4, price=1.5, note=None)), batch(order(5, at="2026-01-01")))
    assert feed.watch.news() == {"field:price": "numeric", "field:note": "text", "field:at": "date"}
    feed.write(lines(order(6, price="x"), b"[1]", b'{"seq": 7, "more": {"a": 1}}'))
    assert feed.watch.news() == {"field:more": "json"}
    assert [seq for seq, _ in feed.rows() if seq is not None] == [1, 2, 3, 4, 5, 6, 7]


def test_a_column_that_somebody_adds_is_filled_soon(
    harness: PostgresSinkHarness | SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, by = DriftingFeed(harness, Drift.ADD), harness.sink()
    others = DriftingFeed(harness, Drift.IGNORE, number=2)
    feed.write(lines(order(1, price=1)))
    feed.write(lines(order(2, price=2)))
    assert feed.watch.news() == {"field:price": "bigint"}
    wanted = {"price": ColumnType.BIGINT, ODD: ColumnType.TEXT}
    proposed = by.add_columns(feed.target, wanted, dry_run=True)
    assert [text.startswith("ALTER TABLE") for text in proposed] == [True, True]
    assert by.add_columns(feed.target, wanted) == proposed
    assert by.add_columns(feed.target, wanted) == []
    monkeypatch.setattr(field_watch, "monotonic", lambda: 1e9)
    feed.write(lines(order(3, price=3, **{ODD: "x"})))
    others.write(lines(order(4, price=4)))
    quoted = ODD.replace('"', '""')
    assert feed.rows(f'seq, price, "{quoted}"') == [
        (1, None, None),
        (2, None, None),
        (3, 3, "x"),
        (4, None, None),
    ]
    assert feed.watch.news() == {"field:price": "bigint, added", f"field:{ODD}": "text, added"}


def test_a_column_that_a_commit_notices_is_told_as_added(
    harness: PostgresSinkHarness | SqliteHarness,
) -> None:
    feed = DriftingFeed(harness, Drift.ADD)
    feed.write(lines(order(1, price=1)))
    assert feed.watch.news() == {"field:price": "bigint"}
    harness.query("ALTER TABLE orders ADD COLUMN price bigint")
    feed.write(lines(order(2, price=2)))
    assert feed.rows("seq, price") == [(1, None), (2, 2)]
    assert feed.watch.news() == {"field:price": "bigint, added"}


def test_whoever_writes_adds_columns_where_that_is_set_and_nothing_is_lost(
    harness: PostgresSinkHarness | SqliteHarness,
) -> None:
    feeds = [DriftingFeed(harness, Drift.ADD, number=n, adds_columns=True) for n in (1, 2)]
    long = "x" * 300
    run_together(
        *(
            lambda feed=feed: feed.write(lines(order(feed.number, price=1.5, **{ODD: "x", long: 1})))
            for feed in feeds
        )
    )
    quoted = ODD.replace('"', '""')
    assert feeds[0].rows(f'seq, price, "{quoted}"') == [(1, 1.5, "x"), (2, 1.5, "x")]
    for feed in feeds:
        told = feed.watch.news()
        assert told.pop(f"field:{long[:15]}…").startswith("bigint, its name is longer than ")
        assert told == {"field:price": "numeric, added", f"field:{ODD}": "text, added"}
    # A successor, after the end came between the column and its first record.
    again = DriftingFeed(harness, Drift.ADD, number=3, adds_columns=True)
    again.write(lines(order(3, price=3)))
    assert (again.rows("seq, price")[-1], again.watch.news()) == ((3, 3), {})


def test_a_name_that_no_column_can_have_is_told_and_stops_no_other(
    harness: PostgresSinkHarness | SqliteHarness,
) -> None:
    feed = DriftingFeed(harness, Drift.ADD, adds_columns=True)
    is_sqlite = isinstance(harness, SqliteHarness)
    long = "x" * (300 if is_sqlite else 64)
    odd = {"": 1, long: 2, "a%b": 3} | ({} if is_sqlite else {"ctid": 4, "xmin": 5})
    feed.write(lines(order(1, **odd, price=1), order(2, Price=2, SEQ=3)))
    assert feed.rows("seq, price")[0] == (1, 1)
    # To SQLite, Price and price are one name.
    assert len(feed.rows()[0]) == (3 if is_sqlite else 5)
    told = feed.watch.news()
    assert FAULT not in told
    assert "longer than" in told.pop(f"field:{long[:15]}…")
    assert "no column can take the field" in notice_sentences({"field:": told["field:"]})[0]
    # Nobody proposes a column for them either.
    wanted = {name: ColumnType(type_) for name, type_ in new_fields(told).items()}
    assert feed.sink.add_columns(feed.target, wanted) == []


def test_columns_that_cannot_be_added_are_told_and_hold_up_nothing(
    harness: PostgresSinkHarness | SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = DriftingFeed(harness, Drift.ADD, adds_columns=True)
    monkeypatch.setattr("feedq.sinks.session.FILLED_MAX", 0)
    assert feed.write(lines(order(1, price=1))).landed == {(1, 1): 1}
    assert "at most 0 are allowed: map some there" in feed.watch.news()[FAULT]
    with pytest.raises(InvalidInput, match="does not exist"):
        feed.sink.add_columns(replace(feed.target, table="nowhere"), {"a": ColumnType.TEXT})


def test_names_without_end_are_told_up_to_a_bound_and_become_no_more_columns_than_that(
    harness: PostgresSinkHarness | SqliteHarness,
) -> None:
    feed = DriftingFeed(harness, Drift.ADD, adds_columns=True)
    for n in range(4):
        names = {f"f{n}_{m}": m for m in range(FILLED_MAX)}
        assert feed.write(lines(order(n, **names))).landed == {(1, 1): 1}
    assert len(feed.watch._found) + len(feed.watch.news()) <= 2 * FILLED_MAX
    (row,) = feed.rows()[:1]
    assert FIELDS_MAX <= len(row) <= FILLED_MAX + 2


@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
def test_a_lock_on_the_table_delays_a_column_and_nothing_else(harness: PostgresSinkHarness) -> None:
    feed = DriftingFeed(harness, Drift.ADD, adds_columns=True)
    feed.write(lines(order(1)))
    with harness.session() as somebody:
        somebody.execute("BEGIN; LOCK TABLE orders IN ROW EXCLUSIVE MODE")
        assert feed.write(lines(order(2, price=1))).landed == {(1, 1): 1}
        assert "lock timeout" in feed.watch.news()[FAULT]
