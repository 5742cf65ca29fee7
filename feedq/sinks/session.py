"""A session with a sink database: its transactions, its ledger and its targets.

`SinkSession` is the skeleton of all databases. What each of them does its own way is in `feedq.sinks.postgresql`
and `feedq.sinks.sql`: how to `open` a connection, the plan that lands records in a target (`plan_type`), the
statements that commit the ledger, and what an error means (`scope`). Above it everything is written once:
`feedq.sinks.transactional` lands and advances, `feedq.sinks.fencing` raises epochs, `feedq.sinks.upkeep` tries
dead letters again.

A `TargetPlan` says how records get into one table. It is worked out once, and used until the table changes.

A session is opened with bounds on every wait. It does not reconnect and does not retry; SQLAlchemy would open a
new connection behind our back after an error, which is why a broken session refuses to be used. SQLAlchemy's
connection is in autocommit mode: transactions begin and end by statements of ours, where the caller says so.

Targets are inspected when they are first needed, judged by `feedq.sinks.target_table`, and remembered until
`refresh` finds their tables changed. Only a fence creates tables: what disappears while a feed
is being written was taken away by a person, who should be asked and not overruled.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Engine,
    Executable,
    Select,
    Table,
    TableClause,
    and_,
    bindparam,
    column,
    false,
    insert,
    inspect,
    null,
    select,
    table,
)
from sqlalchemy.exc import SQLAlchemyError

from feedq.core.model import JSON, FeedKey
from feedq.errors import InvalidInput
from feedq.records.cursor import ascii_text, cursor_of
from feedq.records.pointer import parse_pointer
from feedq.sinks.base import (
    Checkpoint,
    DeadRecord,
    FeedWrite,
    Fenced,
    FenceRequest,
    SuspectRecord,
    Target,
    parts,
    why_nowhere,
)
from feedq.sinks.copytext import ColumnRows, SetAside, UnreadableRecord
from feedq.sinks.mapping import DEFAULT_COLUMNS, ColumnType, Origin
from feedq.sinks.table_definitions import added_columns, checkpoint, dead_letter, made_table
from feedq.sinks.target_table import (
    FILLED_MAX,
    TableName,
    TableShape,
    Types,
    column_sources,
    problem,
    written_columns,
)

T = TypeVar("T")

PATIENT_LOCK_TIMEOUT_S: Final = 5.0
"""Where nothing lands meanwhile: a table is made, a person waits, or it is asked what became of a commit."""
ATTEMPTS_MAX: Final = 5
"""What ends in a conflict is tried this often: a deadlock, a table that somebody else makes at this moment."""
CONFLICT_PAUSE_S: Final = 0.02
"""After a conflict: nothing at first, and then so much longer each time."""
ALTERATION_LOCK_TIMEOUT_S: Final = 0.5
"""For a table that others are writing to: all who come later wait as well, and it is tried again."""
ROLES: Final = ("writer", "fencer")
ERROR_TEXT_MAX: Final = 1_000
"""Characters of a server's message that are kept; its detail may quote a whole record."""

c = checkpoint.c


class ErrorScope(Enum):
    """The scope of an error, by which the caller acts."""

    UNAVAILABLE = auto()
    """The server is away or shutting down: keep the batches, try again."""
    DATA = auto()
    """Some record cannot be stored: find it, and set it aside."""
    TARGET = auto()
    """The table itself cannot be written: gone, changed, or not permitted."""
    LATER = auto()
    """The table cannot be written just now: no room on its disk, too slow, its foreign server is away."""
    LOCKED = auto()
    """Somebody holds a lock for longer than we wait."""
    CONFLICT = auto()
    """Deadlock or serialization failure: the same transaction again."""


class AnswerLost(Exception):
    """COMMIT was sent and the connection broke: it may or may not have happened."""


class TargetChanged(Exception):
    """A table has changed since its plan was made: what it refused may not be the records' fault, and what it took
    may be wrong."""


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


