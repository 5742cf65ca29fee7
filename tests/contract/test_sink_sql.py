"""The sink for SQLite: landings of every kind, and what happens to records that cannot land."""

from __future__ import annotations

import sqlite3
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import types
from sqlalchemy.dialects import mysql

from feedq.errors import InvalidInput, SinkUnavailable
from feedq.records.batch import Records
from feedq.records.framing import RecordFormat
from feedq.sinks.base import Blocked, Target, Unusable, load_sink
from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.mapping import sources_of
from feedq.sinks.postgresql import PostgresSink
from feedq.sinks.sql import SqlSink
from feedq.sinks.sql.column_values import Unfit, conversion
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession
from tests.contract.sink_harness import SqliteHarness
from tests.contract.sink_stage import PATIENCE_S, RAW, batch, fence, fenced, request, write

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


@pytest.fixture
def harness(sqlite_sink: SqliteHarness) -> SqliteHarness:
    return sqlite_sink


def unusable(sink: SqlSink, target: Target) -> str:
    (outcome,) = sink.fence([request(1, 1, target)], lock_timeout_s=PATIENCE_S)
    assert isinstance(outcome, Unusable), outcome
    assert sink.check(target) == outcome.error
    return outcome.error


# -- URLs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql+mysqldb://me:s3cret@127.0.0.1/db", "only the driver pymysql: write mysql://"),
        ("sqlite+aiosqlite:////tmp/x", "only the driver pysqlite: write sqlite://"),
        ("sqlite://", "each session would have its own"),
        ("sqlite:///:memory:", "each session would have its own"),
        ("mysql+pymysql://me:s3cret@127.0.0.1:port/db", "cannot read this URL"),
    ],
)
def test_a_url_that_cannot_work_says_what_to_do_and_no_password(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        SqlSink(url, environment="test", worker_id=uuid4(), role="writer")
    assert "s3cret" not in str(raised.value)


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(InvalidInput, match="pip install pymysql"):
        SqlSink("mariadb://127.0.0.1/db", environment="test", worker_id=uuid4(), role="writer")


def test_each_scheme_has_its_sink_and_any_other_is_refused_by_the_names_of_those() -> None:
    for url in ("sqlite:////tmp/x.sqlite3", "mariadb+pymysql://127.0.0.1/db", "mysql://127.0.0.1/db"):
        assert load_sink(url) is SqlSink
    for url in ("postgresql+psycopg2://127.0.0.1/db", "postgres://127.0.0.1/db"):
        assert load_sink(url) is PostgresSink
    for url in ("oracle+oracledb://me:s3cret@127.0.0.1/db", "postgrseql://127.0.0.1/db", "nonsense"):
        with pytest.raises(InvalidInput, match=r"PostgreSQL .*, MariaDB and MySQL .* and SQLite") as raised:
            load_sink(url)
        assert "s3cret" not in str(raised.value)


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "sink.sqlite3"
    path.write_text("not a database, by far" * 100)
    sink = SqlSink(f"sqlite:///{path}", environment="test", worker_id=uuid4(), role="writer")
    with pytest.raises(SinkUnavailable, match="file is not a database"):
        sink.fence([request(1, 1)], lock_timeout_s=0)


# -- the default target -----------------------------------------------------------------------------


def test_the_default_table_has_types_that_fit(harness: SqliteHarness) -> None:
    sink = harness.sink()
    at = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)
    record = b'{"n": 123456789012345678901234567890.123456789}'
    payloads: dict[RecordFormat, bytes] = {"json": record, "text": b"1.50", "bytes": b"\0\xff"}
    for n, (record_format, payload) in enumerate(payloads.items()):
        target = Target(f"made_{record_format}", record_format)
        fence(sink, n, 1, target)
        sink.write(
            [write(n, 1, Records(records=(payload,)).batch(cursor=None, received_at=at), target=target)]
        )
        ((feed, epoch, received_at, landed),) = harness.query(f"SELECT * FROM {target.table}")
        assert (feed, epoch, received_at) == (f"feed/{n}", 1, "2026-11-20 06:30:00.123457")
        assert landed == (payload if record_format == "bytes" else payload.decode())


# -- landings that cannot work -----------------------------------------------------------------------


NUMBERS = Target("odd", "json", sources_of({"n": "/n"}))

