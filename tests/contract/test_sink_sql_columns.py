"""The sink for SQLite: records as rows of a table of the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from feedq.core.model import Batch
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import OnConflict, Target
from feedq.sinks.mapping import ColumnRule, Otherwise, sources_of
from tests.contract.sink_harness import (
    SqliteHarness,
    batch,
    fence,
    lines,
    write,
)

ORDERS = (
    "CREATE TABLE orders (seq BIGINT, at DATETIME, sku VARCHAR(5), price NUMERIC, paid BOOLEAN, payload JSON)"
)
TYPED = Target(
    "orders",
    "json",
    sources_of(
        {"seq": "/seq", "at": "/ts", "sku": "/lines/0/sku", "price": "/price", "paid": "/paid", "payload": ""}
    ),
)
KEYED = Target("orders", "json", TYPED.columns, ("seq",))
UPDATING = Target("orders", "json", TYPED.columns, ("seq",), on_conflict=OnConflict.UPDATE)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SqliteHarness]:
    made = SqliteHarness(tmp_path / "sink.sqlite3")
    yield made
    made.close()


def order(seq: object, sku: object = "a", **more: object) -> bytes:
    return json.dumps({"seq": seq, "ts": "2026-11-20T06:30:00Z", "lines": [{"sku": sku}], **more}).encode()


# -- columns -----------------------------------------------------------------------------------------


def test_columns_land_typed(harness: SqliteHarness) -> None:
    harness.query(ORDERS)
    sink = harness.sink()
    fence(sink, 1, 1, TYPED)
    records = [order(1, price=12.5, paid=True), order("2", None, price="0.10"), b"{}", b'[{"seq":9}]']
    written = sink.write([write(1, 1, batch(*records[:2]), lines(*records[2:]), target=TYPED)])
    assert (written.landed, written.dead) == ({(1, 1): 4}, {})
    at = "2026-11-20 06:30:00.000000"
    assert harness.query("SELECT * FROM orders") == [
        (1, at, "a", 12.5, 1, records[0].decode()),
        (2, at, None, 0.1, None, records[1].decode()),
        (None, None, None, None, None, "{}"),
        (None, None, None, None, None, '[{"seq":9}]'),
    ]


def test_metadata_constants_and_rules_fill_columns(harness: SqliteHarness) -> None:
    harness.query(
        "CREATE TABLE mapped (feed TEXT, epoch INTEGER, cursor JSON, at DATETIME, seven INTEGER, flag BOOLEAN, "
        "price NUMERIC, unit TEXT, name TEXT, record TEXT)"
    )
    columns = sources_of(
        {
            "feed": "$feed",
            "epoch": "$epoch",
            "cursor": "$cursor",
            "at": "$received_at",
            "seven": ColumnRule(value=7),
            "flag": ColumnRule(value=True),
            "price": ColumnRule(
                pointer="/price", missing=Otherwise.DEFAULT, null=Otherwise.DEFAULT, default=0
            ),
            "unit": ColumnRule(pointer="/unit", missing=Otherwise.DEFAULT, default="kg"),
            "name": ColumnRule(pointer="/name", null=Otherwise.REFUSE),
            "record": "",
        }
    )
    target = Target("mapped", "json", columns)
    sink = harness.sink()
    fence(sink, 1, 3, target)
    good = [b'{"price": null, "unit": null}', b'{"price": 2, "unit": "t", "name": "x"}']
    at = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)
    received = Batch.of_records([*good, b'{"name": null}'], cursor={"at": 2}, received_at=at)
    written = sink.write([write(1, 3, received, target=target)])
    assert (written.landed, written.dead) == ({(1, 3): 2}, {(1, 3): 1})
    same = ("feed/1", 3, '{"at": 2}', "2026-11-20 06:30:00.000000", 7, 1)
    assert harness.query("SELECT * FROM mapped") == [
        (*same, 0, None, None, good[0].decode()),
        (*same, 2, "t", "x", good[1].decode()),
    ]
    (letter,) = sink.dead_letters()
    assert "column 'name'" in letter.error


def test_csv_lands_by_the_names_of_its_fields(harness: SqliteHarness) -> None:
    harness.query("CREATE TABLE prices (symbol TEXT, price NUMERIC, note TEXT, line TEXT)")
    target = Target(
        "prices",
        "csv",
        sources_of({"symbol": "/symbol", "price": "/price", "note": "/note", "line": ""}),
        csv=CsvFormat(fields=("symbol", "price", "note"), delimiter=";"),
    )
    sink = harness.sink()
    fence(sink, 1, 1, target)
    written = sink.write(
        [write(1, 1, lines(b'A;1.5;"x;""y"""', b"B;;", b"C;cheap;z", b"D;1", b"E;2;\xff"), target=target)]
    )
    assert (written.landed, written.dead) == ({(1, 1): 2}, {(1, 1): 3})
    assert harness.query("SELECT * FROM prices") == [
        ("A", 1.5, 'x;"y"', 'A;1.5;"x;""y"""'),
        ("B", None, None, "B;;"),
    ]
    errors = {letter.record: letter.error for letter in sink.dead_letters()}
    assert "column 'price': 'cheap' is no number" in errors[b"C;cheap;z"]
    assert "CSV" in errors[b"D;1"]
    assert "UTF-8" in errors[b"E;2;\xff"]


