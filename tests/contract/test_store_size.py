"""What must hold of the control database at size: idle passes that read no feed, counters that stay exact, and"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psutil
import psycopg2
import pytest

from feedq.control.store import passes
from feedq.control.store.feeds import FeedChange
from feedq.control.store.worker_session import WorkerSession
from feedq.core.model import FeedKey, LeaseState, Load, Reason, Release, Worker
from feedq.core.placement.base import Transfer
from feedq.telemetry.event_names import EventKind
from tests.asking import send_heartbeat
from tests.contract.harness import STOP_WITHIN_S, TTL_S, WAIT_FOR_ROWS_S, Harness, progress, spec, stock_of
from tests.contract.test_store_races import WAIT_S
from tests.waiting import rounds_for

FEEDS = 5_000

PLANNER_ROWS = 60

"""The planner reads the first and the last row of an index now and then, however many there are."""

HAMMER_S = 1.0


def many_running(h: Harness, workers: list[Worker], feeds: int) -> None:
    """So many feeds, evenly on these workers, as if they had been placed and claimed."""
    h.execute(
        "INSERT INTO feedq.feed (name, connector, source, sink, dirty) "
        "SELECT 'f' || n, 'tcp', '{}', '{}', false FROM generate_series(1, %s) n",
        feeds,
    )
    h.execute(
        "INSERT INTO feedq.lease (feed_id, epoch, state, reason, worker_id, generation, running_since) "
        "SELECT id, 1, 'running', NULL, (%s::uuid[])[1 + id %% %s], 1, clock_timestamp() FROM feedq.feed",
        [str(w.id) for w in workers],
        len(workers),
    )
    h.execute("ANALYZE feedq.feed, feedq.lease, feedq.progress")


def held(h: Harness) -> dict[str, tuple[int, float]]:
    """What the counters say each worker holds, beside what its leases say."""
    with h.in_a_pass() as p:
        counted = {str(c.worker_id): (c.feeds, round(c.load, 6)) for c in p.candidates()}
    rows = h.execute(
        "SELECT w.id::text, count(l.feed_id)::int, coalesce(sum(l.weight), 0) FROM feedq.worker w "
        # What is on its way to another counts there already.
        "LEFT JOIN feedq.lease l ON w.id = CASE WHEN l.state IN ('idle', 'stopping') "
        "THEN coalesce(l.promised_to, l.worker_id) ELSE l.worker_id END "
        "WHERE w.state = 'active' GROUP BY w.id"
    )
    true = {str(worker): (feeds, round(float(str(load)), 6)) for worker, feeds, load in rows}
    assert counted == true
    return counted


def test_an_idle_pass_reads_no_row_of_any_feed(harness: Harness) -> None:
    h = harness
    workers = [h.worker(name, capacity=FEEDS, ttl_s=999) for name in "abc"]
    many_running(h, workers, FEEDS)
    h.reconcile()
    h.reconcile()
    beat = partial(send_heartbeat, h.store, workers[0].id, Load(), ttl_s=999)
    for work in (h.reconcile, h.check_liveness, beat, h.store.workers.views):
        assert h.rows_read_by(work) <= PLANNER_ROWS
    assert h.rows_read_by(h.store.feeds.views) >= FEEDS, "the counters work"


def test_what_is_freed_is_looked_up_even_if_the_planner_takes_every_feed_for_dirty(
    harness: Harness,
) -> None:
    h = harness
    workers = [h.worker(str(n), ttl_s=999) for n in range(200)]
    many_running(h, workers, FEEDS)
    h.execute("UPDATE feedq.feed SET dirty = true")
    h.execute("ANALYZE feedq.feed")
    h.execute("UPDATE feedq.feed SET dirty = false")
    assert h.rows_read_by(lambda: h.expire_workers(workers[0])) <= FEEDS / 2


def test_feeds_are_looked_up_to_be_assigned_even_if_the_planner_takes_none_for_idle(
    harness: Harness,
) -> None:
    h = harness
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    many_running(h, [worker], FEEDS)
    h.execute("UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'new'")
    some = [feed_id for (feed_id,) in h.execute("SELECT feed_id FROM feedq.lease LIMIT 50")]

    def decide() -> None:
        with h.in_a_pass() as p:
            assert len(p.assign([(int(str(feed_id)), worker.id) for feed_id in some[:25]])) == 25
            p.explain([(int(str(feed_id)), Reason.NO_CAPACITY) for feed_id in some[25:]])

    assert h.rows_read_by(decide) <= FEEDS / 2


def test_plans_for_one_feed_are_not_kept_for_thousands(stale: Harness) -> None:
    h = stale
    h.execute("ALTER TABLE feedq.feed SET (autovacuum_enabled = false)")
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    h.feed()
    h.absorb_edits()
    h.execute("ANALYZE feedq.feed, feedq.lease, feedq.progress")

    def used_s() -> float:
        """What the sessions have used of processors: how long they had to wait for one does not count."""
        pids = h.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        times = [psutil.Process(int(str(pid))).cpu_times() for (pid,) in pids]
        return sum(one.user + one.system for one in times)

    def place_s(feeds: int) -> float:
        """What it takes to place so many feeds and to free them."""
        began = used_s()
        with h.in_a_pass() as p:
            p.take_stock(edits=FEEDS)
            waiting = p.waiting(limit=FEEDS)
            assert len(p.assign([(one.feed_id, worker.id) for one in waiting])) == feeds
            assert p.expire_workers([worker.id]) == feeds
        took_s = used_s() - began
        # As if it had not been lost with its worker.
        h.execute("UPDATE feedq.worker SET state = 'active'; UPDATE feedq.lease SET due_at = NULL")
        return took_s

    for _ in range(10):  # after five, PL/pgSQL would keep a plan for good
        place_s(1)
    for first in range(1, FEEDS, 500):
        specs = [spec(f"f{n}") for n in range(first, min(first + 500, FEEDS))]
        h.store.feeds.change([FeedChange(EventKind.FEED_ADDED, one.name, one) for one in specs])
    taken_in_s = place_s(FEEDS)
    h.execute("ANALYZE feedq.feed, feedq.lease, feedq.progress")
    # As the square of their number it would take a hundred times as long.
    assert taken_in_s <= 15 * place_s(FEEDS)


def test_the_counters_tell_what_workers_hold_whatever_happens(harness: Harness) -> None:
    h = harness
    a, b = h.worker("a"), h.worker("b")
    feeds = [h.feed(f"f{i}", weight=0.1 * (i + 1)) for i in range(6)]
    keys = [h.run(feed, a) for feed in feeds[:4]]
    h.assign(feeds[4], b)
    assert held(h)[str(a.id)] == (4, 1.0)
    h.store.leases.report(a.id, [progress(key) for key in keys])
    h.store.leases.release(a.id, [Release(*keys[0], Reason.RELEASED)])
    h.store.feeds.remove("f0")
    h.reconcile()
    held(h)
    h.delete_lease(feeds[1].id)
    held(h)
    assert [v.leases for v in h.store.workers.views()] == [2, 2]
    h.expire_workers(a)
    assert held(h) == {str(b.id): (2, 1.1)}
    assert [v.leases for v in h.store.workers.views(gone=True)] == [0, 2]


def test_the_counters_stay_exact_while_everybody_writes(harness: Harness) -> None:
    h = harness
    workers = [h.worker(name, ttl_s=999) for name in "ab"]
    for i in range(10):
        h.feed(f"f{i}", weight=0.5 + i)

    def own(worker: Worker) -> None:
        for _ in rounds_for(HAMMER_S):
            wanted = [(v.feed.id, v.lease.epoch) for v in h.store.feeds.views(worker=worker.name)]
            claimed = h.store.leases.claim(worker.id, wanted)
            h.store.leases.release(worker.id, [Release(*c.key, Reason.RELEASED) for c in claimed[::2]])

    def sweep() -> None:
        for _ in rounds_for(HAMMER_S):
            h.reconcile_if_free(sweep=True)

    with ThreadPoolExecutor(max_workers=3) as threads:
        jobs = [*(threads.submit(partial(own, w)) for w in workers), threads.submit(sweep)]
        for job in jobs:
            job.result(HAMMER_S + 20)
    assert sum(feeds for feeds, _ in held(h).values()) > 0


def test_a_sweep_goes_page_by_page_from_pass_to_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = harness
    monkeypatch.setattr(passes, "SWEEP_PAGE", 100)
    worker = h.worker(capacity=1000, ttl_s=999)
    many_running(h, [worker], 250)
    h.execute("UPDATE feedq.fleet SET sweep_at = sweep_at - interval '1 hour'")

    def swept_to() -> object:
        h.reconcile()
        return h.execute("SELECT swept_to FROM feedq.fleet")[0][0]

    assert [swept_to() for _ in range(4)] == [100, 200, None, None]
    with h.in_a_pass() as p:
        assert not p.sweep_is_due(interval_s=60.0)


def test_history_is_trimmed_a_page_at_a_time(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h = harness
    monkeypatch.setattr(passes, "SWEEP_PAGE", 100)
    # The planner takes the table for empty.
    h.execute("INSERT INTO feedq.event (kind) VALUES ('old'); DELETE FROM feedq.event; ANALYZE feedq.event")
    h.execute(
        "INSERT INTO feedq.event (at, kind) "
        "SELECT clock_timestamp() - interval '99 days', 'old' FROM generate_series(1, 250)"
    )
    h.execute("UPDATE feedq.fleet SET sweep_at = sweep_at - interval '1 hour'")

    def left() -> int:
        h.reconcile()
        ((count,),) = h.execute("SELECT count(*) FROM feedq.event")
        return int(str(count))

    assert [left() for _ in range(4)] == [150, 50, 0, 0]


KEYS = 50

LOOKUPS = 10

"""At most so many rows a key: the lease to lock it and to write it, its feed, its worker's and the like."""


