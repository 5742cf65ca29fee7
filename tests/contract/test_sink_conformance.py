"""Every kind of sink that is at hand here, put through the suites for sinks and for tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import ClassVar

import pytest

from feedq.sinks import copyplan
from tests.contract.sink_conformance import SinkConformance
from tests.contract.sink_harness import PostgresSinkHarness, SqliteHarness
from tests.contract.sink_stage import SinkHarness, batch, fenced, write
from tests.contract.sink_tables import Kinds, SinkTables, Wrong


class TestPostgresSink(SinkConformance):
    """PostgreSQL by COPY."""

    @pytest.fixture
    def harness(self, postgresql_sink: PostgresSinkHarness) -> SinkHarness:
        return postgresql_sink

    def test_a_cursor_with_a_nul_cannot_be_kept(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        written = sink.write([write(1, 1, batch(b"1", cursor="a\0b"))])
        assert "NUL" in written.unusable[1, 1]

    def test_writers_and_fences_over_the_same_feeds_in_any_order_do_not_deadlock(
        self, harness: SinkHarness
    ) -> None:
        """Nor are there deadlocks that a second try hides."""
        assert isinstance(harness, PostgresSinkHarness)
        counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        before = harness.query(counted)
        super().test_writers_and_fences_over_the_same_feeds_in_any_order_do_not_deadlock(harness)
        harness.query("SELECT pg_stat_force_next_flush()")
        assert harness.query(counted) == before


class TestSqlSinkOnSqlite(SinkConformance):
    """SQLite locks its file and not rows, for as long as a process lives."""

    locks_feeds = False
    locks_tables = False
    ends_sessions = False
    strands_commits = False

    @pytest.fixture
    def harness(self, sqlite_sink: SqliteHarness) -> SinkHarness:
        return sqlite_sink


# -- tables of the user's own ------------------------------------------------------------------------

DIGITS = "123456789012345678901234567890.123456789"


class TestPostgresTables(SinkTables):
    """By COPY, and by way of a staging table."""

    moment = "timestamptz"
    json = "jsonb"
    number = "bigserial PRIMARY KEY"
    kinds: ClassVar[Kinds] = {
        "n": ("numeric", DIGITS, Decimal(DIGITS)),
        "f": ("float8", "0.1", 0.1),
        "b": ("boolean", "true", True),
        "t": ("text", "12", "12"),
        "z": ("text", "1.10", "1.10"),
        "v": ("varchar(6)", '"q\\"\\t\\\\ö😀"', 'q"\t\\ö😀'),
        "o": ("text", '{"a":  [1.10]}', '{"a":  [1.10]}'),
        "j": ("jsonb", '"str\\u00f6"', "strö"),
        "k": ("json", '{"a": null}', {"a": None}),
        "a": ("int[]", '"{1,2}"', [1, 2]),
        "a2": ("int[]", "[[1,2], [3,null]]", [[1, 2], [3, None]]),
        "a3": (
            "text[]",
            '["a,\\"b\\\\", null, "", "NULL", 1.10, {"k": [1]}]',
            ['a,"b\\', None, "", "NULL", "1.10", '{"k": [1]}'],
        ),
        "a4": ("text[]", "[]", []),
        "i": ("bigint", "-0.0", 0),
        "i2": ("int", '"12.0"', 12),
        "d": ("date", '"2026-11-20"', date(2026, 11, 20)),
        "at": ("timestamptz", '"2026-11-20T08:30+02:00"', datetime(2026, 11, 20, 6, 30, tzinfo=UTC)),
        "u": ("uuid", '"00000000-0000-0000-0000-000000000001"', "00000000-0000-0000-0000-000000000001"),
    }
    wrong: ClassVar[Wrong] = [
        ("bigint", '"7.5"', "invalid input syntax for type bigint"),
        ("int", str(2**31), "out of range"),
        ("varchar(5)", '"too long"', "value too long for type character varying(5)"),
        ("text", '"\\u0000"', 'invalid byte sequence for encoding "UTF8": 0x00'),
        ("jsonb", '"\\u0000"', "unsupported Unicode escape sequence"),
        ("text", '"\\ud800"', "surrogates not allowed"),
        ("timestamptz", '"yesterday-ish"', "invalid input syntax for type timestamp"),
        ("int NOT NULL DEFAULT 5", "null", 'null value in column "c"'),
    ]

    @pytest.fixture
    def harness(self, postgresql_sink: PostgresSinkHarness) -> PostgresSinkHarness:
        return postgresql_sink


class TestPostgresTablesByTrial(TestPostgresTables):
    """As on a server before PostgreSQL 16, which cannot be asked what its columns take."""

    @pytest.fixture(autouse=True)
    def _asks_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copyplan, "ASKS_INPUT_FUNCTIONS", 10**9)


class TestSqliteTables(SinkTables):
    """By INSERT, a few hundred rows at a time."""

    moment = "DATETIME"
    json = "JSON"
    number = "INTEGER PRIMARY KEY"
    kinds: ClassVar[Kinds] = {
        "i": ("BIGINT", '"-7"', -7),
        "i2": ("BIGINT", "12.0", 12),
        "n": ("NUMERIC", '"0.10"', 0.1),
        "b": ("BOOLEAN", "true", 1),
        "v": ("VARCHAR(5)", '"q\\t\\\\ö😀"', "q\t\\ö😀"),
        "t": ("TEXT", "1.10", "1.10"),
        "j": ("JSON", '{"a":  [1.50]}', '{"a":  [1.50]}'),
        "at": ("DATETIME", '"2026-11-20T08:30:00+02:00"', "2026-11-20 06:30:00.000000"),
        "raw": ("BLOB", '"\\\\x00ff27"', b"\x00\xff'"),
    }
    wrong: ClassVar[Wrong] = [
        ("BIGINT", '"seven"', "column 'c': 'seven' is not a valid integer"),
        ("BIGINT", str(2**63), "column 'c': '9223372036854775808' is out of range"),
        ("NUMERIC", str(10**30 + 1), "column 'c'"),
        ("BOOLEAN", '"perhaps"', "column 'c': 'perhaps' is not a valid boolean"),
        ("VARCHAR(5)", '"too long"', "'too long' has 8 characters, and the column takes 5"),
        ("DATETIME", '"yesterday-ish"', "is not a valid ISO 8601 date and time"),
        ("INT NOT NULL DEFAULT 5", "null", "NOT NULL constraint failed"),
        ("TEXT CHECK (c <> 'secret')", '"secret"', "CHECK constraint failed"),
    ]

    @pytest.fixture
    def harness(self, sqlite_sink: SqliteHarness) -> SqliteHarness:
        return sqlite_sink
