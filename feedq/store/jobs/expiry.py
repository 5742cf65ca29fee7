"""Expiry: runs whose worker is gone are taken from it.

A run is its worker's as long as the worker's session lives; there is no lease of its own to renew. Until the
worker is declared gone, nobody else ends the run, whatever its time-out says: its owner does, and may only be
waiting for the database to tell it. An outage of the database is no loss of workers (`feedq.lease.Quiet`), so it
ends no run. Afterwards the time-out decides nothing either: what becomes of the run is a matter of its
semantics.

Any node may expire, several at once: what one has locked the others skip. Nothing is waited for, so the order of
locks matters to nobody else, and what was skipped is there for the next look.

A worker that has lost all its sessions for a moment is taken for dead, and lives. So what it runs is left alone
for `GRACE_S` from the suspicion on. Its process registers again within a fraction of that, and takes its runs over
by their fences: each still `running` under the fence that the process has for it, so nobody else can have begun
it. Whose heartbeats stayed away for a whole ttl, or who left, is owed no grace.

The worker, should it live after all and come later (frozen, cut off), finds its fence passed when it finishes: the
run has ended, or waits for an attempt under a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.store.jobs.claiming import MISS_DEADLINES
from feedq.store.jobs.finishing import STANDING, after_lost, end, record_lost, standing_from
from feedq.store.jobs.sessions import end_sessions

WORKER_GONE = "its worker was declared gone"

GRACE_S = 1.0
"""The runs of a process that was killed end later by this; the process that lives has to register within it."""

_NOW = "statement_timestamp()"
# A suspicion that lies ahead was before the database's clock was put back: no grace without an end.
_OWNED = f"""EXISTS (
    SELECT FROM feedq.worker w WHERE w.id = {{worker_id}} AND (w.state <> 'gone'
        OR (w.suspected_at <= {_NOW} AND w.suspected_at > {_NOW} - make_interval(secs => {GRACE_S})))
    OFFSET 0)"""
# From one worker that runs something to the next, by the index: thousands may run, on a few workers.
FOUND = f"""
    WITH RECURSIVE holder (id) AS (
        (SELECT worker_id FROM feedq.run WHERE state = 'running' ORDER BY worker_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT r.worker_id FROM feedq.run r WHERE r.state = 'running' AND r.worker_id > h.id
            ORDER BY r.worker_id LIMIT 1
        ) FROM holder h WHERE h.id IS NOT NULL
    ), gone AS (
        SELECT h.id FROM holder h WHERE h.id IS NOT NULL
            AND NOT {_OWNED.format(worker_id="h.id")}
    )
    SELECT r.id, r.schedule_id, r.worker_id FROM gone CROSS JOIN LATERAL (
        SELECT id, schedule_id, worker_id FROM feedq.run WHERE worker_id = gone.id AND state = 'running' OFFSET 0
    ) r LIMIT :limit
"""
_ANY_MISSED = f"SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'waiting' AND start_by <= {_NOW})"
_ANY = f"""
    SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'running')
        OR EXISTS (SELECT FROM feedq.run WHERE state = 'waiting' AND start_by <= {_NOW})
"""
_LOCK_SCHEDULES = f"""
    SELECT {STANDING} FROM feedq.schedule s WHERE s.id = ANY(:ids) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
"""
# Of the worker that was found: a new one, which has taken it over meanwhile, this statement may not see yet.
_LOCK_RUNS = f"""
    SELECT r.* FROM unnest(CAST(:ids AS bigint[]), CAST(:worker_ids AS uuid[])) AS given (id, worker_id)
    CROSS JOIN LATERAL (
        SELECT * FROM feedq.run WHERE id = given.id AND schedule_id = ANY(:schedule_ids)
        OFFSET 0 FOR UPDATE SKIP LOCKED
    ) r
    WHERE r.state = 'running' AND r.worker_id IS NOT DISTINCT FROM given.worker_id
        AND NOT {_OWNED.format(worker_id="r.worker_id")}
"""
_TAKE_OVER = """
    WITH given AS (
        SELECT r.id FROM (
            SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:fences AS bigint[])) AS t (id, fence) ORDER BY id
        ) t CROSS JOIN LATERAL (SELECT * FROM feedq.run WHERE id = t.id FOR UPDATE) r
        WHERE r.fence = t.fence AND r.worker_id = :was AND r.state = 'running'
            AND EXISTS (SELECT FROM feedq.worker WHERE id = :worker_id AND state <> 'gone')
    )
    UPDATE feedq.run r SET worker_id = :worker_id FROM given WHERE r.id = given.id RETURNING r.id
"""


def is_needed(c: Connection) -> bool:
    """Whether anything runs, or has missed its start deadline: nearly all looks find nothing."""
    return bool(c.execute(text(_ANY)).scalar_one())


def expire(c: Connection, *, limit: int) -> int:
    """Take at most ``limit`` runs from workers that are gone. Returns how many.

    Runs that missed their start deadline are ended, too: where nobody claims, nobody else does it.
    """
    if c.execute(text(_ANY_MISSED)).scalar_one():
        c.execute(text(MISS_DEADLINES))
    found = c.execute(text(FOUND), {"limit": limit}).all()
    if not found:
        return 0
    schedule_ids = sorted({row.schedule_id for row in found})
    standings = {
        row.id: standing_from(row) for row in c.execute(text(_LOCK_SCHEDULES), {"ids": schedule_ids})
    }
    parameters = {
        "ids": [row.id for row in found],
        "worker_ids": [row.worker_id for row in found],
        "schedule_ids": list(standings),
    }
    lost = [
        (row, after_lost(row, WORKER_GONE, standings[row.schedule_id]))
        for row in c.execute(text(_LOCK_RUNS), parameters)
    ]
    end(c, [ended for _, ended in lost], standings)
    record_lost(c, lost, standings)
    end_sessions(c, [(row.id, row.fence) for row, _ in lost])
    return len(lost)


def take_over(c: Connection, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
    """Make these runs of a former session of the process (id → fence) this session's. Returns those that are."""
    parameters = {
        "worker_id": worker_id,
        "was": was,
        "ids": list(fences),
        "fences": list(fences.values()),
    }
    return {row.id for row in c.execute(text(_TAKE_OVER), parameters)}
