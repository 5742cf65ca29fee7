"""A feed that runs apart and follows its lease, and processes that forked, on PostgreSQL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq import settings as settings_module
from feedq.celery import tasks
from feedq.control.store.leases import Followed
from feedq.core.model import FeedKey, LeaseState, Reason, Worker
from feedq.settings import Settings
from feedq.worker.activity import Activity
from feedq.worker.external_stream import run_claimed
from feedq.worker.runner import FeedRunner
from tests.contract.harness import Harness, spec
from tests.contract.test_supervisor import Source
from tests.waiting import until


class StreamedFeed:
    """One feed under `run_claimed`, on a thread in place of its process."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.source = Source()
        self.settings = Settings(
            database_url=harness.url, environment=uuid4().hex, heartbeat_s=0.2, ttl_s=3600, settle_s=0
        )
        self.said: list[str] = []
        self.thread: threading.Thread | None = None

    def claimed(self, worker: Worker) -> FeedKey:
        feed = self.harness.store.feeds.add(
            spec("a", source={"url": f"tcp://127.0.0.1:{self.source.port}"}, sink={"table": "landed"})
        )
        with self.harness.store.fleet.reconcile_pass() as p:
            assert p is not None
            (given,) = p.assign([(feed.id, worker.id)])
        self.harness.store.leases.claim(worker.id, [given.key])
        return given.key

    def run(self, worker: Worker) -> None:
        key = self.claimed(worker)

        def streamed() -> None:
            store, activity = self.harness.store, Activity.private()
            self.said.append(run_claimed(key, worker.id, store, self.settings, activity))

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
def streamed(harness: Harness) -> Iterator[StreamedFeed]:
    made = StreamedFeed(harness)
    yield made
    made.source.close()


def test_an_external_stream_that_ends_in_an_unexpected_way_releases_its_lease(
    streamed: StreamedFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeedRunner, "run", lambda _: 1 / 0)
    streamed.run(streamed.harness.worker("w1"))
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
    streamed.run(worker)
    until(lambda: streamed.source.open == 1, "streaming")
    streamed.end(worker)
    assert streamed.said == ["released"]


@pytest.fixture
def tasks_store(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEEDQ_DATABASE_URL", harness.url)
    settings_module.settings.cache_clear()
    # A test before this one may have left a store of another database.
    tasks._store_of.cache_clear()
    yield
    tasks.store().close()
    tasks._store_of.cache_clear()
    settings_module.settings.cache_clear()


@pytest.mark.usefixtures("tasks_store")
def test_a_forked_child_does_not_use_its_parents_connections(harness: Harness) -> None:
    parents = tasks.store()
    worker = harness.worker("w1")
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