def test_flatten_fills_columns_by_their_names(harness: SqliteHarness) -> None:
    harness.query(
        "CREATE TABLE flat (id INTEGER PRIMARY KEY, seq INTEGER, user_name TEXT, user_age INTEGER, tags JSON, "
        "source TEXT, made DATETIME DEFAULT CURRENT_TIMESTAMP)"
    )
    target = Target("flat", "json", sources_of({"source": "$feed"}), flatten="_")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [
        b'{"seq": 1, "user": {"name": "x", "age": 7}, "tags": [1, "a"]}',
        b'{"user_name": "y", "more": 1}',
    ]
    assert sink.write([write(1, 1, batch(*records), target=target)]).landed == {(1, 1): 2}
    assert harness.query("SELECT id, seq, user_name, user_age, tags, source FROM flat") == [
        (1, 1, "x", 7, '[1, "a"]', "feed/1"),
        (2, None, "y", None, None, "feed/1"),
    ]


def test_odd_names_are_quoted(harness: SqliteHarness) -> None:
    harness.query('CREATE TABLE "odd; --" ("a""b; %s" TEXT, "VALUES (:x)" TEXT, "from" TEXT)')
    harness.query('CREATE UNIQUE INDEX "?" ON "odd; --" ("VALUES (:x)")')
    columns = sources_of({'a"b; %s': "/a", "VALUES (:x)": "/b~1c", "from": "$feed"})
    for epoch, on_conflict in enumerate(OnConflict, 1):
        target = Target("odd; --", "json", columns, ("VALUES (:x)",), on_conflict=on_conflict)
        sink = harness.sink()
        fence(sink, 1, epoch, target)
        written = sink.write([write(1, epoch, batch(b'{"a": "x", "b/c": "%"}', b"bad"), target=target)])
        assert (written.landed, written.dead) == ({(1, epoch): 1}, {(1, epoch): 1})
    assert harness.query('SELECT * FROM "odd; --"') == [("x", "%", "feed/1")]


WRONG = [
    (order("seven"), "column 'seq': 'seven' is no integer"),
    (order(2**63), "column 'seq': '9223372036854775808' is out of range"),
    (order(5, "too long"), "column 'sku': 'too long' has 8 characters, and the column takes 5"),
    (order(5, price=10**30 + 1), "column 'price'"),
    (order(5, paid="perhaps"), "column 'paid': 'perhaps' is no boolean"),
    (b'{"seq": 1, "ts": "yesterday-ish"}', "column 'at': 'yesterday-ish' is no ISO 8601 date and time"),
    (b'{"seq": 1', "invalid JSON"),
    (b'{"seq": "\xff"}', "invalid UTF-8"),
    (b"", "invalid JSON"),
]


