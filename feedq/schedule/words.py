"""Times and timings as text."""

from __future__ import annotations

from datetime import UTC, datetime

from feedq.schedule.model import Beat, Cron, Every, Once, Timing

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def instant(at: datetime) -> str:
    """ISO 8601 in UTC with a Z, to the second or, where there are any, microseconds: ``2026-11-22T10:00:00Z``.

    The key of a tick is written so.
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def timing_words(timing: Timing) -> str:
    """For lists: ``cron 0 2 * * * Europe/Berlin``, ``every 30 s``, ``once at 2026-11-22T10:00:00Z``."""
    match timing:
        case Cron(expression, zone):
            return f"cron {' '.join(expression.split())} {zone}"
        case Every(every_s):
            return f"every {_duration(every_s)}"
        case Once(at):
            return f"once at {instant(at)}"
        case Beat():
            return "entry of the beat"


def _duration(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"
