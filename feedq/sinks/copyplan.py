"""The plan of a target in PostgreSQL and its encoder: how records become the bytes of a COPY.

::

    batches ─ chunks of some 64 kB ─ encoded as rows ─ COPY … FROM STDIN

A plan is worked out once a session. Records of a target with ``columns`` become texts: `feedq.sinks.copytext`. A
row of the default target is ``feed, epoch, received_at, payload`` in the binary format of COPY. Within a batch
the first three never change, so a row is one of a few ready-made heads, chosen by the length of the record,
followed by the record's own bytes: nothing is escaped, converted or looked at. The server in turn has no numbers
or times to parse. Measured against COPY of the bare lines into a single jsonb column, this lands about as many
records a second; the same rows in text format land two thirds of it.

Nothing is looked at, so the server refuses a bad record with all that is sent beside it. The attempt is then
repeated with a look at each record, and for a while groups are looked at before they are sent: a `Detour`. So are
columns of integers: ``1.0`` is one to JSON, and none to the server.

With a key, records may take the way by a staging table: `KeyedCopyPlan`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from operator import length_hint
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg2
from psycopg2 import errorcodes, sql
from sqlalchemy import case, column, or_, select, table
from sqlalchemy.dialects.postgresql import Insert, distinct_on, insert

from feedq.records.batch import Batch
from feedq.records.cursor import ESCAPED_NUL
from feedq.sinks.base import DeadRecord, FeedWrite, OnConflict, SuspectRecord, Target, parts
from feedq.sinks.copytext import (
    LF,
    NUL,
    NUL_ERROR,
    BeyondUs,
    Chunk,
    ColumnRows,
    SetAside,
    Span,
    UnreadableRecord,
    check,
    chunks,
    decode,
    encoded,
    parsed,
    row_of,
)
from feedq.sinks.session import ERROR_TEXT_MAX, ErrorScope, TargetPlan, cause_of
from feedq.sinks.statements import INPUT_ERRORS
from feedq.sinks.target_table import Column, TableShape

if TYPE_CHECKING:
    from feedq.sinks.postgresql import PostgresSession

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, flags, length of the header extension."""
TRAILER: Final = b"\xff\xff"
NUL_ESCAPED: Final = b"\\u0000"
ESCAPED_NUL_ERROR: Final = "unsupported Unicode escape sequence: \\u0000 cannot be converted to text. (22P05)"
"""What the server says of it in jsonb."""
BAD_TEXT: Final = (
    errorcodes.INVALID_TEXT_REPRESENTATION,
    errorcodes.UNTRANSLATABLE_CHARACTER,
    errorcodes.CHARACTER_NOT_IN_REPERTOIRE,
)
"""What the server says of what `encode` finds and `encode_quickly` does not."""
DETOUR_FIRST: Final = 8
DETOUR_MAX: Final = 4_096
"""Groups, hence some minutes at full speed: so late is it noticed that a source has become better."""
ASKS_INPUT_FUNCTIONS: Final = 160_000
"""Server version from which `INPUT_ERRORS` works."""
ASKED_AT_ONCE: Final = 2_000

_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_length = Struct(">i").pack
_before_name = Struct(">hi").pack
"""Number of fields, length of the name."""
_epoch_and_time = Struct(">iqiq").pack
"""Each after its length."""

GOES_STAGED: Final = (
    errorcodes.UNIQUE_VIOLATION,
    # COPY cannot into a table with row security, and INSERT can.
    errorcodes.FEATURE_NOT_SUPPORTED,
)
"""Refusals of a COPY into the table itself that an INSERT from the staging table need not meet."""
ORDINAL: Final = "feedq_ordinal"
STAGING_TABLES_MAX: Final = 64
"""That a session keeps between commits: each is emptied at every commit that touches one."""
_numbers: Final = count(1)
"""Of staging tables."""

Texts = list[str | None]


