"""Changes the cursor of a feed on behalf of a person, while the feed runs or not.

::

    begin ─ lock the checkpoint ─ choose the cursor ─ delete rows after it ─ new cursor, new commit id ─ commit
                  │ waits for a commit of the owner that is under way, and keeps out the next

One transaction: whoever dies when, the feed has the old cursor with all that landed, or the new one. The owner
takes no part. Its next write does not find the commit that it continues, so nothing that it has under way lands;
it fences the feed anew and goes on from the cursor that is there (ADR 0019). Each change is remembered beside the
checkpoint, the last `KEPT` of a feed, with the cursor that was there before.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import delete, func, insert, inspect, literal, select, update

from feedq.errors import Conflict, FeedqError, InvalidInput
from feedq.model import JSON, ChangedCursor
from feedq.sinks.base import Checkpoint, CursorChange, LandedRows
from feedq.sinks.catalog import Catalog
from feedq.sinks.cursors import ascii_text, cursor_of
from feedq.sinks.identity import owner_of
from feedq.sinks.landed_rows import RowsAfter
from feedq.sinks.session import SinkSession, parts
from feedq.sinks.sqlstate import ErrorScope
from feedq.sinks.table_definitions import checkpoint, cursor_change, utc_now
from feedq.sinks.target_table import TableShape

KEPT: Final = 50
"""Changes of one feed that are remembered."""
DELETED_MAX: Final = 1_000_000
"""Rows that one change deletes: the feed waits for it, and the transaction holds what it deletes."""
LOCK_PATIENCE_S: Final = 5.0
"""For a commit of the owner that is under way, where the database does not wait for it itself."""
POLL_S: Final = 0.02

c, h = checkpoint.c, cursor_change.c


def change_cursor(
    session: SinkSession, catalog: Catalog, change: CursorChange, *, commit_id: UUID
) -> ChangedCursor:
    """Raises `InvalidInput`, `Conflict`, `AnswerLost`."""
    try:
        return _change(session, catalog, change, commit_id=commit_id)
    except FeedqError:
        # Nobody is to wait for a checkpoint until the server has noticed that the session is gone.
        session.rollback()
        raise


def changes(session: SinkSession, feed_id: int, *, limit: int) -> list[ChangedCursor]:
    """The changes of a feed's cursor, newest first."""
    if not _has_table(session):
        return []
    mine = (h.environment == session.environment, h.feed_id == feed_id)
    rows = session.execute(select(cursor_change).where(*mine).order_by(h.id.desc()).limit(limit))
    return [
        ChangedCursor(
            row.at.replace(tzinfo=UTC),
            row.verb,
            cursor_of(row.cursor_before),
            cursor_of(row.cursor_after),
            row.records,
            row.deleted,
            UUID(row.commit_id),
        )
        for row in rows
    ]


def settle_change(session: SinkSession, feed_id: int, commit_id: UUID, backend: Any) -> ChangedCursor | None:
    """What became of a change whose answer was lost; None when nothing did."""
    if backend is not None:
        session.end_session(backend)
    _lock(session, feed_id)
    found = changes(session, feed_id, limit=KEPT)
    session.rollback()
    return next((one for one in found if one.commit_id == commit_id), None)


def _change(
    session: SinkSession, catalog: Catalog, change: CursorChange, *, commit_id: UUID
) -> ChangedCursor:
    shape = None if change.delete is None else catalog.inspect(change.delete.target).shape
    _make_table(session)
    own = _locked(session, change)
    before, records = (None, 0) if own is None else (own.cursor, own.records)
    last = next(iter(changes(session, change.feed_id, limit=1)), None)
    after = change.choose(before, last)
    deleted = 0
    if change.delete is not None and shape is not None:
        deleted = _delete(session, change, change.delete, shape, before=before, after=after)
    _set(session, change, own, cursor=after, records=max(0, records - deleted), commit_id=commit_id)
    done = ChangedCursor(datetime.now(UTC), change.verb, before, after, records, deleted, commit_id)
    if change.dry_run:
        session.rollback()
        return done
    _remember(session, change, done)
    session.commit()
    return done


