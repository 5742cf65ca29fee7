"""A reconcile pass: set-based statements inside one transaction, one pass at a time in the fleet.

With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed. The planner
cannot know how many feeds somebody has touched: of a million all are dirty, and a minute later none is. So
whatever it assumes, the statements here look up single feeds by their keys.

The *sweep* compares everything with everything, a page of feeds a pass, and trims what is too old. Whoever changed
a row by hand skipped our bookkeeping: what does not add up is marked dirty, and the usual path mends it. What
somebody has locked can wait for the next sweep. A page is small, so that no pass takes long because of it and
nothing stays locked; where it ended is kept in the fleet's row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.control.store import history
from feedq.control.store.assigning import (
    EFFECTIVE_WEIGHT,
    GIVEN,
    REMOTE,
    SINK,
    PassAssignments,
    experiences,
    fold,
    reason_columns,
    recount,
)
from feedq.control.store.channels import HELD_LOCKS, PASS_LOCK, NotifyReason, notify_workers, wake_reconcile
from feedq.control.store.database import Database, GivenRows
from feedq.control.store.feed_rows import (
    FEED_COLUMNS,
    LEASE_COLUMNS,
    WORKER_COLUMNS,
    avoided_from,
    feed_from,
    lease_from,
    selector_from,
    worker_from,
)
from feedq.control.store.history import record
from feedq.control.store.leases import BIGINT_MAX, free_leases, transfer
from feedq.control.store.protocol import call
from feedq.control.store.taps import FORGET
from feedq.control.store.workers import OVERDUE
from feedq.core.lease import CLEARED_BY_EDIT, Edit, Move, OutageGrace, as_of, states_before
from feedq.core.model import Feed, Lease, Reason, Worker
from feedq.core.placement.base import NO_EXPERIENCE, Held, Transfer
from feedq.telemetry.event_names import EventKind

OVERDUE_PER_PASS = 10_000
"""Bounds a pass after an outage of the broker; the rest is for the next."""

# When the database's clock was put back, no delay and no time limit lasts longer for it. Each is stored as the
# time at which it ends: put back by an hour, the clock would make each last an hour longer. So a pass that
# begins before the one before it ended, by that clock, shortens all that lie ahead by the difference. That is
# short of the step by the time between the two passes, at most. A delay that was set since the step ends too
# soon, which costs one try. Heartbeats need no such measure: see `feedq.lease.as_of`.
# In the order of feed ids, as everywhere: two statements must not wait for each other.
_SHORTEN = """
    WITH ahead AS (
        SELECT feed_id FROM feedq.lease WHERE feed_id IN (
            SELECT feed_id FROM feedq.lease WHERE state = 'idle' AND retry_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'stopping' AND stop_by > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE state = 'assigned' AND assigned_at > statement_timestamp()
            UNION ALL
            SELECT feed_id FROM feedq.lease WHERE moved_at > statement_timestamp())
        ORDER BY feed_id FOR UPDATE
    )
    UPDATE feedq.lease l SET
        retry_at = l.retry_at - :by, stop_by = l.stop_by - :by,
        assigned_at = least(l.assigned_at, statement_timestamp()),
        moved_at = least(l.moved_at, statement_timestamp())
    FROM ahead WHERE l.feed_id = ahead.feed_id
"""


_FIRST = "ARRAY(SELECT id FROM feedq.feed WHERE dirty ORDER BY id LIMIT :limit)"
_MISSING = f"""
    INSERT INTO feedq.lease (feed_id)
    SELECT f.id FROM feedq.feed f
    WHERE f.id = ANY({_FIRST}) AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
    ORDER BY f.id ON CONFLICT DO NOTHING
"""
# No lock on the lease: only a pass makes anything else of an idle one, and passes are one at a time.
_NEW = f"""
    UPDATE feedq.feed f SET dirty = false
    WHERE f.id = ANY({_FIRST}) AND f.dirty AND f.removed_at IS NULL AND f.target_state = 'running'
      AND (SELECT l.state = 'idle' AND l.reason <> ALL(:cleared) FROM feedq.lease l WHERE l.feed_id = f.id)
"""
_DIRTY = f"""
    SELECT {FEED_COLUMNS}, {LEASE_COLUMNS} FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
    WHERE f.id = ANY({_FIRST}) AND f.dirty
    ORDER BY f.id FOR UPDATE OF l, f  -- the lease first, as everywhere
