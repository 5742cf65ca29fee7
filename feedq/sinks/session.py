"""A session with a sink database, and what is done with checkpoints there.

`SinkSession` does it with what every database has: transactions, ``SELECT … FOR UPDATE`` and savepoints. What a
database does its own way, or much quicker, its own class says: `feedq.sinks.postgresql_session`, and the sessions
of `feedq.sinks.sql`. Above it everything is written once: `feedq.sinks.groupcommit` lands and advances,
`feedq.sinks.fencing` raises epochs, `feedq.sinks.upkeep` tries dead letters again.

A session is opened with bounds on every wait. It does not reconnect and does not retry; SQLAlchemy would open a
new connection behind our back after an error, which is why a broken session refuses to be used. Transactions begin
and end where the caller says so.

An error that the driver says nothing of counts as `ErrorScope.UNAVAILABLE`; one with a code of the standard means
what it means in PostgreSQL, and an unknown code that a record is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Engine,
    Executable,
    Select,
    and_,
    bindparam,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from feedq.model import JSON, FeedKey
from feedq.sinks.base import Checkpoint, DeadRecord, FeedWrite, FenceRequest
from feedq.sinks.cursors import ascii_text, cursor_of
from feedq.sinks.settlement import LastCommit
from feedq.sinks.sqlstate import ERROR_TEXT_MAX, ErrorScope, classify_code, is_known
from feedq.sinks.table_definitions import checkpoint, dead_letter, utc_now
from feedq.sinks.target_table import TableShape

T = TypeVar("T")

AT_ONCE: Final = 500
"""Feeds or dead letters named in one statement: databases bound the parameters of one."""
HOLDERS_LOCK_TIMEOUT_S: Final = 0.02
PERSON_LOCK_TIMEOUT_S: Final = 5.0
"""For a table or a dead letter that somebody has locked, while a person is waiting."""
ROLES: Final = ("writer", "fencer")

c = checkpoint.c


class AnswerLost(Exception):
    """COMMIT was sent and the connection broke: it may or may not have happened."""


class SinkSession:
    """A session with a database, for one worker in one environment. Methods raise ``errors``."""

    errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError,)
    """What the driver raises, wrapped or not."""
    undoable: ClassVar[Collection[ErrorScope]] = frozenset({ErrorScope.DATA, ErrorScope.TARGET})
    """Errors after which a transaction goes on from a savepoint; others end it altogether."""
    isolation: ClassVar[str | None] = None
    """What sessions ask for; ``AUTOCOMMIT`` where `begin` and `_commit` are statements of ours."""
    locks_all: ClassVar[bool] = False
    """Whether a transaction that writes locks all that there is: then a lock in the way is in everybody's."""
    waits_for_locks: ClassVar[bool] = False
    """Whether `_bound_locks` bounds the waits for rows; where nothing does, there must be none."""
    lock_timeout_s: ClassVar[float] = 1.0
    """For a checkpoint or a table that somebody has locked, before its feeds are postponed."""
    brief_lock_timeout_s: ClassVar[float] = 0.0
    """For checkpoints that looked free a moment ago."""

    def __init__(self, engine: Engine, *, environment: str, worker_id: UUID, role: str) -> None:
        self.environment = environment
        self.worker_id = worker_id
        self.role = role
        self.has_begun = False
        """Whether a transaction is open and has done something, or had when the connection broke."""
        self._connection = engine.connect()
        self._closed = False
        self._lock_timeout_s: float | None = None
        self._number: int | None = None
        try:
            self._number = self._set_up()
            self._rollback()
        except BaseException:
            self.close()
            raise

    @property
    def is_broken(self) -> bool:
        return self._closed or self._connection.invalidated

    @property
    def connection(self) -> Connection:
        assert not self.is_broken, "a session that broke is not used again"
        return self._connection

    @property
    def backend(self) -> Any:
        """What the server knows this session by, for `end_session`; None where it cannot be ended."""
        return self._number

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

    def set_statement_timeout(self, seconds: float) -> None:
        """Bound every statement from here on, where the server can; a COMMIT is none."""

    def ensure_bookkeeping(self) -> None:
        """Make feedq's own tables if they are not there. Here that was done when it was opened."""

    def unkeepable(self, write: FeedWrite) -> str | None:
        """Why nothing of a write can be kept, be it as a dead letter; None when it can."""
        try:
            for batch in write.batches:
                ascii_text(batch.cursor)
        except ValueError as error:
            return str(error)
        return None

    def _set_up(self) -> Any:
        """Make a new session ours; returns its number at the server if it can be ended by that."""

    def _bound_locks(self, seconds: float) -> None:
        """Bound the waits for locks from here on. Here the database's own settings have to do."""

    # -- transactions --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open a transaction."""
        # What was read before may have begun one.
        self.connection.rollback()
        self.connection.begin()

    def begin_for_person(self) -> None:
        """Begin a transaction on records that a person asked for."""
        self.set_lock_timeout(PERSON_LOCK_TIMEOUT_S)
        self.begin()

    def check_at_once(self) -> None:
        """Have constraints that are deferred to the commit checked with each statement of the transaction."""
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

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
        self.connection.commit()

    def _rollback(self) -> None:
        self._connection.rollback()

    @contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        """What is done within happens as a whole, or not at all if it raises."""
        self._set_savepoint(name)
        try:
            yield
        except BaseException as error:
            if not self.is_broken and self.can_undo(error):
                self._return_to_savepoint(name)
            raise
        self._release_savepoint(name)

    def can_undo(self, error: BaseException) -> bool:
        """Whether the transaction can go on from the savepoint before this error."""
        return not isinstance(error, self.errors) or self.scope(error) in self.undoable

    def _set_savepoint(self, name: str) -> None:
        self.connection.dialect.do_savepoint(self.connection, name)

    def _return_to_savepoint(self, name: str) -> None:
        self.connection.dialect.do_rollback_to_savepoint(self.connection, name)
        self._release_savepoint(name)

    def _release_savepoint(self, name: str) -> None:
        self.connection.dialect.do_release_savepoint(self.connection, name)

    # -- errors --------------------------------------------------------------------------------------

    @classmethod
    def scope(cls, error: Any) -> ErrorScope:
        """What the caller does differently."""
        if not isinstance(error, DBAPIError):
            # A value that SQLAlchemy or the driver cannot even send.
            return ErrorScope.DATA
        if error.connection_invalidated:
            return ErrorScope.UNAVAILABLE
        code = sqlstate_of(error)
        return by_class(error) if code is None else classify_code(code)

    @classmethod
    def explain(cls, error: Any) -> str:
        """What the server said, on one line, without the statement and its values."""
        said = getattr(error, "orig", None) or error
        arguments: tuple[Any, ...] = getattr(said, "args", ())
        if len(arguments) == 2 and isinstance(arguments[0], int) and isinstance(arguments[1], str):
            text = f"{arguments[1]} ({arguments[0]})"
        else:
            text = str(said)
        return " ".join(text.replace("\0", "").split())[:ERROR_TEXT_MAX]

    def refused_commit(self, error: Exception) -> bool:
        """Whether a commit that failed with this has surely not happened; else nobody knows."""
        if not isinstance(error, DBAPIError) or self.scope(error) not in (
            ErrorScope.CONFLICT,
            ErrorScope.DATA,
        ):
            return False
        code = sqlstate_of(error)
        return code is None or is_known(code)

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(self, writes: Sequence[FeedWrite], *, check_at_once: bool) -> set[FeedKey]:
        """Begin a transaction and lock the checkpoints that are as these feeds left them, in the order of their
        ids, to the end of it; returns the keys of the others.

        With ``check_at_once`` constraints that are deferred to the commit are checked with each statement.
        """
        self.begin()
        if check_at_once:
            self.check_at_once()
        found: dict[FeedKey, str | None] = {}
        for part in parts(sorted(write.key for write in writes)):
            # The ids find the rows by the key, and the pairs leave a successor's rows alone.
            pairs = tuple_(c.feed_id, c.epoch).in_(part)
            rows = self.execute(self.locking([feed_id for feed_id, _ in part]).where(pairs))
            found |= {(row.feed_id, row.epoch): row.commit_id for row in rows}
        self.has_begun = True
        return {
            write.key
            for write in writes
            if write.key not in found
            or (write.continues is not None and found[write.key] != str(write.continues))
        }

    def find_locked(self, feed_ids: Sequence[int]) -> Collection[int]:
        """Returns the feeds whose checkpoints somebody has locked."""
        locked: set[int] = set()
        for part in parts(feed_ids):
            there = self.connection.scalars(select(c.feed_id).where(self.of(part)))
            locked |= set(there) - set(self.connection.scalars(self.locking(part, skip_locked=True)))
            self.rollback()
        return locked

    def is_locked(self, shape: TableShape) -> bool:
        """Whether somebody surely has the table locked: asked where there is a doubt, before landing there."""
        # Landing there will tell, without any more patience.
        self.set_lock_timeout(0)
        return False

    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        """Move checkpoints that this transaction has locked."""
        self._advance(
            [
                {
                    "environment": self.environment,
                    "feed_id": write.feed_id,
                    "feed": write.feed,
                    "epoch": write.epoch,
                    "owner": str(self.worker_id),
                    "cursor": ascii_text(write.cursor),
                    "records": landed[write.key],
                    "commit_id": str(commit_id),
                }
                for write in writes
            ]
        )

    def _advance(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Move checkpoints that this transaction has locked. Rows have all columns but ``updated_at``."""
        statement = (
            update(checkpoint)
            .where(c.environment == parameter("environment"))
            .where(c.feed_id == parameter("feed_id"))
            .where(c.epoch == parameter("epoch"))
            .values(
                cursor=parameter("cursor", c.cursor),
                records=c.records + parameter("records"),
                commit_id=parameter("commit_id"),
                updated_at=utc_now(),
            )
        )
        names = ("environment", "feed_id", "epoch", "cursor", "records", "commit_id")
        moved = self.execute(statement, [{f"this_{name}": row[name] for name in names} for row in rows])
        if self.connection.dialect.supports_sane_multi_rowcount:
            assert moved.rowcount == len(rows), "a locked checkpoint did not advance"

    def last_commits(self, feed_ids: Sequence[int], *, lock: bool) -> dict[int, LastCommit]:
        """Epochs and last commits of those feeds that the sink knows. To ``lock`` them waits for a commit in
        flight, which a plain read would miss."""
        found: dict[int, LastCommit] = {}
        if lock:
            self.begin()
        for part in parts(sorted(feed_ids)):
            plain = select(c.feed_id, c.epoch, c.commit_id).where(self.of(part))
            for row in self.execute(self.locking(part) if lock else plain):
                found[row.feed_id] = LastCommit(row.epoch, uuid_of(row.commit_id))
        return found

    def possible_strangers(self, requests: Sequence[FenceRequest]) -> list[Checkpoint]:
        """The checkpoints that may be somebody else's: for `feedq.sinks.identity.strangers` to judge."""
        found: list[Checkpoint] = []
        self.set_lock_timeout(self.lock_timeout_s)
        for part in parts(requests):
            found += self.find_checkpoints(c.feed_id.in_([request.feed_id for request in part]))
            there = {one.feed_id for one in found}
            if new := [request.feed for request in part if request.feed_id not in there]:
                found += self.find_checkpoints(c.feed.in_(new))
        self.rollback()
        return found

    def raise_epochs(
        self, requests: Sequence[FenceRequest], commit_id: UUID, *, lock_timeout_s: float
    ) -> dict[int, tuple[JSON, int]] | None:
        """Raise the epochs of all feeds that have a smaller one, or the same by this worker, and leave
        ``commit_id`` there. Returns their cursors and numbers of records.

        None when one of them stayed locked; then none is raised.
        """
        raised: dict[int, tuple[JSON, int]] = {}
        for part in parts(requests):
            rows = [
                {
                    "environment": self.environment,
                    "feed_id": request.feed_id,
                    "feed": request.feed,
                    "epoch": request.epoch,
                    "owner": str(self.worker_id),
                    "commit_id": str(commit_id),
                    "feed_uuid": str(request.identity.feed),
                    "installation": str(request.identity.installation),
                }
                for request in part
            ]
            try:
                self.set_lock_timeout(lock_timeout_s)
                self._fence(rows, lock_timeout_s=lock_timeout_s)
            except self.errors as error:
                # Trouble with the data is a checkpoint that somebody else makes at this very moment.
                if self.scope(error) not in (ErrorScope.LOCKED, ErrorScope.DATA):
                    raise
                self.rollback()
                return None
            # Read after the epoch was raised: from then on no predecessor can commit, and the cursor is the last.
            self.set_lock_timeout(self.lock_timeout_s)
            ours = c.commit_id == str(commit_id)
            found = self.execute(
                select(c.feed_id, c.cursor, c.records).where(self.of([r.feed_id for r in part]), ours)
            )
            raised |= {row.feed_id: (cursor_of(row.cursor), row.records) for row in found}
            self.rollback()
        return raised

    def _fence(self, rows: Sequence[Mapping[str, Any]], *, lock_timeout_s: float) -> None:
        """Raise the epochs of all these feeds that have a smaller one, or none of them.

        An owner may fence its own epoch again. Rows have ``environment, feed_id, feed, epoch, owner, commit_id``,
        ``feed_uuid`` and ``installation``, in the order of the ids.
        """
        self.begin()
        there = set(self.connection.scalars(self.locking([row["feed_id"] for row in rows])))
        if new := [{**row, "records": 0} for row in rows if row["feed_id"] not in there]:
            self.execute(insert(checkpoint), new)
        if old := [
            {f"this_{name}": value for name, value in row.items()} for row in rows if row["feed_id"] in there
        ]:
            same = and_(c.epoch == parameter("epoch"), c.owner == parameter("owner"))
            statement = (
                update(checkpoint)
                .where(c.environment == parameter("environment"), c.feed_id == parameter("feed_id"))
                .where(or_(c.epoch < parameter("epoch"), same))
                .values(
                    {
                        name: parameter(name)
                        for name in ("epoch", "owner", "feed", "commit_id", "feed_uuid", "installation")
                    }
                )
                .values(updated_at=utc_now())
            )
            self.execute(statement, old)
        self._commit()

    def holders(self, feed_ids: Sequence[int]) -> Mapping[int, UUID | None]:
        """The workers whose sessions have these checkpoints locked: here those that fenced them last, since only
        the owner of a checkpoint writes to it."""
        found: dict[int, UUID | None] = {}
        self.set_lock_timeout(HOLDERS_LOCK_TIMEOUT_S)
        for part in parts(feed_ids):
            try:
                rows = self.execute(select(c.feed_id, c.owner).where(self.of(part)))
                found |= {row.feed_id: UUID(row.owner) for row in rows}
            except self.errors as error:
                # Where a commit locks out readers, too, the owner is told next time.
                if self.scope(error) is not ErrorScope.LOCKED:
                    raise
            self.rollback()
        return found

    def locking(self, feed_ids: Sequence[int], *, skip_locked: bool = False) -> Select[*tuple[Any, ...]]:
        """A SELECT that locks the checkpoints of these feeds, in the order of their ids."""
        return (
            select(c.feed_id, c.epoch, c.commit_id)
            .where(self.of(feed_ids))
            .order_by(c.feed_id)
            .with_for_update(nowait=not self.waits_for_locks and not skip_locked, skip_locked=skip_locked)
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
                commit_id=uuid_of(row.commit_id),
                feed_uuid=UUID(str(row.feed_uuid)),
                installation=UUID(str(row.installation)),
            )
            for row in rows
        ]

    # -- sessions of others --------------------------------------------------------------------------

    def end_session(self, backend: Any) -> None:
        """End a session of this worker's that was lost, if it still is there."""

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        """End the sessions of these workers. Returns how many; 0 where no session can be told from another."""
        return 0

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
                "cursor": ascii_text(batch.cursor),
            }
            for (write, batch, record), error in dead
        ]
        self.execute(insert(dead_letter), rows)


