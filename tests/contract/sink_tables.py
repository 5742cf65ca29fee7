"""What a sink for a SQL database must do with tables of the user's own: the same for each of them.

Subclass `SinkTables` as `tests.contract.sink_conformance` says, with what the database calls its types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

import pytest

from feedq.records.batch import Records
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import FeedWrite, OnConflict, Target, Unusable
from feedq.sinks.mapping import ColumnRule, Otherwise, sources_of
from tests.contract.sink_stage import (
    PATIENCE_S,
    RAW,
    SinkHarness,
    batch,
    fence,
    fenced,
    landed,
    lines,
    request,
    rows_of,
    run_together,
    write,
)

TYPED = Target(
    "orders", "json", sources_of({"seq": "/seq", "at": "/ts", "sku": "/lines/0/sku", "payload": ""})
)
KEYED = Target("orders", "json", TYPED.columns, ("seq",))
UPDATING = Target("orders", "json", TYPED.columns, ("seq",), on_conflict=OnConflict.UPDATE)
AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)
Kinds = dict[str, tuple[str, str, Any]]
"""By the name of a column: its type, a value as JSON, and the value that lands."""
Wrong = Sequence[tuple[str, str, str]]
"""A type, a value as JSON that it does not take, and words of the reason."""


class TableHarness(SinkHarness, Protocol):
    """One that can be asked, too."""

    def query(self, statement: str) -> list[Any]: ...


def order(seq: object, sku: object = "a", **more: object) -> bytes:
    return json.dumps({"seq": seq, "ts": "2026-11-20T06:30:00Z", "lines": [{"sku": sku}], **more}).encode()


def moment(value: Any) -> datetime:
    """A time as a database gave it, which is in UTC unless it says otherwise."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class SinkTables:
    """The tests; give a subclass a fixture ``harness``."""

    moment: ClassVar[str]
    json: ClassVar[str]
    number: ClassVar[str]
    """The type, and all else, of a column that numbers its rows."""
    quote: ClassVar[str] = '"'
    odd: ClassVar[str] = 'a"b; %s ?'
    kinds: ClassVar[Kinds]
    wrong: ClassVar[Wrong]

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, 2 * self.quote) + self.quote

    def orders(self, harness: TableHarness, more: str = "") -> None:
        columns = f"seq bigint, at {self.moment}, sku varchar(5), payload {self.json}"
        harness.query(f"CREATE TABLE orders ({columns}{more})")

    # -- columns -------------------------------------------------------------------------------------

    def test_every_kind_of_value_finds_its_type(self, harness: TableHarness) -> None:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in self.kinds.items())
        harness.query(f"CREATE TABLE kinds ({columns})")
        target = Target("kinds", "json", sources_of({name: f"/{name}" for name in self.kinds}))
        sink = fenced(harness, target)
        record = "{" + ", ".join(f'"{name}": {text}' for name, (_, text, _) in self.kinds.items()) + "}"
        written = sink.write([write(1, 1, batch(record.encode()), lines(b"{}", b"[1]"), target=target)])
        assert [letter.error for letter in sink.dead_letters()] == []
        assert written.landed == {(1, 1): 3}
        first, *nothing = harness.query(f"SELECT {', '.join(self.kinds)} FROM kinds")
        assert dict(zip(self.kinds, first, strict=True)) == {k: v for k, (_, _, v) in self.kinds.items()}
        assert {value for row in nothing for value in row} == {None}

    def test_a_table_that_is_made_anew_with_another_type_gets_right_values(
        self, harness: TableHarness
    ) -> None:
        """The plan for the old one would land strings with their quotes."""
        harness.query(f"CREATE TABLE kinds (c {self.json})")
        target = Target("kinds", "json", sources_of({"c": "/c"}))
        sink = harness.sink()
        left = fence(sink, 1, 1, target).commit_id
        left = sink.write([write(1, 1, batch(b'{"c": "x"}'), target=target, continues=left)]).commit_id
        harness.query("DROP TABLE kinds")
        harness.query("CREATE TABLE kinds (c varchar(9))")
        for value in (b"y", b"z"):
            group = [write(1, 1, batch(b'{"c": "%b"}' % value), target=target, continues=left)]
            written = sink.write(group, briefly=True)
            assert written.landed == {(1, 1): 1}
            left = written.commit_id
        assert [tuple(row) for row in harness.query("SELECT c FROM kinds ORDER BY c")] == [("y",), ("z",)]

    def test_what_a_column_would_bend_goes_to_the_dead_letters_with_why(self, harness: TableHarness) -> None:
        sink = harness.sink()
        for n, (kind, value, why) in enumerate(self.wrong):
            harness.query(f"CREATE TABLE kinds_{n} (c {kind})")
            target = Target(f"kinds_{n}", "json", sources_of({"c": "/c"}))
            fence(sink, n, 1, target)
            written = sink.write([write(n, 1, batch(b'{"c": %s}' % value.encode()), target=target)])
            assert (written.landed, written.dead) == ({(n, 1): 0}, {(n, 1): 1}), (kind, value)
            assert harness.query(f"SELECT * FROM kinds_{n}") == []
            (letter,) = sink.dead_letters(f"feed/{n}")
            assert why in letter.error
            assert "INSERT" not in letter.error, "neither statements nor values"

    @pytest.mark.parametrize("target", [TYPED, KEYED, UPDATING], ids=["plain", "ignore", "update"])
    def test_bad_records_among_good_ones_cost_none_of_these(
        self, harness: TableHarness, target: Target
    ) -> None:
        self.orders(harness, ", UNIQUE (seq)")
        sink = fenced(harness, target)
        bad = [order("seven"), order(2**63), order(5, "too long"), b'{"seq": 1', b'{"seq": "\xff"}', b""]
        bad += [b'{"seq": 1, "ts": "yesterday-ish"}']
        records = [r for n, one in enumerate(bad) for r in (order(100 + n), one)] + [order(200)]
        written = sink.write([write(1, 1, batch(*records), target=target)])
        assert (written.landed, written.dead) == ({(1, 1): len(bad) + 1}, {(1, 1): len(bad)})
        assert harness.query("SELECT count(*), count(DISTINCT seq) FROM orders") == [(len(bad) + 1,) * 2]
        assert sorted(letter.record for letter in sink.dead_letters()) == sorted(bad)

    def test_metadata_constants_and_rules_fill_columns(self, harness: TableHarness) -> None:
        harness.query(
            f"CREATE TABLE mapped (feed text, epoch int, c {self.json}, at {self.moment}, seven int, "
            f"flag boolean, price numeric(9,2), unit text, name text, record {self.json})"
        )
        columns: dict[str, str | ColumnRule] = {
            "feed": "$feed",
            "epoch": "$epoch",
            "c": "$cursor",
            "at": "$received_at",
            "seven": ColumnRule(value=7),
            "flag": ColumnRule(value=True),
            "price": ColumnRule(
                pointer="/price", missing=Otherwise.DEFAULT, null=Otherwise.DEFAULT, default=0
            ),
            "unit": ColumnRule(pointer="/unit", missing=Otherwise.DEFAULT, default="kg"),
            "name": ColumnRule(pointer="/name", missing=Otherwise.REFUSE),
            "record": "",
        }
        target = Target("mapped", "json", sources_of(columns))
        sink = fenced(harness, target, epoch=3)
        good = [
            b'{"price": null, "unit": null, "name": null}',
            b'{"price": 2, "unit": "t", "name": "x"}',
            b'{"name": "y"}',
        ]
        received = Records(records=(*good, b'{"price": 1}')).batch(cursor={"at": 2}, received_at=AT)
        written = sink.write([write(1, 3, received, target=target)])
        assert (written.landed, written.dead) == ({(1, 3): 3}, {(1, 3): 1})
        assert [
            (feed, epoch, parsed(c), moment(at), seven, bool(flag), price, unit, name, parsed(record))
            for feed, epoch, c, at, seven, flag, price, unit, name, record in harness.query(
                "SELECT * FROM mapped"
            )
        ] == [
            ("feed/1", 3, {"at": 2}, AT, 7, True, price, unit, name, json.loads(record))
            for price, unit, name, record in zip(
                (0, 2, 0), (None, "t", "kg"), (None, "x", "y"), good, strict=True
            )
        ]
        (letter,) = sink.dead_letters()
        assert letter.error == "column 'name': the record has nothing at /name, which sink.columns refuses"

    def test_csv_lands_by_the_names_of_its_fields(self, harness: TableHarness) -> None:
        harness.query("CREATE TABLE prices (symbol text, price numeric(9,2), note text, line text)")
        target = Target(
            "prices",
            "csv",
            sources_of({"symbol": "/symbol", "price": "/price", "note": "/note", "line": ""}),
            csv=CsvFormat(fields=("symbol", "price", "note"), delimiter=";"),
        )
        sink = fenced(harness, target)
        good = [b'A;1.5;"x;""y"""', b'B;;""', b"C;;"]
        bad = {b"D;cheap;z": "price", b"E;1": "2 fields", b'F;"1;x': "quote", b"G;2;\xff": "UTF-8"}
        written = sink.write([write(1, 1, lines(*good, *bad), target=target)])
        assert (written.landed, written.dead) == ({(1, 1): 3}, {(1, 1): 4})
        assert [(*row[:3], row[3].encode()) for row in harness.query("SELECT * FROM prices")] == [
            ("A", 1.5, 'x;"y"', good[0]),
            ("B", None, "", good[1]),
            ("C", None, None, good[2]),
        ]
        errors = {letter.record: letter.error for letter in sink.dead_letters()}
        assert errors.keys() == bad.keys()
        assert [record for record, why in bad.items() if why not in errors[record] and why != "price"] == []

    def test_flatten_fills_columns_by_their_names(self, harness: TableHarness) -> None:
        harness.query(
            f"CREATE TABLE flat (id {self.number}, seq int, user_name text, user_age int, "
            f"tags {self.json}, source text, made {self.moment} DEFAULT CURRENT_TIMESTAMP)"
        )
        target = Target("flat", "json", sources_of({"source": "$feed"}), flatten="_")
        sink = fenced(harness, target)
        records = [
            b'{"seq": 1, "user": {"name": "x", "age": 7}, "tags": [1, "a"]}',
            b'{"user_name": "y", "user": {"name": "not this"}, "id": 99}',
        ]
        assert sink.write([write(1, 1, batch(*records), target=target)]).landed == {(1, 1): 2}
        columns = "id, seq, user_name, user_age, tags, source"
        found = harness.query(f"SELECT {columns} FROM flat WHERE made > '1970-01-01'")
        assert [(*row[:4], parsed(row[4]), row[5]) for row in found] == [
            (1, 1, "x", 7, [1, "a"], "feed/1"),
            (2, None, "y", None, None, "feed/1"),
        ]

    def test_odd_names_are_quoted(self, harness: TableHarness) -> None:
        table, *names = 'odd"`; --%', self.odd, "VALUES (:x)", "from"
        a, key, source = map(self.quoted, names)
        harness.query(f"CREATE TABLE {self.quoted(table)} ({a} text, {key} varchar(9), {source} text)")
        index = f"CREATE UNIQUE INDEX {self.quoted('?')} ON {self.quoted(table)} ({key})"
        harness.query(index)
        columns = sources_of(dict(zip(names, ("/a", "/b~1c", "$feed"), strict=True)))
        for epoch, on_conflict in enumerate(OnConflict, 1):
            target = Target(table, "json", columns, (names[1],), on_conflict=on_conflict)
            sink = fenced(harness, target, epoch=epoch)
            written = sink.write([write(1, epoch, batch(b'{"a": "x", "b/c": "%"}', b"bad"), target=target)])
            assert (written.landed, written.dead) == ({(1, epoch): 1}, {(1, epoch): 1})
        found = harness.query(f"SELECT * FROM {self.quoted(table)}")
        assert found == [("x", "%", "feed/1")]

    @pytest.mark.parametrize("key", [(), ("seq",)], ids=["plain", "keyed"])
    @pytest.mark.parametrize(
        ("constraint", "bad"),
        [
            ("NOT NULL", None),
            ("NOT NULL DEFAULT 'a'", None),
            ("CHECK (sku <> 'bad')", "bad"),
            ("UNIQUE", "a"),
            ("REFERENCES skus (sku)", "zzz"),
        ],
    )
    def test_a_constraint_refuses_its_record_only(
        self, harness: TableHarness, constraint: str, bad: str | None, key: tuple[str, ...]
    ) -> None:
        harness.query("CREATE TABLE skus (sku varchar(5) PRIMARY KEY)")
        harness.query("INSERT INTO skus VALUES ('a'), ('b'), ('c')")
        unique = "UNIQUE" if key else ""
        harness.query(f"CREATE TABLE orders (seq bigint {unique}, sku varchar(5) {constraint})")
        target = Target("orders", "json", sources_of({"seq": "/seq", "sku": "/lines/0/sku"}), key)
        if constraint == "UNIQUE" and key and harness.sink().check(target):
            return  # MariaDB cannot tell which of two indexes a row is in the way of
        sink = fenced(harness, target)
        records = [order(1, "a"), order(2, "b"), order(3, bad), order(4, "c")]
        assert sink.write([write(1, 1, batch(*records), target=target)]).landed == {(1, 1): 3}
        assert harness.query("SELECT seq FROM orders ORDER BY seq") == [(1,), (2,), (4,)]
        assert [letter.record for letter in sink.dead_letters()] == [order(3, bad)]

    # -- keys ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("target", "rows"),
        [
            (KEYED, [(1, "old"), (2, "old"), (3, "new")]),
            (UPDATING, [(1, "old"), (2, "new"), (3, "last")]),
        ],
        ids=["ignore", "update"],
    )
    def test_a_row_whose_key_is_there_already(
        self, harness: TableHarness, target: Target, rows: list[tuple[int, str]]
    ) -> None:
        self.orders(harness, f", id {self.number}, UNIQUE (seq)")
        sink = fenced(harness, target)
        assert sink.write([write(1, 1, lines(order(1, "old"), order(2, "old")), target=target)]).landed
        again = lines(order(2, "new"), order(3, "new"), order(3, "last"))
        assert sink.write([write(1, 1, again, target=target)]).landed == {(1, 1): 3}
        assert harness.query("SELECT seq, sku FROM orders ORDER BY seq") == rows

    def test_a_key_may_be_of_several_columns_and_hold_null(self, harness: TableHarness) -> None:
        self.orders(harness, ", UNIQUE (sku, seq)")
        target = Target("orders", "json", TYPED.columns, ("seq", "sku"))
        sink = harness.sink()
        sink.fence([request(n, 1, target) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
        records = [order(1, "a"), order(1, "b"), order(1, "a"), order(None, "a")]
        bad = write(2, 1, batch(b"bad", order(None, "a")), target=target)
        written = sink.write([write(1, 1, batch(*records), target=target), bad])
        assert (written.landed, written.dead) == ({(1, 1): 4, (2, 1): 1}, {(2, 1): 1})
        # Two NULLs are no duplicates, and a second attempt does not land the first one's rows again.
        found = harness.query("SELECT seq, sku FROM orders ORDER BY seq IS NULL, seq, sku")
        assert found == [(1, "a"), (1, "b"), (None, "a"), (None, "a")]

    def test_a_default_table_may_have_a_key(self, harness: TableHarness) -> None:
        target = Target("dedup", "text", (), ("feed", "payload"))
        latest = Target("latest", "text", (), ("feed",), on_conflict=OnConflict.UPDATE)
        sink = harness.sink()
        requests = [request(n, 1, latest if n == 3 else target) for n in (1, 2, 3)]
        sink.fence(requests, lock_timeout_s=PATIENCE_S)
        for _ in range(2):
            sink.write([write(n, 1, lines(b"x", b"X", b"x"), target=target) for n in (1, 2)])
            sink.write([write(3, 1, lines(b"a", b"b"), target=latest)])
        assert landed(harness, target) == rows_of(1, 1, "x", "X") + rows_of(2, 1, "x", "X")
        assert landed(harness, latest) == rows_of(3, 1, "b")

    # -- previews and replays ------------------------------------------------------------------------

    def test_a_preview_shows_columns_as_texts_and_what_the_database_would_refuse(
        self, harness: TableHarness
    ) -> None:
        self.orders(harness, ", CHECK (sku <> 'bad')")
        sink = harness.sink()
        good, refused, unfit = sink.preview(
            write(1, 1, batch(order(1), order(2, "bad"), order("x")), target=TYPED)
        )
        shown = {"seq": "1", "at": "2026-11-20T06:30:00Z", "sku": "a", "payload": order(1).decode()}
        assert (good.columns, good.error) == (shown, None)
        assert refused.error
        assert unfit.columns["seq"] == "x"
        assert unfit.error
        assert harness.query("SELECT count(*) FROM orders") == [(0,)]

    def test_a_replay_keeps_feed_epoch_cursor_and_time(self, harness: TableHarness) -> None:
        kept = f"kept (feed text, epoch int, c {self.json}, at {self.moment}, n int CHECK (n < %s))"
        harness.query("CREATE TABLE " + kept % 10)
        columns = {"feed": "$feed", "epoch": "$epoch", "c": "$cursor", "at": "$received_at", "n": "/n"}
        target = Target("kept", "json", sources_of(columns))
        sink = fenced(harness, target, epoch=4)
        sink.write([write(1, 4, batch(b'{"n": 10}', b'{"n": "x"}', cursor={"at": 1}), target=target)])
        letters = {letter.record: letter for letter in sink.dead_letters()}
        ids = [letter.id for letter in letters.values()]
        assert sink.replay(ids, target).landed == 0
        harness.query("DROP TABLE kept")
        harness.query("CREATE TABLE " + kept % 20)
        replayed = sink.replay(ids, target)
        assert (replayed.landed, set(replayed.refused)) == (1, {letters[b'{"n": "x"}'].id})
        ((feed, epoch, c, at, n),) = harness.query("SELECT * FROM kept")
        assert (feed, epoch, parsed(c), n) == ("feed/1", 4, {"at": 1}, 10)
        assert moment(at) == letters[b'{"n": 10}'].at

    # -- tables that are made, and that change ---------------------------------------------------------

    def test_a_table_is_made_by_its_columns_and_types(self, harness: TableHarness) -> None:
        target = Target(
            "prices",
            "json",
            sources_of(
                {"symbol": "/symbol", "price": "/price", "paid": "/paid", "at": "/at", "feed": "$feed"}
            ),
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
        ((symbol, price, paid, at, feed),) = harness.query("SELECT * FROM prices")
        assert (symbol, price, bool(paid), feed) == ("A", 2.5, True, "feed/1")
        assert moment(at) == datetime(2026, 11, 20, 6, 30, tzinfo=UTC)

    def test_a_table_has_its_columns_in_the_order_of_the_manifest(self, harness: TableHarness) -> None:
        names = ["title", "id", "a_longer_one", "b"]
        target = Target("ordered", "json", sources_of({name: f"/{name}" for name in names}), create=True)
        sink = fenced(harness, target)
        record = b'{"b": "4", "a_longer_one": "3", "id": "2", "title": "1"}'
        sink.write([write(1, 1, batch(record), target=target)])
        assert harness.query("SELECT * FROM ordered") == [("1", "2", "3", "4")]

    @pytest.mark.parametrize("name", ["x" * 300, ""])
    def test_a_column_that_no_table_can_have_is_refused_before_one_is_made(
        self, harness: TableHarness, name: str
    ) -> None:
        target = Target("never", "json", sources_of({"a": "/a", name: "/b"}), create=True)
        sink = harness.sink()
        why = sink.check(target)
        assert why is not None
        assert why.startswith("sink.columns: column ")
        (outcome,) = sink.fence([request(1, 1, target)], lock_timeout_s=PATIENCE_S)
        assert isinstance(outcome, Unusable)
        assert outcome.error == why
        there = replace(target, create=False, columns=target.columns[:1])
        assert "does not exist" in (sink.check(there) or "")

    def test_a_default_table_that_is_taken_away_comes_back_with_the_next_fence_only(
        self, harness: TableHarness
    ) -> None:
        fencer, writer = harness.sink(role="fencer"), harness.sink()
        fence(fencer, 1, 1)
        harness.drop_table(RAW)
        for _ in range(2):
            assert "does not exist" in writer.write([write(1, 1, batch(b"1"))]).unusable[1, 1]
        fence(fencer, 1, 2)
        assert fencer.write([write(1, 2, batch(b"1"))]).landed == {(1, 2): 1}

    def test_workers_that_start_together_make_the_same_tables_once(self, harness: TableHarness) -> None:
        sinks = [harness.sink(role="fencer") for _ in range(6)]
        targets = [Target("made", "json"), Target("made_too", "text")]

        def start(n: int) -> None:
            for k, target in enumerate(targets):
                fence(sinks[n], 10 * n + k, 1, target)

        run_together(*(lambda n=n: start(n) for n in range(len(sinks))))

    @pytest.mark.parametrize("key", [(), ("seq",)], ids=["plain", "keyed"])
    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ("DROP TABLE orders", "does not exist"),
            ("ALTER TABLE orders RENAME COLUMN sku TO stock", "no column 'sku'"),
            ("another one", "'n' is NOT NULL"),
        ],
    )
    def test_a_table_that_breaks_stops_its_feeds_and_no_others(
        self, harness: TableHarness, change: str, word: str, key: tuple[str, ...]
    ) -> None:
        self.orders(harness, ", UNIQUE (seq)")
        target = Target("orders", "json", TYPED.columns, key)
        sink = harness.sink()
        sink.fence([request(1, 1, target), request(2, 1), request(3, 1, target)], lock_timeout_s=PATIENCE_S)

        def round_of(n: int) -> list[FeedWrite]:
            return [
                write(1, 1, batch(order(n), cursor=n), target=target),
                write(2, 1, batch(b"%d" % n, b"bad", cursor=n)),
                write(3, 1, batch(order(100 + n), cursor=n), target=target),
            ]

        assert set(sink.write(round_of(1)).landed) == {(1, 1), (2, 1), (3, 1)}
        if change == "another one":
            harness.query("DROP TABLE orders")
            self.orders(harness, ", n int NOT NULL, UNIQUE (seq)")
        else:
            harness.query(change)
        for n in (2, 3):
            written = sink.write(round_of(n))
            assert (written.landed, written.dead) == ({(2, 1): 1}, {(2, 1): 1})
            assert set(written.unusable) == {(1, 1), (3, 1)}
            assert word in written.unusable[1, 1]
        assert [(one.feed_id, one.cursor) for one in sink.checkpoints()] == [(1, 1), (2, 3), (3, 1)]
        assert sink.dead_letters("feed/1") == []

    def test_a_large_batch_lands_whole(self, harness: TableHarness) -> None:
        sink = fenced(harness)
        records = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * (n % 300)) for n in range(20_000)]
        records[7_000] = b'"' + b"y" * 500_000 + b'"'
        records[9_000] = harness.refused
        written = sink.write([write(1, 1, lines(*records))])
        assert (written.landed, written.dead) == ({(1, 1): 19_999}, {(1, 1): 1})
        found = [parsed(payload) for _, _, payload in harness.rows(RAW)]
        expected = [json.loads(record) for n, record in enumerate(records) if n != 9_000]
        assert sorted(found, key=str) == sorted(expected, key=str)
