"""How jobs get into a worker and out: the lease keeper's news, signals, and what a worker takes."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

import pytest

from feedq.celery import bootsteps
from feedq.celery.bootsteps import Places
from feedq.settings import Settings
from feedq.worker.lease_keeper import LeaseKeeper
from tests.fakes import ManualClock, MemoryStore
from tests.lease_listener import RecordingListener

# -- the lease keeper --------------------------------------------------------------------------------------


class RecordingSession:
    """Writes down what it is told, and under which session."""

    def __init__(self) -> None:
        self.lease_keeper: LeaseKeeper | None = None
        self.heard: list[object] = []

    def gone(self) -> None:
        assert self.lease_keeper is not None
        assert self.lease_keeper.worker is not None
        self.heard.append(self.lease_keeper.worker.id)

    def notified(self, reasons: Collection[str]) -> None:
        self.heard.append(list(reasons))


def test_the_keeper_tells_of_the_end_of_its_session_and_of_each_notification() -> None:
    clock = ManualClock()
    store, recording, session_observer = MemoryStore(clock), RecordingListener(), RecordingSession()
    settings = Settings(heartbeat_s=2, ttl_s=6)
    lease_keeper = recording.make_keeper(store, settings, clock)
    lease_keeper.session_observer, session_observer.lease_keeper = session_observer, lease_keeper
    lease_keeper.beat()
    assert lease_keeper.worker is not None
    ended = lease_keeper.worker.id
    store.workers.leave(ended)
    lease_keeper.beat()
    assert session_observer.heard == [ended], "while the old session is still in place"
    lease_keeper.beat()
    assert lease_keeper.worker.id != ended
    lease_keeper._heard(["feeds", "jobs"])
    assert session_observer.heard == [ended, ["feeds", "jobs"]]
    assert "orders" in recording.heard


@pytest.mark.parametrize(
    ("payloads", "orders"),
    [
        (["feeds"], 1),
        (["jobs"], 0),
        (["runs"], 0),
        (["feeds", "jobs"], 1),
        (["of a later release"], 1),
        ([], 0),
    ],
)
def test_orders_are_fetched_for_notifications_about_feeds(payloads: list[str], orders: int) -> None:
    clock = ManualClock()
    recording = RecordingListener()
    lease_keeper = recording.make_keeper(MemoryStore(clock), Settings(), clock)
    lease_keeper.beat()
    recording.heard.clear()
    lease_keeper._heard(payloads)
    assert recording.heard.count("orders") == orders


# -- signals -----------------------------------------------------------------------------------------


def hurried(made: list[str]) -> bootsteps.Shutdown:
    shutdown = bootsteps.Shutdown()
    shutdown.on_insisted.append(lambda: made.append("hurry"))
    return shutdown


def test_the_same_signal_by_two_ways_is_one_and_a_later_one_insists() -> None:
    made: list[str] = []
    shutdown = hurried(made)
    shutdown.begin(exitcode=0, how=None, now=99.0)
    shutdown.begin(exitcode=0, how="Warm", now=100.0)
    shutdown.begin(exitcode=0, how=None, now=100.0)
    shutdown.begin(exitcode=0, how="Warm", now=100.5)
    assert made == []
    shutdown.begin(exitcode=0, how="Warm", now=101.1)
    assert made == ["hurry"]


def test_a_cold_shutdown_waits_for_no_job() -> None:
    made: list[str] = []
    hurried(made).begin(exitcode=1, how="Cold", now=0.0)
    assert made == ["hurry"]


# -- what a worker takes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "concurrency", "places"),
    [
        (("feedq", "feedq.control"), 500, Places(500, 4)),
        (("jobs",), 20, Places(0, 20)),
        (("jobs", "feedq"), 20, Places(20, 4)),
    ],
)
def test_what_a_worker_takes_goes_by_its_queues_and_its_concurrency(
    queues: tuple[str, ...], concurrency: int, places: Places
) -> None:
    consumes = dict.fromkeys((*queues, bootsteps.node_queue("w1@h")))
    app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=consumes)))
    worker = SimpleNamespace(hostname="w1@h", app=app, concurrency=concurrency)
    assert Places.of(worker, Settings()) == places
    described = bootsteps._describe("w1@h", places, Settings(), tasks={"acme.report"})
    assert (described.capacity, described.job_slots) == (places.capacity, places.job_slots)
    assert described.tasks == {"acme.report"}


def test_a_module_that_is_not_there_ends_the_process_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootsteps, "settings", lambda: Settings(imports="json, tests.no_such_module"))
    with pytest.raises(SystemExit, match=r"^feedq: FEEDQ_IMPORTS: module 'tests\.no_such_module'"):
        bootsteps._import_jobs()
