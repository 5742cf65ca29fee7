"""Statements that name feeds look them up by their keys, whatever the planner takes the rest of them to be.

Statistics are as old as the last autovacuum: a minute after a million leases were idle, the planner still takes
next to none for running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import pytest

from feedq.control.store.worker_session import WorkerSession
from feedq.core.model import FeedKey, LeaseState, Load, Reason, Release, Worker
from feedq.core.placement.base import Transfer
from tests.contract.harness import STOP_WITHIN_S, TTL_S, WAIT_FOR_ROWS_S, PostgresHarness, progress
from tests.contract.test_store_races import WAIT_S
from tests.contract.test_store_size import many_running

pytestmark = pytest.mark.servers

FEEDS = 5_000
KEYS = 50
LOOKUPS = 10
"""At most so many rows a key: the lease to lock it and to write it, its feed, its worker's and the like."""


@pytest.fixture
def stale(postgres_harness: PostgresHarness) -> Iterator[PostgresHarness]:
    """Whose statistics stay as they are until a test asks for others."""
    h = postgres_harness
    h.execute("ALTER TABLE feedq.lease SET (autovacuum_enabled = false)")
    yield h
    h.execute("ALTER TABLE feedq.lease RESET (autovacuum_enabled); ANALYZE feedq.lease")


def claim(h: PostgresHarness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(h.store.leases.claim(worker.id, keys))


def release(h: PostgresHarness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(
        h.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, retry_in_s=9) for key in keys])
    )


def report(h: PostgresHarness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(h.store.leases.report(worker.id, [progress(key) for key in keys]).held)


def transfer(h: PostgresHarness, worker: Worker, keys: list[FeedKey]) -> int:
    target = h.worker("target")
    moves = [Transfer(feed_id, worker.id, target.id) for feed_id, _ in keys]
    with h.in_a_pass() as p:
        return p.transfer(moves, stop_within_s=STOP_WITHIN_S)


@pytest.mark.parametrize(
    ("verb", "state"),
    [(claim, "assigned"), (release, "running"), (report, "running"), (transfer, "running")],
)
def test_leases_are_looked_up_by_their_keys_even_if_the_planner_takes_none_to_match(
    stale: PostgresHarness, verb: Callable[[PostgresHarness, Worker, list[FeedKey]], int], state: str
) -> None:
    h = stale
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    many_running(h, [worker], FEEDS)
    h.execute("UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'paused'")
    h.execute("ANALYZE feedq.lease")
    h.execute("UPDATE feedq.lease SET state = %s, worker_id = %s, reason = NULL", state, str(worker.id))
    step = FEEDS // KEYS
    rows = h.execute("SELECT feed_id, epoch FROM feedq.lease WHERE feed_id %% %s = 0", step)
    keys = [(int(str(feed_id)), int(str(epoch))) for feed_id, epoch in rows]
    matched: list[int] = []
    assert h.rows_read_by(lambda: matched.append(verb(h, worker, keys))) <= LOOKUPS * KEYS
    assert matched == [KEYS]


def test_a_heartbeat_that_was_planned_when_there_was_no_lease_looks_up_what_waits_for_its_worker(
    stale: PostgresHarness,
) -> None:
    h = stale
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    h.execute("ANALYZE feedq.lease")
    with closing(WorkerSession(h.url, worker, ttl_s=TTL_S)) as session:
        for _ in range(10):  # after five, PL/pgSQL would keep a plan for good
            session.heartbeat(Load())
        many_running(h, [worker], FEEDS)
        h.execute("UPDATE feedq.lease SET state = 'assigned' WHERE feed_id %% 100 = 0")
        with session._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            found = session.heartbeat(Load())
            cursor.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables "
                "WHERE relid = 'feedq.lease'::regclass"
            )
            rows = cursor.fetchone()
    assert found is not None
    assert (found.claims_pending, found.stops_pending) == (True, False)
    assert rows is not None
    assert rows[0] <= LOOKUPS


def test_a_report_that_waits_for_a_lease_finds_it_lost(postgres_harness: PostgresHarness) -> None:
    h = postgres_harness
    worker, feed = h.worker(), h.feed()
    key = h.run(feed, worker)
    with ThreadPoolExecutor(1) as thread:
        with h.in_a_pass() as p:
            p.expire_workers([worker.id])
            reported = thread.submit(h.store.leases.report, worker.id, [progress(key)])
            h.wait_until_blocked(reported)
        assert reported.result(WAIT_S).held == []
    assert (h.lease(feed).state, h.lease(feed).records_total) == (LeaseState.IDLE, 0)


def test_what_somebody_has_locked_is_left_out_and_told_apart_from_what_is_lost(
    postgres_harness: PostgresHarness,
) -> None:
    h = postgres_harness
    worker, other = h.worker("w1"), h.worker("w2")
    held, free, assigned, lost = (h.feed(f"f{n}") for n in range(4))
    keys = [h.run(held, worker), h.run(free, worker)]
    asked = [h.assign(assigned, worker), h.run(lost, other)]
    h.wait_for_rows(0.05)
    try:
        with closing(psycopg2.connect(h.url)) as somebody, somebody.cursor() as cursor:
            rows = [held.id, assigned.id]
            cursor.execute("SELECT FROM feedq.lease WHERE feed_id = ANY (%s) FOR UPDATE", (rows,))
            told = h.store.leases.report(worker.id, [progress(key, records=5) for key in [*keys, asked[1]]])
            assert (told.held, told.busy) == ([keys[1]], [keys[0]])
            assert h.store.leases.claim(worker.id, asked) == []
            assert h.store.leases.release(worker.id, [Release(*k, Reason.RELEASED) for k in keys]) == [
                keys[1]
            ]
            with h.in_a_pass() as p:
                assert p.expire_workers([worker.id]) == 0, "both that it has are locked"
        with h.in_a_pass() as p:
            p.leaving()
            assert p.reap() == 2, "what a dead worker still had"
    finally:
        h.wait_for_rows(WAIT_FOR_ROWS_S)
    assert (h.lease(held).records_total, h.lease(free).records_total) == (0, 5)
    assert {h.lease(feed).state for feed in (held, free, assigned)} == {LeaseState.IDLE}


def test_a_claim_that_waits_for_a_lease_reads_the_feed_as_it_was_edited_meanwhile(
    postgres_harness: PostgresHarness,
) -> None:
    h = postgres_harness
    worker, feed = h.worker(), h.feed()
    key = h.assign(feed, worker)
    with ThreadPoolExecutor(1) as thread, closing(psycopg2.connect(h.url)) as other, other.cursor() as cursor:
        cursor.execute("UPDATE feedq.lease SET attempts = 7")
        claimed = thread.submit(h.store.leases.claim, worker.id, [key])
        h.wait_until_blocked(claimed)
        cursor.execute("UPDATE feedq.feed SET generation = 5")
        other.commit()
        (granted,) = claimed.result(WAIT_S)
    assert (granted.feed.generation, granted.attempts) == (5, 7)
    assert h.lease(feed).generation == 5
