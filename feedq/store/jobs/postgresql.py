"""Schedules, queues and runs of one control database."""

from __future__ import annotations

from feedq.store.database import Database
from feedq.store.jobs.calendars import PostgresCalendars
from feedq.store.jobs.queues import PostgresQueues
from feedq.store.jobs.runs import PostgresRuns
from feedq.store.jobs.schedules import AGEING_S, PostgresSchedules


class PostgresJobs:
    """`feedq.store.jobs.base.JobStore` on a migrated database. Thread-safe."""

    def __init__(self, database: Database, *, ageing_s: float = AGEING_S) -> None:
        self.schedules = PostgresSchedules(database, ageing_s=ageing_s)
        self.calendars = PostgresCalendars(database)
        self.queues = PostgresQueues(database)
        self.runs = PostgresRuns(database, ageing_s=ageing_s)

    def close(self) -> None:
        self.runs.close()