@pytest.mark.parametrize("target", [TYPED, KEYED, UPDATING], ids=["plain", "ignore", "update"])
def test_records_that_no_column_takes_go_to_the_dead_letters_with_why(
    harness: SqliteHarness, target: Target
) -> None:
    harness.query(ORDERS)
    harness.query("CREATE UNIQUE INDEX by_seq ON orders (seq)")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [r for n, (bad, _) in enumerate(WRONG) for r in (order(100 + n), bad)] + [order(200)]
    written = sink.write([write(1, 1, batch(*records), target=target)])
    assert (written.landed, written.dead) == ({(1, 1): len(WRONG) + 1}, {(1, 1): len(WRONG)})
    assert harness.query("SELECT count(*), count(DISTINCT seq) FROM orders") == [(len(WRONG) + 1,) * 2]
    errors = {letter.record: letter.error for letter in harness.sink().dead_letters()}
    assert {record for record, why in WRONG if why not in errors[record]} == set()


@pytest.mark.parametrize(
    ("column", "bad", "why"),
    [
        ("sku VARCHAR(5) NOT NULL", None, "null value in column 'sku'"),
        ("sku VARCHAR(5) NOT NULL DEFAULT 'a'", None, "null value in column 'sku'"),
        ("sku VARCHAR(5) CHECK (sku <> 'bad')", "bad", "CHECK constraint failed"),
        ("sku VARCHAR(5) UNIQUE", "a", "UNIQUE constraint failed"),
        ("sku VARCHAR(5) REFERENCES skus (sku)", "zzz", "FOREIGN KEY constraint failed"),
    ],
)
@pytest.mark.parametrize("key", [(), ("seq",)], ids=["plain", "keyed"])
def test_a_constraint_refuses_its_record_only(
    harness: SqliteHarness, column: str, bad: str | None, why: str, key: tuple[str, ...]
) -> None:
    harness.query("CREATE TABLE skus (sku TEXT PRIMARY KEY)")
    harness.query("INSERT INTO skus VALUES ('a'), ('b'), ('c')")
    harness.query(f"CREATE TABLE orders (seq BIGINT UNIQUE, {column})")
    target = Target("orders", "json", sources_of({"seq": "/seq", "sku": "/lines/0/sku"}), key)
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [order(1, "a"), order(2, "b"), order(3, bad), order(4, "c")]
    assert sink.write([write(1, 1, batch(*records), target=target)]).landed == {(1, 1): 3}
    assert harness.query("SELECT seq FROM orders ORDER BY seq") == [(1,), (2,), (4,)]
    (letter,) = sink.dead_letters()
    assert why in letter.error


# -- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        (KEYED, [(1, "old"), (2, "old"), (3, "new")]),
        (UPDATING, [(1, "old"), (2, "new"), (3, "last")]),
    ],
    ids=["ignore", "update"],
)
def test_a_row_whose_key_is_there_already(
    harness: SqliteHarness, target: Target, rows: list[tuple[int, str]]
) -> None:
    harness.query(ORDERS)
    harness.query("CREATE UNIQUE INDEX by_seq ON orders (seq)")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    assert sink.write([write(1, 1, lines(order(1, "old"), order(2, "old")), target=target)]).landed
    again = lines(order(2, "new"), order(3, "new"), order(3, "last"))
    assert sink.write([write(1, 1, again, target=target)]).landed == {(1, 1): 3}
    assert harness.query("SELECT seq, sku FROM orders ORDER BY seq") == rows


def test_a_key_may_be_of_several_columns_and_hold_null(harness: SqliteHarness) -> None:
    harness.query(ORDERS)
    harness.query("CREATE UNIQUE INDEX by_both ON orders (sku, seq)")
    target = Target("orders", "json", TYPED.columns, ("seq", "sku"))
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [order(1, "a"), order(1, "b"), order(1, "a"), order(None, "a"), order(None, "a")]
    assert sink.write([write(1, 1, batch(*records), target=target)]).landed == {(1, 1): 5}
    assert harness.query("SELECT seq, sku FROM orders ORDER BY seq, sku") == [
        (None, "a"), (None, "a"), (1, "a"), (1, "b"),
    ]  # fmt: skip