class SinkSession(ABC):
    """A session with a database, for one worker in one environment. Methods raise ``errors``."""

    errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError,)
    """What the driver raises, wrapped or not."""
    undoable: ClassVar[Collection[ErrorScope]] = frozenset({ErrorScope.DATA, ErrorScope.TARGET})
    """Errors after which a transaction goes on from a savepoint; others end it altogether."""
    locks_all: ClassVar[bool] = False
    """Whether a transaction that writes locks all that there is: then a lock in the way is in everybody's."""
    lock_timeout_s: ClassVar[float] = 1.0
    """For a checkpoint or a table that somebody has locked, before its feeds are postponed."""
    name_bytes_max: ClassVar[int] = 255
    """Of a column, where the database has no bound of its own, so that people can still read it."""
    own_names: ClassVar[Collection[str]] = ()
    """Names of columns that the database keeps in every table itself."""
    head_types: ClassVar[Sequence[Sequence[str]]]
    """Types that ``feed``, ``epoch`` and ``received_at`` of a default table may have, the best first."""
    payload_types: ClassVar[Types]
    """Those of its ``payload``, by record format."""
    cursor_text: Callable[[JSON], str | None] = staticmethod(ascii_text)
    """A cursor as the database takes it. Raises `ValueError` for one that cannot be kept."""
    brief_lock_timeout_s: ClassVar[float] = 0.0
    """For checkpoints that are fenced: all feeds of a statement wait with the one whose checkpoint is locked."""

    def __init__(self, engine: Engine, *, environment: str, worker_id: UUID, role: str) -> None:
        self.environment = environment
        self.worker_id = worker_id
        self.role = role
        self.has_begun = False
        """Whether a transaction is open and has done something, or had when the connection broke."""
        self.number: int | None = None
        """The server's number of this session, for `end_session`; None where it cannot be ended."""
        self._connection = engine.connect()
        self._closed = False
        self._lock_timeout_s: float | None = None
        self._plans: dict[Target, TargetPlan] = {}
        try:
            self.number = self._set_up()
            self._rollback()
        except BaseException:
            self.close()
            raise

    @classmethod
    @abstractmethod
    def open(cls, url: str, name: str) -> Engine:
        """What opens connections that call themselves ``name``, with bounds on every wait. Makes none yet. Raises
        `InvalidInput` for a URL that leads to no database."""

    @property
    def is_broken(self) -> bool:
        return self._closed or self._connection.invalidated

    @property
    def connection(self) -> Connection:
        assert not self.is_broken, "a session that broke is not used again"
        return self._connection

    def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None
    ) -> CursorResult[Any]:
        """Run a statement, once for each of ``rows``."""
        return self.connection.execute(statement, rows)

    def run(self, statement: str) -> None:
        self.connection.exec_driver_sql(statement)

    def set_lock_timeout(self, seconds: float) -> None:
        """Bound every wait for a lock from here on; 0 waits as briefly as the server can."""
        if seconds != self._lock_timeout_s:
            self._lock_timeout_s = None
            self._bound_locks(seconds)
            self._lock_timeout_s = seconds

    def set_statement_timeout(self, seconds: float) -> None:  # noqa: B027 - not every server can
        """Bound every statement from here on, where the server can; a COMMIT is none."""

    @classmethod
    def name_fault(cls, name: str) -> str | None:
        """Why no column can have this name; None when one can."""
        if not name or "\0" in name:
            return "its name is empty, or has a NUL"
        if len(name.encode()) > cls.name_bytes_max:
            return f"its name is longer than {cls.name_bytes_max} bytes"
        return "the database has a system column of that name" if name in cls.own_names else None

    @classmethod
    def folded(cls, name: str) -> str:
        """The name of a column as the database compares it with others."""
        return name

    def unkeepable(self, write: FeedWrite) -> str | None:
        """Why nothing of a write can be kept, be it as a dead letter; None when it can."""
        try:
            for batch in write.batches:
                self.cursor_text(batch.cursor)
        except ValueError as error:
            return str(error)
        return None

    @abstractmethod
    def _set_up(self) -> int | None:
        """Make a new session ours; returns its number at the server if it can be ended by that."""

    @abstractmethod
    def _bound_locks(self, seconds: float) -> None:
        """Bound the waits for locks from here on."""

    # -- transactions --------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction in which constraints are checked with each statement."""

    def begin_for_person(self) -> None:
        """Begin a transaction on records that a person asked for."""
        self.set_lock_timeout(PATIENT_LOCK_TIMEOUT_S)
        self.begin()

    def commit(self) -> None:
        """Commit.

        Raises:
            AnswerLost: nobody knows whether it happened; the connection is closed.
            errors: the server refused; what has been done is rolled back, or is to be.
        """
        try:
            self._commit()
        except self.errors as error:
            if not self.is_broken and self.refused_commit(error):
                raise
            self.close()
            raise AnswerLost(self.explain(error)) from error
        self.has_begun = False

    def rollback(self) -> None:
        """End a transaction, if one is open; a connection that cannot is closed."""
        if self.is_broken:
            return
        try:
            self._rollback()
        except self.errors:
            self.close()
        else:
            self.has_begun = False

    def close(self) -> None:
        self._closed = True
        # It may be broken already, and then there is nothing left to close.
        with suppress(*self.errors, OSError):
            if not self._connection.closed:
                # Not handed back in good order: whatever transaction is open ends with the connection.
                self._connection.invalidate()
                self._connection.close()

    def _commit(self) -> None:
        self.run("COMMIT")

    @abstractmethod
    def _rollback(self) -> None:
        """End the transaction, if one is open."""

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        """What is done within happens as a whole, or not at all if it raises."""
        self.run(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException as error:
            if not self.is_broken and self.can_undo(error):
                self.run(f"ROLLBACK TO SAVEPOINT {name}")
                self.run(f"RELEASE SAVEPOINT {name}")
            raise
        self.run(f"RELEASE SAVEPOINT {name}")

    def can_undo(self, error: BaseException) -> bool:
        """Whether the transaction can go on from the savepoint before this error."""
        return not isinstance(error, self.errors) or self.scope(error) in self.undoable

    # -- errors --------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def scope(cls, error: Any) -> ErrorScope:
        """What the caller does differently."""

    @classmethod
    def explain(cls, error: Any) -> str:
        """What the server said, on one line, without the statement and its values."""
        said = cause_of(error)
        arguments: tuple[Any, ...] = getattr(said, "args", ())
        if len(arguments) == 2 and isinstance(arguments[0], int) and isinstance(arguments[1], str):
            text = f"{arguments[1]} ({arguments[0]})"
        else:
            text = str(said)
        return one_line(text)

    def row_of(self, error: Any) -> int | None:
        """The row of a statement, from 0, that the database stopped at. A hint, nothing more."""
        return None

    def remedy(self, error: Exception) -> str:
        """What a person has to do about a right that is missing; empty where that cannot be told. Asks the
        database, so whatever has failed is rolled back before."""
        return ""

    @abstractmethod
    def refused_commit(self, error: Exception) -> bool:
        """Whether a commit that failed with this has surely not happened; otherwise nobody knows."""

    # -- checkpoints ---------------------------------------------------------------------------------

    @abstractmethod
    def lock(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        """Begin a transaction and lock the checkpoints that are as these feeds left them, in the order of their
        ids, to the end of it; returns the keys of the others, and of those that somebody else has locked."""

    @abstractmethod
    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        """Move checkpoints that this transaction has locked."""

    @abstractmethod
    def fence(self, requests: Sequence[FenceRequest], commit_id: UUID) -> list[Fenced]:
        """Raise the epochs of all feeds that have a smaller one, or the same by this worker, and return these as
        they were left: no predecessor can commit any more. In one statement: that is a transaction of the server's
        own, which a client that freezes cannot hold open."""

    def find_locked(self, feed_ids: Sequence[int]) -> Collection[int]:
        """Returns the feeds whose checkpoints somebody has locked."""
        locked: set[int] = set()
        for part in parts(feed_ids):
            there = self.connection.scalars(select(c.feed_id).where(self.of(part)))
            locked |= set(there) - set(self.connection.scalars(self.locking(part, skip_locked=True)))
        return locked

    def checkpoints_of(self, feed_ids: Iterable[int], *, lock: bool = False) -> dict[int, Checkpoint]:
        """Reads the checkpoints of those feeds that the sink knows. To ``lock`` them, in the transaction that is
        open, waits for a commit in flight."""
        found: dict[int, Checkpoint] = {}
        for part in parts(sorted(feed_ids)):
            if lock:
                self.execute(self.locking(part))
            found |= {one.feed_id: one for one in self.find_checkpoints(c.feed_id.in_(part))}
        return found

    def locking(self, feed_ids: Sequence[int], *, skip_locked: bool = False) -> Select[*tuple[Any, ...]]:
        """A SELECT that locks the checkpoints of these feeds, in the order of their ids."""
        return (
            select(c.feed_id, c.epoch, c.commit_id)
            .where(self.of(feed_ids))
            .order_by(c.feed_id)
            .with_for_update(skip_locked=skip_locked)
        )

    def of(self, feed_ids: Sequence[int]) -> ColumnElement[bool]:
        """Condition for the checkpoints of these feeds."""
        return and_(c.environment == self.environment, c.feed_id.in_(feed_ids))

    def find_checkpoints(self, *conditions: ColumnElement[bool]) -> list[Checkpoint]:
        """Reads checkpoints of this environment, by name."""
        here = c.environment == self.environment
        rows = self.execute(select(checkpoint).where(here, *conditions).order_by(c.feed, c.updated_at))
        return [
            Checkpoint(
                feed_id=row.feed_id,
                feed=row.feed,
                epoch=row.epoch,
                cursor=cursor_of(row.cursor),
                records=row.records,
                updated_at=row.updated_at.replace(tzinfo=UTC),
                commit_id=None if row.commit_id is None else uuid_of(row.commit_id),
                feed_uuid=UUID(row.feed_uuid),
                installation=uuid_of(row.installation),
                owner=uuid_of(row.owner),
                is_given=row.is_given,
            )
            for row in rows
        ]

    # -- tables --------------------------------------------------------------------------------------

    def ensure_bookkeeping(self) -> None:
        """Make feedq's own tables if they are not there."""
        self.set_lock_timeout(PATIENT_LOCK_TIMEOUT_S)
        for own in (checkpoint, dead_letter):
            self.make(own)

    def make(self, table: Table) -> None:
        """Make a table if it is missing; of two sessions that do so at the same moment, one finds it there."""
        for attempt in range(ATTEMPTS_MAX):
            time.sleep(attempt * CONFLICT_PAUSE_S)
            try:
                if not self._exists(table):
                    self.begin()
                    table.create(self.connection)
                    self._commit()
                    self.has_begun = False
                return
            except self.errors as error:
                self.rollback()
                if self.is_broken or attempt == ATTEMPTS_MAX - 1:
                    raise
                if self.scope(error) is not ErrorScope.CONFLICT and not self._exists(table):
                    raise

    def _exists(self, table: Table) -> bool:
        return inspect(self.connection).has_table(table.name, schema=table.schema)

    # -- dead letters --------------------------------------------------------------------------------

    def write_dead_letters(self, dead: Iterable[DeadRecord]) -> None:
        """Write dead letters, in the transaction that is open."""
        rows = [
            {
                "environment": self.environment,
                "feed_id": write.feed_id,
                "feed": write.feed,
                "epoch": write.epoch,
                "record": record,
                "error": error.encode(errors="replace").decode(),
                "cursor": self.cursor_text(batch.cursor),
            }
            for (write, batch, record), error in dead
        ]
        self.execute(insert(dead_letter), rows)

    # -- targets -------------------------------------------------------------------------------------

    def plan(self, target: Target) -> TargetPlan:
        """How to write to a target that `get_ready` found nothing wrong with."""
        return self._plans[target]

    def inspect(self, target: Target) -> TargetPlan:
        """How to write to a target, inspected anew. Raises `InvalidInput` when it cannot work."""
        self.refresh([target])
        if why := self.get_ready([target]).get(target):
            raise InvalidInput(why)
        return self._plans[target]

    def get_ready(self, targets: Iterable[Target], *, create: bool = False) -> dict[Target, str]:
        """Make plans for these targets; returns those that cannot work, and why. With ``create``, tables that are
        missing and that feedq makes are made."""
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
                    self._plans[target] = self.new_plan(target, shape)
                except InvalidInput as unfit:
                    wrong[target] = str(unfit)
        return wrong

    def new_plan(self, target: Target, shape: TableShape) -> TargetPlan:
        """Raises `InvalidInput` for a constant that its column does not take."""
        try:
            return self.plan_type(target)(self, target, shape)
        except UnreadableRecord as unfit:
            raise InvalidInput(f"table {target.table!r}: {unfit}") from None

    def check_unchanged(self, targets: Collection[Target]) -> None:
        """Raise `TargetChanged` if a table has changed since it was inspected. Asked once the rows have been sent,
        when nobody can change a table until the transaction ends: a plan made for another type lands wrong
        values."""
        if changed := self._find_changed(targets):
            raise TargetChanged(f"table {changed[0].table!r} has just been changed: try again")

    def _find_changed(self, targets: Collection[Target]) -> list[Target]:
        shapes = [self._plans[target].shape for target in targets]
        now = self.fingerprints(shapes) if shapes else ()
        return [
            target
            for target, shape, fingerprint in zip(targets, shapes, now, strict=True)
            if fingerprint != shape.fingerprint
        ]

    def refresh(self, targets: Iterable[Target]) -> None:
        """Forget those whose tables have changed since they were looked at."""
        for target in self._find_changed([target for target in targets if target in self._plans]):
            del self._plans[target]

    def add_columns(
        self, target: Target, columns: Mapping[str, ColumnType], *, dry_run: bool = False
    ) -> list[str]:
        """Add those of these columns that the table lacks, each in a transaction of its own. Returns the
        statements. Raises `InvalidInput` when there is no such table, no room, or no right to."""
        shape = self.describe([target]).get(target)
        if shape is None:
            raise InvalidInput(f"table {target.table!r} does not exist: run the feed, or create it")
        lacking: dict[str, ColumnType] = {}
        known = set(map(self.folded, shape.columns))
        for name, type_ in columns.items():
            if (folded := self.folded(name)) not in known and not self.column_fault(shape, name):
                lacking[name] = type_
                known.add(folded)
        filled = len(written_columns(target, shape.columns)) - len(target.columns)
        if filled + len(lacking) > FILLED_MAX:
            raise InvalidInput(
                f"table {target.table!r} has {filled} columns that sink.columns does not name; at most "
                f"{FILLED_MAX} are allowed: map some there"
            )
        statements = added_columns(self.connection.dialect, shape, lacking)
        self.set_lock_timeout(ALTERATION_LOCK_TIMEOUT_S)
        refusal: InvalidInput | None = None
        for name, statement in () if dry_run else statements.items():
            try:
                self.begin()
                self.run(statement)
                self.commit()
            except self.errors as error:
                self.rollback()
                # Somebody else may have added it at the same moment.
                there = None if self.is_broken else self.describe([target]).get(target)
                if there is not None and name in there.columns:
                    continue
                if there is None or self.scope(error) is not ErrorScope.TARGET:
                    raise
                refusal = InvalidInput(
                    f"table {target.table!r}: {self.explain(error)}; have its owner run {statement}"
                )
        if refusal is not None:
            raise refusal
        return list(statements.values())

    def is_yet_to_be_made(self, target: Target) -> bool:
        """Whether this is a target whose table the first fence will make."""
        return target.is_made and not (self.misdeclared(target) or self.describe([target]))

    def column_fault(self, shape: TableShape, name: str) -> str | None:
        """Why no column of a table can have this name; None when one can, or has."""
        folded = self.folded
        if name not in shape.columns and folded(name) in map(folded, shape.columns):
            return "to the database it is the name of another column"
        return "not every driver allows a % in a name" if "%" in name else self.name_fault(name)

    @classmethod
    def misdeclared(cls, target: Target) -> str | None:
        """What is wrong with the names in a target whatever the database holds; None when nothing is."""
        named: dict[str, str] = {}
        for source in target.columns:
            if why := cls.name_fault(source.column):
                return f"sink.columns: column {source.column!r}: {why}"
            other = named.setdefault(cls.folded(source.column), source.column)
            if other != source.column:
                return f"sink.columns: {other!r} and {source.column!r} are one column to this database"
        try:
            why = cls.why_reserved(TableName.parse(target.table))
        except ValueError as error:
            return str(error)
        return why and f"sink.table {target.table!r} {why}"

    @classmethod
    def why_reserved(cls, table: TableName) -> str | None:
        """Why no records may land in a table of this name; None when they may."""
        return why_nowhere(f"{table.schema}.{table.name}" if table.schema else table.name)

    @abstractmethod
    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        """The tables of these targets as they are, for those that exist."""

    @abstractmethod
    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        """The fingerprints that these tables have now; None where one is gone."""

    @classmethod
    @abstractmethod
    def plan_type(cls, target: Target) -> type[TargetPlan]:
        """How records get into a target of this kind."""

    @classmethod
    def judge(cls, target: Target, shape: TableShape | None) -> str | None:
        """Why the target cannot work with the table as it is; None when it can."""
        types = (*cls.head_types, cls.payload_types[target.format])
        return problem(target, shape, dict(zip(DEFAULT_COLUMNS, types, strict=True)))

    def create(self, target: Target) -> str | None:
        """Make the table of a target. Returns why that is not possible; None when it is there."""
        self.set_lock_timeout(PATIENT_LOCK_TIMEOUT_S)
        try:
            self.make_schema_of(target)
            self.make(made_table(target))
        except self.errors as error:
            return self.why_uncreated(target, error)
        return None

    def make_schema_of(self, target: Target) -> None:  # noqa: B027 - elsewhere a schema is a database
        """Make the schema that a target names, if it is missing and the database has schemas."""

    def why_uncreated(self, target: Target, error: Exception) -> str:
        """Why the table could not be made; raises the error again if that says nothing about the table."""
        self.rollback()
        if self.scope(error) not in (ErrorScope.TARGET, ErrorScope.DATA, ErrorScope.LATER):
            raise error
        wish = " or ".join(filter(None, ["create it", self.remedy(error)]))
        return f"table {target.table!r} does not exist and cannot be created: {self.explain(error)}; {wish}"

    @abstractmethod
    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        """How to write to a default target whose table is yet to be made, and whether records can be landed
        there in the transaction that this has begun. Raises `InvalidInput`."""

    # -- sessions of others --------------------------------------------------------------------------

    def end_session(self, number: int) -> None:  # noqa: B027 - not every server can
        """End a session of this worker's that was lost, if it still is there."""

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        """End the sessions of these workers. Returns how many; 0 where no session can be told from another."""
        return 0


def one_line(said: str) -> str:
    """A server's message as feedq keeps it."""
    return " ".join(said.replace("\0", "").split())[:ERROR_TEXT_MAX]


def cause_of(error: Any) -> Any:
    """The driver's error, which SQLAlchemy may have wrapped."""
    return getattr(error, "orig", None) or error


@lru_cache
def uuid_of(text: str) -> UUID:
    """A UUID as the ledger has it. Thousands of checkpoints share an owner, an installation and a commit."""
    return UUID(text)


def parameter(name: str) -> Any:
    """A parameter of an UPDATE; SQLAlchemy keeps the columns' own names for itself."""
    return bindparam(f"this_{name}")


def application_name(role: str, worker_id: UUID) -> str:
    """What a sink session calls itself, so that a successor can tell whose it is."""
    return f"feedq-{role}/{worker_id}"


def number_after(words: str, said: str) -> int | None:
    """The number of a row in a message, counted from 0 and not from 1."""
    found = re.search(re.escape(words) + r"(\d+)", said)
    return int(found[1]) - 1 if found else None
