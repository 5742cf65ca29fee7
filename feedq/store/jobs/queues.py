"""Limits of job queues."""

from __future__ import annotations

from sqlalchemy import text

from feedq.errors import InvalidInput, NotFound
from feedq.schedule.model import Queue
from feedq.store.database import Database
from feedq.store.jobs.writing import UNFINISHED

RATE_MAX = 1_000_000.0
BURST_MAX = 1_000_000.0
CONCURRENCY_MAX = 2**31 - 1
"""As the column holds it."""


class PostgresQueues:
    """`feedq.store.jobs.base.Queues` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, queue: Queue) -> None:
        """Raises `InvalidInput`. Starts that a queue has saved up stay its own, up to the new burst."""
        _check(queue)
        # Full at first, as a bucket is that nobody has drawn from.
        sql = """
            INSERT INTO feedq.job_queue AS q (name, rate_per_s, burst, concurrency, tokens)
            VALUES (:name, :rate_per_s, :burst, :concurrency, :burst)
            ON CONFLICT (name) DO UPDATE SET rate_per_s = excluded.rate_per_s, burst = excluded.burst,
                concurrency = excluded.concurrency,
                tokens = CASE WHEN q.rate_per_s IS NULL THEN excluded.burst ELSE least(excluded.burst,
                    q.tokens + q.rate_per_s
                        * greatest(extract(epoch FROM clock_timestamp() - q.tokens_at), 0)) END,
                tokens_at = clock_timestamp()
        """
        parameters = {
            "name": queue.name,
            "rate_per_s": queue.rate_per_s,
            "burst": queue.burst,
            "concurrency": queue.concurrency,
        }
        with self._database.transaction() as c:
            c.execute(text(sql), parameters)

    def remove(self, name: str) -> None:
        """Its runs stay, and are under no limits any more. Raises `NotFound`."""
        sql = "DELETE FROM feedq.job_queue WHERE name = :name RETURNING name"
        with self._database.transaction() as c:
            if c.execute(text(sql), {"name": name}).one_or_none() is None:
                raise NotFound(f"job queue {name!r} has no limits to remove")

    def all(self) -> list[Queue]:
        sql = "SELECT name, rate_per_s, burst, concurrency FROM feedq.job_queue ORDER BY name"
        with self._database.transaction() as c:
            return [Queue(*row) for row in c.execute(text(sql))]

    def depths(self) -> dict[str, tuple[int, int]]:
        sql = f"""
            SELECT queue, count(*) FILTER (WHERE state = 'waiting')::int AS waiting,
                count(*) FILTER (WHERE state = 'running')::int AS running
            FROM feedq.run WHERE {UNFINISHED} GROUP BY queue
        """
        with self._database.transaction() as c:
            return {row.queue: (row.waiting, row.running) for row in c.execute(text(sql))}


def _check(queue: Queue) -> None:
    name, rate, burst, concurrency = queue.name, queue.rate_per_s, queue.burst, queue.concurrency
    if not name or name != name.strip() or not name.isprintable():
        raise InvalidInput(f"job queue {name!r}: a name must be printable, without spaces around it")
    # Comparisons with what is no number are false.
    if rate is not None and not 0 < rate <= RATE_MAX:
        raise InvalidInput(f"job queue {name!r}: rate_per_s must be more than 0 and at most {RATE_MAX:.0f}")
    if not 1 <= burst <= BURST_MAX:
        raise InvalidInput(f"job queue {name!r}: burst must be from 1 to {BURST_MAX:.0f}")
    if concurrency is not None and not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidInput(f"job queue {name!r}: concurrency must be from 1 to {CONCURRENCY_MAX}")
