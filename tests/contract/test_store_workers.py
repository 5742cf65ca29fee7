"""The store's contract: worker sessions, heartbeats, the crash signal."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from feedq.core.limits import DISPATCH_TIMEOUT_S
from feedq.core.model import LeaseState, Load, Reason, Release, WorkerState, WorkerTarget
from tests.asking import send_heartbeat
from tests.contract.harness import STOP_WITHIN_S, TTL_S, Harness, stock_of


def test_a_worker_without_places_for_feeds_is_no_part_of_what_they_are_spread_over(harness: Harness) -> None:
    taker, idle = harness.worker("a", capacity=7), harness.worker("b", capacity=0)
    with harness.in_a_pass() as p:
        assert [candidate.worker_id for candidate in p.candidates()] == [taker.id]
    beat = send_heartbeat(harness.store, idle.id, Load(), ttl_s=TTL_S)
    assert beat is not None
    assert beat.active_workers == 1


def test_two_sessions_of_one_name_are_two_workers_with_locks_of_their_own(harness: Harness) -> None:
    first, second = harness.worker("a"), harness.worker("a")
    assert first.lock_key != second.lock_key
    assert [v.worker.id for v in harness.store.workers.views()] == [first.id, second.id]


def test_a_heartbeat_says_what_others_know_of_the_sinks_that_are_away(harness: Harness) -> None:
    a, b, jobs_only = harness.worker("a"), harness.worker("b"), harness.worker("c", capacity=0)
    beat = partial(send_heartbeat, harness.store, ttl_s=TTL_S)
    beat(jobs_only.id, Load(sinks_up=("lake",)))
    beat(b.id, Load(sinks_up=("default",), sinks_down=("lake",)))
    answer = beat(a.id, Load(sinks_up=("ours",), sinks_down=("default", "lake", "new")))
    assert answer is not None
    assert (answer.sinks_up_elsewhere, answer.sinks_untried_elsewhere) == (("default",), ("new",))
    (view, *_) = harness.store.workers.views()
    assert (view.worker.load.sinks_up, view.worker.load.sinks_down) == (("ours",), ("default", "lake", "new"))
    harness.expire_workers(b)
    answer = beat(a.id, Load(sinks_down=("default",)))
    assert answer is not None
    assert (answer.sinks_up_elsewhere, answer.sinks_untried_elsewhere) == ((), ())


def test_a_heartbeat_renews_and_carries_the_load(harness: Harness) -> None:
    worker = harness.worker()
    harness.elapse(40)
    load = Load(feeds=3, cpu=0.5, rss=1000, loop_lag_s=0.25, rows_per_s=7.5, bytes_per_s=99.0)
    beat = send_heartbeat(harness.store, worker.id, load, ttl_s=TTL_S)
    assert beat is not None
    assert (beat.state, beat.stops_pending) == (WorkerState.ACTIVE, False)
    (view,) = harness.store.workers.views()
    assert view.worker.load == load
    assert view.heartbeat_age_s == pytest.approx(0, abs=5)
    left = view.worker.expires_at - view.worker.heartbeat_at
    assert abs(left - timedelta(seconds=TTL_S)) < timedelta(seconds=0.1)


def test_a_heartbeat_tells_claims_from_stops_and_of_both(harness: Harness) -> None:
    worker, first, second = harness.worker(), harness.feed("first"), harness.feed("second")

    def pending() -> tuple[bool, bool]:
        answer = send_heartbeat(harness.store, worker.id, Load(), ttl_s=TTL_S)
        assert answer is not None
        return answer.claims_pending, answer.stops_pending

    harness.run(first, worker)
    assert pending() == (False, False)
    harness.assign(second, worker)
    assert pending() == (True, False)
    harness.stop(first)
    assert pending() == (True, True)


def test_a_heartbeat_says_how_long_ago_a_pass_finished(harness: Harness) -> None:
    worker = harness.worker()
    beat = send_heartbeat(harness.store, worker.id, Load(), ttl_s=TTL_S)
    assert beat is not None
    assert beat.pass_age_s is None
    harness.absorb_edits()
    harness.elapse(30)
    beat = send_heartbeat(harness.store, worker.id, Load(), ttl_s=TTL_S)
    assert beat is not None
    assert beat.pass_age_s == pytest.approx(30, abs=5)


def test_a_worker_that_drains_itself_keeps_what_runs_and_gives_back_what_it_never_claimed(
    harness: Harness,
) -> None:
    worker = harness.worker()
    running, assigned = harness.feed("running"), harness.feed("assigned")
    harness.run(running, worker)
    stale = harness.assign(assigned, worker)
    assert harness.store.workers.drain(worker.id)
    assert harness.lease(running).state is LeaseState.RUNNING
    assert harness.lease(assigned).state is LeaseState.IDLE
    assert harness.lease(assigned).reason is Reason.DRAINED
    assert harness.store.leases.claim(worker.id, [stale]) == []


@pytest.mark.parametrize("target", [WorkerTarget.CORDONED, WorkerTarget.DRAINED])
def test_a_worker_that_is_not_to_serve_keeps_what_runs_and_is_no_candidate(
    harness: Harness, target: WorkerTarget
) -> None:
    worker = harness.worker()
    running, assigned = harness.feed("running"), harness.feed("assigned")
    harness.run(running, worker)
    stale = harness.assign(assigned, worker)
    assert harness.store.workers.set_target(worker.id, target)
    assert harness.lease(running).state is LeaseState.RUNNING
    assert harness.lease(assigned).state is LeaseState.IDLE
    assert harness.store.leases.claim(worker.id, [stale]) == []
    (view,) = harness.store.workers.views()
    assert (view.worker.target_state, view.worker.state) == (target, WorkerState.ACTIVE)
    with harness.in_a_pass() as p:
        assert p.candidates() == []
        assert p.assign([(assigned.id, worker.id)]) == []
        assert p.moving(within_s=30).leaving == ({worker.id: 1} if target is WorkerTarget.DRAINED else {})


def test_a_heartbeat_says_how_many_workers_the_last_pass_counted(harness: Harness) -> None:
    worker = harness.worker("a")
    harness.worker("b")
    draining = harness.worker("c")
    harness.store.workers.drain(draining.id)

    def counted() -> int:
        beat = send_heartbeat(harness.store, worker.id, Load(), ttl_s=TTL_S)
        assert beat is not None
        return beat.active_workers

    assert counted() == 1, "as long as none has run"
    harness.absorb_edits()
    assert counted() == 2


def test_leaving_frees_whatever_is_left(harness: Harness) -> None:
    worker, other = harness.worker("a"), harness.worker("b")
    feeds = [harness.feed(name) for name in ("assigned", "running", "stopping")]
    harness.run(feeds[2], worker)
    harness.stop(feeds[2])
    harness.run(feeds[1], worker)
    harness.assign(feeds[0], worker)
    theirs = harness.feed("theirs")
    harness.run(theirs, other)
    harness.store.workers.leave(worker.id)
    for feed in feeds:
        lease = harness.lease(feed)
        assert (lease.state, lease.worker_id, lease.reason) == (LeaseState.IDLE, None, Reason.RELEASED)
    assert harness.lease(theirs).state is LeaseState.RUNNING
    assert [v.worker.name for v in harness.store.workers.views()] == ["b"]


def test_the_gone_among_some_are_the_ended_and_the_unknown(harness: Harness) -> None:
    active, draining, left, expired = (harness.worker(name) for name in "abcd")
    harness.store.workers.drain(draining.id)
    harness.store.workers.leave(left.id)
    harness.expire_workers(expired)
    unknown = uuid4()
    asked = [active.id, draining.id, left.id, expired.id, unknown]
    assert harness.store.workers.gone_among(asked) == {left.id, expired.id, unknown}
    assert harness.store.workers.gone_among([]) == set()


# -- the crash signal --------------------------------------------------------------------------------


def test_a_worker_without_a_session_is_crashed_at_the_second_look(harness: Harness) -> None:
    worker, other = harness.worker("a"), harness.worker("b")
    harness.store.session(worker, ttl_s=TTL_S)
    kept = harness.store.session(other, ttl_s=TTL_S)
    harness.break_sessions(worker)
    assert harness.check_liveness() == 0
    assert harness.check_liveness() == 1
    with harness.in_a_pass() as p:
        (suspect,) = p.suspects
        assert (suspect.worker.id, suspect.has_session) == (worker.id, False)
        assert suspect.worker.suspected_at is not None
    kept.close()


def test_one_broken_connection_of_two_is_no_crash(harness: Harness) -> None:
    worker = harness.worker()
    session = harness.store.session(worker, ttl_s=TTL_S)
    listener = harness.store.worker_listener(worker)
    session.close()
    assert harness.check_liveness() == 0
    assert harness.check_liveness() == 0
    listener.close()


def test_a_heartbeat_between_two_looks_clears_the_suspicion(harness: Harness) -> None:
    worker = harness.worker()
    harness.store.session(worker, ttl_s=TTL_S).close()
    harness.await_unlocked(worker)
    assert harness.check_liveness() == 0
    again = harness.store.session(worker, ttl_s=TTL_S)
    assert again.heartbeat(Load()) is not None
    again.close()
    harness.await_unlocked(worker)
    assert harness.check_liveness() == 0, "the first look of a new suspicion"


def test_a_worker_that_has_not_opened_its_first_session_yet_is_no_crash(harness: Harness) -> None:
    harness.worker()
    assert harness.check_liveness() == 0
    assert harness.check_liveness() == 0


def test_a_suspected_worker_is_given_no_feeds(harness: Harness) -> None:
    worker = harness.worker()
    harness.store.session(worker, ttl_s=TTL_S).close()
    harness.await_unlocked(worker)
    harness.check_liveness()
    with harness.in_a_pass() as p:
        assert p.candidates() == []


def test_a_session_carries_the_heartbeat_until_the_worker_is_gone(harness: Harness) -> None:
    worker = harness.worker()
    session = harness.store.session(worker, ttl_s=TTL_S)
    beat = session.heartbeat(Load(feeds=1))
    assert beat is not None
    assert harness.store.workers.views()[0].worker.load.feeds == 1
    harness.expire_workers(worker)
    assert session.heartbeat(Load()) is None
    session.close()


def test_a_listener_is_rung_for_assignments_and_stop_requests_of_its_worker_only(harness: Harness) -> None:
    worker, other = harness.worker("a"), harness.worker("b")
    mine, theirs = harness.store.worker_listener(worker), harness.store.worker_listener(other)
    assert not mine.wait(0)
    feed = harness.feed()
    harness.run(feed, worker)
    assert mine.wait(30)
    assert not mine.wait(0)
    harness.stop(feed)
    assert mine.wait(30)
    assert not theirs.wait(0)
    mine.close()
    theirs.close()


# -- a clock that is put back ------------------------------------------------------------------------

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
