"""Plans how records get into one target: encoded as texts, converted to values, inserted many at a time.

Encoding is `feedq.sinks.copytext`'s, so that a record lands here as it does in PostgreSQL; converting is
`feedq.sinks.sql.column_values`'. A record that cannot be encoded or converted is refused here, before the database
sees it, which tells the usual reasons apart without a single attempt. A NULL is for the database to judge, if it
does: a trigger may put something in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Column, MetaData, Table, insert

from feedq.sinks.base import FeedWrite, OnConflict, SuspectRecord, Target
from feedq.sinks.copytext import SetAside, UnreadableRecord, chunks, encoded, texts_of_row
from feedq.sinks.plan import TargetPlan
from feedq.sinks.sql.column_values import Conversion, Unfit
from feedq.sinks.target_table import TableShape

if TYPE_CHECKING:
    from feedq.sinks.sql.session import SqlSession

ROWS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 256 * 1024
"""Of records in one statement. PyMySQL cuts at 1 MB, with every byte escaped, and then rows are counted anew."""

Values = dict[str, Any]


class InsertPlan(TargetPlan):
    """A plan that inserts rows into one target."""

    session: SqlSession

    def __init__(self, session: SqlSession, target: Target, shape: TableShape) -> None:
        """Raises `Unfit` for a constant that its column does not take."""
        super().__init__(session, target, shape)
        columns = {name: shape.columns[name] for name in self.columns}
        self._conversions: Mapping[str, Conversion] = {
            name: session.conversion(column.own_type, is_json=column.type == "json")
            for name, column in columns.items()
        }
        self._not_null = frozenset(
            name
            for name, column in columns.items()
            if column.not_null and session.bends_null(column.own_type)
        )
        table = Table(
            shape.name,
            MetaData(),
            *(Column(name, self._conversions[name].bound) for name in self.columns),
            schema=shape.schema,
        )
        replaced = self.columns if target.on_conflict is OnConflict.UPDATE else ()
        self._insert = (
            session.upsert(table, target.key, lambda new: {name: new[name] for name in replaced})
            if target.key
            else insert(table)
        )
        self._done = 0
        """Rows of the last `land` that were in the statements before the last one."""

    def _values(self, texts: Sequence[str | None]) -> Values:
        values: Values = {}
        for name, text in zip(self.columns, texts, strict=True):
            if text is not None:
                try:
                    values[name] = self._conversions[name].convert(text)
                except UnreadableRecord as unfit:
                    raise Unfit(f"column {name!r}: {unfit}") from None
            elif name in self._not_null:
                raise Unfit(f"Column {name!r} cannot be null")
            else:
                values[name] = None
        return values

    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        self._done = 0
        for part in _parts(self._rows_of(writes, set_aside)):
            self.session.execute(self._insert, part)
            self._done += len(part)

    def _rows_of(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> Iterator[tuple[Values, int]]:
        """The rows, each with the size of its record. Records that cannot be converted are ``set_aside``, too."""
        for chunk in chunks(writes):
            for spans, rows in encoded(chunk, self.rows.rows, set_aside):
                suspects = (SuspectRecord(*span[:2], record) for span in spans for record in span.records)
                for suspect, row in zip(suspects, rows.decode().split("\n"), strict=False):
                    try:
                        yield self._values(texts_of_row(row)), len(suspect.record)
                    except UnreadableRecord as unreadable:
                        set_aside(suspect, str(unreadable))

    def row_of(self, error: Any) -> int | None:
        row = self.session.row_of(error)
        return None if row is None else self._done + row


def _parts(rows: Iterable[tuple[Values, int]]) -> Iterator[list[Values]]:
    """Some rows at a time, never none, in order."""
    part: list[Values] = []
    size = 0
    for row, row_size in rows:
        if part and (len(part) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    if part:
        yield part
