"""One attempt at a group commit: one transaction, from the locks to the commit.

::

    begin ─ lock my checkpoints ─ land, a COPY per landing ─ advance checkpoints ─ bury the dead ─ commit
                  │ no row back: that feed is fenced,
                  └ nothing of it is written

The locks come first: a successor's fence waits for them, and so for the outcome. Killed, frozen or cut off
at any point before the commit, nothing has happened.

The attempt is `Care.OPTIMISTIC` at first: whatever goes wrong ends it, and the caller makes another one with
more care, which lands under savepoints and finds out which record, feed or landing is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, IntEnum, auto
from itertools import accumulate
from typing import Final
from uuid import uuid4

import psycopg2
from psycopg2 import sql

from feedq.model import FeedKey
from feedq.sinks import arrays
from feedq.sinks.attempt import LandingBroken, attempt
from feedq.sinks.base import CommitUnknown, FeedWrite, Landing, Written
from feedq.sinks.catalog import Catalog
from feedq.sinks.cursors import cursor_text
from feedq.sinks.deadletters import DeadRecord, bury, count_by_feed
from feedq.sinks.isolate import Refusal, isolate
from feedq.sinks.plan import Plan, Suspect
from feedq.sinks.screen import screen, sift
from feedq.sinks.session import AnswerLost, Session
from feedq.sinks.sqlstate import Trouble, classify, explain
from feedq.sinks.statements import ADVANCE, LOCK_MINE

LOCK_TIMEOUT_S: Final = 0.5
"""For a checkpoint row or a landing table that somebody else has locked. All feeds wait that long before those of
a locked table are postponed; a lock held for less costs nobody a second transaction."""


class Lock(Enum):
    """What is known of a landing that was locked when a group commit wanted to write to it."""

    HELD = auto()
    """It is locked: this group has just waited for it in vain."""
    DOUBTED = auto()
    """It was, a while ago: not to be waited for again."""


class Care(IntEnum):
    """How closely an attempt looks."""

    OPTIMISTIC = 0
    CAREFUL = 1
    """Under savepoints: refused records go to the dead letters, broken landings are left out."""
    IMMEDIATE = 2
    """Besides, constraints deferred to the commit are checked at once, because the commit was refused."""


class LandingLocked(Exception):
    """Somebody has the table locked, or a row that ours depend on."""

    def __init__(self, landing: Landing, error: psycopg2.Error) -> None:
        super().__init__(explain(error))
        self.landing, self.error = landing, error


class GroupCommit:
    """One transaction. Used once."""

    def __init__(
        self,
        session: Session,
        catalog: Catalog,
        environment: str,
        *,
        care: Care,
        unusable: Mapping[FeedKey, str],
        locked: Mapping[Landing, Lock],
        spoiled: Collection[FeedKey],
    ) -> None:
        """``spoiled`` feeds had bad records not long ago: they are looked through before they can do harm."""
        self._session = session
        self._catalog = catalog
        self._environment = environment
        self._care = care
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable = dict(unusable)
        self._locked = locked
        self._spoiled = spoiled
        self._postponed: dict[FeedKey, str] = {}

    def run(self, writes: Sequence[FeedWrite]) -> Written:
        """Land and advance.

        Raises:
            CommitUnknown: the answer to the commit was lost; the session is closed.
            psycopg2.Error, UnreadableRecord, LandingLocked: nothing was written; the transaction is still open,
                or broken.
        """
        if not writes:
            return Written(landed={}, dead={}, fenced=(), unusable=self._unusable)
        self._session.set_lock_timeout(LOCK_TIMEOUT_S)
        lost = self._begin(writes)
        if self._care is Care.IMMEDIATE:
            self._session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        ours = [write for write in writes if write.key not in lost] if lost else writes
        for landing, admitted in by_landing(ours).items():
            plan = self._catalog.plan(landing)
            if self._is_locked(plan):
                self._postponed |= {w.key: f"table {landing.table!r} is locked" for w in admitted}
            else:
                self._land(plan, admitted)
        return self._commit(writes, tuple(lost))

    def _begin(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        """Lock the checkpoints whose epoch is still ours, to the end; returns the keys of the others."""
        rows = self._session.begin(
            LOCK_MINE,
            {
                "environment": self._environment,
                "feed_ids": arrays.integers(write.feed_id for write in writes),
                "epochs": arrays.integers(write.epoch for write in writes),
            },
        )
        return set(rows)

    def _land(self, plan: Plan, writes: Sequence[FeedWrite]) -> None:
        try:
            if self._care is Care.OPTIMISTIC:
                sound = self._sift_spoiled(plan, writes) if self._spoiled else writes
                plan.land(self._session, sound)
                self._landed |= {write.key: write.records for write in sound}
            else:
                self._land_carefully(plan, writes)
        except psycopg2.Error as error:
            if classify(error) is Trouble.LOCKED:
                raise LandingLocked(plan.landing, error) from error
            raise

    def _sift_spoiled(self, plan: Plan, writes: Sequence[FeedWrite]) -> list[FeedWrite]:
        return [self._sift(plan, write) if write.key in self._spoiled else write for write in writes]

    def _sift(self, plan: Plan, write: FeedWrite) -> FeedWrite:
        sound, dead = sift(self._session, plan, write)
        self._dead += dead
        return sound

    def _is_locked(self, plan: Plan) -> bool:
        """Whether to leave the landing alone: without waiting for it, and without a doubt only if we just did."""
        match self._locked.get(plan.landing):
            case None:
                return False
            case Lock.HELD:
                return True
        self._session.execute("SAVEPOINT look")
        try:
            self._session.execute(
                sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT").format(plan.shape.identifier)
            )
        except psycopg2.Error as error:
            self._session.execute("ROLLBACK TO SAVEPOINT look")
            # Whatever else is wrong with it, landing there will tell.
            return classify(error) is Trouble.LOCKED
        return False

    def _commit(self, writes: Sequence[FeedWrite], fenced: tuple[FeedKey, ...]) -> Written:
        dead = count_by_feed(self._dead)
        written = Written(self._landed, dead, fenced, self._unusable, self._postponed)
        if not self._landed:
            self._session.rollback()
            return written
        commit_id = uuid4()
        advancing = [write for write in writes if write.key in self._landed]
        advanced = self._session.change(
            ADVANCE,
            {
                "environment": self._environment,
                "commit_id": commit_id,
                "feed_ids": arrays.integers(write.feed_id for write in advancing),
                "epochs": arrays.integers(write.epoch for write in advancing),
                "cursors": arrays.texts([cursor_text(write.cursor) for write in advancing]),
                "records": arrays.integers(self._landed[write.key] for write in advancing),
            },
        )
        assert advanced == len(advancing), "a locked checkpoint did not advance"
        if self._dead:
            bury(self._session, self._environment, self._dead)
        try:
            self._session.commit()
        except AnswerLost as lost:
            raise CommitUnknown(commit_id, writes, written) from lost
        return written

    # -- with care -----------------------------------------------------------------------------------

    def _land_carefully(self, plan: Plan, writes: Sequence[FeedWrite]) -> None:
        """Land all feeds of a landing that can be, or none of them if it is the landing that is broken."""

        def land(part: Sequence[FeedWrite]) -> Refusal | None:
            refusal = attempt(self._session, plan, lambda: plan.land(self._session, part))
            return refusal and Refusal(refusal.error, _feed_at(part, refusal.position))

        landed = {write.key: write.records for write in writes}
        dead: list[DeadRecord] = []
        self._session.execute("SAVEPOINT landing")
        try:
            for write, _ in isolate(writes, land):
                refused = self._land_records(plan, write)
                landed[write.key] -= len(refused)
                dead += refused
        except LandingBroken as broken:
            self._session.execute("ROLLBACK TO SAVEPOINT landing")
            self._unusable |= {write.key: str(broken) for write in writes}
            return
        self._landed |= landed
        self._dead += dead

    def _land_records(self, plan: Plan, write: FeedWrite) -> list[DeadRecord]:
        """Land what can be of a feed, record by record where need be; returns the others."""

        def land(part: Sequence[Suspect]) -> Refusal | None:
            return attempt(self._session, plan, lambda: plan.land_singly(self._session, part))

        sound, refused = sift(self._session, plan, write)
        if refused and not attempt(self._session, plan, lambda: plan.land(self._session, [sound])):
            return refused
        suspects = [Suspect(sound, batch, record) for batch in sound.batches for record in batch.split()]
        kept, more = screen(self._session, plan, suspects)
        return refused + more + isolate(kept, land)


def by_landing(writes: Iterable[FeedWrite]) -> dict[Landing, list[FeedWrite]]:
    groups: dict[Landing, list[FeedWrite]] = {}
    # Most feeds of a landing share one object, and to look at all that makes two landings equal takes longer.
    same: dict[int, list[FeedWrite]] = {}
    for write in writes:
        group = same.get(id(write.landing))
        if group is None:
            group = same[id(write.landing)] = groups.setdefault(write.landing, [])
        group.append(write)
    return groups


def _feed_at(writes: Sequence[FeedWrite], row: int | None) -> int | None:
    """Index of the feed that a row of their common COPY belongs to."""
    if row is None:
        return None
    ends = accumulate(write.records for write in writes)
    return next((index for index, end in enumerate(ends) if row < end), None)
