"""`feedq.store.base.Store` in memory, as far as workers, passes and the beat need it, with the sessions that hold
a worker's lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from feedq.errors import Unavailable
from feedq.model import Heartbeat, LeaseState, Load, Worker, WorkerState
from tests.fakes.memory import counts
from tests.fakes.memory.database import SimulatedDatabase
from tests.fakes.memory.owner import SimulatedFeeds, SimulatedLeases, SimulatedWorkers, renew
from tests.fakes.memory.simulated_pass import SimulatedFleet


class SimulatedStore:
    """Plays the control database on dicts."""

    def __init__(self, database: SimulatedDatabase, *, restart_hold_s: float = 0.0) -> None:
        self.database = database
        self.feeds = SimulatedFeeds(database)
        self.workers = SimulatedWorkers(database)
        self.leases = SimulatedLeases(database, restart_hold_s=restart_hold_s)
        self.fleet = SimulatedFleet(database)

    def session(self, worker: Worker, *, ttl_s: float) -> SimulatedSession:
        return SimulatedSession(self.database, worker.id, ttl_s)

    def drop_sessions(self, worker_id: UUID) -> None:
        """Does what the kernel does for a killed process: its sockets close, its locks are gone."""
        self.database.sessions.pop(worker_id, None)

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
        leases, now, pass_at = tables.leases, self.database.now(), tables.pass_at
        for worker in tables.workers.values():
            if (
                pass_at is not None
                and counts.is_serving(worker, now)
                and pass_at < worker.started_at + settle
            ):
                yield worker.started_at + settle
        yield from (at for feed_id in leases.in_state[LeaseState.STOPPING] if (at := leases[feed_id].stop_by))
        yield from (at for feed_id in leases.delayed if (at := leases[feed_id].retry_at))

    def is_due(self, *, settle_s: float) -> bool:
        """The beat's other question: whether something of that has fallen due."""
        self.database.require()
        due_at = self.falls_due_at(settle_s=settle_s)
        return due_at is not None and due_at <= self.database.now()


class HeldSession:
    """Plays a database session that holds its worker's lock until it breaks or is closed."""

    def __init__(self, database: SimulatedDatabase, worker_id: UUID) -> None:
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


class SimulatedSession(HeldSession):
    """`feedq.store.base.WorkerSession`; it never really waits either."""

    locks_hold = True

    def __init__(self, database: SimulatedDatabase, worker_id: UUID, ttl_s: float) -> None:
        super().__init__(database, worker_id)
        self._ttl_s = ttl_s

    def heartbeat(self, load: Load) -> Heartbeat | None:
        self._require_open()
        answer = renew(self._db, self._worker_id, load, self._ttl_s)
        self._db.answer()
        return answer

    def wait(self, timeout_s: float) -> bool:
        self._require_open()
        return False
