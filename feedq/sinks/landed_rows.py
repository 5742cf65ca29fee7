"""Which rows of a table a feed has landed after a cursor, as a condition; or why nobody can tell. Pure.

Two things are needed: whose a row is, and whether it comes after the cursor. A column filled with ``$feed`` says
the first, or constants that no other feed of the table has; or the feed is the only one there. A column of whole
numbers filled from where the connector reads its cursor says the second; in a default table of PostgreSQL's the
record itself does. Going back to where the source begins takes the first only.

A column filled with ``$cursor`` says nothing: all records of a batch have the same, also those before a cursor in
the midst of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Numeric, TableClause, and_, case, cast, column, func, table, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import Text

from feedq.errors import InvalidInput
from feedq.model import JSON
from feedq.records.pointer import parse_pointer
from feedq.sinks.base import LandedRows, Target
from feedq.sinks.mapping import ColumnSource, Origin, Otherwise
from feedq.sinks.target_table import TableShape, column_sources

WHOLE_NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "numeric"})
"""Types of columns, by the names of PostgreSQL and of the kinds of other databases."""


class RowsAfter:
    """Says which rows of a feed come after a cursor. Raises `InvalidInput` where nobody can tell."""

    def __init__(
        self, rows: LandedRows, shape: TableShape, *, feed: str, cursor: JSON, before: JSON, dialect: str
    ) -> None:
        """``cursor`` is the new one, and ``before`` the present one."""
        self._rows, self._shape, self._feed, self._dialect = rows, shape, feed, dialect
        self._sources = _sources(rows.target, shape)
        self.table: TableClause = table(shape.name, schema=shape.schema)
        self.of_feed = self._of_feed()
        self.number: ColumnElement[Any] | None = None
        """The cursor of a row; None when all rows of the feed are meant."""
        self.condition = self.of_feed
        cursor, before = rows.in_record(cursor), rows.in_record(before)
        if cursor is not None:
            self.number = self._number(cursor)
            self.condition = and_(self.of_feed, self.number > cursor)
            if _is_whole(before):
                # What lies beyond was landed by nobody of ours.
                self.condition = and_(self.condition, self.number <= before)

    def _of_feed(self) -> ColumnElement[bool]:
        for source in self._sources:
            if source.origin is Origin.FEED:
                return column(source.column) == self._feed
        mine = _constants(self._sources)
        for name, target in self._rows.neighbours.items():
            theirs = _constants(_sources(target, self._shape))
            if not any(theirs.get(key, value) != value for key, value in mine.items()):
                raise self._unknown(
                    f"feed {name!r} lands there too, and no column says whose a row is; fill one with $feed"
                )
        same = [column(key) == value for key, value in mine.items()]
        return and_(true(), *same)

    def _number(self, cursor: JSON) -> ColumnElement[Any]:
        if not _is_whole(cursor):
            raise self._unknown("the new cursor is no whole number, so that rows cannot be compared with it")
        pointer = self._rows.pointer
        if pointer is None:
            raise self._unknown("its connector reads the cursor from no record (source.cursor)")
        for source in self._sources:
            has_default = Otherwise.DEFAULT in (source.missing, source.null)
            if source.origin is not Origin.POINTER or source.pointer != pointer or has_default:
                continue
            if self._shape.columns[source.column].type in WHOLE_NUMBERS:
                return column(source.column)
        if not self._rows.target.is_mapped and self._dialect == "postgresql" and self._is_json:
            member = cast(column("payload"), JSONB)[tuple(parse_pointer(pointer))]
            return case((func.jsonb_typeof(member) == "number", cast(cast(member, Text), Numeric)))
        raise self._unknown(
            f"no column of whole numbers is filled from {pointer}, where a record has its cursor; add one to "
            "sink.columns"
        )

    @property
    def _is_json(self) -> bool:
        return self._rows.target.format == "json"

    def _unknown(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"nobody can tell which rows of table {self._rows.target.table!r} feed {self._feed!r} landed after "
            f"the new cursor: {why}. Change the cursor without deleting: with sink.key, rows that are there "
            "already are left alone"
        )


def _sources(target: Target, shape: TableShape) -> Sequence[ColumnSource]:
    if target.is_mapped:
        return column_sources(target, shape.columns)
    return (ColumnSource("feed", Origin.FEED),)


def _constants(sources: Sequence[ColumnSource]) -> dict[str, str | int]:
    """Columns that have the same text or number in each row of the feed."""
    found = {
        source.column: orjson.loads(source.constant) for source in sources if source.origin is Origin.CONSTANT
    }
    return {name: value for name, value in found.items() if isinstance(value, str) or _is_whole(value)}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