"""
# In one statement: what has landed all it was begun for is in the history of its feed, or still there.
_END_BACKFILLS = """
    WITH ended AS (
        SELECT f.id, f.parent, f.backfill, l.records_total, l.dead_letters_total,
            round(extract(epoch FROM clock_timestamp() - f.created_at)::numeric, 3) AS took_s
        FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.parent IS NOT NULL AND f.removed_at IS NULL AND l.state = 'idle' AND l.reason = 'finished'
        ORDER BY f.id FOR UPDATE OF l, f SKIP LOCKED
    ), told AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT :kind, parent, backfill || jsonb_build_object(
            'records', records_total, 'dead_letters', dead_letters_total, 'took_s', took_s)
        FROM ended
    )
    DELETE FROM feedq.feed f USING ended WHERE f.id = ended.id
"""
_PARTED = GivenRows("feed_id bigint, reason text, quarantined boolean")

SWEEP_PAGE = 5_000
"""Feeds of one page, events that are trimmed with it, and feeds whose workers are counted anew."""
WEIGHT_STEP = 0.1
"""The part of itself by which a measured weight must have changed before it is written."""

_MISMATCHED = """
    WITH missing AS (
        SELECT f.id FROM feedq.feed f
        WHERE f.id > :after AND f.id <= :upto
          AND NOT f.dirty AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.feed_id = f.id)
    ), mismatched AS (
        SELECT f.id FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.id > :after AND f.id <= :upto AND NOT f.dirty AND (
            (l.state IN ('running', 'assigned')
                AND (f.removed_at IS NOT NULL OR f.target_state <> 'running'))
            OR (l.state = 'running' AND l.generation < f.generation)
            OR (l.state = 'idle' AND f.removed_at IS NOT NULL)
            OR (l.state = 'idle' AND l.reason = 'paused' AND f.target_state = 'running')
            OR (l.state = 'idle' AND (l.reason IS NULL OR l.reason = 'failed' AND l.retry_at IS NULL)))
        ORDER BY f.id FOR UPDATE OF l, f SKIP LOCKED
    )
    UPDATE feedq.feed SET dirty = true
    WHERE id IN (SELECT id FROM missing UNION ALL SELECT id FROM mismatched)
"""
_WEIGHTS = f"""
    WITH weighed AS MATERIALIZED (
        SELECT l.feed_id, l.weight AS before, {EFFECTIVE_WEIGHT} AS weight
        FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
        WHERE l.feed_id > :after AND l.feed_id <= :upto AND l.worker_id IS NOT NULL AND NOT f.dirty
    ), changed AS (
        SELECT l.feed_id, weighed.weight FROM weighed JOIN feedq.lease l USING (feed_id)
        WHERE abs(weighed.weight - before) > CASE WHEN :measured = 0 THEN 1e-9 ELSE {WEIGHT_STEP} * before END
        ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
    )
    UPDATE feedq.lease l SET weight = changed.weight FROM changed WHERE l.feed_id = changed.feed_id
