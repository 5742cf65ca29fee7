"""The operations of workers on runs, each method one or a few short transactions. The rules stand in
`feedq/control/sql/runs.sql` and `ends.sql`.

**The order of locks**, which keeps everything here, and everything in `feedq.control.store.jobs.schedules`, free
of deadlocks. Whoever waits for a row lock takes them so:

1. rows of `job_queue`, by name (claims only);
2. rows of `schedule`, by id;
3. rows of `run`, by id.

Firing, claiming and expiry take most of theirs with SKIP LOCKED, for which no order is needed: who never waits
closes no circle. What remains are

====================  ========================  ==========================  =======================================
who                   queues                    schedules                   runs
====================  ========================  ==========================  =======================================
fire_due                                        skips locked ones           cancel_other waits briefly, by id
claim                 waits briefly, by name                                skips locked ones
finish                                          waits briefly, by id; few   waits briefly, by id
transact                                        waits; one                  waits; one, right before its commit
expire                                          skips locked ones           skips locked ones
take_over                                                                   waits briefly, by id
declare, trigger, …                             waits; one                  waits, by id
promote                                         skips locked ones           buffered ones, and retries
====================  ========================  ==========================  =======================================

A claim ends what it took and cannot read afterwards, in a transaction of its own: that is a finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from feedq.control.store.database import (
    Aggregate,
    Connection,
    Database,
    in_statement,
)
from feedq.control.store.jobs import firing
from feedq.control.store.jobs.sessions import JobSessions
from feedq.control.store.protocol import call, document, read
from feedq.core.schedule.model import ClaimedRun, Finish, Finished, Fired, Granted, Offer, RunState
from feedq.core.values import storable
from feedq.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

LINES_PER_SCAN = 1_000
"""The number of schedules with buffered runs that are looked at for one whose turn nobody has."""
SCHEDULES_PER_SCAN = 100
"""The number of schedules with a history of their own that are trimmed at a time. Each costs a walk over as
many index entries as it keeps runs."""
_TAKEN_AWAY = """
    SELECT given.id FROM unnest(CAST(%(ids)s AS bigint[]), CAST(%(fences)s AS bigint[])) AS given (id, fence)
    WHERE NOT EXISTS (
        SELECT FROM feedq.run r WHERE r.id = given.id AND r.fence = given.fence
            AND r.worker_id = %(worker_id)s AND r.state = 'running' OFFSET 0
    )
"""
_ANY_TO_EXPIRE = """
    SELECT EXISTS (SELECT FROM feedq.run WHERE state = 'running') OR EXISTS (
            SELECT FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by <= feedq.now()
        ) AS expiry,
        EXISTS (SELECT FROM feedq.run WHERE state = 'buffered') AS promotion
