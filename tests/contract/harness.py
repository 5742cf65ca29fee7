"""What the contract suite needs of a store beyond its interface: to move its clock and to break things.

A harness also makes the rows that tests start from, in as few words as possible.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any, ClassVar
from uuid import uuid4

import psycopg2

from feedq.control.reconcile import PassReport, reconcile
from feedq.control.store.election import Election, LivenessCheck
from feedq.control.store.passes import ReconcilePass, Stock
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import WAKE, WORKER_LOCK_CLASS
from feedq.core import lease as policy
from feedq.core.model import (
    JSON,
    Assignment,
    Feed,
    FeedKey,
    FeedSpec,
    Lease,
    LeaseState,
    NewWorker,
    ProgressReport,
    TargetState,
    Worker,
)
from feedq.core.placement.base import EligibleWorker, Transfer
from feedq.settings import Settings
from tests.waiting import until

TTL_S = 60.0
"""Longer than any test: a worker expires when a test lets time elapse, and not before."""


STOP_WITHIN_S = 30.0


def spec(name: str = "acme/orders", **changes: object) -> FeedSpec:
    keys = {
        "name": name,
        "connector": "tcp",
        "source": {"url": "tcp://127.0.0.1:7001"},
        "sink": {"table": "orders"},
        "target_state": TargetState.RUNNING,
    }
    return FeedSpec.of(keys | changes)


def progress(
    key: FeedKey, *, cursor: JSON = None, error: str | None = None, **changes: object
) -> ProgressReport:
    values: dict[str, Any] = {
        "records": 10,
        "bytes": 100,
        "dead_letters": 0,
        "last_record_ago_s": 1.0,
        "connected": True,
        "stalled": False,
        "attempts": 0,
    }
    return ProgressReport(*key, cursor=cursor, error=error, **{**values, **changes})


EMPTY = """
DO $$
DECLARE
    used record;
BEGIN
    -- Without foreign keys, tables can be emptied in any order.
    SET LOCAL session_replication_role = replica;
    -- Most tests leave most tables as they were, and few rows in the others: to delete these is five times faster
    -- than to truncate their tables.
    FOR used IN
        SELECT oid::regclass AS name, pg_relation_size(oid) <= 65536 AS is_small FROM pg_class
        WHERE relnamespace = 'feedq'::regnamespace AND relkind = 'r'
            AND relname NOT IN ('alembic_version', 'fleet', 'installation') AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE CASE WHEN used.is_small THEN 'DELETE FROM ' || used.name
            ELSE 'TRUNCATE ' || used.name || ' CASCADE' END;
    END LOOP;
    PERFORM setval(s.oid::regclass, 1, false) FROM pg_class s
        JOIN pg_depend d ON d.objid = s.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'i'
        WHERE s.relkind = 'S' AND s.relnamespace = 'feedq'::regnamespace;
END $$;
UPDATE feedq.fleet SET alive_at = feedq.clock(), alive_since = feedq.clock(),
    server_started_at = pg_postmaster_start_time(), pass_at = NULL, pass_seq = 0,
    sweep_at = feedq.clock(), active_workers = 1, evened_out = NULL, waiting_after = 0, swept_to = NULL
