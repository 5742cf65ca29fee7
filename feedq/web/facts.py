"""What the pages and the API show, as values: read from the control tables in one go each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from feedq.diagnosis import Check, Level, Overview, explain
from feedq.diagnosis.fleet_checks import number_checks, summary, tally_checks
from feedq.diagnosis.placement_checks import placing_checks
from feedq.diagnosis.schedule_checks import job_checks
from feedq.model import Event, FeedView, WorkerView
from feedq.settings import Settings
from feedq.store.feed_listing import FoundFeeds, PostgresListing, Query, StatusCount
from feedq.store.insight import FleetState, JobState, fleet_state, job_state
from feedq.store.postgresql import PostgresStore
from feedq.web.feed_reader import Reader
from feedq.web.schedules.facts import ScheduleQueries

EVENTS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """One feed with its history."""

    now: datetime
    view: FeedView
    events: Sequence[Event]
    workers: dict[UUID, str]
    """Names of the workers that are there."""
    explanation: str | None
    """Why it does not stream, and what to do about it."""


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The whole fleet in numbers, and its workers one by one."""

    state: FleetState
    jobs: JobState
    numbers: Overview
    tallies: Sequence[StatusCount]
    workers: Sequence[WorkerView]
    warnings: Sequence[Check]


class Facts:
    """The control tables for one Flower. Every method may raise `Unavailable`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.database_url.get_secret_value()
        self._store = PostgresStore(self._url, application_name="feedq-web")
        self._listing = PostgresListing(self._url, application_name="feedq-web")
        self._reader = Reader(self._url)
        self.schedules = ScheduleQueries(
            self._store.jobs, self._reader, now=lambda: fleet_state(self._url).now
        )

    async def page(self, query: Query) -> FoundFeeds:
        return await self._reader.read(query, lambda: self._listing.page(query))

    async def feed(self, name: str) -> FeedFacts:
        """Raises `NotFound` as well."""
        return await self._reader.read(("feed", name), lambda: self._read_feed(name))

    async def workers(self) -> list[WorkerView]:
        return await self._reader.read("workers", self._store.workers.views)

    async def fleet(self) -> FleetFacts:
        return await self._reader.read("fleet", self._read_fleet)

    def _read_feed(self, name: str) -> FeedFacts:
        view = self._store.feeds.view(name)
        events = self._store.feeds.events(name, limit=EVENTS_SHOWN)
        workers = self._store.workers.views()
        names = {v.worker.id: v.worker.name for v in workers}
        now = fleet_state(self._url).now
        return FeedFacts(
            now, view, events, names, explain(view, workers, now=now, rules=self._settings.rules)
        )

    def _read_fleet(self) -> FleetFacts:
        workers = self._store.workers.views()
        tallies = self._listing.tallies()
        state, jobs = fleet_state(self._url), job_state(self._url)
        numbers = summary(tallies, workers)
        interval_s = self._settings.reconcile_interval_s
        checks = [
            *number_checks(numbers, workers, state, reconcile_interval_s=interval_s),
            *placing_checks((), workers, self._settings.rules),
            *tally_checks(tallies),
            *job_checks(jobs),
        ]
        warnings = [check for check in checks if check.level is not Level.OK]
        return FleetFacts(state, jobs, numbers, tallies, workers, warnings)
