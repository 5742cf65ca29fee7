"""The election of the beat, and what only the elected one does: look for crashed workers.

One session lock decides; a leader row with an expiry stands beside it, because a *frozen* leader keeps its
lock. Whoever finds the row expired ends the frozen one's session and takes the lock. The frozen one finds
its session closed when it wakes, and is a candidate again. Nothing depends on there being one leader: two
would enqueue two reconciles, of which the second finds nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from feedq.store.channels import HELD_LOCKS, LEADER_LOCK_CLASS, WAKE
from feedq.store.session import PostgresListener
from feedq.store.workers import STAMP_ALIVE

BEAT_ELECTION = ("beat", 1)
"""Name of the leader row and second key of the lock."""

PASS_S = 0.25
"""A pass is stamped when it ends and goes by the time when it began, which is no longer ago than this: a worker
that settled meanwhile gets another."""

# First look: nobody holds the worker's lock. Second look, by the next round: still nobody, so it is crashed.
# A heartbeat in between clears the suspicion.
_LOOK = f"""
    WITH sessions AS MATERIALIZED ({HELD_LOCKS}), silent AS (
        SELECT w.id, w.suspected_at FROM feedq.worker w
        WHERE w.state <> 'gone' AND w.session_locks
          AND NOT EXISTS (SELECT FROM sessions s WHERE s.lock_key = w.lock_key)
    ), first_look AS (
        UPDATE feedq.worker w SET suspected_at = clock_timestamp()
        FROM silent WHERE w.id = silent.id AND silent.suspected_at IS NULL AND w.suspected_at IS NULL
        RETURNING w.id
    )
    SELECT
        (SELECT count(*) FROM silent WHERE suspected_at IS NOT NULL),
        (SELECT count(*) FROM first_look),
        (SELECT count(*) FROM feedq.worker w WHERE w.state <> 'gone' AND w.expires_at < clock_timestamp()),
        (SELECT pass_seq FROM feedq.fleet),
        (SELECT extract(epoch FROM clock_timestamp() - pass_at)::float8 FROM feedq.fleet),
        EXISTS (SELECT FROM feedq.lease WHERE state = 'idle' AND retry_at IS NOT NULL
                  AND retry_at <= statement_timestamp())
        OR EXISTS (SELECT FROM feedq.lease WHERE state = 'stopping' AND stop_by <= statement_timestamp())
        OR EXISTS (SELECT FROM feedq.worker w, feedq.fleet f
                   WHERE w.state = 'active' AND w.target_state = 'serving'
                     AND w.started_at + make_interval(secs => %(settle_s)s)
                         BETWEEN f.pass_at - make_interval(secs => {PASS_S}) AND clock_timestamp())
"""
_PREPARE_LOOK = f"PREPARE feedq_look (float8) AS {_LOOK}" % {"settle_s": "$1"}
_PREPARED_LOOK = "EXECUTE feedq_look (%(settle_s)s)"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look over the workers found."""

    crashed: int
    """Workers without a session in two looks in a row."""
    suspected: int
    """Workers without a session for the first time: look again soon."""
    expired: int
    """Workers that have not renewed in time."""
    pass_seq: int
    """Counts finished reconcile passes: what was asked for before it grew has been served."""
    pass_age_s: float | None
    is_due: bool = False
    """Whether some feed's delay is over, or the time in which an owner should have let go; or a worker has settled
    since the last pass."""


class Election:
    """One candidate's session. Used by one thread; any method may raise `Unavailable`."""

    def __init__(self, url: str, *, holder: UUID, host: str, pid: int, ttl_s: float, settle_s: float) -> None:
        self._holder, self._host, self._pid, self._ttl_s = holder, host, pid, ttl_s
        self._settle_s = settle_s
        self._session = PostgresListener(url, WAKE, application_name=f"feedq-beat/{holder}")
        self._look = _LOOK

    def campaign(self) -> bool:
        """Try to win; True when this candidate leads now."""
        name, number = BEAT_ELECTION
        won = self._session.execute("SELECT pg_try_advisory_lock(%s, %s)", (LEADER_LOCK_CLASS, number))
        if not won[0][0]:
            return False
        self._session.execute(
            """
            INSERT INTO feedq.leader (name, holder, host, pid, backend_pid, expires_at)
            VALUES (%s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s))
            ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, host = excluded.host,
                pid = excluded.pid, backend_pid = excluded.backend_pid, elected_at = clock_timestamp(),
                expires_at = excluded.expires_at
            """,
            (name, str(self._holder), self._host, self._pid, self._session.backend_pid, self._ttl_s),
        )
        if self._session.prepare(_PREPARE_LOOK, lock_class=LEADER_LOCK_CLASS, key=number):
            self._look = _PREPARED_LOOK
        return True

    def depose_frozen(self) -> bool:
        """End the session of a leader whose row has expired; True when there was one."""
        rows = self._session.execute(
            """
            SELECT pg_terminate_backend(l.backend_pid) FROM feedq.leader l
            JOIN pg_stat_activity a ON a.pid = l.backend_pid
                AND a.application_name = left('feedq-beat/' || l.holder, 63)
            WHERE l.name = %s AND l.expires_at < clock_timestamp()
            """,
            (BEAT_ELECTION[0],),
        )
        return bool(rows)

    def renew(self) -> bool:
        """Extend the leader row; False when somebody else is leader now."""
        rows = self._session.execute(
            """
            UPDATE feedq.leader SET expires_at = clock_timestamp() + make_interval(secs => %s)
            WHERE name = %s AND holder = %s RETURNING 1
            """,
            (self._ttl_s, BEAT_ELECTION[0], str(self._holder)),
        )
        self._session.execute(STAMP_ALIVE.replace(":ttl_s", "%(ttl_s)s"), {"ttl_s": self._ttl_s})
        return bool(rows)

    def look(self) -> Look:
        return Look(*self._session.execute(self._look, {"settle_s": self._settle_s})[0])

    def wait(self, timeout_s: float) -> bool:
        """True when reconcile was asked for in time."""
        return self._session.wait(timeout_s)

    def interrupt(self) -> None:
        self._session.interrupt()

    def close(self) -> None:
        self._session.close()