"""


WAIT_FOR_ROWS_S = 10.0
"""Longer than any test holds a row that another statement is to wait for, on a busy machine."""


WAITING = ("claim", "release", "report", "free", "lock_dirty", "lock_workers")
"""The functions that wait for rows for only so long."""


def stock_of(p: ReconcilePass) -> Stock:
    """All that a pass finds to do."""
    return p.take_stock(edits=1000)


class Harness:
    """A store on a migrated database, which it empties first, swept just now.

    One takes over the sessions of the one before: to open them anew takes longer than most tests do.
    """

    shortest_ttl_s = 6.0
    """Real time passes beside the time that is made to: tiny durations would be missed on a busy machine."""
    pools: ClassVar[dict[str, deque[tuple[psycopg2.extensions.connection, float]]]] = {}
    connections: ClassVar[dict[str, psycopg2.extensions.connection]] = {}

    def __init__(self, url: str, *, restart_hold_s: float = 0.0) -> None:
        self.url = url
        self.store = PostgresStore(url, restart_hold_s=restart_hold_s)
        database = self.store._database
        if url not in self.pools:
            self.wait_for_rows(WAIT_FOR_ROWS_S)
        database._idle = self.pools.setdefault(url, database._idle)
        self.execute(EMPTY)

    def close(self) -> None:
        """Leaves its sessions to the next one, if they are all there and at rest."""
        there = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        ((count,),) = self.execute(f"{there} AND application_name = 'feedq'")
        if count != len(self.store._database._idle):
            self.end_sessions()

    def end_sessions(self) -> None:
        """Whoever asks again opens new ones."""
        self.store.close()
        if self.url in self.connections:
            self.connections.pop(self.url).close()

    def put_clock(self, now: str = "statement_timestamp()", clock: str = "clock_timestamp()") -> None:
        """The clock by which everything goes: two expressions of SQL."""
        head = "CREATE OR REPLACE FUNCTION feedq."
        self.execute(f"{head}now() RETURNS timestamptz LANGUAGE sql STABLE RETURN {now}")
        self.execute(f"{head}clock() RETURNS timestamptz LANGUAGE sql VOLATILE RETURN {clock}")

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """What is read twice has not grown older in between."""
        now = f"timestamptz '{self.store.now().isoformat()}'"
        self.put_clock(now, now)
        try:
            yield
        finally:
            self.put_clock()

    def execute(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        """In a transaction of its own, by a session that is opened anew where a test has ended it."""
        for _ in range(2):
            if self.url not in self.connections or self.connections[self.url].closed:
                self.connections[self.url] = psycopg2.connect(self.url)
            connection = self.connections[self.url]
            try:
                with connection, connection.cursor() as cursor:
                    cursor.execute(sql, parameters)
                    return list(cursor.fetchall()) if cursor.description else []
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                if not connection.closed:
                    raise
        raise AssertionError("the database ends each session")

    def wait_for_rows(self, seconds: float) -> None:
        """Say for how long a statement waits for rows that somebody has locked, before it goes on without them."""
        for function in WAITING:
            self.execute(f"ALTER FUNCTION feedq_1.{function} SET lock_timeout = '{1000 * seconds:.0f}ms'")

    def make_sweep_due(self) -> None:
        self.execute("UPDATE feedq.fleet SET sweep_at = NULL")

    def elapse(self, seconds: float) -> None:
        """Let time pass for everything in the database (but not for the server's own start)."""
        # That everything happened earlier is the same as that it is later now.
        self.execute(
            f"""
            DO $$
            DECLARE shift text;
            BEGIN
                FOR shift IN
                    SELECT 'UPDATE feedq.' || table_name || ' SET ' || string_agg(
                        column_name || ' = ' || column_name || ' - make_interval(secs => {seconds})', ', ')
                    FROM information_schema.columns
                    WHERE table_schema = 'feedq' AND data_type = 'timestamp with time zone'
                        -- When the server started is compared with nothing but itself.
                        AND column_name <> 'server_started_at'
                    GROUP BY table_name
                LOOP
                    EXECUTE shift;
                END LOOP;
            END $$;
            UPDATE feedq.lease SET avoid = (
                SELECT jsonb_object_agg(key, value::float8 - {seconds}) FROM jsonb_each_text(avoid)
            ) WHERE avoid <> '{{}}'
            """
        )

    def put_clock_back(self, seconds: float) -> None:
        """Set the database's clock back."""
        self.elapse(-seconds)

    def await_unlocked(self, worker: Worker) -> None:
        """Wait until the sessions that were closed are gone on the server, too."""
        held = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s AND objid = %s "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        until(lambda: not self.execute(held, WORKER_LOCK_CLASS, worker.lock_key), "its lock is free")

    def check_liveness(self) -> int:
        """One look of the elected beat; how many workers it found crashed."""
        return self._check_liveness().crashed

    def is_due(self, *, settle_s: float = 3600.0) -> bool:
        """Whether a look finds that a pass should run because of the time."""
        return self._check_liveness(settle_s=settle_s).is_due

    def wakes(self, act: Callable[[], object]) -> bool:
        """Whether this asks for a pass."""
        return bool(self.heard([WAKE], act))

    def heard(self, channels: Sequence[str], act: Callable[[], object]) -> set[str]:
        """Which of these channels are notified by this."""
        with closing(psycopg2.connect(self.url)) as listener, listener.cursor() as cursor:
            listener.autocommit = True
            cursor.execute("".join(f"LISTEN {channel}; " for channel in (*channels, "the_end")))
            act()
            # Notifications come in the order of their commits: what comes after this one is none of ours.
            cursor.execute("NOTIFY the_end")
            deadline = time.monotonic() + 10
            while "the_end" not in (heard := {n.channel for n in listener.notifies}):
                assert time.monotonic() < deadline, "a notification did not come in ten seconds"
                listener.poll()
                time.sleep(0.01)
            return heard - {"the_end"}

    def _check_liveness(self, *, settle_s: float = 3600.0) -> LivenessCheck:
        election = Election(self.url, holder=uuid4(), host="host", pid=1, ttl_s=TTL_S, settle_s=settle_s)
        try:
            return election.check_liveness()
        finally:
            election.close()

    def rows_read_by(self, work: Callable[[], object], *, entries: bool = False) -> int:
        """Rows of feeds with leases and progress, schedules and runs that this reads; with their index entries if
        they count."""
        before = self._rows_read(entries=entries)
        work()
        return self._rows_read(entries=entries) - before

    def _rows_read(self, *, entries: bool) -> int:
        self.end_sessions()
        others = (
            "SELECT application_name, query FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'parallel worker')"
        )
        # A backend adds to the counters as it ends, and is listed until it has.
        until(lambda: not self.execute(others), "sessions end")
        ((count,),) = self.execute(
            """
            SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + CASE WHEN %s THEN (
                SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes i WHERE i.relid = t.relid
            ) ELSE 0 END)::bigint FROM pg_stat_user_tables t
            WHERE schemaname = 'feedq' AND relname IN ('feed', 'lease', 'progress', 'schedule', 'run')
            """,
            entries,
        )
        return int(str(count))

    def delete_lease(self, feed_id: int) -> None:
        self.execute("DELETE FROM feedq.lease WHERE feed_id = %s", feed_id)

    def break_sessions(self, worker: Worker) -> None:
        # With a time-out the function waits until the backend, and with it the lock, is gone.
        self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE %s",
            f"%/{worker.id}",
        )

    def wait_until_blocked(self, blocked: Future[Any]) -> None:
        """Until some statement waits for another transaction's row lock."""
        sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

        def waits() -> object:
            assert not blocked.done(), "it did not wait for the lock"
            return self.execute(sql)

        until(waits, "nothing waits for a lock")

    def dirty_feeds(self) -> int:
        """How many feeds a pass would look at."""
        ((count,),) = self.execute("SELECT count(*) FROM feedq.feed WHERE dirty")
        assert isinstance(count, int)
        return count

    # -- rows to start from --------------------------------------------------------------------------

    def worker(self, name: str = "a", *, capacity: int = 100, ttl_s: float = TTL_S, **labels: str) -> Worker:
        new = NewWorker(uuid4(), name, f"node.{name}", capacity, "host", 1, "0", labels)
        return self.store.workers.register(new, ttl_s=ttl_s)

    def feed(self, name: str = "acme/orders", **changes: object) -> Feed:
        return self.store.feeds.add(spec(name, **changes))

    def lease(self, feed: Feed) -> Lease:
        return self.store.feeds.view(feed.name).lease

    def absorb_edits(self) -> None:
        with self.in_a_pass() as p:
            dirty = stock_of(p).dirty
            p.apply_edits(
                [(feed.id, policy.on_edit(feed, lease)) for feed, lease in dirty], stop_within_s=STOP_WITHIN_S
            )

    def assign(self, feed: Feed, worker: Worker) -> FeedKey:
        self.absorb_edits()
        with self.in_a_pass() as p:
            (assignment,) = p.assign([(feed.id, worker.id)])
        return assignment.key

    def run(self, feed: Feed, worker: Worker) -> FeedKey:
        key = self.assign(feed, worker)
        (claim,) = self.store.leases.claim(worker.id, [key])
        assert self.lease(feed).state is LeaseState.RUNNING
        return claim.key

    def running(self) -> tuple[Worker, Feed, FeedKey]:
        """A worker, and a feed that it runs."""
        worker, feed = self.worker(), self.feed()
        return worker, feed, self.run(feed, worker)

    def stop(self, feed: Feed) -> None:
        """A running lease asked to stop, because its feed is paused."""
        self.store.feeds.set_target(feed.name, TargetState.PAUSED)
        self.absorb_edits()
        assert self.lease(feed).state is LeaseState.STOPPING

    @contextmanager
    def in_a_pass(self, *, measured_load: float = 0.0) -> Iterator[ReconcilePass]:
        with self.store.fleet.reconcile_pass(measured_load=measured_load) as p:
            assert p is not None
            yield p

    def transfer(
        self, feed: Feed, source: Worker, target: Worker, *, stop_within_s: float = STOP_WITHIN_S
    ) -> int:
        """Ask for a move, as a pass does."""
        with self.in_a_pass() as p:
            return p.transfer([Transfer(feed.id, source.id, target.id)], stop_within_s=stop_within_s)

    def candidate(self, worker: Worker, *tenants: str) -> EligibleWorker:
        with self.in_a_pass() as p:
            (found,) = [c for c in p.candidates(tenants) if c.worker_id == worker.id]
        return found

    def expire_workers(self, worker: Worker) -> int:
        with self.in_a_pass() as p:
            return p.expire_workers([worker.id])

    def reconcile(self, *, sweep: bool = False, **changes: object) -> tuple[PassReport, list[Assignment]]:
        """A whole pass, with no settle time, and the messages it sent."""
        sent: list[Assignment] = []
        report = self.reconcile_if_free(sent, sweep=sweep, **changes)
        assert report is not None
        return report, sent

    def reconcile_if_free(
        self, sent: list[Assignment] | None = None, *, sweep: bool = False, **changes: object
    ) -> PassReport | None:
        """The same, but None when another pass is under way."""
        if sweep:
            self.make_sweep_due()
        values: dict[str, Any] = {"settle_s": 0.0, **changes}
        said: list[Assignment] = [] if sent is None else sent
        return reconcile(self.store, said.extend, Settings.model_construct(**values))
