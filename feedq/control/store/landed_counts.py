"""What feeds have landed over the last hour and day: counters kept by the minute, read as buckets of equal length.

Counters are kept as they are, and never as differences: a beat that is killed loses nothing but a minute, two
beats count a minute once, and nobody has to remember anything from one minute to the next. A row holds up to a
thousand feeds whose ids follow each other, so a hundred thousand feeds are a hundred rows a minute. The first row
of each quarter of an hour stays for a day, the others for an hour.

A bucket is the difference of two moments. Where one of the two is missing, as after a minute without an elected
beat, there is a gap, and what has landed meanwhile is in no bucket: a sum that came late would look like a spike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from feedq.control.store.database import Aggregate, Connection, in_statement, in_transaction
from feedq.control.store.protocol import call

FEEDS_MAX: Final = 200
"""Feeds that are read together: those of a page."""


class Span(StrEnum):
    """How far back to look."""

    HOUR = "hour"
    DAY = "day"

    @property
    def bucket_s(self) -> int:
        """The length of a bucket; `feedq_1.count_landed` names the same seconds."""
        return 60 if self is Span.HOUR else 900

    @property
    def buckets(self) -> int:
        return 60 if self is Span.HOUR else 96


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


class LandedCounts(Aggregate):
    """Counters of feeds, as they were. Thread-safe."""

    @in_statement
    def count(self, c: Connection) -> float:
        """Write down the counters of this minute, unless that is done, and return the seconds to the next one."""
        return call(c, "count_landed", float)

    def of_feed(self, feed_id: int, span: Span) -> list[LandedBucket]:
        """What one feed landed, the oldest first."""
        return self._read([feed_id], span, span.buckets, "*")[feed_id]

    def of_feeds(self, feed_ids: Collection[int], *, minutes: int = 30) -> dict[int, list[LandedBucket]]:
        """The rows of each of these in the last minutes, and nothing else: of `FEEDS_MAX` feeds at most."""
        ids, buckets = list(feed_ids)[:FEEDS_MAX], min(minutes, Span.HOUR.buckets)
        return self._read(ids, Span.HOUR, buckets, "id, at, records")

    @in_transaction
    def _read(
        self, c: Connection, feed_ids: list[int], span: Span, buckets: int, columns: str
    ) -> dict[int, list[LandedBucket]]:
        bucket_s, daily = span.bucket_s, span is Span.DAY
        now: datetime = c.execute("SELECT feedq.now()").scalar_one()
        since = now - timedelta(seconds=(buckets + 2) * bucket_s)
        counts: dict[int, list[CountedFeed]] = defaultdict(list)
        sql = f"SELECT {columns} FROM feedq_1.landed(%(ids)s::bigint[], %(since)s, %(now)s, %(daily)s)"
        for row in c.execute(sql, {"ids": feed_ids, "since": since, "now": now, "daily": daily}):
            feed_id, *counted = row
            counts[feed_id].append(CountedFeed(*counted))
        return {
            feed_id: landed_buckets(counts[feed_id], now=now, bucket_s=bucket_s, buckets=buckets)
            for feed_id in feed_ids
        }


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
