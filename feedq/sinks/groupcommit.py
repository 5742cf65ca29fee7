"""The group commit: records of many feeds and their checkpoints, in one transaction.

::

    begin ─ lock my checkpoints ─ land, a COPY per target ─ advance checkpoints ─ write dead letters ─ commit
                  │ not as it was left:
                  └ nothing of that feed is written

The locks come first: a successor's fence waits for them, and so for the outcome. Killed, frozen or cut off
at any point before the commit, nothing has happened.

Targets land under savepoints, and what one refuses is found and set aside there (`feedq.sinks.refusals`). So one
transaction is enough, except in four cases in which `TransactionalSink.write` begins another one: the connection
had died before, a deadlock ended the transaction, a table has changed, or the commit was refused.

An error of the database belongs to one record, one feed, or the sink, in this order: only an error at the
checkpoints, which all feeds need, is the sink's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from feedq.core.model import FeedKey
from feedq.sinks.base import DeadRecord, FeedWrite, Target, Written, parts
from feedq.sinks.field_watch import watch_fields
from feedq.sinks.mapping import Drift
from feedq.sinks.plan import TargetPlan
from feedq.sinks.refusals import OverBudget, TargetLanding, Unfit
from feedq.sinks.session import ErrorScope, SinkSession

STATEMENT_TIMEOUT_S: Final = 300.0
"""No group commit takes this long in good health; beyond it the feeds would have stood still for ever."""
BRIEF_STATEMENT_TIMEOUT_S: Final = 5.0
"""The same while other feeds wait: a target that takes longer, by a slow trigger for one, is written apart."""

SAVEPOINTS_MAX: Final = 4
"""Each takes a transaction id, of which a database has two billion until it freezes its rows: with one for each of
a thousand tables, four times a second, those would be gone in a week. So several targets share one, until one of
them refuses something."""

Groups = Mapping[Target, Sequence[FeedWrite]]


class GroupCommit:
    """One transaction for a group. Used once."""

    def __init__(
        self,
        session: SinkSession,
        *,
        briefly: bool,
        locked: set[Target],
        was_refused: bool,
    ) -> None:
        """``locked``: targets that were found locked, not to be waited for again; kept up to date here.
        ``was_refused``: the commit of a transaction before this one was."""
        self._session = session
        self._briefly = briefly
        self._locked = locked
        self._was_refused = was_refused
        self._has_waited = False
        self.is_the_sinks = True
        """Whether what is done at this moment is for all feeds: if it fails, the sink is away."""
        self.written = Written({}, {}, (), {})
        """What has happened if the commit has."""
        self._landed: dict[FeedKey, int] = {}
        self._dead: list[DeadRecord] = []
        self._unusable: dict[FeedKey, str] = {}
        self._postponed: dict[FeedKey, str] = {}

    def run(self, groups: Groups) -> Written:
        """Land and advance.

        Raises:
            AnswerLost: of the commit; the session is closed.
            TargetChanged, errors of the session: nothing was written; the transaction may be open, or broken.
        """
        writes = self._find_usable(groups)
        if not writes:
            return Written(landed={}, dead={}, lost=(), unusable=self._unusable)
        not_locked = self._begin(writes)
        if not_locked:
            self._tell_locked([write for write in writes if write.key in not_locked])
        lost = not_locked - self._postponed.keys()
        left_out = not_locked | self._unusable.keys()
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
        for target, group in groups.items():
            why_none = wrong.get(target)
            for write in group:
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
        return session.lock(writes, check_at_once=self._was_refused)

    def _tell_locked(self, writes: Sequence[FeedWrite]) -> None:
        """Postpone those whose checkpoint is as they left it: somebody has it locked."""
        known = self._session.last_commits([write.feed_id for write in writes], lock=False)
        for write in writes:
            last = known.get(write.feed_id)
            if last is not None and last.is_left_by(write):
                self._postponed[write.key] = "its checkpoint is locked"

    def _land_together(self, landings: Sequence[tuple[TargetPlan, Sequence[FeedWrite]]]) -> bool:
        """Land in several targets under one savepoint; False if one refused something: then nothing has landed."""
        unfit = Unfit(briefly=self._briefly, postpones_refused=self._was_refused)
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
        landing = TargetLanding(plan, briefly=self._briefly, postpones_refused=self._was_refused)
        outcome = landing.land(writes)
        self._count(outcome.landed, outcome.dead)
        self._unusable |= outcome.unusable
        self._postponed |= outcome.postponed
        if outcome.is_locked:
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
