"""Lands the records of one target around those that the database refuses, in the transaction that is open.

::

    SAVEPOINT ─ send everything ─ RELEASE              what cannot be encoded is set aside on the way
                    │ refused:
                    └ ROLLBACK TO ─ bisect over the records ─ RELEASE

A record that is refused by itself is a dead letter, whatever the error says: a trigger or a policy may raise any
SQLSTATE about one record. The table is to blame only if it takes nothing at all: not even a statement without
rows, or none of several records, or no record for want of a right that somebody can grant. While other feeds
wait, `bisect` has a budget of failed attempts, and an attempt one of records that are set aside; the feeds that
exhaust either are undone and postponed, and are written apart, where there is no such budget.

`bisect` finds the few that are refused among many that are fine. It knows neither databases nor records: it is
given an attempt that takes all of what it is given, or none of it. Each unit is taken at most once, in order,
and every unit is either taken or refused. The attempt may hint at the unit that was in the way; a wrong hint
costs time and nothing else. One bad unit costs two failed attempts with a hint, and a logarithm without. What is
attempted at once is about as much as lay between the last two that were refused: most of it would be in vain
otherwise, over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeVar

from feedq.core.model import FeedKey
from feedq.records.batch import Records
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord
from feedq.sinks.session import ErrorScope, TargetPlan

T = TypeVar("T")

STRIDE_MIN = 64
"""Even where every other unit is refused, some luck is worth a try."""
FAILURES_MAX: Final = 24
"""Failed attempts at a target, beyond which feeds are postponed, or the rest is screened if no other feed waits:
enough for a few bad records with a hint, and for one among a million without."""
SET_ASIDE_MAX: Final = 1_000
"""Records of one attempt that cannot be encoded, likewise: to find and to keep them takes the hundredth part of a
second for each hundred."""
ROUNDS_MAX: Final = 3
"""Of feeds that exhaust the budget, before all feeds of the target are postponed."""
CONFLICTS_MAX: Final = 5
"""An attempt that ends in a deadlock or a serialization failure is repeated this often, and once while other feeds
wait."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The reason why an attempt landed nothing."""

    error: str
    position: int | None = None
    """Index, within what was attempted, of the unit that was in the way."""
    remedy: str | None = None
    """What would mend it, or nothing if that is not known, where the error is one that tables raise."""


