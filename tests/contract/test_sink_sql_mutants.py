"""Does the suite bite? The sink for any database is broken in its vital spots, and the suite must notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedq.sinks.session import AnswerLost
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.sqlstate import ErrorScope
from tests.contract import test_sink_conformance
from tests.contract.sink_harness import SqliteHarness
from tests.contract.sink_stage import batch

suite = test_sink_conformance.TestSqlSinkOnSqlite()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SqliteHarness]:
    made = SqliteHarness(tmp_path / "sink.sqlite3")
    yield made
    made.close()


def commit_and_go_on(session: SqliteSession) -> None:
    # The driver's own commit falls into no trap.
    driver: Any = session.connection.connection.dbapi_connection
    driver.commit()
    session.begin()


def test_a_write_that_does_not_look_at_the_epoch_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(self: SqliteSession, _writes: Any, *, check_at_once: bool) -> set[Any]:
        self.begin()
        return set()

    monkeypatch.setattr(SqliteSession, "lock", lock)
    monkeypatch.setattr(SqliteSession, "advance", lambda *_: None)
    with pytest.raises(AssertionError):
        suite.test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint(harness)


def test_a_fence_that_leaves_the_commit_that_was_there_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = SqliteSession._fence

    def without_commit(self: SqliteSession, rows: Any, **options: Any) -> None:
        found = self.connection.exec_driver_sql("SELECT feed_id, commit_id FROM feedq_checkpoint")
        before = {row.feed_id: row.commit_id for row in found}
        fence(self, [{**r, "commit_id": before.get(r["feed_id"])} for r in rows], **options)

    monkeypatch.setattr(SqliteSession, "_fence", without_commit)
    with pytest.raises(AssertionError):
        suite.test_a_fence_ends_what_was_to_be_continued_also_under_the_same_epoch(harness)


def test_a_fence_that_raises_nothing_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = SqliteSession._fence

    def first_only(self: SqliteSession, rows: Any, **options: Any) -> None:
        if not list(self.connection.exec_driver_sql("SELECT 1 FROM feedq_checkpoint")):
            fence(self, rows, **options)

    monkeypatch.setattr(SqliteSession, "_fence", first_only)
    with pytest.raises(AssertionError):
        suite.test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint(harness)


def test_a_checkpoint_that_moves_outside_of_the_transaction_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = SqliteSession._advance

    def early(self: SqliteSession, rows: Any) -> None:
        advance(self, rows)
        commit_and_go_on(self)

    monkeypatch.setattr(SqliteSession, "_advance", early)
    with pytest.raises(AssertionError):
        suite.test_a_lost_answer_is_decided_by_the_checkpoint(harness, False)


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_taken_for_a_refusal_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    monkeypatch.setattr(AnswerLost, "__init__", lambda *_: None)
    monkeypatch.setattr(SqliteSession, "refused_commit", lambda *_: True)
    with pytest.raises(Exception, match="disk I/O error"):
        suite.test_a_lost_answer_is_decided_by_the_checkpoint(harness, happened)


def test_dead_letters_that_are_written_elsewhere_are_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dead_letters = SqliteSession.write_dead_letters

    def at_once(self: SqliteSession, dead: Any) -> None:
        write_dead_letters(self, dead)
        commit_and_go_on(self)

    monkeypatch.setattr(SqliteSession, "write_dead_letters", at_once)
    with pytest.raises(AssertionError):
        suite.test_a_lost_answer_covers_the_dead_letters_too(harness, False)


def test_a_replay_that_leaves_its_dead_letters_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.upkeep._delete", lambda *_: 0)
    with pytest.raises(AssertionError):
        suite.test_a_dead_letter_lands_once_however_often_it_is_tried_again(harness)


def test_an_attempt_that_is_not_undone_is_noticed(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteSession, "undoable", (ErrorScope.LOCKED,))
    with pytest.raises(AssertionError):
        suite.test_refused_records_go_to_the_dead_letters_and_all_others_land(harness, "9", batch)
