"""One check and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
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
class Check:
    """What was looked at, how it is, and what to do if it is not well or could not be looked at."""

    name: str
    level: Level
    detail: str
    advice: str = ""
    status: str | None = None
    """Of the feeds that it counts, if they have one."""


def ok(name: str, detail: str) -> Check:
    return Check(name, Level.OK, detail)


def warn(name: str, detail: str, advice: str, *, status: str | None = None) -> Check:
    return Check(name, Level.WARN, detail, advice, status)


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
