"""Database sessions that outlive a transaction: the lease keeper's, and those that listen.

Each holds the shared session lock of its worker for as long as it lives. When the process dies, the kernel
closes its sockets, the backends exit, and the locks are gone within milliseconds: that is the crash signal
(`feedq.control.store.election`). Two kinds of session a worker, so that one dropped connection is not a crash.

A notification carries no facts: whoever hears it reads the tables. So a lost one costs time only. A worker's says
whom it is for, so that the others need not read theirs.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection, Mapping
from enum import StrEnum
from math import ceil
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import psycopg2

from feedq.control.store import protocol
from feedq.control.store.database import PLANNER, Connection, Rows, connect, translate_driver_errors
from feedq.core.model import Heartbeat, Load, Worker
from feedq.telemetry.watched_threads import asks

T = TypeVar("T")

WAKE = "feedq_wake"
"""Reconcile has something to do."""


class NotifyReason(StrEnum):
    """The reason why a worker is notified."""

    FEEDS = "feeds"
    """There is a feed to claim, or a stop request."""
    JOBS = "jobs"
    """A schedule has changed, or a run of this worker was taken away."""
    RUNS = "runs"
    """Runs have fallen due, or were asked for."""

    def is_among(self, heard: Collection[str]) -> bool:
        """Return whether these payloads are for this; what another release says may be for anybody."""
        others = {reason.value for reason in NotifyReason if reason is not self}
        return any(payload not in others for payload in heard)


WORKER_LOCK_CLASS = 0x_FEED_01
"""First key of the session advisory locks of workers; the second is ``worker.lock_key``."""
LEADER_LOCK_CLASS = 0x_FEED_02
"""First key of the session advisory locks of elections; the second is the election's number."""
SESSION_LOCK_CLASS = 0x_FEED_05
"""First key of the lock that each session of a worker has for itself; the second is the number of its backend. Who
wants to hear of its end waits for this one (`feedq.control.store.session_ends`)."""
CATALOG_LOCK_CLASS = 0x_FEED_06
"""First key of the session advisory lock of whoever syncs a catalog; the second is a hash of its name."""
KEEPER_STATEMENT_TIMEOUT_S = 2.0
"""A heartbeat that takes longer is given up and tried again: it must not use up the ttl on one attempt."""


def worker_channel(lock_key: int) -> str:
    """Name the channel on which a worker hears that something waits for it."""
    return f"feedq_worker_{lock_key}"


def wake_reconcile(c: Connection) -> None:
    """Ask for a reconcile pass soon."""
    c.execute(f"SELECT pg_notify('{WAKE}', '')")


def hold_worker_lock(c: Connection, worker: Worker) -> bool:
    """Take the worker's shared lock, and one of the session's own, for the life of the session.

    False behind a pooler that hands each transaction to another backend: a session lock says nothing
    about us there. Two backends seen in a row, or a lock that is not ours, give it away.
    """
    lock = "SELECT pg_advisory_lock_shared(%(class)s, %(key)s), pg_backend_pid() AS backend"
    locked_by = c.execute(lock, {"class": WORKER_LOCK_CLASS, "key": worker.lock_key}).one().backend
    holds = _has_lock(c, WORKER_LOCK_CLASS, worker.lock_key)
    if not holds or locked_by != c.session.info.backend_pid:
        return False
    # One of its own, for whoever waits for its end. Not had, because a waiter for the last session with this
    # number is about to release it: then the beat checks for this worker as it does without waiters.
    c.execute("SELECT pg_try_advisory_lock(%(class)s, pg_backend_pid())", {"class": SESSION_LOCK_CLASS})
    return True


def _has_lock(c: Connection, lock_class: int, key: int) -> bool:
    """Return whether the backend that answers is the one that was connected to, and has this lock."""
    asked = """
        SELECT pg_backend_pid() = %(backend)s AND EXISTS (
            SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
                AND classid = %(class)s AND objid = %(key)s)
    """
    given = {"backend": c.session.info.backend_pid, "class": lock_class, "key": key}
    return bool(c.execute(asked, given).scalar_one())


