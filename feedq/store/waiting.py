"""Which feeds a pass places: those that nobody has and that may start.

A million of them may be without a place for long. So the ones about which something is new come first, and
those that were found to have no place take turns: each pass goes on where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.model import Reason
from feedq.placement import NO_EXPERIENCE, WaitingFeed
from feedq.store.feed_rows import avoided_from, selector_from
from feedq.store.held import REMOTE, SERVING, SINK, candidates, experiences
from feedq.store.measured import EFFECTIVE_WEIGHT, Means

# Each branch is a small index of its own. What is due is asked for with the time at which the statement
# began: with a clock that moves on, the index could not be used.
_MAY_START = "l.state = 'idle'"
_IDLE = """
    SELECT l.feed_id FROM feedq.lease l CROSS JOIN LATERAL (
        SELECT FROM feedq.feed WHERE id = l.feed_id AND removed_at IS NULL AND target_state = 'running'
        OFFSET 0  -- one look-up a lease: merged with all feeds by id, those that have a place would be read too
    ) f
"""
_NEWS = f"""
    SELECT feed_id FROM (
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL
           AND l.reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match')
         ORDER BY l.feed_id LIMIT :limit)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NOT NULL AND l.retry_at <= statement_timestamp()
           AND l.reason NOT IN ('paused', 'removed')
         ORDER BY l.retry_at LIMIT :limit)
    ) news ORDER BY feed_id LIMIT :limit
"""
_UNPLACED = f"""
    SELECT feed_id FROM (
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_capacity'
           AND l.feed_id > :after AND l.feed_id <= :upto ORDER BY l.feed_id LIMIT :limit)
        UNION ALL
        ({_IDLE} WHERE {_MAY_START} AND l.retry_at IS NULL AND l.reason = 'no_match'
           AND l.feed_id > :after AND l.feed_id <= :upto ORDER BY l.feed_id LIMIT :limit)
    ) unplaced ORDER BY feed_id LIMIT :limit
"""
_DETAILS = f"""
    SELECT l.feed_id, l.reason, l.promised_to, f.tenant, nullif(f.selector, '{{}}') AS selector,
        nullif(l.avoid, '{{}}') AS avoid, {SINK} AS sink, {REMOTE} AS remote, {EFFECTIVE_WEIGHT} AS weight
    FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id
    WHERE l.feed_id = ANY(:ids)
      -- Removed and declared anew: the one that is ending must be off the source first.
      AND NOT EXISTS (
          SELECT FROM feedq.lease ending JOIN feedq.feed removed ON removed.id = ending.feed_id
          WHERE ending.state = 'stopping' AND removed.removed_at IS NOT NULL AND removed.name = f.name)
    ORDER BY l.feed_id
"""
_ALL = 2**63 - 1


def waiting(c: Connection, *, limit: int, after: int, means: Means) -> tuple[list[WaitingFeed], int]:
    """What to place now, and where the next pass goes on among those without a place."""
    _promise_to_successors(c)
    ids = _ids(c, _NEWS, limit=limit)
    left = limit - len(ids)
    if left > 0:
        unplaced = _ids(c, _UNPLACED, limit=left, after=after, upto=_ALL)
        if after and len(unplaced) < left:
            unplaced += _ids(c, _UNPLACED, limit=left - len(unplaced), after=0, upto=after)
        ids += unplaced
        after = unplaced[-1] if len(unplaced) == left else 0
    if not ids:
        return [], after
    known = experiences(c, proven=True)
    rows = c.execute(text(_DETAILS), {"ids": ids, **means.parameters()})
    return [
        WaitingFeed(
            row.feed_id,
            row.weight,
            Reason(row.reason),
            row.tenant,
            selector_from(row.selector),
            row.promised_to,
            known.get(row.remote, NO_EXPERIENCE).avoided(avoided_from(row.avoid)),
            row.sink,
        )
        for row in rows
    ], after


def _ids(c: Connection, sql: str, **parameters: int) -> list[int]:
    return [row.feed_id for row in c.execute(text(sql), parameters)]


def _promise_to_successors(c: Connection) -> None:
    """What is held for the successor of a worker goes to it as soon as it is there, as far as it has room."""
    sql = f"""
        WITH successor AS (
            SELECT DISTINCT ON (name) id, name FROM feedq.worker w WHERE {SERVING}
            ORDER BY name, started_at DESC
        )
        SELECT l.feed_id, successor.id AS worker_id
        FROM feedq.lease l JOIN successor ON successor.name = l.held_for
        WHERE l.held_for IS NOT NULL AND l.state = 'idle' ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
    """
    if not c.execute(text("SELECT EXISTS (SELECT FROM feedq.lease WHERE held_for IS NOT NULL)")).scalar_one():
        return
    awaited = c.execute(text(sql)).all()
    if not awaited:
        return
    room = {worker.worker_id: worker.capacity - worker.feeds for worker in candidates(c, ())}
    _end_hold(c, promises_within_room([(row.feed_id, row.worker_id) for row in awaited], room))


def promises_within_room(
    awaited: Sequence[tuple[int, UUID]], room: dict[UUID, int]
) -> list[tuple[int, UUID | None]]:
    """Each feed with the worker that it is promised to; what a worker has no room for may go anywhere."""
    promises: list[tuple[int, UUID | None]] = []
    for feed_id, worker_id in awaited:
        room[worker_id] = room.get(worker_id, 0) - 1
        promises.append((feed_id, worker_id if room[worker_id] >= 0 else None))
    return promises


def _end_hold(c: Connection, promises: Sequence[tuple[int, UUID | None]]) -> None:
    sql = """
        UPDATE feedq.lease l SET held_for = NULL, retry_at = NULL, promised_to = given.worker_id
        FROM unnest(CAST(:feed_ids AS bigint[]), CAST(:worker_ids AS uuid[])) AS given (feed_id, worker_id)
        WHERE l.feed_id = given.feed_id
    """
    parameters = {
        "feed_ids": [feed_id for feed_id, _ in promises],
        "worker_ids": [None if worker_id is None else str(worker_id) for _, worker_id in promises],
    }
    c.execute(text(sql), parameters)