class Detour:
    """Counts the groups that take another way than the quick one, after what the server said of that: the more of
    them, the more often it says so."""

    def __init__(self, *codes: str) -> None:
        """``codes`` are the SQLSTATEs that it is for."""
        self._codes = codes
        self._left = 0
        self._length = DETOUR_FIRST

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def begins(self, error: Any) -> bool:
        """Begin if this error of the quick way is one that it is for; returns whether it is."""
        if not self.is_over or cause_of(error).pgcode not in self._codes:
            return False
        self._left = self._length
        self._length = min(2 * self._length, DETOUR_MAX)
        return True

    def count(self) -> None:
        """Count a group that has landed. One by the quick way shortens the next detour."""
        if self.is_over:
            self._length = max(self._length // 2, DETOUR_FIRST)
        else:
            self._left -= 1


class CopyPlan(TargetPlan):
    """A plan that copies batches into one target."""

    session: PostgresSession

    def __init__(self, session: PostgresSession, target: Target, shape: TableShape) -> None:
        super().__init__(session, target, shape)
        if not target.is_mapped:
            self.rows = DefaultRows(target, shape.columns)
        self._looking = Detour(*BAD_TEXT if self.rows.skips_checks else ())
        self._statement = self._copy_into(sql.Identifier(*filter(None, (shape.schema, shape.name))))

    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        encode = self.rows.encode_quickly if self._looking.is_over else self.rows.encode
        self._send(rows for chunk in chunks(writes) for _, rows in encoded(chunk, encode, set_aside))
        self._looking.count()

    def detours(self, error: Any) -> bool:
        return self._looking.begins(error)

    def _send(self, rows: Iterable[bytes]) -> None:
        self._copy(self._statement, rows)

    def land_nothing(self) -> None:
        self._copy(self._statement, ())

    def screen(self, suspects: Sequence[SuspectRecord]) -> tuple[Sequence[SuspectRecord], list[DeadRecord]]:
        """Asks the columns' input functions about many records at once.

        A record is set aside only if the database would surely refuse it: a NULL in a column that is NOT NULL is
        not looked for, because a trigger of the table, or of the partition that a row goes to, may fill it. Input
        functions that raise an error when they are asked leave their records to trial.
        """
        readable: dict[int, Texts] = {}
        errors: dict[int, str] = {}
        for n, suspect in enumerate(suspects):
            try:
                readable[n] = self.rows.texts(*suspect)
                row_of(readable[n])
            except UnreadableRecord as unreadable:
                errors[n] = str(unreadable)
        asks = self.session.server_version >= ASKS_INPUT_FUNCTIONS
        asked = [n for n in readable if n not in errors] if asks else ()
        for some in parts(asked, ASKED_AT_ONCE):
            try:
                with self.session.savepoint("feedq_ask"):
                    found = self._input_errors([readable[n] for n in some])
            except psycopg2.Error as error:
                if self.session.scope(error) is ErrorScope.UNAVAILABLE or self.session.is_broken:
                    raise
                # Not all that an input function refuses it refuses softly: too deep a nesting of JSON, for one.
                continue
            errors |= {some[n]: error for n, error in found.items()}
        kept = [suspect for n, suspect in enumerate(suspects) if n not in errors]
        return kept, [(suspects[n], errors[n]) for n in sorted(errors)]

    def _input_errors(self, rows: Sequence[Texts]) -> dict[int, str]:
        """The first error of each row that has one, by its index."""
        errors: dict[int, str] = {}
        for place, name in enumerate(self.columns):
            texts = [fields[place] for fields in rows]
            type_name = self.shape.columns[name].definition
            if type_name == "text" or all(text is None for text in texts):
                continue
            for n, message, detail, code in self.session.query(
                INPUT_ERRORS, {"texts": texts, "type": type_name}
            ):
                said = f"{message}{f': {detail}' if detail else ''} ({code})"
                errors.setdefault(n - 1, said[:ERROR_TEXT_MAX])
        return errors

    def _copy(self, statement: str, rows: Iterable[bytes]) -> None:
        if not self.target.is_mapped:
            rows = chain((HEADER,), rows, (TRAILER,))
        self.session.copy(statement, rows)

    def _copy_into(self, table: sql.Identifier) -> str:
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            table, listed(self.columns), sql.SQL("text" if self.target.is_mapped else "binary")
        )
        return self.session.rendered(statement)


