"""The plan of a target: how records get into its table. Worked out once, and used until the table changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import TableClause, column, false, insert, null, select, table

from feedq.records.pointer import parse_pointer
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord, Target
from feedq.sinks.copytext import ColumnRows, SetAside
from feedq.sinks.mapping import Origin
from feedq.sinks.target_table import TableShape, column_sources, written_columns

if TYPE_CHECKING:
    from feedq.sinks.session import SinkSession


class TargetPlan(ABC):
    """A plan for one target on one session. Methods raise the session's errors."""

    def __init__(self, session: SinkSession, target: Target, shape: TableShape) -> None:
        """Raises `UnreadableRecord` for a constant that its column does not take."""
        self.session = session
        self.target = target
        self.shape = shape
        self.columns = written_columns(target, shape.columns)
        """What is written of the table, in order."""
        self.rows = ColumnRows(target, shape.columns)
        self.table: TableClause = table(shape.name, *map(column, self.columns), schema=shape.schema)

    @cached_property
    def taken(self) -> frozenset[str]:
        """The fields of records that some column takes, or a part of."""
        sources = column_sources(self.target, self.shape.columns)
        pointers = (p for s in sources if s.origin is Origin.POINTER for p in (s.pointer, *s.alternatives))
        return frozenset(parse_pointer(pointer)[0] for pointer in pointers)

    @abstractmethod
    def land(self, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        """Send all records of these writes but those that cannot be encoded, which are ``set_aside``. Commits
        nothing."""

    def land_nothing(self) -> None:
        """Have the database judge a statement that lands no row."""
        nothing = select(*(null().label(name) for name in self.columns)).where(false())
        self.session.execute(insert(self.table).from_select(list(self.columns), nothing))

    def texts(self, suspect: SuspectRecord) -> dict[str, str | None]:
        """A row by its columns, as texts; None is NULL. Raises `UnreadableRecord`."""
        return dict(zip(self.columns, self.rows.texts(*suspect), strict=True))

    def row_of(self, error: Any) -> int | None:
        """The row, from 0, that the database stopped at when it was last written. A hint, nothing more."""
        return self.session.row_of(error)

    def screen(self, suspects: Sequence[SuspectRecord]) -> tuple[Sequence[SuspectRecord], list[DeadRecord]]:
        """Those that may land, and those that surely cannot: for when many were refused."""
        return suspects, []

    def detours(self, error: Any) -> bool:
        """Have the next attempt take another way, if what raised this error can land by one; returns whether it
        can."""
        return False