@pytest.fixture
def stale(harness: Harness) -> Iterator[Harness]:
    """Whose statistics stay as they are until a test asks for others."""
    h = harness
    h.execute("ALTER TABLE feedq.lease SET (autovacuum_enabled = false)")
    yield h
    h.execute("ALTER TABLE feedq.lease RESET (autovacuum_enabled); ANALYZE feedq.lease")


def claim(h: Harness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(h.store.leases.claim(worker.id, keys))


def release(h: Harness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(
        h.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, retry_in_s=9) for key in keys])
    )


def report(h: Harness, worker: Worker, keys: list[FeedKey]) -> int:
    return len(h.store.leases.report(worker.id, [progress(key) for key in keys]).held)


def transfer(h: Harness, worker: Worker, keys: list[FeedKey]) -> int:
    target = h.worker("target")
    moves = [Transfer(feed_id, worker.id, target.id) for feed_id, _ in keys]
    with h.in_a_pass() as p:
        return p.transfer(moves, stop_within_s=STOP_WITHIN_S)


@pytest.mark.parametrize(
    ("verb", "state"),
    [(claim, "assigned"), (release, "running"), (report, "running"), (transfer, "running")],
)
def test_leases_are_looked_up_by_their_keys_even_if_the_planner_takes_none_to_match(
    stale: Harness, verb: Callable[[Harness, Worker, list[FeedKey]], int], state: str
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
    stale: Harness,
) -> None:
    h = stale
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    h.execute("ANALYZE feedq.lease")
    with closing(WorkerSession(h.url, worker, ttl_s=TTL_S)) as session:
        for _ in range(10):  # after five, PL/pgSQL would keep a plan for good
            session.heartbeat(Load())
        many_running(h, [worker], FEEDS)
        h.execute("UPDATE feedq.lease SET state = 'assigned' WHERE feed_id %% 100 = 0")
        with session._session.cursor() as cursor:
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


