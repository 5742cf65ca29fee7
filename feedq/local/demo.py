"""The demonstration: declare its feeds, and prove from the table that nothing is lost or doubled.

The landing table has no unique index on purpose: it must not be the database that keeps doubles out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2

from feedq.control.store.base import Store
from feedq.core.model import Feed, FeedSpec, FeedView, TargetState, WorkerView
from feedq.errors import Unavailable
from feedq.local.demo_source import RATES
from feedq.local.local_service import Service, inherited_env
from feedq.verbs import actions

TABLE = "feedq_demo_ais"
LABELS = {"demo": "ais"}
_CREATE = f"""
    CREATE TABLE IF NOT EXISTS {TABLE} (
        feed text NOT NULL, seq bigint NOT NULL, at timestamptz NOT NULL, nmea text NOT NULL
    );
    CREATE INDEX IF NOT EXISTS {TABLE}_feed_seq ON {TABLE} (feed, seq);
"""
# Every record up to the highest is there once, or it is not: counted, not inferred from what came last.
_AUDIT = f"""
    SELECT feed, count(*), count(DISTINCT seq), max(seq) FROM {TABLE} GROUP BY feed
"""  # noqa: S608 - a constant
AUDIT_PAUSE_MIN_S = 0.5
AUDIT_SHARE = 10
"""The audit reads the whole table: it pauses this many times as long as it took."""


@dataclass(frozen=True, slots=True)
class FeedTally:
    """Compares a feed's rows in the table with the numbers that its source gave them."""

    rows: int = 0
    distinct: int = 0
    last_seq: int = 0

    @property
    def lost(self) -> int:
        return self.last_seq - self.distinct

    @property
    def doubled(self) -> int:
        return self.rows - self.distinct

    @property
    def is_exact(self) -> bool:
        return self.lost == 0 and self.doubled == 0


def source_service(port: int, *, logs: Path) -> Service:
    argv = (sys.executable, "-m", "feedq.local.demo_source", f"--port={port}")
    return Service("source", "source", lambda: argv, inherited_env({}), logs / "source.log")


def demo_specs(port: int) -> list[FeedSpec]:
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


def is_demo(feed: Feed) -> bool:
    return LABELS.items() <= dict(feed.spec.labels).items()


def declare(store: Store, *, sink_url: str, port: int) -> None:
    """Make the table and the feeds, or bring those of last time up to date."""
    known = {view.feed.name for view in store.feeds.views() if view.feed.removed_at is None}
    fresh = [name for name in RATES if name not in known]
    connection = psycopg2.connect(sink_url, connect_timeout=5)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_CREATE)
            # A feed that is new begins with record 1, also when one of its name was there before.
            cursor.execute(f"DELETE FROM {TABLE} WHERE feed = ANY(%s)", (fresh,))  # noqa: S608 - a constant
    finally:
        connection.close()
    for spec in demo_specs(port):
        if spec.name in known:
            actions.edit_feed(store, spec)
        else:
            actions.add_feed(store, spec)


class Auditor:
    """Counts the table from time to time, at a bounded share of the database's time."""

    def __init__(self, sink_url: str) -> None:
        self._url = sink_url
        self._next_at = 0.0
        self.tallies: Mapping[str, FeedTally] = {}

    def refresh(self) -> bool:
        """Count anew if it is time. Raises `Unavailable`."""
        began = time.monotonic()
        if began < self._next_at:
            return False
        try:
            connection = psycopg2.connect(self._url, connect_timeout=2, application_name="feedq-demo-audit")
            try:
                with connection.cursor() as cursor:
                    cursor.execute(_AUDIT)
                    rows = cursor.fetchall()
            finally:
                connection.close()
        except psycopg2.Error as error:
            raise Unavailable(f"the demo's table cannot be counted: {error}") from error
        self.tallies = {feed: FeedTally(count, distinct, last) for feed, count, distinct, last in rows}
        ended = time.monotonic()
        self._next_at = ended + max(AUDIT_PAUSE_MIN_S, AUDIT_SHARE * (ended - began))
        return True


INTERVAL_S = 0.5
RATE_WINDOW_S = 6.0
"""Long enough to smooth group commits and slow feeds, short enough to see a failover."""
JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The demo at one moment."""

    feeds: tuple[FeedView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    tallies: Mapping[str, FeedTally] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Rows a second of each feed, over the last seconds."""
    trouble: str = ""
    """Why nothing newer can be shown."""


class RateMeter:
    """Rows a second from counts at moments."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._counts: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, counts: Mapping[str, int], *, now: float) -> None:
        self._counts.append((now, counts))
        # One count older than the window stays: it is where the window begins.
        while len(self._counts) > 2 and self._counts[1][0] <= now - self._window_s:
            self._counts.popleft()

    def rates(self) -> dict[str, float]:
        if len(self._counts) < 2:
            return {}
        (began, first), (ended, last) = self._counts[0], self._counts[-1]
        lapse_s = ended - began
        return {name: (count - first.get(name, 0)) / lapse_s for name, count in last.items()}


class Observer:
    """Keeps `latest` up to date until closed, in a thread of its own: a slow database never stalls the view."""

    def __init__(self, store: Store, auditor: Auditor) -> None:
        self.latest = Snapshot()
        self._store, self._auditor = store, auditor
        self._meter = RateMeter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.latest = self._look()
            except Unavailable as error:
                last = self.latest
                self.latest = Snapshot(last.feeds, last.workers, last.tallies, {}, trouble=str(error))
            self._closing.wait(INTERVAL_S)

    def _look(self) -> Snapshot:
        if self._auditor.refresh():
            counts = {name: tally.rows for name, tally in self._auditor.tallies.items()}
            self._meter.add(counts, now=time.monotonic())
        feeds = tuple(v for v in self._store.feeds.views() if is_demo(v.feed))
        workers = tuple(self._store.workers.views())
        return Snapshot(feeds, workers, self._auditor.tallies, self._meter.rates())
