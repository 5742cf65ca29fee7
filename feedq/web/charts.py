"""Pictures on the pages, as SVG: bars of what a feed landed, and who has had a feed.

No picture has a style of its own, which the content security policy forbids: the page's CSS colours its classes.
Words beside each say what it shows, for whoever does not see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from feedq.control.store.history import ListedEvent
from feedq.control.store.landed_counts import LandedBucket, Span
from feedq.telemetry.event_names import EventKind
from feedq.verbs.wording import duration, stamp

STEP: Final = 10
"""Width of a bar with its gap, in the picture's own units: the page stretches it."""
HEIGHT: Final = 100
LEAST: Final = 2
"""Height of a bar of something, however little that is."""
WIDTH: Final = 1_000
"""Of the picture of owners."""
OWNER_COLOURS: Final = 6
"""Classes of colours; more owners share them."""
ENDS: Final = {
    EventKind.LEASE_RELEASED,
    EventKind.LEASE_FREED,
    EventKind.LEASE_REAPED,
    EventKind.LEASE_OVERDUE,
}
"""Events after which nobody has a feed."""


@dataclass(frozen=True, slots=True)
class LandedChart:
    """One picture of bars."""

    title: str
    said: str
    """What it shows, in words."""
    svg: str


@dataclass(frozen=True, slots=True)
class OwnerChart:
    """The picture of who has had a feed, from the oldest event known until now."""

    svg: str
    since: datetime
    owners: Sequence[tuple[str, str]]
    """Names of workers, and the classes of their colours."""


def landed_charts(buckets: Sequence[LandedBucket], span: Span) -> list[LandedChart]:
    """Rows a second, age of the last record, and dead letters: one picture each."""
    return [
        _bars("Rows a second", buckets, lambda b: b.rows_per_s, lambda v: f"{v:,.4g}/s", span),
        _bars("Since the last record", buckets, lambda b: b.silent_s, duration, span),
        _bars("Dead letters", buckets, lambda b: b.dead_letters, lambda v: f"{v:,.0f}", span),
    ]


def _bars(
    title: str,
    buckets: Sequence[LandedBucket],
    value_of: Callable[[LandedBucket], float | None],
    words: Callable[[float], str],
    span: Span,
) -> LandedChart:
    values = [value_of(bucket) for bucket in buckets]
    known = [value for value in values if value is not None]
    if not known:
        said = f"no data for the last {span}"
    else:
        said = f"at most {words(max(known))} in the last {span}, {words(known[-1])} at its end"
    most = max(known, default=0.0)
    if known and not most:
        said = f"none in the last {span}"
    drawn = "".join(
        _bar(n, value, most, f"{stamp(bucket.at)}: {'not counted' if value is None else words(value)}")
        for n, (bucket, value) in enumerate(zip(buckets, values, strict=True))
    )
    return LandedChart(title, said, _svg(STEP * len(buckets), drawn, f"{title}: {said}"))


def _bar(n: int, value: float | None, most: float, words: str) -> str:
    height = HEIGHT if value is None else 0.0 if value <= 0 else max(LEAST, HEIGHT * value / most)
    kind = "feedq-gap" if value is None else "feedq-bar"
    return _rect(kind, STEP * n + 1, HEIGHT - height, STEP - 2, height, words)


def _rect(kind: str, x: float, y: float, width: float, height: float, words: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(words)}</title></rect>"
    )


def sparkline(buckets: Sequence[LandedBucket]) -> str:
    """Rows a second of each minute, as bars that fit into a line of a table; nothing if none is known."""
    rates = [bucket.rows_per_s for bucket in buckets]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return ""
    most = max(known)
    # One path for all bars: a page has fifty of these.
    bars = "".join(
        f"M{STEP * n + STEP // 2} {HEIGHT}V{HEIGHT - max(LEAST, HEIGHT * rate / most):.0f}"
        for n, rate in enumerate(rates)
        if rate
    )
    label = f"Last {len(rates)} minutes: at most {most:,.4g} rows/s, at the end {known[-1]:,.4g}"
    drawn = f'<path class="feedq-spark-bars" d="{bars}"/><title>{label}</title>'
    return _svg(STEP * len(rates), drawn, label)


def owner_chart(listed: Iterable[ListedEvent], *, now: datetime) -> OwnerChart | None:
    """Who has had a feed, by its events, the newest of which comes first; None when there are none."""
    told = sorted(listed, key=lambda one: one.event.at)
    if not told or told[0].event.at >= now:
        return None
    since = told[0].event.at
    scale = WIDTH / (now - since).total_seconds()
    classes: dict[str, str] = {}
    drawn = []
    for name, begin, end in _stretches(told, now):
        colour = classes.setdefault(name, f"feedq-owner-{len(classes) % OWNER_COLOURS}")
        x, width = (begin - since).total_seconds() * scale, (end - begin).total_seconds() * scale
        words = f"{name}: {stamp(begin)} to {stamp(end)}"
        drawn.append(_rect(colour, x, 20, max(1.0, width), 60, words))
    for one in told:
        x = (one.event.at - since).total_seconds() * scale
        drawn.append(_rect("feedq-moment", x, 0, 2, HEIGHT, f"{stamp(one.event.at)}: {one.event.kind}"))
    label = f"Owners since {stamp(since)}: {', '.join(classes) or 'none'}; its history has the times"
    return OwnerChart(_svg(WIDTH, "".join(drawn), label), since, list(classes.items()))


def _stretches(told: Iterable[ListedEvent], now: datetime) -> Iterable[tuple[str, datetime, datetime]]:
    """Owners with the times from and to which each had it, the oldest first."""
    owner: str | None = None
    begin = now
    for one in told:
        event = one.event
        claimed = event.kind == EventKind.LEASE_CLAIMED
        if owner is not None and (claimed or event.kind in ENDS):
            yield owner, begin, event.at
            owner = None
        if claimed:
            owner, begin = one.worker or str(event.worker_id)[:8], event.at
    if owner is not None:
        yield owner, begin, now


def _svg(width: int, drawn: str, label: str) -> str:
    return (
        f'<svg class="feedq-picture" viewBox="0 0 {width} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{drawn}</svg>'
    )