RAW_WITH = "CREATE TABLE odd (feed TEXT, epoch INT, received_at {at}, payload {payload})"

ODD = Target("odd", "json")


@pytest.mark.parametrize(
    ("ddl", "target", "words"),
    [
        ("", TYPED, ["'orders' does not exist"]),
        ("CREATE TABLE orders (seq BIGINT)", TYPED, ["no column 'at', 'sku'", "the table has 'seq'"]),
        (f"{ORDERS[:-1]}, n INT NOT NULL)", TYPED, ["column 'n' is NOT NULL without a default"]),
        ("CREATE TABLE odd (a INT, n INT AS (a + 1))", NUMBERS, ["'n' is generated"]),
        (ORDERS, KEYED, ["no unique index on exactly (seq)", "CREATE UNIQUE INDEX"]),
        (f"{ORDERS}; CREATE UNIQUE INDEX i ON orders (seq) WHERE seq > 0", KEYED, ["no unique index"]),
        (
            "CREATE TABLE odd (feed TEXT)",
            ODD,
            ["has no column 'epoch'", "feed text, epoch integer"],
        ),
        (RAW_WITH.format(at="TEXT", payload="TEXT"), Target("odd", "text"), ["'received_at' is TEXT()"]),
        (
            "CREATE TABLE odd (n INT REFERENCES r (n) DEFERRABLE INITIALLY DEFERRED)",
            NUMBERS,
            ["INITIALLY DEFERRED"],
        ),
        ("CREATE TABLE odd (id INTEGER PRIMARY KEY)", Target("odd", "json", flatten="_"), ["could fill"]),
        ("", Target("feedq_checkpoint", "json"), ["feedq's own"]),
        (
            "CREATE TABLE n (n INTEGER PRIMARY KEY AUTOINCREMENT)",
            Target("main.SQLite_sequence", "json", sources_of({"name": "/n", "seq": "/s"})),
            ["belongs to the database itself"],
        ),
    ],
)
def test_a_landing_that_cannot_work_says_why(
    harness: SqliteHarness, ddl: str, target: Target, words: list[str]
) -> None:
    with sqlite3.connect(harness.path) as connection:
        connection.executescript(ddl)
    sink = harness.sink()
    error = unusable(sink, target)
    assert [word for word in words if word not in error] == [], error
    with pytest.raises(InvalidInput):
        sink.replay([1], target)


# -- locks and broken commits ------------------------------------------------------------------------


def test_a_file_that_somebody_has_locked_is_waited_for_and_then_unavailable(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.sql.sqlite.SqliteSession.lock_timeout_s", 0.05)
    sink, worker = harness.sink(worker_id=(worker := uuid4())), worker
    fence(sink, 1, 1)
    operator = sqlite3.connect(harness.path, isolation_level=None)
    operator.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SinkUnavailable, match=r"database is locked.*nothing was written"):
        sink.write([write(1, 1, batch(b"1"))])
    operator.execute("ROLLBACK")
    operator.execute("BEGIN IMMEDIATE")
    assert harness.sink().fence([request(1, 2)], lock_timeout_s=0.05) == [Blocked(1, 2, worker)]
    assert harness.sink().unblock([worker]) == 0
    operator.execute("ROLLBACK")
    operator.close()
    assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}


def test_a_reader_that_holds_up_a_commit_is_waited_for(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.sql.sqlite.SqliteSession.lock_timeout_s", 0.05)
    sink = fenced(harness)
    reader = sqlite3.connect(harness.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM raw").fetchall()
    with pytest.raises(SinkUnavailable, match="nothing was written"):
        sink.write([write(1, 1, batch(b"1"))])
    reader.close()
    assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}
    assert len(harness.rows(RAW)) == 1


LONG = "123456789012345678901234567890.123456789"

MOMENT = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)


