"""The lease machine: every transition, every decision, at the edges and at random."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedq.core.lease import (
    LAGS_S,
    REFUSING_S,
    TRUST_MARGIN,
    Edit,
    Move,
    TrustWindow,
    is_gone,
    on_edit,
    stillness,
)
from feedq.core.model import (
    Feed,
    FeedSpec,
    Lease,
    LeaseState,
    Reason,
    Status,
    TargetState,
    Worker,
    WorkerState,
)
from tests.fakes.sink import IDENTITY
from tests.fakes.standing import standing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0
TTL_S = 6.0
OWNER = UUID(int=1)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


# -- the trust window --------------------------------------------------------------------------------

times = st.floats(-1e6, 1e6)
durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))


def test_a_worker_that_never_heard_from_the_database_may_not_act() -> None:
    assert not TrustWindow().holds(-1e308)


@given(times, durations)
def test_trust_is_counted_from_when_the_heartbeat_was_sent(sent_at: float, ttl_s: float) -> None:
    window = TrustWindow.after_heartbeat(sent_at=sent_at, ttl_s=ttl_s)
    assert window.until == pytest.approx(sent_at + ttl_s * 5 / 6)
    assert not window.holds(window.until)
    if window.until > sent_at:
        assert window.holds(sent_at)


@given(
    sent=st.floats(0, 1e6),
    transit_s=st.floats(0, 1e4),
    ttl_s=st.floats(1, DAY_S),
    drift=st.floats(-1, 1),
)
def test_trust_ends_before_the_database_may_declare_the_worker_gone(
    sent: float, transit_s: float, ttl_s: float, drift: float
) -> None:
    """Whatever the transit, and for every drift that the margin covers."""
    rate = 1 - TRUST_MARGIN * abs(drift) * 0.99  # the worker's clock runs slow: it trusts for too long
    trusted_until = sent + TrustWindow.after_heartbeat(sent_at=0.0, ttl_s=ttl_s).until / rate
    gone_from = sent + transit_s + ttl_s
    assert trusted_until <= gone_from + 1e-6 * gone_from


# -- gone --------------------------------------------------------------------------------------------


def worker(
    *, state: WorkerState = WorkerState.ACTIVE, expired_s: float = -1.0, suspected: bool = False
) -> Worker:
    return Worker(
        id=OWNER,
        name="a",
        queue="node.a",
        capacity=1,
        host="h",
        pid=1,
        version="0",
        labels={},
        state=state,
        lock_key=1,
        started_at=NOW - s(DAY_S),
        heartbeat_at=NOW - s(expired_s + TTL_S),
        expires_at=NOW - s(expired_s),
        suspected_at=NOW - s(0.1) if suspected else None,
    )


def served_since(alive_s: float = DAY_S) -> datetime:
    """A database that has been heard from for so long."""
    return NOW - s(alive_s)


def gone(w: Worker, *, has_session: bool = True, since: datetime | None = None, ttl_s: float = TTL_S) -> bool:
    return is_gone(w, has_session=has_session, now=NOW, served_since=since or served_since(), ttl_s=ttl_s)


@pytest.mark.parametrize("state", [WorkerState.ACTIVE, WorkerState.DRAINING])
def test_an_expired_worker_is_gone_and_one_that_renewed_is_not(state: WorkerState) -> None:
    assert gone(worker(state=state, expired_s=0.001))
    assert not gone(worker(state=state, expired_s=0.0)), "at the very end of its ttl"
    assert not gone(worker(state=state, expired_s=-6.0))


@pytest.mark.parametrize(
    ("suspected", "has_session", "is_it"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_a_crash_takes_two_looks_without_a_session(suspected: bool, has_session: bool, is_it: bool) -> None:
    assert gone(worker(suspected=suspected), has_session=has_session) is is_it


@pytest.mark.parametrize("w", [worker(expired_s=5), worker(suspected=True)], ids=["expired", "crashed"])
def test_everybody_gets_one_ttl_after_a_silence(w: Worker) -> None:
    for alive_s in (5.9, 0):
        assert not gone(w, has_session=False, since=served_since(alive_s))
    assert gone(w, has_session=False, since=served_since(6.0))


# -- edits -------------------------------------------------------------------------------------------


def feed(*, generation: int = 1, target: TargetState = TargetState.RUNNING, removed: bool = False) -> Feed:
    spec = FeedSpec(name="acme/orders", connector="tcp", source={}, sink={"table": "t"}, target_state=target)
    removed_at = NOW if removed else None
    return Feed(1, spec, generation, NOW, NOW, IDENTITY, removed_at, stream_generation=generation)


def owned(state: LeaseState) -> UUID | None:
    return None if state is LeaseState.IDLE else OWNER


feeds = st.builds(
    feed, generation=st.integers(1, 3), target=st.sampled_from(TargetState), removed=st.booleans()
)
leases = st.builds(
    lambda state, reason, generation, retry_s: Lease(
        1,
        state=state,
        reason=reason,
        worker_id=owned(state),
        generation=generation,
        # Only an idle lease waits for its time: an assignment clears it.
        due_at=None if retry_s is None or state is not LeaseState.IDLE else NOW + s(retry_s),
    ),
    st.sampled_from(LeaseState),
    st.sampled_from([None, *Reason]),
    st.integers(0, 3),
    st.one_of(st.none(), st.floats(-DAY_S, DAY_S)),
)


def perform(lease: Lease, edit: Edit) -> Lease | None:
    """What the stores do with the decision. None: purged."""
    if edit.move is Move.PURGE:
        return None
    if edit.move is not None:
        after = LeaseState.IDLE if edit.move is Move.WITHDRAW else LeaseState.STOPPING
        return replace(lease, state=after, reason=edit.reason, worker_id=lease.worker_id and owned(after))
    if edit.reason is not None and lease.state is LeaseState.IDLE:
        return replace(lease, reason=edit.reason, due_at=None)
    return lease


@given(feeds, leases)
def test_an_edit_absorbed_twice_is_the_same_as_absorbed_once(f: Feed, lease: Lease) -> None:
    once = perform(lease, on_edit(f, lease))
    assume(once is not None)
    assert once is not None
    again = on_edit(f, once)
    if once.state is LeaseState.IDLE and f.removed_at is not None:
        assert again.move is Move.PURGE, "withdrawn first, deleted when it is looked at again"
    else:
        assert perform(once, again) == once


@given(feeds, leases)
def test_an_edit_only_asks_for_what_can_be_done(f: Feed, lease: Lease) -> None:
    edit = on_edit(f, lease)
    done_to = {
        None: lease.state,
        Move.WITHDRAW: LeaseState.ASSIGNED,
        Move.ASK_TO_STOP: LeaseState.RUNNING,
        Move.PURGE: LeaseState.IDLE,
    }
    assert lease.state is done_to[edit.move], "of one that is purged, somebody may still stream it"
    assert edit.move is not Move.PURGE or f.removed_at is not None


@given(feeds, leases)
def test_what_is_wanted_and_current_is_left_alone(f: Feed, lease: Lease) -> None:
    wanted = f.removed_at is None and f.spec.target_state is not TargetState.PAUSED
    if wanted and lease.state is not LeaseState.IDLE and lease.generation >= f.generation:
        assert on_edit(f, lease) == Edit(None)


@given(st.sampled_from(Reason), st.integers(0, 3), st.integers(1, 3), st.floats(-DAY_S, DAY_S))
def test_after_an_edit_a_feed_that_should_run_is_not_held_back_by_the_past(
    reason: Reason, ran: int, generation: int, retry_s: float
) -> None:
    due_at = NOW + s(retry_s) if reason is Reason.BACKOFF else None
    f, lease = feed(generation=generation), Lease(1, reason=reason, generation=ran, due_at=due_at)
    after = perform(lease, on_edit(f, lease))
    assert after is not None
    assert (after.state, after.due_at) == (LeaseState.IDLE, None)
    assert after.reason is not Reason.FAILED


@pytest.mark.parametrize(
    ("f", "lease", "edit"),
    [
        (feed(generation=2), Lease(1, state=LeaseState.RUNNING, generation=1), "stop edited"),
        (feed(generation=2), Lease(1, state=LeaseState.STOPPING, generation=1), "nothing"),
        (feed(generation=2), Lease(1, state=LeaseState.ASSIGNED, generation=1), "nothing"),
        (feed(target=TargetState.PAUSED), Lease(1, state=LeaseState.RUNNING, generation=1), "stop paused"),
        (feed(target=TargetState.PAUSED), Lease(1, state=LeaseState.ASSIGNED), "withdraw paused"),
        (feed(target=TargetState.PAUSED), Lease(1, reason=Reason.FAILED), "rename paused"),
        (feed(removed=True), Lease(1, state=LeaseState.RUNNING, generation=1), "stop removed"),
        (feed(removed=True), Lease(1, state=LeaseState.ASSIGNED), "withdraw removed"),
        (feed(removed=True), Lease(1, reason=Reason.PAUSED), "purge removed"),
        (feed(removed=True), Lease(1, state=LeaseState.STOPPING), "nothing"),
        (feed(generation=2), Lease(1, reason=Reason.FAILED, generation=1), "rename new"),
        (feed(), Lease(1, reason=Reason.PAUSED), "rename new"),
        (feed(), Lease(1, reason=Reason.BACKOFF), "rename new"),
        (feed(), Lease(1, reason=Reason.NO_CAPACITY), "nothing"),
    ],
)
def test_what_an_edit_asks_for(f: Feed, lease: Lease, edit: str) -> None:
    decision = on_edit(f, lease)
    verbs = {Move.ASK_TO_STOP: "stop", Move.WITHDRAW: "withdraw", Move.PURGE: "purge", None: "rename"}
    said = f"{verbs[decision.move]} {decision.reason}" if decision.reason else "nothing"
    assert said == edit


# -- starting, and what a person sees ----------------------------------------------------------------


def running(**says: Any) -> Lease:
    return Lease(1, state=LeaseState.RUNNING, **says)


REFUSED: dict[str, Any] = {
    "dead_per_s": 2.0,
    "rows_per_s": 1.0,
    "dead_letter_at": NOW,
    "dead_letter_error": "too long",
}


def test_a_feed_refuses_while_most_of_the_last_minute_was_refused() -> None:
    def shown(**says: Any) -> Status:
        return standing(feed(), running(connected=True, **{**REFUSED, **says}), None, now=NOW).status

    assert shown() is Status.REFUSING
    assert shown(rows_per_s=2.0) is Status.STREAMING
    assert shown(dead_letter_at=NOW - s(REFUSING_S) + s(0.001)) is Status.REFUSING
    assert shown(dead_letter_at=NOW - s(REFUSING_S)) is Status.STREAMING
    assert shown(dead_letter_at=None) is Status.STREAMING


def test_a_worker_moves_until_its_timers_are_late_or_two_heartbeats_are_missing() -> None:
    def said(lag_s: float, age_s: float, ttl_s: float = 6.0) -> str | None:
        return stillness(loop_lag_s=lag_s, heartbeat_age=s(age_s), ttl=s(ttl_s))

    assert said(LAGS_S, 4.0) is None
    assert said(LAGS_S + 0.1, 0.4) == "has stood still for 2 s"
    assert said(0.0, 4.001) == "was last heard of 4 s ago"
    assert said(0.0, 4.001, ttl_s=60.0) is None
    # Two clocks of two statements may differ by a moment, and the lag may be of long ago.
    assert said(30.0, -0.001) == "has stood still for 30 s"
    assert said(30.0, 86_400.0) == "has stood still for 86430 s"
