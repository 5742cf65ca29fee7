"""Lands what can be of records that were refused together, and finds the record, feed or table that is to blame.

Each attempt is under a savepoint: it lands all of what it is given, or nothing. While other feeds wait, refused
feeds are postponed; otherwise their records are looked through, tried by halves, and those that are refused by
themselves become dead letters. An error of the table itself concerns all feeds that land there.

`bisect` finds the few that are refused among many that are fine. It knows neither databases nor records: it is
given an attempt that takes all of what it is given, or none of it. Each unit is taken at most once, in order,
and every unit is either taken or refused. The attempt may hint at the unit that was in the way; a wrong hint
costs time and nothing else. One bad unit costs three attempts with a hint, and a logarithm without. What is
attempted at once is about as much as lay between the last two that were refused: most of it would be in vain
otherwise, over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, TypeVar

from feedq.core.model import FeedKey
from feedq.sinks.base import DeadRecord, FeedWrite
from feedq.sinks.catalog import ReadyRecord, TargetPlan
from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.session import ErrorScope

T = TypeVar("T")

STRIDE_MIN = 64
"""Even where every other unit is refused, some luck is worth a try."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Why an attempt took nothing."""

    error: str
    position: int | None = None
    """Index, within what was attempted, of the unit that was in the way."""


def bisect(
    units: Sequence[T],
    attempt: Callable[[Sequence[T]], FailedAttempt | None],
    *,
    refusals_max: int | None = None,
) -> list[tuple[T, str]]:
    """Have every unit taken but those that are refused by themselves; returns these with their errors.

    After ``refusals_max`` attempts in vain all that are left are refused, with the last error.
    """
    refused: list[tuple[T, str]] = []
    refusals = 0
    start, stride = 0, len(units)
    sizes: list[int] = []
    """Of the next pieces, the last of them first; behind them, `stride`."""
    while start < len(units):
        is_open = not sizes
        part = units[start : start + (stride if is_open else sizes.pop())]
        refusal = attempt(part)
        if refusal is None:
            start += len(part)
            stride *= 2 if is_open else 1
            continue
        refusals += 1
        if refusals == refusals_max:
            return refused + [(unit, refusal.error) for unit in units[start:]]
        if len(part) == 1:
            refused.append((part[0], refusal.error))
            start += 1
        elif refusal.position is not None and 0 <= refusal.position < len(part):
            sizes += [size for size in (1, refusal.position) if size]
            stride = max(STRIDE_MIN, 2 * refusal.position)
        else:
            sizes += [len(part) - len(part) // 2, len(part) // 2]
    return refused


REFUSALS_MAX: Final = 40
"""Attempts in vain in a target while other feeds wait: enough to find one feed among thousands without a hint,
and several with one. Then all that have not landed are postponed, and each is judged by itself."""


class TargetBroken(Exception):
    """The table cannot be written, whatever the records."""


class TargetBusy(Exception):
    """The table cannot be written at this moment, though perhaps later: locked, no room on its disk."""

    def __init__(self, said: str, scope: ErrorScope, error: Exception) -> None:
        super().__init__(said)
        self.scope, self.error = scope, error


@dataclass(frozen=True, slots=True)
class TargetOutcome:
    """What became of the feeds of one target."""

    landed: Sequence[FeedWrite] = ()
    """But for the records that are ``dead``."""
    dead: Sequence[DeadRecord] = ()
    unusable: Mapping[FeedKey, str] = field(default_factory=dict)
    postponed: Mapping[FeedKey, str] = field(default_factory=dict)


def land_around_refusals(
    plan: TargetPlan[Any], writes: Sequence[FeedWrite], *, briefly: bool
) -> TargetOutcome:
    """Land the feeds of a target that can be, or none of them if it is the target that is broken.

    Raises the session's errors for what savepoints cannot mend.
    """
    prepared, dead = plan.prepare(writes, look_through=False)

    def land(part: Sequence[int]) -> FailedAttempt | None:
        try:
            refusal = attempt(plan, lambda: plan.land([prepared[n] for n in part]))
        except TargetBusy as later:
            if not (briefly and later.scope is ErrorScope.CONFLICT):
                raise
            # Of one of these, perhaps.
            return FailedAttempt(str(later))
        counts = [plan.count(prepared[n]) for n in part] if refusal else ()
        return refusal and FailedAttempt(refusal.error, _feed_at(counts, refusal.position))

    try:
        with plan.session.savepoint("feedq_target"):
            refused = bisect(range(len(writes)), land, refusals_max=REFUSALS_MAX if briefly else None)
            if not briefly:
                for n, _ in refused:
                    dead += _land_records(plan, prepared[n])
    except (TargetBroken, TargetBusy) as broken:
        none_landed = {write.key: str(broken) for write in writes}
        # By itself each feed is judged anew: it need not be all of them.
        if briefly or isinstance(broken, TargetBusy):
            return TargetOutcome(postponed=none_landed)
        return TargetOutcome(unusable=none_landed)
    if not briefly:
        return TargetOutcome(writes, dead)
    postponed = {writes[n].key: error for n, error in refused}
    return TargetOutcome(
        [write for write in writes if write.key not in postponed],
        [(suspect, why) for suspect, why in dead if suspect.write.key not in postponed],
        postponed=postponed,
    )


def attempt(plan: TargetPlan[Any], land: Callable[[], None]) -> FailedAttempt | None:
    """Land under a savepoint: all of what is given, or nothing and the reason.

    Raises `TargetBroken`, `TargetBusy`, and the session's errors for what savepoints cannot mend.
    """
    session = plan.session
    try:
        with session.savepoint("feedq_attempt"):
            plan.clear()
            land()
    except UnreadableRecord as unreadable:
        return FailedAttempt(str(unreadable))
    except session.errors as error:
        if session.is_broken or not session.can_undo(error):
            raise
        scope, said, table = session.scope(error), session.explain(error), repr(plan.target.table)
        if scope is ErrorScope.TARGET:
            remedy = session.remedy(error) or "mend the table or edit the feed"
            raise TargetBroken(f"table {table} cannot be written: {said}; {remedy}") from error
        if scope is not ErrorScope.DATA:
            raise TargetBusy(f"table {table}: {said}", scope, error) from error
        return FailedAttempt(said, plan.row_of(error))
    return None


def _land_records(plan: TargetPlan[Any], refused: Any) -> list[DeadRecord]:
    """Land what can be of a feed, record by record where need be; returns the others."""

    def land(part: Sequence[ReadyRecord]) -> FailedAttempt | None:
        return attempt(plan, lambda: plan.land_records(part))

    sound, dead = plan.prefilter(refused)
    if dead and not attempt(plan, lambda: plan.land([sound])):
        return dead
    records, more = plan.split(sound)
    return dead + more + [(ready.suspect, error) for ready, error in bisect(records, land)]


def _feed_at(counts: Iterable[int], row: int | None) -> int | None:
    """Index of the feed that a row of their common statement belongs to."""
    if row is None:
        return None
    return next((index for index, end in enumerate(accumulate(counts)) if row < end), None)
