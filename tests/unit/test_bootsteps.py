"""Starting while the database comes and goes, and shutting down."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from celery import Celery
from celery.worker import state as worker_state
from kombu.compression import decompress
from structlog.testing import capture_logs

from feedq.celery import bootsteps, broker
from feedq.celery.broker import BoundedClock, BoundedDispatcher
from feedq.errors import PermissionMissing, SchemaBehind, Unavailable
from feedq.settings import Settings

SETTINGS = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")


@pytest.fixture(autouse=True)
def not_told_to_stop() -> Iterator[None]:
    yield
    worker_state.should_stop = None


class Starting:
    """A supervisor that cannot register at first."""

    def __init__(self, failures: int, error: type[Unavailable] = Unavailable) -> None:
        self.failures, self.error = failures, error
        self.started = False

    def start(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error("for the test")
        self.started = True


def test_a_database_that_is_away_again_at_the_registration_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootsteps, "require_current", lambda _: None)
    supervisor: Any = Starting(3)
    assert bootsteps.start_supervisor(supervisor, SETTINGS, sleep=lambda _: None)
    assert supervisor.started


def test_a_role_that_may_not_register_is_told_so_and_tried_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(bootsteps, "require_current", lambda _: None)
    supervisor: Any = Starting(5, PermissionMissing)
    with capture_logs() as logs:
        assert bootsteps.start_supervisor(supervisor, SETTINGS, sleep=pauses.append)
    warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warnings == ["control database refuses"]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0]


def test_whoever_is_told_to_stop_does_not_wait_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_to_stop(_: str) -> None:
        worker_state.should_stop = 0
        raise SchemaBehind("for the test")

    monkeypatch.setattr(bootsteps, "require_current", told_to_stop)
    supervisor: Any = Starting(0)
    assert not bootsteps.start_supervisor(supervisor, SETTINGS, sleep=lambda _: None)
    assert not supervisor.started


class Leaving:
    """Stands for all that a worker tells of its end."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, exit_code: int) -> None:
        self.told.append(exit_code)

    def drain(self) -> None:
        self.told.append("drain")

    def force_stop(self) -> None:
        self.told.append("hurry")


@pytest.fixture
def leaving() -> Leaving:
    return Leaving()


@pytest.fixture
def step(leaving: Leaving) -> bootsteps.FeedqStep:
    made: Any = bootsteps.FeedqStep(None)
    made._leaving = made._supervisor = made._jobs = leaving
    return cast("bootsteps.FeedqStep", made)


def test_all_that_leaves_is_told_and_with_which_exit_status(
    step: bootsteps.FeedqStep, leaving: Leaving
) -> None:
    step.drain(exitcode=1)
    step.drain(exitcode=None)
    assert leaving.told == [1, "drain", "drain", 0, "drain", "drain"]


def test_the_same_signal_by_two_ways_is_one_and_a_later_one_insists(
    step: bootsteps.FeedqStep, leaving: Leaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how, now in ((None, 99.0), ("Warm", 100.0), (None, 100.0), ("Warm", 100.5)):
        monkeypatch.setattr(bootsteps, "monotonic", lambda now=now: now)
        step.drain(exitcode=0, how=how)
    assert "hurry" not in leaving.told
    monkeypatch.setattr(bootsteps, "monotonic", lambda: 101.1)
    step.drain(exitcode=0, how="Warm")
    assert leaving.told.count("hurry") == 1


def test_a_cold_shutdown_waits_for_no_job(step: bootsteps.FeedqStep, leaving: Leaving) -> None:
    step.drain(exitcode=0, how="Cold")
    assert "hurry" in leaving.told


def nothing(*_: Any, **__: Any) -> None: ...


@pytest.fixture
def app() -> Celery:
    """An app whose tasks send messages that stay in this process."""
    app = Celery(broker="memory://", set_as_current=False)
    app.task(nothing, name="a")
    app.finalize()
    return app


@pytest.mark.parametrize(
    ("method", "pack"), [("zlib", zlib.compress), ("bzip2", bz2.compress), ("lzma", lzma.compress)]
)
def test_a_message_that_unpacks_to_more_than_the_limit_is_refused_unread(
    method: str, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2**16
    monkeypatch.setattr(broker, "MESSAGE_BYTES_MAX", limit)
    broker.install()
    assert decompress(pack(bytes(limit)), method) == bytes(limit)
    with pytest.raises(ValueError, match="larger than 65,536 bytes when unpacked"):
        decompress(pack(bytes(limit + 1)), method)
    with pytest.raises(ValueError, match="it is truncated"):
        decompress(pack(bytes(1000))[:-1], method)


def test_events_that_wait_for_a_broker_are_bounded(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "EVENTS_WAITING_MAX", 10)
    with app.connection_for_write() as connection:
        dispatcher = BoundedDispatcher(connection, app=app, buffer_group=["task"])
        dispatcher.close()  # as while the broker is away
        for _ in range(100):
            dispatcher.send("task-progress", uuid="1")
    assert len(dispatcher._group_buffer["task"]) == 10


def test_the_clock_adopts_no_number_that_could_not_be_sent_on() -> None:
    clock = BoundedClock()
    assert clock.adjust(41) == 42
    others: list[Any] = [10**4_299, 2**63 - 1, "x", None, [], -5]
    for other in others:
        assert clock.adjust(other) < 100
