"""Numbers, times and troubles in words for people; the command line and the web pages say them alike."""

from __future__ import annotations

import re
from datetime import datetime

from feedq.model import FeedView, Status
from feedq.telemetry import mask_url

ERROR_WIDTH = 100
"""Characters of an error in a list; one feed's own page has all of it."""

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}


def printable(text: str) -> str:
    """``text`` with everything that would steer a terminal written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def ago(at: datetime | None, *, now: datetime) -> str:
    """How long ago, in one unit."""
    return "-" if at is None else duration(max(0.0, (now - at).total_seconds()))


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}s"
    for limit, divisor, unit in ((100, 1, "s"), (6_000, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def parse_duration(text: str) -> float:
    """``90``, ``90s``, ``1m30s``, ``2h``, ``1d`` in seconds. Raises `ValueError` with what is wrong."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration; write it as 90s, 2m, 1m30s, 1h or 1d")
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


def exact_duration(seconds: float) -> str | float:
    """A duration as `parse_duration` reads it; where that would not be exactly the same, the number."""
    if seconds != seconds // 1 or not 0 < seconds < 2**53:
        return seconds
    rest, text = int(seconds), ""
    for unit, divisor in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, divisor)
        text += f"{count}{unit}" if count else ""
    return text


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def why(view: FeedView, *, width: int = ERROR_WIDTH) -> str:
    """What a feed that does not stream waits for, in one line."""
    lease = view.lease
    quiet = view.status in (Status.STREAMING, Status.PAUSED)
    if quiet and not lease.dead_letters_total:
        return ""
    if quiet:
        return f"{lease.dead_letters_total:,} dead letters"
    reason = lease.reason.value if lease.reason and not lease.connected else ""
    # What went wrong before is not what a feed waits for that only wants a worker.
    told = lease.last_error if view.status is not Status.WAITING else None
    error = "" if told is None else printable(mask_url(told))
    if len(error) > width:
        error = error[: width - 1] + "…"
    return ": ".join(part for part in (reason, error) if part)
