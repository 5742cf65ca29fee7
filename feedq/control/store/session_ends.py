"""Sessions that wait for the end of other sessions: so the elected beat hears at once that a worker has died.

Each session of a worker holds an advisory lock of its own, whose key is the number of its backend. A session of
the beat waits for these, one after the other. It is woken within milliseconds of the end of the last one, and
costs nothing meanwhile. What it hears is only that a check is worth it: a worker that has opened another session
since then lives.

That each session has a key of its own is what makes waiting harmless: PostgreSQL queues whoever asks for a lock
behind those who wait for it already, and a worker that comes back asks for another one. The waiter keeps nothing:
it takes the lock for the length of a transaction, which ends at once.

A statement that waits keeps a snapshot, and with it the rows that others have replaced since. So the waiter gives
up and begins a new transaction every `SNAPSHOT_S`, inside one statement, and without an error in the server's log.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Final

import psycopg2
from psycopg2.extensions import POLL_OK, POLL_WRITE
from psycopg2.extensions import connection as Session  # noqa: N812 -- a class, named as the others are

from feedq.control.store.database import (
    CONNECT_TIMEOUT_S,
    driver_options,
    psycopg2_dsn,
    translate_driver_errors,
)
from feedq.control.store.worker_session import SESSION_LOCK_CLASS
from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, log

SNAPSHOT_S: Final = 0.9
"""The length of one wait's snapshot. With longer ones, tables that change all the time, such as that of runs,
would fill up with rows that nobody can clear away. Below PostgreSQL's ``deadlock_timeout``, after which it
looks for deadlocks and may log the wait."""
ROUNDS: Final = 33
"""The number of rounds of `SNAPSHOT_S` each: after half a minute a wait ends by itself, also that of a beat
that is gone or frozen."""
STATEMENT_S: Final = 60
"""The server's own time limit for a wait; reached only when something is wrong."""
CHECK_CLIENT_MS: Final = 1_000
"""How soon the server ends the wait of a beat that has died. It disturbs nobody until then."""
CONNECTING_MAX: Final = 2
"""Sessions that are opened at a time: the first checks of a new leader are for what happened before it."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""When a session cannot be had, checks are as frequent as they would be without it."""

logger = log(__name__)

# Once a lock is had, the COMMIT releases it: the next session with this backend's number may ask for it.
_WAIT = f"""
    DO $$
    DECLARE
        keys int[] := ARRAY[%(keys)s]::int[];
    BEGIN
        FOR round IN 1..{ROUNDS} LOOP
            EXIT WHEN cardinality(keys) = 0;
            BEGIN
                PERFORM pg_advisory_xact_lock_shared(%(lock_class)s, keys[1]);
                keys := keys[2:];
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
            COMMIT;
        END LOOP;
    END $$
"""


class SessionEndWaiter:
    """Waits, in one session, for the end of others, which hold locks of one class. Never blocks; whoever has it
    polls its descriptor."""

    def __init__(self, url: str, *, application_name: str, lock_class: int = SESSION_LOCK_CLASS) -> None:
        """Begin to connect. Raises `Unavailable`."""
        self._url, self._lock_class = url, lock_class
        options = driver_options(application_name)
        bounds = {
            "lock_timeout": int(1000 * SNAPSHOT_S),
            "statement_timeout": 1000 * STATEMENT_S,
            "client_connection_check_interval": CHECK_CLIENT_MS,
        }
        options["options"] += "".join(f" -c {name}={value}" for name, value in bounds.items())
        with translate_driver_errors(url):
            self._session: Session = psycopg2.connect(psycopg2_dsn(url), async_=True, **options)
        self.is_connected = False
        self.keys: frozenset[int] = frozenset()
        """The locks that it waits for; empty when it waits for nothing."""
        self.since = monotonic()
        self.events = select.POLLOUT
        self._give_up_at = self.since + CONNECT_TIMEOUT_S

    def fileno(self) -> int:
        return int(self._session.fileno())

    def wait_for(self, keys: Collection[int]) -> None:
        """Wait until nobody holds these locks any more, each for a moment. Raises `Unavailable`."""
        assert self.is_connected
        assert keys
        assert not self.keys
        self.keys = frozenset(keys)
        self.since = monotonic()
        self._give_up_at = self.since + STATEMENT_S
        listed = ", ".join(map(str, sorted(map(int, keys))))
        with translate_driver_errors(self._url):
            # Kept: the driver refers to it only weakly.
            self._cursor = self._session.cursor()
            self._cursor.execute(_WAIT % {"keys": listed, "lock_class": self._lock_class})
        self.go_on()

    def go_on(self) -> bool:
        """Go on waiting, and return whether a wait has ended just now. To be called when the descriptor is
        ready. Raises `Unavailable`."""
        with translate_driver_errors(self._url):
            state = self._session.poll()
        self.events = select.POLLOUT if state == POLL_WRITE else select.POLLIN
        if state != POLL_OK:
            return False
        has_ended, self.keys = bool(self.keys), frozenset()
        self.is_connected = True
        return has_ended

    @property
    def is_overdue(self) -> bool:
        """Whether the server should have answered by now."""
        return bool(self.keys or not self.is_connected) and monotonic() > self._give_up_at

    def close(self) -> None:
        with contextlib.suppress(psycopg2.Error):
            self._session.close()


