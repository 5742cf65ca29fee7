"""The sink for databases with transactions: records of many feeds and their checkpoints in one of them.

`TransactionalSink` holds one session, opens it when it is first needed and again after it broke, and decides what
an error means for the caller. What each database does in its own way is in its
`feedq.sinks.session.SinkSession`. A `GroupCommit` is one transaction::

    begin ─ lock my checkpoints ─ land, a COPY per target ─ advance checkpoints ─ write dead letters ─ commit
                  │ not as it was left:
                  └ nothing of that feed is written

The locks come first, and are held until the commit, under an epoch that the row still has. So a stale owner can
commit nothing, and a successor's fence waits for them, and sees everything that its predecessor ever committed.
Killed, frozen or cut off at any point before the commit, nothing has happened.

Targets land under savepoints, and what one refuses is found and set aside there (`feedq.sinks.refusals`). So one
transaction is enough, except in four cases in which `TransactionalSink.write` begins another one: the connection
had died before, a deadlock ended the transaction, a table has changed, or the dead letters or the commit were
refused.

An error of the database belongs to one record, one feed, or the sink, in this order: only an error at the
checkpoints, which all feeds need, is the sink's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID, uuid4

from feedq.core.model import FeedKey
from feedq.core.passwords import mask_url
from feedq.core.remedies import with_remedy
from feedq.errors import CommitUnknown, FeedqError, SinkUnavailable
from feedq.sinks.base import (
    Checkpoint,
    DeadRecord,
    FeedWrite,
    FenceOutcome,
    FenceRequest,
    Target,
    Unusable,
    Written,
    parts,
)
from feedq.sinks.fencing import Fencing
from feedq.sinks.field_watch import watch_fields
from feedq.sinks.mapping import Drift
from feedq.sinks.refusals import CONFLICTS_MAX, OverBudget, TargetLanding, Unencodable
from feedq.sinks.session import (
    ATTEMPTS_MAX,
    CONFLICT_PAUSE_S,
    PATIENT_LOCK_TIMEOUT_S,
    AnswerLost,
    ErrorScope,
    SinkSession,
    TargetChanged,
    TargetPlan,
    application_name,
)
from feedq.sinks.upkeep import change_checkpoint, check, checkpoints, dead_letters, drop, preview, replay

P = ParamSpec("P")
T = TypeVar("T")

STATEMENT_TIMEOUT_S: Final = 300.0
"""No group commit takes this long in good health; beyond it the feeds would have stood still for ever."""
BRIEF_STATEMENT_TIMEOUT_S: Final = 5.0
"""The same while other feeds wait: a target that takes longer, by a slow trigger for one, is written apart."""
SAVEPOINTS_MAX: Final = 4
"""Each takes a transaction id, of which a database has two billion until it freezes its rows: with one for each of
a thousand tables, four times a second, those would be gone in a week. So several targets share one, until one of
them refuses something."""
SETTING: Final = "the sink's URL (FEEDQ_SINKS__…)"
MAKE_TABLES: Final = (
    "feedq's own tables could not be made; until this role has connected once, it needs CREATE on the schema"
)

Groups = Mapping[Target, Sequence[FeedWrite]]


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
        assert len({write.feed_id for write in writes}) == len(writes), "a feed is twice in one group"
        if (settled := self._settle(writes)) is not None:
            return settled
        groups = by_target(writes)
        failures: tuple[type[Exception], ...] = (TargetChanged, *self.session_type.errors)
        postponed: dict[FeedKey, str] = {}
        conflicts = 0
        while True:
            session = self._connect()
            commit = GroupCommit(session, briefly=briefly, locked=self._locked, postponed=postponed)
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
                else:
                    # What is known of the targets may be what is wrong: they are inspected anew.
                    self.close()
                    why = f"the commit failed: {error if has_changed else session.explain(error)}"
                    # It may have been the dead letters that could not be kept.
                    blamed = commit.written.dead or [write.key for write in writes]
                    postponed |= dict.fromkeys(blamed, why)
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
        self._unknown = UnknownCommit(writes, written, session.number)
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

        def committed(session: SinkSession) -> dict[int, Checkpoint]:
            if unknown.session is not None:
                # It may still hold a COMMIT that it has not read: without this, we would wait for it.
                session.end_session(unknown.session)
            session.set_lock_timeout(PATIENT_LOCK_TIMEOUT_S)
            session.begin()
            # A plain read would miss a commit in flight.
            return session.checkpoints_of([feed_id for feed_id, _ in unknown.written.landed], lock=True)

        settled = unknown.decide(self._do(committed))
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
        for attempt in range(ATTEMPTS_MAX):
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


class GroupCommit:
    """One transaction for a group. Used once."""

    def __init__(
        self,
        session: SinkSession,
        *,
        briefly: bool,
        locked: set[Target],
        postponed: Mapping[FeedKey, str],
    ) -> None:
        """``locked``: targets that were found locked, not to be waited for again; kept up to date here.
        ``postponed``: feeds that are not to be written, and why."""
        self._session = session
        self._briefly = briefly
        self._locked = locked
        self._has_waited = False
        self.is_the_sinks = True
        """Whether what is done at this moment is for all feeds: if it fails, the sink is away."""
        self.written = Written({}, {}, (), {})
        """What has happened if the commit has."""
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable: dict[FeedKey, str] = {}
        self._postponed = dict(postponed)

    def run(self, groups: Groups) -> Written:
        """Land and advance.

        Raises:
            AnswerLost: of the commit; the session is closed.
            TargetChanged, errors of the session: nothing was written; the transaction may be open, or broken.
        """
        writes = self._find_usable(groups)
        if not writes:
            return Written({}, {}, (), self._unusable, self._postponed)
        not_locked = self._begin(writes)
        if not_locked:
            self._tell_locked([write for write in writes if write.key in not_locked])
        lost = not_locked - self._postponed.keys()
        left_out = not_locked | self._unusable.keys() | self._postponed.keys()
        landings = [
            (self._session.plan(target), admitted)
            for target, group in groups.items()
            if (admitted := [write for write in group if write.key not in left_out] if left_out else group)
        ]
        self.is_the_sinks = False
        for some in parts(landings, -(-len(landings) // SAVEPOINTS_MAX) or 1):
            if len(some) == 1 or not self._land_together(some):
                for plan, admitted in some:
                    self._land(plan, admitted)
        targets = [plan.target for plan, group in landings if any(w.key in self._landed for w in group)]
        return self._commit(writes, targets, lost)

    def _find_usable(self, groups: Groups) -> list[FeedWrite]:
        """The writes that are not without hope whatever their records."""
        wrong = self._session.get_ready(groups)
        for target in groups:
            is_watched = target.drift is not Drift.IGNORE and target not in wrong
            if is_watched and (why := watch_fields(self._session, target, groups[target])):
                wrong[target] = why
        usable: list[FeedWrite] = []
        late = self._postponed
        for target, group in groups.items():
            why_none = wrong.get(target)
            for write in group:
                if late and write.key in late:
                    continue
                if why := why_none or self._session.unkeepable(write):
                    self._unusable[write.key] = why
                else:
                    usable.append(write)
        return usable

    def _begin(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        """Lock the checkpoints that are as we left them, to the end; returns the keys of the other feeds."""
        session = self._session
        session.set_lock_timeout(session.lock_timeout_s)
        session.set_statement_timeout(BRIEF_STATEMENT_TIMEOUT_S if self._briefly else STATEMENT_TIMEOUT_S)
        return session.lock(writes)

    def _tell_locked(self, writes: Sequence[FeedWrite]) -> None:
        """Postpone those whose checkpoint is as they left it: somebody has it locked."""
        known = self._session.checkpoints_of([write.feed_id for write in writes])
        for write in writes:
            last = known.get(write.feed_id)
            if last is not None and last.is_left_by(write):
                self._postponed[write.key] = "its checkpoint is locked"

    def _land_together(self, landings: Sequence[tuple[TargetPlan, Sequence[FeedWrite]]]) -> bool:
        """Land in several targets under one savepoint; False if one refused something: then nothing has landed."""
        unfit = Unencodable(briefly=self._briefly)
        plan = None
        try:
            with self._session.savepoint("feedq_together"):
                for plan, writes in landings:
                    self._bound_locks(plan)
                    plan.land(writes, unfit.add)
        except OverBudget:
            return False
        except self._session.errors as error:
            if self._session.is_broken or not self._session.can_undo(error):
                raise
            if (
                plan is not None
                and not plan.detours(error)
                and self._session.scope(error) is ErrorScope.LOCKED
            ):
                self._note_lock(plan)
            return False
        self._count((write for _, writes in landings for write in writes), unfit.records)
        return True

    def _land(self, plan: TargetPlan, writes: Sequence[FeedWrite]) -> None:
        self._bound_locks(plan)
        landing = TargetLanding(plan, briefly=self._briefly)
        self._count(landing.land(writes), landing.dead)
        self._unusable |= landing.unusable
        self._postponed |= landing.postponed
        if landing.is_locked:
            self._note_lock(plan)
        else:
            self._locked.discard(plan.target)

    def _bound_locks(self, plan: TargetPlan) -> None:
        """One wait is enough for all who wait with it."""
        is_patient = not self._has_waited and plan.target not in self._locked
        self._session.set_lock_timeout(self._session.lock_timeout_s if is_patient else 0)

    def _note_lock(self, plan: TargetPlan) -> None:
        self._has_waited = True
        self._locked.add(plan.target)

    def _count(self, landed: Iterable[FeedWrite], dead: Sequence[DeadRecord]) -> None:
        self._landed |= {write.key: write.records for write in landed}
        for suspect, _ in dead:
            self._landed[suspect.write.key] -= 1
        self._dead += dead

    def _commit(self, writes: Sequence[FeedWrite], targets: Sequence[Target], lost: set[FeedKey]) -> Written:
        session, commit_id = self._session, uuid4()
        self.written = Written(
            self._landed,
            dict(Counter(suspect.write.key for suspect, _ in self._dead)),
            tuple(sorted(lost)),
            self._unusable,
            self._postponed,
            {suspect.write.key: error for suspect, error in self._dead},
            commit_id,
        )
        if not self._landed:
            session.rollback()
            return self.written
        session.check_unchanged(targets)
        self.is_the_sinks = True
        session.advance([write for write in writes if write.key in self._landed], self._landed, commit_id)
        self.is_the_sinks = False
        if self._dead:
            session.write_dead_letters(self._dead)
        session.commit()
        return self.written


def by_target(writes: Iterable[FeedWrite]) -> dict[Target, list[FeedWrite]]:
    groups: dict[Target, list[FeedWrite]] = {}
    # Most feeds of a target share one object, and to look at all that makes two targets equal takes longer.
    same: dict[int, list[FeedWrite]] = {}
    for write in writes:
        group = same.get(id(write.target))
        if group is None:
            group = same[id(write.target)] = groups.setdefault(write.target, [])
        group.append(write)
    return groups


@dataclass(frozen=True, slots=True)
class UnknownCommit:
    """A commit whose answer was lost.

    A group commit is one transaction: if one of its feeds carries its ``commit_id``, all of it happened. A feed
    that still carries what it was to continue says that nothing of it did. Any other ``commit_id`` tells nothing:
    the checkpoint is lost, and the feed has to be fenced anew.
    """

    writes: Sequence[FeedWrite]
    written: Written
    """What it did, if it happened."""
    session: int | None = None
    """The server's number of its session, for `SinkSession.end_session`."""

    def covers(self, writes: Sequence[FeedWrite]) -> bool:
        """Whether these were all part of it, as they are."""
        mine = {write.key: write for write in self.writes}
        return all(mine.get(write.key) == write for write in writes)

    def decide(self, checkpoints: Mapping[int, Checkpoint]) -> Written | None:
        """What the commit did; None when nothing of it happened. ``checkpoints`` is by feed id."""
        written = self.written
        committed = [write for write in self.writes if write.key in written.landed]
        known = [(write, last) for write in committed if (last := checkpoints.get(write.feed_id)) is not None]
        landed = {write.key for write, last in known if last.commit_id == written.commit_id}
        if not landed and any(last.is_left_by(write) for write, last in known):
            return None
        # What is as it was left beside others that have landed was put back by hand, it alone.
        lost = [write.key for write in committed if write.key not in landed]
        return replace(
            written,
            landed={key: n for key, n in written.landed.items() if key in landed},
            dead={key: n for key, n in written.dead.items() if key in landed},
            lost=(*written.lost, *lost),
        )
