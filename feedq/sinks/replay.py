"""Records outside of a feed's stream: dead letters that are tried again, and previews that land nothing.

A replay locks the dead letters, lands what can be landed now, deletes just these, and commits: one transaction,
so a record is at any time either a dead letter or in the table, whoever dies when. Two replays at once pass
over each other's rows. Checkpoints and epochs play no part: no stream is moved by it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from feedq.errors import InvalidInput, SinkUnavailable
from feedq.model import Batch
from feedq.sinks.attempt import NotNow, attempt
from feedq.sinks.base import FeedWrite, Landing, Preview, Replayed
from feedq.sinks.catalog import Catalog
from feedq.sinks.isolate import FailedAttempt, LandingBroken, isolate
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.landing import misdeclared
from feedq.sinks.plan import CopyPlan, SuspectRecord
from feedq.sinks.session import AnswerLost, SinkSession
from feedq.sinks.statements import DELETE_DEAD_LETTERS, KEEP_DEAD_LETTERS, TAKE_DEAD_LETTERS

LOCK_TIMEOUT_S: Final = 5.0
"""For a landing table that somebody has locked; a person is waiting."""


def replay(
    session: SinkSession, catalog: Catalog, environment: str, *, ids: Collection[int], landing: Landing
) -> Replayed:
    """Raises `InvalidInput` when the landing cannot work, `SinkUnavailable` when the answer was lost."""
    plan = _plan(catalog, landing)
    _begin(session)
    rows = session.execute(TAKE_DEAD_LETTERS, {"environment": environment, "ids": list(ids)})
    letters: dict[int, SuspectRecord] = {}
    for id_, feed_id, feed, epoch, record, cursor, at in rows:
        batch = Batch.of_records([bytes(record)], cursor=cursor, received_at=at)
        letters[id_] = SuspectRecord(FeedWrite(feed_id, feed, epoch, landing, (batch,)), batch, bytes(record))

    def land(part: Sequence[int]) -> FailedAttempt | None:
        return attempt(session, plan, lambda: plan.land_singly(session, [letters[id_] for id_ in part]))

    try:
        refused = dict(isolate(list(letters), land))
    except LandingBroken as broken:
        session.rollback()
        raise InvalidInput(str(broken)) from broken
    except NotNow as later:
        raise later.error from later
    landed = [id_ for id_ in letters if id_ not in refused]
    session.execute(DELETE_DEAD_LETTERS, {"environment": environment, "ids": landed})
    session.execute(KEEP_DEAD_LETTERS, {"ids": list(refused), "errors": list(refused.values())})
    try:
        session.commit()
    except AnswerLost as lost:
        raise SinkUnavailable(
            "the connection broke at the commit: the records have landed, or are dead letters still; "
            "replay them again, nothing lands twice"
        ) from lost
    return Replayed(len(landed), refused)


def preview(session: SinkSession, catalog: Catalog, write: FeedWrite) -> list[Preview]:
    """Land each record by itself in a transaction that is rolled back. Raises `InvalidInput`.

    What the catalog knows afterwards was true inside that transaction only.
    """
    if why := misdeclared(write.landing):
        raise InvalidInput(why)
    _begin(session)
    try:
        if not write.landing.is_mapped and not catalog.exists(write.landing):
            catalog.create_within(write.landing)
        plan = _plan(catalog, write.landing)
        return [
            _preview(session, plan, SuspectRecord(write, batch, record))
            for batch in write.batches
            for record in batch.split()
        ]
    except LandingBroken as broken:
        raise InvalidInput(str(broken)) from broken
    except NotNow as later:
        raise later.error from later
    finally:
        session.rollback()


def _begin(session: SinkSession) -> None:
    session.set_lock_timeout(LOCK_TIMEOUT_S)
    session.begin()
    # What is deferred to the commit would let each record pass, and then refuse all of them.
    session.execute("SET CONSTRAINTS ALL IMMEDIATE")


def _preview(session: SinkSession, plan: CopyPlan, suspect: SuspectRecord) -> Preview:
    try:
        columns = plan.texts(suspect)
    except UnreadableRecord as unreadable:
        return Preview(suspect.record, {}, str(unreadable))
    refusal = attempt(session, plan, lambda: plan.land_singly(session, [suspect]))
    return Preview(suspect.record, columns, None if refusal is None else refusal.error)


def _plan(catalog: Catalog, landing: Landing) -> CopyPlan:
    """Raises `InvalidInput` when the landing cannot work."""
    catalog.look_again([landing])
    wrong = catalog.problems([landing], create=False) or catalog.open_stages([landing])
    if landing in wrong:
        raise InvalidInput(wrong[landing])
    return catalog.plan(landing)
