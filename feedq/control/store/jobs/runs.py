"""The operations of workers on runs, each method one or a few short transactions.

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
fire_due                                        skips locked ones           cancel_other waits, by id
claim                 waits, by name                                        skips locked ones
finish                                          waits, by id; few           waits, by id
transact                                        waits; one                  waits; one, right before its commit
expire                                          skips locked ones           skips locked ones
take_over                                                                   waits, by id
declare, trigger, …                             waits; one                  waits, by id
promote                                         waits, by id                buffered ones, and retries
====================  ========================  ==========================  =======================================

A claim ends what it took and cannot read afterwards, in a transaction of its own: that is a finish.

The two indexes by which a writer may wait for another's commit come last in that order: `run_key` and
`run_one_at_a_time`. Whoever makes rows in them holds the schedule's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from feedq.control.store.database import (
    Aggregate,
    Connection,
    Database,
    GivenRows,
    in_statement,
    in_transaction,
)
from feedq.control.store.jobs import claiming, finishing, firing, turns
from feedq.control.store.jobs.rows import FENCES
from feedq.control.store.jobs.sessions import JobSessions
from feedq.control.store.protocol import call
from feedq.core.schedule.model import ClaimedRun, Finish, Fired, Granted, Offer, RunState

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

LINES_PER_SCAN = 1_000
"""The number of schedules with buffered runs that are looked at for one whose turn nobody has."""
SCHEDULES_PER_SCAN = 100
"""The number of schedules with a history of their own that are trimmed at a time. Each costs a walk over as
many index entries as it keeps runs."""

KEEPING = "jsonb_exists(declaration, 'keep')"
"""As the index `schedule_keeping` has it."""

# Only a time that stays the same for a statement can be looked for in an index. And ARRAY, so that what was found
# is looked up by its ids, and no table is read as a whole to be joined with it.
_OLD_RUNS = f"""
    DELETE FROM feedq.run WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.run r
        WHERE ended_at IS NOT NULL AND ended_at < feedq.now() - make_interval(days => %(days)s)
            AND schedule_id <> ALL(ARRAY(
            SELECT id FROM feedq.schedule WHERE {KEEPING} AND (declaration #>> '{{keep,days}}')::int > %(days)s
        ))
        ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ))
"""
# Nothing makes runs of a removed schedule any more, so one without any stays so.
_REMOVED_SCHEDULES = """
    DELETE FROM feedq.schedule WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.schedule s
        WHERE removed_at IS NOT NULL AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.schedule_id = s.id)
        ORDER BY removed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ))
