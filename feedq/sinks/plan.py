"""What a plan for a landing can do: bring records into its table, all that it is given or none of them.

`CopyPlan` copies whole batches into PostgreSQL; `InsertPlan` inserts rows into any other database. What is common
to them here is how a group commit and a replay ask for it, and what they are told when it fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from feedq.model import FeedKey
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.deadletters import DeadRecord, SuspectRecord
from feedq.sinks.isolate import FailedAttempt
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.landing import TableShape
from feedq.sinks.session import SinkSession
from feedq.sinks.sqlstate import ErrorScope

Prepared = TypeVar("Prepared")
"""What of one feed's write is ready to land."""


class LandingBroken(Exception):
    """The table cannot be written, whatever the records."""


class NotNow(Exception):
    """The table cannot be written at this moment, though perhaps later: locked, no room on its disk."""

    def __init__(self, said: str, scope: ErrorScope, error: Exception) -> None:
        super().__init__(said)
        self.scope, self.error = scope, error


class ReadyRecord(NamedTuple):
    """A record that can be landed by itself."""

    suspect: SuspectRecord
    values: dict[str, Any] | None = None
    """Where rows are made before they are sent."""


class LandingPlan(ABC, Generic[Prepared]):
    """How records get into one landing on one session."""

    def __init__(self, session: SinkSession, landing: Landing, shape: TableShape) -> None:
        self.session = session
        self.landing = landing
        self.shape = shape

    @abstractmethod
    def prepare(
        self, writes: Sequence[FeedWrite], doubtful: Collection[FeedKey]
    ) -> tuple[Sequence[Prepared], list[DeadRecord]]:
        """What can be tried of each write, in order, and records that cannot land. ``doubtful`` feeds had bad
        records not long ago: they are looked through, where that costs something."""

    @abstractmethod
    def land(self, prepared: Sequence[Prepared]) -> None:
        """Write whole feeds. Raises the session's errors, `UnreadableRecord`."""

    @abstractmethod
    def count(self, prepared: Prepared) -> int:
        """How many records it has."""

    def sift(self, prepared: Prepared) -> tuple[Prepared, list[DeadRecord]]:
        """The same without records that a quick look finds and that cannot land; these."""
        return prepared, []

    @abstractmethod
    def split(self, prepared: Prepared) -> tuple[list[ReadyRecord], list[DeadRecord]]:
        """Its records one by one: those that may land, and those that cannot."""

    @abstractmethod
    def ready(self, suspect: SuspectRecord) -> ReadyRecord:
        """A record, to be landed by itself. Raises `UnreadableRecord`."""

    @abstractmethod
    def land_records(self, records: Sequence[ReadyRecord]) -> None:
        """Write these records. Raises the session's errors, `UnreadableRecord`."""

    @abstractmethod
    def texts(self, suspect: SuspectRecord) -> dict[str, str | None]:
        """A row by its columns, as texts; None is NULL. Raises `UnreadableRecord`."""

    @abstractmethod
    def row_of(self, error: Any) -> int | None:
        """The row, from 0, that the database stopped at when it was last written. A hint, nothing more."""

    def clear(self) -> None:
        """Forget what attempts before this one left behind."""

    def attempt(self, land: Callable[[], None]) -> FailedAttempt | None:
        """Land under a savepoint: all of what is given, or nothing and the reason.

        Raises `LandingBroken`, `NotNow`, and the session's errors for what savepoints cannot mend.
        """
        session = self.session
        try:
            with session.savepoint("feedq_attempt"):
                self.clear()
                land()
        except UnreadableRecord as unreadable:
            return FailedAttempt(str(unreadable))
        except session.errors as error:
            if session.is_broken or not session.can_undo(error):
                raise
            scope, said, table = session.scope(error), session.explain(error), repr(self.landing.table)
            if scope is ErrorScope.LANDING:
                raise LandingBroken(
                    f"table {table} cannot be written: {said}; mend the table or edit the feed"
                ) from error
            if scope is not ErrorScope.DATA:
                raise NotNow(f"table {table}: {said}", scope, error) from error
            return FailedAttempt(said, self.row_of(error))
        return None
