"""`feedq.control.store.postgresql.PostgresStore` in memory, with sessions that hold a lock, and with faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from feedq.control.store.channels import NotifyReason
from feedq.control.store.history import RETENTION_DAYS
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import Listener, WorkerSession
from feedq.core.model import Heartbeat, LeaseState, Load, Worker, WorkerState
from feedq.errors import Unavailable
from tests.fakes.clock import ManualClock
from tests.fakes.memory.counts import is_serving
from tests.fakes.memory.feeds import MemoryFeeds
from tests.fakes.memory.leases import MemoryLeases
from tests.fakes.memory.passes import MemoryFleet
from tests.fakes.memory.tables import MemoryDatabase
from tests.fakes.memory.workers import MemoryWorkers, renew


class MemoryStore(PostgresStore):
    """The control database on dicts; ``clock`` is the database's clock."""

    def __init__(
        self,
        clock: ManualClock,
        *,
        retention_days: int = RETENTION_DAYS,
        restart_hold_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self.database = database = MemoryDatabase(clock, retention_days=retention_days)
        self.feeds = MemoryFeeds(database)
        self.workers = MemoryWorkers(database)
        self.leases = MemoryLeases(database, restart_hold_s=restart_hold_s)
        self.fleet = MemoryFleet(database)

    def session(self, worker: Worker, *, ttl_s: float) -> MemorySession:
        return MemorySession(self.database, worker.id, ttl_s)

    def drop_sessions(self, worker_id: UUID) -> None:
        """Does what the kernel does for a killed process: its sockets close, its locks are gone."""
        self.database.sessions.pop(worker_id, None)

    def worker_listener(self, worker: Worker) -> MemoryListener:
        return MemoryListener(self.database, worker.id)

    def close(self) -> None:
        """Nothing to close: the rows stay as long as the object does."""

    # -- the beat's side of the crash signal ---------------------------------------------------------

    def check_liveness(self) -> list[UUID]:
        """Makes one look of the elected beat: the workers for which a pass should run now.

        That is who has expired, and who had no session in two looks in a row: the first look only
        suspects, and a heartbeat in between clears the suspicion.
        """
        self.database.require()
        lost = []
        for worker in list(self.database.tables.workers.values()):
            if worker.state is WorkerState.GONE:
                continue
            has_crashed = False
            if worker.id in self.database.session_locks and not self.database.sessions.get(worker.id):
                has_crashed = worker.suspected_at is not None
                if not has_crashed:
                    suspected = replace(worker, suspected_at=self.database.now())
                    self.database.tables.workers[worker.id] = suspected
            now = self.database.now()
            is_ahead = max(worker.started_at, worker.heartbeat_at) > now
            if has_crashed or is_ahead or worker.expires_at < now:
                lost.append(worker.id)
        return lost

    @property
    def suspected(self) -> set[UUID]:
        """Lists workers that the last look found without a session."""
        return {w.id for w in self.database.tables.workers.values() if w.suspected_at is not None}

    def falls_due_at(self, *, settle_s: float) -> datetime | None:
        """When a pass should run that nobody asks for: some delay is over, or the time in which to let go of a
        feed; or a worker has settled."""
        return min(self._falls_due(timedelta(seconds=settle_s)), default=None)

    def _falls_due(self, settle: timedelta) -> Iterator[datetime]:
        tables = self.database.tables
        now, pass_at = self.database.now(), tables.pass_at
        for worker in tables.workers.values():
            if pass_at is not None and is_serving(worker, now) and pass_at < worker.started_at + settle:
                yield worker.started_at + settle
        yield from (lease.stop_by for lease in tables.in_state(LeaseState.STOPPING) if lease.stop_by)
        yield from (lease.retry_at for lease in tables.in_state(LeaseState.IDLE) if lease.retry_at)

    def is_due(self, *, settle_s: float) -> bool:
        """The beat's other question: whether something of that has fallen due."""
        self.database.require()
        due_at = self.falls_due_at(settle_s=settle_s)
        return due_at is not None and due_at <= self.database.now()

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


class HeldSession:
    """Plays a database session that holds its worker's lock until it breaks or is closed."""

    def __init__(self, database: MemoryDatabase, worker_id: UUID) -> None:
        database.require()
        self._db = database
        self._worker_id = worker_id
        database.sessions.setdefault(worker_id, set()).add(self)
        database.session_locks.add(worker_id)

    @property
    def is_open(self) -> bool:
        return self in self._db.sessions.get(self._worker_id, ())

    def close(self) -> None:
        self._db.sessions.get(self._worker_id, set()).discard(self)

    def interrupt(self) -> None:
        """Nobody waits here."""

    def _require_open(self) -> None:
        self._db.require()
        if not self.is_open:
            raise Unavailable("control database (in memory): this session is broken")


class MemorySession(HeldSession, WorkerSession):
    """`feedq.control.store.worker_session.WorkerSession`; it never really waits either."""

    locks_hold = True

    def __init__(self, database: MemoryDatabase, worker_id: UUID, ttl_s: float) -> None:
        super().__init__(database, worker_id)
        self._ttl_s = ttl_s

    def heartbeat(self, load: Load) -> Heartbeat | None:
        self._require_open()
        answer = renew(self._db, self._worker_id, load, self._ttl_s)
        self._db.answer()
        return answer

    def wait(self, timeout_s: float, others: Mapping[int, int] = MappingProxyType({})) -> bool:
        self._require_open()
        return False


class MemoryListener(HeldSession, Listener):
    """`feedq.control.store.worker_session.Listener`; it never really waits, time is the test's to move."""

    heard = frozenset({NotifyReason.FEEDS.value})

    def wait(self, timeout_s: float, others: Mapping[int, int] = MappingProxyType({})) -> bool:
        self._require_open()
        return self._db.hear(self._worker_id)
