"""The lease keeper with its core, beaten by hand: no thread, and a clock that moves when told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from feedq.core.model import Load
from feedq.settings import Settings
from feedq.worker.lease_keeper import LeaseKeeper
from tests.fakes import ManualClock
from tests.fakes.control import ControlDatabase, SteppedStore
from tests.lease_listener import RecordingListener

SETTINGS = Settings(heartbeat_s=2, ttl_s=6, reconcile_interval_s=5)


@pytest.fixture
def store(control: ControlDatabase) -> SteppedStore:
    return control.fresh_store()


@pytest.fixture
def clock(store: SteppedStore) -> ManualClock:
    return store.clock


@pytest.fixture
def recording() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def lease_keeper(store: SteppedStore, recording: RecordingListener, clock: ManualClock) -> LeaseKeeper:
    return make_lease_keeper(store, recording, clock)


def make_lease_keeper(store: SteppedStore, recording: RecordingListener, clock: ManualClock) -> LeaseKeeper:
    return recording.make_keeper(store, SETTINGS, clock)


def test_it_tells_how_many_workers_share_the_rates_of_the_fleet(
    lease_keeper: LeaseKeeper,
    store: SteppedStore,
    recording: RecordingListener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease_keeper.beat()
    session = lease_keeper._connect()
    answer = session.heartbeat(Load())
    assert answer is not None
    monkeypatch.setattr(session, "heartbeat", lambda _: replace(answer, active_workers=7))
    lease_keeper.beat()
    assert recording.workers == 7


def test_a_slow_heartbeat_does_not_stretch_the_lease(
    lease_keeper: LeaseKeeper, store: SteppedStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_keeper.beat()
    session = lease_keeper._connect()
    answer: Callable[[Load], object] = session.heartbeat

    def slow(load: Load) -> object:
        # The database stamps the heartbeat as it arrives; the answer takes four seconds to come back.
        given = answer(load)
        clock.advance(4)
        return given

    monkeypatch.setattr(session, "heartbeat", slow)
    lease_keeper.beat()
    clock.advance(1.01)
    assert not lease_keeper.trusted, "trusted beyond sent_at + ttl - margin"


@pytest.mark.parametrize("back_s", [0.0, 3600.0])
def test_the_watchdog_calls_when_no_pass_has_finished_for_three_intervals_even_if_the_last_lies_ahead(
    lease_keeper: LeaseKeeper,
    recording: RecordingListener,
    store: SteppedStore,
    clock: ManualClock,
    back_s: float,
) -> None:
    lease_keeper.beat()
    with store.fleet.reconcile_pass():
        pass
    clock.put_back(back_s)
    for _ in range(7):
        clock.advance(2)
        lease_keeper.beat()
    assert back_s or "reconcile overdue" not in recording.heard
    for _ in range(3):
        clock.advance(2)
        lease_keeper.beat()
    assert recording.heard.count("reconcile overdue") == 1


def test_it_renews_nothing_and_cuts_the_sockets_while_the_event_loop_stands_still(
    lease_keeper: LeaseKeeper, store: SteppedStore, recording: RecordingListener, clock: ManualClock
) -> None:
    lease_keeper.beat()
    (before,) = store.workers.views()
    recording.stalled = SETTINGS.stall_s - 0.1
    lease_keeper.watch()
    assert recording.heard[-1] != "suspend"
    recording.stalled = SETTINGS.stall_s
    lease_keeper.watch()
    assert recording.heard[-1] == "suspend"
    clock.advance(1.0)
    assert not lease_keeper.beat()
    (view,) = store.workers.views()
    assert view.worker.expires_at == before.worker.expires_at
    recording.stalled = 0.0
    lease_keeper.watch()
    assert lease_keeper.beat()
    assert recording.heard[-1] == "resume"
    (view,) = store.workers.views()
    assert view.worker.expires_at > before.worker.expires_at
