"""The operations of people on a sink: dead letters tried again or dropped, previews, checkpoints shown and
given away.

A replay locks the dead letters, lands what can be landed now, deletes just these, and commits: one transaction,
so a record is at any time either a dead letter or in the table, whoever dies when. Two replays at once pass
over each other's rows, or wait. Checkpoints and epochs play no part: no stream is moved by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Select, delete, insert, select, update

from feedq.errors import Conflict, InvalidInput, SinkUnavailable
from feedq.records.cursor import ascii_text, cursor_of
from feedq.sinks.base import (
    Checkpoint,
    CheckpointChange,
    DeadLetter,
    FeedWrite,
    Judge,
    Preview,
    Replayed,
    SuspectRecord,
    Target,
    anybody,
    parts,
)
from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.refusals import TargetBroken, TargetBusy, TargetLanding
from feedq.sinks.session import AnswerLost, SinkSession, TargetChanged, TargetPlan, parameter
from feedq.sinks.table_definitions import checkpoint, dead_letter, utc_now

d = dead_letter.c


def check(session: SinkSession, target: Target) -> str | None:
    """Why the target cannot work; None when it can. Writes nothing."""
    try:
        with _planned(session, target, begins=False):
            return None
    except InvalidInput as wrong:
        return str(wrong)


def dead_letters(
    session: SinkSession,
    feed: str | None = None,
    *,
    ids: Collection[int] = (),
    after: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[DeadLetter]:
    """Newest first, those ``before`` an id if one is given, or oldest first ``after`` an id."""
    wanted: list[ColumnElement[bool]] = []
    if feed is not None:
        wanted.append(d.feed == feed)
    if after is not None:
        wanted.append(d.id > after)
    if before is not None:
        wanted.append(d.id < before)
    statement = _select_dead_letters(session, *wanted).order_by(d.id.desc() if after is None else d.id)
    if not ids:
        return _read(session, statement.limit(limit))
    found = [one for part in parts(sorted(ids)) for one in _read(session, statement.where(d.id.in_(part)))]
    return sorted(found, key=lambda letter: letter.id, reverse=after is None)[:limit]


def replay(session: SinkSession, ids: Collection[int], target: Target, *, judge: Judge = anybody) -> Replayed:
    """Raises `InvalidInput` when the target cannot work, `SinkUnavailable` when the answer was lost."""
    plan = session.inspect(target)
    session.begin_for_person()
    letters = _lock(session, ids)
    records = [SuspectRecord.of_dead_letter(letter, plan.target) for letter in letters]
    # Each has a batch of its own.
    ids_by_batch = {id(suspect.batch): letter.id for suspect, letter in zip(records, letters, strict=True)}
    with _explained(session):
        dead = TargetLanding(plan).land_records(records)
    refused = {ids_by_batch[id(suspect.batch)]: error for suspect, error in dead}
    landed = [letter.id for letter in letters if letter.id not in refused]
    _delete(session, landed)
    _keep(session, refused)
    judge()
    _commit(
        session, "the records have landed or are still dead letters; replay them again, nothing lands twice"
    )
    return Replayed(len(landed), refused)


def drop(session: SinkSession, ids: Collection[int], *, judge: Judge = anybody) -> int:
    """Returns how many there were. Raises `SinkUnavailable` when the answer was lost."""
    session.begin_for_person()
    dropped = _delete(session, ids)
    judge()
    _commit(session, "the dead letters are gone or still there; look again")
    return dropped


def preview(session: SinkSession, write: FeedWrite) -> list[Preview]:
    """Land each record by itself in a transaction that is rolled back. Raises `InvalidInput`."""
    with _planned(session, write.target, begins=True) as (plan, lands), _explained(session):
        return [_preview(plan, suspect, lands=lands) for suspect in SuspectRecord.of_writes([write])]


@contextmanager
def _planned(session: SinkSession, target: Target, *, begins: bool) -> Iterator[tuple[TargetPlan, bool]]:
    """The plan of a target as it is or, if its table is yet to be made, as it will be, and whether records can be
    landed there in the transaction that this ``begins``, and rolls back. Raises `InvalidInput`."""
    try:
        if session.is_yet_to_be_made(target):
            yield session.imagine(target)
        else:
            plan = session.inspect(target)
            if begins:
                session.begin_for_person()
            yield plan, True
    finally:
        session.rollback()


def _preview(plan: TargetPlan, suspect: SuspectRecord, *, lands: bool) -> Preview:
    columns: dict[str, str | None] = {}
    try:
        columns = plan.texts(suspect)
    except UnreadableRecord as unreadable:
        return Preview(suspect.record, columns, str(unreadable))
    dead = TargetLanding(plan).land_records([suspect]) if lands else []
    return Preview(suspect.record, columns, dead[0][1] if dead else None)


def _lock(session: SinkSession, ids: Collection[int]) -> list[DeadLetter]:
    """Dead letters, locked to the end of the transaction, without those that somebody else has locked."""
    locked = _select_dead_letters(session).order_by(d.id).with_for_update(skip_locked=True)
    return [one for part in parts(sorted(ids)) for one in _read(session, locked.where(d.id.in_(part)))]


def _delete(session: SinkSession, ids: Collection[int]) -> int:
    here = d.environment == session.environment
    return sum(
        session.execute(delete(dead_letter).where(here, d.id.in_(part))).rowcount
        for part in parts(sorted(ids))
    )


def _keep(session: SinkSession, errors: Mapping[int, str]) -> None:
    """Give dead letters new errors."""
    if errors:
        kept = update(dead_letter).where(d.id == parameter("id")).values(error=parameter("error"))
        session.execute(kept, [{"this_id": id_, "this_error": error} for id_, error in errors.items()])


def _select_dead_letters(session: SinkSession, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    return select(dead_letter).where(d.environment == session.environment, *conditions)


def _read(session: SinkSession, statement: Select[*tuple[Any, ...]]) -> list[DeadLetter]:
    return [
        DeadLetter(
            row.id,
            row.feed_id,
            row.feed,
            row.epoch,
            bytes(row.record),
            row.error,
            cursor_of(row.cursor),
            row.at.replace(tzinfo=UTC),
        )
        for row in session.execute(statement)
    ]


@contextmanager
def _explained(session: SinkSession) -> Iterator[None]:
    """Says to a person why nothing lands."""
    try:
        yield
    except (TargetBroken, TargetChanged) as wrong:
        session.rollback()
        raise InvalidInput(str(wrong)) from wrong
    except TargetBusy as later:
        raise later.error from later


def _commit(session: SinkSession, consequence: str) -> None:
    try:
        session.commit()
    except AnswerLost as lost:
        raise SinkUnavailable(f"the connection broke at the commit: {consequence}") from lost


c = checkpoint.c


def checkpoints(session: SinkSession, feeds: Collection[str] | None = None) -> list[Checkpoint]:
    """Reads the checkpoints of feeds of these names, or all, by name."""
    if feeds is None:
        return session.find_checkpoints()
    return [one for part in parts(sorted(feeds)) for one in session.find_checkpoints(c.feed.in_(part))]


def change_checkpoint(session: SinkSession, change: CheckpointChange) -> None:
    """Give a feed its checkpoint. Raises `Conflict`, `SinkUnavailable` when the answer was lost.

    To lock it waits for a commit of the owner that is under way, and keeps out the next one. The owner takes no
    part: its next write does not find the commit that it continues, so it fences the feed anew and goes on from
    the cursor that is there (ADR 0019).
    """
    old, identity = change.instead_of, change.identity
    session.begin_for_person()
    ids = {change.feed_id, *([] if old is None else [old.feed_id])}
    there = session.checkpoints_of(ids, lock=True)
    if old is not None:
        now = there.get(old.feed_id)
        if now is None or (now.commit_id, now.feed_uuid) != (old.commit_id, old.feed_uuid):
            raise taken_meanwhile(old)
        session.execute(delete(checkpoint).where(session.of([old.feed_id])))
    own = there.get(change.feed_id)
    if own is not None and own.feed_uuid != identity.feed:
        raise not_its_own(change)
    start = change.choose(own)
    values = {
        "cursor": ascii_text(start.cursor),
        "records": start.records,
        "commit_id": str(uuid4()),
        "is_given": True,
        "feed_uuid": str(identity.feed),
        "installation": str(identity.installation),
    }
    if own is None:
        key = {"environment": session.environment, "feed_id": change.feed_id, "feed": change.feed}
        session.execute(insert(checkpoint).values(**key, epoch=0, owner=str(session.worker_id), **values))
    else:
        found = session.of([change.feed_id])
        session.execute(update(checkpoint).where(found).values(**values, updated_at=utc_now()))
    change.judge()
    _commit(session, f"feed {change.feed!r} has either the new cursor or the old one; look again")


def taken_meanwhile(old: Checkpoint) -> Conflict:
    return Conflict(
        f"the checkpoint of {old.whose} is being written to, or was taken by somebody else: stop those feeds "
        "first, then adopt it again"
    )


def not_its_own(change: CheckpointChange) -> Conflict:
    return Conflict(
        f"feed {change.feed!r}: the sink has the checkpoint of another feed under its number {change.feed_id}; "
        "remove the feed and declare it again, and it will get another number"
    )
