"""A worker that runs what a message names, without a claim: what every plain task queue does."""

from __future__ import annotations

from sqlalchemy import text

from feedq.store.jobs.claiming import claimed_run
from feedq.tasks import store
from feedq.worker.jobs.job_service import Jobs

# As a claim would return it, and nobody is told.
_NAMED = """
    SELECT r.id, r.fence, r.attempt, r.key, r.kind, r.tick_at, r.due_at, r.job::text AS job, s.name AS schedule,
        60.0::float8 AS remaining_s, 0.0::float8 AS waited_s
    FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id WHERE r.id = :id
"""


def hint(self: Jobs, run_id: int) -> None:
    worker = self._worker()
    if self.slots is None or worker is None:
        return
    with store().jobs.runs._database.transaction() as c:
        row = c.execute(text(_NAMED), {"id": run_id}).one_or_none()
    if row is not None:
        self.slots._begin(worker.id, claimed_run(row))


Jobs.hint = hint