def convert(
    column_type: Any, text: str, *, session: type[SqlSession] | None = None, is_json: bool = False
) -> Any:
    found = conversion(column_type) if session is None else session.conversion(column_type, is_json=is_json)
    return found.convert(text)


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
(types.BigInteger(), str(2**63 - 1), 2**63 - 1),
(types.Numeric(), LONG, Decimal(LONG)),
(types.Float(), "0.1", 0.1),
(types.Boolean(), "true", True),
(types.DateTime(), "2026-11-20T06:30:00Z", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
(types.DateTime(), "2026-11-20 08:30:00+02:00", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
(types.DateTime(timezone=True), "2026-11-20T08:30+02:00", MOMENT.astimezone(timezone(timedelta(hours=2)))),
(types.Date(), "2026-11-20", date(2026, 11, 20)),
(types.Date(), "2026-11-20T23:59:00-05:00", date(2026, 11, 20)),
(types.String(3), "öäü", "öäü"),
(types.Text(), "a\0b", "a\0b"),
(types.LargeBinary(), "ö", "ö".encode()),
(types.Enum("a", "b"), "b", "b"),
],
)  # fmt: skip
def test_a_value_that_fits_is_converted(column_type: Any, text: str, value: Any) -> None:
    converted = convert(column_type, text)
    assert (type(converted), converted) == (type(value), value)


@pytest.mark.parametrize(
    ("column_type", "text", "why"),
    [
        (types.Integer(), "1.0", "not a valid integer"),
        (types.Integer(), "١", "not a valid integer"),
        (types.BigInteger(), str(2**63), "out of range"),
        (types.Numeric(), "1e999999999", "out of range"),
        (types.Boolean(), "2", "not a valid boolean"),
        (types.DateTime(), "yesterday", "not a valid ISO 8601 date and time"),
        (types.DateTime(), "0001-01-01T00:00:00+05:00", "out of range"),
        (types.String(3), "four", "4 characters, and the column takes 3"),
        (types.Text(), "\ud800", "surrogates not allowed"),
        (types.LargeBinary(2), "abc", "3 bytes, and the column takes 2"),
        (types.LargeBinary(), "\\xzz", "not a valid hexadecimal"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(column_type: Any, text: str, why: str) -> None:
    with pytest.raises(UnreadableRecord, match=why) as raised:
        convert(column_type, text)
    assert len(str(raised.value)) < 400


# -- SQLite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.0", 1), ("-0.5", -0.5), ("0.1", 0.1), (str(-(2**63)), -(2**63)), ("1e300", 1e300)],
)
def test_sqlite_gets_numbers_that_it_can_hold(text: str, value: float) -> None:
    assert convert(types.Numeric(), text, session=SqliteSession) == value


@pytest.mark.parametrize("text", [str(2**63), "0.12345678901234567890123", "1e400"])
def test_sqlite_is_not_given_numbers_that_it_would_round(text: str) -> None:
    with pytest.raises(Unfit, match=r"more digits than this database keeps|out of range"):
        convert(types.Numeric(), text, session=SqliteSession)
    with pytest.raises(Unfit):
        convert(types.JSON(), text, session=SqliteSession, is_json=True)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_what_sqlite_gets_is_the_number_that_was_meant(number: Decimal) -> None:
    try:
        value = convert(types.Numeric(), str(number), session=SqliteSession)
    except Unfit:
        return
    assert Decimal(repr(value)) == number


# -- MariaDB and MySQL -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
        (mysql.TINYINT(display_width=1), "true", 1),
        (mysql.BIT(8), "255", 255),
        (mysql.BIT(1), "false", 0),
        (mysql.BIGINT(unsigned=True), str(2**64 - 1), 2**64 - 1),
        (mysql.DECIMAL(5, 2), "999.999", Decimal("999.999")),
        (mysql.SET("a", "b"), "a,b", "a,b"),
        (mysql.TIMESTAMP(), "2026-11-20T06:30:00Z", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
    ],
)
def test_mysql_gets_what_its_types_take(column_type: Any, text: str, value: Any) -> None:
    assert convert(column_type, text, session=MySqlSession) == value


@pytest.mark.parametrize(
    ("column_type", "text"),
    [
        (mysql.TINYINT(), "128"),
        (mysql.TINYINT(unsigned=True), "-1"),
        (mysql.INTEGER(), "true"),
        (mysql.BIT(8), "256"),
        (mysql.DECIMAL(5, 2), "1000"),
        (mysql.ENUM("a", "b"), "1"),
        (mysql.SET("a", "b"), "3"),
        (mysql.VARCHAR(3), "abc "),
    ],
)
def test_mysql_is_not_given_what_it_would_bend(column_type: Any, text: str) -> None:
    with pytest.raises(Unfit):
        convert(column_type, text, session=MySqlSession)
