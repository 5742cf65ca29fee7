"""Limits of job queues."""

from __future__ import annotations

from collections.abc import Mapping

from feedq.control.store.database import Aggregate, Connection, in_transaction
from feedq.control.store.jobs.rows import UNFINISHED, record
from feedq.core.schedule.model import QueueDepth
from feedq.core.schedule.spec import Queue
from feedq.errors import NotFound
from feedq.telemetry.event_names import EventKind


class QueueStore(Aggregate):
    """Limits of job queues. Thread-safe."""

    @in_transaction
    def set(self, c: Connection, queue: Queue) -> None:
        """Declare the limits of a queue. Starts that it has saved up stay its own, up to the new burst."""
        # Full at first, as a bucket is that nobody has drawn from.
        sql = """
            INSERT INTO feedq.job_queue AS q (name, rate_per_s, burst, concurrency, tokens)
            VALUES (%(name)s, %(rate_per_s)s, %(burst)s, %(concurrency)s, %(burst)s)
            ON CONFLICT (name) DO UPDATE SET rate_per_s = excluded.rate_per_s, burst = excluded.burst,
                concurrency = excluded.concurrency,
                tokens = CASE WHEN q.rate_per_s IS NULL THEN excluded.burst ELSE least(excluded.burst,
                    q.tokens + q.rate_per_s
                        * greatest(extract(epoch FROM feedq.clock() - q.tokens_at), 0)) END,
                tokens_at = feedq.clock()
        """
        c.execute(sql, dict(queue))
        record(
            c, EventKind.QUEUE_CHANGED, **{"queue" if key == "name" else key: value for key, value in queue}
        )

    @in_transaction
    def remove(self, c: Connection, name: str) -> None:
        """Lift the limits of a queue. Its runs stay. Raises `NotFound`."""
        sql = "DELETE FROM feedq.job_queue WHERE name = %(name)s RETURNING name"
        if c.execute(sql, {"name": name}).one_or_none() is None:
            raise NotFound(f"job queue {name!r} has no limits to remove")
        record(c, EventKind.QUEUE_REMOVED, queue=name)

    @in_transaction
    def all(self, c: Connection) -> list[Queue]:
        sql = "SELECT name, rate_per_s, burst, concurrency FROM feedq.job_queue ORDER BY name"
        return [Queue.of(row._asdict()) for row in c.execute(sql)]

    def listed(self) -> list[QueueDepth]:
        """The queues that have limits or unfinished runs, by name."""
        queues, depths = {found.name: found for found in self.all()}, self.depths()
        names = sorted(queues.keys() | depths.keys())
        return [QueueDepth(name, queues.get(name), *depths.get(name, (0, 0))) for name in names]

    @in_transaction
    def depths(self, c: Connection) -> Mapping[str, tuple[int, int]]:
        """Runs waiting and running, by queue."""
        sql = f"""
            SELECT queue, count(*) FILTER (WHERE state <> 'running')::int AS waiting,
                count(*) FILTER (WHERE state = 'running')::int AS running
            FROM feedq.run WHERE {UNFINISHED} GROUP BY queue
        """
        return {row.queue: (row.waiting, row.running) for row in c.execute(sql)}
