"""The catalog of a session: what it knows of the tables that records land in.

Targets are inspected when they are first needed, judged by `feedq.sinks.target_table`, and remembered until
`Catalog.refresh` or `Catalog.find_changed` finds their tables changed. Only a fence creates tables: what
disappears while a feed is being written was taken away by a person, who should be asked and not overruled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from feedq.errors import InvalidInput
from feedq.records.pointer import parse_pointer
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord, Target, why_nowhere
from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.mapping import ColumnType, Origin
from feedq.sinks.session import ErrorScope, SinkSession
from feedq.sinks.table_definitions import added_columns
from feedq.sinks.target_table import (
    FILLED_MAX,
    TableName,
    TableShape,
    column_sources,
    misdeclared,
    written_columns,
)

ALTERATION_LOCK_TIMEOUT_S: Final = 0.5
"""For a table that others are writing to: all who come later wait as well, and it is tried again."""


class TargetPlan(ABC):
    """A plan for one target on one session: how records get into it."""

    def __init__(self, session: SinkSession, target: Target, shape: TableShape) -> None:
        self.session = session
        self.target = target
        self.shape = shape

    @cached_property
    def taken(self) -> frozenset[str]:
        """The fields of records that some column takes, or a part of."""
        sources = column_sources(self.target, self.shape.columns)
        pointers = (p for s in sources if s.origin is Origin.POINTER for p in (s.pointer, *s.alternatives))
        return frozenset(parse_pointer(pointer)[0] for pointer in pointers)

    @abstractmethod
    def land(self, writes: Sequence[FeedWrite], *, strict: bool) -> list[DeadRecord]:
        """Send all records of these writes but those that cannot be encoded; returns these. Raises the session's
        errors. ``strict``: bad records are to be expected, so look for them even where that costs something."""

    @abstractmethod
    def land_nothing(self) -> None:
        """Have the database judge a statement that lands no row. Raises the session's errors."""

    @abstractmethod
    def texts(self, suspect: SuspectRecord) -> dict[str, str | None]:
        """A row by its columns, as texts; None is NULL. Raises `UnreadableRecord`."""

    @abstractmethod
    def row_of(self, error: Any) -> int | None:
        """The row, from 0, that the database stopped at when it was last written. A hint, nothing more."""

    def screen(self, suspects: Sequence[SuspectRecord]) -> tuple[Sequence[SuspectRecord], list[DeadRecord]]:
        """Those that may land, and those that surely cannot: for when many were refused."""
        return suspects, []

    def detours(self, error: Any) -> bool:
        """Have the next attempt take another way, if what raised this error can land by one; returns whether it
        can."""
        return False


