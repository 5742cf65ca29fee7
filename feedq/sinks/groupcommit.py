"""The group commit: records of many feeds and their checkpoints, in one transaction.

::

    begin ─ lock my checkpoints ─ land, a COPY per target ─ advance checkpoints ─ write dead letters ─ commit
                  │ another epoch, or another commit than it continues:
                  └ nothing of that feed is written

The locks come first: a successor's fence waits for them, and so for the outcome. Killed, frozen or cut off
at any point before the commit, nothing has happened.

`TransactionalSink.write` makes one attempt after another, and each `GroupCommit` is one of them. The first one is
`CommitMode.OPTIMISTIC`: whatever goes wrong ends it, and the next one lands under savepoints and finds out which
record, feed or target is to blame (`feedq.sinks.refusals`). `RetryPlan` says what the next attempt does
differently, and when there is none.

What the database answers belongs to one record, one feed, or the sink, in this order: only errors at the
checkpoints, which all feeds need, are the sink's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any, Final
from uuid import uuid4

from feedq.core.model import FeedKey
from feedq.errors import InvalidInput
from feedq.sinks.base import CommitUnknown, DeadRecord, FeedWrite, Target, Written
from feedq.sinks.catalog import Catalog, TargetPlan
from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.field_watch import FieldWatch
from feedq.sinks.mapping import ColumnType, Drift
from feedq.sinks.refusals import TargetOutcome, land_around_refusals
from feedq.sinks.session import AnswerLost, ErrorScope, SinkSession

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


STATEMENT_TIMEOUT_S: Final = 300.0
"""No group commit takes this long in good health; beyond it the feeds would have stood still for ever."""
BRIEF_STATEMENT_TIMEOUT_S: Final = 5.0
"""The same while other feeds wait: a target that takes longer, by a slow trigger for one, is written apart."""

Groups = Mapping[Target, Sequence[FeedWrite]]


class GroupCommit:
    """One attempt at a group: one transaction. Used once."""

    def __init__(self, session: SinkSession, catalog: Catalog, retry_plan: RetryPlan) -> None:
        self._session = session
        self._catalog = catalog
        self._retry_plan = retry_plan
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable: dict[FeedKey, str] = {}
        self._postponed: dict[FeedKey, str] = {}

    def run(self, groups: Groups) -> Written:
        """Land and advance.

        Raises:
            CommitUnknown: the answer to the commit was lost; the session is closed.
            GroupFailed: nothing was written; the transaction is still open, or broken.
            errors of the session: the same, before the transaction has begun.
        """
        writes = self._find_usable(groups)
        if not writes:
            return Written(landed={}, dead={}, fenced=(), unusable=self._unusable)
        try:
            lost = self._begin(writes)
            fenced = self._find_fenced(lost) if lost else lost
        except self._session.errors as error:
            raise self._failed(FailedPart.CHECKPOINTS, error) from error
        left_out = lost | self._unusable.keys() | self._postponed.keys()
        for target, group in groups.items():
            admitted = [write for write in group if write.key not in left_out] if left_out else group
            if admitted:
                self._land(self._catalog.plan(target), admitted)
        return self._commit(writes, fenced=tuple(fenced), rewound=tuple(lost - fenced))

    def _find_usable(self, groups: Groups) -> list[FeedWrite]:
        """The writes that are not without hope whatever their records."""
        if self._retry_plan.mode is not CommitMode.OPTIMISTIC:
            self._catalog.refresh(self._retry_plan.targets)
        wrong = self._catalog.get_ready(self._retry_plan.targets)
        for target in groups:
            if target.drift is not Drift.IGNORE and target not in wrong:
                wrong |= self._watch_fields(target, groups[target])
        usable: list[FeedWrite] = []
        for target, group in groups.items():
            why_none = wrong.get(target)
            for write in group:
                if why := why_none or self._session.unkeepable(write):
                    self._unusable[write.key] = why
                else:
                    usable.append(write)
        return usable

    def _watch_fields(self, target: Target, writes: Sequence[FeedWrite]) -> dict[Target, str]:
        """Look for fields that no column takes. Returns the target, if it cannot work any more, and why."""
        taken = self._catalog.plan(target).taken
        watched = [(write, write.watch) for write in writes if write.watch is not None]
        for write, watch in watched:
            watch.look(write.batches, taken)
        if target.drift is not Drift.ADD:
            return {}
        lacking = {name: type_ for _, watch in watched for name, type_ in watch.lacking(taken).items()}
        if not lacking or not any(watch.is_due() for _, watch in watched):
            return {}
        if target.adds_columns:
            self._add_columns(target, lacking, watched[0][1])
        self._catalog.refresh([target])
        if wrong := self._catalog.get_ready([target]):
            return wrong
        for _, watch in watched:
            watch.has_come(self._catalog.plan(target).taken)
        return {}

    def _add_columns(self, target: Target, columns: Mapping[str, ColumnType], watch: FieldWatch) -> None:
        """Before the transaction, so that nothing is locked meanwhile. What cannot be added is told: the records
        land without it."""
        try:
            self._catalog.add_columns(target, columns)
        except InvalidInput as error:
            watch.tell_fault(str(error))
        except self._session.errors as error:
            self._session.rollback()
            if self._session.is_broken:
                raise
            watch.tell_fault(self._session.explain(error))

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

    def _land(self, plan: TargetPlan[Any], writes: Sequence[FeedWrite]) -> None:
        if why := self._retry_plan.held.get(plan.target) or self._find_locked(plan):
            self._postponed |= {write.key: why for write in writes}
            return
        try:
            if self._retry_plan.mode is CommitMode.OPTIMISTIC:
                prepared, dead = plan.prepare(writes, look_through=not self._retry_plan.briefly)
                plan.land(prepared)
                outcome = TargetOutcome(writes, dead)
            else:
                outcome = land_around_refusals(plan, writes, briefly=self._retry_plan.briefly)
        except UnreadableRecord as unreadable:
            raise GroupFailed(FailedPart.TARGET, ErrorScope.DATA, unreadable, str(unreadable)) from unreadable
        except self._session.errors as error:
            raise self._failed(FailedPart.TARGET, error, target=plan.target) from error
        self._landed |= {write.key: write.records for write in outcome.landed}
        for suspect, _ in outcome.dead:
            self._landed[suspect.write.key] -= 1
        self._dead += outcome.dead
        self._unusable |= outcome.unusable
        self._postponed |= outcome.postponed

    def _find_locked(self, plan: TargetPlan[Any]) -> str | None:
        """Why the target cannot be written now: somebody has its table locked. Asked only of those that may be."""
        self._session.set_lock_timeout(self._session.lock_timeout_s)
        if plan.target not in self._retry_plan.lock_uncertain or not self._session.is_locked(plan.shape):
            return None
        return self._retry_plan.held.setdefault(plan.target, f"table {plan.target.table!r} is locked")

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
