"""Checkpoints as people look at them, and give them to another feed."""

from __future__ import annotations

from collections.abc import Collection
from uuid import uuid4

from sqlalchemy import delete, insert, update

from feedq.sinks.base import Checkpoint, Taking
from feedq.sinks.cursors import ascii_text
from feedq.sinks.identity import not_its_own, taken_meanwhile
from feedq.sinks.session import SinkSession, parts
from feedq.sinks.table_definitions import checkpoint, utc_now

c = checkpoint.c


def checkpoints(session: SinkSession, feeds: Collection[str] | None) -> list[Checkpoint]:
    """Those of feeds of these names, or all, by name."""
    if feeds is None:
        return session.find_checkpoints()
    return [one for part in parts(sorted(feeds)) for one in session.find_checkpoints(c.feed.in_(part))]


def take(session: SinkSession, taking: Taking) -> None:
    """Give a feed its checkpoint, in one transaction. Raises `Conflict`, `AnswerLost`."""
    old, identity = taking.instead_of, taking.identity
    session.begin()
    ids = sorted({taking.feed_id, *([] if old is None else [old.feed_id])})
    session.execute(session.locking(ids))
    there = {one.feed_id: one for one in session.find_checkpoints(c.feed_id.in_(ids))}
    if old is not None:
        now = there.get(old.feed_id)
        if now is None or (now.commit_id, now.feed_uuid) != (old.commit_id, old.feed_uuid):
            raise taken_meanwhile(old)
        session.execute(delete(checkpoint).where(session.of([old.feed_id])))
    own = there.get(taking.feed_id)
    if own is not None and not own.is_of(taking.feed_id, taking.feed, identity):
        raise not_its_own(taking)
    values = {
        "cursor": ascii_text(taking.cursor),
        "records": taking.records,
        "commit_id": str(uuid4()),
        "feed_uuid": str(identity.feed),
        "installation": str(identity.installation),
    }
    if own is None or (old is not None and old.feed_id == taking.feed_id):
        key = {"environment": session.environment, "feed_id": taking.feed_id, "feed": taking.feed}
        session.execute(insert(checkpoint).values(**key, epoch=0, owner=str(session.worker_id), **values))
    else:
        found = session.of([taking.feed_id])
        session.execute(update(checkpoint).where(found).values(**values, updated_at=utc_now()))
    session.commit()
