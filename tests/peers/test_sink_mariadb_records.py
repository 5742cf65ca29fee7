"""Records as rows of MariaDB's tables: its types, its strictness, its keys, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import ClassVar

import pytest

from feedq.errors import SinkUnavailable
from feedq.records.batch import Records
from feedq.records.framing import RecordFormat
from feedq.sinks.base import Target, Unusable
from feedq.sinks.mapping import sources_of
from tests.contract.sink_stage import PATIENCE_S, batch, fence, fenced, request, write
from tests.contract.sink_tables import Kinds, SinkTables, Wrong, order
from tests.peers.mariadb import DATABASE, MariaDb, MariaDbHarness

ORDERS = "CREATE TABLE orders (seq bigint, at datetime(6), sku varchar(5), payload json)"
TYPED = Target(
    "orders", "json", sources_of({"seq": "/seq", "at": "/ts", "sku": "/lines/0/sku", "payload": ""})
)
KEYED = Target("orders", "json", TYPED.columns, ("seq",))


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with MariaDb() as server:
        # As careless as a server can be set up; sessions of ours ask for more.
        server.execute("SET GLOBAL sql_mode = '', GLOBAL explicit_defaults_for_timestamp = OFF")
        server.execute("SET GLOBAL time_zone = '+05:00'")
        yield server


@pytest.fixture
def harness(mariadb: MariaDb) -> Iterator[MariaDbHarness]:
    made = MariaDbHarness(mariadb)
    yield made
    made.close()


# -- types -------------------------------------------------------------------------------------------


class TestMariaDbTables(SinkTables):
    """By INSERT, strictly, whatever the server has for its default."""

    moment = "datetime(6)"
    json = "json"
    number = "bigint AUTO_INCREMENT PRIMARY KEY"
    quote = "`"
    odd = "a'b; ?"
    kinds: ClassVar[Kinds] = {
        "i": ("int", "-7", -7),
        "u": ("bigint unsigned", str(2**64 - 1), 2**64 - 1),
        "t": ("tinyint(1)", "true", 1),
        "bits": ("bit(12)", "2049", b"\x08\x01"),
        "n": (
            "decimal(40,9)",
            "1234567890123456789012345678901.123456789",
            Decimal("1234567890123456789012345678901.123456789"),
        ),
        "d": ("double", "0.1", 0.1),
        "v": ("varchar(4) character set utf8mb4", '"ö😀\\t\\\\"', "ö😀\t\\"),
        "x": ("text", '{"a": [1]}', '{"a": [1]}'),
        "j": ("json", '"str\\u00f6"', '"str\\u00f6"'),
        "num": ("json", "12345678901234567890123", "12345678901234567890123"),
        "raw": ("blob", '"\\\\x00ff27"', b"\x00\xff'"),
        "at": ("datetime(6)", '"2026-11-20T08:30:00.123457+02:00"', datetime(2026, 11, 20, 6, 30, 0, 123457)),  # noqa: DTZ001
        "day": ("date", '"2026-11-20"', date(2026, 11, 20)),
        "clock": ("time(3)", '"06:30:00.5"', timedelta(hours=6, minutes=30, milliseconds=500)),
        "e": ("enum('small','big')", '"big"', "big"),
        "s": ("set('a','b','c')", '"c,a"', "a,c"),
        "y": ("year", "2026", 2026),
        "id": ("uuid", '"00000000-0000-0000-0000-00000000000A"', "00000000-0000-0000-0000-00000000000a"),
        "ip": ("inet6", '"::1"', "::1"),
    }
    wrong: ClassVar[Wrong] = [
        ("int", '"7.5"', "not a valid integer"),
        ("int", str(2**31), "out of range"),
        ("int unsigned", "-1", "out of range"),
        ("decimal(5,2)", "1000", "out of range"),
        ("varchar(3)", '"four"', "4 characters"),
        ("varchar(3)", '"abc "', "4 characters"),
        ("varbinary(2)", '"abc"', "3 bytes"),
        ("tinytext", f'"{"x" * 256}"', "Data too long"),
        ("datetime", '"2026-02-30T00:00:00"', "not a valid ISO 8601"),
        ("timestamp null", '"1960-01-01T00:00:00"', "Incorrect datetime value"),
        ("date", '"0000-00-00"', "not a valid ISO 8601"),
        ("enum('a','b')", '"1"', "not one of a, b"),
        ("enum('a','b')", '""', "not one of a, b"),
        ("year", '"soon"', "Incorrect"),
        ("uuid", '"no uuid"', "Incorrect uuid value"),
        ("inet6", '"1"', "Incorrect inet6 value"),
        ("varchar(9) character set latin1", '"日本"', "Incorrect string value"),
        ("json", "[" * 40 + "]" * 40, "CONSTRAINT"),
        ("text", '"\\ud800"', "surrogates not allowed"),
        ("int not null", "null", "cannot be null"),
        ("int not null default 5", "null", "cannot be null"),
        ("timestamp not null", "null", "cannot be null"),
    ]


def test_times_are_in_utc_whatever_the_zone_of_the_server(harness: MariaDbHarness) -> None:
    harness.query("CREATE TABLE times (ts timestamp(6) NULL, dt datetime(6))")
    target = Target("times", "json", sources_of({"ts": "/at", "dt": "/at"}))
    sink = fenced(harness, target)
    sink.write([write(1, 1, batch(b'{"at": "2026-11-20T06:30:00Z"}'), target=target)])
    moment = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)
    ((seconds, landed),) = harness.query("SELECT unix_timestamp(ts), dt FROM times")
    assert (seconds, landed) == (moment.timestamp(), moment.replace(tzinfo=None))


@pytest.mark.parametrize("record_format", ["json", "text", "bytes"])
def test_the_default_table_keeps_every_byte(harness: MariaDbHarness, record_format: RecordFormat) -> None:
    target = Target("made", record_format)
    at = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)
    records = {
        "json": [b'{"a":  1.50, "\xc3\xb6": "\\u0000%s\\\\\'"}', b"12345678901234567890.5", '"😀"'.encode()],
        "text": [b"", b"\\N", b"'; DROP TABLE made; -- %s", "ö😀\0\t\r\n".encode(), b" spaces "],
        "bytes": [b"\0\xff\xfe'\\\"%s\x1a", bytes(range(256))],
    }[record_format]
    sink = fenced(harness, target)
    sink.write(
        [write(1, 1, Records(records=tuple(records)).batch(cursor=None, received_at=at), target=target)]
    )
    rows = harness.query("SELECT feed, epoch, received_at, payload FROM made")
    shown = records if record_format == "bytes" else [record.decode() for record in records]
    assert rows == [("feed/1", 1, at.replace(tzinfo=None), payload) for payload in shown]


def test_feeds_that_differ_in_case_only_are_two(harness: MariaDbHarness) -> None:
    target = Target("made", "text", (), ("feed", "epoch"))
    sink = harness.sink()
    for n, name in enumerate(("Feed", "feed", "féed")):
        one = write(n, 1, batch(b"x"), target=target)
        sink.fence([request(n, 1, target)], lock_timeout_s=PATIENCE_S)
        assert sink.write([type(one)(n, name, 1, target, one.batches)]).dead == {}
    assert harness.query("SELECT count(*) FROM made") == [(3,)]


# -- landings that cannot work -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "target", "words"),
    [
        (f"{ORDERS} ENGINE=MyISAM", TYPED, "uses the engine MyISAM, but only InnoDB"),
        ("CREATE VIEW orders AS SELECT 1 AS seq", TYPED, "is a view"),
        ("CREATE TABLE orders (seq bigint)", TYPED, "no column 'at', 'sku', 'payload'"),
        (f"{ORDERS[:-1]}, n int NOT NULL)", TYPED, "'n' is NOT NULL without a default"),
        ("CREATE TABLE orders (n int, seq int AS (n + 1))", KEYED, "no column 'at'"),
        (f"{ORDERS[:-1]}, UNIQUE (seq, sku))", KEYED, "no unique index on exactly (seq)"),
        (f"{ORDERS[:-1]}, UNIQUE (seq), UNIQUE (sku))", KEYED, "ON DUPLICATE KEY UPDATE would take it for"),
        (
            f"{ORDERS[:-1]}, UNIQUE (seq), UNIQUE (sku(2)))",
            KEYED,
            "another unique index, over parts of values",
        ),
        ("", Target("nowhere.made", "json"), "cannot be created: Unknown database 'nowhere'"),
    ],
)
def test_a_landing_that_cannot_work_says_why(
    harness: MariaDbHarness, ddl: str, target: Target, words: str
) -> None:
    if ddl:
        harness.query(ddl)
    (outcome,) = harness.sink().fence([request(1, 1, target)], lock_timeout_s=PATIENCE_S)
    assert isinstance(outcome, Unusable)
    assert words in outcome.error


def test_a_permission_taken_away_stops_the_feed(harness: MariaDbHarness) -> None:
    harness.query(ORDERS)
    fence(harness.sink(), 1, 1)
    harness.query("CREATE OR REPLACE USER 'feeds'@'%' IDENTIFIED BY 's3cret'")
    for table in ("feedq_checkpoint", "feedq_dead_letter", "raw"):
        harness.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.{table} TO 'feeds'@'%'")
    harness.query(f"GRANT SELECT ON {DATABASE}.orders TO 'feeds'@'%'")
    sink = harness.sink(url=harness.server.url(DATABASE, user="feeds:s3cret"))
    sink.fence([request(1, 2, TYPED), request(2, 2)], lock_timeout_s=PATIENCE_S)
    written = sink.write([write(1, 2, batch(order(1)), target=TYPED), write(2, 2, batch(b"1"))])
    assert written.landed == {(2, 2): 1}
    assert "INSERT command denied" in written.unusable[1, 2]


def test_a_record_that_no_statement_can_carry_stops_its_feed_and_no_other(
    harness: MariaDbHarness, mariadb: MariaDb
) -> None:
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        sink = harness.sink()
        sink.fence([request(1, 1), request(2, 1)], lock_timeout_s=PATIENCE_S)
        long = b'"' + b"\\\\" * 300_000 + b'"'
        written = sink.write([write(1, 1, batch(b"1", long)), write(2, 1, batch(b"2"))])
        assert written.landed == {(2, 1): 1}
        assert "600002 bytes" in written.unusable[1, 1]
        assert "max_allowed_packet" in written.unusable[1, 1]
        nearly = b'"' + b"\\\\" * 240_000 + b'"'
        assert sink.write([write(1, 1, batch(nearly, nearly))]).landed == {(1, 1): 2}
        assert {len(payload) for _, _, payload in harness.rows(Target("raw", "json"))} == {1, len(nearly)}
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = 16777216")


def test_a_server_that_may_only_be_read_is_unavailable(harness: MariaDbHarness) -> None:
    harness.query("CREATE OR REPLACE USER 'feeds'@'%' IDENTIFIED BY 's3cret'")
    harness.query(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON {DATABASE}.* TO 'feeds'@'%'")
    sink = harness.sink(url=harness.server.url(DATABASE, user="feeds:s3cret"))
    fence(sink, 1, 1)
    harness.query("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(SinkUnavailable, match="read-only"):
            sink.write([write(1, 1, batch(b"1"))])
    finally:
        harness.query("SET GLOBAL read_only = OFF")
    assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}
