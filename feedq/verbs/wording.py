"""Numbers, times, states and troubles in words for people: command line and web pages say them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from feedq.core.lease import stillness_of
from feedq.core.model import FeedView, Lease, Reason, Status, WorkerView
from feedq.core.moments import instant
from feedq.core.passwords import mask_url
from feedq.core.schedule.model import Run, RunKind, RunState
from feedq.core.schedule.spec import ScheduleSpec

T = TypeVar("T")

ERROR_WIDTH = 100
"""Characters of an error in a list; one feed's own page has all of it."""
ID_SHOWN = 8
"""Characters of a worker's id in lists. Fewer mean no worker: a mistyped name must not find another worker."""
LINES_MAX = 20
"""Lines about one feed or schedule each in one message; the others are counted."""
NAMED_MAX = 5
"""Names in one sentence; lists have them all."""
TIMES_LISTED_MAX = 3
"""Expressions or times of one schedule in a list."""
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def printable(text: str) -> str:
    """``text`` with everything that would steer a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for lines of text, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def said(text: str) -> str:
    """What somebody else said, such as an error of a server: printable, and without passwords in URLs."""
    return printable(mask_url(text))


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def as_json(value: Any) -> str:
    """JSON on one line."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def counted(number: int, noun: str) -> str:
    """``1 feed``, ``2 feeds``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def pairs(labels: Mapping[str, str]) -> str:
    """``disk=ssd, region=eu``."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def some(found: Sequence[T], name: Callable[[T], str] = str, *, of: int | None = None) -> str:
    """The names of the first few, and how many more there are."""
    more = (len(found) if of is None else of) - NAMED_MAX
    return ", ".join(map(name, found[:NAMED_MAX])) + (f" and {more} more" if more > 0 else "")


def first_few(lines: Sequence[str], of_others: str, *, most: int = LINES_MAX) -> list[str]:
    """The first lines, and one that says how many others there are."""
    more = len(lines) - most
    return [*lines[:most], *([of_others.format(more)] if more > 0 else [])]


def stamp(at: datetime) -> str:
    """A time in UTC, which ``at`` must be in."""
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def distance(at: datetime, *, now: datetime) -> str:
    """``in 2h``, ``3s ago``."""
    seconds = (at - now).total_seconds()
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(abs(seconds))} ago"


def moment(at: datetime, *, now: datetime) -> str:
    """``2026-01-01 00:00:30Z (in 30s)``."""
    return f"{stamp(at)} ({distance(at, now=now)})"


def ago(at: datetime | None, *, now: datetime) -> str:
    """How long ago, in one unit."""
    return "-" if at is None else duration(max(0.0, (now - at).total_seconds()))


def until(at: datetime | None, *, now: datetime) -> str:
    """How long until then; how long ago with a minus."""
    if at is None:
        return "-"
    seconds = (at - now).total_seconds()
    return duration(seconds) if seconds >= 0 else f"-{duration(-seconds)}"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}s"
    for limit, divisor, unit in ((100, 1, "s"), (6_000, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(rows_per_s: float) -> str:
    """As the script of the pages writes it."""
    return f"{rows_per_s:,.1f}/s" if 0 < rows_per_s < 10 else f"{rows_per_s:,.0f}/s"


def sentence(text: str) -> str:
    """Begin with a capital letter unless a command, a name or an address comes first; end with a full stop."""
    first = text.partition(" ")[0]
    return (text[:1].upper() + text[1:] if first.isalpha() and first != "feedq" else text) + "."


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def why(view: FeedView, *, now: datetime, width: int = ERROR_WIDTH) -> str:
    """Why a feed has its status and what was refused of it, on one line; empty for one that fares well."""
    because = None if view.because is None else cut(said(view.because), width)
    if view.lease.reason is Reason.NO_MATCH and view.status is Status.WAITING:
        because = cut(f"{because}: no worker has {pairs(view.feed.spec.selector.required)}", width)
    if view.unmet:
        because = "; ".join(filter(None, [because, *(one.said for one in view.unmet)]))
    lease = view.lease
    if not lease.dead_letters:
        return because or ""
    refused = refused_words(lease, now=now)
    if because is not None:
        return f"{because}; {refused}"
    return refused + (f": {cut(said(lease.dead_letter_error), width)}" if lease.dead_letter_error else "")


def refused_words(lease: Lease, *, now: datetime) -> str:
    """How many dead letters a feed has, and how old the latest is."""
    latest = "" if lease.dead_letter_at is None else f", the latest {ago(lease.dead_letter_at, now=now)} ago"
    return counted(lease.dead_letters, "dead letter") + latest


def worker_trouble(view: WorkerView) -> str:
    """What is wrong with a worker, on one line; empty for one that fares well."""
    down = view.worker.load.sinks_down
    cut_off = f"cannot write to sink {', '.join(down)}" if down else None
    return printable("; ".join(filter(None, (view.worker.loss, stillness_of(view), cut_off))))


# -- runs --------------------------------------------------------------------------------------------


def took_s(run: Run, *, now: datetime) -> float | None:
    """Seconds that its last attempt has run for; None when there is none, or another is to come."""
    if run.started_at is None or run.state in (RunState.BUFFERED, RunState.WAITING):
        return None
    return max(0.0, ((run.ended_at or now) - run.started_at).total_seconds())


def seconds(value: float | None) -> str | None:
    """A duration, with the milliseconds that a lag is about."""
    if value is None:
        return None
    return f"{1000 * value:.0f} ms" if value < 1 else duration(value)


def tick_of(run: Run) -> str:
    """Which tick or trigger a run is."""
    tick = stamp(run.tick_at)
    if run.ticks > 1:
        return f"{run.ticks:,} ticks from {tick}"
    return tick if run.kind is RunKind.TICK else f"{tick} ({run.kind})"


def next_at(at: datetime | None, *, now: datetime) -> str:
    """Says when a schedule fires: ``in 5m``, ``due 3s ago``."""
    return "-" if at is None else f"{'due ' if at < now else ''}{distance(at, now=now)}"


def why_run(run: Run) -> str:
    """Why a run ended as it did, on one line."""
    return printable(run.reason or "")


# -- schedules ---------------------------------------------------------------------------------------


def timing_words(spec: ScheduleSpec) -> str:
    """Says in words for lists when a schedule is run: ``cron 0 2 * * * Europe/Berlin``, ``every 30 s``, ``once at
    2026-11-22T10:00:00Z``."""
    if spec.cron:
        return f"cron {_listed([' '.join(text.split()) for text in spec.cron], '; ')} {spec.zone}"
    if spec.every is not None:
        return f"every {_interval(spec.every)}"
    if spec.at:
        return f"once at {_listed([instant(at) for at in sorted(spec.at)], ', ')}"
    return "entry of the beat" if spec.is_of_beat else "?"


def _listed(texts: Sequence[str], separator: str) -> str:
    """The first few of them."""
    more = len(texts) - TIMES_LISTED_MAX
    return separator.join(texts[:TIMES_LISTED_MAX]) + (f"{separator}{more} more" if more > 0 else "")


def _interval(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"
