"""`feedq.store.base.Store` in memory, with what people ask for, and with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedq.model import Worker
from feedq.store.base import Store
from feedq.store.channels import NotifyReason
from feedq.store.history import EVENTS_PER_FEED, RETENTION_DAYS, HistoryKept
from tests.fakes.clock import ManualClock
from tests.fakes.memory.feeds import MemoryFeeds
from tests.fakes.memory.leases import MemoryLeases
from tests.fakes.memory.simulated_store import HeldSession, SimulatedStore
from tests.fakes.memory.tables import MemoryDatabase
from tests.fakes.memory.workers import MemoryWorkers


class MemoryStore(SimulatedStore):
    """The control database on dicts; ``clock`` is the database's clock."""

    database: MemoryDatabase
    feeds: MemoryFeeds
    workers: MemoryWorkers
    leases: MemoryLeases

    def __init__(
        self,
        clock: ManualClock,
        *,
        retention_days: int = RETENTION_DAYS,
        events_per_feed: int = EVENTS_PER_FEED,
        restart_hold_s: float = 0.0,
    ) -> None:
        self.clock = clock
        database = MemoryDatabase(clock, keep=HistoryKept(retention_days, events_per_feed))
        super().__init__(database, restart_hold_s=restart_hold_s)
        self.feeds = MemoryFeeds(database)
        self.workers = MemoryWorkers(database)
        self.leases = MemoryLeases(database, restart_hold_s=restart_hold_s)

    def worker_listener(self, worker: Worker) -> MemoryListener:
        return MemoryListener(self.database, worker.id)

    def close(self) -> None:
        """Nothing to close: the rows stay as long as the object does."""

    # -- faults --------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """From now on every call raises `Unavailable`; sessions stay, as on a network that drops packets."""
        self.database.away = True

    def come_back(self) -> None:
        self.database.away = False

    def restart(self) -> None:
        """The server starts anew: rows stay, every session breaks."""
        self.database.started_at = self.database.now()
        self.database.sessions.clear()
        self.database.notifications.clear()

    def lose_answers(self, count: int) -> None:
        """The next ``count`` statements take effect, and their callers are told `Unavailable`."""
        self.database.answers_to_lose = count

    def fail_commits(self, count: int) -> None:
        """The next ``count`` passes fail at their commit and leave nothing behind."""
        self.database.commits_to_fail = count

    def lose_notifications(self, count: int) -> None:
        """The next ``count`` notifications of workers are heard by nobody, as behind a pooler."""
        self.database.notifications_to_lose = count

    def delay_notifications(self, seconds: float) -> None:
        """From now on workers hear of a notification so much later than it was sent."""
        self.database.notifications_take_s = seconds

    def delete_lease(self, feed_id: int) -> None:
        """What a person at a SQL prompt may do."""
        del self.database.tables.leases[feed_id]


if TYPE_CHECKING:

    def _is_a_store(store: MemoryStore) -> Store:
        return store


class MemoryListener(HeldSession):
    """`feedq.store.base.Listener`; it never really waits, time is the test's to move."""

    _db: MemoryDatabase
    heard = frozenset({NotifyReason.FEEDS.value})

    def wait(self, timeout_s: float) -> bool:
        self._require_open()
        return self._db.hear(self._worker_id)
