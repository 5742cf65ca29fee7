"""What a session knows of the tables that records land in.

Landings are looked at when they are first needed, judged by `feedq.sinks.landing`, and remembered until
`Catalog.refresh` finds them changed. Only a fence creates tables: what disappears while a feed is being written
was taken away by a person, who should be asked and not overruled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

from feedq.errors import InvalidInput
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.landing import TableName, TableShape, misdeclared
from feedq.sinks.plan import LandingPlan
from feedq.sinks.reserved import why_nowhere


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
