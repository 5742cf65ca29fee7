"""Dead letters: written in a group commit, listed, tried again, and dropped.

A replay locks the dead letters, lands what can be landed now, deletes just these, and commits: one transaction,
so a record is at any time either a dead letter or in the table, whoever dies when. Two replays at once pass
over each other's rows, or wait. All functions raise `SQLAlchemyError`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC
from typing import Any, Final

from sqlalchemy import Row as ResultRow
from sqlalchemy import delete, insert, select, update

from feedq.errors import InvalidInput, SinkUnavailable
from feedq.model import JSON, Batch
from feedq.sinks.base import DeadLetter, FeedWrite, Landing, Preview, Replayed
from feedq.sinks.deadletters import DeadRecord
from feedq.sinks.isolate import LandingBroken, isolate
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.plan import SuspectRecord
from feedq.sinks.session import AnswerLost
from feedq.sinks.sql.attempt import attempt
from feedq.sinks.sql.flavor import FEEDS_AT_ONCE, parameter
from feedq.sinks.sql.plan import InsertPlan, Row
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.table_definitions import dead_letter

LOCK_TIMEOUT_S: Final = 5.0
"""A person is waiting."""

# Escaped down to ASCII: whatever JSON can say comes back as it was, from a text column of any character set.
_encode: Final = json.JSONEncoder(allow_nan=False).encode


def cursor_text(cursor: JSON) -> str | None:
    """A cursor for a text column; None is NULL. Raises `ValueError` for what is not JSON."""
    if cursor is None:
        return None
    try:
        return _encode(cursor)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None


def cursor_of(text: str | None) -> JSON:
    return None if text is None else json.loads(text)


def bury(session: SqlSession, environment: str, dead: Iterable[DeadRecord]) -> None:
    """Write dead letters, in the transaction that is open."""
    rows = [
        {
            "environment": environment,
            "feed_id": write.feed_id,
            "feed": write.feed,
            "epoch": write.epoch,
            "record": record,
            "error": error.encode(errors="replace").decode(),
            "cursor": cursor_text(batch.cursor),
        }
        for (write, batch, record), error in dead
    ]
    if rows:
        session.execute(insert(dead_letter), rows)


def listed(
    session: SqlSession,
    environment: str,
    *,
    feed: str | None,
    feed_id: int | None,
    ids: Collection[int],
    after: int | None,
    limit: int,
) -> list[DeadLetter]:
    """Newest first, or oldest first ``after`` an id."""
    order = dead_letter.c.id.desc() if after is None else dead_letter.c.id
    statement = (
        select(dead_letter).where(dead_letter.c.environment == environment).order_by(order).limit(limit)
    )
    if feed is not None:
        statement = statement.where(dead_letter.c.feed == feed)
    if feed_id is not None:
        statement = statement.where(dead_letter.c.feed_id == feed_id)
    if after is not None:
        statement = statement.where(dead_letter.c.id > after)
    if not ids:
        return [_letter(row) for row in session.execute(statement)]
    found = [
        _letter(row)
        for part in _some(sorted(ids))
        for row in session.execute(statement.where(dead_letter.c.id.in_(part)))
    ]
    return sorted(found, key=lambda letter: letter.id, reverse=after is None)[:limit]


def drop(session: SqlSession, environment: str, ids: Collection[int]) -> int:
    """Returns how many there were."""
    session.set_lock_wait(LOCK_TIMEOUT_S)
    session.begin()
    dropped = _delete(session, environment, ids)
    _commit(session, "the dead letters are gone, or still there")
    return dropped


def replay(
    session: SqlSession, environment: str, plan: InsertPlan, *, ids: Collection[int], landing: Landing
) -> Replayed:
    """Raises `InvalidInput` when the landing cannot work, `SinkUnavailable` when the answer was lost."""
    session.set_lock_wait(LOCK_TIMEOUT_S)
    session.begin()
    letters: dict[int, FeedWrite] = {}
    for part in _some(sorted(ids)):
        taken = (
            select(dead_letter)
            .where(dead_letter.c.environment == environment, dead_letter.c.id.in_(part))
            .order_by(dead_letter.c.id)
            .with_for_update(skip_locked=True)
        )
        letters |= {row.id: _write(row, landing) for row in session.execute(taken)}
    refused = _land(session, plan, letters)
    landed = [id_ for id_ in letters if id_ not in refused]
    _delete(session, environment, landed)
    if refused:
        kept = update(dead_letter).where(dead_letter.c.id == parameter("id")).values(error=parameter("error"))
        session.execute(kept, [{"this_id": id_, "this_error": error} for id_, error in refused.items()])
    _commit(
        session, "the records have landed, or are dead letters still; replay them again, nothing lands twice"
    )
    return Replayed(len(landed), refused)


def preview(session: SqlSession, plan: InsertPlan, write: FeedWrite, *, lands: bool) -> list[Preview]:
    """Each record by itself; where it ``lands``, in a transaction that is rolled back. Raises `InvalidInput`."""
    session.set_lock_wait(LOCK_TIMEOUT_S)
    if lands:
        session.begin()
    try:
        return [
            _preview(session, plan, SuspectRecord(write, batch, record), lands=lands)
            for batch in write.batches
            for record in batch.split()
        ]
    except LandingBroken as broken:
        raise InvalidInput(str(broken)) from broken
    finally:
        session.rollback()


def _preview(session: SqlSession, plan: InsertPlan, suspect: SuspectRecord, *, lands: bool) -> Preview:
    try:
        columns = plan.texts(suspect)
    except UnreadableRecord as unreadable:
        return Preview(suspect.record, {}, str(unreadable))
    rows, refused = plan.rows([_alone(suspect)])
    if refused:
        return Preview(suspect.record, columns, refused[0][1])
    refusal = attempt(session, plan, rows) if lands else None
    return Preview(suspect.record, columns, None if refusal is None else refusal.error)


def _land(session: SqlSession, plan: InsertPlan, letters: dict[int, FeedWrite]) -> dict[int, str]:
    """Land what can be; returns why the others cannot."""
    rows: dict[int, Row] = {}
    refused: dict[int, str] = {}
    for id_, write in letters.items():
        ready, unready = plan.rows([write])
        if ready:
            (rows[id_],) = ready
        else:
            ((_, refused[id_]),) = unready

    def land(part: Sequence[int]) -> Any:
        return attempt(session, plan, [rows[id_] for id_ in part])

    try:
        return refused | dict(isolate(list(rows), land))
    except LandingBroken as broken:
        session.rollback()
        raise InvalidInput(str(broken)) from broken


def _delete(session: SqlSession, environment: str, ids: Collection[int]) -> int:
    return sum(
        session.execute(
            delete(dead_letter).where(dead_letter.c.environment == environment, dead_letter.c.id.in_(part))
        ).rowcount
        for part in _some(sorted(ids))
    )


def _commit(session: SqlSession, consequence: str) -> None:
    try:
        session.commit()
    except AnswerLost as lost:
        raise SinkUnavailable(f"the connection broke at the commit: {consequence}") from lost


def _letter(row: ResultRow[Any]) -> DeadLetter:
    return DeadLetter(
        row.id,
        row.feed_id,
        row.feed,
        row.epoch,
        bytes(row.record),
        row.error,
        cursor_of(row.cursor),
        row.at.replace(tzinfo=UTC),
    )


def _write(row: ResultRow[Any], landing: Landing) -> FeedWrite:
    letter = _letter(row)
    batch = Batch.of_records([letter.record], cursor=letter.cursor, received_at=letter.at)
    return FeedWrite(letter.feed_id, letter.feed, letter.epoch, landing, (batch,))


def _alone(suspect: SuspectRecord) -> FeedWrite:
    write, batch, record = suspect
    one = Batch.of_records([record], cursor=batch.cursor, received_at=batch.received_at)
    return FeedWrite(write.feed_id, write.feed, write.epoch, write.landing, (one,))


def _some(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), FEEDS_AT_ONCE):
        yield ids[start : start + FEEDS_AT_ONCE]
