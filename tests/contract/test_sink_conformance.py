"""Every kind of sink that is at hand here, put through the suite for sinks."""

from __future__ import annotations

import pytest

from tests.contract.sink_conformance import SinkConformance
from tests.contract.sink_harness import MemoryHarness, PostgresSinkHarness, SqliteHarness
from tests.contract.sink_stage import SinkHarness, batch, fenced, write


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


class TestMemorySink(SinkConformance):
    """The test double, as far as it goes."""

    freezes = False
    strands_commits = False

    @pytest.fixture
    def harness(self) -> SinkHarness:
        return MemoryHarness()
