"""One check and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from feedq.core.passwords import mask_url
from feedq.core.remedies import IN_GENERAL, driver_text, remedy


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    NOT_CHECKED = "not checked"
    """Nobody could look: neither well nor a failure."""


@dataclass(frozen=True, slots=True)
class FeedGroup:
    """Feeds of one tenant with which the same is wrong."""

    feeds: int
    tenant: str | None
    """None: what is left of several tenants."""
    name: str | None
    """Of the feed, if it is a single one."""
    since: datetime | None
    """Since when the first of them; None when nobody knows."""
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do if it is not well or could not be looked at."""

    name: str
    level: Level
    detail: str
    advice: str = ""
    cause: str | None = None
    """What is wrong with the feeds that it counts, see `feedq.verbs.troubles`."""
    groups: Sequence[FeedGroup] = ()
    """These feeds."""


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
