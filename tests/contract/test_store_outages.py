"""What a server says when it cannot serve us just now: always `Unavailable`, never a bug of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from feedq.control.store.database import Database
from feedq.errors import Unavailable
from tests.contract.harness import PostgresHarness

pytestmark = pytest.mark.servers


@pytest.fixture
def database(postgres_harness: PostgresHarness) -> Iterator[Database]:
    with closing(Database(postgres_harness.url, application_name="test")) as opened:
        yield opened


def run(database: Database, *statements: str, pause_s: float = 0.0) -> None:
    with database.transaction() as c:
        for statement in statements:
            time.sleep(pause_s)
            c.execute(statement)


def test_a_standby_that_only_reads(database: Database) -> None:
    # What a worker finds behind a name that was moved, for as long as the standby is not promoted.
    with pytest.raises(Unavailable, match="read-only"):
        run(database, "SET TRANSACTION READ ONLY", "UPDATE feedq.fleet SET pass_at = clock_timestamp()")


def test_a_process_that_was_frozen_inside_its_transaction(database: Database) -> None:
    with pytest.raises(Unavailable):
        run(
            database,
            "SET LOCAL idle_in_transaction_session_timeout = '50ms'",
            "SELECT 1",
            "SELECT 1",
            pause_s=0.3,
        )


def test_a_lock_that_is_held_for_too_long(database: Database) -> None:
    with database.transaction() as holder:
        holder.execute("SELECT * FROM feedq.fleet FOR UPDATE")
        with pytest.raises(Unavailable):
            run(database, "SET LOCAL lock_timeout = '50ms'", "SELECT * FROM feedq.fleet FOR UPDATE")


def test_a_statement_that_was_given_up(database: Database) -> None:
    with pytest.raises(Unavailable):
        run(database, "SET LOCAL statement_timeout = '50ms'", "SELECT pg_sleep(10)")


def test_a_session_that_was_ended(database: Database) -> None:
    with pytest.raises(Unavailable):
        run(database, "SELECT pg_terminate_backend(pg_backend_pid())")
    run(database, "SELECT 1")
