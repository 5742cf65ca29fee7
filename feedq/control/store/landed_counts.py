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

from feedq.control.store.database import Aggregate, Connection, in_transaction
from feedq.core.landed import BUCKETS, CountedFeed, LandedBucket, Span, landed_buckets

COUNT_LOCK: Final = 0x66656564_71_07
"""Advisory lock of whoever counts: an old leader may still be at it."""
CHUNK: Final = 1_000
"""Feeds in a row: fewer are more rows, more are longer arrays to read for one feed."""
FEEDS_MAX: Final = 200
"""Feeds that are read together: those of a page."""
_MINUTE: Final = "date_bin('1 minute', feedq.now(), 'epoch')"
_QUARTER: Final = "date_bin('15 minutes', feedq.now(), 'epoch')"

_COUNT = f"""
    INSERT INTO feedq.landed_count (chunk, at, daily, places, records, dead_letters, silent_s)
    SELECT feed_id / {CHUNK}, feedq.now(),
        NOT EXISTS (SELECT FROM feedq.landed_count WHERE daily AND at >= {_QUARTER}),
        array_agg((feed_id %% {CHUNK})::smallint), array_agg(records_total), array_agg(dead_letters_total),
        array_agg(extract(epoch FROM feedq.now() - last_record_at)::real)
    FROM (SELECT * FROM feedq.lease ORDER BY feed_id) l GROUP BY feed_id / {CHUNK}
"""
_IS_COUNTED = f"SELECT EXISTS (SELECT FROM feedq.landed_count WHERE at BETWEEN {_MINUTE} AND feedq.now())"
# Those of the future are from before the clock was put back.
_FORGET = """
    DELETE FROM feedq.landed_count
    WHERE at > feedq.now()
       OR at < feedq.now() - CASE WHEN daily THEN interval '24 hours 15 minutes'
            ELSE interval '61 minutes' END
"""


def _reading(*counters: str) -> str:
    # A long array is unpacked each time that an element of it is asked for, unless it was made by an expression.
    unpacked = ", ".join(f"{name} || '{{}}' AS {name}" for name in ("places", *counters))
    return f"""
        SELECT asked.id, b.at, {", ".join(f"b.{name}[p.i] AS {name}" for name in counters)}
        FROM (SELECT chunk, at, {unpacked} FROM feedq.landed_count
              WHERE chunk = ANY(CAST(%(chunks)s AS bigint[])) AND at BETWEEN %(since)s AND %(now)s
                AND (daily OR NOT %(daily)s) OFFSET 0) b
        JOIN unnest(CAST(%(ids)s AS bigint[])) AS asked (id) ON b.chunk = asked.id / {CHUNK}
        CROSS JOIN LATERAL (SELECT array_position(b.places, (asked.id %% {CHUNK})::smallint) AS i) p
        WHERE p.i IS NOT NULL
        ORDER BY asked.id, b.at
    """


_READ: Final = _reading("records", "dead_letters", "silent_s")
_READ_ROWS: Final = _reading("records")


class LandedCounts(Aggregate):
    """Counters of feeds, as they were. Thread-safe."""

    @in_transaction
    def count(self, c: Connection) -> float:
        """Write down the counters of this minute, unless that is done, and return the seconds to the next one."""
        free = c.execute("SELECT pg_try_advisory_xact_lock(%(key)s)", {"key": COUNT_LOCK}).scalar_one()
        if free and not c.execute(_IS_COUNTED).scalar_one():
            c.execute(_FORGET)
            c.execute(_COUNT)
        left = f"SELECT 60 - extract(epoch FROM feedq.clock() - {_MINUTE})::float8"
        return max(0.0, float(c.execute(left).scalar_one()))

    def of_feed(self, feed_id: int, span: Span) -> list[LandedBucket]:
        """What one feed landed, the oldest first."""
        bucket_s, buckets = BUCKETS[span]
        return self._read([feed_id], bucket_s, buckets, _READ, daily=span is Span.DAY)[feed_id]

    def of_feeds(self, feed_ids: Collection[int], *, minutes: int = 30) -> dict[int, list[LandedBucket]]:
        """The rows of each of these in the last minutes, and nothing else: of `FEEDS_MAX` feeds at most."""
        bucket_s, buckets = BUCKETS[Span.HOUR]
        return self._read(
            list(feed_ids)[:FEEDS_MAX], bucket_s, min(minutes, buckets), _READ_ROWS, daily=False
        )

    @in_transaction
    def _read(
        self, c: Connection, feed_ids: list[int], bucket_s: int, buckets: int, statement: str, *, daily: bool
    ) -> dict[int, list[LandedBucket]]:
        now: datetime = c.execute("SELECT feedq.now()").scalar_one()
        since = now - timedelta(seconds=(buckets + 2) * bucket_s)
        chunks = sorted({feed_id // CHUNK for feed_id in feed_ids})
        asked = {"ids": feed_ids, "chunks": chunks, "now": now, "since": since, "daily": daily}
        counts: dict[int, list[CountedFeed]] = defaultdict(list)
        for row in c.execute(statement, asked):
            feed_id, *counted = row
            counts[feed_id].append(CountedFeed(*counted))
        return {
            feed_id: landed_buckets(counts[feed_id], now=now, bucket_s=bucket_s, buckets=buckets)
            for feed_id in feed_ids
        }
