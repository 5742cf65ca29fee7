"""`SqlSink` over MariaDB, for the conformance suite of sinks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

from feedq.errors import CommitUnknown
from feedq.sinks.base import FeedWrite, Sink, Target
from feedq.sinks.sql import SqlSink
from tests.contract.sink_stage import ENVIRONMENT, PATIENCE_S, FrozenWrite
from tests.peers.mariadb import MariaDb, MariaDbProxy
from tests.proxy import Fault, Trap

DATABASE = "contract_of_the_sinks"


class MariaDbHarness:
    """A database that is empty but for the landing table of most tests, which refuses one record."""

    refused = b'"refused"'

    def __init__(self, server: MariaDb) -> None:
        self.server = server
        self.proxy = MariaDbProxy(server.url())
        self._sinks: list[SqlSink] = []
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        server.execute(f"CREATE DATABASE {DATABASE}")
        self.query(
            "CREATE TABLE raw (feed varchar(200), epoch bigint, received_at datetime(6) NOT NULL, "
            "payload json NOT NULL, CHECK (payload <> '\"refused\"'))"
        )

    def sink(
        self,
        *,
        role: str = "writer",
        worker_id: UUID | None = None,
        environment: str = ENVIRONMENT,
        url: str | None = None,
    ) -> SqlSink:
        sink = SqlSink(
            url or self.server.url(DATABASE),
            environment=environment,
            worker_id=worker_id or uuid4(),
            role=role,
        )
        self._sinks.append(sink)
        return sink

    def rows(self, target: Target) -> Sequence[tuple[str, int, Any]]:
        return self.query(f"SELECT feed, epoch, payload FROM `{target.table}`")

    def frozen(self, writes: Sequence[FeedWrite], *, worker_id: UUID) -> FrozenWrite:
        trap = self.proxy.arm(Fault.HOLD, "COMMIT", application=f"feedq-writer/{worker_id}")
        sink = self.sink(worker_id=worker_id, url=f"{self.proxy.url}{DATABASE}")
        return FrozenWrite(sink, writes, stopped=trap.tripped, release=trap.release)

    def lost(self, writes: Sequence[FeedWrite], *, happened: bool) -> Sink:
        return self._lose(Fault.CUT_AFTER if happened else Fault.CUT_BEFORE, writes)[0]

    def stranded(self, writes: Sequence[FeedWrite]) -> tuple[Sink, Callable[[], None]]:
        sink, trap = self._lose(Fault.STRAND, writes)
        return sink, trap.release

    def spoil(self, target: Target) -> bytes:
        self.query(
            f"CREATE TRIGGER spoil BEFORE INSERT ON `{target.table}` FOR EACH ROW "
            "IF NEW.payload = '\"odd\"' THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31999, "
            "MESSAGE_TEXT = 'how odd'; END IF"
        )
        return b'"odd"'

    def drop_table(self, target: Target) -> None:
        self.query(f"DROP TABLE `{target.table}`")

    @contextlib.contextmanager
    def hold(self, target: Target) -> Iterator[None]:
        with self.server.connect(DATABASE) as operator, operator.cursor() as cursor:
            cursor.execute(f"LOCK TABLES `{target.table}` WRITE")
            yield
            cursor.execute("UNLOCK TABLES")

    def unreachable(self) -> Sink:
        with MariaDbProxy(self.server.url(user="root:s3cret")) as gone:
            return self.sink(url=f"{gone.url}{DATABASE}")

    def close(self) -> None:
        self.proxy.close()
        for sink in self._sinks:
            sink.close()

    def query(self, statement: str, parameters: object = None) -> list[Any]:
        return self.server.execute(statement, parameters, database=DATABASE)

    def _lose(self, fault: Fault, writes: Sequence[FeedWrite]) -> tuple[Sink, Trap]:
        sink = self.sink(url=f"{self.proxy.url}{DATABASE}")
        trap = self.proxy.arm(fault, "COMMIT")
        try:
            written = sink.write(writes)
        except CommitUnknown:
            assert trap.tripped.wait(PATIENCE_S)
            return sink, trap
        raise AssertionError(f"the commit was answered: {written}")
