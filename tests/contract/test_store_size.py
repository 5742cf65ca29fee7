"""What must hold of the control database at size: idle passes that read no feed, counters that stay exact, and
sweeps in pages."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from feedq.control.store import passes
from feedq.core.model import Load, Reason, Release, Worker
from tests.contract.harness import PostgresHarness, progress

pytestmark = pytest.mark.servers

FEEDS = 5_000
PLANNER_ROWS = 60
"""The planner reads the first and the last row of an index now and then, however many there are."""
HAMMER_S = 1.0


def many_running(h: PostgresHarness, workers: list[Worker], feeds: int) -> None:
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
    h.execute("ANALYZE feedq.feed, feedq.lease")


def held(h: PostgresHarness) -> dict[str, tuple[int, float]]:
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


def test_an_idle_pass_reads_no_row_of_any_feed(postgres_harness: PostgresHarness) -> None:
    h = postgres_harness
    workers = [h.worker(name, capacity=FEEDS, ttl_s=999) for name in "abc"]
    many_running(h, workers, FEEDS)
    h.reconcile()
    h.reconcile()
    beat = partial(h.store.workers.heartbeat, workers[0].id, Load(), ttl_s=999)
    for work in (h.reconcile, h.check_liveness, beat, h.store.workers.views):
        assert h.rows_read_by(work) <= PLANNER_ROWS
    assert h.rows_read_by(h.store.feeds.views) >= FEEDS, "the counters work"


def test_what_is_freed_is_looked_up_even_if_the_planner_takes_every_feed_for_dirty(
    postgres_harness: PostgresHarness,
) -> None:
    h = postgres_harness
    workers = [h.worker(str(n), ttl_s=999) for n in range(200)]
    many_running(h, workers, FEEDS)
    h.execute("UPDATE feedq.feed SET dirty = true")
    h.execute("ANALYZE feedq.feed")
    h.execute("UPDATE feedq.feed SET dirty = false")
    assert h.rows_read_by(lambda: h.expire_workers(workers[0])) <= FEEDS / 2


def test_feeds_are_looked_up_to_be_assigned_even_if_the_planner_takes_none_for_idle(
    postgres_harness: PostgresHarness,
) -> None:
    h = postgres_harness
    worker = h.worker(capacity=FEEDS, ttl_s=999)
    many_running(h, [worker], FEEDS)
    h.execute("UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'new'")
    some = [feed_id for (feed_id,) in h.execute("SELECT feed_id FROM feedq.lease LIMIT 50")]

    def decide() -> None:
        with h.in_a_pass() as p:
            assert len(p.assign([(int(str(feed_id)), worker.id) for feed_id in some[:25]])) == 25
            p.explain([(int(str(feed_id)), Reason.NO_CAPACITY) for feed_id in some[25:]])

    assert h.rows_read_by(decide) <= FEEDS / 2


def test_the_counters_tell_what_workers_hold_whatever_happens(postgres_harness: PostgresHarness) -> None:
    h = postgres_harness
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


def test_the_counters_stay_exact_while_everybody_writes(postgres_harness: PostgresHarness) -> None:
    h = postgres_harness
    workers = [h.worker(name, ttl_s=999) for name in "ab"]
    for i in range(10):
        h.feed(f"f{i}", weight=0.5 + i)
    deadline = time.monotonic() + HAMMER_S

    def own(worker: Worker) -> None:
        while time.monotonic() < deadline:
            wanted = [(v.feed.id, v.lease.epoch) for v in h.store.feeds.views(worker=worker.name)]
            claimed = h.store.leases.claim(worker.id, wanted)
            h.store.leases.release(worker.id, [Release(*c.key, Reason.RELEASED) for c in claimed[::2]])

    def sweep() -> None:
        while time.monotonic() < deadline:
            h.reconcile_if_free(sweep=True)

    with ThreadPoolExecutor(max_workers=3) as threads:
        jobs = [*(threads.submit(partial(own, w)) for w in workers), threads.submit(sweep)]
        for job in jobs:
            job.result(HAMMER_S + 20)
    assert sum(feeds for feeds, _ in held(h).values()) > 0


def test_a_sweep_counts_anew_what_was_miscounted(postgres_harness: PostgresHarness) -> None:
    h = postgres_harness
    worker = h.worker(ttl_s=999)
    for i in range(3):
        h.run(h.feed(f"f{i}"), worker)
    h.candidate(worker)
    h.execute("UPDATE feedq.worker_held SET feeds = 77, weight = 1e9")
    assert h.candidate(worker).feeds == 77
    h.reconcile(sweep=True)
    assert held(h)[str(worker.id)] == (3, 3.0)


def test_a_sweep_goes_page_by_page_from_pass_to_pass(
    postgres_harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = postgres_harness
    monkeypatch.setattr(passes, "SWEEP_PAGE", 100)
    worker = h.worker(capacity=1000, ttl_s=999)
    many_running(h, [worker], 250)
    h.execute("DELETE FROM feedq.lease WHERE feed_id IN (5, 150, 249)")
    h.execute("UPDATE feedq.fleet SET sweep_at = sweep_at - interval '1 hour'")
    repaired = [h.reconcile()[0].repaired for _ in range(4)]
    assert repaired == [1, 1, 1, 0]
    with h.in_a_pass() as p:
        assert not p.sweep_is_due(interval_s=60.0)


def test_history_is_trimmed_a_page_at_a_time(
    postgres_harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = postgres_harness
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