"""


class _Claim(msgspec.Struct):
    """What a claim took."""

    runs: list[tuple[int, int, msgspec.Raw]]
    """Id, fence and the run, which this release may not be able to read."""
    missed: list[int]
    """The runs that missed their start deadline, and were ended."""
    next_in_s: float | None


class RunStore(Aggregate):
    """Runs, as workers see them. Every method leaves nothing half done. Thread-safe."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._sessions = JobSessions(database.url)
        self._trimmed_to = 0
        """The schedule with a history of its own after which the next scan goes on."""
        self._promoted_to = 0
        """The schedule with buffered runs after which the next scan goes on."""

    def fire_due(self, *, limit: int) -> Fired:
        """Fire what is due of at most ``limit`` schedules: in one transaction the ticks become rows, each
        watermark moves on, and workers with room are told. Any number of nodes may do this at once; they share the
        work. Idle, it reads one index and writes nothing."""
        with self._database.statement() as c:
            scanned = firing.scan_due(c)
        if scanned.next_in_s is None or scanned.next_in_s > 0:
            return scanned
        with self._database.transaction() as c:
            return firing.fire(c, limit=limit)

    # -- claiming and finishing ----------------------------------------------------------------------

    def claim(self, offer: Offer) -> Granted:
        """Take runs to run, each under a new fence and in state running, before any of their code runs. Run
        ids, attempts, deadlines, rate and concurrency are judged here."""
        if offer.limit <= 0:
            return Granted((), None)
        taken = self._claim(offer)
        promote_behind(self._database, taken.missed)
        runs: list[ClaimedRun] = []
        unreadable: list[Finish] = []
        for run_id, fence, run in taken.runs:
            try:
                runs.append(read(run, ClaimedRun))
            except InvalidInput as error:
                reason = f"its stored job cannot be read: {error}"
                unreadable.append(Finish(run_id, fence, RunState.FAILED, reason))
        if unreadable:
            # They would hold their schedule's place for ever. Should this be cut off, they are held and unknown to
            # their worker, as after a lost answer. Not within the claim: their schedule is locked before them.
            self.finish(offer.worker_id, unreadable)
        return Granted(runs, taken.next_in_s)

    @in_statement
    def _claim(self, c: Connection, offer: Offer) -> _Claim:
        given = {"session": offer.worker_id, "free": offer.limit, "slots": offer.slots}
        return call(c, "claim_runs", _Claim, **given, fleet_slots=offer.fleet_slots)

    def finish(self, worker_id: UUID, finishes: Sequence[Finish]) -> Finished:
        """End attempts, or have them repeated. Those whose fence has passed had been taken away, which is written
        down as an event `run_finish_rejected`."""
        succeeded = self._succeed(worker_id, finishes)
        others = [f for f in finishes if f.run_id not in succeeded]
        if not others:
            return Finished(list(succeeded), ())
        finished = self._finish(worker_id, others)
        promote_behind(self._database, finished.ended)
        return Finished([*succeeded, *finished.ended], finished.busy)

    @in_statement
    def _finish(self, c: Connection, worker_id: UUID, finishes: Sequence[Finish]) -> Finished:
        told = [f if f.reason is None else replace(f, reason=storable(f.reason)) for f in finishes]
        return call(c, "finish", Finished, session=worker_id, finishes=document(told))

    def _succeed(self, worker_id: UUID, finishes: Sequence[Finish]) -> set[int]:
        """End these runs, if all are successes of the common kind: what else there is has its place among them, as
        failures in a row are counted. Returns the ids of those that it has ended."""
        done = {f.run_id: f.fence for f in finishes if f.state is RunState.SUCCEEDED and f.reason is None}
        if not done or len(done) != len(finishes):
            return set()
        # By id, the order in which rows of runs are locked.
        ids = sorted(done)
        fences = [done[run_id] for run_id in ids]
        with self._database.statement() as c:
            ended = call(c, "succeed", list[tuple[int, bool]], session=worker_id, ids=ids, fences=fences)
        promote_behind(self._database, [run_id for run_id, is_followed in ended if is_followed])
        return {run_id for run_id, _ in ended}

    @contextmanager
    def transact(self, worker_id: UUID, run: ClaimedRun) -> Iterator[Session]:
        """A session for a `transactional` job. Leaving the block commits what it wrote together with the success
        of the run, in one transaction; raises `RunTakenAway` and commits nothing when the fence has passed,
        which is written down as by `finish`. An exception within rolls back and passes through: the caller
        finishes the run as failed. Raises `JobSessionLost` when the session was cut off, or could not be had:
        nothing was kept, and the caller finishes the run as lost."""
        with self._sessions.transact(worker_id, run) as session:
            yield session
        promote_behind(self._database, [run.id])

    # -- what a worker holds -------------------------------------------------------------------------

    @in_statement
    def held(self, c: Connection, worker_id: UUID) -> Mapping[int, int]:
        """Return what the database thinks this worker runs: run id → fence. A claim whose answer was lost is
        found here."""
        sql = "SELECT id, fence FROM feedq.run WHERE worker_id = %(worker_id)s AND state = 'running' ORDER BY id"
        return {row.id: row.fence for row in c.execute(sql, {"worker_id": worker_id})}

    @in_statement
    def taken_away(self, c: Connection, worker_id: UUID, fences: Mapping[int, int]) -> set[int]:
        """Return which of these runs (id → fence) are no longer this worker's."""
        given = {"worker_id": worker_id, "ids": list(fences), "fences": list(fences.values())}
        return {row.id for row in c.execute(_TAKEN_AWAY, given)}

    @in_statement
    def take_over(self, c: Connection, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
        """Make runs (id → fence) of a session of this process that was declared gone this session's, as far as
        nobody has taken them away. Returns those that are."""
        held = {"runs": list(fences), "fences": list(fences.values())}
        return set(call(c, "take_over", list[int], session=worker_id, was=was, **held))

    # -- what any worker may do ----------------------------------------------------------------------

    def expire(self, *, limit: int) -> int:
        """Free the runs of workers that are gone: lost, or waiting again, as their semantics say. A run of a
        worker that lives, or may be about to say so, is left alone, however late. Returns how many. And promote
        what nobody has promoted."""
        with self._database.statement() as c:
            needs = c.execute(_ANY_TO_EXPIRE).one()
            expired = call(c, "expire_runs", int, most=limit) if needs.expiry else 0
            if needs.promotion:
                given = {"after": self._promoted_to, "most": LINES_PER_SCAN}
                self._promoted_to = call(c, "promote_stranded", int, **given)
        return expired

    @in_statement
    def workers(self, c: Connection) -> tuple[int, int]:
        """Return how many workers are given runs, being neither leaving, nor cordoned, nor without slots; and how
        many job slots they have together."""
        sql = """
            SELECT count(*)::int AS workers, coalesce(sum(job_slots), 0)::int AS slots FROM feedq.worker
            WHERE state = 'active' AND target_state = 'serving' AND job_slots > 0
        """
        row = c.execute(sql).one()
        return row.workers, row.slots

    @in_statement
    def trim(self, c: Connection, *, older_than_days: int, limit: int) -> int:
        """Delete ended runs of this age, or as their schedules keep them, and removed schedules with none left.
        Returns how many runs; ``limit`` or more when there are others."""
        deleted = call(c, "trim_runs", int, keep_days=older_than_days, most=limit)
        given = {"after": self._trimmed_to, "among": SCHEDULES_PER_SCAN, "most": limit}
        kept, self._trimmed_to = call(c, "trim_kept", tuple[int, int], **given)
        return max(deleted, kept)


def promote_behind(database: Database, run_ids: Collection[int]) -> None:
    """Promote in a transaction of its own what waits behind these runs, whose end has been committed. Should the
    database be away by now, what waits is found as stranded."""
    if run_ids:
        with suppress(Unavailable), database.statement() as c:
            call(c, "promote_behind", int, runs=list(run_ids))
