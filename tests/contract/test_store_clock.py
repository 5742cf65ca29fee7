"""The database's clock is put back: nothing waits longer for it than a ttl, and nobody alive is declared gone."""

from __future__ import annotations

from feedq.core.limits import DISPATCH_TIMEOUT_S
from feedq.core.model import Load, Reason, Release, WorkerState
from tests.asking import send_heartbeat
from tests.contract.harness import STOP_WITHIN_S, TTL_S, Harness, stock_of

STEP_S = 3600.0


def make_a_pass(harness: Harness) -> int:
    """How many workers it declared gone."""
    report, _ = harness.reconcile(ttl_s=TTL_S)
    return report.workers_gone


def test_a_worker_that_died_before_the_step_is_gone_a_ttl_after_it(harness: Harness) -> None:
    dead, alive = harness.worker("dead"), harness.worker("alive")
    make_a_pass(harness)
    harness.put_clock_back(STEP_S)
    send_heartbeat(harness.store, alive.id, Load(), ttl_s=TTL_S)
    assert make_a_pass(harness) == 0
    for _ in range(3):
        harness.elapse(0.3 * TTL_S)
        send_heartbeat(harness.store, alive.id, Load(), ttl_s=TTL_S)
        assert make_a_pass(harness) == 0, "its ttl is not over yet"
    harness.elapse(0.3 * TTL_S)
    send_heartbeat(harness.store, alive.id, Load(), ttl_s=TTL_S)
    assert make_a_pass(harness) == 1
    states = {view.worker.name: view.worker.state for view in harness.store.workers.views(gone=True)}
    assert states == {dead.name: WorkerState.GONE, alive.name: WorkerState.ACTIVE}


def test_a_crash_is_seen_at_once_after_the_step(harness: Harness) -> None:
    worker = harness.worker()
    session = harness.store.session(worker, ttl_s=TTL_S)
    for _ in range(4):
        harness.elapse(0.3 * TTL_S)
        session.heartbeat(Load())
    harness.put_clock_back(STEP_S)
    session.heartbeat(Load())
    session.close()
    harness.await_unlocked(worker)
    harness.check_liveness()
    harness.check_liveness()
    assert make_a_pass(harness) == 1, "everybody had a ttl of service before"


def test_delays_and_time_limits_do_not_grow_by_the_step(harness: Harness) -> None:
    worker = harness.worker()
    waits, stops, given = (harness.feed(name) for name in ("waits", "stops", "given"))
    feed_id, epoch = harness.run(waits, worker)
    harness.store.leases.release(worker.id, [Release(feed_id, epoch, Reason.BACKOFF, 30.0, 5, "no")])
    harness.run(stops, worker)
    harness.store.feeds.restart(stops.name)
    harness.absorb_edits()
    harness.assign(given, worker)
    with harness.in_a_pass():
        pass
    harness.put_clock_back(STEP_S)
    with harness.in_a_pass():
        pass
    retry_at, stop_by = harness.lease(waits).due_at, harness.lease(stops).due_at
    assert retry_at is not None
    assert stop_by is not None
    with harness.in_a_pass() as p:
        assert stock_of(p).reaped == 0
        assert p.waiting(limit=10) == []
        assert 20 < (retry_at - p.now).total_seconds() < 31
        assert 0 < (stop_by - p.now).total_seconds() <= STOP_WITHIN_S
    harness.elapse(max(31, STOP_WITHIN_S, DISPATCH_TIMEOUT_S))
    with harness.in_a_pass() as p:
        stock = stock_of(p)
        assert (stock.reaped, stock.silent) == (1, [worker.id])
        assert [w.feed_id for w in p.waiting(limit=10)] == [waits.id, stops.id, given.id]


def test_a_look_finds_heartbeats_that_lie_ahead(harness: Harness) -> None:
    harness.worker()
    assert harness._check_liveness().expired == 0
    harness.put_clock_back(STEP_S)
    assert harness._check_liveness().expired == 1
    make_a_pass(harness)
    assert harness._check_liveness().expired == 0


def test_a_server_with_another_start_gives_everybody_a_ttl(harness: Harness) -> None:
    worker = harness.worker()
    harness.elapse(2 * TTL_S)
    send_heartbeat(harness.store, worker.id, Load(), ttl_s=TTL_S)
    harness.elapse(1.2 * TTL_S)
    harness.execute(
        "UPDATE feedq.fleet SET alive_at = feedq.clock(), alive_since = alive_since - interval '1 day', "
        "server_started_at = server_started_at - interval '1 day'"
    )
    assert make_a_pass(harness) == 0
    harness.execute("UPDATE feedq.fleet SET server_started_at = pg_postmaster_start_time()")
    assert make_a_pass(harness) == 1
