"""The sink for SQLite with faults that can be switched on: for tests of what stands in front of a sink.

`SinkFile` is a database, its sinks and the switches. What they do not change is done by the sink of production.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Final
from uuid import UUID, uuid4
from weakref import finalize

from sqlalchemy.exc import OperationalError

from feedq.core.model import JSON, Identity
from feedq.errors import SinkUnavailable
from feedq.sinks.base import Checkpoint, DeadLetter, FeedWrite, Fenced, FenceRequest, Target
from feedq.sinks.copytext import SetAside
from feedq.sinks.session import AnswerLost, ErrorScope, SinkSession, TargetPlan
from feedq.sinks.sql import SqlSink
from feedq.sinks.sql.column_values import Unfit
from feedq.sinks.sql.session import InsertPlan
from feedq.sinks.sql.sqlite import SqliteSession

IDENTITY: Final = Identity(UUID(int=0), UUID(int=0))
"""Of feeds in tests that are about something else."""
MEMORY: Final = Path("/dev/shm")
"""Where files are in memory, on systems that have it."""


class SinkFile:
    """What all sessions of a sink share, and the switches of its faults."""

    def __init__(
        self,
        *,
        environment: str = "test",
        poison: bytes | None = None,
        unusable: dict[str, str] | None = None,
        locked: Collection[int] = (),
    ) -> None:
        self.environment = environment
        self.away = False
        """Every statement raises `SinkUnavailable`."""
        self.lose_answer: bool | None = None
        """The next commit's answer is lost: True, after it happened; False, before."""
        self.away_after = False
        """Whether the sink is away from the next lost answer on."""
        self.poison = poison
        """Records with these bytes are refused, and become dead letters."""
        self.unusable = dict(unusable or {})
        """Table to why it cannot be written."""
        self.locked = set(locked)
        """Feeds whose checkpoint a frozen predecessor holds."""
        self.locked_tables: set[str] = set()
        """Landing tables that an operator holds: feeds that land there are postponed."""
        self.postponed = 0
        """How often one of these was met."""
        self.commits = 0
        directory = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
        finalize(self, rmtree, directory, ignore_errors=True)
        self._path = Path(directory) / "sink.sqlite3"
        self._held: sqlite3.Connection | None = None
        """The connection that keeps everybody from writing."""
        self.plain = SqlSink(self.url, environment=environment, worker_id=uuid4(), role="writer")
        """A sink without faults. Closed after each use: a test may count what it leaves open."""
        with closing(self.plain) as plain:
            plain.checkpoints()  # which makes the tables

    def sink(self, worker_id: UUID | None = None, *, role: str = "writer") -> FaultySink:
        return FaultySink(self, worker_id or uuid4(), role=role)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Within the block nobody else writes."""
        with closing(self._connect()) as self._held:
            self._held.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                self._held.execute("COMMIT")
                self._held = None

    @property
    def rows(self) -> dict[str, list[bytes]]:
        """Landed records by feed, in order."""
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB '*_*'"
        found: dict[str, list[bytes]] = {}
        for (table,) in self.execute(tables):
            for feed, payload in self.execute(f"SELECT feed, payload FROM {table} ORDER BY rowid"):
                row = payload if isinstance(payload, bytes) else str(payload).encode()
                found.setdefault(feed, []).append(row)
        return found

    def delete_rows(self, feed: str, *, after: int) -> None:
        """Leave the first rows of a feed alone."""
        kept = "SELECT rowid FROM landed WHERE feed = ? ORDER BY rowid LIMIT ?"
        self.execute(f"DELETE FROM landed WHERE feed = ? AND rowid NOT IN ({kept})", feed, feed, after)

    @property
    def dead(self) -> list[DeadLetter]:
        with closing(self.plain) as plain:
            return plain.dead_letters(after=0, limit=10**6)

    def checkpoint(self, feed_id: int) -> Checkpoint:
        """That of a feed that has one."""
        with closing(self.plain) as plain:
            return next(one for one in plain.checkpoints() if one.feed_id == feed_id)

    def put_checkpoint(
        self,
        feed_id: int,
        epoch: int,
        owner: UUID,
        *,
        cursor: JSON = None,
        records: int = 0,
        feed: str | None = None,
        identity: Identity = IDENTITY,
    ) -> None:
        """Have a feed stand there, by a commit that nobody knows."""
        self.execute(
            "INSERT OR REPLACE INTO feedq_checkpoint (environment, feed_id, epoch, owner, cursor, records, feed, "
            "commit_id, feed_uuid, installation) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(self.environment, feed_id, epoch, str(owner), None if cursor is None else json.dumps(cursor)),
            *(records, feed or f"feed {feed_id}"),
            *map(str, (uuid4(), identity.feed, identity.installation)),
        )

    def execute(self, sql: str, *values: object) -> list[Any]:
        if self._held is not None:
            return self._held.execute(sql, values).fetchall()
        with closing(self._connect()) as connection:
            return connection.execute(sql, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=20.0, isolation_level=None)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"


class FaultySink(SqlSink):
    """A session with a `SinkFile`."""

    def __init__(self, file: SinkFile, worker_id: UUID, *, role: str) -> None:
        super().__init__(file.url, environment=file.environment, worker_id=worker_id, role=role)
        self.file = file
        self.session_type = type("SessionWithFile", (FaultySession,), {"file": file})

    def _connect(self) -> SinkSession:
        if self.file.away:
            raise SinkUnavailable("sink (for the test): away")
        return super()._connect()


class FaultySession(SqliteSession):
    """A session with the faults that its file has."""

    file: ClassVar[SinkFile]
    locks_all = False
    undoable = frozenset({ErrorScope.DATA, ErrorScope.TARGET, ErrorScope.LOCKED})

    def _set_up(self) -> int | None:
        self.run("PRAGMA synchronous = OFF")
        return super()._set_up()

    def commit(self) -> None:
        lost, self.file.lose_answer = self.file.lose_answer, None
        if lost is not False:
            super().commit()
            self.file.commits += 1
        if lost is not None:
            self.file.away |= self.file.away_after
            self.close()
            raise AnswerLost("for the test")

    def fence(self, requests: Sequence[FenceRequest], commit_id: UUID) -> list[Fenced]:
        if self.find_locked([request.feed_id for request in requests]):
            raise is_locked()
        return super().fence(requests, commit_id)

    def find_locked(self, feed_ids: Sequence[int]) -> Collection[int]:
        return self.file.locked & set(feed_ids)

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        known = self.checkpoints_of(self.file.locked)
        freed = {feed_id for feed_id, one in known.items() if one.owner in worker_ids}
        self.file.locked -= freed
        return len(freed)

    def get_ready(self, targets: Any, *, create: bool = False) -> dict[Target, str]:
        unusable = self.file.unusable
        return super().get_ready(targets, create=create) | {
            target: unusable[target.table] for target in targets if target.table in unusable
        }

    @classmethod
    def plan_type(cls, target: Target) -> type[TargetPlan]:
        return FaultyPlan


class FaultyPlan(InsertPlan):
    """Refuses poison, and waits for nobody."""

    session: FaultySession

    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        if self.target.table in self.session.file.locked_tables:
            self.session.file.postponed += 1
            raise is_locked()
        super().land(writes, set_aside)

    def _values(self, texts: Sequence[str | None]) -> dict[str, Any]:
        poison = self.session.file.poison
        if poison is not None and any(
            text and (poison.hex() in text or poison in text.encode()) for text in texts
        ):
            raise Unfit("poison")
        return super()._values(texts)


def is_locked() -> OperationalError:
    said = sqlite3.OperationalError("for the test")
    said.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return OperationalError("", None, said)
