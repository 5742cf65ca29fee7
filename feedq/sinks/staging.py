"""Landing with a key, by way of a staging table: of the rows with one key a single one is in the table.

Rows are copied into the staging table and inserted from there with ``ON CONFLICT``. There they carry a number
in order of arrival, since a heap gives them back in any: the first row of a key is the one that stays, or
with ``update`` the last.

That is three times the work of a COPY into the table itself, which does the same as long as no key is there
already. So that is tried first, and a violated constraint sends the rows by way of the staging table after all
(`feedq.sinks.plan`). What was copied until then is dead weight in table and index, so a `Detour` has the groups
after it take that way at once, the more of them the more often they meet keys that are there: a source that
repeats itself is not tried over and over.

A staging table lives as long as its session and empties itself at every commit: one made in each
transaction would churn the system catalog several times a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from feedq.sinks.base import Landing, OnConflict
from feedq.sinks.landing import TableShape
from feedq.sinks.session import SinkSession

ORDINAL: Final = "feedq_ordinal"
DETOUR_FIRST: Final = 8
DETOUR_MAX: Final = 4_096
"""Groups, hence some minutes at full speed: so late is it noticed that a source repeats itself no longer."""


class Detour:
    """Counts the groups that go by way of the staging table without trying the table itself."""

    def __init__(self) -> None:
        self._left = 0
        self._length = DETOUR_FIRST

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def pass_one(self) -> None:
        self._left = max(0, self._left - 1)

    def begin(self) -> None:
        """A key was there already."""
        self._left = self._length
        self._length = min(2 * self._length, DETOUR_MAX)

    def shorten(self) -> None:
        """None was."""
        self._length = max(self._length // 2, DETOUR_FIRST)


class StagingTable:
    """The staging table of one landing, in one session. Methods raise `psycopg2.Error`."""

    def __init__(self, landing: Landing, shape: TableShape, columns: Sequence[str], *, name: str) -> None:
        self._shape = shape
        self._columns = columns
        self._ordinal = ORDINAL
        while self._ordinal in columns:
            self._ordinal += "_"
        self.identifier = sql.Identifier("pg_temp", name)
        self._insert = self._insertion(landing)

    def create(self, session: SinkSession) -> None:
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(self._shape.columns[name].definition))
            for name in self._columns
        ]
        # Cached: a number costs a row nothing that could be measured.
        columns.append(
            sql.SQL("{} bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)").format(
                sql.Identifier(self._ordinal)
            )
        )
        session.execute(
            sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DELETE ROWS").format(
                self.identifier, sql.SQL(", ").join(columns)
            )
        )

    def clear(self, session: SinkSession) -> None:
        """Forget what was copied before in this transaction."""
        session.execute(sql.SQL("DELETE FROM {}").format(self.identifier))

    def drop(self, session: SinkSession) -> None:
        session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.identifier))

    def insert(self, session: SinkSession) -> None:
        """Put the rows into the table, in order of arrival."""
        session.execute(self._insert)

    def _insertion(self, landing: Landing) -> sql.Composed:
        updates = landing.on_conflict is OnConflict.UPDATE
        return sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {source} ORDER BY {ordinal} "
            "ON CONFLICT ({key}) DO {action}"
        ).format(
            table=self._shape.identifier,
            columns=_listed(self._columns),
            source=self._last_of_each(landing.key) if updates else self.identifier,
            ordinal=sql.Identifier(self._ordinal),
            key=_listed(landing.key),
            action=self._replacement() if updates else sql.SQL("NOTHING"),
        )

    def _last_of_each(self, key: Sequence[str]) -> sql.Composed:
        """One statement may change a row once only. Rows with NULL in their key are no duplicates of another."""
        nulls = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in key)
        return sql.SQL(
            "(SELECT DISTINCT ON ({key}, CASE WHEN {nulls} THEN {ordinal} END) * FROM {stage} "
            "ORDER BY {key}, CASE WHEN {nulls} THEN {ordinal} END, {ordinal} DESC) AS latest"
        ).format(key=_listed(key), nulls=nulls, ordinal=sql.Identifier(self._ordinal), stage=self.identifier)

    def _replacement(self) -> sql.Composed:
        """The key is set, too: equal is not always the same, 1.0 and 1.00 for one."""
        return sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in self._columns
            )
        )


def _listed(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
