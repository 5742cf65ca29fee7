"""How jobs get into a worker: hints at the pool, the lease keeper's news, signals, and what a worker takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from kombu import Queue

from feedq import bootsteps, tasks
from feedq.bootsteps import Places
from feedq.pool import StreamPool
from feedq.settings import Settings
from feedq.tasks import RUN_JOB, parse_hint, send_hints
from feedq.worker.jobs.job_service import Jobs
from feedq.worker.jobs.share import Note
from feedq.worker.lease_keeper import LeaseKeeper
from tests.fakes import ManualClock, MemoryStore
from tests.lease_listener import RecordingListener

LIMIT_S = 10.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


# -- messages ----------------------------------------------------------------------------------------


class Hinted:
    """Jobs that only take note."""

    def __init__(self) -> None:
        self.hints: list[int] = []

    def hint(self, run_id: int) -> None:
        self.hints.append(run_id)


@pytest.fixture
def pool() -> Iterator[StreamPool]:
    made = StreamPool(10)
    made.start()
    yield made
    made.terminate()


@pytest.fixture
def schedules(pool: StreamPool) -> Hinted:
    made = Hinted()
    pool.schedules = cast("Jobs", made)
    return made


def deliver(pool: StreamPool, args: Any, *, content_type: str = "application/json") -> list[Any]:
    """Hand the pool a message; returns what Celery was told, its acknowledgement first."""
    told: list[Any] = []
    pool.apply_async(
        lambda *_: None,
        args=(RUN_JOB, "run-7", {}, json.dumps([args, {}, {}]), content_type, "utf-8"),
        accept_callback=lambda *_: told.append("accepted"),
        callback=lambda result: told.append(result[1]),
    )
    until(lambda: len(told) == 2, "answered")
    return told


def test_a_hint_is_acknowledged_at_once_and_reaches_the_slots(pool: StreamPool, schedules: Hinted) -> None:
    assert deliver(pool, [7, 1]) == ["accepted", "passed on"]
    assert schedules.hints == [7]
    assert not pool.is_busy


@pytest.mark.parametrize(
    ("args", "content_type"),
    [
        ([], "application/json"),
        ([7], "application/json"),
        (["7", 1], "application/json"),
        ([7, 0], "application/json"),
        ([-7, 1], "application/json"),
        ([2**63, 1], "application/json"),
        ([7, 2**31], "application/json"),
        ([7, 1], "application/x-python-serialize"),
    ],
)
def test_a_forged_hint_is_acknowledged_and_dropped(
    pool: StreamPool, schedules: Hinted, args: Any, content_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted, said = deliver(pool, args, content_type=content_type)
    assert accepted == "accepted"
    assert said.startswith("dropped")
    assert schedules.hints == []
    assert "run_job message dropped" in "".join(capsys.readouterr())


def test_a_hint_before_the_worker_is_ready_is_acknowledged(pool: StreamPool) -> None:
    assert deliver(pool, [7, 1])[0] == "accepted"


def test_a_message_says_two_numbers_and_goes_to_the_workers_own_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    monkeypatch.setattr(tasks, "stream_feed", SimpleNamespace(app=app))
    assert send_hints([Note("node.w1", 7, 2), Note("node.w1", 8, 1)]) == 2
    with app.connection_for_read() as connection:
        queue = Queue("node.w1", channel=connection.channel())
        queue.declare()
        # The broker in memory delivers to queues that were there: send once more.
        send_hints([Note("node.w1", 7, 2)])
        message = queue.get()
        assert message is not None
        assert message.headers["task"] == RUN_JOB
        assert message.content_type == "application/json"
        assert parse_hint(json.loads(message.body)[0]) == (7, 2)


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

    def notified(self) -> None:
        self.heard.append("notified")


def test_the_keeper_tells_of_the_end_of_its_session_and_of_each_notification() -> None:
    clock = ManualClock()
    store, recording, session_observer = MemoryStore(clock), RecordingListener(), RecordingSession()
    settings = Settings(heartbeat_s=2, ttl_s=6, trust_margin_s=1)
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
    lease_keeper._heard([""])
    assert session_observer.heard == [ended, "notified"]
    assert "orders" in recording.heard


@pytest.mark.parametrize(
    ("payloads", "feeds", "jobs"),
    [
        (["feeds"], 1, 0),
        (["jobs"], 0, 1),
        (["feeds", "jobs"], 1, 1),
        (["of a later release"], 1, 1),
        ([], 0, 0),
    ],
)
def test_a_ring_is_heard_by_those_it_is_for(payloads: list[str], feeds: int, jobs: int) -> None:
    clock = ManualClock()
    recording, session_observer = RecordingListener(), RecordingSession()
    lease_keeper = recording.make_keeper(MemoryStore(clock), Settings(), clock)
    lease_keeper.beat()
    recording.heard.clear()
    lease_keeper.session_observer = session_observer
    lease_keeper._heard(payloads)
    assert recording.heard.count("orders") == feeds
    assert session_observer.heard.count("notified") == jobs


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


def celery_worker(*queues: str, concurrency: int, streams: bool) -> Any:
    consumes = dict.fromkeys((*queues, bootsteps.node_queue("w1@h")))
    app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=consumes)))
    pool = StreamPool(concurrency) if streams else object()
    return SimpleNamespace(hostname="w1@h", app=app, concurrency=concurrency, pool=pool)


@pytest.mark.parametrize(
    ("queues", "concurrency", "streams", "places"),
    [
        (("feedq", "feedq.control"), 500, True, Places(500, 4)),
        (("jobs",), 20, True, Places(0, 20)),
        (("jobs", "feedq"), 20, True, Places(20, 4)),
        (("feedq", "feedq.control"), 8, False, Places(7, 7)),
        (("jobs",), 8, False, Places(0, 7)),
        (("feedq", "feedq.control"), 1, False, Places(1, 0)),
    ],
)
def test_what_a_worker_takes_goes_by_its_queues_and_its_concurrency(
    queues: tuple[str, ...], concurrency: int, streams: bool, places: Places
) -> None:
    worker = celery_worker(*queues, concurrency=concurrency, streams=streams)
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


def test_the_body_of_run_job_drops_what_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(ManualClock())
    monkeypatch.setattr(tasks, "store", lambda: store)
    assert tasks.run_job.run(7, 1).startswith("dropped: this worker is not registered")
    with pytest.raises(ValueError, match="two positive integers"):
        tasks.run_job.run("7", 1)
