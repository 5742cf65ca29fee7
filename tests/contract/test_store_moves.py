"""The store's contract: moves, promises, what is no longer waited for, and what is held for a successor."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from feedq.core.model import LeaseState, Reason, Release, Status, TargetState
from feedq.core.placement.base import Transfer
from feedq.errors import Conflict, NotFound
from feedq.telemetry.logs import EventKind
from tests.asking import events_of
from tests.contract.harness import Harness, progress, stock_of

HOLD_S = 20.0


@pytest.fixture
def holding(control_database_url: str) -> Iterator[Harness]:
    """A store of workers whose announced restarts are waited for."""
    made = Harness(control_database_url, restart_hold_s=HOLD_S)
    yield made
    made.close()


def moved(harness: Harness, name: str, target: UUID) -> None:
    (refusal,) = harness.store.feeds.move([(name, target)], stop_within_s=30)
    if refusal is not None:
        raise refusal


# -- the move ----------------------------------------------------------------------------------------


def test_a_move_asks_the_owner_and_promises_the_feed(harness: Harness) -> None:
    source, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    key = harness.run(feed, source)
    listener = harness.store.worker_listener(source)
    assert harness.transfer(feed, source, target, stop_within_s=30) == 1
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.epoch) == (LeaseState.STOPPING, Reason.MOVED, key[1])
    assert (lease.worker_id, lease.promised_to) == (source.id, target.id)
    assert lease.due_at is not None
    (request,) = harness.store.leases.stop_requests(source.id)
    assert (request.key, request.reason) == (key, Reason.MOVED)
    assert listener.wait(30)
    listener.close()
    said = events_of(harness.store, feed.name)[0]
    assert (said.kind, said.worker_id) == (EventKind.STOP_REQUESTED, source.id)
    assert said.detail == {"reason": "moved", "to": "b"}


def test_what_is_on_its_way_counts_where_it_goes_and_no_longer_where_it_is(harness: Harness) -> None:
    source, target = harness.worker("a"), harness.worker("b")
    feeds = [harness.feed(f"f{i}", weight=3.0, tenant="acme") for i in range(2)]
    key = harness.run(feeds[0], source)
    harness.run(feeds[1], source)
    harness.transfer(feeds[0], source, target)

    def counts() -> list[tuple[int, float, dict[str, int]]]:
        found = [harness.candidate(w, "acme", "other") for w in (source, target)]
        return [(c.feeds, c.load, dict(c.tenants)) for c in found]

    assert counts() == [(1, 3.0, {"acme": 1}), (1, 3.0, {"acme": 1})]
    views = {v.worker.name: (v.leases, v.promised) for v in harness.store.workers.views()}
    assert views == {"a": (2, 0), "b": (0, 1)}
    harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)])
    assert counts() == [(1, 3.0, {"acme": 1}), (1, 3.0, {"acme": 1})], "let go of and not given yet"
    with harness.in_a_pass() as p:
        (waiting,) = p.waiting(limit=9)
        assert (waiting.worker_id, waiting.tenant) == (target.id, "acme")
        p.assign([(feeds[0].id, target.id)])
    assert counts() == [(1, 3.0, {"acme": 1}), (1, 3.0, {"acme": 1})]
    lease = harness.lease(feeds[0])
    assert (lease.promised_to, lease.weight) == (None, 3.0)


def under_way(harness: Harness) -> int:
    with harness.in_a_pass() as p:
        return sum(p.moving(within_s=30).under_way.values())


def test_a_move_is_under_way_until_the_feed_is_connected_at_its_new_worker(harness: Harness) -> None:
    source, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    key = harness.run(feed, source)
    assert under_way(harness) == 0
    harness.transfer(feed, source, target)
    with harness.in_a_pass() as p:
        assert p.moving(within_s=30).under_way == {target.id: 1}
    harness.store.leases.report(source.id, [progress(key, connected=True)])
    assert under_way(harness) == 1, "that was the old owner, which is still connected"
    harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)])
    assert under_way(harness) == 1
    key = harness.run(feed, target)
    harness.store.leases.report(target.id, [progress(key, connected=False)])
    assert under_way(harness) == 1
    arrived = [progress(key, connected=True)]
    assert harness.wakes(lambda: harness.store.leases.report(target.id, arrived)), "others may move now"
    assert under_way(harness) == 0
    assert not harness.wakes(lambda: harness.store.leases.report(target.id, arrived)), "that is no news"


def test_a_move_that_never_arrives_is_not_waited_for_without_end(harness: Harness) -> None:
    source, target, feed = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999), harness.feed()
    key = harness.run(feed, source)
    harness.transfer(feed, source, target)
    harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)])
    harness.run(feed, target)
    harness.elapse(15)
    assert under_way(harness) == 1
    harness.elapse(16)
    assert under_way(harness) == 0


def test_what_is_let_go_while_workers_are_counted_counts_once(harness: Harness) -> None:
    source, target = harness.worker("a"), harness.worker("b")
    feeds = [harness.feed(f"f{i}") for i in range(3)]
    keys = [harness.run(feed, source) for feed in feeds]
    harness.transfer(feeds[0], source, target)
    with harness.in_a_pass() as p:
        p.candidates()  # takes in what has changed until now
        harness.store.leases.release(source.id, [Release(*keys[0], Reason.MOVED)])
        counted = p._c.execute("SELECT worker_id, feeds FROM feedq_1.counted")
        assert dict(counted) == {source.id: 2, target.id: 1}


def test_a_pass_is_due_when_a_worker_has_settled_since_the_last_one(harness: Harness) -> None:
    harness.worker(ttl_s=999)
    harness.reconcile()
    assert not harness.is_due(settle_s=5.0)
    harness.elapse(6)
    assert harness.is_due(settle_s=5.0)
    harness.reconcile()
    harness.elapse(1)
    assert not harness.is_due(settle_s=5.0)


def test_only_what_runs_on_that_worker_is_moved(harness: Harness) -> None:
    source, target, other = harness.worker("a"), harness.worker("b"), harness.worker("c")
    assigned, elsewhere, stopping = (harness.feed(n) for n in ("assigned", "elsewhere", "stopping"))
    harness.assign(assigned, source)
    harness.run(elsewhere, other)
    harness.run(stopping, source)
    harness.stop(stopping)
    with harness.in_a_pass() as p:
        asked = [Transfer(f.id, source.id, target.id) for f in (assigned, elsewhere, stopping)]
        assert p.transfer([*asked, Transfer(999, source.id, target.id)], stop_within_s=30) == 0
    assert harness.lease(stopping).promised_to is None


def test_movable_feeds_are_those_that_run_and_the_oldest_come_first(harness: Harness) -> None:
    a, b = harness.worker("a"), harness.worker("b")
    feeds = [harness.feed(f"f{i}", weight=i + 1.0) for i in range(5)]
    for feed, worker in ((feeds[2], a), (feeds[0], b), (feeds[1], a), (feeds[3], a)):
        harness.run(feed, worker)
        harness.elapse(1)
    harness.assign(feeds[4], a)
    harness.store.feeds.set_target("f3", TargetState.PAUSED)
    with harness.in_a_pass() as p:
        held = p.movable([a.id, b.id], limit=9)
        assert [(h.feed_id, h.worker_id) for h in held] == [
            (feeds[2].id, a.id),
            (feeds[0].id, b.id),
            (feeds[1].id, a.id),
        ]
        assert [h.weight for h in held] == [3.0, 1.0, 2.0]
        assert [h.feed_id for h in p.movable([a.id, b.id], limit=2)] == [feeds[2].id, feeds[0].id]


@pytest.mark.parametrize("end", ["source dies", "target dies", "released as failed", "removed"])
def test_a_promise_does_not_outlive_what_it_was_given_for(harness: Harness, end: str) -> None:
    source, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    key = harness.run(feed, source)
    harness.transfer(feed, source, target)
    if end == "source dies":
        harness.expire_workers(source)
    elif end == "target dies":
        harness.expire_workers(target)
        harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)])
    elif end == "released as failed":
        harness.store.leases.release(source.id, [Release(*key, Reason.FAILED, retry_in_s=600)])
    else:
        harness.store.feeds.remove(feed.name)
        harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)])
    _, sent = harness.reconcile()
    assert [a.feed_id for a in sent] == ([feed.id] if end.endswith("dies") else [])
    if end != "removed":
        assert harness.lease(feed).promised_to is None


# -- what is no longer waited for --------------------------------------------------------------------


def test_an_owner_that_does_not_let_go_in_time_loses_the_feed(harness: Harness) -> None:
    source, target, feed = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999), harness.feed()
    key = harness.run(feed, source)
    harness.transfer(feed, source, target, stop_within_s=30)
    assert not harness.is_due()
    with harness.in_a_pass() as p:
        assert stock_of(p).reaped == 0
    harness.elapse(31)
    assert harness.is_due()
    with harness.in_a_pass() as p:
        assert stock_of(p).reaped == 1
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.due_at) == (LeaseState.IDLE, Reason.REAPED, None)
    assert lease.promised_to == target.id, "it goes where it was to go"
    assert not harness.is_due()
    assert events_of(harness.store, feed.name)[0].kind == EventKind.LEASE_REAPED
    assert harness.store.leases.report(source.id, [progress(key)]).held == []
    assert harness.store.leases.release(source.id, [Release(*key, Reason.MOVED)]) == []


# -- by hand -----------------------------------------------------------------------------------------


def test_a_running_feed_moved_by_hand_is_asked_for(harness: Harness) -> None:
    source, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    harness.run(feed, source)
    moved(harness, feed.name, target.id)
    lease = harness.lease(feed)
    assert (lease.state, lease.reason, lease.promised_to) == (LeaseState.STOPPING, Reason.MOVED, target.id)
    again = harness.worker("c")
    moved(harness, feed.name, again.id)
    assert harness.lease(feed).promised_to == again.id, "whoever asks last decides"
    told = [e.detail["to"] for e in events_of(harness.store, feed.name) if e.kind == EventKind.FEED_MOVED]
    assert told == ["c", "b"], "people know workers by their names"


@pytest.mark.parametrize("state", ["new", "assigned", "backoff"])
def test_a_feed_that_nobody_runs_goes_there_as_soon_as_it_may(harness: Harness, state: str) -> None:
    source, target, feed = harness.worker("a", ttl_s=999), harness.worker("b", ttl_s=999), harness.feed()
    harness.absorb_edits()
    if state == "assigned":
        stale = harness.assign(feed, source)
    if state == "backoff":
        key = harness.run(feed, source)
        harness.store.leases.release(source.id, [Release(*key, Reason.BACKOFF, retry_in_s=60, attempts=5)])
    moved(harness, feed.name, target.id)
    lease = harness.lease(feed)
    assert (lease.state, lease.promised_to) == (LeaseState.IDLE, target.id)
    if state == "assigned":
        assert harness.store.leases.claim(source.id, [stale]) == []
    if state == "backoff":
        assert harness.reconcile()[1] == [], "a move is no reason to try sooner"
        harness.elapse(61)
    _, sent = harness.reconcile()
    assert [(a.feed_id, a.worker_id) for a in sent] == [(feed.id, target.id)]


def test_a_feed_that_cannot_be_moved_says_why(harness: Harness) -> None:
    worker, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()

    def refusal() -> str:
        with pytest.raises(Conflict) as caught:
            moved(harness, feed.name, target.id)
        return str(caught.value)

    with pytest.raises(NotFound):
        moved(harness, "nobody", target.id)
    key = harness.run(feed, worker)
    moved(harness, feed.name, worker.id)
    assert harness.lease(feed).state is LeaseState.RUNNING, "it is there already, and stays"
    harness.stop(feed)
    assert "is paused" in refusal()
    harness.store.leases.release(worker.id, [Release(*key, Reason.PAUSED)])
    harness.store.feeds.set_target(feed.name, TargetState.RUNNING)
    key = harness.run(feed, worker)
    harness.store.leases.release(worker.id, [Release(*key, Reason.FAILED)])
    assert "has failed" in refusal()
    harness.delete_lease(feed.id)
    assert "has no lease" in refusal()
    assert harness.store.feeds.get(feed.name) is not None


# -- held for a successor ----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.DRAINED, Reason.RELEASED])
def test_what_a_stopped_worker_lets_go_waits_for_its_successor(holding: Harness, reason: Reason) -> None:
    old, other, feed = holding.worker("a", ttl_s=999), holding.worker("b", ttl_s=999), holding.feed()
    key = holding.run(feed, old)
    holding.store.workers.drain(old.id)
    holding.store.leases.release(old.id, [Release(*key, reason)])
    holding.store.workers.leave(old.id)
    lease = holding.lease(feed)
    assert (lease.state, lease.reason, lease.held_for) == (LeaseState.IDLE, Reason.HELD, "a")
    report, sent = holding.reconcile()
    assert (sent, report.unplaced) == ([], {})
    with holding.in_a_pass() as p:
        assert p.moving(within_s=30).held == 1
    successor = holding.worker("a", ttl_s=999)
    _, sent = holding.reconcile(settle_s=60.0)
    assert [(a.feed_id, a.worker_id) for a in sent] == [(feed.id, successor.id)]
    assert holding.lease(feed).held_for is None
    assert other.id != successor.id


def test_after_its_time_what_was_held_goes_to_anybody(holding: Harness) -> None:
    old, other, feed = holding.worker("a", ttl_s=999), holding.worker("b", ttl_s=999), holding.feed()
    key = holding.run(feed, old)
    holding.store.workers.drain(old.id)
    holding.store.leases.release(old.id, [Release(*key, Reason.DRAINED)])
    holding.store.workers.leave(old.id)
    assert not holding.is_due()
    holding.elapse(HOLD_S + 1)
    assert holding.is_due()
    _, sent = holding.reconcile()
    assert [a.worker_id for a in sent] == [other.id]


def test_a_successor_gets_no_more_than_it_has_room_for(holding: Harness) -> None:
    old, other = holding.worker("a"), holding.worker("b")
    feeds = [holding.feed(f"f{i}") for i in range(3)]
    keys = [holding.run(feed, old) for feed in feeds]
    holding.store.workers.drain(old.id)
    holding.store.leases.release(old.id, [Release(*key, Reason.DRAINED) for key in keys])
    successor = holding.worker("a", capacity=2)
    _, sent = holding.reconcile()
    assert sorted(a.worker_id == successor.id for a in sent) == [False, True, True]
    assert {a.worker_id for a in sent} == {successor.id, other.id}


@pytest.mark.parametrize("how", ["crashed", "failed", "paused", "not draining", "promised"])
def test_nothing_else_is_held(holding: Harness, how: str) -> None:
    worker, other, feed = holding.worker("a"), holding.worker("b"), holding.feed()
    key = holding.run(feed, worker)
    if how == "promised":
        holding.transfer(feed, worker, other)
    if how != "not draining":
        holding.store.workers.drain(worker.id)
    if how == "crashed":
        holding.expire_workers(worker)
    else:
        reasons = {"failed": Reason.FAILED, "paused": Reason.PAUSED}
        holding.store.leases.release(worker.id, [Release(*key, reasons.get(how, Reason.DRAINED))])
    lease = holding.lease(feed)
    assert lease.held_for is None
    assert (lease.due_at is not None) == (how == "failed"), "that is looked at again in its own time"
    assert lease.reason is not Reason.HELD


def test_a_held_feed_that_is_paused_or_moved_waits_for_nobody(holding: Harness) -> None:
    old, other = holding.worker("a"), holding.worker("b")
    feeds = [holding.feed(f"f{i}") for i in range(2)]
    keys = [holding.run(feed, old) for feed in feeds]
    holding.store.workers.drain(old.id)
    holding.store.leases.release(old.id, [Release(*key, Reason.DRAINED) for key in keys])
    holding.store.feeds.set_target("f0", TargetState.PAUSED)
    moved(holding, "f1", other.id)
    _, sent = holding.reconcile()
    assert [(a.feed_id, a.worker_id) for a in sent] == [(feeds[1].id, other.id)]
    lease = holding.lease(feeds[0])
    assert (lease.reason, lease.held_for, lease.due_at) == (Reason.PAUSED, None, None)


def test_nobody_calls_a_feed_paused_while_its_owner_has_not_let_go(harness: Harness) -> None:
    """Whoever has it next fences the owner off, and of a feed that is paused there is nobody next."""
    h = harness
    worker, feed = h.worker(ttl_s=9999), h.feed()
    key = h.run(feed, worker)
    h.store.feeds.set_target(feed.name, TargetState.PAUSED)
    h.absorb_edits()
    h.elapse(999)
    with h.in_a_pass() as p:
        assert stock_of(p).reaped == 0
    assert h.store.feeds.view(feed.name).status is Status.STOPPING
    # Wanted again, it has a next owner.
    h.store.feeds.set_target(feed.name, TargetState.RUNNING)
    h.absorb_edits()
    h.elapse(999)
    with h.in_a_pass() as p:
        assert stock_of(p).reaped == 1
    assert h.store.leases.release(worker.id, [Release(*key, Reason.PAUSED)]) == []


def test_a_feed_that_was_to_move_and_is_paused_waits_for_its_owner(harness: Harness) -> None:
    h = harness
    source, target, feed = h.worker("a", ttl_s=9999), h.worker("b", ttl_s=9999), h.feed()
    key = h.run(feed, source)
    h.transfer(feed, source, target, stop_within_s=30)
    h.store.feeds.set_target(feed.name, TargetState.PAUSED)
    h.absorb_edits()
    h.elapse(31)
    with h.in_a_pass() as p:
        assert stock_of(p).reaped == 0
    assert h.store.leases.release(source.id, [Release(*key, Reason.MOVED)]) == [key]
    h.absorb_edits()
    assert h.store.feeds.view(feed.name).status is Status.PAUSED
