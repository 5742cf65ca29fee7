"""What a session knows of its database: feedq's own tables, and the landings it has looked at.

Landings are looked at one by one, judged by `feedq.sinks.sql.shape`, and remembered until `SqlCatalog.look_again`.
Only a fence creates tables: what disappears while a feed is being written was taken away by a person, who
should be asked and not overruled.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Inspector, Table, inspect
from sqlalchemy.exc import SQLAlchemyError

from feedq.errors import InvalidInput
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.landing import TableName
from feedq.sinks.sql.column_values import Unfit
from feedq.sinks.sql.flavor import explain
from feedq.sinks.sql.plan import InsertPlan
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.shape import SqlTableShape, describe, misdeclared, problem, shape_of
from feedq.sinks.sql.table_definitions import checkpoint, dead_letter, exists, lacking, landing_table
from feedq.sinks.sqlstate import ErrorScope


class SqlCatalog:
    """Landings as this session sees them. Methods raise `SQLAlchemyError`."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._plans: dict[Landing, InsertPlan] = {}
        self._has_bookkeeping = False
        self._record_bytes_max = session.flavor.record_bytes_max(session.connection)

    def ensure_bookkeeping(self) -> None:
        """Create feedq's own tables if they are not there."""
        if not self._has_bookkeeping:
            self._session.set_lock_wait(self._session.flavor.lock_timeout_s)
            for table in (checkpoint, dead_letter):
                self._make(table)
            self._upgrade()
            self._has_bookkeeping = True

    def plan(self, landing: Landing) -> InsertPlan:
        """How to write to a landing. Raises `InvalidInput` when it cannot work."""
        if wrong := self.problems([landing], create=False):
            raise InvalidInput(wrong[landing])
        return self._plans[landing]

    def imagined(self, landing: Landing) -> InsertPlan:
        """How to write to a default landing whose table is yet to be made. Raises `InvalidInput`."""
        if why := misdeclared(landing):
            raise InvalidInput(why)
        return InsertPlan(
            landing, shape_of(landing_table(landing), self._session.connection), self._session.flavor
        )

    def problems(self, landings: Iterable[Landing], *, create: bool) -> dict[Landing, str]:
        """Those that cannot work, and why. With ``create``, default landing tables that are missing are made."""
        unknown = [landing for landing in landings if landing not in self._plans]
        # One for all of them: it remembers what it has asked the database.
        inspector = self._inspector() if unknown else None
        self._session.set_lock_wait(self._session.flavor.lock_timeout_s)
        wrong: dict[Landing, str] = {}
        for landing in unknown:
            assert inspector is not None
            if why := self._look(inspector, landing, create=create):
                wrong[landing] = why
        return wrong

    def exists(self, landing: Landing) -> bool:
        return misdeclared(landing) is None and self._describe(self._inspector(), landing) is not None

    def look_again(self, landings: Iterable[Landing]) -> None:
        """Forget what is known of them."""
        for landing in landings:
            self._plans.pop(landing, None)

    def unsendable(self, write: FeedWrite) -> str | None:
        """Why a record of it cannot even be kept as a dead letter."""
        limit = self._record_bytes_max
        if limit is None:
            return None
        for batch in write.batches:
            if batch.size > limit and (longest := max(map(len, batch.split()))) > limit:
                return (
                    f"a record of {longest} bytes is longer than this server takes ({limit}): raise its "
                    "max_allowed_packet to more than twice that"
                )
        return None

    def _look(self, inspector: Inspector, landing: Landing, *, create: bool) -> str | None:
        if why := misdeclared(landing):
            return why
        shape = self._describe(inspector, landing)
        if shape is None and create and not landing.is_mapped:
            if why := self._create(landing):
                return why
            inspector.clear_cache()
            shape = self._describe(inspector, landing)
        if why := problem(landing, shape):
            return why
        assert shape is not None
        try:
            self._plans[landing] = InsertPlan(landing, shape, self._session.flavor)
        except Unfit as unfit:
            return f"table {landing.table!r}: {unfit}"
        return None

    def _inspector(self) -> Inspector:
        return inspect(self._session.connection)

    def _describe(self, inspector: Inspector, landing: Landing) -> SqlTableShape | None:
        try:
            return describe(self._session.connection, inspector, self._session.flavor, landing)
        finally:
            self._end()

    def _create(self, landing: Landing) -> str | None:
        """Why the default landing cannot be made; None when it is there."""
        table = landing_table(landing)
        if unknown := [name for name in landing.key if name not in table.c]:
            return f"sink.key: {unknown[0]!r} is not among the columns written: {', '.join(table.c.keys())}"
        try:
            self._make(table)
        except SQLAlchemyError as error:
            self._session.rollback()
            if self._session.flavor.trouble(error) not in (ErrorScope.LANDING, ErrorScope.DATA):
                raise
            schema = TableName.parse(landing.table).schema
            where = f"in {schema!r} " if schema else ""
            return (
                f"table {landing.table!r} does not exist and cannot be created {where}({explain(error)}): "
                "create it, or have somebody permit it"
            )
        return None

    def _make(self, table: Table) -> None:
        """Make a table if it is missing; of two sessions that do so at the same moment, one finds it there."""
        session = self._session
        if self._exists(table):
            return
        try:
            session.flavor.begin(session.connection)
            table.create(session.connection)
            session.flavor.commit(session.connection)
        except SQLAlchemyError:
            session.rollback()
            if session.is_broken or not self._exists(table):
                raise

    def _upgrade(self) -> None:
        """Bring the checkpoints of an earlier release up to this one; of two sessions at it, one finds it done."""
        session = self._session
        for last in (False, True):
            try:
                wanted = lacking(session.connection)
                self._end()
                if not wanted:
                    return
                session.flavor.begin(session.connection)
                for statement in wanted:
                    if isinstance(statement, str):
                        session.connection.exec_driver_sql(statement)
                    else:
                        session.execute(statement)
                session.flavor.commit(session.connection)
            except SQLAlchemyError:
                session.rollback()
                if last or session.is_broken:
                    raise

    def _exists(self, table: Table) -> bool:
        try:
            return exists(self._session.connection, table)
        finally:
            self._end()

    def _end(self) -> None:
        """Have what was read outside of `SqlSession.begin` over with, where that began a transaction, too."""
        if self._session.flavor.isolation is None:
            self._session.rollback()
