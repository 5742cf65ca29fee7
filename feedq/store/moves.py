"""Moves: owners are asked to let go, and what they let go of has a place already.

A move is one statement, which turns ``running`` into ``stopping``, says where the feed goes (``promised_to``)
and until when its owner is waited for (``stop_by``). Killed before it, nothing has happened. Killed after it,
the owner lets go or is reaped, and any later pass assigns the feed: to the worker it was promised to, if that
still takes feeds, else anywhere. Nothing has to be remembered outside the row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.lease import Move, states_before
from feedq.placement.base import NO_EXPERIENCE, Held, Transfer
from feedq.store.assigning import EFFECTIVE_WEIGHT, REMOTE, SINK, PassAssignments, experiences
from feedq.store.channels import NotifyReason, notify_workers
from feedq.store.database import GivenRows
from feedq.store.feed_rows import avoided_from, selector_from
from feedq.store.held import fold
from feedq.store.leases import mark_dirty
from feedq.telemetry import EventKind


class PassMoves(PassAssignments):
    """The part of a reconcile pass that moves running feeds."""

    evened_out: str | None

    def leaving(self) -> dict[UUID, int]:
        fold(self._c)
        sql = """
            SELECT w.id, h.feeds FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id
            WHERE w.state = 'active' AND w.target_state = 'drained' AND w.expires_at > clock_timestamp()
              AND w.suspected_at IS NULL AND h.feeds > 0
        """
        return {row.id: row.feeds for row in self._c.execute(text(sql))}

    def moves_under_way(self, *, within_s: float) -> dict[UUID, int]:
        # With the time at which the statement began: with a clock that moves on, the index could not be used.
        sql = """
            SELECT coalesce(promised_to, worker_id) AS target, count(*) AS feeds FROM feedq.lease
            WHERE moved_at IS NOT NULL AND moved_at > statement_timestamp() - make_interval(secs => :within_s)
            GROUP BY target HAVING coalesce(promised_to, worker_id) IS NOT NULL
        """
        return {row.target: row.feeds for row in self._c.execute(text(sql), {"within_s": within_s})}

    def movable(self, worker_ids: Collection[UUID], *, limit: int) -> list[Held]:
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
        parameters = {"ids": list(map(str, worker_ids)), "limit": share, **self._means.parameters()}
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

    def transfer(self, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
        return transfer(self._c, transfers, stop_within_s=stop_within_s)

    def reap(self) -> int:
        sql = f"""
            WITH late AS (
                SELECT feed_id, worker_id FROM feedq.lease
                WHERE state = 'stopping' AND stop_by <= clock_timestamp()
                ORDER BY feed_id FOR UPDATE SKIP LOCKED  -- it is being released this very moment
            ), freed AS (
                -- What was promised to another worker stays so.
                UPDATE feedq.lease l SET state = 'idle', worker_id = NULL, reason = 'reaped', stop_by = NULL,
                    connected = false, stalled = false, retry_at = NULL,
                    moved_at = CASE WHEN l.promised_to IS NOT NULL THEN l.moved_at END
                FROM late WHERE l.feed_id = late.feed_id
                RETURNING l.feed_id, l.epoch, l.generation, late.worker_id
            ), dirty AS ({mark_dirty("freed")}), history AS (
                INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
                SELECT :kind, feed_id, worker_id, epoch FROM freed
            )
            SELECT count(*) FROM freed
        """
        return int(self._c.execute(text(sql), {"kind": EventKind.LEASE_REAPED.value}).scalar_one())


_GIVEN = GivenRows("feed_id bigint, source uuid, target uuid")


def transfer(c: Connection, transfers: Sequence[Transfer], *, stop_within_s: float) -> int:
    sql = f"""
        WITH given AS (
            SELECT * FROM {_GIVEN}
        ), locked AS (
            -- By nothing but keys, as in feedq.store.leases. What somebody has locked can move with another pass:
            -- this one may hold what they wait for.
            SELECT given.*, l.worker_id, l.state FROM (SELECT * FROM given ORDER BY feed_id) given
            CROSS JOIN LATERAL (
                SELECT * FROM feedq.lease WHERE feed_id = given.feed_id FOR UPDATE SKIP LOCKED
            ) l
        ), held AS (
            SELECT locked.*, s.target_state, w.name AS target_name FROM locked
            JOIN feedq.worker s ON s.id = locked.source
            JOIN feedq.worker w ON w.id = locked.target
            WHERE locked.worker_id = locked.source AND locked.state = ANY(:states) AND s.state <> 'gone'
        ), asked AS (
            UPDATE feedq.lease l SET state = 'stopping', promised_to = held.target,
                moved_at = clock_timestamp(),
                reason = CASE WHEN held.target_state = 'drained' THEN 'drained' ELSE 'moved' END,
                stop_by = clock_timestamp() + make_interval(secs => :stop_within_s)
            FROM held WHERE l.feed_id = held.feed_id
            RETURNING l.feed_id, l.epoch, l.worker_id, l.reason, held.target_name
        ), history AS (
            INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
            SELECT :kind, feed_id, worker_id, epoch, jsonb_build_object('reason', reason, 'to', target_name)
            FROM asked
        )
        SELECT worker_id FROM asked
    """
    parameters = {
        **_GIVEN.of((t.feed_id, str(t.source), str(t.target)) for t in transfers),
        "states": [s.value for s in states_before(Move.ASK_TO_STOP)],
        "stop_within_s": stop_within_s,
        "kind": EventKind.STOP_REQUESTED.value,
    }
    owners = [row.worker_id for row in c.execute(text(sql), parameters)]
    notify_workers(c, list(set(owners)), NotifyReason.FEEDS)
    return len(owners)
