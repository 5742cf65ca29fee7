"""Numbers, times and troubles in words for people; the command line and the web pages say them alike."""

from __future__ import annotations

import re
from datetime import datetime

from feedq.model import FeedView
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
    if _DURATION.fullmatch(text.removeprefix("-")) and text.startswith("-"):
        raise ValueError(
            f"{text!r} is negative; a duration must be positive, such as 90s, 2m, 1m30s, 1h or 1d"
        )
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


def why(view: FeedView, *, now: datetime, width: int = ERROR_WIDTH) -> str:
    """Why a feed has its status and what was refused of it, on one line; empty for one that fares well."""
    letters = _refused(view, now=now, width=width)
    if view.because is None:
        return letters
    because = _cut(printable(mask_url(view.because)), width)
    return f"{because}; {letters}" if letters else because


def _refused(view: FeedView, *, now: datetime, width: int) -> str:
    """How many dead letters a feed has, when the latest was refused, and why if nothing else is to be said."""
    lease = view.lease
    if not lease.dead_letters_total:
        return ""
    text = f"{lease.dead_letters_total:,} dead letter{'' if lease.dead_letters_total == 1 else 's'}"
    if lease.dead_letter_at is not None:
        text += f", the latest {ago(lease.dead_letter_at, now=now)} ago"
    if lease.dead_letter_error is not None and view.because is None:
        text += f": {_cut(printable(mask_url(lease.dead_letter_error)), width)}"
    return text


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
