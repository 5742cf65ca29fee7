"""Everything that somebody has to look at, worst first.

It is all that `feedq status` warns of, and `feedq doctor` by the tables: a check of feeds as its groups, any other
as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from feedq.core.selection import Selection
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.troubles import TONES, Tone, choice_of


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """One thing that somebody has to look at."""

    level: Level
    name: str
    """What is wrong: the status of feeds, what else is wrong with them, or the name of a check."""
    detail: str
    advice: str
    feeds: int = 0
    """How many feeds it is about; none if it concerns the whole fleet."""
    tenant: str | None = None
    """Whose they are."""
    feed: str | None = None
    """The name of a single one."""
    since: datetime | None = None
    """None when nobody knows."""
    select: Selection | None = None
    """What chooses these feeds, where there are several."""


def problems(warnings: Iterable[Check]) -> list[ListedProblem]:
    """What these checks warn of. Pure."""
    of_fleet = [check for check in warnings if not check.groups]
    failed = [_of_fleet(check) for check in of_fleet if check.level is Level.FAIL]
    warned = [_of_fleet(check) for check in of_fleet if check.level is Level.WARN]
    return [*failed, *(one for check in warnings for one in _of_feeds(check)), *warned]


def _of_fleet(check: Check) -> ListedProblem:
    return ListedProblem(check.level, check.name, check.detail, check.advice)


def _of_feeds(check: Check) -> Iterator[ListedProblem]:
    if check.cause is None:
        return
    level = Level.FAIL if TONES[check.cause] is Tone.WORST else Level.WARN
    choice = choice_of(check.cause)
    for group in check.groups:
        yield ListedProblem(
            level,
            check.cause,
            group.detail,
            group.advice,
            group.feeds,
            group.tenant,
            group.name,
            group.since,
            None if group.name or choice is None else replace(choice, tenant=group.tenant),
        )
