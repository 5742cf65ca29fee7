"""Sessions that outlive a transaction, on PostgreSQL."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from feedq.errors import Unavailable
from feedq.model import Load
from feedq.store.session import PostgresSession
from tests.contract.harness import TTL_S, PostgresHarness

pytestmark = pytest.mark.servers

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
    session = PostgresSession(postgres_harness.url, worker, ttl_s=TTL_S)
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
