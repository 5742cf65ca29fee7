"""What the sink's conformance suite needs beyond the interface: to look into the database, and to break things.

One harness per kind of sink; a new kind brings its own and runs the same suite. Writers that freeze or lose
their connection do so at an exact statement, through `tests.proxy`, never by chance.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg2
from psycopg2 import sql

from feedq.embedded.postgres import Postgres
from feedq.model import JSON, Batch
from feedq.sinks.base import (
    CommitUnknown,
    FeedWrite,
    Fenced,
    FenceRequest,
    Landing,
    Sink,
    Written,
)
from feedq.sinks.postgresql import PostgresSink
from tests.proxy import Fault, PostgresProxy, Trap

ENVIRONMENT = "test"
RAW = Landing("raw", "json")
PATIENCE_S = 20.0
"""For what must happen, on however busy a machine."""
LOCK_TIMEOUT_S = 0.1


def batch(*records: bytes, cursor: JSON = None) -> Batch:
    return Batch.of_records(records, cursor=cursor, received_at=datetime.now(UTC))


def lines(*records: bytes, cursor: JSON = None) -> Batch:
    text = b"".join(record + b"\n" for record in records)
    return Batch.of_lines(text, cursor=cursor, received_at=datetime.now(UTC))


def write(feed_id: int, epoch: int, *batches: Batch, landing: Landing = RAW) -> FeedWrite:
    return FeedWrite(feed_id, f"feed/{feed_id}", epoch, landing, batches)


def request(feed_id: int, epoch: int, landing: Landing = RAW) -> FenceRequest:
    return FenceRequest(feed_id, f"feed/{feed_id}", epoch, landing)


def fence(sink: Sink, feed_id: int, epoch: int, landing: Landing = RAW) -> Fenced:
    """Fence one feed, which must succeed."""
    (outcome,) = sink.fence([request(feed_id, epoch, landing)], lock_timeout_s=PATIENCE_S)
    assert isinstance(outcome, Fenced), outcome
    return outcome


@cache
def _shared_database(postgres: Postgres) -> str:
    return postgres.create_database("contract_of_the_sinks")


def empty_database(postgres: Postgres) -> str:
    """A database with nothing in it and nobody else connected: emptied, which is quicker than a new one."""
    url = _shared_database(postgres)
    connection = psycopg2.connect(url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        cursor.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
        )
        for (schema,) in cursor.fetchall():
            cursor.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        cursor.execute("CREATE SCHEMA public")
    connection.close()
    return url


class FrozenWrite:
    """A write that stands still inside its transaction, all done but the commit."""

    def __init__(self, trap: Trap, sink: Sink, writes: Sequence[FeedWrite]) -> None:
        self._trap = trap
        self._result: Written | BaseException | None = None
        self._thread = threading.Thread(target=self._write, args=(sink, writes), daemon=True)
        self._thread.start()
        assert trap.tripped.wait(PATIENCE_S), self._result

    def thaw(self) -> Written | BaseException:
        """Let it go on; returns what came of it."""
        self._trap.release()
        self._thread.join(PATIENCE_S)
        assert self._result is not None
        return self._result

    def _write(self, sink: Sink, writes: Sequence[FeedWrite]) -> None:
        try:
            self._result = sink.write(writes)
        except BaseException as error:
            self._result = error


class SinkHarness(Protocol):
    """One kind of sink, with a database of its own."""

    def sink(
        self, *, role: str = "writer", worker_id: UUID | None = None, environment: str = ENVIRONMENT
    ) -> Sink:
        """A sink for this test; closed with the harness."""

    def landed(self, landing: Landing = RAW) -> Counter[tuple[str, int, str]]:
        """``(feed, epoch, payload as text)`` of each row of a default landing table."""

    def dead(self) -> list[tuple[str, int, bytes, JSON]]:
        """``(feed, epoch, record, cursor)`` of each dead letter, oldest first."""

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        """A write of this worker that has stopped before its commit."""

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> tuple[Sink, CommitUnknown]:
        """A write whose answer was lost after it ``happened``, or before it could; and the sink it was of."""

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[Sink, CommitUnknown, Callable[[], None]]:
        """A write whose answer was lost while its commit is still under way; calling lets the commit arrive."""

    def unreachable(self) -> Sink:
        """A sink whose server does not answer."""

    def close(self) -> None: ...


class PostgresSinkHarness:
    """`PostgresSink` over a database that is otherwise empty."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.proxy = PostgresProxy(url)
        self._sinks: list[PostgresSink] = []

    def sink(
        self,
        *,
        role: str = "writer",
        worker_id: UUID | None = None,
        environment: str = ENVIRONMENT,
        url: str | None = None,
    ) -> PostgresSink:
        sink = PostgresSink(
            url or self.url, environment=environment, worker_id=worker_id or uuid4(), role=role
        )
        self._sinks.append(sink)
        return sink

    def landed(self, landing: Landing = RAW) -> Counter[tuple[str, int, str]]:
        return Counter(self.query(f'SELECT feed, epoch, payload::text FROM "{landing.table}"'))

    def dead(self) -> list[tuple[str, int, bytes, JSON]]:
        letters = self.sink().dead_letters(limit=10**6)
        return [(x.feed, x.epoch, x.record, x.cursor) for x in reversed(letters)]

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        trap = self.proxy.arm(Fault.HOLD, "COMMIT", application=f"feedq-writer/{worker_id}")
        return FrozenWrite(trap, self.sink(worker_id=worker_id, url=self.proxy.url), writes)

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> tuple[PostgresSink, CommitUnknown]:
        return self._lose(Fault.CUT_AFTER if happened else Fault.CUT_BEFORE, writes)[:2]

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[PostgresSink, CommitUnknown, Callable[[], None]]:
        sink, unknown, trap = self._lose(Fault.STRAND, writes)
        return sink, unknown, trap.release

    def unreachable(self) -> PostgresSink:
        with PostgresProxy(self.url) as gone:
            return self.sink(url=gone.url)

    def close(self) -> None:
        self.proxy.close()
        for sink in self._sinks:
            sink.close()

    # -- PostgreSQL only -----------------------------------------------------------------------------

    def query(self, statement: str, parameters: Any = None, *, url: str | None = None) -> list[Any]:
        with self.session(url) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def session(self, url: str | None = None) -> Iterator[Any]:
        """A cursor in autocommit mode, for a session of an operator's."""
        connection = psycopg2.connect(url or self.url)
        connection.autocommit = True
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def _lose(self, fault: Fault, writes: Sequence[FeedWrite]) -> tuple[PostgresSink, CommitUnknown, Trap]:
        sink = self.sink(url=self.proxy.url)
        trap = self.proxy.arm(fault, "COMMIT")
        try:
            written = sink.write(writes)
        except CommitUnknown as unknown:
            assert trap.tripped.wait(PATIENCE_S)
            return sink, unknown, trap
        raise AssertionError(f"the commit was answered: {written}")
