"""Schedules on PostgreSQL: each method one transaction, the work of which is in the modules beside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from feedq.schedule.model import (
    Job,
    Run,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    UnreadableSpec,
)
from feedq.store.database import Database
from feedq.store.jobs import asking, declaring, run_listing, serving
from feedq.store.jobs.run_rows import declared_from

AGEING_S = 1.0
"""So many seconds of waiting make up for a point of priority."""


class PostgresSchedules:
    """`feedq.store.jobs.base.ScheduleStore` on PostgreSQL."""

    def __init__(self, database: Database, *, ageing_s: float = AGEING_S) -> None:
        self._database = database
        self._ageing_s = ageing_s

    def add(self, spec: ScheduleSpec) -> Schedule:
        with self._database.transaction() as c:
            return declaring.add(c, spec)

    def edit(self, name: str, spec: ScheduleSpec) -> Schedule:
        with self._database.transaction() as c:
            return declaring.edit(c, name, spec)

    def remove(self, name: str) -> Schedule:
        with self._database.transaction() as c:
            return declaring.remove(c, name)

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule:
        with self._database.transaction() as c:
            return declaring.pause(c, name, until=until, reason=reason)

    def resume(self, name: str) -> Schedule:
        with self._database.transaction() as c:
            return declaring.resume(c, name)

    def trigger(self, name: str, *, key: str | None = None, job: Job | None = None) -> Run:
        with self._database.transaction() as c:
            return asking.trigger(c, name, key=key, job=job, ageing_s=self._ageing_s)

    def backfill(self, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        with self._database.transaction() as c:
            return asking.backfill(c, name, ticks, ageing_s=self._ageing_s)

    def purge(self, name: str) -> int:
        with self._database.transaction() as c:
            return asking.purge(c, name)

    def cancel_run(self, run_id: int) -> Run:
        with self._database.transaction() as c:
            return asking.cancel_run(c, run_id)

    def once(self, entry: str, key: str, tick_at: datetime, job: Job) -> bool:
        with self._database.transaction() as c:
            return asking.once(c, entry, key, tick_at, job, ageing_s=self._ageing_s)

    def get(self, name: str) -> Schedule:
        with self._database.transaction() as c:
            return run_listing.get(c, name)

    def view(self, name: str) -> ScheduleView:
        with self._database.transaction() as c:
            return run_listing.view(c, name)

    def views(
        self,
        *,
        prefix: str = "",
        after: str = "",
        state: ScheduleState | None = None,
        limit: int = run_listing.PAGE_MAX,
    ) -> list[ScheduleView]:
        with self._database.transaction() as c:
            return run_listing.views(c, prefix=prefix, after=after, state=state, limit=limit)

    def urgent(self, *, failing: Sequence[str] = (), limit: int) -> list[ScheduleView]:
        with self._database.transaction() as c:
            return run_listing.urgent(c, failing=failing, limit=limit)

    def unserved(self, names: Collection[str]) -> dict[str, str]:
        with self._database.transaction() as c:
            return serving.unserved(c, names)

    def specs(self) -> dict[str, ScheduleSpec | UnreadableSpec]:
        with self._database.transaction() as c:
            rows = run_listing.specs(c)
        return {row.name: declared_from(row) for row in rows}

    def runs(
        self, name: str | None = None, *, states: Collection[RunState] = (), limit: int = 50
    ) -> list[Run]:
        with self._database.transaction() as c:
            return run_listing.runs(c, name, states=states, limit=limit)

    def run(self, run_id: int) -> Run:
        with self._database.transaction() as c:
            return run_listing.run(c, run_id)

    def counts(self, name: str) -> dict[RunState, int]:
        with self._database.transaction() as c:
            return run_listing.counts(c, name)
