"""Streams on threads and child processes of Celery's own pools, on PostgreSQL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq import settings as settings_module
from feedq import tasks
from feedq.model import FeedKey, LeaseState, Reason, Worker
from feedq.settings import Settings
from feedq.store.base import Followed
from feedq.worker import external_stream
from feedq.worker.fencer import Fencer
from feedq.worker.runner import FeedRunner
from feedq.worker.writer import Writer
from tests.contract.harness import PostgresHarness, spec
from tests.contract.test_supervisor import LIMIT_S, Source, until

pytestmark = pytest.mark.servers


class StreamedFeed:
    """One feed under ``run_external_stream`` on a thread, as Celery's thread pool would run it."""

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.source = Source()
        self.settings = Settings(
            database_url=harness.url, environment=uuid4().hex, heartbeat_s=0.2, ttl_s=3600, settle_s=0
        )
        self.said: list[str] = []
        self.thread: threading.Thread | None = None

    def assign(self, worker: Worker) -> FeedKey:
        feed = self.harness.store.feeds.add(
            spec("a", source={"url": f"tcp://127.0.0.1:{self.source.port}"}, sink={"table": "landed"})
        )
        return self.again(worker, feed.id)

    def again(self, worker: Worker, feed_id: int) -> FeedKey:
        with self.harness.store.fleet.reconcile_pass() as p:
            assert p is not None
            (given,) = p.assign([(feed_id, worker.id)])
        return given.key

    def run(self, key: FeedKey) -> None:
        def streamed() -> None:
            self.said.append(external_stream.run_external_stream(key, self.harness.store, self.settings))

        self.thread = threading.Thread(target=streamed, daemon=True)
        self.thread.start()

    def end(self, worker: Worker) -> None:
        self.harness.store.workers.drain(worker.id)
        if self.thread is not None:
            self.thread.join(15)
            assert not self.thread.is_alive()

    @property
    def lease(self) -> Any:
        return self.harness.store.feeds.view("a").lease


@pytest.fixture
def streamed(postgres_harness: PostgresHarness) -> Iterator[StreamedFeed]:
    made = StreamedFeed(postgres_harness)
    yield made
    made.source.close()
    # A process keeps them for its next stream; the tests after these run in the same one.
    for ends in external_stream._sinks_of.values():
        ends.stop(timeout_s=lambda: LIMIT_S)
    external_stream._sinks_of.clear()


def test_an_external_stream_that_ends_in_an_unexpected_way_releases_its_lease(
    streamed: StreamedFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeedRunner, "run", lambda _: 1 / 0)
    worker = streamed.harness.worker("w1")
    streamed.run(streamed.assign(worker))
    until(lambda: streamed.said, "ended")
    assert streamed.said == ["backoff"]
    assert (streamed.lease.state, streamed.lease.reason) == (LeaseState.IDLE, Reason.BACKOFF)
    assert "division by zero" in streamed.lease.last_error


def test_an_unexpected_error_does_not_end_the_following_of_a_lease(
    streamed: StreamedFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, errors = streamed.harness.store.leases.follow, iter([ValueError("for the test")])
    asked: list[FeedKey] = []

    def follow(key: FeedKey) -> Followed | None:
        asked.append(key)
        if len(asked) > 1:
            for error in errors:
                raise error
        return real(key)

    monkeypatch.setattr(streamed.harness.store.leases, "follow", follow)
    worker = streamed.harness.worker("w1")
    streamed.run(streamed.assign(worker))
    until(lambda: streamed.source.open == 1, "streaming")
    streamed.end(worker)
    assert streamed.said == ["released"]


def test_the_sink_threads_of_an_earlier_worker_session_end(streamed: StreamedFeed) -> None:
    def mine() -> list[threading.Thread]:
        found: list[Writer | Fencer] = []
        for ends in external_stream._sinks_of.values():
            found += [*ends._writers.values(), *ends._fencers.values()]
        return [end._thread for end in found]

    first = streamed.harness.worker("w1")
    key = streamed.assign(first)
    streamed.run(key)
    until(lambda: streamed.source.open == 1, "streaming")
    old = mine()
    assert len(old) == 2
    streamed.end(first)
    second = streamed.harness.worker("w1")
    streamed.run(streamed.again(second, key[0]))
    until(lambda: streamed.source.open == 1, "streaming")
    until(lambda: not any(thread.is_alive() for thread in old), "the old threads have ended")
    streamed.end(second)


@pytest.fixture
def tasks_store(postgres_harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEEDQ_DATABASE_URL", postgres_harness.url)
    settings_module.settings.cache_clear()
    # A test before this one may have left a store of another database.
    tasks._store_of.cache_clear()
    yield
    tasks.store().close()
    tasks._store_of.cache_clear()
    settings_module.settings.cache_clear()


@pytest.mark.usefixtures("tasks_store")
def test_a_forked_child_does_not_use_its_parents_connections(postgres_harness: PostgresHarness) -> None:
    parents = tasks.store()
    worker = postgres_harness.worker("w1")
    assert [view.worker.id for view in parents.workers.views()] == [worker.id]

    child = os.fork()
    if child == 0:
        _exit_with(lambda: tasks.store() is not parents and _reads(50, worker.id))
    _reads(50, worker.id)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    _reads(1, worker.id)


def _reads(times: int, worker_id: UUID) -> bool:
    return all([v.worker.id for v in tasks.store().workers.views()] == [worker_id] for _ in range(times))


def _exit_with(succeeds: Callable[[], bool]) -> None:
    try:
        os._exit(0 if succeeds() else 1)
    except BaseException:
        os._exit(2)