class KeyedCopyPlan(CopyPlan):
    """A plan for one target with a key, with its staging table.

    The table keeps a single row of each key, for which a staging table is needed: rows are copied there and
    inserted from it with ``ON CONFLICT``. There they carry a number in order of arrival, since a heap gives them
    back in any: the first row of a key is the one that stays, or with ``update`` the last.

    That is three times the work of a COPY into the table itself, which does the same as long as no key is there
    already. So that is tried first, and a violated constraint has the attempt repeated by way of the staging
    table. What was copied until then is dead weight in table and index, so a `Detour` has the groups after it take
    that way at once: a source that repeats itself is not tried over and over.

    A staging table is made by the first transaction that takes that way. It lives as long as its session and
    empties itself at every commit: one made in each transaction would churn the system catalog several times a
    second. A transaction that copies straight never touches it: otherwise its commit would empty all staging
    tables of the session.
    """

    def __init__(self, session: PostgresSession, target: Target, shape: TableShape) -> None:
        super().__init__(session, target, shape)
        self._by_stage = Detour(*GOES_STAGED)
        self._stage = f"feedq_stage_{next(_numbers)}"
        self._staging_table = sql.Identifier("pg_temp", self._stage)
        self._ordinal = ORDINAL
        while self._ordinal in self.columns:
            self._ordinal += "_"
        self._create = session.rendered(self._creation())
        self._stage_rows = self._copy_into(self._staging_table)
        self._insert = self._insertion()

    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        super().land(writes, set_aside)
        self._by_stage.count()

    def _send(self, rows: Iterable[bytes]) -> None:
        if self._by_stage.is_over:
            super()._send(rows)
        else:
            self._land_staged(rows)

    def detours(self, error: Any) -> bool:
        return super().detours(error) or self._by_stage.begins(error)

    def land_nothing(self) -> None:
        self._land_staged(())

    def _land_staged(self, chunks: Iterable[bytes]) -> None:
        """Copy into the staging table, and insert from there in order of arrival."""
        self.session.query(self._create)
        self._keep_staging_table()
        self._copy(self._stage_rows, chunks)
        self.session.execute(self._insert)

    def _keep_staging_table(self) -> None:
        """Drop the one that was used least recently, if the session has too many."""
        kept = self.session.staging_tables
        kept.pop(self._stage, None)
        kept[self._stage] = None
        if len(kept) > STAGING_TABLES_MAX:
            kept.pop(oldest := next(iter(kept)))
            dropped = sql.Identifier("pg_temp", oldest)
            self.session.query(sql.SQL("DROP TABLE IF EXISTS {}").format(dropped))

    def _creation(self) -> sql.Composed:
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(self.shape.columns[name].definition))
            for name in self.columns
        ]
        # Cached: a number costs a row nothing that could be measured.
        columns.append(
            sql.SQL("{} bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)").format(
                sql.Identifier(self._ordinal)
            )
        )
        # A transaction that is rolled back takes the table with it. And it holds what earlier attempts of this one
        # have landed.
        return sql.SQL(
            "CREATE TEMP TABLE IF NOT EXISTS {0} ({1}) ON COMMIT DELETE ROWS; DELETE FROM {0}"
        ).format(self._staging_table, sql.SQL(", ").join(columns))

    def _insertion(self) -> Insert:
        """From the staging table. To update, the last row of each key: one statement may change a row once only.
        Rows with NULL in their key are no duplicates of another."""
        stage = table(self._stage, *map(column, (*self.columns, self._ordinal)), schema="pg_temp")
        ordinal, key = stage.c[self._ordinal], [stage.c[name] for name in self.target.key]
        rows = select(*(stage.c[name] for name in self.columns)).order_by(ordinal)
        if self.target.on_conflict is OnConflict.IGNORE:
            ignoring = insert(self.table).from_select(list(self.columns), rows)
            return ignoring.on_conflict_do_nothing(index_elements=self.target.key)
        itself = case((or_(*(part.is_(None) for part in key)), ordinal))
        ranked = select(stage).order_by(*key, itself, ordinal.desc())
        last = ranked.ext(distinct_on(*key, itself)).subquery()
        latest = select(*(last.c[name] for name in self.columns)).order_by(last.c[self._ordinal])
        replacing = insert(self.table).from_select(list(self.columns), latest)
        # The key, too: equal is not always the same, 1.0 and 1.00 for one.
        return replacing.on_conflict_do_update(
            index_elements=self.target.key, set_={name: replacing.excluded[name] for name in self.columns}
        )


