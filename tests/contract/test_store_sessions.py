"""Sessions with the control database: what ends them, their pool, and what they leave behind."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import psycopg2
import pytest

from feedq.control.store import database as database_module
from feedq.control.store.database import POOL_MAX, POOL_SIZE, Database, connect_once
from feedq.control.store.worker_session import WorkerSession
from feedq.core.model import Load
from feedq.errors import Unavailable
from feedq.settings import Settings
from tests.contract.harness import TTL_S, Harness
from tests.waiting import until

BEATS = 200

SELECT_MAX = 1024

"""What ``select()`` can look at, whatever the file limit is."""


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """As many as a worker with 600 feeds has: whatever is opened next has a number beyond `SELECT_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(SELECT_MAX + 10)]
    yield
    for fileno in opened:
        os.close(fileno)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_a_session_of_a_worker_with_a_thousand_open_sockets_waits_and_hears(
    harness: Harness,
) -> None:
    worker = harness.worker("w1")
    session = WorkerSession(harness.url, worker, ttl_s=TTL_S)
    listener = harness.store.worker_listener(worker)
    try:
        assert session.heartbeat(Load()) is not None
        assert session.wait(0.01) is False
        session.interrupt()
        assert session.wait(10) is False
        assert listener.wait(0.01) is False
        harness.break_sessions(worker)
        # The server's farewell may come before the end of the connection.
        waits = (session.wait(10) for _ in range(3))
        with pytest.raises(Unavailable):
            any(waits)
    finally:
        session.close()
        listener.close()


def test_who_wakes_a_session_that_is_closed_writes_to_no_other_descriptor(harness: Harness) -> None:
    session = WorkerSession(harness.url, harness.worker("w1"), ttl_s=TTL_S)
    session.close()
    reads, writes = zip(*(os.pipe() for _ in range(8)), strict=True)  # some with the numbers that it had
    session.interrupt()
    session.close()
    for end in writes:
        os.close(end)
    assert [os.read(end, 1) for end in reads] == [b""] * len(reads)
    for end in reads:
        os.close(end)


def probes(execute: Callable[[str], Any]) -> dict[str, int]:
    """What the server does on this session about a client that has fallen silent; it asks its socket."""
    return dict(execute("SELECT name, setting::int FROM pg_settings WHERE name LIKE 'tcp\\_%'"))


@pytest.mark.parametrize(
    ("timeout_s", "idle_s", "user_ms"), [(0, None, 0), (0.5, 1, 500), (3600, 1800, 3.6e6)]
)
def test_how_long_the_other_end_may_be_silent_can_be_set(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    idle_s: int | None,
    user_ms: int,
) -> None:
    monkeypatch.setattr(database_module, "settings", lambda: Settings(database_timeout_s=timeout_s))
    with connect_once(harness.url) as c:
        found = probes(lambda sql: c.execute(sql.replace("%", "%%")))
    assert found["tcp_user_timeout"] == user_ms
    assert idle_s in (found["tcp_keepalives_idle"], None)


def test_a_heartbeat_leaves_nothing_for_a_vacuum(harness: Harness) -> None:
    """No indexed column changes, and there is room in the page."""
    h = harness

    def within_the_page() -> int:
        ((count,),) = h.execute(
            "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'feedq.worker'::regclass"
        )
        return int(str(count))

    worker = h.worker()
    before = within_the_page()
    with closing(WorkerSession(h.url, worker, ttl_s=TTL_S)) as session:
        for _ in range(BEATS):
            session.heartbeat(Load())
    # Not all: a page can be pruned only of what no transaction can see any more. And a session tells its counters
    # when it has ended.
    until(lambda: within_the_page() >= before + 0.9 * BEATS, "rows stay in their pages")


@pytest.fixture
def database(harness: Harness) -> Iterator[Database]:
    with closing(Database(harness.url, application_name="test")) as opened:
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
            *["SELECT 1"] * 20,
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


NAME = "feedq-pool-test"

BACKENDS = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture
def pooled(control_database_url: str) -> Iterator[Database]:
    made = Database(control_database_url, application_name=NAME)
    yield made
    made.close()


def backends(pooled: Database) -> dict[int, str]:
    """State by pid, as the server has them."""
    with psycopg2.connect(pooled.url) as other, other.cursor() as cursor:
        cursor.execute(BACKENDS, (NAME,))
        return dict(cursor.fetchall())


def said_last(pooled: Database, pid: int) -> str:
    """What this session sent to the server last."""
    with psycopg2.connect(pooled.url) as other, other.cursor() as cursor:
        cursor.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (pid,))
        ((query,),) = cursor.fetchall()
        return str(query)


def end_all(pooled: Database) -> None:
    with psycopg2.connect(pooled.url) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(pid) FROM ({BACKENDS}) mine", (NAME,))
    until(lambda: not backends(pooled), "no session is left")


def ask(pooled: Database) -> int:
    """The pid of the session that answers."""
    with pooled.statement() as c:
        pid: int = c.execute("SELECT pg_backend_pid()").scalar_one()
    return pid


def test_a_session_that_was_lost_while_it_rested_is_replaced_before_it_is_used(
    pooled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RESTED_S", 0.0)
    first = ask(pooled)
    end_all(pooled)
    assert ask(pooled) != first


def test_a_statement_is_committed_by_itself_and_leaves_its_session_as_it_was(pooled: Database) -> None:
    with pooled.statement() as c:
        c.execute("CREATE TABLE lone (n int)")
        assert set(backends(pooled).values()) == {"idle"}, "no transaction is open"
    try:
        with suppress(ZeroDivisionError), pooled.transaction() as c:
            c.execute("INSERT INTO lone VALUES (1)")
            raise ZeroDivisionError
        with pooled.statement() as c:
            assert c.execute("SELECT count(*) FROM lone").scalar_one() == 0
    finally:
        with pooled.statement() as c:
            c.execute("DROP TABLE lone")


def test_a_statement_is_one_round_trip_whatever_its_session_did_before(pooled: Database) -> None:
    pid = ask(pooled)
    for _ in range(2):
        assert said_last(pooled, pid) == "SELECT pg_backend_pid()", "nothing is said after it"
        with pooled.transaction() as c:
            c.execute("SELECT 1")
        assert said_last(pooled, pid) == "COMMIT"
        assert ask(pooled) == pid


def test_a_process_uses_a_few_sessions_at_once_and_keeps_two(
    pooled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "POOL_TIMEOUT_S", 0.01)
    with ExitStack() as used:
        for _ in range(POOL_MAX):
            used.enter_context(pooled.statement())
        with pytest.raises(Unavailable, match=f"all {POOL_MAX} of its connections"):
            ask(pooled)
    until(lambda: len(backends(pooled)) == POOL_SIZE, "the others are closed")
