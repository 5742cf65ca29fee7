"""The election of the beat, and what only the elected one does: check for crashed workers, and wait for their end.

One session lock decides; a leader row with an expiry stands beside it, because a *frozen* leader keeps its
lock. Whoever finds the row expired ends the frozen one's session and takes the lock. The frozen one finds
its session closed when it wakes, and is a candidate again. Nothing depends on there being one leader: two
would enqueue two reconciles, of which the second finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from feedq.control.store.session_ends import SessionEndWaiters
from feedq.control.store.worker_session import LEADER_LOCK_CLASS, WAKE, Listener

BEAT_ELECTION = ("beat", 1)
"""Name of the leader row and second key of the lock."""

WAITER_NAME = "feedq-waiter"
"""What sessions that wait for the end of workers are called, with their holder, in ``pg_stat_activity``."""


@dataclass(frozen=True, slots=True)
class LivenessCheck:
    """The result of one liveness check of all workers."""

    crashed: int
    """Workers without a session in two checks in a row."""
    suspected: int
    """Workers without a session for the first time: check again soon."""
    expired: int
    """Workers that have not renewed in time, or whose heartbeat lies ahead since the clock was put back."""
    is_due: bool = False
    """Whether some feed's delay is over, or the time in which an owner should have released its feed; or a
    worker has settled since the last pass."""
    due_in_s: float | None = None
    """When the next of these will be, or a worker expires."""
    is_awaited: bool = False
    """Whether the end of any worker will be heard at once, without another check."""
    has_heard: bool = False
    """Whether this check comes because the end of a session was heard."""
    sessions: list[tuple[int, int, bool]] | None = None
    """The sessions of workers: the key of each one's worker, its backend, and whether its own lock is held. None
    if there are more workers than are waited for."""


class Election:
    """A candidate's session in the election of the beat. Used by one thread; any method may raise
    `Unavailable`."""

    def __init__(
        self,
        url: str,
        *,
        holder: UUID,
        host: str,
        pid: int,
        ttl_s: float,
        settle_s: float,
        waiters: int = 0,
        rearm_s: float = 0.0,
    ) -> None:
        """``waiters``: the end of so many workers is waited for, each by a session of its own, at most each
        ``rearm_s``; of more than that, of none."""
        self._host, self._pid, self._ttl_s = host, pid, ttl_s
        self._term = {"election": BEAT_ELECTION[0], "candidate": holder, "ttl_s": ttl_s}
        self._settle_s = settle_s
        self._session = Listener(url, WAKE, application_name=f"feedq-beat/{holder}")
        self._is_direct = False
        """Not behind a pooler, where a session could not wait for others."""
        self._has_heard = False
        name = f"{WAITER_NAME}/{holder}"
        self._waiters = SessionEndWaiters(url, limit=waiters, application_name=name, pause_s=rearm_s)
        # For the end of the leader, whose only lock it is.
        self._vacancy = SessionEndWaiters(
            url, limit=1, application_name=name, pause_s=rearm_s, lock_class=LEADER_LOCK_CLASS
        )

    def campaign(self) -> bool:
        """Try to win; True when this candidate leads now."""
        _, number = BEAT_ELECTION
        lock, keys = (
            "SELECT pg_try_advisory_lock(%(class)s, %(key)s)",
            {"class": LEADER_LOCK_CLASS, "key": number},
        )
        if not self._session.execute(lock, keys).scalar_one():
            return False
        self._vacancy.close()
        self._session.call(
            "lead",
            bool,
            **self._term,
            host=self._host,
            pid=self._pid,
            backend=self._session.backend_pid,
        )
        self._is_direct = self._session.holds(LEADER_LOCK_CLASS, number)
        # What it writes is of no use after a crash of the database, which ends the session and the term with it.
        self._session.execute("SET synchronous_commit = off")
        return True

    def end_frozen_leader(self) -> bool:
        """End the sessions of a leader whose row has expired; True when there were any."""
        given = {"election": BEAT_ELECTION[0], "ttl_s": self._ttl_s}
        return self._session.call("end_frozen_leader", int, **given) > 0

    def stand_by(self, pause_s: float) -> None:
        """Wait until the leader's session has ended, or until its row expires. Where neither will be heard, for
        ``pause_s``."""
        name, number = BEAT_ELECTION
        found = self._session.execute(
            """
            SELECT pg_backend_pid() = %(backend)s, (
                SELECT extract(epoch FROM expires_at - feedq.clock())::float8
                FROM feedq.leader WHERE name = %(name)s)
            """,
            {"backend": self._session.backend_pid, "name": name},
        )
        is_direct, left_s = found.one()
        if is_direct and left_s is not None:  # behind a pooler it would keep one of the few that all share
            self._vacancy.watch({number: [number]})
            if self._vacancy.is_complete:
                pause_s = max(pause_s, left_s)
        self._session.wait(pause_s, self._vacancy.descriptors())
        self._vacancy.go_on(self._session.ready)

    def renew(self) -> bool:
        """Extend the leader row; False when somebody else is leader now."""
        return self._session.call("lead_on", bool, **self._term)

    def check_liveness(self) -> LivenessCheck:
        given = {"settle_s": self._settle_s, "waiters": self._waiters.limit}
        found = self._session.call("check_liveness", LivenessCheck, **given)
        if self._is_direct and self._waiters.limit:
            self._waiters.watch(None if found.sessions is None else _backends(found.sessions))
        has_heard, self._has_heard = self._has_heard, False
        return replace(found, is_awaited=self._waiters.is_complete, has_heard=has_heard)

    def wait(self, timeout_s: float) -> bool:
        """Wait until reconcile is asked for; True when it was in time. Ends early when the end of a session was
        heard."""
        was_asked = self._session.wait(timeout_s, self._waiters.descriptors())
        self._has_heard |= self._waiters.go_on(self._session.ready)
        return was_asked

    def interrupt(self) -> None:
        self._session.interrupt()

    def close(self) -> None:
        self._vacancy.close()
        self._waiters.close()
        self._session.close()


def _backends(sessions: Iterable[tuple[int, int, bool]]) -> dict[int, set[int]]:
    """Groups the backends of workers by lock key; none for one of which the end of a backend could not be waited
    for."""
    found: dict[int, set[int]] = {}
    unheard: set[int] = set()
    for key, backend, has_own in sessions:
        found.setdefault(key, set()).add(backend)
        if not has_own:
            unheard.add(key)
    return {key: set() if key in unheard else backends for key, backends in found.items()}
