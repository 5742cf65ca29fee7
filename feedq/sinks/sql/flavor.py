"""What databases do each their own way; `Flavor` itself is for those that nothing special is known of.

What such a database must have: transactions, ``SELECT … FOR UPDATE``, and savepoints. A flavor knows how to
connect with bounds on every wait, how a transaction begins and commits, what an error means, how a feed's epoch
is raised, and whose session is in the way. It holds no state of a session.

An error that the driver says nothing of counts as `ErrorScope.UNAVAILABLE`; one with a code of the standard means
what it means in PostgreSQL, and an unknown code that a record is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    URL,
    Connection,
    Insert,
    Inspector,
    Select,
    Table,
    and_,
    bindparam,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from feedq.model import FeedKey
from feedq.sinks.landing import TableName
from feedq.sinks.sql.column_values import Conversion, conversion
from feedq.sinks.sql.table_definitions import checkpoint, utc_now
from feedq.sinks.sqlstate import ERROR_TEXT_MAX, ErrorScope, classify_code, is_known

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 60
"""For an answer of the server to anything; longer than every wait that we ask it for."""
FEEDS_AT_ONCE: Final = 500
"""Feeds named in one statement: databases bound the parameters of one."""

_OF_MYSQL_DRIVERS: Final = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "read_timeout": READ_TIMEOUT_S,
    "write_timeout": READ_TIMEOUT_S,
}
_CONNECT_ARGS: Final[Mapping[str, Mapping[str, int]]] = {
    "pymysql": _OF_MYSQL_DRIVERS,
    "mysqldb": _OF_MYSQL_DRIVERS,
    "mariadbconnector": _OF_MYSQL_DRIVERS,
    "mysqlconnector": {"connection_timeout": CONNECT_TIMEOUT_S},
    "psycopg": {"connect_timeout": CONNECT_TIMEOUT_S},
    "psycopg2": {"connect_timeout": CONNECT_TIMEOUT_S},
    "oracledb": {"tcp_connect_timeout": CONNECT_TIMEOUT_S},
}
"""By driver; others wait as long as they please unless the URL says otherwise."""


class Flavor:
    """A database that nothing special is known of."""

    isolation: str | None = None
    """What sessions ask for; ``AUTOCOMMIT`` where `begin` and `commit` are statements of ours."""
    waits_for_locks = False
    """Whether `set_lock_wait` bounds the waits for rows; where nothing does, there must be none."""
    lock_timeout_s = 1.0
    """For a checkpoint or a table that somebody has locked, before its feeds are postponed."""
    locks_all = False
    """Whether a transaction that writes locks all that there is: then a lock in the way is in everybody's."""
    system_schemas: frozenset[str] = frozenset({"information_schema", "crdb_internal", "sys", "system"})
    """Those that the database keeps about itself."""
    upserts_by_key = True
    """Whether `upsert` looks at the key that it is given, and at no other."""

    # -- sessions ------------------------------------------------------------------------------------

    def connect_args(self, url: URL, driver: str) -> dict[str, Any]:
        """What bounds the driver's waits, but for what the URL says itself."""
        return {name: value for name, value in _CONNECT_ARGS.get(driver, {}).items() if name not in url.query}

    def set_up(self, connection: Connection, *, role: str, worker_id: UUID) -> int | None:
        """Make a new session ours; returns its number at the server if it can be ended by that."""
        return None

    def begin(self, connection: Connection) -> None:
        # What was read before may have begun one.
        connection.rollback()
        connection.begin()

    def commit(self, connection: Connection) -> None:
        connection.commit()

    def rollback(self, connection: Connection) -> None:
        connection.rollback()

    def set_lock_wait(self, connection: Connection, seconds: float) -> None:
        """Bound the waits for locks from here on. Here the database's own settings have to do."""

    def check_at_once(self, connection: Connection) -> None:
        """Have constraints that are deferred to the commit checked with each statement of the transaction."""
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def record_bytes_max(self, connection: Connection) -> int | None:
        """The longest record that a statement may carry."""
        return None

    # -- errors --------------------------------------------------------------------------------------

    def trouble(self, error: SQLAlchemyError) -> ErrorScope:
        if not isinstance(error, DBAPIError):
            # A value that SQLAlchemy or the driver cannot even send.
            return ErrorScope.DATA
        if error.connection_invalidated:
            return ErrorScope.UNAVAILABLE
        code = sqlstate_of(error)
        if code is not None:
            return classify_code(code)
        return by_class(error)

    def refused_commit(self, error: SQLAlchemyError) -> bool:
        """Whether a commit that failed with this has surely not happened; else nobody knows."""
        if not isinstance(error, DBAPIError) or self.trouble(error) not in (
            ErrorScope.CONFLICT,
            ErrorScope.DATA,
        ):
            return False
        code = sqlstate_of(error)
        return code is None or is_known(code)

    def row_of(self, error: SQLAlchemyError) -> int | None:
        """The row of a statement, from 0, that the database stopped at. A hint, nothing more."""
        return None

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(
        self, connection: Connection, environment: str, keys: Sequence[FeedKey]
    ) -> dict[FeedKey, str | None]:
        """Lock the checkpoints of exactly these feeds under these epochs, in the order of their ids, to the
        end of the transaction. Returns the ``commit_id`` of each that there is."""
        mine: dict[FeedKey, str | None] = {}
        ordered = sorted(keys)
        for start in range(0, len(ordered), FEEDS_AT_ONCE):
            part = ordered[start : start + FEEDS_AT_ONCE]
            statement = self.locking(environment, [feed_id for feed_id, _ in part])
            # The ids find the rows by the key, and the pairs leave a successor's rows alone.
            pairs = tuple_(checkpoint.c.feed_id, checkpoint.c.epoch).in_(part)
            found = connection.execute(statement.where(pairs))
            mine |= {(row.feed_id, row.epoch): row.commit_id for row in found}
        return mine

    def epochs(self, connection: Connection, environment: str, ids: Sequence[int]) -> dict[int, int]:
        """The epochs of these feeds in the sink, of those that it knows."""
        found: dict[int, int] = {}
        for start in range(0, len(ids), FEEDS_AT_ONCE):
            part = ids[start : start + FEEDS_AT_ONCE]
            statement = select(checkpoint.c.feed_id, checkpoint.c.epoch).where(
                checkpoint.c.environment == environment, checkpoint.c.feed_id.in_(part)
            )
            found |= {row.feed_id: row.epoch for row in connection.execute(statement)}
        return found

    def locking(
        self, environment: str, feed_ids: Sequence[int], *, skip_locked: bool = False
    ) -> Select[*tuple[Any, ...]]:
        """A SELECT that locks the checkpoints of these feeds, in the order of their ids."""
        return (
            select(checkpoint.c.feed_id, checkpoint.c.epoch, checkpoint.c.commit_id)
            .where(checkpoint.c.environment == environment, checkpoint.c.feed_id.in_(feed_ids))
            .order_by(checkpoint.c.feed_id)
            .with_for_update(nowait=not self.waits_for_locks and not skip_locked, skip_locked=skip_locked)
        )

    def advance(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Move checkpoints that this transaction has locked. Rows have all columns but ``updated_at``."""
        statement = (
            update(checkpoint)
            .where(checkpoint.c.environment == parameter("environment"))
            .where(checkpoint.c.feed_id == parameter("feed_id"))
            .where(checkpoint.c.epoch == parameter("epoch"))
            .values(
                cursor=parameter("cursor", checkpoint.c.cursor),
                records=checkpoint.c.records + parameter("records"),
                commit_id=parameter("commit_id"),
                updated_at=utc_now(),
            )
        )
        names = ("environment", "feed_id", "epoch", "cursor", "records", "commit_id")
        moved = connection.execute(statement, [{f"this_{name}": row[name] for name in names} for row in rows])
        if connection.dialect.supports_sane_multi_rowcount:
            assert moved.rowcount == len(rows), "a locked checkpoint did not advance"

    def free(self, connection: Connection, environment: str, ids: Sequence[int]) -> Collection[int]:
        """Those of the feeds whose checkpoints nobody has locked, or that have none. Ends the transaction."""
        known = select(checkpoint.c.feed_id).where(
            checkpoint.c.environment == environment, checkpoint.c.feed_id.in_(ids)
        )
        there = set(connection.scalars(known))
        free = set(connection.scalars(self.locking(environment, ids, skip_locked=True)))
        self.rollback(connection)
        return set(ids) - (there - free)

    def fence(self, connection: Connection, rows: Sequence[Mapping[str, Any]], *, wait_s: float) -> None:
        """Raise the epochs of all these feeds that have a smaller one, or none of them. Raises `SQLAlchemyError`.

        An owner may fence its own epoch again. Rows have ``environment, feed_id, feed, epoch, owner, commit_id``,
        ``feed_uuid`` and ``installation``, in the order of the ids. What became of each is to be read afterwards:
        those that were fenced have the ``commit_id`` that was given.
        """
        self.set_lock_wait(connection, wait_s)
        self.begin(connection)
        there = connection.scalars(self.locking(rows[0]["environment"], [row["feed_id"] for row in rows]))
        missing = {row["feed_id"] for row in rows} - set(there)
        new = [{**row, "records": 0} for row in rows if row["feed_id"] in missing]
        if new:
            connection.execute(insert(checkpoint), new)
        old = [row for row in rows if row["feed_id"] not in missing]
        if old:
            connection.execute(
                update(checkpoint)
                .where(checkpoint.c.environment == parameter("environment"))
                .where(checkpoint.c.feed_id == parameter("feed_id"))
                .where(
                    or_(
                        checkpoint.c.epoch < parameter("epoch"),
                        and_(
                            checkpoint.c.epoch == parameter("epoch"), checkpoint.c.owner == parameter("owner")
                        ),
                    )
                )
                .values(
                    epoch=parameter("epoch"),
                    owner=parameter("owner"),
                    feed=parameter("feed"),
                    commit_id=parameter("commit_id"),
                    feed_uuid=func.coalesce(
                        parameter("feed_uuid", checkpoint.c.feed_uuid), checkpoint.c.feed_uuid
                    ),
                    installation=func.coalesce(
                        parameter("installation", checkpoint.c.installation), checkpoint.c.installation
                    ),
                    updated_at=utc_now(),
                ),
                [{f"this_{name}": value for name, value in row.items()} for row in old],
            )
        self.commit(connection)

    # -- sessions of others --------------------------------------------------------------------------

    def end_workers(self, connection: Connection, worker_ids: Collection[UUID]) -> int:
        """End the sessions of these workers. Returns how many; 0 where no session can be told from another."""
        return 0

    def end_session(self, connection: Connection, number: int, *, role: str, worker_id: UUID) -> None:
        """End a session of ours that was lost, if it still is there."""

    # -- landings ------------------------------------------------------------------------------------

    def is_system(self, name: TableName, default_schema: str | None) -> bool:
        """Whether a table is one that the database keeps about itself."""
        schema = (name.schema or default_schema or "").casefold()
        # In PostgreSQL and its like a name without a schema is looked for among the catalogs first.
        as_catalog = schema if name.schema else name.name
        return schema in self.system_schemas or as_catalog.startswith("pg_")

    def unfit_table(self, connection: Connection, inspector: Inspector, name: TableName) -> str | None:
        """Why nothing can land in a table, as the end of a sentence that begins with it."""
        return None

    def json_columns(self, connection: Connection, name: TableName) -> Collection[str]:
        """Columns that hold JSON although their type does not say so."""
        return ()

    def own_columns(self, columns: Sequence[ReflectedColumn], primary: Sequence[str]) -> Collection[str]:
        """Columns that the database fills although nothing says so."""
        return ()

    def conversion(self, column_type: Any, *, is_json: bool) -> Conversion:
        """How texts become values of a column."""
        return conversion(column_type)

    def upsert(self, table: Table, *, key: Sequence[str], replaced: Sequence[str]) -> Insert | None:
        """An INSERT that leaves a row of the same key alone but for the columns ``replaced``; None when there is
        no such statement."""
        return None


def parameter(name: str, column: Any = None) -> Any:
    """A parameter of an UPDATE; SQLAlchemy keeps the columns' own names for itself."""
    return bindparam(f"this_{name}", type_=None if column is None else column.type)


def by_class(error: DBAPIError) -> ErrorScope:
    """What the driver calls the error, which tells little."""
    if isinstance(error, IntegrityError | DataError):
        return ErrorScope.DATA
    if isinstance(error, ProgrammingError):
        return ErrorScope.LANDING
    return ErrorScope.UNAVAILABLE


def sqlstate_of(error: DBAPIError) -> str | None:
    """The standard's five characters, where the driver gives them."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error.orig, name, None)
        if isinstance(code, str) and len(code) == len("00000"):
            return code
    return None


def explain(error: SQLAlchemyError) -> str:
    """What the database said, on one line, without the statement and its values."""
    said = getattr(error, "orig", None) or error
    arguments: tuple[Any, ...] = getattr(said, "args", ())
    if len(arguments) == 2 and isinstance(arguments[0], int) and isinstance(arguments[1], str):
        text = f"{arguments[1]} ({arguments[0]})"
    else:
        text = str(said)
    return " ".join(text.replace("\0", "").split())[:ERROR_TEXT_MAX]
