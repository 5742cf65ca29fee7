"""What the contract suites of schedules and runs need beside the interfaces; PostgreSQL only.

Rows to start from in as few words as possible, and a clock that can be moved on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg2
from psycopg2.extensions import cursor as Cursor  # noqa: N812 -- a class, named as the others are

from feedq.control.store.worker_session import worker_channel
from feedq.core.model import NewWorker, Worker
from feedq.core.schedule.model import Run, RunState, Schedule
from feedq.core.schedule.spec import ScheduleSpec
from tests.contract.harness import TTL_S, WAIT_FOR_ROWS_S, Harness
from tests.schedules import Keys, schedule_spec


class JobsHarness(Harness):
    """A store with no schedule, run or queue in it. Its clock, by which everything goes, may be ahead of that of
    whoever asks."""

    def __init__(self, url: str, *, ahead_days: int = 0) -> None:
        super().__init__(url)
        self._ahead_days = ahead_days
        self._put_clock(f" + interval '{ahead_days} days'")
        self.database = self.store._database
        self.schedules = self.store.jobs.schedules
        self.queues = self.store.jobs.queues

    def close(self) -> None:
        self._put_clock("")
        super().close()

    # -- time ----------------------------------------------------------------------------------------

    def _put_clock(self, ahead: str) -> None:
        if self._ahead_days:
            self.put_clock(f"statement_timestamp(){ahead}", f"clock_timestamp(){ahead}")

    def now(self) -> datetime:
        """On the database's clock."""
        ((now,),) = self.execute("SELECT feedq.clock()")
        assert isinstance(now, datetime)
        return now

    def elapse(self, seconds: float) -> None:
        """Everything happened so much earlier, runs' ticks and their keys included.

        What a declaration says (a moment, an anchor, a cron expression) stays as it is: let whole intervals
        elapse, or a schedule's ticks are moved off its own grid.
        """
        super().elapse(seconds)
        # Keys are unique: all of them have to go before the new ones can come.
        self.execute("UPDATE feedq.run SET key = '~' || id WHERE kind IN ('tick', 'backfill')")
        self.execute(
            "UPDATE feedq.run SET key = replace("
            """to_char(tick_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '.000000Z', 'Z') """
            "WHERE kind IN ('tick', 'backfill')"
        )

    # -- rows to start from --------------------------------------------------------------------------

    def job_worker(
        self,
        name: str = "a",
        *,
        slots: int = 4,
        ttl_s: float = TTL_S,
        tasks: Collection[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Worker:
        """A worker that takes runs and no feeds; unless it is said, it does not say which tasks it knows."""
        new = NewWorker(
            uuid4(), name, f"node.{name}", 0, "host", 1, "0", labels or {}, job_slots=slots, tasks=tasks
        )
        return self.store.workers.register(new, ttl_s=ttl_s)

    def schedule(self, name: str = "nightly", **changes: object) -> Schedule:
        return self.schedules.add(schedule_spec(name, **changes))

    def triggered(self, name: str = "nightly", **changes: object) -> Run:
        """The run of a schedule that is declared and triggered at once."""
        self.schedule(name, **changes)
        return self.schedules.trigger(name)

    def damage(self, name: str, keys: Keys) -> None:
        """Put keys into a stored declaration, as a later release might."""
        sql = "UPDATE feedq.schedule SET declaration = declaration || %s WHERE name = %s"
        self.execute(sql, json.dumps(keys), name)

    def declared(self) -> dict[str, ScheduleSpec]:
        """All declared schedules by name."""
        return {schedule.spec.name: schedule.spec for schedule in self.schedules.all()}

    # -- what other parts do, in one statement each ---------------------------------------------------

    def start(self, run: Run, worker: Worker) -> int:
        """The run as if that worker had claimed it. Returns its fence."""
        ((fence,),) = self.execute(
            "UPDATE feedq.run SET state = 'running', worker_id = %s, fence = nextval('feedq.run_fence'), "
            "started_at = feedq.clock() WHERE id = %s AND state = 'waiting' RETURNING fence",
            str(worker.id),
            run.id,
        )
        assert isinstance(fence, int)
        return fence

    def end(self, run: Run, state: RunState = RunState.SUCCEEDED) -> None:
        """The run as if it had ended like this."""
        done = self.execute(
            "UPDATE feedq.run SET state = %s, ended_at = feedq.clock() WHERE id = %s RETURNING id",
            state.value,
            run.id,
        )
        assert done == [(run.id,)]

    def notified(self, act: Callable[[], object], *workers: Worker) -> set[str]:
        """The names of those workers among these that are told that something waits for them."""
        channels = {worker_channel(worker.lock_key): worker.name for worker in workers}
        return {channels[channel] for channel in self.heard(list(channels), act)}

    def events(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        """Kind and detail of what history has, the oldest first."""
        sql = "SELECT kind, detail FROM feedq.event WHERE kind = ANY(%s) ORDER BY id"
        rows: list[Any] = self.execute(sql, list(kinds))
        return rows

    @contextmanager
    def waiting_long(self) -> Iterator[None]:
        """Whoever ends runs waits for rows that somebody has locked, and does not go on without them."""
        lock = "ALTER FUNCTION feedq_1.lock_runs SET lock_timeout = "
        self.execute(f"{lock} '{1000 * WAIT_FOR_ROWS_S:.0f}ms'")
        try:
            yield
        finally:
            self.execute(f"{lock} '200ms'")

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """A transaction of somebody else, which holds what it locks until the end of the block."""
        with closing(psycopg2.connect(self.url)) as connection, connection, connection.cursor() as cursor:
            yield cursor
