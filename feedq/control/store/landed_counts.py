"""Keeps what the counters of all feeds were, minute by minute, so that pages can show an hour and a day.

Counters are kept as they are, and never as differences: a beat that is killed loses nothing but a minute, two
beats count a minute once, and nobody has to remember anything from one minute to the next. A row holds up to a
thousand feeds whose ids follow each other, so a hundred thousand feeds are a hundred rows a minute. The first row
of each quarter of an hour stays for a day, the others for an hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from feedq.control.store.database import Aggregate, Connection, in_statement, in_transaction
from feedq.control.store.protocol import call
from feedq.core.landed import BUCKETS, CountedFeed, LandedBucket, Span, landed_buckets

FEEDS_MAX: Final = 200
"""Feeds that are read together: those of a page."""


class LandedCounts(Aggregate):
    """Counters of feeds, as they were. Thread-safe."""

    @in_statement
    def count(self, c: Connection) -> float:
        """Write down the counters of this minute, unless that is done, and return the seconds to the next one."""
        return call(c, "count_landed", float)

    def of_feed(self, feed_id: int, span: Span) -> list[LandedBucket]:
        """What one feed landed, the oldest first."""
        bucket_s, buckets = BUCKETS[span]
        return self._read([feed_id], bucket_s, buckets, "*", daily=span is Span.DAY)[feed_id]

    def of_feeds(self, feed_ids: Collection[int], *, minutes: int = 30) -> dict[int, list[LandedBucket]]:
        """The rows of each of these in the last minutes, and nothing else: of `FEEDS_MAX` feeds at most."""
        bucket_s, buckets = BUCKETS[Span.HOUR]
        ids, buckets = list(feed_ids)[:FEEDS_MAX], min(minutes, buckets)
        return self._read(ids, bucket_s, buckets, "id, at, records", daily=False)

    @in_transaction
    def _read(
        self, c: Connection, feed_ids: list[int], bucket_s: int, buckets: int, columns: str, *, daily: bool
    ) -> dict[int, list[LandedBucket]]:
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
