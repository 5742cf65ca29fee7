"""One check and its outcome, and the list of those that somebody has to look at; and what a feed can be in trouble
with: how bad it is, what it means and what to do, in one table.

`feedq doctor` and `feedq status` count feeds by the table, `feedq status --problems` and *Problems* group by it.
`feedq feed show` and the page of a feed quote it, with the times and numbers of that feed: see
`feedq.verbs.diagnosis.feed_checks`. The table in ``docs/howto/recover.md`` is a copy, which a test compares.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from feedq.core.model import Concern, Reason, Status, WorkerState, WorkerTarget
from feedq.core.passwords import mask_url
from feedq.core.remedies import IN_GENERAL, driver_text, remedy
from feedq.core.schedule.model import RunState
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


# -- troubles of feeds ---------------------------------------------------------------------------------


class Tone(StrEnum):
    """The tone of a status or state, good or bad: what colour it has on a terminal and on a page."""

    GOOD = "good"
    UNDER_WAY = "under way"
    ODD = "odd"
    BAD = "bad"
    WORST = "worst"
    ASIDE = "aside"


NAME: Final = "NAME"
"""Stands for the feed in a remedy."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A row of the table. Sentence and remedy are of one feed, and have no full stop."""

    cause: Status | Concern
    tone: Tone
    sentence: str
    remedy: str
    reason: Reason | None = None
    """Of a feed that waits, what for."""

    @property
    def select(self) -> Selection | None:
        """Chooses all feeds that are in this trouble; None where nothing does."""
        cause = self.cause
        return _CHOICES[cause] if isinstance(cause, Concern) else Selection(statuses=(cause,))

    @property
    def advice(self) -> str:
        """What is told of many feeds at once."""
        return f"{self.sentence}: {self.remedy}"

    def remedy_of(self, feed: str) -> str:
        """The remedy with the feed's name, so that its commands can be pasted."""
        return self.remedy.replace(NAME, shlex.quote(feed))


TROUBLES: Final[Sequence[Trouble]] = (
    # The worst first.
    Trouble(
        Status.QUARANTINED,
        Tone.WORST,
        "it crashed workers; it runs in a process of its own until it behaves",
        "fix its source, its options or its connector",
    ),
    Trouble(
        Status.FAILED,
        Tone.WORST,
        "it cannot run as declared; it is retried automatically",
        "fix what its last error says; an edit restarts it at once: `feedq feed edit NAME`",
    ),
    Trouble(
        Status.SINK_UNAVAILABLE,
        Tone.BAD,
        "its worker cannot write to the sink or to the table; received records are kept",
        "check the sink and its table; `feedq doctor` says whether other workers can write to it",
    ),
    Trouble(
        Status.REFUSING,
        Tone.BAD,
        "most of its records are refused and kept as dead letters",
        "fix the table or the feed, then `feedq feed dead-letters replay NAME --all`",
    ),
    Trouble(
        Status.FAILING,
        Tone.BAD,
        "it keeps failing and has landed nothing since; it is retried automatically",
        "check that its source and its sink respond",
    ),
    Trouble(
        Status.STALLED,
        Tone.ODD,
        "it is connected but has received nothing for idle_timeout_s, or its worker is stuck",
        "check the source, or that worker",
    ),
    Trouble(
        Concern.EXPECTATION,
        Tone.ODD,
        "it does not meet an expectation",
        "check its source; `feedq feed show NAME` shows how it is doing",
    ),
    Trouble(
        Concern.DEAD_LETTERS,
        Tone.ODD,
        "its sink refused records, which are kept as dead letters",
        "fix the table or the feed, then `feedq feed dead-letters replay NAME --all`, or drop them",
    ),
    Trouble(
        Concern.LOST_WORKERS,
        Tone.ODD,
        "a worker died while it held it; if that happens again, it is quarantined",
        "see `feedq events --feed NAME`, and the log of the worker that died",
    ),
    Trouble(
        Status.BACKOFF,
        Tone.ODD,
        "its source or its sink refused it; it is retried automatically",
        "see its last error",
    ),
    Trouble(
        Status.WAITING,
        Tone.ODD,
        "the next reconcile pass places it",
        "`feedq status` shows whether passes run",
    ),
    Trouble(
        Status.WAITING,
        Tone.ODD,
        "every worker that may have it is full",
        "start another worker, or give workers a larger -c",
        Reason.NO_CAPACITY,
    ),
    Trouble(
        Status.WAITING,
        Tone.ODD,
        "no serving worker has the labels that it requires",
        "start one with FEEDQ_WORKER_LABELS, or change selector.required of the feed",
        Reason.NO_MATCH,
    ),
    Trouble(
        Status.WAITING,
        Tone.ODD,
        "all workers have only just started, and the first one should not take every feed",
        "wait: feeds are placed once a worker is as old as FEEDQ_SETTLE_S",
        Reason.SETTLING,
    ),
    Trouble(
        Status.WAITING,
        Tone.ODD,
        "it is reserved for the successor of its worker, which was stopped",
        "wait: after FEEDQ_RESTART_HOLD_S any worker may have it",
        Reason.HELD,
    ),
)
_BY_CAUSE: Final = {(one.cause, one.reason): one for one in TROUBLES}
TROUBLED: Final = tuple(dict.fromkeys(one.cause for one in TROUBLES if isinstance(one.cause, Status)))
"""The statuses that are trouble, the worst first."""
REASONS: Final = tuple(one.reason for one in TROUBLES if one.reason is not None)
"""What a feed waits for, where that makes a difference."""

_WORDS: Mapping[Tone, Sequence[str]] = {
    # `active` is a state of schedules, too; `failed` one of runs, and the outcome of a step of a trial, as `ok`
    # and `warn` are.
    Tone.GOOD: (Status.STREAMING, WorkerState.ACTIVE, WorkerTarget.SERVING, RunState.SUCCEEDED, Level.OK),
    Tone.UNDER_WAY: (Status.CONNECTING, Status.STARTING, RunState.RUNNING),
    Tone.ODD: (
        *(WorkerState.DRAINING, WorkerTarget.CORDONED, WorkerTarget.DRAINED),
        *(RunState.SKIPPED_OVERLAP, RunState.MISSED_DEADLINE, RunState.MISSED_CATCHUP, Level.WARN),
    ),
    Tone.WORST: (RunState.TIMED_OUT, RunState.LOST, Level.FAIL),
    Tone.ASIDE: (Status.PAUSED, WorkerState.GONE, RunState.CANCELLED, Level.NOT_CHECKED),
}
TONES: Mapping[str, Tone] = {
    **{word: tone for tone, words in _WORDS.items() for word in words},
    **{one.cause: one.tone for one in TROUBLES},
}
"""The tone of each word for a status, a state or the level of a check that has one."""


def trouble_of(cause: Status | Concern, reason: Reason | None = None) -> Trouble | None:
    """The row of a status, or of what else is wrong; None for one that is no trouble.

    Only of feeds that wait does the reason matter: for the others it repeats the status.
    """
    return _BY_CAUSE.get((cause, reason)) or _BY_CAUSE.get((cause, None))


_CHOICES: Final = {
    Concern.EXPECTATION: Selection(unmet=True),
    Concern.DEAD_LETTERS: Selection(dead_letters=True),
    Concern.LOST_WORKERS: None,
}
