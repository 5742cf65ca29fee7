"""Runs on PostgreSQL: each method a short transaction, the work of which is in the modules beside.

**The order of locks**, which keeps everything here, and everything in `feedq.store.jobs.schedules`, free of
deadlocks. Whoever waits for a row lock takes them so:

1. rows of `job_queue`, by name (claims only), or of `calendar`, by name (declarations only);
2. rows of `schedule`, by id;
3. rows of `run`, by id.

Firing, claiming and expiry take most of theirs with SKIP LOCKED, for which no order is needed: who never waits
closes no circle. What remains are

====================  ========================  ==========================  =======================================
who                   queues                    schedules                   runs
====================  ========================  ==========================  =======================================
fire_due                                        skips locked ones           cancel_other waits, by id
claim                 waits, by name                                        skips locked ones
finish                                          waits, by id; few           waits, by id
transact                                        waits; one                  waits; one, right before its commit
expire                                          skips locked ones           skips locked ones
take_over                                                                   waits, by id
calendars                                       waits, by id; all of one
declare, trigger, …                             waits; one                  waits, by id
====================  ========================  ==========================  =======================================

A claim ends what it took and cannot read afterwards, in a transaction of its own: that is a finish.

The two indexes by which a writer may wait for another's commit come last in that order, and their holders wait for
nothing any more: `run_key` (only for who holds the schedule's row) and `run_one_at_a_time` (see
`feedq.store.jobs.claiming`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from uuid import UUID

import psycopg2
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from feedq.schedule.model import ClaimedRun, Finish, Hint
from feedq.store.database import Database
from feedq.store.jobs import claiming, expiry, finishing, firing, holding, retention
from feedq.store.jobs.base import Fired, Granted, JobWorker, Offer
from feedq.store.jobs.candidates import first_due_in_s
from feedq.store.jobs.prepared import PreparedRuns
from feedq.store.jobs.schedules import AGEING_S
from feedq.store.jobs.sessions import JobSessions

CLAIM_TRIES = 5
"""Each time another worker was about to take a run of the same schedule, and has taken it since."""


class PostgresRuns:
    """`feedq.store.jobs.base.Runs` on PostgreSQL."""

    def __init__(self, database: Database, *, ageing_s: float = AGEING_S) -> None:
        self._database = database
        self._ageing_s = ageing_s
        self._sessions = JobSessions(database.url)
        self._trimmed_to = 0
        self._prepared = PreparedRuns(database.url, ageing_s=ageing_s)

    def fire_due(self, *, limit: int) -> Fired:
        with self._database.statement() as c:
            looked = firing.look(c)
        if looked.next_in_s is None or looked.next_in_s > 0:
            return looked
        with self._database.transaction() as c:
            return firing.fire(c, limit=limit, ageing_s=self._ageing_s)

    def claim(self, offer: Offer) -> Granted:
        if offer.limit <= 0:
            return Granted((), None)
        for _ in range(CLAIM_TRIES):
            try:
                taken = self._prepared.claim(offer) or self._claim(offer)
            except (IntegrityError, psycopg2.IntegrityError):
                continue  # the index has decided between two; nothing of this claim was kept
            if taken.unreadable:
                # Should this be cut off, they are held and unknown to their worker, as after a lost answer.
                self.finish(offer.worker_id, taken.unreadable)
            return taken.granted
        return Granted((), claiming.AGAIN_S)

    def _claim(self, offer: Offer) -> claiming.ClaimedRuns:
        with self._database.statement() as c:
            first_in_s = first_due_in_s(c)
        if first_in_s is None or first_in_s > 0:
            return claiming.ClaimedRuns(Granted((), first_in_s))
        if (taken := self._prepared.claim(offer, is_due=True)) is not None:
            return taken
        with self._database.transaction() as c:
            return claiming.claim(c, offer, ageing_s=self._ageing_s)

    def finish(self, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
        succeeded = self._prepared.succeed(worker_id, finishes)
        others = [f for f in finishes if f.run_id not in succeeded]
        if not others:
            return list(succeeded)
        with self._database.transaction() as c:
            return [*succeeded, *finishing.finish(c, worker_id, others)]

    def transact(self, worker_id: UUID, run: ClaimedRun) -> AbstractContextManager[Session]:
        return self._sessions.transact(worker_id, run)

    def held(self, worker_id: UUID) -> Mapping[int, int]:
        with self._database.statement() as c:
            return holding.held(c, worker_id)

    def due(self, offer: Offer) -> list[Hint]:
        with self._database.transaction() as c:
            return claiming.due(c, offer, ageing_s=self._ageing_s)

    def taken_away(self, worker_id: UUID, fences: Mapping[int, int]) -> set[int]:
        with self._database.statement() as c:
            return holding.taken_away(c, worker_id, fences)

    def overdue(self, worker_id: UUID, *, by_s: float) -> Mapping[int, int]:
        with self._database.statement() as c:
            return holding.overdue(c, worker_id, by_s=by_s)

    def take_over(self, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
        with self._database.transaction() as c:
            return expiry.take_over(c, worker_id, was, fences)

    def expire(self, *, limit: int) -> int:
        with self._database.statement() as c:
            if not expiry.is_needed(c):
                return 0
        with self._database.transaction() as c:
            return expiry.expire(c, limit=limit)

    def workers(self) -> list[JobWorker]:
        with self._database.statement() as c:
            return holding.workers(c)

    def trim(self, *, older_than_days: int, limit: int) -> int:
        with self._database.transaction() as c:
            deleted = retention.trim(c, older_than_days=older_than_days, limit=limit)
        with self._database.transaction() as c:
            kept = retention.trim_kept(c, after=self._trimmed_to, limit=limit)
        self._trimmed_to = kept.after
        return max(deleted, kept.runs)

    def close(self) -> None:
        self._sessions.close()
        self._prepared.close()
