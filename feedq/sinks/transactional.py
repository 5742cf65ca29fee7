"""The sink for databases with transactions: data and checkpoint in one of them, gated by the epoch.

`TransactionalSink` holds one session, opened when it is first needed and again after it broke, and decides what an
error means for the caller. How a group is committed is in `feedq.sinks.groupcommit`; what databases do each
their own way is behind `feedq.sinks.session` and `feedq.sinks.catalog`.

What it relies on: whoever commits a feed's records holds the feed's checkpoint row locked from before the
first record to the commit, under an epoch that the row still has. So a stale owner can commit nothing, and
a successor that has fenced sees all that its predecessor ever committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Engine

from feedq.core.passwords import mask_url
from feedq.core.remedies import with_remedy
from feedq.errors import FeedqError, SinkUnavailable
from feedq.sinks.base import (
    Blocked,
    Checkpoint,
    CheckpointChange,
    CommitUnknown,
    DeadLetter,
    FeedWrite,
    FenceOutcome,
    FenceRequest,
    Judge,
    Preview,
    Replayed,
    Superseded,
    Target,
    Unusable,
    Written,
    anybody,
)
from feedq.sinks.catalog import Catalog
from feedq.sinks.checkpoints import LastCommit, decide, strangers
from feedq.sinks.groupcommit import GroupCommit, GroupFailed, by_target
from feedq.sinks.mapping import ColumnType
from feedq.sinks.refusals import CONFLICTS_MAX, FailedAttempt, bisect
from feedq.sinks.session import ErrorScope, SinkSession, parts
from feedq.sinks.upkeep import change_checkpoint, checkpoints, dead_letters, drop, preview, replay

T = TypeVar("T")

READ_ATTEMPTS_MAX: Final = 5
"""Transactions that end in a deadlock or a serialization failure are tried this often."""
CONFLICT_PAUSE_S: Final = 0.02
SETTLE_LOCK_TIMEOUT_S: Final = 5.0
FENCED_AT_ONCE: Final = 1_000
"""Bounds how long one fence holds the rows that it has already raised."""
LOCK_POLL_S: Final = 0.02
"""How often to look again at locks that the database does not wait for."""
LOCKS_TRIED_MAX: Final = 40
"""Attempts in vain at feeds that are locked one after another: enough to find one among a thousand, and no fence
waits without end."""
SETTING: Final = "the sink's URL (FEEDQ_SINKS__…)"
MAKE_TABLES: Final = (
    "feedq's own tables could not be made; until this role has connected once, it needs CREATE on the schema"
)


class TransactionalSink:
    """A session with a database, on behalf of one worker. Belongs to one thread.

    What its methods promise is said at `feedq.sinks.base.Sink`.
    """

    session_type: type[SinkSession]
    catalog_type: ClassVar[type[Catalog]]
    _engine: Engine

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        self._url = url
        self._environment = environment
        self._worker_id = worker_id
        self._role = role
        self._connected: tuple[SinkSession, Catalog] | None = None
        self._locked: set[Target] = set()
        """Targets that could not be written when last tried, because of somebody's lock."""
        self._lost: dict[UUID, Any] = {}
        """By which the server knows the sessions of commits whose answers were lost."""

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        def fence(session: SinkSession, catalog: Catalog) -> list[FenceOutcome]:
            targets = {request.target for request in requests}
            # A table that was taken away since is made anew, or complained about, before a feed starts.
            catalog.refresh(targets)
            wrong = catalog.problems(targets, create=True)
            unusable: list[FenceOutcome] = [
                Unusable(request.feed_id, request.epoch, wrong[request.target])
                for request in requests
                if request.target in wrong
            ]
            usable = [request for request in requests if request.target not in wrong]
            return unusable + Fencing(session).fence(usable, lock_timeout_s=lock_timeout_s)

        return self._do(fence) if requests else []

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        assert len({write.key for write in writes}) == len(writes), "a feed is twice in one group"
        groups = by_target(writes)
        was_refused, conflicts = False, 0
        while True:
            session, catalog = self._connect()
            try:
                return GroupCommit(
                    session, catalog, briefly=briefly, locked=self._locked, was_refused=was_refused
                ).run(groups)
            except GroupFailed as failed:
                last = failed.error
                session.rollback()
                if session.is_broken or failed.scope is ErrorScope.UNAVAILABLE:
                    if not _died_idle(session):
                        break
                elif failed.scope is ErrorScope.CONFLICT and conflicts < CONFLICTS_MAX:
                    conflicts += 1
                    for target in failed.changed:
                        catalog.forget(target)
                elif failed.is_the_sinks:
                    break
                elif was_refused:
                    # What the catalog knows may be what is wrong: it is read anew.
                    self.close()
                    return _postponed(writes, f"the commit failed: {failed}")
                else:
                    was_refused = True
            except session.errors as error:
                last = error
                session.rollback()
                if not _died_idle(session):
                    break
            except CommitUnknown as unknown:
                self._lost[unknown.commit_id] = session.backend
                self.close()
                raise
            except BaseException:
                # Whatever it was, the transaction must not stay open behind it.
                self.close()
                raise
        raise self._unavailable(last, "nothing was written") from last

    def settle(self, unknown: CommitUnknown) -> Written | None:
        backend = self._lost.get(unknown.commit_id)

        def last_commits(session: SinkSession, _: Catalog) -> dict[int, LastCommit]:
            if backend is not None:
                # It may still hold a COMMIT that it has not read: without this, we would wait for it.
                session.end_session(backend)
            session.set_lock_timeout(SETTLE_LOCK_TIMEOUT_S)
            return session.last_commits([feed_id for feed_id, _ in unknown.written.landed], lock=True)

        written = decide(unknown, self._do(last_commits))
        self._lost.pop(unknown.commit_id, None)
        return written

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        others = [worker_id for worker_id in worker_ids if worker_id != self._worker_id]
        if not others:
            return 0
        return self._do(lambda session, _: session.end_workers(others))

    def check(self, target: Target) -> str | None:
        def check(_: SinkSession, catalog: Catalog) -> str | None:
            if catalog.is_yet_to_be_made(target):
                return catalog.why_unmakeable(target)
            catalog.refresh([target])
            return catalog.problems([target], create=False).get(target)

        return self._do(check)

    def preview(self, write: FeedWrite) -> list[Preview]:
        try:
            return self._do(lambda session, catalog: preview(session, catalog, write))
        finally:
            # What the catalog has learnt was true inside a transaction that never happened.
            self.close()

    def dead_letters(
        self,
        feed: str | None = None,
        *,
        ids: Collection[int] = (),
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        return self._do(
            lambda session, _: dead_letters(session, feed, ids=ids, after=after, before=before, limit=limit)
        )

    def replay(self, ids: Collection[int], target: Target, *, judge: Judge = anybody) -> Replayed:
        return self._do(lambda session, catalog: replay(session, catalog.inspect(target), ids, judge))

    def drop(self, ids: Collection[int], *, judge: Judge = anybody) -> int:
        return self._do(lambda session, _: drop(session, ids, judge))

    def checkpoints(self, feeds: Collection[str] | None = None) -> list[Checkpoint]:
        return self._do(lambda session, _: checkpoints(session, feeds))

    def change_checkpoint(self, change: CheckpointChange) -> None:
        self._do(lambda session, _: change_checkpoint(session, change))

    def add_columns(
        self, target: Target, columns: Mapping[str, ColumnType], *, dry_run: bool = False
    ) -> list[str]:
        done: list[str] = []

        def add(_: SinkSession, catalog: Catalog) -> None:
            done[:] = catalog.add_columns(target, columns, dry_run=dry_run) or done

        self._do(add)
        return done

    def close(self) -> None:
        """End the session. The sink can be used again, and opens another one then."""
        if self._connected is not None:
            self._connected[0].close()
        self._connected = None

    # -- private -------------------------------------------------------------------------------------

    def _do(self, work: Callable[[SinkSession, Catalog], T]) -> T:
        """Do what may be repeated: again after a conflict, or when the session turns out to be dead."""
        for attempt in range(READ_ATTEMPTS_MAX):
            session, catalog = self._connect()
            try:
                done = work(session, catalog)
                session.rollback()
                return done
            except session.errors as error:
                session.rollback()
                last = error
                if session.scope(error) is ErrorScope.CONFLICT:
                    # Nothing at first, and then longer and longer: a conflict is over when the other one is done.
                    time.sleep(attempt * CONFLICT_PAUSE_S)
                elif not session.is_broken:
                    break
            except FeedqError:
                # Nothing that is locked stays so until the server has noticed that the session is gone.
                session.rollback()
                raise
            except BaseException:
                self.close()
                raise
        raise self._unavailable(last) from last

    def _connect(self) -> tuple[SinkSession, Catalog]:
        """The session, opened anew if there is none or it is known to be broken. Raises `SinkUnavailable`."""
        if self._connected is not None and self._connected[0].is_broken:
            self.close()
        for attempt in range(READ_ATTEMPTS_MAX):
            try:
                self._connected = self._connected or self._open()
                return self._connected
            except self.session_type.errors as error:
                last = error
                if self.session_type.scope(error) is not ErrorScope.CONFLICT:
                    break
                # Somebody else makes feedq's own tables at this moment.
                time.sleep(attempt * CONFLICT_PAUSE_S)
            except (OSError, RuntimeError) as error:
                # Not all that a driver raises when it cannot connect is wrapped.
                raise self._unavailable(error) from error
        raise self._unavailable(last) from last

    def _open(self) -> tuple[SinkSession, Catalog]:
        """A new session; feedq's own tables are there. Raises the session's errors, `SinkUnavailable`."""
        session = self.session_type(
            self._engine, environment=self._environment, worker_id=self._worker_id, role=self._role
        )
        catalog = self.catalog_type(session)
        try:
            session.ensure_bookkeeping()
        except session.errors as error:
            if session.is_broken or session.scope(error) is not ErrorScope.TARGET:
                session.close()
                raise
            self._connected = session, catalog
            raise self._unavailable(error, MAKE_TABLES) from error
        except BaseException:
            session.close()
            raise
        return session, catalog

    def _unavailable(self, error: Exception, consequence: str = "") -> SinkUnavailable:
        """The error for the caller; the session starts afresh, whatever state it was in."""
        remedy = self._remedy(error)
        self.close()
        text = str(error)
        if isinstance(error, self.session_type.errors):
            text = self.session_type.explain(error)
            if self.session_type.scope(error) is ErrorScope.LOCKED:
                context = getattr(getattr(getattr(error, "orig", error), "diag", None), "context", None)
                text = f"{text}: another session holds the lock" + (f" ({context})" if context else "")
        said = with_remedy(f"sink {mask_url(self._url)}: {mask_url(text)}", setting=SETTING)
        return SinkUnavailable("; ".join(filter(None, [said, consequence, remedy])))

    def _remedy(self, error: Exception) -> str:
        if self._connected is None:
            return ""
        session = self._connected[0]
        session.rollback()
        with suppress(*session.errors):
            return "" if session.is_broken else session.remedy(error)
        return ""


class Fencing:
    """One call to `Sink.fence` on one session: raises the epoch of many checkpoints, and reads the cursors that
    the predecessors left. Methods raise the session's errors.

    Many feeds are fenced together, which waits for a predecessor's commit that is in flight. When that runs into a
    lock for too long, the feeds that are not locked are fenced all the same, and of the others it is told whose
    session is in the way. Locks are waited for once in a call, however many there are: hundreds of feeds that a
    frozen worker left must not add up.
    """

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self._commit_id = uuid4()
        """By which a checkpoint says that it was fenced here and now."""
        self._outcomes: list[FenceOutcome] = []

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        deadline = time.monotonic() + lock_timeout_s
        locked: list[FenceRequest] = []
        for asked in parts(sorted(requests, key=lambda request: request.feed_id), FENCED_AT_ONCE):
            part = self._without_strangers(asked)
            if locked or not self._fence_together(part, lock_timeout_s):
                locked += self._fence_around_locks(part)
        while locked and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(LOCK_POLL_S, left_s))
            locked = [
                request
                for part in parts(locked, FENCED_AT_ONCE)
                for request in self._fence_around_locks(part)
            ]
        return self._outcomes + self._blocked(locked)

    def _without_strangers(self, requests: Sequence[FenceRequest]) -> Sequence[FenceRequest]:
        """Leaves the feeds that may have the checkpoint that is there."""
        known = self._session.possible_strangers(requests)
        wrong = strangers(requests, known) if known else {}
        self._outcomes += [
            Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in requests if r.feed_id in wrong
        ]
        return [request for request in requests if request.feed_id not in wrong] if wrong else requests

    def _fence_together(self, requests: Sequence[FenceRequest], lock_timeout_s: float) -> bool:
        """Fence them all; False when one of them stayed locked, and then none is fenced."""
        if not requests:
            return True
        raised = self._session.raise_epochs(requests, self._commit_id, lock_timeout_s=lock_timeout_s)
        if raised is None:
            return False
        self._outcomes += raised.values()
        self._refused([request for request in requests if request.feed_id not in raised])
        return True

    def _refused(self, requests: Sequence[FenceRequest]) -> None:
        """Say why the sink refused these epochs."""
        if not requests:
            return
        known = self._session.last_commits([request.feed_id for request in requests], lock=False)
        for request in requests:
            last = known.get(request.feed_id)
            self._outcomes.append(
                # Also when the epochs are equal: the control database has forgotten one, and gave it out twice.
                Superseded(request.feed_id, request.epoch, last.epoch)
                if last is not None and last.epoch >= request.epoch
                # Somebody removed the checkpoint by hand just now: the next try makes a new one.
                else Blocked(request.feed_id, request.epoch, None)
            )

    def _fence_around_locks(self, requests: Sequence[FenceRequest]) -> list[FenceRequest]:
        """Fence those that nobody has locked; returns the others."""
        held = set(self._session.find_locked([request.feed_id for request in requests]))
        free = [request for request in requests if request.feed_id not in held]

        def attempt(part: Sequence[FenceRequest]) -> FailedAttempt | None:
            # Since they were looked at some were locked, or are being inserted at this moment.
            done = self._fence_together(part, self._session.brief_lock_timeout_s)
            return None if done else FailedAttempt("locked")

        locked, left = bisect(free, attempt, failures_max=LOCKS_TRIED_MAX)
        held |= {request.feed_id for request in (*(request for request, _ in locked), *left)}
        return [request for request in requests if request.feed_id in held]

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Says whose session is in the way."""
        if not requests:
            return []
        holders = self._session.holders([request.feed_id for request in requests])
        return [Blocked(request.feed_id, request.epoch, holders.get(request.feed_id)) for request in requests]


def _postponed(writes: Sequence[FeedWrite], why: str) -> Written:
    """The sink is well, and these cannot be committed: each of them is to be tried by itself."""
    return Written({}, {}, (), {}, {write.key: why for write in writes})


def _died_idle(session: SinkSession) -> bool:
    """Whether the connection was dead before the transaction did anything: then a new one is worth a try."""
    return session.is_broken and not session.has_begun