"""
_KEEPING = f"""
    SELECT id, (declaration #>> '{{keep,runs}}')::int AS runs, (declaration #>> '{{keep,days}}')::int AS days
    FROM feedq.schedule
    WHERE {KEEPING} AND id > %(after)s
    ORDER BY id LIMIT %(limit)s
"""
# Only the oldest of each are read, so that one which keeps much is not read as a whole each time.
_KEEPERS = GivenRows("id bigint, runs int, days int")
_KEPT = f"""
    DELETE FROM feedq.run WHERE id = ANY(ARRAY(
        SELECT id FROM feedq.run WHERE id = ANY(ARRAY(
            SELECT r.id
            FROM {_KEEPERS}
            LEFT JOIN LATERAL (
                SELECT id FROM feedq.run WHERE schedule_id = given.id ORDER BY id DESC OFFSET given.runs LIMIT 1
            ) beyond ON given.runs IS NOT NULL
            CROSS JOIN LATERAL (
                SELECT id, ended_at FROM feedq.run WHERE schedule_id = given.id ORDER BY id LIMIT %(limit)s
            ) r
            WHERE r.ended_at IS NOT NULL AND (r.id <= beyond.id
                OR r.ended_at < feedq.now() - make_interval(days => given.days))
            LIMIT %(limit)s
        )) ORDER BY id FOR UPDATE SKIP LOCKED
    ))
"""


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
        with self._database.statement() as c:
            taken = claiming.claim(c, offer)
        turns.promote_behind(self._database, taken.missed)
        if taken.unreadable:
            # Should this be cut off, they are held and unknown to their worker, as after a lost answer.
            self.finish(offer.worker_id, taken.unreadable)
        return taken.granted

    def finish(self, worker_id: UUID, finishes: Sequence[Finish]) -> list[int]:
        """End attempts, or have them repeated. Returns the ids that matched their fence; the others had been
        taken away, which is written down as an event `run_finish_rejected`."""
        succeeded = self._succeed(worker_id, finishes)
        others = [f for f in finishes if f.run_id not in succeeded]
        if not others:
            return list(succeeded)
        with self._database.transaction() as c:
            finished = finishing.finish(c, worker_id, others)
        turns.promote_behind(self._database, finished)
        return [*succeeded, *finished]

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
            ended = call(
                c, "succeed", list[tuple[int, int | None]], session=worker_id, ids=ids, fences=fences
            )
        followed = {schedule_id for _, schedule_id in ended if schedule_id is not None}
        turns.promote_later(self._database, followed)
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
        turns.promote_behind(self._database, [run.id])

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
        sql = f"""
            SELECT given.id FROM {FENCES}
            WHERE NOT EXISTS (
                SELECT FROM feedq.run r WHERE r.id = given.id AND r.fence = given.fence
                    AND r.worker_id = %(worker_id)s AND r.state = 'running' OFFSET 0
            )
        """
        parameters = {"worker_id": worker_id, **FENCES.of(fences.items())}
        return {row.id for row in c.execute(sql, parameters)}

    @in_transaction
    def take_over(self, c: Connection, worker_id: UUID, was: UUID, fences: Mapping[int, int]) -> set[int]:
        """Make runs (id → fence) of a session of this process that was declared gone this session's, as far as
        nobody has taken them away. Returns those that are."""
        return finishing.take_over(c, worker_id, was, fences)

    # -- what any worker may do ----------------------------------------------------------------------

    def expire(self, *, limit: int) -> int:
        """Free the runs of workers that are gone: lost, or waiting again, as their semantics say. A run of a
        worker that lives, or may be about to say so, is left alone, however late. Returns how many. And promote
        what nobody has promoted."""
        with self._database.statement() as c:
            needs = finishing.needs(c)
        expired = 0
        if needs.expiry:
            with self._database.transaction() as c:
                expired = finishing.expire(c, limit=limit)
        if needs.promotion:
            with self._database.transaction() as c:
                found, self._promoted_to = call(
                    c, "stranded", tuple[list[int], int], after=self._promoted_to, most=LINES_PER_SCAN
                )
            turns.promote_later(self._database, found)
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

    def trim(self, *, older_than_days: int, limit: int) -> int:
        """Delete ended runs of this age, or as their schedules keep them, and removed schedules with none left.
        Returns how many runs; ``limit`` or more when there are others. Any node may do it, several at once: they
        share the rows. What has not ended is never deleted, however old."""
        with self._database.transaction() as c:
            deleted = c.execute(_OLD_RUNS, {"days": older_than_days, "limit": limit}).rowcount
            c.execute(_REMOVED_SCHEDULES, {"limit": limit})
        with self._database.transaction() as c:
            return max(deleted, self._trim_kept(c, limit))

    def _trim_kept(self, c: Connection, limit: int) -> int:
        """Delete at most ``limit`` runs of the next schedules that keep a history of their own, beyond what they
        keep. They are gone through by their ids, so that a scan takes as long whether there are ten of them or a
        hundred thousand."""
        keeping = c.execute(_KEEPING, {"after": self._trimmed_to, "limit": SCHEDULES_PER_SCAN})
        if not keeping:
            self._trimmed_to = 0
            return 0
        deleted = c.execute(_KEPT, {**_KEEPERS.of(keeping), "limit": limit}).rowcount
        if deleted < limit:
            self._trimmed_to = keeping[-1].id if len(keeping) == SCHEDULES_PER_SCAN else 0
        return deleted
