"""The sink for databases with transactions: data and checkpoint in one of them, gated by the epoch.

`TransactionalSink` holds one session, opens it when it is first needed and again after it broke, and decides what
an error means for the caller. `feedq.sinks.groupcommit` commits a group; what each database does in its own way is
in its `feedq.sinks.session.SinkSession`.

It relies on this: whoever commits a feed's records holds the feed's checkpoint row locked from before the first
record until the commit, under an epoch that the row still has. So a stale owner can commit nothing, and a
successor that has fenced sees everything that its predecessor ever committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID

from feedq.core.passwords import mask_url
from feedq.core.remedies import with_remedy
from feedq.errors import CommitUnknown, FeedqError, SinkUnavailable
from feedq.sinks.base import (
    FeedWrite,
    FenceOutcome,
    FenceRequest,
    Target,
    Unusable,
    Written,
)
from feedq.sinks.checkpoints import LastCommit, UnknownCommit
from feedq.sinks.fencing import Fencing
from feedq.sinks.groupcommit import GroupCommit, by_target
from feedq.sinks.refusals import CONFLICTS_MAX
from feedq.sinks.session import (
    CONFLICT_PAUSE_S,
    AnswerLost,
    ErrorScope,
    SinkSession,
    TargetChanged,
    application_name,
)
from feedq.sinks.upkeep import change_checkpoint, check, checkpoints, dead_letters, drop, preview, replay

P = ParamSpec("P")
T = TypeVar("T")

READ_ATTEMPTS_MAX: Final = 5
"""Transactions that end in a deadlock or a serialization failure are tried this often."""
SETTLE_LOCK_TIMEOUT_S: Final = 5.0
SETTING: Final = "the sink's URL (FEEDQ_SINKS__…)"
MAKE_TABLES: Final = (
    "feedq's own tables could not be made; until this role has connected once, it needs CREATE on the schema"
)


def _on_session(
    work: Callable[Concatenate[SinkSession, P], T],
) -> Callable[Concatenate[TransactionalSink, P], T]:
    """Makes a method that does this on the session of its sink, and may be repeated."""

    def method(self: TransactionalSink, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda session: work(session, *args, **kwargs))

    return method


class TransactionalSink:
    """A session with a database, on behalf of one worker. Belongs to one thread.

    `feedq.sinks.base.Sink` documents its methods.
    """

    session_type: type[SinkSession]

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        self._url = url
        self._environment = environment
        self._worker_id = worker_id
        self._role = role
        self._engine = self.session_type.open(url, application_name(role, worker_id))
        self._session: SinkSession | None = None
        self._locked: set[Target] = set()
        """Targets that could not be written when last tried, because of somebody's lock."""
        self._unknown: UnknownCommit | None = None
        """The last commit, if its answer was lost."""
        self._unknown_session: int | None = None
        """The server's number of the session of that commit."""

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        def fence(session: SinkSession) -> list[FenceOutcome]:
            targets = {request.target for request in requests}
            # A table that was taken away since is made anew, or complained about, before a feed starts.
            session.refresh(targets)
            wrong = session.get_ready(targets, create=True)
            unusable: list[FenceOutcome] = [
                Unusable(request.feed_id, request.epoch, wrong[request.target])
                for request in requests
                if request.target in wrong
            ]
            usable = [request for request in requests if request.target not in wrong]
            return unusable + Fencing(session).fence(usable, lock_timeout_s=lock_timeout_s)

        return self._do(fence)

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        assert len({write.key for write in writes}) == len(writes), "a feed is twice in one group"
        if (settled := self._settle(writes)) is not None:
            return settled
        groups = by_target(writes)
        failures: tuple[type[Exception], ...] = (TargetChanged, *self.session_type.errors)
        was_refused, conflicts = False, 0
        while True:
            session = self._connect()
            commit = GroupCommit(session, briefly=briefly, locked=self._locked, was_refused=was_refused)
            try:
                if conflicts:
                    session.refresh(groups)
                return commit.run(groups)
            except failures as error:
                last = error
                session.rollback()
                has_changed = isinstance(error, TargetChanged)
                scope = ErrorScope.CONFLICT if has_changed else session.scope(error)
                if session.is_broken or scope is ErrorScope.UNAVAILABLE:
                    if session.has_begun or not session.is_broken:
                        break
                    # It was dead before the transaction did anything: a new connection is worth a try.
                elif scope is ErrorScope.CONFLICT and conflicts < CONFLICTS_MAX:
                    conflicts += 1
                elif commit.is_the_sinks or (scope is ErrorScope.LOCKED and session.locks_all):
                    break
                elif was_refused:
                    # What is known of the targets may be what is wrong: they are inspected anew.
                    self.close()
                    why = f"the commit failed: {error if has_changed else session.explain(error)}"
                    return Written({}, {}, (), {}, {write.key: why for write in writes})
                else:
                    was_refused = True
            except AnswerLost as lost:
                raise self._unknown_commit(session, writes, commit.written) from lost
            except BaseException:
                # Whatever it was, the transaction must not stay open behind it.
                self.close()
                raise
        raise self._unavailable(last, "nothing was written") from last

    def _unknown_commit(
        self, session: SinkSession, writes: Sequence[FeedWrite], written: Written
    ) -> CommitUnknown:
        self._unknown, self._unknown_session = UnknownCommit(writes, written), session.number
        self.close()
        return CommitUnknown(
            f"sink {mask_url(self._url)}: the answer to a commit of {len(writes)} feeds was lost"
        )

    def _settle(self, writes: Sequence[FeedWrite]) -> Written | None:
        """What became of a commit whose answer was lost, if these were part of it and it happened."""
        unknown = self._unknown
        if unknown is None or not unknown.covers(writes):
            self._unknown = None
            return None

        def last_commits(session: SinkSession) -> dict[int, LastCommit]:
            if self._unknown_session is not None:
                # It may still hold a COMMIT that it has not read: without this, we would wait for it.
                session.end_session(self._unknown_session)
            session.set_lock_timeout(SETTLE_LOCK_TIMEOUT_S)
            return session.last_commits([feed_id for feed_id, _ in unknown.written.landed], lock=True)

        settled = unknown.decide(self._do(last_commits))
        self._unknown = None
        return settled

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        others = [worker_id for worker_id in worker_ids if worker_id != self._worker_id]
        if not others:
            return 0
        return self._do(lambda session: session.end_workers(others))

    check = _on_session(check)
    preview = _on_session(preview)
    dead_letters = _on_session(dead_letters)
    replay = _on_session(replay)
    drop = _on_session(drop)
    checkpoints = _on_session(checkpoints)
    change_checkpoint = _on_session(change_checkpoint)
    add_columns = _on_session(SinkSession.add_columns)

    def close(self) -> None:
        """End the session. The sink can be used again, and opens another one then."""
        if self._session is not None:
            self._session.close()
        self._session = None

    # -- private -------------------------------------------------------------------------------------

    def _do(self, work: Callable[[SinkSession], T]) -> T:
        """Do what may be repeated: again after a conflict, or when the session turns out to be dead."""
        for attempt in range(READ_ATTEMPTS_MAX):
            session = self._connect()
            try:
                done = work(session)
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

    def _connect(self) -> SinkSession:
        """The session, opened anew if there is none or it is known to be broken; feedq's own tables are there.
        Raises `SinkUnavailable`."""
        if self._session is not None and not self._session.is_broken:
            return self._session
        self.close()
        try:
            self._session = self.session_type(
                self._engine, environment=self._environment, worker_id=self._worker_id, role=self._role
            )
            self._session.ensure_bookkeeping()
        except self.session_type.errors as error:
            is_forbidden = self._session is not None and self._session.scope(error) is ErrorScope.TARGET
            raise self._unavailable(error, MAKE_TABLES if is_forbidden else "") from error
        except (OSError, RuntimeError) as error:
            # Not all that a driver raises when it cannot connect is wrapped.
            raise self._unavailable(error) from error
        except BaseException:
            self.close()
            raise
        return self._session

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
        if (session := self._session) is None:
            return ""
        session.rollback()
        with suppress(*session.errors):
            return "" if session.is_broken else session.remedy(error)
        return ""
