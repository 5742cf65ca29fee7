"""What feeds have landed over the last hour and day, as buckets of equal length.

The control database keeps counters as they were at moments of the past; a bucket is the difference of two. Where
one of the two is missing, as after a minute without an elected beat, there is a gap, and what has landed meanwhile
is in no bucket: a sum that came late would look like a spike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class Span(StrEnum):
    """How far back to look."""

    HOUR = "hour"
    DAY = "day"

    @property
    def bucket_s(self) -> int:
        return BUCKETS[self][0]

    @property
    def buckets(self) -> int:
        return BUCKETS[self][1]


BUCKETS: Final = {Span.HOUR: (60, 60), Span.DAY: (900, 96)}
"""Seconds of one bucket, and how many of them. A statement of the store names the same seconds."""


@dataclass(frozen=True, slots=True)
class CountedFeed:
    """Counters of a feed at one moment."""

    at: datetime
    records: int
    dead_letters: int = 0
    silent_s: float | None = None
    """Since its last record was received; None: there was none yet."""


@dataclass(frozen=True, slots=True)
class LandedBucket:
    """What a feed landed from ``at`` on, for the length of a bucket. None: nobody knows."""

    at: datetime
    rows: int | None = None
    rows_per_s: float | None = None
    dead_letters: int | None = None
    silent_s: float | None = None
    """At its end, since the last record was received."""


def landed_buckets(
    counts: Iterable[CountedFeed], *, now: datetime, bucket_s: int, buckets: int
) -> list[LandedBucket]:
    """The last so many whole buckets, the oldest first; of several counts in one the first is taken."""
    first: dict[int, CountedFeed] = {}
    for count in counts:
        first.setdefault(int(count.at.timestamp()) // bucket_s, count)
    last = int(now.timestamp()) // bucket_s
    if last not in first:
        last -= 1  # not counted yet
    return [
        _bucket(
            first.get(n),
            first.get(n + 1),
            datetime.fromtimestamp(0, now.tzinfo) + timedelta(seconds=n * bucket_s),
        )
        for n in range(last - buckets, last)
    ]


def _bucket(before: CountedFeed | None, after: CountedFeed | None, at: datetime) -> LandedBucket:
    if before is None or after is None:
        return LandedBucket(at)
    rows = _grown(before.records, after.records)
    took_s = (after.at - before.at).total_seconds()
    return LandedBucket(
        at, rows, rows / took_s, _grown(before.dead_letters, after.dead_letters), after.silent_s
    )


def _grown(before: int, after: int) -> int:
    """A counter that went back was set to 0 in between."""
    return after - before if after >= before else after