def test_a_report_that_waits_finds_that_a_later_owner_has_reported(harness: Harness) -> None:
    h = harness
    worker, feed, key = h.running()
    with ThreadPoolExecutor(1) as thread, closing(psycopg2.connect(h.url)) as other, other.cursor() as cursor:
        cursor.execute("UPDATE feedq.progress SET epoch = 2")
        reported = thread.submit(h.store.leases.report, worker.id, [progress(key)])
        h.wait_until_blocked(reported)
        other.commit()
        told = reported.result(WAIT_S)
        assert (told.held, told.busy) == ([], [])
    assert h.lease(feed).records_total == 0


def test_a_report_waits_for_nobody_who_has_the_lease(harness: Harness) -> None:
    """What landed under an epoch counts, whatever becomes of the lease at this moment."""
    h = harness
    worker, feed, key = h.running()
    with h.in_a_pass() as p:
        p.expire_workers([worker.id])
        assert h.store.leases.report(worker.id, [progress(key, records=5)]).held == [key]
    lease = h.lease(feed)
    assert (lease.state, lease.connected, lease.records_total) == (LeaseState.IDLE, False, 5)
    assert h.store.leases.report(worker.id, [progress(key, records=5)]).held == []


def test_what_somebody_has_locked_is_left_out_and_told_apart_from_what_is_lost(
    harness: Harness,
) -> None:
    h = harness
    worker, other = h.worker("w1"), h.worker("w2")
    held, free, assigned, lost, unlocked = (h.feed(f"f{n}") for n in range(5))
    keys = [h.run(held, worker), h.run(free, worker)]
    asked, waiting = [h.assign(assigned, worker), h.run(lost, other)], h.assign(unlocked, worker)
    h.wait_for_rows(0.05)
    try:
        with closing(psycopg2.connect(h.url)) as somebody, somebody.cursor() as cursor:
            rows = [held.id, assigned.id]
            both = "SELECT FROM feedq.lease JOIN feedq.progress USING (feed_id) WHERE feed_id = ANY (%s)"
            cursor.execute(f"{both} FOR UPDATE", (rows,))
            told = h.store.leases.report(worker.id, [progress(key, records=5) for key in [*keys, asked[1]]])
            assert (told.held, told.busy) == ([keys[1]], [keys[0]])
            stale = (waiting[0], waiting[1] + 1)
            assert h.store.leases.claim(worker.id, asked) == []
            assert [c.key for c in h.store.leases.claim(worker.id, [*asked, stale, waiting])] == [waiting]
            assert h.store.leases.release(worker.id, [Release(*k, Reason.RELEASED) for k in keys]) == [
                keys[1]
            ]
            with h.in_a_pass() as p:
                assert p.expire_workers([worker.id]) == 1, "the two others that it has are locked"
        with h.in_a_pass() as p:
            p.moving(within_s=30)
            assert stock_of(p).reaped == 2, "what a dead worker still had"
    finally:
        h.wait_for_rows(WAIT_FOR_ROWS_S)
    assert (h.lease(held).records_total, h.lease(free).records_total) == (0, 5)
    assert {h.lease(feed).state for feed in (held, free, assigned)} == {LeaseState.IDLE}