"""
# The oldest by id: they are not looked for by time, which would read all that are young enough to stay. And ARRAY,
# because a plan for a table that the planner takes for small looks for IN anew for each row, and deletes them all.
_TRIM = """
    DELETE FROM feedq.event
    WHERE id = ANY(ARRAY(SELECT id FROM feedq.event ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
      AND at < clock_timestamp() - make_interval(days => :days)
"""
_TRIM_FEEDS = """
    DELETE FROM feedq.event WHERE id = ANY(ARRAY(
        SELECT e.id FROM (
            SELECT f.id AS feed_id, (
                SELECT id FROM feedq.event WHERE feed_id = f.id ORDER BY id DESC OFFSET :per_feed LIMIT 1
            ) AS last
            FROM feedq.feed f WHERE f.id > :after AND f.id <= :upto
        ) many JOIN feedq.event e ON e.feed_id = many.feed_id AND e.id <= many.last
        LIMIT :limit FOR UPDATE OF e SKIP LOCKED
    ))
"""
_FORGET_WORKERS = """
    DELETE FROM feedq.worker w
    WHERE w.state = 'gone' AND w.heartbeat_at < clock_timestamp() - make_interval(days => :days)
      AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id)
      AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running')
"""


@dataclass(frozen=True, slots=True)
class SuspectWorker:
    """A worker that may be gone, its row locked until the pass ends."""

    worker: Worker
    has_session: bool


class Fleet:
    """The operations on the fleet as a whole."""

    def __init__(self, database: Database, *, retention_days: int) -> None:
        self._database = database
        self._retention_days = retention_days

    @contextmanager
    def reconcile_pass(self, *, measured_load: float = 0.0) -> Iterator[ReconcilePass | None]:
        """Begin a pass; None when another one is under way. Leaving the block commits and stamps it.

        ``measured_load``, from 0 to 1, is how much of a feed's weight is what was measured of it.
        """
        with self._database.transaction() as c:
            # For the transaction: a pass whose process is killed releases it with its backend.
            free = c.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": PASS_LOCK}).scalar_one()
            if not free:
                yield None
                return
            this_pass = ReconcilePass(c, retention_days=self._retention_days, measured_load=measured_load)
            yield this_pass
            this_pass.stamp()

    def wake(self) -> None:
        """Ask for a reconcile pass soon."""
        with self._database.transaction() as c:
            wake_reconcile(c)


class ReconcilePass(PassAssignments):
    """A pass of reconcile: one transaction, and only one in the fleet at a time."""

    def __init__(self, connection: Connection, *, retention_days: int, measured_load: float) -> None:
        self._c = connection
        self._retention_days = retention_days
        self._measured_load = measured_load
        row = connection.execute(text("SELECT *, clock_timestamp() AS now FROM feedq.fleet")).one()
        self.now: datetime = row.now
        """The database's clock at the beginning of the pass."""
        self.evened_out: str | None = row.evened_out
        """The fleet for which no move was found, as a fingerprint: it need not be considered again."""
        self._waiting_after: int = row.waiting_after
        self._sweep_at: datetime | None = row.sweep_at and min(row.sweep_at, row.now)
        """When the latest sweep began."""
        self._swept_to: int | None = row.swept_to
        """The feed that the next pass goes on from; None when the sweep is done."""
        self._page: Mapping[str, int] | None = None
        """The feeds that this pass has swept."""
        if row.pass_at is not None and row.pass_at > row.now:
            # The clock was put back.
            connection.execute(text(_SHORTEN), {"by": row.pass_at - row.now})

    def stamp(self) -> None:
        """The fleet's row comes last, here as in a heartbeat: the other way round the two would deadlock."""
        if self._page is not None:
            self._weigh(self._means)
        sql = """
            UPDATE feedq.fleet SET pass_at = clock_timestamp(), pass_seq = pass_seq + 1,
                active_workers = (SELECT count(*) FROM feedq.worker WHERE state = 'active' AND capacity > 0),
                evened_out = :evened_out, waiting_after = :waiting_after, sweep_at = :sweep_at,
                swept_to = :swept_to
        """
        parameters = {
            "evened_out": self.evened_out,
            "waiting_after": self._waiting_after,
            "sweep_at": self._sweep_at,
            "swept_to": self._swept_to,
        }
        self._c.execute(text(sql), parameters)

    def outage_grace(self, *, ttl_s: float) -> OutageGrace:
        """Return since when the database was heard from without a break of more than half a ttl.

        Such a break may still be under way: the first to come back after an outage may be this very pass.
        """
        # A pass may be the first to come back after an outage, before any heartbeat could renew.
        sql = "SELECT feedq_1.served_since(f, :ttl_s) FROM feedq.fleet f"
        return OutageGrace(self._c.execute(text(sql), {"ttl_s": ttl_s}).scalar_one())

    def suspects(self) -> list[SuspectWorker]:
        """Workers past their expiry or suspected by the beat, locked so that a late heartbeat waits."""
        # Locked before it is judged: a heartbeat that came first is seen here, a later one waits and then
        # finds the worker gone.
        sql = f"""
            SELECT {WORKER_COLUMNS}, clock_timestamp() AS now FROM feedq.worker w
            WHERE w.state <> 'gone' AND ({OVERDUE} OR w.suspected_at IS NOT NULL)
            ORDER BY w.id FOR UPDATE
        """
        rows = self._c.execute(text(sql)).all()
        if not rows:
            return []
        found = [as_of(worker_from(row), row.now) for row in rows]
        self._put_back([w for w, row in zip(found, rows, strict=True) if w != worker_from(row)])
        held = {row.lock_key for row in self._c.execute(text(HELD_LOCKS))}
        return [SuspectWorker(worker, worker.lock_key in held) for worker in found]

    def _put_back(self, workers: Sequence[Worker]) -> None:
        """Keep what `feedq.lease.as_of` made of these, which are locked."""
        columns = ("id", "started_at", "heartbeat_at", "expires_at")
        sql = (
            f"UPDATE feedq.worker SET {', '.join(f'{name} = :{name}' for name in columns[1:])} WHERE id = :id"
        )
        if workers:
            self._c.execute(text(sql), [{name: getattr(w, name) for name in columns} for w in workers])

    def expire_workers(self, worker_ids: Sequence[UUID]) -> int:
        """Declare gone *and* free every lease, in this transaction. Returns how many leases were freed."""
        sql = """
            WITH expired AS (
                UPDATE feedq.worker SET state = 'gone' WHERE id = ANY(:ids) AND state <> 'gone'
                RETURNING id
            )
            INSERT INTO feedq.event (kind, worker_id) SELECT :kind, id FROM expired
        """
        ids = list(worker_ids)
        self._c.execute(text(sql), {"ids": ids, "kind": EventKind.WORKER_GONE.value})
        return free_leases(self._c, ids, reason=Reason.WORKER_GONE)

    def overdue(self, *, timeout_s: float) -> list[UUID]:
        """Withdraw assignments never claimed in time: back to idle, to be placed anew.

        Returns the worker of each.
        """
        sql = f"""
            WITH late AS (
                SELECT feed_id, worker_id, state FROM feedq.lease
                WHERE feed_id = ANY(ARRAY(  -- by nothing but keys, as in `GIVEN`
                    SELECT feed_id FROM feedq.lease
                    WHERE state = 'assigned'
                      AND assigned_at <= statement_timestamp() - make_interval(secs => :timeout_s)
                    ORDER BY assigned_at LIMIT {OVERDUE_PER_PASS}))
                ORDER BY feed_id FOR UPDATE SKIP LOCKED  -- it is being claimed this very moment
            ), freed AS (
                UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = 'released', moved_at = NULL
                FROM late WHERE l.feed_id = late.feed_id AND late.state = 'assigned'
                RETURNING l.feed_id, late.worker_id, l.epoch
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM freed
            )
            SELECT worker_id FROM freed
        """
        kind = EventKind.LEASE_OVERDUE.value
        return [row.worker_id for row in self._c.execute(text(sql), {"timeout_s": timeout_s, "kind": kind})]

    def end_backfills(self) -> int:
        """Write the end of each backfill that has finished into the history of its feed, and forget it. Returns
        how many."""
        kind = EventKind.BACKFILL_FINISHED.value
        return self._c.execute(text(_END_BACKFILLS), {"kind": kind}).rowcount

    def quarantined(self) -> list[Lease]:
        """Leases of feeds in quarantine that run, in it or still among others."""
        # But for those that change hands this very moment.
        sql = f"""
            SELECT l.feed_id, {LEASE_COLUMNS} FROM feedq.lease l
            WHERE l.quarantined AND l.state = 'running' ORDER BY l.feed_id FOR UPDATE SKIP LOCKED
        """
        return [lease_from(row, row.feed_id) for row in self._c.execute(text(sql))]

    def part(self, leases: Sequence[Lease], *, stop_within_s: float) -> None:
        """Ask their owners to stop. What is ``quarantined`` here goes on apart, what is not among all others."""
        sql = f"""
            UPDATE feedq.lease l SET state = 'stopping', reason = given.reason, quarantined = given.quarantined,
                stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
            FROM {_PARTED}
            WHERE l.feed_id = given.feed_id AND l.state = 'running'
        """
        reasons = [Reason.QUARANTINED if lease.quarantined else Reason.RELEASED for lease in leases]
        parted = [
            (lease.feed_id, why.value, lease.quarantined) for lease, why in zip(leases, reasons, strict=True)
        ]
        self._c.execute(text(sql), {**_PARTED.of(parted), "stop_within_s": stop_within_s})
        for lease, reason in zip(leases, reasons, strict=True):
            kind = EventKind.STOP_REQUESTED if lease.quarantined else EventKind.FEED_PARDONED
            whose, why = (lease.feed_id, lease.worker_id, lease.epoch), {"reason": reason.value}
            record(self._c, kind, *whose, detail=why)
        owners = [lease.worker_id for lease in leases if lease.worker_id is not None]
        notify_workers(self._c, owners, NotifyReason.FEEDS)

    # -- what people have changed --------------------------------------------------------------------

    def accept_new(self, *, limit: int) -> int:
        """Make the lease rows that are missing, and mark clean what needs a place and nothing else, such as new
        rows made by hand. Of the first ``limit`` dirty feeds. Returns how many are clean now."""
        self._c.execute(text(_MISSING), {"limit": limit})
        cleared = [reason.value for reason in CLEARED_BY_EDIT if reason is not None]
        return self._c.execute(text(_NEW), {"limit": limit, "cleared": cleared}).rowcount

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        """Feeds that a person touched, with their leases; a lease row that is missing is made."""
        self._c.execute(text(_MISSING), {"limit": limit})
        rows = self._c.execute(text(_DIRTY), {"limit": limit}).all()
        return [(feed_from(row), lease_from(row, row.id)) for row in rows]

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        """Perform the decisions for these feed ids and mark them clean."""
        clean = "UPDATE feedq.feed SET dirty = false WHERE id = ANY(:ids)"
        self._c.execute(text(clean), {"ids": [i for i, _ in edits]})
        self.explain([(i, e.reason) for i, e in edits if e.move is None and e.reason and not e.purge])
        self._withdraw([(i, e.reason) for i, e in edits if e.move is Move.WITHDRAW])
        asked = [(i, e.reason) for i, e in edits if e.move is Move.ASK_TO_STOP]
        self._ask_to_stop(asked, stop_within_s=stop_within_s)
        purged = [i for i, e in edits if e.purge]
        self._c.execute(text("DELETE FROM feedq.feed WHERE id = ANY(:ids)"), {"ids": purged})

    def _withdraw(self, reasons: Sequence[tuple[int, Reason | None]]) -> None:
        if not reasons:
            return
        sql = f"""
            WITH {GIVEN}
            UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = given.reason, moved_at = NULL
            FROM given WHERE l.feed_id = given.feed_id AND given.state = ANY(:states)
        """
        states = [s.value for s in states_before(Move.WITHDRAW)]
        self._c.execute(text(sql), {**reason_columns(reasons), "states": states})
        # A removed feed that nobody claimed is idle now and can go with the next pass.
        again = "UPDATE feedq.feed SET dirty = true WHERE id = ANY(:ids) AND removed_at IS NOT NULL"
        self._c.execute(text(again), {"ids": [i for i, _ in reasons]})

    def _ask_to_stop(self, reasons: Sequence[tuple[int, Reason | None]], *, stop_within_s: float) -> None:
        if not reasons:
            return
        sql = f"""
            WITH {GIVEN}, asked AS (
                UPDATE feedq.lease l SET state = 'stopping', reason = given.reason,
                    stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
                FROM given WHERE l.feed_id = given.feed_id AND given.state = ANY(:states)
                RETURNING l.feed_id, l.epoch, l.worker_id, l.reason
            ), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
                SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', reason) FROM asked
            )
            SELECT DISTINCT worker_id FROM asked
        """
        parameters = {
            **reason_columns(reasons),
            "states": [s.value for s in states_before(Move.ASK_TO_STOP)],
            "stop_within_s": stop_within_s,
            "kind": EventKind.STOP_REQUESTED.value,
        }
        workers = [row.worker_id for row in self._c.execute(text(sql), parameters)]
        notify_workers(self._c, workers, NotifyReason.FEEDS)

    # -- moves ---------------------------------------------------------------------------------------

    def leaving(self) -> dict[UUID, int]:
        """Workers that are to hand over all they have, with how many feeds that still are."""
        fold(self._c)
        sql = """
            SELECT w.id, h.feeds FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id
            WHERE w.state = 'active' AND w.target_state = 'drained' AND w.expires_at > clock_timestamp()
              AND w.suspected_at IS NULL AND h.feeds > 0
        """
        return {row.id: row.feeds for row in self._c.execute(text(sql))}

    def held_for_successors(self) -> int:
        """Idle feeds that are held for the successor of their worker, right now."""
        held = "SELECT count(*) FROM feedq.lease WHERE held_for IS NOT NULL"
        return int(self._c.execute(text(held)).scalar_one())

    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        """Feeds that were asked to move within this time and are not connected at their new worker yet, by that
        worker."""
        # With the time at which the statement began: with a clock that moves on, the index could not be used.
        sql = """
            SELECT coalesce(promised_to, worker_id) AS target, count(*) AS feeds FROM feedq.lease
            WHERE moved_at IS NOT NULL AND moved_at > statement_timestamp() - make_interval(secs => :within_s)
            GROUP BY target HAVING coalesce(promised_to, worker_id) IS NOT NULL
        """
        return {row.target: row.feeds for row in self._c.execute(text(sql), {"within_s": within_s})}

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
        """Running feeds of these workers, of each the one that has run there longest first; at most ``limit``
        in all, an equal part of each worker."""
        if not worker_ids:
            return []
        sql = f"""
            SELECT f.id, held.worker_id, held.running_since, f.tenant, nullif(f.selector, '{{}}') AS selector,
                nullif(l.avoid, '{{}}') AS avoid, {SINK} AS sink, {REMOTE} AS remote, {EFFECTIVE_WEIGHT} AS weight
            FROM unnest(CAST(:ids AS uuid[])) AS source (id) CROSS JOIN LATERAL (
                SELECT feed_id, worker_id, running_since FROM feedq.lease
                WHERE worker_id = source.id AND state = 'running'
                ORDER BY running_since LIMIT :limit
            ) held
            JOIN feedq.lease l ON l.feed_id = held.feed_id JOIN feedq.feed f ON f.id = held.feed_id
            WHERE f.removed_at IS NULL AND f.target_state = 'running'
            ORDER BY held.running_since, f.id
        """
        known = experiences(self._c, proven=False)
        share = max(1, limit // len(worker_ids))
        parameters = {"ids": list(map(str, worker_ids)), "limit": share, **self._means}
        held = []
        for row in self._c.execute(text(sql), parameters):
            one = Held(
                row.id, row.worker_id, row.weight, row.tenant, selector_from(row.selector), sink=row.sink
            )
            if row.avoid or row.remote in known:
                own, others = avoided_from(row.avoid), known.get(row.remote, NO_EXPERIENCE)
                one = replace(one, avoid=others.avoided(own), reached=others.reached(own))
            held.append(one)
        return held

    def reap(self) -> int:
        """Free what an owner was asked to release and has not by its `stop_by`. Returns how many leases."""
        return call(self._c, "reap", int)

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        """Ask the owners to release these feeds, and promise each feed to its target. Returns how many were
        asked."""
        return transfer(self._c, transfers, stop_within_s=stop_within_s)

    # -- the sweep -----------------------------------------------------------------------------------

    def sweep_is_due(self, *, interval_s: float) -> bool:
        """Return whether a sweep is under way, or the last one began this long ago."""
        if self._swept_to is not None or self._sweep_at is None:
            return True
        return self._sweep_at <= self.now - timedelta(seconds=interval_s)

    def sweep(self) -> int:
        """Compare one page of feeds with their leases, mark what does not add up as dirty, count anew what
        workers hold, trim history. Returns repairs. It goes on with the next page in the pass that comes
        after."""
        c, after = self._c, self._swept_to or 0
        if self._swept_to is None:
            self._sweep_at = self.now
        last = "SELECT id FROM feedq.feed WHERE id > :after ORDER BY id LIMIT 1 OFFSET :page - 1"
        upto = c.execute(text(last), {"after": after, "page": SWEEP_PAGE}).scalar_one_or_none()
        self._page = page = {"after": after, "upto": BIGINT_MAX if upto is None else upto}
        repaired = c.execute(text(_MISMATCHED), page).rowcount
        repaired += _free_orphans(c, page)
        recount(c, limit=SWEEP_PAGE)
        bounds = {"days": self._retention_days, "per_feed": history.EVENTS_PER_FEED, "limit": SWEEP_PAGE}
        too_many = c.execute(text(_TRIM_FEEDS), {**page, **bounds}).rowcount
        too_old = c.execute(text(_TRIM), bounds).rowcount
        if too_many == SWEEP_PAGE or (upto is None and too_old == SWEEP_PAGE):
            upto = after  # there is more to trim: this page once more
        elif upto is None:
            c.execute(text(_FORGET_WORKERS), {"days": self._retention_days})
            for statement in FORGET:
                c.execute(text(statement))
        self._swept_to = upto
        return repaired

    def _weigh(self, means: Mapping[str, float]) -> None:
        """Write what the feeds of the page weigh by now.

        At the end of a pass: it locks rows that owners report on, and must not wait for anybody after that.
        """
        self._c.execute(text(_WEIGHTS), {**(self._page or {}), **means})


def _free_orphans(c: Connection, page: dict[str, int]) -> int:
    """Leases of workers that are gone already: a row changed by hand, or restored from a backup."""
    sql = """
        SELECT DISTINCT l.worker_id FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
        WHERE l.feed_id > :after AND l.feed_id <= :upto AND w.state = 'gone'
    """
    ids = [row.worker_id for row in c.execute(text(sql), page)]
    if not ids:
        return 0
    return free_leases(c, ids, reason=Reason.WORKER_GONE)