def parts(values: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """Cuts values into parts of as many as one statement may name."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def uuid_of(value: object) -> UUID | None:
    """What a database has for a UUID, be it a text."""
    return None if value is None else UUID(str(value))


def parameter(name: str, column: Any = None) -> Any:
    """A parameter of an UPDATE; SQLAlchemy keeps the columns' own names for itself."""
    return bindparam(f"this_{name}", type_=None if column is None else column.type)


def by_class(error: DBAPIError) -> ErrorScope:
    """What the driver calls the error, which tells little."""
    if isinstance(error, IntegrityError | DataError):
        return ErrorScope.DATA
    if isinstance(error, ProgrammingError):
        return ErrorScope.TARGET
    return ErrorScope.UNAVAILABLE


def sqlstate_of(error: DBAPIError) -> str | None:
    """The standard's five characters, where the driver gives them."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error.orig, name, None)
        if isinstance(code, str) and len(code) == len("00000"):
            return code
    return None


def application_name(role: str, worker_id: UUID) -> str:
    """What a sink session calls itself, so that a successor can tell whose it is."""
    return f"feedq-{role}/{worker_id}"


def worker_of(name: str | None) -> UUID | None:
    """The worker whose sink session calls itself ``name``."""
    head, _, tail = (name or "").partition("/")
    if not head.startswith("feedq-"):
        return None
    try:
        return UUID(tail)
    except ValueError:
        return None