@pytest.mark.parametrize("table", ["feed WHERE id", "progress WHERE feed_id"])
def test_a_feed_that_somebody_has_locked_is_released_later_and_no_other_is(
    harness: Harness, table: str
) -> None:
    h = harness
    worker, held, free = h.worker(), h.feed("held"), h.feed("free")
    keys = [h.run(held, worker), h.run(free, worker)]
    h.store.feeds.remove(held.name)
    h.absorb_edits()
    given = [Release(*key, Reason.REMOVED, attempts=1) for key in keys]
    h.wait_for_rows(0.05)
    try:
        with closing(psycopg2.connect(h.url)) as somebody, somebody.cursor() as cursor:
            cursor.execute(f"SELECT FROM feedq.{table} = %s FOR UPDATE", (held.id,))
            assert h.store.leases.release(worker.id, given) == [keys[1]]
        assert h.store.leases.release(worker.id, given) == [keys[0]]
    finally:
        h.wait_for_rows(WAIT_FOR_ROWS_S)
    assert h.dirty_feeds() == 1, "it is to be deleted"


def test_a_claim_that_waits_for_a_lease_reads_the_feed_as_it_was_edited_meanwhile(
    harness: Harness,
) -> None:
    h = harness
    worker, feed = h.worker(), h.feed()
    key = h.assign(feed, worker)
    with ThreadPoolExecutor(1) as thread, closing(psycopg2.connect(h.url)) as other, other.cursor() as cursor:
        cursor.execute("UPDATE feedq.lease SET quarantined = true")
        claimed = thread.submit(h.store.leases.claim, worker.id, [key])
        h.wait_until_blocked(claimed)
        cursor.execute("UPDATE feedq.feed SET generation = 5")
        other.commit()
        (granted,) = claimed.result(WAIT_S)
    assert (granted.feed.generation, granted.quarantined) == (5, True)
    assert h.lease(feed).generation == 5
