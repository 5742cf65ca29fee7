"""One check and its outcome, and the list of those that somebody has to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from feedq.core.passwords import mask_url
from feedq.core.remedies import IN_GENERAL, driver_text, remedy
from feedq.core.selection import Selection


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    NOT_CHECKED = "not checked"
    """Nobody could look: neither well nor a failure."""


@dataclass(frozen=True, slots=True)
class Check:
    """The thing checked, the result, and what to do if it failed or could not be checked."""

    name: str
    """What was looked at; of feeds in trouble, what is wrong with them: a status, or a concern."""
    level: Level
    detail: str
    advice: str = ""
    feeds: int = 0
    """How many feeds it is about; none if it concerns the whole fleet."""
    tenant: str | None = None
    """Whose they are; None for those of several tenants."""
    feed: str | None = None
    """The name of a single one."""
    since: datetime | None = None
    """Since when the first of them; None when nobody knows."""
    select: Selection | None = None
    """What chooses these feeds, where there are several; of those that wait or have dead letters, more than
    these."""
    groups: Sequence[Check] = ()
    """The same of the feeds of each tenant."""


def problems(found: Iterable[Check]) -> list[Check]:
    """Everything that somebody has to look at: what fails for the whole fleet, then feeds by what is wrong with
    them and by tenant, the worst first, then the other warnings."""
    wrong = [check for check in found if check.level in (Level.WARN, Level.FAIL)]
    of_fleet = [check for check in wrong if not check.groups]
    failed = [check for check in of_fleet if check.level is Level.FAIL]
    warned = [check for check in of_fleet if check.level is Level.WARN]
    return [*failed, *(group for check in wrong for group in check.groups), *warned]


def ok(name: str, detail: str) -> Check:
    return Check(name, Level.OK, detail)


def warn(name: str, detail: str, advice: str) -> Check:
    return Check(name, Level.WARN, detail, advice)


def fail(name: str, detail: str, advice: str) -> Check:
    return Check(name, Level.FAIL, detail, advice)


def not_checked(name: str, why: str, advice: str) -> Check:
    """``advice`` says what to do so that it can be checked."""
    return Check(name, Level.NOT_CHECKED, why, advice)


def unreachable(name: str, url: str, error: BaseException, *, setting: str) -> Check:
    """A server that does not let feedq in, and what to do about it."""
    said = driver_text(error)
    advice = remedy(said, setting=setting) or IN_GENERAL.format(setting=setting)
    return fail(name, f"{mask_url(url)}: {mask_url(said)}", advice)
