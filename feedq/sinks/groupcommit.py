"""A group commit: one attempt is one transaction, from the locks to the commit.

::

    begin ─ lock my checkpoints ─ land, a COPY per target ─ advance checkpoints ─ write dead letters ─ commit
                  │ another epoch, or another commit than it continues:
                  └ nothing of that feed is written

The locks come first: a successor's fence waits for them, and so for the outcome. Killed, frozen or cut off
at any point before the commit, nothing has happened.

The first attempt is `CommitMode.OPTIMISTIC`: whatever goes wrong ends it, and the caller makes another one in the
next mode, which lands under savepoints and finds out which record, feed or target is to blame. `RetryPlan` says
what the next attempt does differently, and when there is none.

What the database answers belongs to one record, one feed, or the sink, in this order: only errors at the
checkpoints, which all feeds need, are the sink's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from itertools import accumulate
from typing import Any, Final
from uuid import uuid4

from feedq.model import FeedKey
from feedq.sinks.base import CommitUnknown, DeadRecord, FeedWrite, Target, Written
from feedq.sinks.bisection import FailedAttempt, bisect
from feedq.sinks.catalog import Catalog, ReadyRecord, TargetBroken, TargetBusy, TargetPlan
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.session import AnswerLost, SinkSession
from feedq.sinks.sqlstate import ErrorScope

STATEMENT_TIMEOUT_S: Final = 300.0
"""No group commit takes this long in good health; beyond it the feeds would have stood still for ever."""
BRIEF_STATEMENT_TIMEOUT_S: Final = 5.0
"""The same while other feeds wait: a target that takes longer, by a slow trigger for one, is written apart."""
REFUSALS_MAX: Final = 40
"""Attempts in vain in a target while other feeds wait: enough to find one feed among thousands without a hint,
and several with one. Then all that have not landed are postponed, and each is judged by itself."""
CONFLICTS_MAX: Final = 5
"""Transactions that end in a deadlock or a serialization failure are tried again this often."""


class CommitMode(IntEnum):
    """The mode of an attempt: how it guards against what the database refuses."""

    OPTIMISTIC = 0
    CAREFUL = 1
    """Under savepoints: refused records go to the dead letters, broken targets are left out."""
    IMMEDIATE = 2
    """Besides, constraints deferred to the commit are checked at once, because the commit was refused."""


class FailedPart(Enum):
    """Where an attempt has failed."""

    CHECKPOINTS = auto()
    TARGET = auto()
    COMMIT = auto()
    """From the dead letters on."""


class GroupFailed(Exception):
    """An attempt failed: nothing was written, and the transaction is still open, or broken."""

    def __init__(
        self,
        part: FailedPart,
        trouble: ErrorScope,
        error: Exception,
        said: str,
        *,
        target: Target | None = None,
    ) -> None:
        super().__init__(said)
        self.part, self.trouble, self.error, self.target = part, trouble, error, target


class NextStep(Enum):
    """The step that follows from an attempt that failed."""

    AGAIN = auto()
    POSTPONE = auto()
    """The sink is well: the feeds are in trouble."""
    GIVE_UP = auto()
    """The sink is unavailable."""


@dataclass(slots=True)
class RetryPlan:
    """Says what the next attempt at a group does differently. Pure."""

    targets: Collection[Target]
    briefly: bool
    lock_uncertain: Collection[Target] = ()
    """Targets that may be locked, and whose locks are not to be waited for: they were locked a while ago, or the
    group has waited enough."""
    held: dict[Target, str] = field(default_factory=dict)
    """Targets that cannot be written now, and why."""
    around_locks: bool = False
    """Whether to leave out feeds whose checkpoints somebody has locked."""
    mode: CommitMode = CommitMode.OPTIMISTIC
    _conflicts: int = 0

    def after(self, failed: GroupFailed) -> NextStep:
        """Decide after an attempt that failed on a session that still works."""
        trouble, part, target = failed.trouble, failed.part, failed.target
        if target is not None and trouble in (ErrorScope.LOCKED, ErrorScope.LATER):
            why = " is locked" if trouble is ErrorScope.LOCKED else f": {failed}"
            self.held[target] = f"table {target.table!r}{why}"
            # One wait is enough for all who wait with it.
            self.lock_uncertain = self.targets
        elif trouble is ErrorScope.LOCKED and part is FailedPart.CHECKPOINTS and not self.around_locks:
            self.around_locks = True
        elif trouble is ErrorScope.CONFLICT and self._conflicts < CONFLICTS_MAX:
            self._conflicts += 1
        elif part is FailedPart.CHECKPOINTS:
            return NextStep.GIVE_UP
        elif self.mode is max(CommitMode):
            return NextStep.POSTPONE
        else:
            self.mode = CommitMode.IMMEDIATE if part is FailedPart.COMMIT else CommitMode(self.mode + 1)
        return NextStep.AGAIN


class GroupCommit:
    """Makes one transaction. Used once."""

    def __init__(
        self,
        session: SinkSession,
        catalog: Catalog,
        *,
        retry_plan: RetryPlan,
        unusable: Mapping[FeedKey, str],
        recently_refused: Collection[FeedKey],
    ) -> None:
        """Records of ``recently_refused`` feeds are prefiltered: others of theirs were bad not long ago."""
        self._session = session
        self._catalog = catalog
        self._retry_plan = retry_plan
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable = dict(unusable)
        self._recently_refused = recently_refused
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
            lost = self._begin(writes)
            fenced = self._find_fenced(lost) if lost else lost
        except self._session.errors as error:
            raise self._failed(FailedPart.CHECKPOINTS, error) from error
        ours = [w for w in writes if w.key not in lost and w.key not in self._postponed]
        for target, admitted in by_target(ours).items():
            plan = self._catalog.plan(target)
            if why := self._retry_plan.held.get(target) or self._find_locked(plan):
                self._postponed |= {write.key: why for write in admitted}
            else:
                self._land(plan, admitted)
        return self._commit(writes, fenced=tuple(fenced), rewound=tuple(lost - fenced))

    def _begin(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        """Lock the checkpoints that are as we left them, to the end; returns the keys of the others."""
        session = self._session
        session.set_lock_timeout(session.lock_timeout_s)
        session.set_statement_timeout(
            BRIEF_STATEMENT_TIMEOUT_S if self._retry_plan.briefly else STATEMENT_TIMEOUT_S
        )
        if self._retry_plan.around_locks:
            held = set(session.find_locked([write.feed_id for write in writes]))
            self._postponed |= {w.key: "its checkpoint is locked" for w in writes if w.feed_id in held}
            writes = [write for write in writes if write.feed_id not in held]
        return session.lock(writes, check_at_once=self._retry_plan.mode is CommitMode.IMMEDIATE)

    def _find_fenced(self, lost: set[FeedKey]) -> set[FeedKey]:
        """Which of the feeds that we may not write have a larger epoch by now; the others have gone back."""
        known = self._session.last_commits([feed_id for feed_id, _ in lost], lock=False)
        return {(id_, epoch) for id_, epoch in lost if id_ in known and known[id_].epoch > epoch}

    def _find_locked(self, plan: TargetPlan[Any]) -> str | None:
        """Why the target cannot be written now: somebody has its table locked. Asked only of those that may be."""
        self._session.set_lock_timeout(self._session.lock_timeout_s)
        if plan.target not in self._retry_plan.lock_uncertain or not self._session.is_locked(plan.shape):
            return None
        return self._retry_plan.held.setdefault(plan.target, f"table {plan.target.table!r} is locked")

    def _land(self, plan: TargetPlan[Any], writes: Sequence[FeedWrite]) -> None:
        try:
            if self._retry_plan.mode is CommitMode.OPTIMISTIC:
                prepared, dead = plan.prepare(writes, self._recently_refused)
                plan.land(prepared)
                self._note(writes, dead)
            else:
                self._land_under_savepoints(plan, writes)
        except UnreadableRecord as unreadable:
            raise GroupFailed(FailedPart.TARGET, ErrorScope.DATA, unreadable, str(unreadable)) from unreadable
        except self._session.errors as error:
            raise self._failed(FailedPart.TARGET, error, target=plan.target) from error

    def _note(self, landed: Iterable[FeedWrite], dead: Sequence[DeadRecord]) -> None:
        self._landed |= {write.key: write.records for write in landed}
        for suspect, _ in dead:
            self._landed[suspect.write.key] -= 1
        self._dead += dead

    def _commit(
        self, writes: Sequence[FeedWrite], *, fenced: tuple[FeedKey, ...], rewound: tuple[FeedKey, ...]
    ) -> Written:
        commit_id = uuid4()
        written = Written(
            self._landed,
            dict(Counter(suspect.write.key for suspect, _ in self._dead)),
            fenced,
            self._unusable,
            self._postponed,
            {suspect.write.key: error for suspect, error in self._dead},
            rewound,
            commit_id,
        )
        if not self._landed:
            self._session.rollback()
            return written
        try:
            landed = [write for write in writes if write.key in self._landed]
            self._session.advance(landed, self._landed, commit_id)
        except self._session.errors as error:
            raise self._failed(FailedPart.CHECKPOINTS, error) from error
        try:
            if self._dead:
                self._session.write_dead_letters(self._dead)
            self._session.commit()
        except AnswerLost as lost:
            raise CommitUnknown(commit_id, writes, written) from lost
        except self._session.errors as error:
            raise self._failed(FailedPart.COMMIT, error) from error
        return written

    # -- under savepoints ----------------------------------------------------------------------------

    def _land_under_savepoints(self, plan: TargetPlan[Any], writes: Sequence[FeedWrite]) -> None:
        """Land the feeds of a target that can be, or none of them if it is the target that is broken."""
        briefly = self._retry_plan.briefly
        prepared, dead = plan.prepare(writes, ())

        def land(part: Sequence[int]) -> FailedAttempt | None:
            try:
                refusal = plan.attempt(lambda: plan.land([prepared[n] for n in part]))
            except TargetBusy as later:
                if not (briefly and later.scope is ErrorScope.CONFLICT):
                    raise
                # Of one of these, perhaps.
                return FailedAttempt(str(later))
            counts = [plan.count(prepared[n]) for n in part] if refusal else ()
            return refusal and FailedAttempt(refusal.error, _feed_at(counts, refusal.position))

        try:
            with self._session.savepoint("feedq_target"):
                refused = bisect(range(len(writes)), land, refusals_max=REFUSALS_MAX if briefly else None)
                if not briefly:
                    for n, _ in refused:
                        dead += self._land_records(plan, prepared[n])
        except (TargetBroken, TargetBusy) as broken:
            # By itself each feed is judged anew: it need not be all of them.
            put_off = briefly or isinstance(broken, TargetBusy)
            (self._postponed if put_off else self._unusable).update((w.key, str(broken)) for w in writes)
            return
        if briefly:
            self._postponed |= {writes[n].key: error for n, error in refused}
            writes = [write for write in writes if write.key not in self._postponed]
            dead = [(suspect, why) for suspect, why in dead if suspect.write.key not in self._postponed]
        self._note(writes, dead)

    def _land_records(self, plan: TargetPlan[Any], refused: Any) -> list[DeadRecord]:
        """Land what can be of a feed, record by record where need be; returns the others."""

        def land(part: Sequence[ReadyRecord]) -> FailedAttempt | None:
            return plan.attempt(lambda: plan.land_records(part))

        sound, dead = plan.prefilter(refused)
        if dead and not plan.attempt(lambda: plan.land([sound])):
            return dead
        records, more = plan.split(sound)
        return dead + more + [(ready.suspect, error) for ready, error in bisect(records, land)]

    def _failed(self, part: FailedPart, error: Exception, *, target: Target | None = None) -> GroupFailed:
        scope = self._session.scope(error)
        if scope is ErrorScope.LOCKED and self._session.locks_all:
            part, target = FailedPart.CHECKPOINTS, None
        return GroupFailed(part, scope, error, self._session.explain(error), target=target)


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


def _feed_at(counts: Iterable[int], row: int | None) -> int | None:
    """Index of the feed that a row of their common statement belongs to."""
    if row is None:
        return None
    return next((index for index, end in enumerate(accumulate(counts)) if row < end), None)
