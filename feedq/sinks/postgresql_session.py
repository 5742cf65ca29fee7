"""The session with PostgreSQL: fences feeds, locks and advances their checkpoints, and copies their records.

What is frequent is one statement for thousands of feeds each: see `feedq.sinks.statements`. How the session is
opened and bounded, and its transactions, are in `feedq.sinks.postgresql_connection`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg2
from psycopg2 import sql

from feedq.core.model import JSON, FeedKey
from feedq.sinks import statements
from feedq.sinks.base import Checkpoint, DeadRecord, FeedWrite, FenceRequest
from feedq.sinks.copytext import row_of
from feedq.sinks.cursors import cursor_of, cursor_text
from feedq.sinks.postgresql_connection import Backend, PostgresConnection, Statement
from feedq.sinks.session import ROLES, application_name, worker_of
from feedq.sinks.sqlstate import ErrorScope, classify
from feedq.sinks.target_table import TableName, TableShape

GATHERED_BYTES: Final = 64 * 1024
"""Small chunks are put together up to this."""
READ_SIZE: Final = 1 << 20
"""Ignored by our readers, which hand over whole chunks; psycopg2's 8 kB would be a call per 50 records."""


class CopySource:
    """Feeds an iterator of chunks to psycopg2, and keeps the exception that ended it, if one did."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self.error: Exception | None = None

    def read(self, _size: int) -> bytes:
        gathered: list[bytes] = []
        size = 0
        try:
            # Each read is a call with the interpreter's lock let go of and waited for: not one for every record of
            # thousands of slow feeds. And an empty one would end the COPY, silently and too early.
            for chunk in self._chunks:
                gathered.append(chunk)
                size += len(chunk)
                if size >= GATHERED_BYTES:
                    break
            return b"".join(gathered)
        except Exception as error:
            # psycopg2 would replace it with "error in .read() call".
            self.error = error
            raise


class PostgresSinkSession(PostgresConnection):
    """A session with PostgreSQL, for one worker in one environment."""

    waits_for_locks = True
    lock_timeout_s = 0.25
    """All feeds wait that long, once, before those of a locked table are postponed; a lock held for less costs
    nobody a second transaction."""
    brief_lock_timeout_s = 0.02

    # -- records -------------------------------------------------------------------------------------

    def unkeepable(self, write: FeedWrite) -> str | None:
        try:
            for batch in write.batches:
                cursor_text(batch.cursor)
        except ValueError as error:
            return str(error)
        return None

    def copy(self, statement: Statement, chunks: Iterable[bytes]) -> None:
        """COPY ... FROM STDIN. An exception raised by ``chunks`` comes through as itself."""
        source = CopySource(chunks)
        with self._driver.cursor() as cursor:
            try:
                cursor.copy_expert(statement, source, READ_SIZE)
            except psycopg2.Error:
                if source.error is not None:
                    raise source.error from None
                raise

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(self, writes: Sequence[FeedWrite], *, check_at_once: bool) -> set[FeedKey]:
        # Shared by most of a group: to send and read thousands of uuids would take a quarter longer.
        commits: dict[UUID | None, int] = {None: 0}
        continues = [commits.setdefault(write.continues, len(commits)) for write in writes]
        rows = self._begin_with(
            statements.LOCK_MINE,
            {
                "environment": self.environment,
                "feed_ids": statements.integers(write.feed_id for write in writes),
                "epochs": statements.integers(write.epoch for write in writes),
                "continues": statements.integers(continues),
                "commits": statements.texts(
                    [str(commit_id) for commit_id in commits if commit_id is not None]
                ),
            },
        )
        if check_at_once:
            self.check_at_once()
        return set(rows)

    def is_locked(self, shape: TableShape) -> bool:
        try:
            with self.savepoint("feedq_inspect"):
                self.query(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT").format(identifier_of(shape)))
        except psycopg2.Error as error:
            # Whatever else is wrong with it, landing there will tell.
            return classify(error) is ErrorScope.LOCKED
        return False

    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        advanced = self.change(
            statements.ADVANCE,
            {
                "environment": self.environment,
                "commit_id": commit_id,
                "feed_ids": statements.integers(write.feed_id for write in writes),
                "epochs": statements.integers(write.epoch for write in writes),
                "cursors": statements.texts([cursor_text(write.cursor) for write in writes]),
                "records": statements.integers(landed[write.key] for write in writes),
            },
        )
        assert advanced == len(writes), "a locked checkpoint did not advance"

    def possible_strangers(self, requests: Sequence[FenceRequest]) -> list[Checkpoint]:
        rows = self._ask(statements.STRANGERS, **_identities(requests))
        return [
            Checkpoint(id_, feed, epoch, cursor_of(cursor), *others)
            for id_, feed, epoch, cursor, *others in rows
        ]

    def raise_epochs(
        self, requests: Sequence[FenceRequest], commit_id: UUID, *, lock_timeout_s: float
    ) -> dict[int, tuple[JSON, int]] | None:
        # One statement: it waits for a predecessor's commit that is in flight, and being a transaction of the
        # server's own it cannot be held open by a client that freezes.
        self.set_lock_timeout(lock_timeout_s)
        epochs = [request.epoch for request in requests]
        asked = {"owner": self.worker_id, "commit_id": commit_id, "epochs": epochs, **_identities(requests)}
        try:
            rows = self._ask(statements.FENCE, **asked)
        except psycopg2.Error as error:
            if classify(error) is ErrorScope.LOCKED:
                return None
            raise
        return {feed_id: (cursor_of(cursor), records) for feed_id, cursor, records in rows}

    def holders(self, feed_ids: Sequence[int]) -> Mapping[int, UUID | None]:
        """Finds holders by the lock itself, else names whoever fenced the feed last."""
        rows = self._ask(statements.LOCK_HOLDERS, feed_ids=list(feed_ids))
        return {feed_id: worker_of(application) or owner for feed_id, owner, application in rows}

    # -- sessions of others --------------------------------------------------------------------------

    def end_session(self, backend: Backend) -> None:
        self.query(statements.END_BACKEND, {"pid": backend.pid, "started_at": backend.started_at})

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        names = [application_name(role, worker_id) for worker_id in worker_ids for role in ROLES]
        return sum(done for (done,) in self.query(statements.END_SESSIONS, {"names": names}))

    # -- dead letters --------------------------------------------------------------------------------

    def write_dead_letters(self, dead: Iterable[DeadRecord]) -> None:
        rows = (
            row_of(
                (
                    self.environment,
                    str(write.feed_id),
                    write.feed,
                    str(write.epoch),
                    "\\x" + record.hex(),
                    error.encode(errors="replace").decode(),
                    cursor_text(batch.cursor),
                )
            )
            for (write, batch, record), error in dead
        )
        self.copy(statements.COPY_DEAD_LETTERS, rows)

    def _ask(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement about this environment."""
        return self.query(statement, {"environment": self.environment, **parameters})


def identifier_of(table: TableShape | TableName) -> sql.Identifier:
    """A table in a statement. Without a schema, the connection's search path decides."""
    return sql.Identifier(table.schema, table.name) if table.schema else sql.Identifier(table.name)


def _identities(requests: Sequence[FenceRequest]) -> dict[str, Any]:
    return {
        "feed_ids": [request.feed_id for request in requests],
        "feeds": [request.feed for request in requests],
        "feed_uuids": [request.identity.feed for request in requests],
        "installations": [request.identity.installation for request in requests],
    }
