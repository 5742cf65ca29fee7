"""The election of the beat, and what only the elected one does: check for crashed workers, and wait for their end.

One session lock decides; a leader row with an expiry stands beside it, because a *frozen* leader keeps its
lock. Whoever finds the row expired ends the frozen one's session and takes the lock. The frozen one finds
its session closed when it wakes, and is a candidate again. Nothing depends on there being one leader: two
would enqueue two reconciles, of which the second finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from feedq.control.store.channels import LEADER_LOCK_CLASS, SESSION_LOCK_CLASS, WAKE, WORKER_LOCK_CLASS
from feedq.control.store.database import PreparedStatement
from feedq.control.store.protocol import SCHEMA
from feedq.control.store.session_ends import SessionEndWaiters
from feedq.control.store.worker_session import Listener
from feedq.control.store.workers import OVERDUE

BEAT_ELECTION = ("beat", 1)
"""Name of the leader row and second key of the lock."""

WAITER_NAME = "feedq-waiter"
"""What sessions that wait for the end of workers are called, with their holder, in ``pg_stat_activity``."""
PASS_S = 0.25
"""A pass is stamped when it ends and goes by the time when it began, which is no longer ago than this: a worker
that settled meanwhile gets another."""

# First check: no session holds the worker's lock. Second check, by the next round: still none, so it is crashed.
# A heartbeat in between clears the suspicion.
_LIVENESS_CHECK = f"""
    WITH locks AS MATERIALIZED (SELECT * FROM {SCHEMA}.session_locks), sessions AS (
        SELECT k.key AS lock_key, k.pid, own.key IS NOT NULL AS has_own
        FROM locks k LEFT JOIN locks own
            ON own.class = {SESSION_LOCK_CLASS} AND own.key = k.pid AND own.pid = k.pid
        WHERE k.class = {WORKER_LOCK_CLASS}
    ), holding AS MATERIALIZED (
        SELECT w.id, w.lock_key, w.suspected_at FROM feedq.worker w WHERE w.state <> 'gone' AND w.session_locks
    ), silent AS (
        SELECT id, suspected_at FROM holding w
        WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.lock_key = w.lock_key)
    ), first_look AS (
        UPDATE feedq.worker w SET suspected_at = feedq.clock()
        FROM silent WHERE w.id = silent.id AND silent.suspected_at IS NULL AND w.suspected_at IS NULL
        RETURNING w.id
    )
    SELECT
        (SELECT count(*) FROM silent WHERE suspected_at IS NOT NULL),
        (SELECT count(*) FROM first_look),
        (SELECT count(*) FROM feedq.worker w WHERE w.state <> 'gone' AND {OVERDUE}),
        (SELECT pass_seq FROM feedq.fleet),
        (SELECT extract(epoch FROM feedq.clock() - pass_at)::float8 FROM feedq.fleet),
        EXISTS (SELECT FROM feedq.lease WHERE state = 'idle' AND retry_at IS NOT NULL
                  AND retry_at <= feedq.now())
        OR EXISTS (SELECT FROM feedq.lease WHERE state = 'stopping' AND stop_by <= feedq.now())
        OR EXISTS (SELECT FROM feedq.worker w, feedq.fleet f
                   WHERE w.state = 'active' AND w.target_state = 'serving'
                     AND w.started_at + make_interval(secs => %(settle_s)s)
                         BETWEEN f.pass_at - make_interval(secs => {PASS_S}) AND feedq.clock()),
        (SELECT extract(epoch FROM min(at) - feedq.clock())::float8 FROM (
            (SELECT retry_at AS at FROM feedq.lease WHERE state = 'idle' AND retry_at > feedq.now()
             ORDER BY retry_at LIMIT 1)
            UNION ALL
            SELECT min(stop_by) FROM feedq.lease WHERE state = 'stopping' AND stop_by > feedq.now()
            UNION ALL
            SELECT min(expires_at) FROM feedq.worker
            WHERE state <> 'gone' AND expires_at > feedq.now()
            UNION ALL
            SELECT min(started_at) + make_interval(secs => %(settle_s)s) FROM feedq.worker
            WHERE state = 'active' AND started_at > feedq.now() - make_interval(secs => %(settle_s)s)
        ) upcoming),
        CASE WHEN (SELECT count(*) FROM holding) <= %(waiters)s THEN (
            SELECT coalesce(array_agg(ARRAY[w.lock_key::bigint, coalesce(s.pid, 0), s.has_own::int]), '{{}}')
            FROM holding w LEFT JOIN sessions s USING (lock_key)
        ) END
