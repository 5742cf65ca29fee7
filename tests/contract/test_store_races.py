"""What only a real database can show: two transactions at once, decided by row locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psycopg2
import pytest

from feedq.control.store import database
from feedq.core import limits
from feedq.core.limits import DISPATCH_TIMEOUT_S
from feedq.core.model import LeaseState, Load, Reason, Release, TargetState, Worker, WorkerTarget
from feedq.errors import Unavailable
from tests.asking import send_heartbeat
from tests.contract.harness import TTL_S, Harness, progress, stock_of
from tests.waiting import rounds_for

WAIT_S = 30.0
HAMMER_S = 1.5


def test_an_expiry_and_the_leases_it_frees_become_visible_together(harness: Harness) -> None:
    h = harness
    worker, feed = h.worker(), h.feed()
    h.run(feed, worker)
    with h.in_a_pass() as p:
        assert p.expire_workers([worker.id]) == 1
        assert [w.feed_id for w in p.waiting(limit=9)] == [feed.id], "freed within the pass"
        assert h.lease(feed).worker_id == worker.id, "and for nobody else to see"
        assert [v.worker.id for v in h.store.workers.views()] == [worker.id]
    assert h.lease(feed).state is LeaseState.IDLE
    assert h.store.workers.views() == []


def test_a_claim_that_races_with_an_expiry_finds_the_lease_freed(
    harness: Harness, threads: ThreadPoolExecutor
) -> None:
    h = harness
    worker, feed = h.worker(), h.feed()
    key = h.assign(feed, worker)
    with h.in_a_pass() as p:
        assert p.expire_workers([worker.id]) == 1
        claim = threads.submit(h.store.leases.claim, worker.id, [key])
        h.wait_until_blocked(claim)
    assert claim.result(WAIT_S) == []
    assert h.lease(feed).state is LeaseState.IDLE


def test_a_claim_that_races_with_a_withdrawal_finds_the_lease_idle(
    harness: Harness, threads: ThreadPoolExecutor
) -> None:
    h = harness
    worker, feed = h.worker(), h.feed()
    key = h.assign(feed, worker)
    h.elapse(DISPATCH_TIMEOUT_S)
    with h.in_a_pass() as p:
        assert len(stock_of(p).silent) == 1
        (again,) = p.assign([(feed.id, worker.id)])
        claim = threads.submit(h.store.leases.claim, worker.id, [key])
        h.wait_until_blocked(claim)
    assert claim.result(WAIT_S) == []
    assert len(h.store.leases.claim(worker.id, [again.key])) == 1


def test_a_release_that_races_with_an_expiry_has_no_effect(
    harness: Harness, threads: ThreadPoolExecutor
) -> None:
    h = harness
    worker, feed, key = h.running()
    with h.in_a_pass() as p:
        p.expire_workers([worker.id])
        release = threads.submit(h.store.leases.release, worker.id, [Release(*key, Reason.FAILED)])
        h.wait_until_blocked(release)
    assert release.result(WAIT_S) == []
    assert h.lease(feed).reason is Reason.WORKER_GONE


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_heartbeat_that_races_with_a_pass_renews_unless_that_declares_the_worker_gone(
    harness: Harness, threads: ThreadPoolExecutor, is_gone: bool
) -> None:
    h = harness
    worker = h.worker(ttl_s=5)
    h.elapse(10)
    with h.in_a_pass() as p:
        (suspect,) = p.suspects
        beat = threads.submit(send_heartbeat, h.store, worker.id, Load(), ttl_s=5)
        h.wait_until_blocked(beat)
        p.expire_workers([suspect.worker.id] if is_gone else [])
    assert (beat.result(WAIT_S) is None) is is_gone


def test_a_pass_that_freezes_in_its_transaction_holds_nobody_up_for_long(
    harness: Harness, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locked the rows of the workers it assigned to, and no other pass may begin meanwhile."""
    # As it is outside of tests, where none has to wait for all others.
    monkeypatch.setattr(database, "IDLE_IN_TRANSACTION_TIMEOUT_MS", 3_000)
    h = harness
    h.end_sessions()
    worker, feed = h.worker(), h.feed()
    h.absorb_edits()

    def freeze() -> None:
        with h.in_a_pass() as p:
            p.assign([(feed.id, worker.id)])
            beat = threads.submit(send_heartbeat, h.store, worker.id, Load(), ttl_s=TTL_S)
            h.wait_until_blocked(beat)
            renewed.append(beat.result(WAIT_S))  # while the pass is still frozen

    renewed: list[object] = []
    with pytest.raises(Unavailable):
        freeze()
    assert renewed
    assert renewed[0] is not None
    assert h.lease(feed).state is LeaseState.IDLE
    assert [a.key for a in h.reconcile()[1]] == [(feed.id, 1)]
    h.end_sessions()