class SessionEndWaiters:
    """A waiter for each of some owners of locks, such as workers, of which there are no more than ``limit``. Used
    by one thread."""

    def __init__(
        self,
        url: str,
        *,
        limit: int,
        application_name: str,
        pause_s: float,
        lock_class: int = SESSION_LOCK_CLASS,
    ) -> None:
        """``pause_s``: one whose wait ends sooner than that is not renewed before it is over."""
        self._url, self.limit, self._application_name, self._pause_s = url, limit, application_name, pause_s
        self._lock_class = lock_class
        self._waiters: dict[int, SessionEndWaiter] = {}
        self._retry_at = float("-inf")
        self._retry_s = RETRY_FIRST_S
        self.is_complete = False
        """Whether the end of each will be heard."""

    def watch(self, locks: Mapping[int, Collection[int]] | None) -> None:
        """Wait for the end of these: by a key of each, the keys of the locks that its sessions hold.

        None: there are too many. The end of one without any lock cannot be heard.
        """
        wanted = locks or {}
        for key in [key for key in self._waiters if key not in wanted]:
            self._waiters.pop(key).close()
        for key, held in wanted.items():
            if key not in self._waiters:
                self._open(key)
            elif held:
                self._arm(key, held)
        self.is_complete = locks is not None and all(
            key in self._waiters and self._waiters[key].keys for key in wanted
        )

    def descriptors(self) -> dict[int, int]:
        """Return the descriptors, and what to poll them for."""
        return {waiter.fileno(): waiter.events for waiter in self._waiters.values()}

    def go_on(self, ready: Collection[int]) -> bool:
        """Go on waiting, and return whether the end of some session was heard, perhaps. ``ready`` are
        descriptors."""
        heard = False
        for key, waiter in list(self._waiters.items()):
            if waiter.fileno() not in ready and not waiter.is_overdue:
                continue
            try:
                if waiter.is_overdue:
                    raise Unavailable("the control database does not answer a session that waits")
                was_connected, has_ended = waiter.is_connected, waiter.go_on()
            except Unavailable as error:
                # Ended by somebody, or the server is going: a check says more.
                self._give_up(key, error)
                heard = True
            else:
                heard |= has_ended
                if waiter.is_connected and not was_connected:
                    self._retry_s = RETRY_FIRST_S
        return heard

    def close(self) -> None:
        while self._waiters:
            self._waiters.popitem()[1].close()
        self.is_complete = False

    def _open(self, key: int) -> None:
        connecting = sum(not waiter.is_connected for waiter in self._waiters.values())
        if monotonic() < self._retry_at or connecting >= CONNECTING_MAX:
            return
        try:
            self._waiters[key] = SessionEndWaiter(
                self._url, application_name=self._application_name, lock_class=self._lock_class
            )
        except Unavailable as error:
            self._give_up(key, error)

    def _arm(self, key: int, locks: Collection[int]) -> None:
        waiter = self._waiters[key]
        if waiter.keys or not waiter.is_connected or monotonic() < waiter.since + self._pause_s:
            return
        try:
            waiter.wait_for(locks)
        except Unavailable as error:
            self._give_up(key, error)

    def _give_up(self, key: int, error: Unavailable) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            waiter.close()
        self._retry_at = monotonic() + self._retry_s
        if self._retry_s == RETRY_FIRST_S:
            logger.warning(LogEvent.CRASH_WAITER_LOST, error=str(error), again_in_s=self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
