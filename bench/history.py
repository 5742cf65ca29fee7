"""What it costs to keep what 100,000 feeds land, minute by minute, and to read it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg2

from bench.api import FEEDS, with_many
from bench.report import Figure, at_most
from bench.servers import started
from feedq.control.store.landed_counts import FEEDS_MAX, Span
from feedq.control.store.postgresql import PostgresStore
from feedq.local.postgres import Postgres

MINUTES: Final = 64
"""So many that the oldest are deleted."""
ROUNDS: Final = 20
_LAND: Final = """
    UPDATE feedq.progress SET records_total = records_total + (random() * 60000)::bigint,
        last_record_at = clock_timestamp() - random() * interval '1 minute'
"""
# Never in the same second of a minute as before: one row would meet another on its way.
_LATER: Final = """
    UPDATE feedq.landed_count c
    SET at = date_trunc('minute', statement_timestamp()) + make_interval(secs => %s, mins => -ranked.n::int)
    FROM (SELECT at, row_number() OVER (ORDER BY at DESC) AS n
          FROM (SELECT DISTINCT at FROM feedq.landed_count) known) ranked
    WHERE c.at = ranked.at
"""
_SIZE: Final = "SELECT pg_total_relation_size('feedq.landed_count') / 1e6, min(id) FROM feedq.feed"


def measure(directory: Path) -> Iterator[Figure]:
    with started(Postgres(directory)) as postgres:
        url = with_many(postgres, "history")
        store = PostgresStore(url, application_name="bench-history")
        taken = kept_minutes(url, store)
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(_SIZE)
            megabytes, first = cursor.fetchone() or (0.0, 0)
        yield _figure("a minute is written down", 1_000, taken)
        apart = range(first, first + FEEDS, FEEDS // FEEDS_MAX)
        for buckets in store.landed.of_feeds(apart).values():
            # A minute may begin meanwhile.
            assert sum(one.rows is not None for one in buckets) >= len(buckets) - 2
        one = [_timed(lambda: store.landed.of_feed(first + 777, Span.HOUR)) for _ in range(ROUNDS)]
        yield _figure("an hour of one feed is read", 50, one)
        page = [_timed(lambda: store.landed.of_feeds(range(first, first + FEEDS_MAX))) for _ in range(ROUNDS)]
        yield _figure(f"half an hour of {FEEDS_MAX} feeds is read", 300, page)
        spread = [_timed(lambda: store.landed.of_feeds(apart)) for _ in range(ROUNDS)]
        yield _figure(f"half an hour of {FEEDS_MAX} feeds far from each other is read", 300, spread)
        yield Figure(f"history, {FEEDS:,} feeds: size of an hour", "-", f"{megabytes:.0f} MB", None)
        store.close()


def kept_minutes(url: str, store: PostgresStore) -> list[float]:
    """Let feeds land for an hour, of which each minute is written down; return how long each of these took."""
    taken = []
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("VACUUM ANALYZE feedq.feed, feedq.progress")
        for minute in range(MINUTES):
            if minute % 8 == 0:
                cursor.execute(_LAND)
                cursor.execute("VACUUM feedq.progress")
            cursor.execute(_LATER, (20 + 20 * random.random(),))
            taken.append(_timed(store.landed.count))
        cursor.execute("VACUUM ANALYZE feedq.landed_count")
    return taken


def _figure(what: str, limit_ms: float, taken: list[float]) -> Figure:
    runs = f"median of {len(taken)}, longest {max(taken) * 1_000:.0f}"
    return at_most(
        f"history, {FEEDS:,} feeds: {what}", limit_ms, statistics.median(taken) * 1_000, "ms", runs=runs
    )


def _timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began
