"""`SqlSink` over MariaDB, for the conformance suite of sinks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from feedq.sinks.base import Sink, Target
from feedq.sinks.sql import SqlSink
from tests.contract.sink_harness import ServerHarness
from tests.peers.mariadb import MariaDb, MariaDbProxy

DATABASE = "contract_of_the_sinks"


class MariaDbHarness(ServerHarness[SqlSink]):
    """A database that is empty but for the landing table of most tests, which refuses one record."""

    refused = b'"refused"'

    def __init__(self, server: MariaDb) -> None:
        proxy = MariaDbProxy(server.url())
        super().__init__(SqlSink, server.url(DATABASE), proxy=proxy, database=DATABASE)
        self.server = server
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        server.execute(f"CREATE DATABASE {DATABASE}")
        self.query(
            "CREATE TABLE raw (feed varchar(200), epoch bigint, received_at datetime(6) NOT NULL, "
            "payload json NOT NULL, CHECK (payload <> '\"refused\"'))"
        )

    def rows(self, target: Target) -> Sequence[tuple[str, int, Any]]:
        return self.query(f"SELECT feed, epoch, payload FROM `{target.table}`")

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

    def query(self, statement: str, parameters: object = None) -> list[Any]:
        return self.server.execute(statement, parameters, database=DATABASE)