class _Waiting:
    """A session that one thread waits on and any thread may wake."""

    def __init__(self, url: str, *, application_name: str, **server_options: object) -> None:
        self._url = url
        self.heard: Collection[str] = frozenset()
        """The payloads of what came in the last `wait`, see `NotifyReason`."""
        self.ready: Collection[int] = frozenset()
        """Which of the other descriptors were ready at the end of the last `wait`."""
        self._waking = Lock()
        """A wake-up must not go to a descriptor that was closed meanwhile and is somebody else's by now."""
        self._session = connect(url, application_name=application_name, **server_options)
        try:
            self._wake_r, self._wake_w = os.pipe()
        except OSError:
            self._session.close()
            raise
        os.set_blocking(self._wake_w, False)

    def wait(self, timeout_s: float, others: Mapping[int, int] = MappingProxyType({})) -> bool:
        """Wait, and return whether something was heard. ``others`` are descriptors that end the wait too, with
        what to poll for."""
        with translate_driver_errors(self._url):
            asks(self._session.get_backend_pid())
            # Not select(), which knows no descriptor beyond 1023: a worker with 600 feeds has no other ones.
            waiting = select.poll()
            fileno = self._session.fileno()
            for readable in (fileno, self._wake_r):
                waiting.register(readable, select.POLLIN)
            for descriptor, events in others.items():
                waiting.register(descriptor, events)
            ready = {number for number, _ in waiting.poll(ceil(1000 * max(timeout_s, 0.0)))}
            self.ready = ready & others.keys()
            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
            if fileno in ready:
                self._session.poll()
            # What was heard is only that something changed; many notifications mean the same as one.
            self.heard = {notify.payload for notify in self._session.notifies}
            self._session.notifies.clear()
            return bool(self.heard)

    def call(self, function: str, kind: type[T], /, **given: Any) -> T:
        """Call a function of the protocol on this session, see `feedq.control.store.protocol.call`."""
        with translate_driver_errors(self._url):
            return protocol.call(Connection(self._session), function, kind, **given)

    def interrupt(self) -> None:
        """End a `wait` under way in another thread; of no effect once it is closed."""
        with self._waking, contextlib.suppress(OSError):
            os.write(self._wake_w, b"\0")

    def close(self) -> None:
        with contextlib.suppress(psycopg2.Error):
            self._session.close()
        with self._waking:
            for end in (self._wake_r, self._wake_w):
                with contextlib.suppress(OSError):
                    os.close(end)
            self._wake_r = self._wake_w = -1


def renew(c: Connection, worker_id: UUID, load: Load, *, ttl_s: float) -> Heartbeat | None:
    """Renew every lease of the worker, in one statement. None: it was declared gone."""
    answer = protocol.ask(c, "heartbeat", session=worker_id, load=protocol.document(load), ttl_s=ttl_s)
    return None if answer is None else protocol.read(answer, Heartbeat)


class WorkerSession(_Waiting):
    """The lease keeper's own session, which carries the worker's heartbeat."""

    def __init__(self, url: str, worker: Worker, *, ttl_s: float) -> None:
        timeout_ms = int(1000 * KEEPER_STATEMENT_TIMEOUT_S)
        name = f"feedq-keeper/{worker.id}"
        super().__init__(url, application_name=name, statement_timeout=timeout_ms, **PLANNER)
        self._worker = worker
        self._ttl_s = ttl_s
        try:
            with translate_driver_errors(url):
                self.locks_hold = hold_worker_lock(Connection(self._session), worker)
                """Whether the session lock is really ours; not so behind a transaction pooler."""
            self.call("trust_locks", bool, session=worker.id, are_held=self.locks_hold)
        except BaseException:
            self.close()
            raise

    def heartbeat(self, load: Load) -> Heartbeat | None:
        with translate_driver_errors(self._url):
            return renew(Connection(self._session), self._worker.id, load, ttl_s=self._ttl_s)


class Listener(_Waiting):
    """Listens on one channel."""

    def __init__(
        self, url: str, channel: str, *, application_name: str, worker: Worker | None = None
    ) -> None:
        super().__init__(url, application_name=application_name)
        try:
            with translate_driver_errors(url):
                if worker is not None:
                    hold_worker_lock(Connection(self._session), worker)
                Connection(self._session).execute(f"LISTEN {channel}")
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Run a statement on the listening session; for the beat, whose lock lives there too."""
        with translate_driver_errors(self._url):
            return Connection(self._session).execute(sql, parameters)

    def holds(self, lock_class: int, key: int) -> bool:
        """Return whether this session has this lock; not so behind a pooler."""
        with translate_driver_errors(self._url):
            return _has_lock(Connection(self._session), lock_class, key)

    @property
    def backend_pid(self) -> int:
        return int(self._session.info.backend_pid)