def _locked(session: SinkSession, change: CursorChange) -> Checkpoint | None:
    """Lock the checkpoint to the end of the transaction that this begins; None when the feed has none yet."""
    _lock(session, change.feed_id)
    own = next(iter(session.find_checkpoints(c.feed_id == change.feed_id)), None)
    if own is not None and not own.is_of(change.feed_id, change.feed, change.identity):
        raise Conflict(
            f"feed {change.feed!r}: the sink has the checkpoint of another feed under its number: {owner_of(own)}"
        )
    return own


def _lock(session: SinkSession, feed_id: int) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            session.begin()
            session.execute(session.locking([feed_id])).all()
            return
        except session.errors as error:
            locked = not session.is_broken and session.scope(error) is ErrorScope.LOCKED
            session.rollback()
            if not locked or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _delete(
    session: SinkSession,
    change: CursorChange,
    rows: LandedRows,
    shape: TableShape,
    *,
    before: JSON,
    after: JSON,
) -> int:
    """Delete what the feed has landed after the new cursor; returns how many rows."""
    dialect = session.connection.dialect.name
    which = RowsAfter(rows, shape, feed=change.feed, cursor=after, before=before, dialect=dialect)
    name = f"table {rows.target.table!r}"
    try:
        if which.number is not None:
            unnumbered = select(func.count()).select_from(which.table)
            count = session.connection.scalar(unnumbered.where(which.of_feed, which.number.is_(None)))
            if count:
                raise InvalidInput(
                    f"{name}: {count} rows of feed {change.feed!r} have no number at {rows.pointer}, and nobody "
                    "can tell whether they come after the new cursor; change it without deleting"
                )
        meant = select(literal(1)).select_from(which.table).where(which.condition).limit(DELETED_MAX + 1)
        if (session.connection.scalar(select(func.count()).select_from(meant.subquery())) or 0) > DELETED_MAX:
            raise InvalidInput(
                f"{name}: more than {DELETED_MAX} rows of feed {change.feed!r} come after the new cursor, and no "
                "more are deleted at once; go back in smaller steps"
            )
        return int(session.execute(delete(which.table).where(which.condition)).rowcount)
    except session.errors as error:
        if session.is_broken or session.scope(error) not in (ErrorScope.TARGET, ErrorScope.DATA):
            raise
        raise InvalidInput(
            f"{name}: its rows cannot be deleted: {session.explain(error)}; it takes "
            f"GRANT SELECT, DELETE ON {shape.quoted} to the sink's role, or a change without deleting"
        ) from error


def _set(
    session: SinkSession,
    change: CursorChange,
    own: Checkpoint | None,
    *,
    cursor: JSON,
    records: int,
    commit_id: UUID,
) -> None:
    values = {
        "cursor": ascii_text(cursor),
        "records": records,
        "commit_id": str(commit_id),
        "feed_uuid": str(change.identity.feed),
        "installation": str(change.identity.installation),
    }
    if own is None:
        key = {"environment": session.environment, "feed_id": change.feed_id, "feed": change.feed}
        session.execute(insert(checkpoint).values(**key, epoch=0, owner=str(session.worker_id), **values))
    else:
        mine = session.of([change.feed_id])
        session.execute(update(checkpoint).where(mine).values(**values, updated_at=utc_now()))


def _remember(session: SinkSession, change: CursorChange, done: ChangedCursor) -> None:
    session.execute(
        insert(cursor_change).values(
            environment=session.environment,
            feed_id=change.feed_id,
            feed=change.feed,
            verb=done.verb,
            cursor_before=ascii_text(done.before),
            cursor_after=ascii_text(done.after),
            records=done.records,
            deleted=done.deleted,
            commit_id=str(done.commit_id),
        )
    )
    mine = (h.environment == session.environment, h.feed_id == change.feed_id)
    ids = list(session.connection.scalars(select(h.id).where(*mine).order_by(h.id.desc())))
    for part in parts(ids[KEPT:]):
        session.execute(delete(cursor_change).where(h.id.in_(part)))


def _make_table(session: SinkSession) -> None:
    """Make the table of changes if it is missing; of two sessions that do so at once, one finds it there."""
    if _has_table(session):
        return
    try:
        session.begin()
        cursor_change.create(session.connection)
        session.commit()
    except session.errors:
        session.rollback()
        if session.is_broken or not _has_table(session):
            raise


def _has_table(session: SinkSession) -> bool:
    return inspect(session.connection).has_table(cursor_change.name)