def bisect(
    units: Sequence[T],
    attempt: Callable[[Sequence[T]], FailedAttempt | None],
    *,
    failed: FailedAttempt | None = None,
    failures_max: int | None = None,
) -> tuple[list[tuple[T, str]], Sequence[T]]:
    """Have every unit taken but those that are refused by themselves; returns these with their errors.

    ``failed`` is an attempt at all of them that has been made already. After ``failures_max`` failed attempts the
    units that are left are returned, too.
    """
    refused: list[tuple[T, str]] = []
    failures = 0
    start, stride = 0, len(units)
    sizes: list[int] = []
    """Of the next pieces, the last of them first; behind them, `stride`."""
    while start < len(units):
        if failures == failures_max:
            return refused, units[start:]
        is_open = not sizes
        part = units[start : start + (stride if is_open else sizes.pop())]
        refusal, failed = failed or attempt(part), None
        if refusal is None:
            start += len(part)
            stride *= 2 if is_open else 1
            continue
        failures += 1
        if len(part) == 1:
            refused.append((part[0], refusal.error))
            start += 1
        elif refusal.position is not None and 0 <= refusal.position < len(part):
            sizes += [size for size in (1, refusal.position) if size]
            stride = max(STRIDE_MIN, 2 * refusal.position)
        else:
            sizes += [len(part) - len(part) // 2, len(part) // 2]
    return refused, ()


class TargetBroken(Exception):
    """The table cannot be written, whatever the records."""


class TargetBusy(Exception):
    """The table cannot be written at this moment, though perhaps later: locked, no room on its disk."""

    def __init__(self, said: str, scope: ErrorScope, error: Exception) -> None:
        super().__init__(said)
        self.scope, self.error = scope, error


class OverBudget(Exception):
    """Feeds that cannot be sorted out while others wait, and an error of each."""

    def __init__(self, feeds: dict[FeedKey, str]) -> None:
        super().__init__()
        self.feeds = feeds


class Unencodable:
    """The records of one attempt that cannot be encoded, while other feeds wait (``briefly``) or not."""

    def __init__(self, *, briefly: bool) -> None:
        self.records: list[DeadRecord] = []
        self._max = SET_ASIDE_MAX if briefly else None

    def add(self, suspect: SuspectRecord, why: str) -> None:
        """Raises `OverBudget` if they are too many."""
        self.records.append((suspect, why))
        if self._max is not None and len(self.records) > self._max:
            raise OverBudget({suspect.write.key: why for suspect, why in self.records})


class TargetLanding:
    """Lands records in one target. Used once. Methods raise `TargetChanged`, and the session's errors for what
    savepoints cannot undo."""

    def __init__(self, plan: TargetPlan, *, briefly: bool = False) -> None:
        """``briefly``: other feeds wait."""
        self._plan = plan
        self._session = plan.session
        self._briefly = briefly
        self._failures: list[FailedAttempt] = []
        self.dead: list[DeadRecord] = []
        self.postponed: dict[FeedKey, str] = {}
        self.unusable: dict[FeedKey, str] = {}
        self.is_locked = False

    def land(self, writes: Sequence[FeedWrite]) -> Sequence[FeedWrite]:
        """Land what can be of these feeds. Returns those that have landed, but for the records that are
        `dead`."""
        try:
            for _ in range(ROUNDS_MAX):
                self.dead, self._failures = [], []
                late = self.postponed
                admitted = [write for write in writes if write.key not in late] if late else writes
                try:
                    if (failed := self._attempt(admitted)) is not None:
                        with self._session.savepoint("feedq_target"):
                            self._land_around(admitted, failed)
                except OverBudget as over:
                    self.postponed |= over.feeds
                else:
                    return admitted
            self.postponed = _each(writes, next(iter(self.postponed.values())))
        except TargetBusy as busy:
            self.postponed = _each(writes, str(busy))
            self.is_locked = busy.scope is ErrorScope.LOCKED
        except TargetBroken as broken:
            # By itself each feed is judged anew: it need not be all of them.
            if self._briefly:
                self.postponed = _each(writes, str(broken))
            else:
                self.unusable = _each(writes, str(broken))
        self.dead = []
        return ()

    def land_records(self, records: Sequence[SuspectRecord]) -> list[DeadRecord]:
        """Land what can be of these records, each as a feed of its own; returns those that are refused.

        Raises `TargetBroken` and `TargetBusy`.
        """
        refused, _ = bisect(records, self._attempt_records)
        self._blame_table(refused, (), records)
        return self.dead + refused

    def _land_around(self, writes: Sequence[FeedWrite], failed: FailedAttempt) -> None:
        """Land what can be of writes that were refused together."""
        self._session.check_unchanged([self._plan.target])
        records = list(SuspectRecord.of_writes(writes))
        refused, left = bisect(records, self._attempt_records, failed=failed, failures_max=FAILURES_MAX)
        self._blame_table(refused, left, records)
        if self._briefly and left:
            blamed = {suspect.write.key: why for suspect, why in refused}
            raise OverBudget(blamed or _each(writes, failed.error))
        self.dead += refused
        if left:
            kept, unfit = self._plan.screen(left)
            self.dead += unfit
            self.dead += bisect(kept, self._attempt_records)[0]

    def _blame_table(self, refused: Sequence[object], left: Sequence[object], all_: Sequence[object]) -> None:
        """Raise `TargetBroken` if it has taken nothing, and all that it said are errors that tables raise."""
        if len(refused) + len(left) < len(all_) or not self._failures:
            return
        remedies = [failed.remedy for failed in self._failures]
        if None not in remedies and (len(all_) > 1 or any(remedies)):
            first = self._failures[0]
            raise self._broken(first.error, first.remedy or "")

    def _attempt_records(self, records: Sequence[SuspectRecord]) -> FailedAttempt | None:
        return self._attempt(list(_writes_of(records)))

    def _attempt(self, writes: Sequence[FeedWrite]) -> FailedAttempt | None:
        """Land under a savepoint: all records but those that cannot be encoded, or none of them.

        Raises `TargetBroken` and `TargetBusy`.
        """
        conflicts_left = 1 if self._briefly else CONFLICTS_MAX
        while True:
            try:
                unfit = Unencodable(briefly=self._briefly)
                with self._session.savepoint("feedq_attempt"):
                    self._plan.land(writes, unfit.add)
            except self._session.errors as error:
                if self._session.is_broken or not self._session.can_undo(error):
                    raise
                if self._plan.detours(error):
                    continue
                if self._session.scope(error) is not ErrorScope.CONFLICT or not conflicts_left:
                    failed = self._failed(error)
                    self._failures.append(failed)
                    return failed
                conflicts_left -= 1
            else:
                self.dead += unfit.records
                return None

    def _failed(self, error: Exception) -> FailedAttempt:
        """Judge an error that has been undone. Raises `TargetBroken` and `TargetBusy`."""
        scope, said = self._session.scope(error), self._session.explain(error)
        if scope not in (ErrorScope.DATA, ErrorScope.TARGET):
            state = " is locked" if scope is ErrorScope.LOCKED else ""
            raise TargetBusy(f"table {self._plan.target.table!r}{state}: {said}", scope, error) from error
        position = self._plan.row_of(error)
        if scope is ErrorScope.DATA:
            return FailedAttempt(said, position)
        remedy = self._session.remedy(error)
        try:
            with self._session.savepoint("feedq_nothing"):
                self._plan.land_nothing()
        except self._session.errors as error_of_nothing:
            if self._session.is_broken or not self._session.can_undo(error_of_nothing):
                raise
            self._session.check_unchanged([self._plan.target])
            raise self._broken(said, remedy) from error
        return FailedAttempt(said, position, remedy)

    def _broken(self, said: str, remedy: str) -> TargetBroken:
        wish = remedy or "fix the table or edit the feed"
        return TargetBroken(f"table {self._plan.target.table!r} cannot be written: {said}; {wish}")


def _writes_of(records: Sequence[SuspectRecord]) -> Iterator[FeedWrite]:
    """The records as writes, one for what is left of each batch."""
    for _, group in groupby(records, key=lambda suspect: id(suspect.batch)):
        suspects = list(group)
        write, batch, _ = suspects[0]
        if len(suspects) < batch.count:
            batch = Records(records=tuple(suspect.record for suspect in suspects)).batch(
                cursor=batch.cursor, received_at=batch.received_at
            )
        yield replace(write, batches=(batch,))


def _each(writes: Sequence[FeedWrite], why: str) -> dict[FeedKey, str]:
    return {write.key: why for write in writes}
