"""`SqlSink`: data and checkpoint in one transaction, gated by the epoch, in any database that has transactions.

It holds one session, opened when it is first needed and again after it broke, and decides what an error means for
the caller. What it relies on is what the PostgreSQL sink relies on: whoever commits a feed's records holds the
feed's checkpoint locked from before the first record to the commit, under an epoch that the row still has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar
from uuid import UUID

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from feedq.errors import SinkUnavailable
from feedq.model import FeedKey
from feedq.sinks.base import (
    Checkpoint,
    CommitUnknown,
    DeadLetter,
    FeedWrite,
    FenceOutcome,
    FenceRequest,
    Landing,
    Preview,
    Replayed,
    Taking,
    Unusable,
    Written,
)
from feedq.sinks.groupcommit import Care, Course, GroupFailed, Next, Part
from feedq.sinks.session import AnswerLost
from feedq.sinks.settlement import LastCommit, decide
from feedq.sinks.sql import checkpoints
from feedq.sinks.sql.catalog import SqlCatalog
from feedq.sinks.sql.fencing import SqlFencing
from feedq.sinks.sql.flavor import FEEDS_AT_ONCE, explain
from feedq.sinks.sql.group import SqlGroupCommit
from feedq.sinks.sql.letters import cursor_text, drop, listed, preview, replay
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.shape import misdeclared
from feedq.sinks.sql.sql_database import SqlDatabase
from feedq.sinks.sqlstate import ErrorScope
from feedq.telemetry import mask_url

T = TypeVar("T")

ATTEMPTS_MAX: Final = 12
"""At one group commit, and one more for each landing that is found locked. `Course` ends them sooner."""
READ_ATTEMPTS_MAX: Final = 5
"""Transactions that end in a deadlock or a serialization failure are tried this often."""
CONFLICT_PAUSE_S: Final = 0.02
SETTLE_LOCK_TIMEOUT_S: Final = 5.0


class SqlSink:
    """One session with a database, on behalf of one worker. Belongs to one thread."""

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        """Raises `InvalidInput` for a URL that leads to no database, or to one without a driver here."""
        self._url = url
        self._environment = environment
        self._worker_id = worker_id
        self._role = role
        self._database = SqlDatabase(url)
        self._session: SqlSession | None = None
        self._catalog: SqlCatalog | None = None
        self._lost: dict[UUID, int] = {}
        self._locked: set[Landing] = set()
        """Landings that could not be written when last tried, because of somebody's lock."""

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        """Fence many feeds in few statements. Raises `SinkUnavailable`."""

        def fence(session: SqlSession, catalog: SqlCatalog) -> list[FenceOutcome]:
            catalog.ensure_bookkeeping()
            landings = {request.landing for request in requests}
            # A table that was taken away since is made anew, or complained about, before a feed starts.
            catalog.look_again(landings)
            wrong = catalog.problems(landings, create=True)
            unusable: list[FenceOutcome] = [
                Unusable(request.feed_id, request.epoch, wrong[request.landing])
                for request in requests
                if request.landing in wrong
            ]
            usable = [request for request in requests if request.landing not in wrong]
            fencing = SqlFencing(session, self._environment, self._worker_id)
            return unusable + fencing.fence(usable, lock_timeout_s=lock_timeout_s)

        return self._read(fence) if requests else []

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        """Land and checkpoint in one transaction. Raises `SinkUnavailable` (nothing was written) or
        `CommitUnknown`."""
        assert len({write.key for write in writes}) == len(writes), "a feed is twice in one group"
        landings = {write.landing for write in writes}
        course = Course(
            landings,
            briefly,
            doubted=self._locked & landings,
            around_locks=self._database.flavor.locks_all,
        )
        for _ in range(ATTEMPTS_MAX + len(landings)):
            session, catalog = self._connect()
            try:
                written = self._write(session, catalog, writes, course)
                self._locked |= course.held.keys()
                self._locked -= {write.landing for write in writes if write.key in written.landed}
                return written
            except GroupFailed as failed:
                last = failed
                session.rollback()
                if session.is_broken or failed.trouble is ErrorScope.UNAVAILABLE:
                    if not _died_idle(session):
                        break
                    continue
                match course.after(failed):
                    case Next.POSTPONE:
                        return self._postpone(writes, failed)
                    case Next.GIVE_UP:
                        break
            except SQLAlchemyError as error:
                session.rollback()
                if not _died_idle(session):
                    raise self._unavailable(error, "nothing was written") from error
                last = GroupFailed(Part.CHECKPOINTS, ErrorScope.UNAVAILABLE, error, str(error))
            except CommitUnknown as unknown:
                if session.number is not None:
                    self._lost[unknown.commit_id] = session.number
                self.close()
                raise
            except BaseException:
                # Whatever it was, the transaction must not stay open behind it.
                self.close()
                raise
        raise self._unavailable(last.error, "nothing was written") from last.error

    def settle(self, unknown: CommitUnknown) -> Written | None:
        """Whether the lost commit happened; None: nothing of it did. Raises `SinkUnavailable`."""
        number = self._lost.get(unknown.commit_id)

        def last_commits(session: SqlSession, _: SqlCatalog) -> dict[int, LastCommit]:
            if number is not None:
                # It may still hold a COMMIT that it has not read: without this, we would wait for it.
                session.flavor.end_session(
                    session.connection, number, role=self._role, worker_id=self._worker_id
                )
            session.set_lock_wait(SETTLE_LOCK_TIMEOUT_S)
            session.begin()
            # Locking waits for a commit in flight; a plain read would miss it.
            return self._last_commits(session, sorted(feed_id for feed_id, _ in unknown.written.landed))

        written = decide(unknown, self._read(last_commits))
        self._lost.pop(unknown.commit_id, None)
        return written

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        """End the sessions of these workers, which the caller knows to be gone. Returns how many; always 0
        where a session cannot be told from another, or belongs to its process alone."""
        others = [worker_id for worker_id in worker_ids if worker_id != self._worker_id]
        if not others:
            return 0
        return self._read(lambda session, _: session.flavor.end_workers(session.connection, others))

    def check(self, landing: Landing) -> str | None:
        """Why the landing cannot work; None when it can. Writes nothing. Raises `SinkUnavailable`."""

        def check(_: SqlSession, catalog: SqlCatalog) -> str | None:
            catalog.look_again([landing])
            if not landing.is_mapped and not catalog.exists(landing):
                return misdeclared(landing)
            return catalog.problems([landing], create=False).get(landing)

        return self._read(check)

    def preview(self, write: FeedWrite) -> list[Preview]:
        """How the records would land. Writes nothing. Raises `SinkUnavailable`, `InvalidInput`."""

        def show(session: SqlSession, catalog: SqlCatalog) -> list[Preview]:
            landing = write.landing
            exists = catalog.exists(landing)
            # A default table would be made by the first fence; there is nothing to try until then.
            plan = catalog.plan(landing) if exists or landing.is_mapped else catalog.imagined(landing)
            return preview(session, plan, write, lands=exists)

        return self._read(show)

    def dead_letters(
        self,
        feed: str | None = None,
        *,
        feed_id: int | None = None,
        ids: Collection[int] = (),
        after: int | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        """Refused records, newest first, or oldest first with ``after``. Raises `SinkUnavailable`."""

        def read(session: SqlSession, catalog: SqlCatalog) -> list[DeadLetter]:
            catalog.ensure_bookkeeping()
            return listed(
                session, self._environment, feed=feed, feed_id=feed_id, ids=ids, after=after, limit=limit
            )

        return self._read(read)

    def replay(self, ids: Collection[int], landing: Landing) -> Replayed:
        """Land refused records after all. Raises `SinkUnavailable`, `InvalidInput`."""

        def land(session: SqlSession, catalog: SqlCatalog) -> Replayed:
            catalog.ensure_bookkeeping()
            catalog.look_again([landing])
            return replay(session, self._environment, catalog.plan(landing), ids=ids, landing=landing)

        return self._read(land)

    def drop(self, ids: Collection[int]) -> int:
        """Delete refused records for good. Raises `SinkUnavailable`."""

        def delete(session: SqlSession, catalog: SqlCatalog) -> int:
            catalog.ensure_bookkeeping()
            return drop(session, self._environment, ids)

        return self._read(delete)

    def checkpoints(self, feeds: Collection[str] | None = None) -> list[Checkpoint]:
        """What the sink knows of feeds of these names, or of all. Raises `SinkUnavailable`."""

        def read(session: SqlSession, catalog: SqlCatalog) -> list[Checkpoint]:
            catalog.ensure_bookkeeping()
            return checkpoints.listed(session, self._environment, feeds)

        return self._read(read)

    def take(self, taking: Taking) -> None:
        """Give a feed its checkpoint. Raises `Conflict`, `SinkUnavailable`."""

        def take(session: SqlSession, catalog: SqlCatalog) -> None:
            catalog.ensure_bookkeeping()
            checkpoints.take(session, self._environment, self._worker_id, taking)

        try:
            self._read(take)
        except AnswerLost as lost:
            raise SinkUnavailable(
                f"nobody knows whether {taking.feed!r} has it now: {lost}; look again"
            ) from lost

    def close(self) -> None:
        """End the session. The sink can be used again, and opens another one then."""
        if self._session is not None:
            self._session.close()
        self._session = self._catalog = None

    # -- private -------------------------------------------------------------------------------------

    def _write(
        self, session: SqlSession, catalog: SqlCatalog, writes: Sequence[FeedWrite], course: Course
    ) -> Written:
        """One attempt, without the feeds that cannot be written in any case."""
        catalog.ensure_bookkeeping()
        landings = {write.landing for write in writes}
        if course.care is not Care.OPTIMISTIC:
            catalog.look_again(landings)
        wrong = catalog.problems(landings, create=False)
        unusable: dict[FeedKey, str] = {}
        for write in writes:
            if why := wrong.get(write.landing) or _unkeepable(write) or catalog.unsendable(write):
                unusable[write.key] = why
        usable = [write for write in writes if write.key not in unusable]
        plans = {write.landing: catalog.plan(write.landing) for write in usable}
        group = SqlGroupCommit(
            session, plans, self._environment, owner=self._worker_id, course=course, unusable=unusable
        )
        return group.run(usable)

    def _postpone(self, writes: Sequence[FeedWrite], failed: GroupFailed) -> Written:
        """The sink is well, and these cannot be committed: each of them is to be tried by itself."""
        # What the catalog knows may be what is wrong: it is read anew.
        self.close()
        return Written({}, {}, (), {}, {write.key: f"the commit failed: {failed}" for write in writes})

    def _last_commits(self, session: SqlSession, feed_ids: Sequence[int]) -> dict[int, LastCommit]:
        found: dict[int, LastCommit] = {}
        for start in range(0, len(feed_ids), FEEDS_AT_ONCE):
            part = feed_ids[start : start + FEEDS_AT_ONCE]
            for row in session.execute(session.flavor.locking(self._environment, part)):
                found[row.feed_id] = LastCommit(row.epoch, row.commit_id and UUID(row.commit_id))
        return found

    def _read(self, work: Callable[[SqlSession, SqlCatalog], T]) -> T:
        """Do what may be repeated: again after a conflict, or when the session turns out to be dead."""
        for attempt in range(READ_ATTEMPTS_MAX):
            # Longer and longer, and nothing at first: a conflict is over when the other one is done.
            time.sleep(attempt * CONFLICT_PAUSE_S)
            session, catalog = self._connect()
            try:
                done = work(session, catalog)
            except SQLAlchemyError as error:
                session.rollback()
                last = error
                if session.flavor.trouble(error) is not ErrorScope.CONFLICT and not session.is_broken:
                    break
            except BaseException:
                self.close()
                raise
            else:
                session.rollback()
                return done
        raise self._unavailable(last) from last

    def _connect(self) -> tuple[SqlSession, SqlCatalog]:
        """The session, opened anew if there is none or it is known to be broken. Raises `SinkUnavailable`."""
        if self._session is not None and self._session.is_broken:
            self.close()
        if self._session is None or self._catalog is None:
            try:
                self._session = self._database.open(role=self._role, worker_id=self._worker_id)
                self._catalog = SqlCatalog(self._session)
            except (SQLAlchemyError, OSError, RuntimeError) as error:
                # Not all that a driver raises when it cannot connect is wrapped.
                raise self._unavailable(error) from error
        return self._session, self._catalog

    def _unavailable(self, error: Exception, consequence: str = "") -> SinkUnavailable:
        """The error for the caller; the session starts afresh, whatever state it was in."""
        self.close()
        text = explain(error) if isinstance(error, SQLAlchemyError) else str(error)
        if isinstance(error, DBAPIError) and self._database.flavor.trouble(error) is ErrorScope.LOCKED:
            text = f"{text}: another session holds the lock"
        parts = [f"sink {mask_url(self._url)}: {mask_url(text)}", *filter(None, [consequence])]
        return SinkUnavailable("; ".join(parts))


def _died_idle(session: SqlSession) -> bool:
    """Whether the connection was dead before the transaction did anything: then a new one is worth a try."""
    return session.is_broken and not session.has_begun


def _unkeepable(write: FeedWrite) -> str | None:
    try:
        for batch in write.batches:
            cursor_text(batch.cursor)
    except ValueError as error:
        return str(error)
    return None
