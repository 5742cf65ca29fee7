"""What the pages show, as values read from the control tables in one go each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TypeVar
from uuid import UUID

from feedq.api.calls import Calls
from feedq.api.endpoint import Endpoint
from feedq.control.store.feed_listing import FoundFeeds, Query
from feedq.control.store.history import EventFilter, WorkerMoves
from feedq.control.store.postgresql import PostgresStore
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import Event, FeedView
from feedq.core.roles import Caller
from feedq.core.schedule.model import Run, RunState, ScheduleState, ScheduleView
from feedq.core.schedule.ticks import ticks_after
from feedq.settings import Settings
from feedq.telemetry.event_names import EventKind
from feedq.verbs.actions import worker_names
from feedq.verbs.backfills import BackfillDocument, backfill_document
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.registry import At
from feedq.verbs.report.fleet_data import FleetData, read_fleet
from feedq.web.feed_reader import Reader
from feedq.web.params import ScheduleQuery

T = TypeVar("T")

EVENTS_SHOWN = 100
GENERATIONS_SHOWN = 20
GENERATIONS = (
    EventKind.FEED_ADDED,
    EventKind.FEED_EDITED,
    EventKind.FEED_PAUSED,
    EventKind.FEED_RESUMED,
    EventKind.FEED_RESTARTED,
    EventKind.CURSOR_CHANGED,
)
"""What makes the next generation of a declaration, or the first."""
TICKS_SHOWN = 5
LATEST_SHOWN = 20
"""Runs of each schedule in the list of all."""
RUNS_SHOWN = 100
"""Runs on the page of one schedule."""


@dataclass(frozen=True, slots=True)
class FeedData:
    """Holds one feed with its history."""

    now: datetime
    view: FeedView
    events: Sequence[Event]
    workers: dict[UUID, str]
    """Names of the workers that are there, and of those in its history."""
    explanation: str | None
    """Why it does not stream, and what to do about it."""
    landed: Sequence[LandedBucket]
    """What it landed, the oldest first."""
    generations: Sequence[Event]
    """What has become of its declaration, the latest first."""
    backfill: BackfillDocument | None = None
    """The one that is under way."""


@dataclass(frozen=True, slots=True)
class FoundSchedules:
    """Holds a part of the list of schedules."""

    now: datetime
    views: Sequence[ScheduleView]
    latest: Mapping[str, Sequence[Run]]
    """The latest runs of each, by its name."""
    next_after: str | None
    """The name after which the next part begins; None when this is the last."""


@dataclass(frozen=True, slots=True)
class ScheduleData:
    """Holds one schedule with its history."""

    now: datetime
    view: ScheduleView
    counts: Mapping[RunState, int]
    runs: Sequence[Run]
    ticks: Sequence[datetime]
    """The next ones; none while it is paused."""


class WebQueries:
    """Reads the control tables for one Flower. Every method may raise `Unavailable`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        url = settings.database_url.get_secret_value()
        self.store = PostgresStore(url, application_name="feedq-web")
        self.endpoint = Endpoint.of(self.store, settings)
        self._reader = Reader(url)
        self.calls = Calls()

    def at(self, caller: Caller) -> At:
        """Where verbs act for a caller."""
        return replace(self.endpoint.at, caller=caller)

    def forget(self) -> None:
        """Something may have been changed: whoever did it sees so on the next page."""
        self._reader.forget()

    async def page(self, at: At, query: Query) -> FoundFeeds:
        """Reads feeds that the caller sees. Raises `Forbidden` when others are asked for."""
        if (own := at.caller.tenant) is not None:
            at.caller.require_tenant(query.tenant or own, f"a feed of tenant {query.tenant!r}")
            query = replace(query, tenant=own)
        return await self._reader.read((query, own), lambda: self.store.listing.page(query, own=own))

    async def landed(self, feed_ids: tuple[int, ...]) -> Mapping[int, Sequence[LandedBucket]]:
        """What each of these feeds landed in the last minutes: of so many as can be read at once."""
        return await self._reader.read(("landed", feed_ids), lambda: self.store.landed.of_feeds(feed_ids))

    async def feed(self, at: At, name: str, span: Span = Span.HOUR) -> FeedData:
        """Reads one feed. Raises `NotFound` as well, also for another tenant's."""
        question = ("feed", name, span, at.caller.tenant)
        return await self._reader.read(question, lambda: self._read_feed(at, name, span))

    async def moves(self) -> Sequence[WorkerMoves]:
        return await self._reader.read("moves", self.store.history.moves)

    async def fleet(self) -> FleetData:
        return await self._reader.read("fleet", lambda: read_fleet(self.store, self._settings))

    def _read_feed(self, at: At, name: str, span: Span) -> FeedData:
        view = self.store.feeds.view(at.feed(name).name)
        listed = self.store.history.before(EventFilter(feed=view.feed), limit=EVENTS_SHOWN)
        workers = self.store.workers.views()
        ended = {one.event.worker_id: one.worker for one in listed if one.event.worker_id and one.worker}
        names = ended | worker_names(workers)
        now = self.store.now()
        explanation = explain(view, workers, now=now, rules=self._settings.rules)
        landed = self.store.landed.of_feed(view.feed.id, span)
        of_declaration = EventFilter(kinds=GENERATIONS, feed=view.feed)
        generations = [
            one.event for one in self.store.history.before(of_declaration, limit=GENERATIONS_SHOWN)
        ]
        filling = self.store.backfills.of(view.feed)
        backfill = None
        if filling is not None and filling.feed.removed_at is None:
            backfill = backfill_document(view.feed, filling)
        events = [one.event for one in listed]
        return FeedData(now, view, events, names, explanation, landed, generations, backfill)

    async def schedules(self, query: ScheduleQuery) -> FoundSchedules:
        return await self._reader.read(query, lambda: self._read_part(query))

    async def schedule(self, name: str, *, states: tuple[RunState, ...] = ()) -> ScheduleData:
        """Reads one schedule with its runs of these states, or of any. Raises `NotFound` as well."""
        return await self._reader.read(("schedule", name, states), lambda: self._read_schedule(name, states))

    def _read_part(self, query: ScheduleQuery) -> FoundSchedules:
        # One more than is shown says whether there are others, and nothing need be counted.
        views = self.store.jobs.schedules.views(prefix=query.prefix, after=query.after, limit=query.limit + 1)
        shown = views[: query.limit]
        next_after = shown[-1].schedule.spec.name if len(views) > len(shown) else None
        latest = self.store.jobs.schedules.latest([v.schedule.spec.name for v in shown], each=LATEST_SHOWN)
        return FoundSchedules(self.store.now(), shown, latest, next_after)

    def _read_schedule(self, name: str, states: tuple[RunState, ...]) -> ScheduleData:
        schedules, now = self.store.jobs.schedules, self.store.now()
        view = schedules.view(name)
        fires = view.schedule.state is ScheduleState.ACTIVE and not view.schedule.unreadable
        return ScheduleData(
            view=view,
            ticks=list(islice(ticks_after(view.schedule.spec, after=now), TICKS_SHOWN)) if fires else [],
            counts=schedules.counts(name),
            runs=schedules.runs(name, states=states, limit=RUNS_SHOWN),
            now=now,
        )
