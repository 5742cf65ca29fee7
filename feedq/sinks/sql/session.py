"""What sessions with MariaDB, MySQL and SQLite have in common: the hot statements of the ledger, and what they say
of tables and columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

from sqlalchemy import URL, ColumnCollection, Insert, Inspector, Table, and_, case, false, or_, tuple_
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import SQLAlchemyError

from feedq.core.model import FeedKey
from feedq.sinks.base import FeedWrite
from feedq.sinks.session import SinkSession, c, parts
from feedq.sinks.sql.column_values import Conversion
from feedq.sinks.table_definitions import checkpoint, utc_now
from feedq.sinks.target_table import TableName

NewValues = Callable[[ColumnCollection[str, Any]], Mapping[str, Any]]
"""What a row whose key is there already gets, by column, from the row that was to be inserted."""
CHECKPOINT_KEY: Final = ("environment", "feed_id")


class SqlSession(SinkSession):
    """A session whose rows are inserted, with values converted to the types of their columns."""

    driver: ClassVar[str]
    """The one that is tested."""
    upserts_by_key: ClassVar[bool] = True
    """Whether `upsert` looks at the key that it is given, and at no other."""

    @classmethod
    @abstractmethod
    def connect_args(cls, url: URL) -> dict[str, Any]:
        """What bounds the driver's waits. Raises `InvalidInput` for a URL that leads to no database."""

    def row_of(self, error: SQLAlchemyError) -> int | None:
        """The row of a statement, from 0, that the database stopped at. A hint, nothing more."""
        return None

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(self, writes: Sequence[FeedWrite], *, check_at_once: bool) -> set[FeedKey]:
        self.begin()
        if check_at_once:
            self.check_at_once()
        found: dict[FeedKey, str | None] = {}
        for part in parts(sorted(write.key for write in writes)):
            # The ids find the rows by the key, and the pairs leave a successor's rows alone.
            pairs = tuple_(c.feed_id, c.epoch).in_(part)
            rows = self.execute(self.locking([feed_id for feed_id, _ in part], skip_locked=True).where(pairs))
            found |= {(row.feed_id, row.epoch): row.commit_id for row in rows}
        self.has_begun = True
        return {
            write.key
            for write in writes
            if write.key not in found
            or (write.continues is not None and found[write.key] != str(write.continues))
        }

    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        rows = [
            {
                "environment": self.environment,
                "feed_id": write.feed_id,
                "feed": write.feed,
                "epoch": write.epoch,
                "owner": str(self.worker_id),
                "cursor": self.cursor_text(write.cursor),
                "records": landed[write.key],
                "commit_id": str(commit_id),
                "feed_uuid": "",
                "installation": "",
            }
            for write in writes
        ]
        # The rows are there and locked by us: an upsert changes many of them in one statement, each by values of
        # its own, which UPDATE cannot do. What is not changed is only there since it may not be NULL.
        self.execute(self.upsert(checkpoint, CHECKPOINT_KEY, _advanced), rows)

    def _fence(self, rows: Sequence[Mapping[str, Any]], *, lock_timeout_s: float) -> None:
        self.execute(self.upsert(checkpoint, CHECKPOINT_KEY, _raised), rows)

    @classmethod
    @abstractmethod
    def upsert(cls, table: Table, key: Sequence[str], change: NewValues) -> Insert:
        """An INSERT that changes a row whose key is there already, or leaves it alone if ``change`` is empty."""

    # -- targets -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def is_system(cls, name: TableName, default_schema: str | None) -> bool:
        """Whether a table is one that the database keeps about itself."""

    @abstractmethod
    def unfit_table(self, inspector: Inspector, name: TableName) -> str | None:
        """Why nothing can land in a table, as the end of a sentence that begins with it."""

    @abstractmethod
    def fingerprint(self, name: TableName) -> Any:
        """What changes when the columns of a table do, and when it is made anew; None when there is none."""

    def json_columns(self, name: TableName) -> Collection[str]:
        """Columns that hold JSON although their type does not say so."""
        return ()

    def own_columns(self, columns: Sequence[ReflectedColumn], primary: Sequence[str]) -> Collection[str]:
        """Columns that the database fills although nothing says so."""
        return ()

    @classmethod
    @abstractmethod
    def conversion(cls, column_type: Any, *, is_json: bool) -> Conversion:
        """How texts become values of a column."""

    @classmethod
    def bends_null(cls, column_type: Any) -> bool:
        """Whether a NULL for a column of this type that is NOT NULL becomes something else, without an error."""
        return False


def _advanced(new: ColumnCollection[str, Any]) -> Mapping[str, Any]:
    """A checkpoint after a commit."""
    return {
        "cursor": new.cursor,
        "records": checkpoint.c.records + new.records,
        "commit_id": new.commit_id,
        "is_given": false(),
        "updated_at": utc_now(),
    }


def _raised(new: ColumnCollection[str, Any]) -> Mapping[str, Any]:
    """A checkpoint after a fence, which raises a smaller epoch, or one's own."""
    old = checkpoint.c
    raises = or_(new.epoch > old.epoch, and_(new.epoch == old.epoch, new.owner == old.owner))
    values = {
        "updated_at": utc_now(),
        # MySQL changes one column after the other: the last two are what the condition asks for.
        **{name: new[name] for name in ("feed", "feed_uuid", "installation", "commit_id", "owner", "epoch")},
    }
    return {name: case((raises, value), else_=old[name]) for name, value in values.items()}