# -- previews and replays ----------------------------------------------------------------------------


def test_a_preview_shows_columns_as_texts_and_what_the_database_would_refuse(harness: SqliteHarness) -> None:
    harness.query(ORDERS.replace("sku VARCHAR(5)", "sku VARCHAR(5) CHECK (sku <> 'bad')"))
    sink = harness.sink()
    good, refused, unfit = sink.preview(
        write(1, 1, batch(order(1, price=1.5), order(2, "bad"), order("x")), target=TYPED)
    )
    assert good.columns == {
        "seq": "1",
        "at": "2026-11-20T06:30:00Z",
        "sku": "a",
        "price": "1.5",
        "paid": None,
        "payload": order(1, price=1.5).decode(),
    }
    assert "CHECK constraint failed" in (refused.error or "")
    assert unfit.columns["seq"] == "x"
    assert "column 'seq': 'x' is no integer" in (unfit.error or "")
    assert harness.query("SELECT count(*) FROM orders") == [(0,)]


def test_a_replay_keeps_feed_epoch_cursor_and_time(harness: SqliteHarness) -> None:
    harness.query("CREATE TABLE kept (feed TEXT, epoch INT, cursor JSON, at DATETIME, n INT CHECK (n < 10))")
    sources = sources_of(
        {"feed": "$feed", "epoch": "$epoch", "cursor": "$cursor", "at": "$received_at", "n": "/n"}
    )
    target = Target("kept", "json", sources)
    sink = harness.sink()
    fence(sink, 1, 4, target)
    sink.write([write(1, 4, batch(b'{"n": 10}', b'{"n": "x"}', cursor={"at": 1}), target=target)])
    first, second = sorted(sink.dead_letters(), key=lambda letter: letter.record)
    assert (first.record, second.record) == (b'{"n": "x"}', b'{"n": 10}')
    first, second = second, first
    assert sink.replay([first.id, second.id], target).landed == 0
    harness.query("DROP TABLE kept")
    harness.query("CREATE TABLE kept (feed TEXT, epoch INT, cursor JSON, at DATETIME, n INT)")
    replayed = sink.replay([first.id, second.id], target)
    assert (replayed.landed, list(replayed.refused)) == (1, [second.id])
    ((feed, epoch, cursor, at, n),) = harness.query("SELECT * FROM kept")
    assert (feed, epoch, cursor, n) == ("feed/1", 4, '{"at": 1}', 10)
    assert datetime.fromisoformat(at).replace(tzinfo=UTC) == first.at
    assert "no integer" in sink.dead_letters()[0].error


# -- tables by declaration ---------------------------------------------------------------------------


def test_a_table_is_made_by_its_columns_and_types(harness: SqliteHarness) -> None:
    target = Target(
        "prices",
        "json",
        sources_of({"symbol": "/symbol", "price": "/price", "paid": "/paid", "at": "/at", "feed": "$feed"}),
        ("symbol",),
        create=True,
        types=(("price", "double"), ("paid", "boolean"), ("at", "timestamp")),
    )
    record = b'{"symbol": "A", "price": 2.5, "paid": true, "at": "2026-11-20T06:30:00Z"}'
    sink = harness.sink()
    assert sink.check(target) is None
    (previewed,) = sink.preview(write(1, 1, batch(record), target=target))
    assert (previewed.error, previewed.columns["symbol"]) == (None, "A")
    fence(sink, 1, 1, target)
    sink.write([write(1, 1, batch(record), batch(record), target=target)])
    assert harness.query("SELECT * FROM prices") == [("A", 2.5, 1, "2026-11-20 06:30:00.000000", "feed/1")]
