"""Plans how records with a key get into one target in PostgreSQL: straight, or by way of a staging table.

With a key a single row of each is in the table, which is what a staging table is for: rows are copied there and
inserted from it with ``ON CONFLICT``. There they carry a number in order of arrival, since a heap gives them
back in any: the first row of a key is the one that stays, or with ``update`` the last.

That is three times the work of a COPY into the table itself, which does the same as long as no key is there
already. So that is tried first, and a violated constraint has the attempt repeated by way of the staging table.
What was copied until then is dead weight in table and index, so a `Detour` has the groups after it take that way
at once: a source that repeats itself is not tried over and over.

A staging table is made by the first transaction that takes that way. It lives as long as its session and empties
itself at every commit: one made in each transaction would churn the system catalog several times a second. A
transaction that copies straight never touches it: otherwise its commit would empty all staging tables of the
session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from psycopg2 import errorcodes, sql

from feedq.sinks.base import FeedWrite, OnConflict, Target
from feedq.sinks.copyplan import CopyPlan, Detour, listed
from feedq.sinks.copytext import SetAside
from feedq.sinks.target_table import TableShape

if TYPE_CHECKING:
    from feedq.sinks.postgresql import PostgresSession

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


class KeyedCopyPlan(CopyPlan):
    """A plan for one target with a key, with its staging table."""

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
        self._insert = session.rendered(self._insertion())

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
        self.session.query(self._insert)

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

    def _insertion(self) -> sql.Composed:
        updates = self.target.on_conflict is OnConflict.UPDATE
        return sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {source} ORDER BY {ordinal} "
            "ON CONFLICT ({key}) DO {action}"
        ).format(
            table=self._table,
            columns=listed(self.columns),
            source=self._last_of_each() if updates else self._staging_table,
            ordinal=sql.Identifier(self._ordinal),
            key=listed(self.target.key),
            action=self._replacement() if updates else sql.SQL("NOTHING"),
        )

    def _last_of_each(self) -> sql.Composed:
        """Selects the last row of each key, since one statement may change a row once only. Rows with NULL in
        their key are no duplicates of another."""
        key = self.target.key
        nulls = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in key)
        return sql.SQL(
            "(SELECT DISTINCT ON ({key}, CASE WHEN {nulls} THEN {ordinal} END) * FROM {stage} "
            "ORDER BY {key}, CASE WHEN {nulls} THEN {ordinal} END, {ordinal} DESC) AS latest"
        ).format(
            key=listed(key), nulls=nulls, ordinal=sql.Identifier(self._ordinal), stage=self._staging_table
        )

    def _replacement(self) -> sql.Composed:
        """The key is set, too: equal is not always the same, 1.0 and 1.00 for one."""
        return sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in self.columns
            )
        )
