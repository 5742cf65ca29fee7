"""The store's contract: durations at their ends, where the database reckons with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import LeaseState, Load, Reason, Release
from feedq.telemetry.logs import EventKind
from tests.contract.harness import Harness, MemoryHarness, PostgresHarness
from tests.fakes import ManualClock, MemoryStore
from tests.simulation.durations import DAY_S, Bounds, durations

RECKONED = (
    "ttl_s",
    "settle_s",
    "handoff_timeout_s",
    "moves_per_pass",
    "connects_per_s",
)
"""What a pass goes by."""

Made = Callable[..., Harness]


@pytest.fixture(params=["memory", pytest.param("postgresql", marks=pytest.mark.servers)])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    """Stores of processes that were started with these settings."""
    harnesses: list[Harness] = []

    def make(*, retention_days: int = 14, restart_hold_s: float = 0.0) -> Harness:
        harness: MemoryHarness | PostgresHarness
        if request.param == "memory":
            harness = MemoryHarness()
            harness.memory = harness.store = MemoryStore(
                ManualClock(), retention_days=retention_days, restart_hold_s=restart_hold_s
            )
        else:
            harness = PostgresHarness(request.getfixturevalue("control_database_url"))
            harness.store.close()
            harness.store = PostgresStore(
                harness.url, retention_days=retention_days, restart_hold_s=restart_hold_s
            )
        harnesses.append(harness)
        return harness

    yield make
    for harness in harnesses:
        harness.close()


def suspects(harness: Harness) -> int:
    with harness.in_a_pass() as p:
        return len(p.suspects())


def test_a_worker_is_heard_from_for_a_day_and_not_for_longer(harness: Harness) -> None:
    worker = harness.worker(ttl_s=DAY_S)
    harness.elapse(DAY_S - 60)
    assert suspects(harness) == 0
    assert harness.store.workers.heartbeat(worker.id, Load(), ttl_s=DAY_S) is not None
    harness.elapse(DAY_S - 60)
    assert suspects(harness) == 0
    harness.elapse(120)
    assert suspects(harness) == 1


def test_a_worker_with_the_shortest_ttl_is_suspected_as_soon(harness: Harness) -> None:
    ttl_s = Bounds.of("ttl_s").lowest
    worker = harness.worker(ttl_s=ttl_s)
    assert harness.store.workers.heartbeat(worker.id, Load(), ttl_s=ttl_s) is not None
    harness.elapse(2 * ttl_s)
    assert suspects(harness) == 1


def test_a_worker_has_settled_at_once_or_after_a_day(harness: Harness) -> None:
    harness.reconcile()
    harness.elapse(60)
    harness.worker(ttl_s=2 * DAY_S)
    assert harness.is_due(settle_s=0.0)
    assert not harness.is_due(settle_s=DAY_S)
    harness.elapse(DAY_S)
    assert harness.is_due(settle_s=DAY_S)


@pytest.mark.parametrize(("hold_s", "reason"), [(0.0, Reason.RELEASED), (DAY_S, Reason.HELD)])
def test_what_a_stopped_worker_lets_go_of_is_held_so_long(made: Made, hold_s: float, reason: Reason) -> None:
    harness = made(restart_hold_s=hold_s)
    stopped, other = (harness.worker(name, ttl_s=2 * DAY_S) for name in "ab")
    feed = harness.feed()
    key = harness.run(feed, stopped)
    harness.store.workers.drain(stopped.id)
    harness.store.leases.release(stopped.id, [Release(*key, Reason.RELEASED)])
    assert harness.lease(feed).reason is reason
    if hold_s:
        harness.elapse(hold_s - 60)
        assert harness.reconcile()[1] == []
        harness.elapse(120)
    assert [a.worker_id for a in harness.reconcile()[1]] == [other.id]


def test_a_delay_of_a_day_is_over_after_a_day(harness: Harness) -> None:
    worker, feed = harness.worker(ttl_s=2 * DAY_S), harness.feed()
    key = harness.run(feed, worker)
    harness.store.leases.release(worker.id, [Release(*key, Reason.BACKOFF, retry_in_s=DAY_S, attempts=5)])
    harness.elapse(DAY_S - 60)
    assert not harness.is_due(settle_s=9 * DAY_S)
    harness.elapse(120)
    assert harness.is_due(settle_s=9 * DAY_S)


@pytest.mark.parametrize(("within_s", "under_way"), [(0.0, 0), (DAY_S, 1)])
def test_a_move_is_under_way_for_so_long(harness: Harness, within_s: float, under_way: int) -> None:
    source, target, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    harness.run(feed, source)
    harness.transfer(feed, source, target, stop_within_s=within_s)
    with harness.in_a_pass() as p:
        assert sum(p.moves_under_way(within_s=within_s).values()) == under_way


@pytest.mark.parametrize("end", ["lowest", "largest"])
def test_history_is_kept_for_so_many_days(made: Made, end: str) -> None:
    days = getattr(Bounds.of("event_retention_days"), end)
    harness = made(retention_days=days)
    feed = harness.feed()
    harness.run(feed, harness.worker())
    harness.elapse((days - 1) * DAY_S if days else 1)
    harness.reconcile(sweep=True)
    kinds = {event.kind for event in harness.store.feeds.events(feed.name)}
    assert (EventKind.LEASE_CLAIMED in kinds) is (days > 0)


@pytest.mark.parametrize("end", ["lowest", "largest"])
def test_a_pass_with_everything_at_its_end_at_once_does_its_work(harness: Harness, end: str) -> None:
    assert durations().issuperset(RECKONED)
    settings = {name: getattr(Bounds.of(name), end) for name in RECKONED}
    ttl_s = max(settings["ttl_s"], 60.0)
    old, feed = harness.worker("a", ttl_s=ttl_s), harness.feed()
    harness.elapse(1)
    report, sent = harness.reconcile(**settings, reconcile_interval_s=0.0)
    if settings["settle_s"]:
        assert report.unplaced == {Reason.SETTLING: 1}
        harness.elapse(settings["settle_s"] - 30)
        assert harness.store.workers.heartbeat(old.id, Load(), ttl_s=ttl_s) is not None
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
