"""Sessions that outlive a transaction, on PostgreSQL."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from feedq.control.store import database as database_module
from feedq.control.store.database import connect_once
from feedq.control.store.worker_session import WorkerSession
from feedq.core.model import Load
from feedq.errors import Unavailable
from feedq.settings import Settings
from tests.contract.harness import TTL_S, PostgresHarness

pytestmark = pytest.mark.servers

BEATS = 200
LIMIT_S = 10.0
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
    postgres_harness: PostgresHarness,
) -> None:
    worker = postgres_harness.worker("w1")
    session = WorkerSession(postgres_harness.url, worker, ttl_s=TTL_S)
    listener = postgres_harness.store.worker_listener(worker)
    try:
        assert session.heartbeat(Load()) is not None
        assert session.wait(0.01) is False
        session.interrupt()
        assert session.wait(10) is False
        assert listener.wait(0.01) is False
        postgres_harness.break_sessions(worker)
        # The server's farewell may come before the end of the connection.
        waits = (session.wait(10) for _ in range(3))
        with pytest.raises(Unavailable):
            any(waits)
    finally:
        session.close()
        listener.close()


def probes(execute: Callable[[str], Any]) -> dict[str, int]:
    """What the server does on this session about a client that has fallen silent; it asks its socket."""
    return dict(execute("SELECT name, setting::int FROM pg_settings WHERE name LIKE 'tcp\\_%'"))


@pytest.mark.parametrize(
    ("timeout_s", "idle_s", "user_ms"), [(0, None, 0), (0.5, 1, 500), (3600, 1800, 3.6e6)]
)
def test_how_long_the_other_end_may_be_silent_can_be_set(
    postgres_harness: PostgresHarness,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    idle_s: int | None,
    user_ms: int,
) -> None:
    monkeypatch.setattr(database_module, "settings", lambda: Settings(database_timeout_s=timeout_s))
    with connect_once(postgres_harness.url) as c:
        found = probes(lambda sql: c.execute(sql.replace("%", "%%")))
    assert found["tcp_user_timeout"] == user_ms
    assert idle_s in (found["tcp_keepalives_idle"], None)


def test_a_heartbeat_leaves_nothing_for_a_vacuum(postgres_harness: PostgresHarness) -> None:
    """No indexed column changes, and there is room in the page."""
    h = postgres_harness

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
    deadline = time.monotonic() + LIMIT_S
    # Not all: a page can be pruned only of what no transaction can see any more. And a session tells its counters
    # when it has ended.
    while within_the_page() < before + 0.9 * BEATS:
        assert time.monotonic() < deadline, "rows were moved to other pages"
        time.sleep(0.01)
