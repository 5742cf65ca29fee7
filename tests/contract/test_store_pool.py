"""The pool of sessions: what rested is asked whether it is there, and one statement is a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psycopg2
import pytest

from feedq.control.store import database as database_module
from feedq.control.store.database import POOL_MAX, POOL_SIZE, Database
from feedq.errors import Unavailable

pytestmark = pytest.mark.servers

NAME = "feedq-pool-test"
LIMIT_S = 30.0
BACKENDS = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture
def database(control_database_url: str) -> Iterator[Database]:
    made = Database(control_database_url, application_name=NAME)
    yield made
    made.close()


def backends(database: Database) -> dict[int, str]:
    """State by pid, as the server has them."""
    with psycopg2.connect(database.url) as other, other.cursor() as cursor:
        cursor.execute(BACKENDS, (NAME,))
        return dict(cursor.fetchall())


def said_last(database: Database, pid: int) -> str:
    """What this session sent to the server last."""
    with psycopg2.connect(database.url) as other, other.cursor() as cursor:
        cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (pid,))
        ((query,),) = cursor.fetchall()
        return str(query)


def end_all(database: Database) -> None:
    with psycopg2.connect(database.url) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(pid) FROM ({BACKENDS}) mine", (NAME,))
    wait_until(lambda: not backends(database))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def ask(database: Database) -> int:
    """The pid of the session that answers."""
    with database.statement() as c:
        pid: int = c.execute("SELECT pg_backend_pid()").scalar_one()
    return pid


def test_a_session_that_was_lost_while_it_rested_is_replaced_before_it_is_used(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RESTED_S", 0.0)
    first = ask(database)
    end_all(database)
    assert ask(database) != first


def test_a_statement_is_committed_by_itself_and_leaves_its_session_as_it_was(database: Database) -> None:
    with database.statement() as c:
        c.execute("CREATE TABLE lone (n int)")
        assert set(backends(database).values()) == {"idle"}, "no transaction is open"
    try:
        with suppress(ZeroDivisionError), database.transaction() as c:
            c.execute("INSERT INTO lone VALUES (1)")
            raise ZeroDivisionError
        with database.statement() as c:
            assert c.execute("SELECT count(*) FROM lone").scalar_one() == 0
    finally:
        with database.statement() as c:
            c.execute("DROP TABLE lone")


def test_a_statement_is_one_round_trip_whatever_its_session_did_before(database: Database) -> None:
    pid = ask(database)
    for _ in range(2):
        assert said_last(database, pid) == "SELECT pg_backend_pid()", "nothing is said after it"
        with database.transaction() as c:
            c.execute("SELECT 1")
        assert said_last(database, pid) == "COMMIT"
        assert ask(database) == pid


def test_a_process_uses_a_few_sessions_at_once_and_keeps_two(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "POOL_TIMEOUT_S", 0.01)
    with ExitStack() as used:
        for _ in range(POOL_MAX):
            used.enter_context(database.statement())
        with pytest.raises(Unavailable, match=f"all {POOL_MAX} of its connections"):
            ask(database)
    wait_until(lambda: len(backends(database)) == POOL_SIZE)
