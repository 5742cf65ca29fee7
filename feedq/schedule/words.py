"""Times and timings as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from feedq.schedule.model import Beat, Cron, Every, Once, Timing

LISTED_MAX = 3
"""Expressions or times of one schedule in a list."""
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def instant(at: datetime) -> str:
    """ISO 8601 in UTC with a Z, to the second or, where there are any, microseconds: ``2026-11-22T10:00:00Z``.

    The key of a tick is written so.
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


TRIGGER_PREFIX = "trigger:"


def trigger_key(said: str) -> str:
    """The key of a run that was triggered with this: ``trigger:invoice-4711``. No tick has such a key, whatever
    was said, so that no trigger takes the place of a tick."""
    return said if said.startswith(TRIGGER_PREFIX) else TRIGGER_PREFIX + said


def timing_words(timing: Timing) -> str:
    """For lists: ``cron 0 2 * * * Europe/Berlin``, ``every 30 s``, ``once at 2026-11-22T10:00:00Z``."""
    match timing:
        case Cron(_, zone) as cron:
            return f"cron {_listed([' '.join(text.split()) for text in cron.expressions], '; ')} {zone}"
        case Every(every_s):
            return f"every {_duration(every_s)}"
        case Once() as once:
            return f"once at {_listed([instant(at) for at in sorted(once.moments)], ', ')}"
        case Beat():
            return "entry of the beat"


def _listed(texts: Sequence[str], separator: str) -> str:
    """The first few of them."""
    more = len(texts) - LISTED_MAX
    return separator.join(texts[:LISTED_MAX]) + (f"{separator}{more} more" if more > 0 else "")


def _duration(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"
