"""Edits: how a pass finds the feeds that somebody touched, and does what follows.

The planner cannot know how many are dirty: of a million feeds all are, and a minute later none is. So the
statements here are written so that whatever it assumes, they look up single feeds by their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from feedq.lease import CLEARED_BY_EDIT, Edit, Move, states_before
from feedq.model import Feed, Lease, Reason
from feedq.store.assigning import GIVEN, reason_columns, rename_idle
from feedq.store.channels import NotifyReason, notify_workers
from feedq.store.feed_rows import FEED_COLUMNS, LEASE_COLUMNS, feed_from, lease_from
from feedq.telemetry import EventKind

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


class PassEdits:
    """The part of a reconcile pass that takes in what people have changed."""

    _c: Connection

    def absorb_new(self, *, limit: int) -> int:
        self._c.execute(text(_MISSING), {"limit": limit})
        cleared = [reason.value for reason in CLEARED_BY_EDIT if reason is not None]
        return self._c.execute(text(_NEW), {"limit": limit, "cleared": cleared}).rowcount

    def dirty(self, *, limit: int) -> list[tuple[Feed, Lease]]:
        self._c.execute(text(_MISSING), {"limit": limit})
        rows = self._c.execute(text(_DIRTY), {"limit": limit}).all()
        return [(feed_from(row), lease_from(row, row.id)) for row in rows]

    def apply_edits(self, edits: Sequence[tuple[int, Edit]], *, stop_within_s: float) -> None:
        clean = "UPDATE feedq.feed SET dirty = false WHERE id = ANY(:ids)"
        self._c.execute(text(clean), {"ids": [i for i, _ in edits]})
        rename_idle(self._c, [(i, e.reason) for i, e in edits if e.move is None and e.reason and not e.purge])
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