class Catalog(ABC):
    """The targets as one session sees them. Methods raise the session's errors."""

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self._plans: dict[Target, TargetPlan] = {}

    def plan(self, target: Target) -> TargetPlan:
        """How to write to a target that `problems` found nothing wrong with."""
        return self._plans[target]

    def inspect(self, target: Target) -> TargetPlan:
        """How to write to a target, inspected anew. Raises `InvalidInput` when it cannot work."""
        self.refresh([target])
        if why := self.get_ready([target]).get(target):
            raise InvalidInput(why)
        return self._plans[target]

    def problems(self, targets: Iterable[Target], *, create: bool) -> dict[Target, str]:
        """Those that cannot work, and why. With ``create``, tables that are missing and that
        feedq makes are made."""
        unknown = {target for target in targets if target not in self._plans}
        if not unknown:
            return {}
        wrong = {target: why for target in unknown if (why := self.misdeclared(target))}
        unknown -= wrong.keys()
        shapes = self.describe(unknown)
        if create:
            missing = [target for target in unknown if target not in shapes and target.is_made]
            wrong |= {target: why for target in missing if (why := self.create(target))}
            shapes |= self.describe(missing)
        for target in unknown - wrong.keys():
            shape = shapes.get(target)
            if why := self.judge(target, shape):
                wrong[target] = why
            elif shape is not None:
                try:
                    self._plans[target] = self.make_plan(target, shape)
                except UnreadableRecord as unfit:
                    wrong[target] = f"table {target.table!r}: {unfit}"
        return wrong

    def get_ready(self, targets: Collection[Target]) -> dict[Target, str]:
        """Make sure that these can be written to now; returns those that cannot, and why."""
        return self.problems(targets, create=False)

    def find_changed(self, targets: Collection[Target]) -> list[Target]:
        """Those whose tables have changed since they were inspected. Asked once their rows have been sent, when
        nobody can change a table until the transaction ends: a plan made for another type lands wrong values."""
        shapes = [self._plans[target].shape for target in targets]
        now = self.fingerprints(shapes) if shapes else ()
        return [
            target
            for target, shape, fingerprint in zip(targets, shapes, now, strict=True)
            if fingerprint != shape.fingerprint
        ]

    def refresh(self, targets: Iterable[Target]) -> None:
        """Forget those whose tables have changed since they were looked at."""
        for target in self.find_changed([target for target in targets if target in self._plans]):
            self.forget(target)

    def forget(self, target: Target) -> None:
        """Have the target inspected before it is next used."""
        self._plans.pop(target, None)

    def add_columns(
        self, target: Target, columns: Mapping[str, ColumnType], *, dry_run: bool = False
    ) -> list[str]:
        """Add those of these columns that the table lacks, each in a transaction of its own. Returns the
        statements. Raises `InvalidInput` when there is no such table, no room, or no right to."""
        shape = self.describe([target]).get(target)
        if shape is None:
            raise InvalidInput(f"table {target.table!r} does not exist: run the feed, or create it")
        lacking: dict[str, ColumnType] = {}
        known = set(map(self._session.folded, shape.columns))
        for name, type_ in columns.items():
            if (folded := self._session.folded(name)) not in known and not self.column_fault(shape, name):
                lacking[name] = type_
                known.add(folded)
        filled = len(written_columns(target, shape.columns)) - len(target.columns)
        if filled + len(lacking) > FILLED_MAX:
            raise InvalidInput(
                f"table {target.table!r} has {filled} columns that sink.columns does not name, and may have "
                f"{FILLED_MAX}: map some there"
            )
        session = self._session
        statements = added_columns(session.connection.dialect, shape, lacking)
        session.set_lock_timeout(ALTERATION_LOCK_TIMEOUT_S)
        refusal: InvalidInput | None = None
        for name, statement in () if dry_run else statements.items():
            try:
                session.begin()
                session.run(statement)
                session.commit()
            except session.errors as error:
                session.rollback()
                # Somebody else may have added it at the same moment.
                there = None if session.is_broken else self.describe([target]).get(target)
                if there is not None and name in there.columns:
                    continue
                if there is None or session.scope(error) is not ErrorScope.TARGET:
                    raise
                refusal = InvalidInput(
                    f"table {target.table!r}: {session.explain(error)}; have its owner run {statement}"
                )
        if refusal is not None:
            raise refusal
        return list(statements.values())

    def is_yet_to_be_made(self, target: Target) -> bool:
        """Whether this is a target whose table the first fence will make."""
        return target.is_made and not (self.misdeclared(target) or self.describe([target]))

    def column_fault(self, shape: TableShape, name: str) -> str | None:
        """Why no column of a table can have this name; None when one can, or has."""
        folded = self._session.folded
        if name not in shape.columns and folded(name) in map(folded, shape.columns):
            return "to the database it is the name of another column"
        return "not every driver takes a % in a name" if "%" in name else self._session.name_fault(name)

    def misdeclared(self, target: Target) -> str | None:
        """What is wrong with the target whatever the database holds; None when nothing is."""
        named: dict[str, str] = {}
        for source in target.columns:
            if why := self._session.name_fault(source.column):
                return f"sink.columns: column {source.column!r}: {why}"
            other = named.setdefault(self._session.folded(source.column), source.column)
            if other != source.column:
                return f"sink.columns: {other!r} and {source.column!r} are one column to this database"
        return misdeclared(target, self.why_reserved)

    def why_reserved(self, table: TableName) -> str | None:
        """Why no records may land in a table of this name; None when they may."""
        return why_nowhere(f"{table.schema}.{table.name}" if table.schema else table.name)

    def why_unmakeable(self, target: Target) -> str | None:
        """Why a fence could not make the table of this target: it is made in a transaction that never happens, if
        the database can do that."""
        try:
            self.imagine(target)
        except (InvalidInput, UnreadableRecord) as wrong:
            return str(wrong)
        finally:
            self._session.rollback()
            if not self._session.is_broken:
                self.forget(target)
        return None

    @abstractmethod
    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        """The tables of these targets as they are, for those that exist."""

    @abstractmethod
    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        """The fingerprints that these tables have now; None where one is gone."""

    @abstractmethod
    def judge(self, target: Target, shape: TableShape | None) -> str | None:
        """Why the target cannot work with the table as it is; None when it can."""

    @abstractmethod
    def create(self, target: Target) -> str | None:
        """Make the table of a target. Returns why that is not possible; None when it is there."""

    @abstractmethod
    def make_plan(self, target: Target, shape: TableShape) -> TargetPlan:
        """Raises `UnreadableRecord` for a constant that its column does not take."""

    @abstractmethod
    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        """How to write to a default target whose table is yet to be made, and whether records can be landed
        there in the transaction that this has begun. Raises `InvalidInput`."""
