"""What workers hold, and who they are. Reads only, a few look-ups each."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.store.jobs.base import JobWorker


def held(c: Connection, worker_id: UUID) -> dict[int, int]:
    """Its running runs, with their fences."""
    sql = "SELECT id, fence FROM feedq.run WHERE worker_id = :worker_id AND state = 'running' ORDER BY id"
    return {row.id: row.fence for row in c.execute(text(sql), {"worker_id": worker_id})}


def overdue(c: Connection, worker_id: UUID, *, by_s: float) -> dict[int, int]:
    """Its running runs whose time was up so long ago, with their fences."""
    sql = """
        SELECT id, fence FROM feedq.run
        WHERE worker_id = :worker_id AND state = 'running'
            AND deadline_at <= statement_timestamp() - make_interval(secs => :by_s)
    """
    return {row.id: row.fence for row in c.execute(text(sql), {"worker_id": worker_id, "by_s": by_s})}


def taken_away(c: Connection, worker_id: UUID, fences: Mapping[int, int]) -> set[int]:
    """Those of these runs that are no longer running at this worker under this fence."""
    sql = """
        SELECT given.id FROM unnest(CAST(:ids AS bigint[]), CAST(:fences AS bigint[])) AS given (id, fence)
        WHERE NOT EXISTS (
            SELECT FROM feedq.run r WHERE r.id = given.id AND r.fence = given.fence
                AND r.worker_id = :worker_id AND r.state = 'running' OFFSET 0
        )
    """
    parameters = {"worker_id": worker_id, "ids": list(fences), "fences": list(fences.values())}
    return {row.id for row in c.execute(text(sql), parameters)}


def workers(c: Connection) -> list[JobWorker]:
    """Those that are given runs: neither leaving, nor cordoned, nor without job slots."""
    sql = """
        SELECT id, name, queue, job_slots FROM feedq.worker
        WHERE state <> 'gone' AND state = 'active' AND target_state = 'serving' AND job_slots > 0
        ORDER BY name, id
    """
    return [JobWorker(row.id, row.name, row.queue, row.job_slots) for row in c.execute(text(sql))]
