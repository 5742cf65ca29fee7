"""Plans how records get into one target: read as texts, converted to values, inserted many at a time.

Reading is `feedq.sinks.copytext`'s, so that a record lands here as it does in PostgreSQL; converting is
`feedq.sinks.sql.column_values`'. A record that cannot be read or converted is refused here, before the database
sees it, which tells the usual reasons apart without a single attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Column, MetaData, Table, insert

from feedq.core.model import Batch
from feedq.records.framing import RecordFormat
from feedq.sinks.base import DeadRecord, FeedWrite, OnConflict, SuspectRecord, Target
from feedq.sinks.catalog import ReadyRecord, TargetPlan
from feedq.sinks.copytext import ColumnRows, UnreadableRecord, check, decode
from feedq.sinks.sql.column_values import Conversion, Convert, Unfit
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.target_table import DEFAULT_COLUMNS, TableShape, written_columns

ROWS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 256 * 1024
"""Of records in one statement. PyMySQL cuts at 1 MB, with every byte escaped, and then rows are counted anew."""

Values = dict[str, Any]
Reader = Callable[[bytes], Values]
"""Raises `UnreadableRecord`."""


class InsertPlan(TargetPlan[list[ReadyRecord]]):
    """A plan that inserts rows into one target."""

    session: SqlSession

    def __init__(self, session: SqlSession, target: Target, shape: TableShape) -> None:
        """Raises `Unfit` for a constant that its column does not take."""
        super().__init__(session, target, shape)
        self._names = names = written_columns(target, shape.columns)
        columns = {name: shape.columns[name] for name in names}
        self._conversions: Mapping[str, Conversion] = {
            name: session.conversion(column.own_type, is_json=column.type == "json")
            for name, column in columns.items()
        }
        self._required = frozenset(
            name for name, column in columns.items() if column.not_null and not column.is_numbered
        )
        self._rows = ColumnRows(target, shape.columns) if target.is_mapped else None
        table = Table(
            shape.name,
            MetaData(),
            *(Column(name, self._conversions[name].bound) for name in names),
            schema=shape.schema,
        )
        replaced = names if target.on_conflict is OnConflict.UPDATE else ()
        self._insert = (
            session.upsert(table, target.key, lambda new: {name: new[name] for name in replaced})
            if target.key
            else insert(table)
        )
        self._done = 0
        """Rows of the last `land` that were in the statements before the last one."""

    # -- reading -------------------------------------------------------------------------------------

    def texts(self, suspect: SuspectRecord) -> dict[str, str | None]:
        """What each column is to get. Raises `UnreadableRecord`."""
        write, batch, record = suspect
        if self._rows is not None:
            return dict(zip(self._names, self._rows.fields(write, batch, record), strict=True))
        return {
            "feed": write.feed,
            "epoch": str(write.epoch),
            "received_at": batch.received_at.isoformat(),
            "payload": record.decode(errors="backslashreplace"),
        }

    def prepare(
        self, writes: Sequence[FeedWrite], *, look_through: bool
    ) -> tuple[Sequence[list[ReadyRecord]], list[DeadRecord]]:
        prepared: list[list[ReadyRecord]] = []
        dead: list[DeadRecord] = []
        for write in writes:
            ready: list[ReadyRecord] = []
            for batch in write.batches:
                read_record = self._reader(write, batch)
                for record in batch.split():
                    suspect = SuspectRecord(write, batch, record)
                    try:
                        ready.append(ReadyRecord(suspect, read_record(record)))
                    except UnreadableRecord as unreadable:
                        dead.append((suspect, str(unreadable)))
            prepared.append(ready)
        return prepared, dead

    def count(self, prepared: list[ReadyRecord]) -> int:
        return len(prepared)

    def split(self, prepared: list[ReadyRecord]) -> tuple[list[ReadyRecord], list[DeadRecord]]:
        return prepared, []

    def ready(self, suspect: SuspectRecord) -> ReadyRecord:
        return ReadyRecord(suspect, self._reader(suspect.write, suspect.batch)(suspect.record))

    def _reader(self, write: FeedWrite, batch: Batch) -> Reader:
        """What turns a record of this batch into a row. Raises `UnreadableRecord`, then and now."""
        if self._rows is not None:
            return lambda record: self._values(self.texts(SuspectRecord(write, batch, record)))
        texts = self.texts(SuspectRecord(write, batch, b""))
        return _default_reader(
            self._values({name: texts[name] for name in DEFAULT_COLUMNS[:-1]}),
            self.target.format,
            self._conversions["payload"].convert,
        )

    def _values(self, texts: Mapping[str, str | None]) -> Values:
        values: Values = {}
        for name, text in texts.items():
            if text is not None:
                try:
                    values[name] = self._conversions[name].convert(text)
                except UnreadableRecord as unfit:
                    raise Unfit(f"column {name!r}: {unfit}") from None
            elif name in self._required:
                raise Unfit(f"null value in column {name!r}, which is NOT NULL")
            else:
                values[name] = None
        return values

    # -- writing -------------------------------------------------------------------------------------

    def land(self, prepared: Sequence[list[ReadyRecord]]) -> None:
        self.land_records([ready for records in prepared for ready in records])

    def land_records(self, records: Sequence[ReadyRecord]) -> None:
        self._done = 0
        for part in _parts(records):
            self.session.execute(self._insert, [ready.values or {} for ready in part])
            self._done += len(part)

    def row_of(self, error: Any) -> int | None:
        row = self.session.row_of(error)
        return None if row is None else self._done + row


def _default_reader(same: Values, record_format: RecordFormat, convert: Convert) -> Reader:
    def read_record(record: bytes) -> Values:
        if record_format == "bytes":
            return {**same, "payload": record}
        if record_format == "json":
            check(record)
        return {**same, "payload": convert(decode(record))}

    return read_record


def _parts(rows: Sequence[ReadyRecord]) -> Iterator[Sequence[ReadyRecord]]:
    """Some rows at a time, never none, in order."""
    start = size = 0
    for at, row in enumerate(rows):
        if at > start and (at - start >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE):
            yield rows[start:at]
            start, size = at, 0
        size += len(row.suspect.record)
    if start < len(rows):
        yield rows[start:]
