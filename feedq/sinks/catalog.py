"""What a session knows of the tables that records land in.

Landings are looked at when they are first needed, judged by `feedq.sinks.landing`, and remembered until
`Catalog.refresh` finds them changed. Only a fence creates tables: what disappears while a feed is being written
was taken away by a person, who should be asked and not overruled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from feedq.errors import InvalidInput
from feedq.model import FeedKey
from feedq.sinks.base import DeadRecord, FeedWrite, Landing, SuspectRecord
from feedq.sinks.isolate import FailedAttempt
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.landing import TableName, TableShape, misdeclared
from feedq.sinks.reserved import why_nowhere
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


class Catalog(ABC):
    """Landings as one session sees them. Methods raise the session's errors."""

    def __init__(self) -> None:
        self._plans: dict[Landing, LandingPlan[Any]] = {}

    def plan(self, landing: Landing) -> LandingPlan[Any]:
        """How to write to a landing that `problems` found nothing wrong with."""
        return self._plans[landing]

    def inspect(self, landing: Landing) -> LandingPlan[Any]:
        """How to write to a landing, looked at anew. Raises `InvalidInput` when it cannot work."""
        self.refresh([landing])
        if why := self.get_ready([landing]).get(landing):
            raise InvalidInput(why)
        return self._plans[landing]

    def problems(self, landings: Iterable[Landing], *, create: bool) -> dict[Landing, str]:
        """Those that cannot work, and why. With ``create``, default landing tables that are missing are made."""
        unknown = {landing for landing in landings if landing not in self._plans}
        if not unknown:
            return {}
        wrong = {landing: why for landing in unknown if (why := self.misdeclared(landing))}
        unknown -= wrong.keys()
        shapes = self.describe(unknown)
        if create:
            missing = [landing for landing in unknown if landing not in shapes and not landing.is_mapped]
            wrong |= {landing: why for landing in missing if (why := self.create(landing))}
            shapes |= self.describe(missing)
        for landing in unknown - wrong.keys():
            shape = shapes.get(landing)
            if why := self.judge(landing, shape):
                wrong[landing] = why
            elif shape is not None:
                try:
                    self._plans[landing] = self.make_plan(landing, shape)
                except UnreadableRecord as unfit:
                    wrong[landing] = f"table {landing.table!r}: {unfit}"
        return wrong

    def get_ready(self, landings: Collection[Landing]) -> dict[Landing, str]:
        """Make sure that these can be written to now; returns those that cannot, and why."""
        return self.problems(landings, create=False)

    def refresh(self, landings: Iterable[Landing]) -> None:
        """Forget those whose tables have changed since they were looked at."""
        known = [landing for landing in landings if landing in self._plans]
        shapes = self.describe(known)
        for landing in known:
            if shapes.get(landing) != self._plans[landing].shape:
                self.forget(landing)

    def forget(self, landing: Landing) -> None:
        """Look at the landing before it is next used."""
        self._plans.pop(landing, None)

    def is_yet_to_be_made(self, landing: Landing) -> bool:
        """Whether this is a default landing whose table the first fence will make. Raises `InvalidInput`."""
        if why := self.misdeclared(landing):
            raise InvalidInput(why)
        return not landing.is_mapped and not self.describe([landing])

    def misdeclared(self, landing: Landing) -> str | None:
        """What is wrong with the landing whatever the database holds; None when nothing is."""
        return misdeclared(landing, self.why_reserved)

    def why_reserved(self, table: TableName) -> str | None:
        """Why no records may land in a table of this name; None when they may."""
        return why_nowhere(f"{table.schema}.{table.name}" if table.schema else table.name)

    def why_unmakeable(self, landing: Landing) -> str | None:
        """Why a fence could not make the table of this default landing, as far as that can be told."""
        return None

    @abstractmethod
    def unkeepable(self, write: FeedWrite) -> str | None:
        """Why nothing of a write can be kept, be it as a dead letter; None when it can."""

    @abstractmethod
    def describe(self, landings: Collection[Landing]) -> dict[Landing, TableShape]:
        """The tables of these landings as they are, of those that there are."""

    @abstractmethod
    def judge(self, landing: Landing, shape: TableShape | None) -> str | None:
        """Why the landing cannot work with the table as it is; None when it can."""

    @abstractmethod
    def create(self, landing: Landing) -> str | None:
        """Make the table of a default landing. Returns why that is not possible; None when it is there."""

    @abstractmethod
    def make_plan(self, landing: Landing, shape: TableShape) -> LandingPlan[Any]:
        """Raises `UnreadableRecord` for a constant that its column does not take."""

    @abstractmethod
    def imagine(self, landing: Landing) -> tuple[LandingPlan[Any], bool]:
        """How to write to a default landing whose table is yet to be made, and whether records can be landed
        there in the transaction that this has begun. Raises `InvalidInput`."""
