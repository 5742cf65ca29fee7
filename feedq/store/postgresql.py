"""The real store: PostgreSQL, behind the interfaces of `feedq.store.base`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from feedq.model import Worker
from feedq.store.database import Database
from feedq.store.event_listing import EventListing
from feedq.store.feed_listing import FeedListing
from feedq.store.feeds import PostgresFeeds
from feedq.store.history import EVENTS_PER_FEED, RETENTION_DAYS, HistoryKept
from feedq.store.jobs.calendars import CalendarStore
from feedq.store.jobs.queues import QueueStore
from feedq.store.jobs.runs import RunStore
from feedq.store.jobs.schedules import AGEING_S, ScheduleStore
from feedq.store.leases import PostgresLeases
from feedq.store.passes import PostgresFleet
from feedq.store.worker_session import PostgresListener, PostgresSession, worker_listener
from feedq.store.workers import PostgresWorkers


class JobStore:
    """Schedules and their runs. The guarantees are the database's own (unique keys, row locks, its clock), so
    there is no other implementation. Thread-safe."""

    def __init__(self, database: Database, *, ageing_s: float = AGEING_S) -> None:
        self.schedules = ScheduleStore(database, ageing_s=ageing_s)
        self.calendars = CalendarStore(database)
        self.queues = QueueStore(database)
        self.runs = RunStore(database, ageing_s=ageing_s)


class PostgresStore:
    """Implements `feedq.store.base.Store` on a migrated database. Connects when it is first used.
    Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        application_name: str = "feedq",
        retention_days: int = RETENTION_DAYS,
        events_per_feed: int = EVENTS_PER_FEED,
        restart_hold_s: float = 0.0,
        ageing_s: float = AGEING_S,
    ) -> None:
        self._url = url
        self._database = Database(url, application_name=application_name)
        self.feeds = PostgresFeeds(self._database)
        self.listing = FeedListing(self._database)
        self.history = EventListing(self._database)
        self.workers = PostgresWorkers(self._database)
        self.leases = PostgresLeases(self._database, restart_hold_s=restart_hold_s)
        self.fleet = PostgresFleet(self._database, keep=HistoryKept(retention_days, events_per_feed))
        self.jobs = JobStore(self._database, ageing_s=ageing_s)

    def now(self) -> datetime:
        """The database's clock."""
        with self._database.transaction() as c:
            now: datetime = c.execute(text("SELECT clock_timestamp()")).scalar_one()
        return now

    def session(self, worker: Worker, *, ttl_s: float) -> PostgresSession:
        return PostgresSession(self._url, worker, ttl_s=ttl_s)

    def worker_listener(self, worker: Worker) -> PostgresListener:
        return worker_listener(self._url, worker)

    def close(self) -> None:
        self.jobs.runs.close()
        self._database.close()