"""
_PREPARED_CHECK = PreparedStatement.of(
    "feedq_liveness", _LIVENESS_CHECK, {"settle_s": "float8", "waiters": "integer"}
)


@dataclass(frozen=True, slots=True)
class LivenessCheck:
    """The result of one liveness check of all workers."""

    crashed: int
    """Workers without a session in two checks in a row."""
    suspected: int
    """Workers without a session for the first time: check again soon."""
    expired: int
    """Workers that have not renewed in time, or whose heartbeat lies ahead since the clock was put back."""
    pass_seq: int
    """Counts finished reconcile passes: what was asked for before it grew has been served."""
    pass_age_s: float | None
    is_due: bool = False
    """Whether some feed's delay is over, or the time in which an owner should have released its feed; or a
    worker has settled since the last pass."""
    due_in_s: float | None = None
    """When the next of these will be, or a worker expires."""
    is_awaited: bool = False
    """Whether the end of any worker will be heard at once, without another check."""
    has_heard: bool = False
    """Whether this check comes because the end of a session was heard."""


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
        self._holder, self._host, self._pid, self._ttl_s = holder, host, pid, ttl_s
        self._settle_s = settle_s
        self._session = Listener(url, WAKE, application_name=f"feedq-beat/{holder}")
        self._check = _LIVENESS_CHECK
        self._has_heard = False
        name = f"{WAITER_NAME}/{holder}"
        self._waiters = SessionEndWaiters(url, limit=waiters, application_name=name, pause_s=rearm_s)
        # For the end of the leader, whose only lock it is.
        self._vacancy = SessionEndWaiters(
            url, limit=1, application_name=name, pause_s=rearm_s, lock_class=LEADER_LOCK_CLASS
        )

    def campaign(self) -> bool:
        """Try to win; True when this candidate leads now."""
        name, number = BEAT_ELECTION
        won = self._session.execute("SELECT pg_try_advisory_lock(%s, %s)", (LEADER_LOCK_CLASS, number))
        if not won[0][0]:
            return False
        self._vacancy.close()
        self._session.execute(
            """
            INSERT INTO feedq.leader (name, holder, host, pid, backend_pid, expires_at)
            VALUES (%s, %s, %s, %s, %s, feedq.clock() + make_interval(secs => %s))
            ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, host = excluded.host,
                pid = excluded.pid, backend_pid = excluded.backend_pid, elected_at = feedq.clock(),
                expires_at = excluded.expires_at
            """,
            (name, str(self._holder), self._host, self._pid, self._session.backend_pid, self._ttl_s),
        )
        if self._session.prepare(_PREPARED_CHECK, lock_class=LEADER_LOCK_CLASS, key=number):
            self._check = _PREPARED_CHECK.execute
        # What it writes is of no use after a crash of the database, which ends the session and the term with it.
        self._session.execute("SET synchronous_commit = off")
        return True

    def end_frozen_leader(self) -> bool:
        """End the sessions of a leader whose row has expired; True when there were any."""
        # It cannot be good for longer than a term, unless the clock was put back: from now on it is good for one.
        self._session.execute(
            """
            UPDATE feedq.leader SET expires_at = feedq.clock() + make_interval(secs => %s)
            WHERE name = %s AND expires_at > feedq.clock() + make_interval(secs => %s)
            """,
            (self._ttl_s, BEAT_ELECTION[0], self._ttl_s),
        )
        rows = self._session.execute(
            f"""
            SELECT pg_terminate_backend(a.pid) FROM feedq.leader l
            JOIN pg_stat_activity a ON a.application_name = left('{WAITER_NAME}/' || l.holder, 63)
                OR a.pid = l.backend_pid AND a.application_name = left('feedq-beat/' || l.holder, 63)
            WHERE l.name = %s AND l.expires_at < feedq.clock()
            """,
            (BEAT_ELECTION[0],),
        )
        return bool(rows)

    def stand_by(self, pause_s: float) -> None:
        """Wait until the leader's session has ended, or until its row expires. Where neither will be heard, for
        ``pause_s``."""
        name, number = BEAT_ELECTION
        found = self._session.execute(
            """
            SELECT pg_backend_pid() = %s, (
                SELECT extract(epoch FROM expires_at - feedq.clock())::float8
                FROM feedq.leader WHERE name = %s)
            """,
            (self._session.backend_pid, name),
        )
        is_direct, left_s = found[0]
        if is_direct and left_s is not None:  # behind a pooler it would keep one of the few that all share
            self._vacancy.watch({number: [number]})
            if self._vacancy.is_complete:
                pause_s = max(pause_s, left_s)
        self._session.wait(pause_s, self._vacancy.descriptors())
        self._vacancy.go_on(self._session.ready)

    def renew(self) -> bool:
        """Extend the leader row; False when somebody else is leader now."""
        rows = self._session.execute(
            """
            UPDATE feedq.leader SET expires_at = feedq.clock() + make_interval(secs => %s)
            WHERE name = %s AND holder = %s RETURNING 1
            """,
            (self._ttl_s, BEAT_ELECTION[0], str(self._holder)),
        )
        self._session.execute("SELECT feedq_1.stamp_alive(%s)", (self._ttl_s,))
        return bool(rows)

    def check_liveness(self) -> LivenessCheck:
        parameters = {"settle_s": self._settle_s, "waiters": self._waiters.limit}
        *found, sessions = self._session.execute(self._check, parameters)[0]
        # Behind a pooler, which the check shows that is not prepared, a session could not wait either.
        if self._check is _PREPARED_CHECK.execute and self._waiters.limit:
            self._waiters.watch(None if sessions is None else _backends(sessions))
        has_heard, self._has_heard = self._has_heard, False
        return replace(LivenessCheck(*found), is_awaited=self._waiters.is_complete, has_heard=has_heard)

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


def _backends(sessions: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Groups the backends of workers by lock key; none for one of which the end of a backend could not be waited
    for."""
    found: dict[int, set[int]] = {}
    unheard: set[int] = set()
    for key, backend, has_own in sessions:
        found.setdefault(key, set()).add(backend)
        if not has_own:
            unheard.add(key)
    return {key: set() if key in unheard else backends for key, backends in found.items()}
