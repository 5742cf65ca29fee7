"""MariaDB for the tests, and a proxy before it that breaks connections at a chosen statement.

The proxy is `tests.proxy`'s with another protocol: packets of three bytes of length and one that counts up from
the command, which is 0. A session tells its name by the lock that it takes.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pymysql
from pymysql.cursors import Cursor

from feedq.local.process import server_account
from feedq.sinks.base import Sink, Target
from feedq.sinks.sql import SqlSink
from tests.contract.sink_harness import ServerHarness
from tests.peers.servers import PeerServer, accepts, program
from tests.proxy import Link, PostgresProxy

COM_QUERY = 3
NAME = re.compile(r"GET_LOCK\('(?P<name>[^']*)'")
INSTALL_TIMEOUT_S = 60.0


class MariaDb:
    """A server of its own, with nothing in it; a context manager."""

    def __init__(self) -> None:
        # Not one of pytest's directories: when root starts it, the server becomes another user.
        self.directory = Path(tempfile.mkdtemp(prefix="feedq-mariadb-"))
        account = server_account()
        user = [] if account is None else [f"--user={account.name}"]
        self._install(user)
        self._server = PeerServer(
            "mariadbd",
            "--no-defaults",
            *user,
            "--datadir={directory}/data",
            "--socket={directory}/socket",
            "--pid-file={directory}/pid",
            "--bind-address=127.0.0.1",
            "--port={port}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
            directory=self.directory,
        )
        self.port = self._server.port

    def url(self, database: str = "", *, driver: str = "mariadb+pymysql", user: str = "root") -> str:
        return f"{driver}://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.Connection[Cursor]:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True
        )

    def execute(
        self, statement: str, parameters: object = None, *, database: str | None = None
    ) -> list[tuple[Any, ...]]:
        """As an operator."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def __enter__(self) -> Self:
        self._server.start()
        assert accepts(self.port)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _install(self, user: list[str]) -> None:
        self.directory.chmod(0o777)
        subprocess.run(
            [
                program("mariadb-install-db"),
                "--no-defaults",
                *user,
                f"--datadir={self.directory}/data",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
        )


class MariaDbLink(Link):
    """Reads packets of MySQL's protocol."""

    def is_answer(self, swallowed: bytearray) -> bool:
        return any(True for _ in _packets(swallowed))

    def messages(self) -> Iterator[tuple[bytes, str]]:
        buffer = bytearray()
        while data := self.receive():
            buffer += data
            for packet in _packets(buffer):
                query = ""
                if packet[3] == 0 and packet[4:5] == bytes([COM_QUERY]):
                    query = packet[5:].decode(errors="replace")
                    if named := NAME.search(query):
                        self.application = named["name"]
                yield packet, query


class MariaDbProxy(PostgresProxy):
    """`tests.proxy` before a MariaDB."""

    link = MariaDbLink


def _packets(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete packets off the front of a buffer."""
    while len(buffer) >= 4:
        size = struct.unpack("<I", bytes(buffer[:3]) + b"\0")[0] + 4
        if len(buffer) < size:
            return
        packet = bytes(buffer[:size])
        del buffer[:size]
        yield packet


# -- the sink over it, for the conformance suite -----------------------------------------------------

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
