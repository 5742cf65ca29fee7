"""Checkpoints as people look at them, and give them to another feed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, Select, delete, insert, select, update

from feedq.sinks.base import Checkpoint, Taking
from feedq.sinks.identity import not_its_own, taken_meanwhile
from feedq.sinks.sql.flavor import FEEDS_AT_ONCE
from feedq.sinks.sql.letters import cursor_of, cursor_text
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.table_definitions import checkpoint, utc_now

c = checkpoint.c


def checkpoints_where(*conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """For `checkpoint_of`, by name."""
    return select(checkpoint).where(*conditions).order_by(c.feed, c.updated_at)


def checkpoint_of(row: Row[*tuple[Any, ...]]) -> Checkpoint:
    return Checkpoint(
        feed_id=row.feed_id,
        feed=row.feed,
        epoch=row.epoch,
        cursor=cursor_of(row.cursor),
        records=row.records,
        updated_at=row.updated_at.replace(tzinfo=UTC),
        commit_id=row.commit_id and UUID(row.commit_id),
        feed_uuid=row.feed_uuid and UUID(row.feed_uuid),
        installation=row.installation and UUID(row.installation),
    )


def listed(session: SqlSession, environment: str, feeds: Collection[str] | None) -> list[Checkpoint]:
    """Those of feeds of these names, or all. Raises `SQLAlchemyError`."""
    here = c.environment == environment
    if feeds is None:
        return [checkpoint_of(row) for row in session.execute(checkpoints_where(here))]
    names, found = sorted(feeds), []
    for start in range(0, len(names), FEEDS_AT_ONCE):
        part = names[start : start + FEEDS_AT_ONCE]
        found += [checkpoint_of(row) for row in session.execute(checkpoints_where(here, c.feed.in_(part)))]
    return found


def take(session: SqlSession, environment: str, owner: UUID, taking: Taking) -> None:
    """Give a feed its checkpoint, in one transaction. Raises `Conflict`, `SQLAlchemyError`."""
    old, identity = taking.instead_of, taking.identity
    session.set_lock_wait(session.flavor.lock_timeout_s)
    session.begin()
    ids = sorted({taking.feed_id, *([] if old is None else [old.feed_id])})
    session.execute(session.flavor.locking(environment, ids))
    rows = session.execute(checkpoints_where(c.environment == environment, c.feed_id.in_(ids)))
    there = {one.feed_id: one for one in map(checkpoint_of, rows)}
    if old is not None:
        now = there.get(old.feed_id)
        if now is None or (now.commit_id, now.feed_uuid) != (old.commit_id, old.feed_uuid):
            raise taken_meanwhile(old)
        session.execute(delete(checkpoint).where(c.environment == environment, c.feed_id == old.feed_id))
    own = there.get(taking.feed_id)
    if own is not None and not own.is_of(taking.feed_id, taking.feed, identity):
        raise not_its_own(taking)
    values = {
        "cursor": cursor_text(taking.cursor),
        "records": taking.records,
        "commit_id": str(uuid4()),
        "feed_uuid": str(identity.feed),
        "installation": str(identity.installation),
    }
    if own is None or (old is not None and old.feed_id == taking.feed_id):
        key = {"environment": environment, "feed_id": taking.feed_id, "feed": taking.feed}
        session.execute(insert(checkpoint).values(**key, epoch=0, owner=str(owner), **values))
    else:
        found = (c.environment == environment) & (c.feed_id == taking.feed_id)
        session.execute(update(checkpoint).where(found).values(**values, updated_at=utc_now()))
    session.commit()
