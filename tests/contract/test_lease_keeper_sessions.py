"""The lease keeper with its threads, on PostgreSQL: what becomes of its sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from feedq.control.store.worker_session import Listener, WorkerSession
from feedq.core.clock import SystemClock
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.telemetry.watched_threads import watched_threads
from feedq.worker.lease_keeper import LeaseKeeper
from tests.contract.harness import Harness
from tests.lease_listener import RecordingListener
from tests.waiting import until

SETTINGS = Settings(heartbeat_s=0.2, ttl_s=3600)
LIMIT_S = 10.0


@pytest.fixture
def recording() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def lease_keeper(harness: Harness, recording: RecordingListener) -> Iterator[LeaseKeeper]:
    made = recording.make_keeper(harness.store, SETTINGS, SystemClock())
    made.start()
    recording.lease_client.start()
    yield made
    recording.lease_client.stop(timeout_s=LIMIT_S)
    made.stop(timeout_s=LIMIT_S)


def sessions(harness: Harness) -> set[tuple[object, ...]]:
    """``(role, worker id)`` of each session that a lease keeper holds."""
    # Not all of feedq's: sink sessions, such as those that a test before this one left, are named likewise.
    rows = harness.execute(
        "SELECT split_part(application_name, '/', 1), split_part(application_name, '/', 2) "
        "FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name ~ '^feedq-(keeper|listener)/'"
    )
    return set(rows)


def backends(harness: Harness, role: str, worker_id: UUID) -> set[tuple[object, ...]]:
    sql = "SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = %s"
    return set(harness.execute(sql, f"{role}/{worker_id}"))


def both(worker_id: UUID) -> set[tuple[object, ...]]:
    return {("feedq-keeper", str(worker_id)), ("feedq-listener", str(worker_id))}


def test_after_it_was_declared_gone_the_listener_hears_for_the_new_worker_at_once(
    lease_keeper: LeaseKeeper, harness: Harness
) -> None:
    first = lease_keeper.worker
    assert first is not None
    until(lambda: sessions(harness) == both(first.id), "both sessions are open")
    harness.store.workers.leave(first.id)
    until(lambda: lease_keeper.worker is not first, "registered anew")
    second = lease_keeper.worker
    assert second is not None
    until(lambda: sessions(harness) == both(second.id), "both sessions belong to the new worker")


@pytest.mark.parametrize(("kind", "role"), [(WorkerSession, "feedq-keeper"), (Listener, "feedq-listener")])
def test_an_unexpected_error_ends_a_session_and_not_its_thread(
    lease_keeper: LeaseKeeper,
    recording: RecordingListener,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[WorkerSession] | type[Listener],
    role: str,
) -> None:
    worker = lease_keeper.worker
    assert worker is not None
    until(lambda: sessions(harness) == both(worker.id), "both sessions are open")
    until(lambda: recording.lease_client._listener, "it listens")
    before = backends(harness, role, worker.id)
    real, failures = kind.wait, iter([ZeroDivisionError("for the test")])

    def wait(self: Any, timeout_s: float) -> bool:
        for failure in failures:
            raise failure
        return real(self, timeout_s)

    monkeypatch.setattr(kind, "wait", wait)
    lease_keeper._driver.tell(lease_keeper._core.beat_now, now=time.monotonic())
    recording.lease_client.do(lambda: None)
    until(
        lambda: backends(harness, role, worker.id) - before,
        "a new session was opened in place of the one that failed",
    )
    until(lambda: sessions(harness) == both(worker.id), "both sessions are open again")
    assert {"feedq-keeper", "feedq-lease-client"} <= {thread.name for thread in watched_threads()}
    assert lease_keeper.worker is worker


def test_a_listening_session_that_is_lost_counts_as_lost_until_another_is_there(
    lease_keeper: LeaseKeeper, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = lease_keeper.worker
    assert worker is not None
    both_live = {"keeper", "listener"}
    until(lambda: lease_keeper._core.live_connections == both_live, "both sessions are open")

    def away(_: object) -> None:
        raise Unavailable("control database: away")

    with monkeypatch.context() as failing:
        failing.setattr(harness.store, "worker_listener", away)
        harness.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            f"feedq-listener/{worker.id}",
        )
        until(lambda: lease_keeper._core.live_connections == {"keeper"}, "one of them was lost")
    until(lambda: lease_keeper._core.live_connections == both_live, "it is there again")


def test_a_heartbeat_that_is_asked_for_does_not_wait_for_its_interval(
    harness: Harness, recording: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.worker.lease_keeper.TURN_S", 1_800.0)
    rarely = Settings(heartbeat_s=1_800, ttl_s=3_600)
    lease_keeper = recording.make_keeper(harness.store, rarely, SystemClock())
    lease_keeper.start()
    try:
        harness.execute("UPDATE feedq.fleet SET active_workers = 7 RETURNING 1")
        assert recording.workers != 7
        lease_keeper._driver.tell(lease_keeper._core.beat_now, now=time.monotonic())
        until(lambda: recording.workers == 7, "it heard")
    finally:
        lease_keeper.stop(timeout_s=LIMIT_S)
