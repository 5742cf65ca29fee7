"""What the pages and the API say of schedules and runs, as values; and what they change.

A page costs what it shows: schedules are read a page at a time by their names, runs the newest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from feedq.schedule.model import Run, RunState, Schedule, ScheduleView
from feedq.store.jobs.base import JobStore
from feedq.web.feed_reader import Reader
from feedq.web.schedules.asking import RunQuery, ScheduleQuery, page_of

RUNS_SHOWN = 100
"""Runs on the page of one schedule."""


@dataclass(frozen=True, slots=True)
class SchedulePart:
    """A part of the list of schedules."""

    now: datetime
    views: Sequence[ScheduleView]
    next_after: str | None
    """The name after which the next part begins; None when this is the last."""


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """One schedule with its history."""

    now: datetime
    view: ScheduleView
    counts: Mapping[RunState, int]
    runs: Sequence[Run]


class ScheduleQueries:
    """Schedules and runs in the control database, for one Flower. Every method may raise `Unavailable`."""

    def __init__(self, jobs: JobStore, reader: Reader, *, now: Callable[[], datetime]) -> None:
        """``now`` asks the database for its clock: it is the one that schedules go by."""
        self._jobs = jobs
        self._reader = reader
        self._now = now

    async def part(self, query: ScheduleQuery) -> SchedulePart:
        return await self._reader.read(query, lambda: self._read_part(query))

    async def schedule(self, name: str, *, states: tuple[RunState, ...] = ()) -> ScheduleFacts:
        """With its runs of these states, or of any. Raises `NotFound` as well."""
        return await self._reader.read(("schedule", name, states), lambda: self._read_schedule(name, states))

    async def runs(self, query: RunQuery) -> list[Run]:
        """Raises `NotFound` as well."""
        return await self._reader.read(query, lambda: self._read_runs(query))

    async def run(self, run_id: int) -> Run:
        """Raises `NotFound` as well."""
        return await self._reader.read(("run", run_id), lambda: self._jobs.schedules.run(run_id))

    async def trigger(self, name: str, *, key: str | None) -> Run:
        """A run now. Raises `NotFound`, and what the store refuses it for."""
        return await self._reader.change(lambda: self._jobs.schedules.trigger(name, key=key))

    async def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule:
        return await self._reader.change(lambda: self._jobs.schedules.pause(name, until=until, reason=reason))

    async def resume(self, name: str) -> Schedule:
        return await self._reader.change(lambda: self._jobs.schedules.resume(name))

    async def cancel(self, run_id: int) -> Run:
        """Raises `NotFound`, `Conflict` (it has ended)."""
        return await self._reader.change(lambda: self._jobs.schedules.cancel_run(run_id))

    def _read_part(self, query: ScheduleQuery) -> SchedulePart:
        # One more than is shown says whether there are others, and nothing need be counted.
        views = self._jobs.schedules.views(prefix=query.prefix, after=query.after, limit=query.limit + 1)
        shown, next_after = page_of([view.schedule.spec.name for view in views], query)
        return SchedulePart(self._now(), views[:shown], next_after)

    def _read_schedule(self, name: str, states: tuple[RunState, ...]) -> ScheduleFacts:
        schedules = self._jobs.schedules
        return ScheduleFacts(
            view=schedules.view(name),
            counts=schedules.counts(name),
            runs=schedules.runs(name, states=states, limit=RUNS_SHOWN),
            now=self._now(),
        )

    def _read_runs(self, query: RunQuery) -> list[Run]:
        return self._jobs.schedules.runs(query.schedule, states=query.states, limit=query.limit)