def test_of_many_passes_at_once_one_is_let_in(harness: Harness, threads: ThreadPoolExecutor) -> None:
    h = harness
    all_are_in = threading.Barrier(4)

    def enter() -> bool:
        with h.store.fleet.reconcile_pass() as p:
            all_are_in.wait(WAIT_S)
            return p is not None

    entered = [threads.submit(enter) for _ in range(4)]
    assert sorted(e.result(WAIT_S) for e in entered) == [False, False, False, True]


def test_a_message_claimed_by_many_at_once_is_granted_once(
    harness: Harness, threads: ThreadPoolExecutor
) -> None:
    h = harness
    worker = h.worker()
    keys = [h.assign(h.feed(f"f{i}"), worker) for i in range(10)]
    at_once = threading.Barrier(4)

    def claim(order: int) -> int:
        at_once.wait(WAIT_S)
        return len(h.store.leases.claim(worker.id, keys[::order]))

    claims = [threads.submit(claim, order) for order in (1, -1, 1, -1)]
    assert sum(c.result(WAIT_S) for c in claims) == len(keys)


def test_a_pass_holds_no_lease_while_it_waits_for_an_edited_one(
    harness: Harness, threads: ThreadPoolExecutor
) -> None:
    """Owners lock leases in the order of their feeds: one that has the first would wait for the second."""
    h = harness
    worker = h.worker(ttl_s=999)
    edited, overdue = h.feed("edited"), h.feed("overdue")
    h.run(edited, worker)
    h.assign(overdue, worker)
    h.elapse(DISPATCH_TIMEOUT_S)
    h.store.feeds.set_target(edited.name, TargetState.PAUSED)
    lock = "SELECT FROM feedq.lease WHERE feed_id = %s FOR UPDATE"
    with closing(psycopg2.connect(h.url)) as owner, owner, owner.cursor() as cursor:
        cursor.execute(lock, (edited.id,))
        report = threads.submit(h.reconcile)
        h.wait_until_blocked(report)
        cursor.execute(f"{lock} NOWAIT", (overdue.id,))
    assert report.result(WAIT_S)[0].overdue == 1
    assert h.lease(edited).state is LeaseState.STOPPING


def test_everything_at_once_never_deadlocks(
    harness: Harness, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners, people and passes on the same few rows; a deadlock would surface as `Unavailable`."""
    monkeypatch.setattr(limits, "DISPATCH_TIMEOUT_S", 0.01)
    h = harness
    workers = [h.worker("a"), h.worker("b")]
    feeds = [h.feed(f"f{i}") for i in range(8)]

    def repeat(work: Callable[[], object]) -> None:
        for _ in rounds_for(HAMMER_S):
            work()

    def own(worker: Worker) -> None:
        wanted = [(v.feed.id, v.lease.epoch) for v in h.store.feeds.views(worker=worker.name)]
        h.store.leases.claim(worker.id, wanted)
        h.store.leases.report(worker.id, [progress(key) for key in wanted])
        send_heartbeat(h.store, worker.id, Load(), ttl_s=TTL_S)
        asked = h.store.leases.stop_requests(worker.id)
        h.store.leases.release(worker.id, [Release(*s.key, s.reason) for s in asked])

    def edit() -> None:
        for feed in feeds:
            h.store.feeds.set_target(feed.name, TargetState.PAUSED)
        for feed in reversed(feeds):
            h.store.feeds.restart(feed.name)
            h.store.feeds.set_target(feed.name, TargetState.RUNNING)

    def come_and_go() -> None:
        worker = h.worker("c")
        h.reconcile_if_free()
        own(worker)
        h.store.workers.set_target(worker.id, WorkerTarget.DRAINED)
        own(worker)
        h.store.workers.leave(worker.id)

    jobs = [
        *(threads.submit(repeat, partial(own, worker)) for worker in workers),
        threads.submit(repeat, edit),
        threads.submit(repeat, come_and_go),
        threads.submit(repeat, partial(h.reconcile_if_free, sweep=True)),
    ]
    for job in jobs:
        job.result(HAMMER_S + WAIT_S)
