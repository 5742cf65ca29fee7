"""One attempt at a group commit: one transaction, from the locks to the commit.

The order is that of `feedq.sinks.groupcommit`, and so is the care: the first attempt takes everything or fails,
and whatever goes wrong ends it; the next one lands under savepoints, and finds out which record or landing is
to blame. Records that cannot be read or converted are known before, and go to the dead letters in any attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from feedq.model import FeedKey
from feedq.sinks.base import CommitUnknown, FeedWrite, Landing, Written
from feedq.sinks.deadletters import DeadRecord, count_by_feed
from feedq.sinks.groupcommit import Care, by_landing
from feedq.sinks.isolate import isolate
from feedq.sinks.session import AnswerLost
from feedq.sinks.sql.attempt import LandingBroken, attempt
from feedq.sinks.sql.flavor import explain
from feedq.sinks.sql.letters import bury, cursor_text
from feedq.sinks.sql.plan import Plan
from feedq.sinks.sql.session import RowRefused, Session
from feedq.sinks.sqlstate import Trouble


class LandingLocked(Exception):
    """Somebody has the table locked, or a row that ours depend on."""

    def __init__(self, landing: Landing, error: SQLAlchemyError) -> None:
        super().__init__(explain(error))
        self.landing, self.error = landing, error


class GroupCommit:
    """One transaction. Used once."""

    def __init__(
        self,
        session: Session,
        plans: Mapping[Landing, Plan],
        environment: str,
        *,
        owner: UUID,
        care: Care,
        unusable: Mapping[FeedKey, str],
        locked: Collection[Landing],
        doubted: Collection[Landing],
    ) -> None:
        """Landings that are ``locked`` are left alone, and those ``doubted`` are not waited for."""
        self._session = session
        self._plans = plans
        self._environment = environment
        self._owner = owner
        self._care = care
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable = dict(unusable)
        self._locked = locked
        self._doubted = doubted
        self._postponed: dict[FeedKey, str] = {}

    def run(self, writes: Sequence[FeedWrite]) -> Written:
        """Land and advance.

        Raises:
            CommitUnknown: the answer to the commit was lost; the session is closed.
            SQLAlchemyError, LandingLocked: nothing was written; the transaction is still open, or broken.
        """
        if not writes:
            return Written(landed={}, dead={}, fenced=(), unusable=self._unusable)
        session = self._session
        session.set_lock_wait(session.flavor.lock_timeout_s)
        session.begin()
        if self._care is Care.IMMEDIATE:
            session.flavor.check_at_once(session.connection)
        keys = [write.key for write in writes]
        mine = session.flavor.lock(session.connection, self._environment, keys)
        session.has_begun = True
        for landing, admitted in by_landing(write for write in writes if write.key in mine).items():
            if landing in self._locked:
                self._postponed |= {write.key: f"table {landing.table!r} is locked" for write in admitted}
            else:
                self._land_unless_locked(self._plans[landing], admitted)
        return self._commit(writes, fenced=tuple(key for key in keys if key not in mine))

    def _land_unless_locked(self, plan: Plan, writes: Sequence[FeedWrite]) -> None:
        session = self._session
        doubted = plan.landing in self._doubted
        session.set_lock_wait(0 if doubted else session.flavor.lock_timeout_s)
        try:
            self._land(plan, writes)
        except SQLAlchemyError as error:
            if session.flavor.trouble(error) is Trouble.LOCKED:
                raise LandingLocked(plan.landing, error) from error
            raise

    def _land(self, plan: Plan, writes: Sequence[FeedWrite]) -> None:
        """Land what can be, or nothing of it if it is the landing that is broken."""
        rows, refused = plan.rows(writes)
        if self._care is Care.OPTIMISTIC:
            try:
                plan.insert(self._session, rows)
            except RowRefused as stopped:
                raise stopped.error from stopped
        else:
            try:
                with self._session.savepoint("feedq_landing"):
                    found = isolate(rows, lambda part: attempt(self._session, plan, part))
            except LandingBroken as broken:
                self._unusable |= {write.key: str(broken) for write in writes}
                return
            refused += [(row.suspect, error) for row, error in found]
        dead = count_by_feed(refused)
        self._landed |= {write.key: write.records - dead.get(write.key, 0) for write in writes}
        self._dead += refused

    def _commit(self, writes: Sequence[FeedWrite], *, fenced: tuple[FeedKey, ...]) -> Written:
        dead = count_by_feed(self._dead)
        written = Written(self._landed, dead, fenced, self._unusable, self._postponed)
        if not self._landed:
            self._session.rollback()
            return written
        commit_id = uuid4()
        self._session.flavor.advance(
            self._session.connection,
            [
                {
                    "environment": self._environment,
                    "feed_id": write.feed_id,
                    "feed": write.feed,
                    "epoch": write.epoch,
                    "owner": str(self._owner),
                    "cursor": cursor_text(write.cursor),
                    "records": self._landed[write.key],
                    "commit_id": str(commit_id),
                }
                for write in writes
                if write.key in self._landed
            ],
        )
        bury(self._session, self._environment, self._dead)
        try:
            self._session.commit()
        except AnswerLost as lost:
            raise CommitUnknown(commit_id, writes, written) from lost
        return written
