"""The control database, as everything else sees it.

Every method of the store is one transaction and one decision; the database's clock is the only one that counts.
All methods block and may raise `feedq.errors.Unavailable`; none is called from an event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import psycopg2

from feedq.control.store.database import Connection, Database, connect, connect_once, translate_driver_errors
from feedq.control.store.expectations import AlertOutbox, ExpectationStore
from feedq.control.store.feed_listing import FeedListing
from feedq.control.store.feeds import Backfills, Feeds
from feedq.control.store.fleet_state import FLEET_STATE, JOB_STATE, FleetState, JobState
from feedq.control.store.history import RETENTION_DAYS, EventListing
from feedq.control.store.landed_counts import LandedCounts
from feedq.control.store.leases import Leases
from feedq.control.store.protocol import read
from feedq.control.store.taps import TapStore
from feedq.control.store.tokens import TokenStore
from feedq.control.store.worker_session import CATALOG_LOCK_CLASS, Listener, WorkerSession, worker_channel
from feedq.control.store.workers import Workers
from feedq.core.model import Worker
from feedq.errors import Conflict

if TYPE_CHECKING:
    from feedq.control.store.jobs.listing import ScheduledTask
    from feedq.control.store.jobs.runs import RunStore
    from feedq.control.store.jobs.schedules import QueueStore, ScheduleStore
    from feedq.control.store.passes import Fleet

# What takes long to load is imported when it is first used: commands are asked often, and most need none of it.


class JobStore:
    """Schedules and their runs. The guarantees are the database's own (unique keys, row locks, its clock), so
    there is no other implementation. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def schedules(self) -> ScheduleStore:
        from feedq.control.store.jobs.schedules import ScheduleStore

        return ScheduleStore(self._database)

    @cached_property
    def queues(self) -> QueueStore:
        from feedq.control.store.jobs.schedules import QueueStore

        return QueueStore(self._database)

    @cached_property
    def runs(self) -> RunStore:
        from feedq.control.store.jobs.runs import RunStore

        return RunStore(self._database)


class PostgresStore:
    """The control database, which is migrated. Connects when it is first used. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        application_name: str = "feedq",
        retention_days: int = RETENTION_DAYS,
        restart_hold_s: float = 0.0,
    ) -> None:
        self._url = url
        self._database = Database(url, application_name=application_name)
        self.feeds = Feeds(self._database)
        self.listing = FeedListing(self._database)
        self.history = EventListing(self._database)
        self.workers = Workers(self._database)
        self.leases = Leases(self._database, restart_hold_s=restart_hold_s)
        self._retention_days = retention_days
        self.tokens = TokenStore(self._database)
        self.backfills = Backfills(self._database)
        self.expectations = ExpectationStore(self._database)
        self.alerts = AlertOutbox(self._database)
        self.taps = TapStore(self._database)
        self.landed = LandedCounts(self._database)
        self.jobs = JobStore(self._database)

    @cached_property
    def fleet(self) -> Fleet:
        from feedq.control.store.passes import Fleet

        return Fleet(self._database, retention_days=self._retention_days)

    def now(self) -> datetime:
        """The database's clock."""
        with self._database.transaction() as c:
            now: datetime = c.execute("SELECT feedq.clock()").scalar_one()
        return now

    def fleet_state(self) -> FleetState:
        """Which beat leads, and when reconcile last ran."""
        with self._database.statement() as c:
            return read(c.execute(FLEET_STATE).scalar_one(), FleetState)

    def job_state(self) -> JobState:
        """Schedules and runs in numbers."""
        with self._database.statement() as c:
            return read(c.execute(JOB_STATE).scalar_one(), JobState)

    def scheduled_tasks(self) -> Sequence[ScheduledTask]:
        """The tasks of active schedules, and whether workers can run them."""
        from feedq.control.store.jobs.listing import scheduled_tasks

        with self._database.transaction() as c:
            return scheduled_tasks(c)

    @contextmanager
    def syncing(self, catalog: str) -> Iterator[None]:
        """Sync a catalog here and nowhere else for the length of the block. Raises `Conflict`, `Unavailable`."""
        with closing(connect(self._url, application_name="feedq-sync")) as session:
            with translate_driver_errors(self._url):
                lock = "SELECT pg_try_advisory_lock(%(class)s, hashtext(%(catalog)s))"
                given = {"class": CATALOG_LOCK_CLASS, "catalog": catalog}
                is_ours = Connection(session).execute(lock, given).scalar_one()
            if not is_ours:
                raise Conflict(
                    f"catalog {catalog!r} is being synced elsewhere; try again when that has ended"
                )
            try:
                yield
            finally:
                # The server notices the end of a session a moment later, and the next sync may come at once.
                with suppress(psycopg2.Error):
                    Connection(session).execute("SELECT pg_advisory_unlock_all()")

    def session(self, worker: Worker, *, ttl_s: float) -> WorkerSession:
        """Open the lease keeper's session. Raises `Unavailable`."""
        return WorkerSession(self._url, worker, ttl_s=ttl_s)

    def worker_listener(self, worker: Worker) -> Listener:
        """Hears stop requests for this worker."""
        name = f"feedq-listener/{worker.id}"
        return Listener(self._url, worker_channel(worker.lock_key), application_name=name, worker=worker)

    def idle_backends(self, backends: Collection[int]) -> set[int]:
        """Return which of these processes of the server wait for their clients. Asked on a session of its own,
        since any other may be the one that hangs. Raises `Unavailable`."""
        waiting = """
            SELECT pid FROM pg_stat_activity
            WHERE pid = ANY(%(backends)s) AND (state LIKE 'idle%%' OR wait_event = 'ClientWrite')
        """
        with connect_once(self._url) as c:
            return {row.pid for row in c.execute(waiting, {"backends": list(backends)})}

    def close(self) -> None:
        self._database.close()
