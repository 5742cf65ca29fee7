"""How records get into one landing: the statements and the encoder, worked out once for a session.

Without a key, rows are copied straight into the table. With one they are copied into a staging table of the
session's, declared like the columns they are for, and inserted from there, so that a row whose key is
there already is left alone. Either way `Plan.land` takes all that it is given or raises.

A staging table lives as long as its session and empties itself at every commit: one made in each
transaction would churn the system catalog several times a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from psycopg2 import sql

from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.copybinary import DefaultRows
from feedq.sinks.copytext import ColumnRows
from feedq.sinks.landing import Shape, written_columns
from feedq.sinks.session import Session


class Suspect(NamedTuple):
    """A record on its own, with where it came from."""

    write: FeedWrite
    batch: Batch
    record: bytes


class Plan:
    """One landing, ready to be written."""

    def __init__(self, landing: Landing, shape: Shape, *, stage: str | None = None) -> None:
        self.landing = landing
        self.shape = shape
        self.rows = (
            ColumnRows(landing, shape.columns)
            if landing.columns
            else DefaultRows(shape.columns["payload"].type)
        )
        names = [column for column, _ in landing.columns] or ["payload"]
        self.field_types = tuple(shape.columns[name].definition for name in names)
        """Types of what ``rows.fields`` gives for a record."""
        self._columns = sql.SQL(", ").join(map(sql.Identifier, written_columns(landing)))
        self._stage = sql.Identifier("pg_temp", stage) if stage else None
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            self._stage or shape.identifier,
            self._columns,
            sql.SQL("text" if landing.columns else "binary"),
        )

    def with_stage(self, name: str) -> Plan:
        return Plan(self.landing, self.shape, stage=name)

    def land(self, session: Session, writes: Sequence[FeedWrite]) -> None:
        """Write whole feeds. Raises `psycopg2.Error`, `UnreadableRecord`."""
        self._load(
            session,
            (
                chunk
                for write in writes
                for batch in write.batches
                for chunk in self.rows.chunks(write, batch)
            ),
        )

    def land_singly(self, session: Session, suspects: Sequence[Suspect]) -> None:
        """Write records by the plain reference. Raises `psycopg2.Error`, `UnreadableRecord`."""
        self._load(session, (self.rows.record(*suspect) for suspect in suspects))

    def null_violation(self, fields: Sequence[str | None]) -> str | None:
        """The error that a NULL in these fields of a record surely raises, if any."""
        if not self.shape.has_triggers:
            for (name, _), text in zip(self.landing.columns, fields, strict=False):
                if text is None and self.shape.columns[name].not_null:
                    return f'null value in column "{name}" violates not-null constraint (23502)'
        return None

    def create_stage(self, session: Session) -> None:
        assert self._stage is not None
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(self.shape.columns[name].definition))
            for name in written_columns(self.landing)
        )
        session.execute(
            sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DELETE ROWS").format(self._stage, columns)
        )

    def clear_stage(self, session: Session) -> None:
        """Forget what was landed before in this transaction."""
        if self._stage is not None:
            session.execute(sql.SQL("DELETE FROM {}").format(self._stage))

    def drop_stage(self, session: Session) -> None:
        if self._stage is not None:
            session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._stage))

    def _load(self, session: Session, chunks: Iterable[bytes]) -> None:
        session.copy(self._copy, _enclosed(self.rows.header, chunks, self.rows.trailer))
        if self._stage is not None:
            session.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO NOTHING").format(
                    self.shape.identifier,
                    self._columns,
                    self._columns,
                    self._stage,
                    sql.SQL(", ").join(map(sql.Identifier, self.landing.key)),
                )
            )


def _enclosed(header: bytes, chunks: Iterable[bytes], trailer: bytes) -> Iterator[bytes]:
    yield header
    yield from chunks
    yield trailer
