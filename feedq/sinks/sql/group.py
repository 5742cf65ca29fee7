"""One attempt at a group commit: one transaction, from the locks to the commit.

The order is that of `feedq.sinks.groupcommit`, and so is the care: the first attempt takes everything or fails,
and whatever goes wrong ends it; the next one lands under savepoints, and finds out which record or landing is
to blame. Records that cannot be read or converted are known before, and go to the dead letters in any attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from feedq.model import FeedKey
from feedq.sinks.base import CommitUnknown, FeedWrite, Landing, Written
from feedq.sinks.deadletters import DeadRecord, count_by_feed, last_errors
from feedq.sinks.groupcommit import REFUSALS_MAX, Care, Course, GroupFailed, Part, by_landing
from feedq.sinks.isolate import FailedAttempt, LandingBroken, isolate
from feedq.sinks.session import AnswerLost
from feedq.sinks.sql.attempt import attempt
from feedq.sinks.sql.flavor import explain
from feedq.sinks.sql.letters import bury, cursor_text
from feedq.sinks.sql.plan import InsertPlan
from feedq.sinks.sql.session import RowRefused, SqlSession
from feedq.sinks.sqlstate import ErrorScope


class SqlGroupCommit:
    """One transaction. Used once."""

    def __init__(
        self,
        session: SqlSession,
        plans: Mapping[Landing, InsertPlan],
        environment: str,
        *,
        owner: UUID,
        course: Course,
        unusable: Mapping[FeedKey, str],
    ) -> None:
        self._session = session
        self._plans = plans
        self._environment = environment
        self._owner = owner
        self._course = course
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable = dict(unusable)
        self._postponed: dict[FeedKey, str] = {}

    def run(self, writes: Sequence[FeedWrite]) -> Written:
        """Land and advance.

        Raises:
            CommitUnknown: the answer to the commit was lost; the session is closed.
            GroupFailed: nothing was written; the transaction is still open, or broken.
        """
        if not writes:
            return Written(landed={}, dead={}, fenced=(), unusable=self._unusable)
        try:
            mine = self._begin(writes)
            gone = [w for w in writes if w.key not in mine and w.key not in self._postponed]
            fenced, rewound = self._tell_apart(gone)
        except SQLAlchemyError as error:
            raise self._failed(Part.CHECKPOINTS, error) from error
        for landing, admitted in by_landing(write for write in writes if write.key in mine).items():
            if why := self._course.held.get(landing):
                self._postponed |= {write.key: why for write in admitted}
            else:
                self._land(self._plans[landing], admitted)
        return self._commit(writes, fenced=fenced, rewound=rewound)

    def _begin(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        """Lock the checkpoints that are as we left them, to the end; returns the keys of these."""
        session, wanted = self._session, list(writes)
        if self._course.around_locks:
            ids = [write.feed_id for write in writes]
            free = set(session.flavor.free(session.connection, self._environment, ids))
            self._postponed |= {w.key: "its checkpoint is locked" for w in writes if w.feed_id not in free}
            wanted = [write for write in writes if write.feed_id in free]
        session.set_lock_wait(session.flavor.lock_timeout_s)
        session.begin()
        if self._course.care is Care.IMMEDIATE:
            session.flavor.check_at_once(session.connection)
        found = session.flavor.lock(session.connection, self._environment, [write.key for write in wanted])
        session.has_begun = True
        return {
            write.key
            for write in wanted
            if write.key in found and (write.continues is None or found[write.key] == str(write.continues))
        }

    def _tell_apart(self, lost: Sequence[FeedWrite]) -> tuple[tuple[FeedKey, ...], tuple[FeedKey, ...]]:
        """Of feeds that we may not write: those that have a larger epoch by now, and those that have gone back."""
        if not lost:
            return (), ()
        flavor, ids = self._session.flavor, [write.feed_id for write in lost]
        epochs = flavor.epochs(self._session.connection, self._environment, ids)
        fenced = tuple(w.key for w in lost if epochs.get(w.feed_id, 0) > w.epoch)
        return fenced, tuple(write.key for write in lost if write.key not in fenced)

    def _land(self, plan: InsertPlan, writes: Sequence[FeedWrite]) -> None:
        """Land what can be, or nothing of it if it is the landing that is broken."""
        session, doubted = self._session, plan.landing in self._course.doubted
        try:
            session.set_lock_wait(0 if doubted else session.flavor.lock_timeout_s)
            if self._course.care is Care.OPTIMISTIC:
                rows, refused = plan.rows(writes)
                try:
                    plan.insert(session, rows)
                except RowRefused as stopped:
                    raise stopped.error from stopped
            elif self._course.briefly:
                writes, refused = self._land_feeds(plan, writes)
            else:
                refused = self._land_records(plan, writes)
        except LandingBroken as broken:
            # By itself each feed is judged anew: it need not be all of them.
            left_out = self._postponed if self._course.briefly else self._unusable
            left_out.update((write.key, str(broken)) for write in writes)
            return
        except SQLAlchemyError as error:
            raise self._failed(Part.LANDING, error, landing=plan.landing) from error
        dead = count_by_feed(refused)
        self._landed |= {write.key: write.records - dead.get(write.key, 0) for write in writes}
        self._dead += refused

    def _land_feeds(
        self, plan: InsertPlan, writes: Sequence[FeedWrite]
    ) -> tuple[list[FeedWrite], list[DeadRecord]]:
        """Land the feeds that nothing is wrong with, and postpone the others; returns those that landed."""
        read = {write.key: plan.rows([write]) for write in writes}

        def land(part: Sequence[FeedWrite]) -> FailedAttempt | None:
            rows = [row for write in part for row in read[write.key][0]]
            refusal = attempt(self._session, plan, rows)
            if refusal is None or refusal.position is None or refusal.position >= len(rows):
                return refusal
            keys = [write.key for write in part]
            return FailedAttempt(refusal.error, keys.index(rows[refusal.position].suspect.write.key))

        with self._session.savepoint("feedq_landing"):
            refused = isolate(writes, land, refusals_max=REFUSALS_MAX)
        self._postponed |= {write.key: error for write, error in refused}
        landed = [write for write in writes if write.key not in self._postponed]
        return landed, [dead for write in landed for dead in read[write.key][1]]

    def _land_records(self, plan: InsertPlan, writes: Sequence[FeedWrite]) -> list[DeadRecord]:
        """Land the records that can be; returns the others."""
        rows, refused = plan.rows(writes)
        with self._session.savepoint("feedq_landing"):
            found = isolate(rows, lambda part: attempt(self._session, plan, part))
        return refused + [(row.suspect, error) for row, error in found]

    def _commit(
        self, writes: Sequence[FeedWrite], *, fenced: tuple[FeedKey, ...], rewound: tuple[FeedKey, ...]
    ) -> Written:
        commit_id = uuid4()
        written = Written(
            self._landed,
            count_by_feed(self._dead),
            fenced,
            self._unusable,
            self._postponed,
            last_errors(self._dead),
            rewound,
            commit_id,
        )
        if not self._landed:
            self._session.rollback()
            return written
        try:
            self._advance([write for write in writes if write.key in self._landed], commit_id)
        except SQLAlchemyError as error:
            raise self._failed(Part.CHECKPOINTS, error) from error
        try:
            bury(self._session, self._environment, self._dead)
            self._session.commit()
        except AnswerLost as lost:
            raise CommitUnknown(commit_id, writes, written) from lost
        except SQLAlchemyError as error:
            raise self._failed(Part.COMMIT, error) from error
        return written

    def _advance(self, writes: Sequence[FeedWrite], commit_id: UUID) -> None:
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
            ],
        )

    def _failed(self, part: Part, error: SQLAlchemyError, *, landing: Landing | None = None) -> GroupFailed:
        trouble = self._session.flavor.trouble(error)
        if trouble is ErrorScope.LOCKED and self._session.flavor.locks_all:
            part, landing = Part.CHECKPOINTS, None
        return GroupFailed(part, trouble, error, explain(error), landing=landing)