def listed(columns: Iterable[str]) -> sql.Composed:
    """Columns in a statement."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))


class DefaultRows(ColumnRows):
    """Encodes records for one default target, in the binary format."""

    def __init__(self, target: Target, columns: Mapping[str, Column]) -> None:
        super().__init__(target, columns)
        self.skips_checks = True
        self._type = columns["payload"].type
        self._version = b"\x01" if self._type == "jsonb" else b""

    def texts(self, write: FeedWrite, batch: Batch, record: bytes) -> Texts:
        """What each column gets. Raises `UnreadableRecord` for what no payload column of this type could hold."""
        self._check(record, [record])
        payload = "\\x" + record.hex() if self._type == "bytea" else decode(record)
        return [write.feed, str(write.epoch), batch.received_at.isoformat(), payload]

    def encode_quickly(self, chunk: Chunk) -> bytes:
        """Rows of a chunk, whatever is in the records."""
        return b"".join([self._binary(span, span.records) for span in chunk])

    def encode(self, chunk: Chunk) -> bytes:
        """Rows of a chunk. Raises `UnreadableRecord` if the payload's column cannot hold one of the records."""
        rows = []
        for span in chunk:
            records = span.records
            self._check(span.text, records)
            rows.append(self._binary(span, records))
        return b"".join(rows)

    def _check(self, text: bytes, records: Sequence[bytes]) -> None:
        """Look at all of these records, without a step of Python for each; ``text`` is that of all of them."""
        if self._type == "bytea":
            return
        if self._type in ("json", "jsonb"):
            unread = iter(records)
            try:
                deque(map(parsed, unread), maxlen=0)
            except (msgspec.DecodeError, RecursionError):
                if len(records) > 1:
                    position = len(records) - length_hint(unread) - 1
                    raise UnreadableRecord("one of several records", position=position) from None
                with suppress(BeyondUs):
                    check(records[0])
        if self._type == "jsonb" and NUL_ESCAPED in text and (nul := ESCAPED_NUL.search(text)):
            raise UnreadableRecord(ESCAPED_NUL_ERROR, position=text.count(LF, 0, nul.start()))
        if NUL in text:
            raise UnreadableRecord(NUL_ERROR)
        if not text.isascii():
            decode(text)

    def _binary(self, span: Span, records: Sequence[bytes]) -> bytes:
        head, version = _head(span.write, span.batch), self._version
        if len(records) == 1:
            return b"".join((head, _length(len(version) + len(records[0])), version, records[0]))
        lengths = list(map(len, records))
        heads = {n: head + _length(n + len(version)) + version for n in set(lengths)}
        # Head, record, head, record: filled in by slices, without a step of Python for each record.
        parts: list[bytes] = [b""] * (2 * len(records))
        parts[::2] = map(heads.__getitem__, lengths)
        parts[1::2] = records
        return b"".join(parts)


def _head(write: FeedWrite, batch: Batch) -> bytes:
    """What all rows of a batch begin with."""
    name = write.feed.encode()
    us = (batch.received_at - _POSTGRES_EPOCH) // _MICROSECOND
    return _before_name(4, len(name)) + name + _epoch_and_time(8, write.epoch, 8, us)
