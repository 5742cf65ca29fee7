"""The demonstration: declare its feeds, and prove from the table that nothing is missing or doubled.

The landing table has no unique index on purpose: it must not be the database that keeps doubles out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

import psycopg2

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedSpec, TargetState
from feedq.errors import Unavailable
from feedq.local.demo_source import RATES

TABLE = "feedq_demo_ais"
LABELS = {"demo": "ais"}
_CREATE = f"""
    CREATE TABLE IF NOT EXISTS {TABLE} (
        feed text NOT NULL, seq bigint NOT NULL, at timestamptz NOT NULL, nmea text NOT NULL
    );
    CREATE INDEX IF NOT EXISTS {TABLE}_feed_seq ON {TABLE} (feed, seq);
"""
# Every record up to the highest is there once, or it is not: counted, not inferred from what came last.
_COUNT = f"""
    SELECT feed, count(*), max(seq) - count(DISTINCT seq), count(*) - count(DISTINCT seq)
    FROM {TABLE} GROUP BY feed
"""  # noqa: S608 - a constant
COUNT_SHARE = 10
"""The check reads the whole table: it pauses this many times as long as it took."""


class Tally(NamedTuple):
    """A feed's rows in the table against the numbers that its source gave them."""

    rows: int = 0
    missing: int = 0
    doubled: int = 0

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.missing:,} missing, {self.doubled:,} doubled"


class LandedCheck:
    """Counts the table from time to time, at a bounded share of the database's time."""

    def __init__(self, sink_url: str) -> None:
        self._url = sink_url
        self._next_at = 0.0
        self._tallies: Mapping[str, Tally] = {}

    def tallies(self) -> Mapping[str, Tally]:
        """Those of each feed, as they were last counted. Raises `Unavailable`."""
        began = time.monotonic()
        if began >= self._next_at:
            try:
                with (
                    closing(psycopg2.connect(self._url, connect_timeout=2)) as session,
                    session.cursor() as cursor,
                ):
                    cursor.execute(_COUNT)
                    self._tallies = {feed: Tally(*counts) for feed, *counts in cursor.fetchall()}
            except psycopg2.Error as error:
                raise Unavailable(f"the demo's table cannot be counted: {error}") from error
            self._next_at = began + COUNT_SHARE * (time.monotonic() - began)
        return self._tallies


def total(tallies: Mapping[str, Tally]) -> Tally:
    return Tally(*map(sum, zip(*tallies.values(), strict=True)))


def specs(port: int) -> list[FeedSpec]:
    return [
        FeedSpec(
            name=name,
            tenant="coastguard",
            connector="tcp",
            source={
                "url": f"tcp://127.0.0.1:{port}",
                "framing": "lines",
                "format": "json",
                "hello": '{"feed": {name}, "from": {cursor}}\\n',
                "cursor": "/seq",
                "idle_timeout_s": 30,
            },
            sink={
                "name": "default",
                "table": TABLE,
                "columns": {"feed": "/feed", "seq": "/seq", "at": "/at", "nmea": "/nmea"},
            },
            labels=dict(LABELS),
            target_state=TargetState.RUNNING,
        )
        for name in RATES
    ]


def declare(store: PostgresStore, *, sink_url: str, port: int) -> None:
    """Make the table and the feeds, or bring those of last time up to date."""
    known = {view.feed.name for view in store.feeds.views() if view.feed.removed_at is None}
    fresh = [name for name in RATES if name not in known]
    connected = closing(psycopg2.connect(sink_url, connect_timeout=5))
    with connected as session, session, session.cursor() as cursor:
        cursor.execute(_CREATE)
        # A feed that is new begins with record 1, also when one of its name was there before.
        cursor.execute(f"DELETE FROM {TABLE} WHERE feed = ANY(%s)", (fresh,))  # noqa: S608 - a constant
    for spec in specs(port):
        if spec.name in known:
            store.feeds.edit(spec)
        else:
            store.feeds.add(spec)
