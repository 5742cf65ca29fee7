"""The store's contract: the reconcile pass, one transaction and one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from feedq.control.store.passes import SuspectWorker
from feedq.core.lease import Edit, Move
from feedq.core.model import LeaseState, Load, Reason, Release, TargetState, Worker, WorkerState
from feedq.telemetry.logs import EventKind
from tests.asking import events_of, send_heartbeat
from tests.contract.harness import TTL_S, Harness, progress, stock_of
from tests.simulation.durations import Bounds


def suspects(harness: Harness) -> Sequence[SuspectWorker]:
    with harness.in_a_pass() as p:
        return p.suspects


def alive_for_s(harness: Harness, *, ttl_s: float) -> float:
    """Since when the database was heard from, as a pass sees it."""
    with harness.store.fleet.reconcile_pass(ttl_s=ttl_s) as p:
        assert p is not None
        return (p.now - p.served_since).total_seconds()


# -- all or nothing -------------------------------------------------------------------


# -- the gone ----------------------------------------------------------------------------------------


def test_expiry_frees_the_leases_in_the_same_transaction(harness: Harness) -> None:
    worker, other = harness.worker("a"), harness.worker("b")
    stopping, running, assigned, theirs = (harness.feed(n) for n in ("s", "r", "a", "t"))
    harness.run(stopping, worker)
    harness.stop(stopping)
    key = harness.run(running, worker)
    harness.store.leases.report(worker.id, [progress(key, stalled=True, cursor=7)])
    harness.assign(assigned, worker)
    harness.run(theirs, other)
    assert harness.expire_workers(worker) == 3
    for feed in (stopping, running, assigned):
        lease = harness.lease(feed)
        assert (lease.state, lease.worker_id, lease.reason) == (LeaseState.IDLE, None, Reason.WORKER_GONE)
        assert (lease.connected, lease.stalled, lease.due_at) == (False, False, None)
        assert lease.epoch == 1
    assert harness.lease(running).cursor == 7
    assert harness.lease(theirs).state is LeaseState.RUNNING
    assert [v.worker.state for v in harness.store.workers.views(gone=True)] == [
        WorkerState.GONE,
        WorkerState.ACTIVE,
    ]
    assert events_of(harness.store, "r")[0].kind == EventKind.LEASE_FREED
    assert harness.expire_workers(worker) == 0


def _keep_alive(harness: Harness, worker: Worker, *, for_s: float, every_s: float, ttl_s: float) -> None:
    for _ in range(round(for_s / every_s)):
        harness.elapse(every_s)
        assert send_heartbeat(harness.store, worker.id, Load(), ttl_s=ttl_s) is not None


@pytest.mark.parametrize("ttl_s", [0.6, 1.5, 3.0, 6.0, 60.0, 86_400.0])
def test_a_steady_rhythm_of_heartbeats_is_no_break(harness: Harness, ttl_s: float) -> None:
    ttl_s = max(ttl_s, harness.shortest_ttl_s)
    worker = harness.worker(ttl_s=ttl_s)
    _keep_alive(harness, worker, for_s=2 * ttl_s, every_s=ttl_s / 3, ttl_s=ttl_s)
    assert alive_for_s(harness, ttl_s=ttl_s) >= 1.6 * ttl_s


def test_a_silence_of_everybody_begins_the_grace_period_anew(harness: Harness) -> None:
    worker = harness.worker(ttl_s=60)
    _keep_alive(harness, worker, for_s=100, every_s=20, ttl_s=60)
    harness.elapse(31)
    assert send_heartbeat(harness.store, worker.id, Load(), ttl_s=60) is not None
    _keep_alive(harness, worker, for_s=20, every_s=20, ttl_s=60)
    assert alive_for_s(harness, ttl_s=60) == pytest.approx(20, abs=5)


def test_an_outage_of_everybody_buries_nobody(harness: Harness) -> None:
    worker, feed = harness.worker(ttl_s=60), harness.feed()
    key = harness.run(feed, worker)
    harness.elapse(300)
    report, sent = harness.reconcile(ttl_s=60.0)
    assert (report.workers_gone, sent) == (0, [])
    assert harness.lease(feed).epoch == key[1]


# -- edits -------------------------------------------------------------------------------------------


def test_dirty_feeds_come_with_their_leases_by_id_and_limited(harness: Harness) -> None:
    feeds = [harness.feed(f"f{i}") for i in range(4)]
    for feed in feeds:
        harness.store.feeds.set_target(feed.name, TargetState.PAUSED)
    with harness.in_a_pass() as p:
        found = p.take_stock(edits=3).dirty
        assert [(feed.id, lease.feed_id) for feed, lease in found] == [(f.id, f.id) for f in feeds[:3]]
        p.apply_edits([(feed.id, Edit(None)) for feed, _ in found], stop_within_s=30)
        assert [feed.id for feed, _ in p.take_stock(edits=3).dirty] == [feeds[3].id]


def test_what_waits_for_a_place_still_waits_when_it_is_restarted(harness: Harness) -> None:
    feed = harness.feed()
    harness.store.feeds.restart(feed.name)
    with harness.in_a_pass() as p:
        assert [feed.id for feed, _ in stock_of(p).dirty] == [feed.id]
    harness.absorb_edits()
    assert harness.lease(feed).reason is Reason.NEW
    with harness.in_a_pass() as p:
        assert not stock_of(p).dirty
        assert [one.feed_id for one in p.waiting(limit=9)] == [feed.id]


def test_edits_of_each_kind_are_performed(harness: Harness) -> None:
    worker = harness.worker()
    running, assigned, idle, purged, same = (harness.feed(n) for n in ("r", "a", "i", "p", "s"))
    key = harness.run(running, worker)
    harness.assign(assigned, worker)
    with harness.in_a_pass() as p:
        p.apply_edits(
            [
                (running.id, Edit(Move.ASK_TO_STOP, Reason.EDITED)),
                (assigned.id, Edit(Move.WITHDRAW, Reason.PAUSED)),
                (idle.id, Edit(None, Reason.PAUSED)),
                (purged.id, Edit(Move.PURGE, Reason.REMOVED)),
                (same.id, Edit(None)),
            ],
            stop_within_s=30,
        )
    asked, withdrawn = harness.lease(running), harness.lease(assigned)
    assert (asked.state, asked.reason, asked.epoch) == (LeaseState.STOPPING, Reason.EDITED, key[1])
    assert asked.worker_id == worker.id
    assert (withdrawn.state, withdrawn.reason, withdrawn.worker_id) == (LeaseState.IDLE, Reason.PAUSED, None)
    assert harness.lease(idle).reason is Reason.PAUSED
    assert harness.lease(same).reason is Reason.NEW
    assert [v.feed.name for v in harness.store.feeds.views()] == ["a", "i", "r", "s"]


# -- overdue -----------------------------------------------------------------------------------------


def test_an_assignment_never_claimed_goes_out_again_under_a_new_epoch(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    old = harness.assign(feed, worker)
    report, _ = harness.reconcile()
    assert report.overdue == 0
    harness.elapse(11)
    report, sent = harness.reconcile()
    assert report.overdue == 1
    assert [a.key for a in sent] == [(feed.id, old[1] + 1)]
    assert harness.store.leases.claim(worker.id, [old]) == [], "the late message is stale"
    assert len(harness.store.leases.claim(worker.id, [sent[0].key])) == 1
    assert EventKind.LEASE_OVERDUE in [e.kind for e in events_of(harness.store, feed.name)]


# -- placement ---------------------------------------------------------------------------------------


def test_waiting_are_the_idle_that_may_start(harness: Harness) -> None:
    worker = harness.worker()
    names = ("new", "paused", "failed", "backoff", "due", "running", "assigned", "freed", "removed")
    feeds = {name: harness.feed(name, weight=2.0) for name in names}
    keys = {n: harness.run(feeds[n], worker) for n in ("failed", "backoff", "due", "running", "freed")}
    harness.assign(feeds["assigned"], worker)
    harness.store.leases.release(
        worker.id,
        [
            Release(*keys["failed"], Reason.FAILED, retry_in_s=1000),
            Release(*keys["backoff"], Reason.BACKOFF, retry_in_s=1000),
            Release(*keys["due"], Reason.BACKOFF, retry_in_s=5),
            Release(*keys["freed"], Reason.RELEASED),
        ],
    )
    harness.store.feeds.set_target("paused", TargetState.PAUSED)
    harness.store.feeds.remove("removed")
    harness.elapse(10)
    with harness.in_a_pass() as p:
        waiting = {w.feed_id: w for w in p.waiting(limit=100)}
        assert set(waiting) == {feeds[n].id for n in ("new", "due", "freed")}
        assert waiting[feeds["new"].id].reason is Reason.NEW
        assert waiting[feeds["due"].id].reason is Reason.BACKOFF
        assert {w.weight for w in waiting.values()} == {2.0}
        assert [w.feed_id for w in p.waiting(limit=2)] == sorted(waiting)[:2]


def test_candidates_are_the_active_with_what_they_hold(harness: Harness) -> None:
    busy, idle = harness.worker("busy", capacity=5), harness.worker("idle", capacity=9)
    draining, gone = harness.worker("draining"), harness.worker("gone")
    harness.worker("expired", ttl_s=5)
    feeds = [harness.feed(f"f{i}", weight=float(i + 1)) for i in range(3)]
    harness.run(feeds[0], busy)
    harness.stop(feeds[0])
    harness.run(feeds[1], busy)
    harness.assign(feeds[2], busy)
    harness.store.workers.drain(draining.id)
    harness.expire_workers(gone)
    harness.elapse(10)
    with harness.in_a_pass() as p:
        found = {c.worker_id: c for c in p.candidates()}
    assert set(found) == {busy.id, idle.id}
    b, i = found[busy.id], found[idle.id]
    assert (b.feeds, b.load, b.capacity, b.queue) == (3, 6.0, 5, "node.busy")
    assert (i.feeds, i.load, i.capacity, i.queue) == (0, 0.0, 9, "node.idle")


@pytest.mark.parametrize("held_as", ["assigned", "running", "stopping"])
def test_a_feed_that_is_held_cannot_be_assigned(harness: Harness, held_as: str) -> None:
    worker, other, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    if held_as == "assigned":
        harness.assign(feed, worker)
    else:
        harness.run(feed, worker)
    if held_as == "stopping":
        harness.stop(feed)
    before = harness.lease(feed)
    with harness.in_a_pass() as p:
        assert p.assign([(feed.id, other.id)]) == []
    assert harness.lease(feed) == before


def test_nothing_is_assigned_to_a_worker_that_takes_no_more(harness: Harness) -> None:
    draining, gone, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    harness.store.workers.drain(draining.id)
    harness.store.workers.leave(gone.id)
    with harness.in_a_pass() as p:
        assert p.assign([(feed.id, draining.id)]) == []
        assert p.assign([(feed.id, gone.id)]) == []


def test_an_explanation_is_written_to_the_idle_only(harness: Harness) -> None:
    worker = harness.worker()
    idle, running = harness.feed("i"), harness.feed("r")
    harness.run(running, worker)
    with harness.in_a_pass() as p:
        p.explain([(idle.id, Reason.NO_CAPACITY), (running.id, Reason.NO_CAPACITY)])
    assert harness.lease(idle).reason is Reason.NO_CAPACITY
    assert harness.lease(running).reason is None
    with harness.in_a_pass() as p:
        assert [(w.feed_id, w.reason) for w in p.waiting(limit=9)] == [(idle.id, Reason.NO_CAPACITY)]


# -- settings at their ends --------------------------------------------------------------------------

RECKONED = ("ttl_s", "settle_s", "handoff_timeout_s", "moves_per_pass", "connects_per_s")

"""The settings that a pass goes by."""


@pytest.mark.parametrize("end", ["lowest", "largest"])
def test_a_pass_with_everything_at_its_end_at_once_does_its_work(harness: Harness, end: str) -> None:
    settings = {name: getattr(Bounds.of(name), end) for name in RECKONED}
    ttl_s = max(settings["ttl_s"], 60.0)
    old, feed = harness.worker("a", ttl_s=ttl_s), harness.feed()
    harness.elapse(1)
    report, sent = harness.reconcile(**settings, reconcile_interval_s=0.0)
    if settings["settle_s"]:
        assert report.unplaced == {Reason.SETTLING: 1}
        harness.elapse(settings["settle_s"] - 30)
        assert send_heartbeat(harness.store, old.id, Load(), ttl_s=ttl_s) is not None
        harness.elapse(60)
        _, sent = harness.reconcile(**settings)
    (assignment,) = sent
    assert len(harness.store.leases.claim(old.id, [assignment.key])) == 1
    new = harness.worker("b", ttl_s=ttl_s)
    within_s = settings["handoff_timeout_s"]
    assert harness.transfer(feed, old, new, stop_within_s=within_s) == 1
    report, _ = harness.reconcile(**settings)
    assert report.reaped == (within_s == 0)
    assert harness.lease(feed).state is (LeaseState.STOPPING if within_s else LeaseState.ASSIGNED)


def test_feeds_without_a_place_take_turns_and_keep_no_others_from_theirs(harness: Harness) -> None:
    stuck = [harness.feed(f"stuck{i}") for i in range(5)]
    harness.reconcile()
    assert {harness.lease(feed).reason for feed in stuck} == {Reason.NO_CAPACITY}
    fresh = harness.feed("fresh")
    harness.absorb_edits()

    def page() -> list[int]:
        with harness.in_a_pass() as p:
            return [w.feed_id for w in p.waiting(limit=3)]

    ids = [feed.id for feed in stuck]
    assert page() == [ids[0], ids[1], fresh.id]
    assert page() == [ids[2], ids[3], fresh.id]
    assert page() == [ids[0], ids[4], fresh.id]


def test_a_measured_feed_weighs_what_it_lands_beside_the_others(harness: Harness) -> None:
    worker = harness.worker(ttl_s=9_999)
    busy, quiet, unheard = (harness.feed(n, weight=2.0) for n in ("busy", "quiet", "unheard"))
    keys = [harness.run(feed, worker) for feed in (busy, quiet)]
    harness.run(unheard, worker)
    rows = [progress(key, rows_per_s=n, bytes_per_s=n) for key, n in zip(keys, (50.0, 10.0), strict=True)]
    harness.store.leases.report(worker.id, rows)
    load = Load(rows_per_s=60.0, bytes_per_s=60.0)
    send_heartbeat(harness.store, worker.id, load, ttl_s=TTL_S)
    harness.candidate(worker)  # the mean is over what workers are known to hold
    with harness.in_a_pass(measured_load=0.5) as p:
        weights = {h.feed_id: h.weight for h in p.movable([worker.id], limit=9)}
        p.sweep()
    # The mean feed lands 20 rows a second; these land 50 and 10, and of one nothing is known.
    assert weights == {
        busy.id: pytest.approx(0.5 * 2 + 0.5 * 2.5, abs=0.1),
        quiet.id: pytest.approx(0.5 * 2 + 0.5 * 0.5, abs=0.1),
        unheard.id: 2.0,
    }
    harness.reconcile(measured_load=0.5, sweep=True)
    assert harness.candidate(worker).load == pytest.approx(sum(weights.values()), abs=0.3)
    harness.reconcile(measured_load=0.0, sweep=True)
    assert harness.candidate(worker).load == pytest.approx(6.0), "declared weights count again"


def test_running_feeds_are_counted_by_tenant_over_all_workers(harness: Harness) -> None:
    workers = [harness.worker(), harness.worker()]
    for number, tenant in enumerate(("acme", "acme", "beta", "")):
        feed = harness.feed(f"feed-{number}", tenant=tenant)
        worker = workers[number % 2]
        harness.store.leases.claim(worker.id, [harness.assign(feed, worker)])
    leases, asked = harness.store.leases, ["acme", "beta", "nobody"]
    key = harness.assign(harness.feed("assigned", tenant="acme"), workers[0])
    assert leases.running_of(asked) == {"acme": 2, "beta": 1, "nobody": 0}
    assert leases.running_of([]) == {}
    leases.claim(workers[0].id, [key])
    assert leases.running_of(["acme"]) == {"acme": 3}
    leases.release(workers[0].id, [Release(*key, Reason.RELEASED)])
    assert leases.running_of(["acme"]) == {"acme": 2}


# -- the sweep, and what people change by hand -------------------------------------------------------


def test_a_sweep_is_due_once_an_interval(harness: Harness) -> None:
    def is_due(interval_s: float) -> bool:
        with harness.in_a_pass() as p:
            return p.sweep_is_due(interval_s=interval_s)

    assert not is_due(60)
    assert is_due(0)
    harness.elapse(61)
    assert not is_due(86_400)
    assert is_due(60)
    harness.reconcile(sweep=True)
    assert not is_due(60)


def test_a_deleted_lease_row_is_made_anew(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    assert harness.wakes(lambda: harness.delete_lease(feed.id))
    assert harness.store.feeds.view(feed.name).lease.state is LeaseState.IDLE
    assert [a.feed_id for a in harness.reconcile()[1]] == [feed.id]


def test_what_the_protocol_leaves_behind_is_not_looked_at_again(harness: Harness) -> None:
    worker = harness.worker()
    names = ("new", "paused", "failed", "backoff", "running", "assigned", "stopping")
    feeds = {name: harness.feed(name) for name in names}
    keys = {n: harness.run(feeds[n], worker) for n in ("failed", "backoff", "running", "stopping")}
    harness.store.leases.release(
        worker.id,
        [
            Release(*keys["failed"], Reason.FAILED),
            Release(*keys["backoff"], Reason.BACKOFF, retry_in_s=1000, attempts=3),
        ],
    )
    harness.stop(feeds["stopping"])
    harness.store.feeds.set_target("paused", TargetState.PAUSED)
    harness.assign(feeds["assigned"], worker)
    assert harness.dirty_feeds() == 0
    harness.store.leases.release(worker.id, [Release(*keys["stopping"], Reason.PAUSED)])
    harness.expire_workers(worker)
    assert harness.dirty_feeds() == 0


def test_history_is_trimmed_after_its_retention(harness: Harness) -> None:
    feed = harness.feed()
    harness.elapse(timedelta(days=20).total_seconds())
    harness.store.feeds.restart(feed.name)
    harness.reconcile(sweep=True)
    assert [e.kind for e in events_of(harness.store, feed.name)] == [EventKind.FEED_RESTARTED]


@pytest.mark.parametrize("reason", [None, "paused", "failed"])
def test_a_lease_that_was_set_idle_by_hand_is_placed_again(harness: Harness, reason: str | None) -> None:
    harness.worker("w1")
    feed = harness.feed()
    harness.reconcile()
    by_hand = "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, due_at = NULL, reason = %s"
    assert harness.wakes(lambda: harness.execute(by_hand, reason))
    sent = harness.reconcile()[1] + harness.reconcile()[1]
    assert [one.epoch for one in sent] == [2]
    assert (harness.lease(feed).state, harness.lease(feed).reason) == (LeaseState.ASSIGNED, None)


def test_a_failed_feed_that_is_to_be_tried_later_is_left_alone(harness: Harness) -> None:
    feed = harness.feed()
    harness.run(feed, harness.worker())
    harness.execute(
        "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'failed', "
        "due_at = clock_timestamp() + interval '9 min'"
    )
    assert harness.reconcile(sweep=True)[1] == []
    assert harness.lease(feed).reason is Reason.FAILED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('source = \'{"url": "tcp://127.0.0.1:7002"}\'', Reason.EDITED),
        ("target_state = 'paused'", Reason.PAUSED),
        ("removed_at = clock_timestamp()", Reason.REMOVED),
    ],
)
def test_a_feed_that_was_changed_by_hand_is_followed(harness: Harness, change: str, reason: Reason) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    assert harness.wakes(lambda: harness.execute(f"UPDATE feedq.feed SET {change}"))
    harness.reconcile()
    (stop,) = harness.store.leases.stop_requests(worker.id)
    assert stop.reason is reason


def test_a_weight_that_was_changed_by_hand_is_another_version_and_no_restart(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    harness.run(feed, worker)
    harness.execute("UPDATE feedq.feed SET weight = 3")
    harness.reconcile()
    edited = harness.store.feeds.view(feed.name).feed
    assert (edited.generation, edited.stream_generation) == (feed.generation + 1, feed.generation)
    assert harness.store.leases.stop_requests(worker.id) == []
