"""How records get into one landing: the statements and the encoder, worked out once for a session.

Without a key, rows are copied straight into the table. With one they are too, as long as none of the keys is
there already, and otherwise by way of a staging table: see `feedq.sinks.staging`. Either way `CopyPlan.land` takes
all that it is given or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import psycopg2
from psycopg2 import errorcodes, sql

from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.copybinary import DefaultRows
from feedq.sinks.copytext import ColumnRows
from feedq.sinks.landing import TableShape, written_columns
from feedq.sinks.session import SinkSession
from feedq.sinks.staging import Detour, StagingTable

GOES_STAGED: Final = (
    errorcodes.UNIQUE_VIOLATION,
    # COPY cannot into a table with row security, and INSERT can.
    errorcodes.FEATURE_NOT_SUPPORTED,
)
"""Refusals of a COPY into the table itself that an INSERT from the staging table need not meet."""


class SuspectRecord(NamedTuple):
    """A record on its own, with where it came from."""

    write: FeedWrite
    batch: Batch
    record: bytes


class CopyPlan:
    """One landing, ready to be written."""

    def __init__(self, landing: Landing, shape: TableShape, *, stage: str | None = None) -> None:
        self.landing = landing
        self.shape = shape
        self.columns = written_columns(landing, shape.columns)
        """What is written of the table, in order."""
        self.rows = (
            ColumnRows(landing, shape.columns)
            if landing.is_mapped
            else DefaultRows(shape.columns["payload"].type)
        )
        self._fields = self.columns if landing.is_mapped else ("payload",)
        """What ``rows.fields`` gives for a record."""
        self.field_types = tuple(shape.columns[name].definition for name in self._fields)
        self._stage = StagingTable(landing, shape, self.columns, name=stage) if stage else None
        self._detour = Detour()

    def with_stage(self, name: str) -> CopyPlan:
        return CopyPlan(self.landing, self.shape, stage=name)

    def land(self, session: SinkSession, writes: Sequence[FeedWrite]) -> None:
        """Write whole feeds. Raises `psycopg2.Error`, `UnreadableRecord`."""

        def chunks() -> Iterable[bytes]:
            encode = self.rows.chunks
            return chain.from_iterable(encode(write, batch) for write in writes for batch in write.batches)

        if self._stage is None:
            self._copy(session, self.shape.identifier, chunks())
        elif not self._lands_straight(session, chunks):
            self._land_staged(session, self._stage, chunks())

    def land_singly(self, session: SinkSession, suspects: Sequence[SuspectRecord]) -> None:
        """Write records by the plain reference. Raises `psycopg2.Error`, `UnreadableRecord`."""
        rows = (self.rows.record(*suspect) for suspect in suspects)
        if self._stage is None:
            self._copy(session, self.shape.identifier, rows)
        else:
            self._land_staged(session, self._stage, rows)

    def texts(self, suspect: SuspectRecord) -> dict[str, str | None]:
        """A row by its columns, as texts; None is NULL. Raises `UnreadableRecord`."""
        found = dict(zip(self._fields, self.rows.fields(*suspect), strict=True))
        if self.landing.is_mapped:
            return found
        write, batch, record = suspect
        payload = found["payload"]
        return {
            "feed": write.feed,
            "epoch": str(write.epoch),
            "received_at": batch.received_at.isoformat(),
            "payload": "\\x" + record.hex() if payload is None else payload,
        }

    def null_violation(self, fields: Sequence[str | None]) -> str | None:
        """The error that a NULL in these fields of a record surely raises, if any."""
        if self.landing.is_mapped and not self.shape.has_triggers:
            for name, text in zip(self._fields, fields, strict=True):
                if text is None and self.shape.columns[name].not_null:
                    return f'null value in column "{name}" violates not-null constraint (23502)'
        return None

    def create_stage(self, session: SinkSession) -> None:
        assert self._stage is not None
        self._stage.create(session)

    def clear_stage(self, session: SinkSession) -> None:
        """Forget what was landed before in this transaction."""
        if self._stage is not None:
            self._stage.clear(session)

    def drop_stage(self, session: SinkSession) -> None:
        if self._stage is not None:
            self._stage.drop(session)

    def _lands_straight(self, session: SinkSession, chunks: Callable[[], Iterable[bytes]]) -> bool:
        """Copy into the table itself; False, and nothing was, when a key was there already."""
        if not self._detour.is_over:
            self._detour.pass_one()
            return False
        session.execute("SAVEPOINT straight")
        try:
            self._copy(session, self.shape.identifier, chunks())
        except psycopg2.Error as error:
            if error.pgcode not in GOES_STAGED:
                raise
            session.execute("ROLLBACK TO SAVEPOINT straight; RELEASE SAVEPOINT straight")
            self._detour.begin()
            return False
        session.execute("RELEASE SAVEPOINT straight")
        self._detour.shorten()
        return True

    def _land_staged(self, session: SinkSession, stage: StagingTable, chunks: Iterable[bytes]) -> None:
        self._copy(session, stage.identifier, chunks)
        stage.insert(session)

    def _copy(self, session: SinkSession, table: sql.Identifier, chunks: Iterable[bytes]) -> None:
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            table,
            sql.SQL(", ").join(map(sql.Identifier, self.columns)),
            sql.SQL("text" if self.landing.is_mapped else "binary"),
        )
        session.copy(statement, chain((self.rows.header,), chunks, (self.rows.trailer,)))
