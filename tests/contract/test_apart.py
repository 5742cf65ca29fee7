"""Feeds that run apart, in processes that are workers of one feed; and processes that forked. On PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from feedq import settings as settings_module
from feedq.celery import tasks
from feedq.core.loss import Loss
from feedq.core.model import LeaseState, NewWorker, Process, Reason, Status, TargetState
from feedq.worker import monitor
from tests.contract.harness import Harness
from tests.contract.test_supervisor import Stage
from tests.waiting import until

STARTED_S = 30.0
"""A process imports for a second or two, more on a busy machine."""


@pytest.fixture
def stage(harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stage]:
    environment = uuid4().hex
    monkeypatch.setenv("FEEDQ_DATABASE_URL", harness.url)
    monkeypatch.setenv("FEEDQ_ENVIRONMENT", environment)
    monkeypatch.setenv("FEEDQ_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("FEEDQ_HEARTBEAT_S", "0.2")
    # After these: a new variable moves the environment in memory, which a thread that connects may be reading.
    made = Stage(harness, state_dir=str(tmp_path), environment=environment)
    yield made
    made.leave()
    made.source.close()


def quarantine(stage: Stage) -> int:
    """Add a feed that is in quarantine; its id."""
    feed_id = stage.add_feed()
    lost = stage.store.workers.register(NewWorker(uuid4(), "l", "q", 0, "h", 9, "0"), ttl_s=3600)
    stage.store.workers.report_loss(lost.id, Loss("stalled", "stood still", feed_id, is_certain=True))
    return feed_id


def own(stage: Stage) -> int:
    """Add a feed that is declared to have a process of its own; its id."""
    feed_id = stage.add_feed()
    stage.store.feeds.edit(stage.store.feeds.get("a").spec.model_copy(update={"process": Process.OWN}))
    return feed_id


def streams_apart(stage: Stage) -> int:
    """Wait until the feed streams in a process of its own; the id of that."""
    until(lambda: stage.source.open == 1, "it streams", limit_s=STARTED_S)
    sql = (
        "SELECT w.pid FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id WHERE l.state = 'running'"
    )
    ((pid,),) = stage.harness.execute(sql)
    assert isinstance(pid, int)
    assert pid != os.getpid()
    return pid


def until_released(stage: Stage, reason: Reason) -> None:
    until(lambda: stage.lease("a").state is LeaseState.IDLE, "it is released", limit_s=STARTED_S)
    assert stage.lease("a").reason is reason
    until(lambda: stage.source.open == 0, "its connection is closed")


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("add", [quarantine, own])
def test_a_feed_that_runs_apart_has_a_process_that_stops_it_and_leaves_when_asked(
    stage: Stage, add: Callable[[Stage], int]
) -> None:
    add(stage)
    before = stage.lease("a")
    stage.reconcile()
    pid = streams_apart(stage)
    assert stage.supervisor.feeds == 0
    stage.store.feeds.set_target("a", TargetState.PAUSED)
    stage.reconcile()
    until_released(stage, Reason.PAUSED)
    until(lambda: has_ended(pid), "the process leaves")
    until(lambda: len(stage.supervisor._apart) == 0, "and its worker knows")
    assert (stage.lease("a").quarantined, stage.lease("a").blamed) == (before.quarantined, before.blamed)
    stage.store.feeds.set_target("a", TargetState.RUNNING)
    stage.reconcile()
    assert streams_apart(stage) != pid


@pytest.mark.parametrize(("add", "blamed"), [(quarantine, 2), (own, 1)])
def test_a_feed_whose_process_ends_is_in_quarantine_and_the_next_time_tried_again_later(
    stage: Stage, add: Callable[[Stage], int], blamed: int
) -> None:
    add(stage)
    stage.reconcile()
    os.kill(streams_apart(stage), signal.SIGKILL)
    until(lambda: stage.lease("a").blamed == blamed, "it is blamed")
    lease = stage.lease("a")
    assert (lease.state, lease.quarantined) == (LeaseState.IDLE, True)
    assert (lease.due_at is not None) == (blamed > 1), "it is the second time that makes it wait"
    assert "its own process at w1 was lost: killed: its process was ended by SIGKILL" in str(lease.blame)


def test_a_feed_is_blamed_though_its_process_ended_before_its_worker_looked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "CHECK_S", 60.0)
    own(stage)
    stage.reconcile()
    os.kill(streams_apart(stage), signal.SIGKILL)
    until(lambda: stage.lease("a").blamed == 1, "it is blamed")


def test_an_edit_takes_a_feed_into_the_process_of_its_worker(stage: Stage) -> None:
    own(stage)
    stage.reconcile()
    pid = streams_apart(stage)
    until(lambda: stage.store.feeds.view("a").status is Status.STREAMING, "it says so")
    stage.store.feeds.edit(stage.store.feeds.get("a").spec.model_copy(update={"process": Process.SHARED}))
    stage.reconcile()
    until_released(stage, Reason.EDITED)
    until(lambda: has_ended(pid), "the process leaves")
    stage.reconcile()
    until(lambda: stage.source.open == 1, "it streams")
    assert stage.supervisor.feeds == 1
    assert len(stage.supervisor._apart) == 0


def test_a_revoked_feed_begins_again_and_nobody_is_blamed(stage: Stage) -> None:
    feed_id = quarantine(stage)
    stage.reconcile()
    streams_apart(stage)
    stage.supervisor.cancel(feed_id)
    until_released(stage, Reason.RELEASED)
    assert stage.lease("a").blamed == 1


def test_a_worker_that_leaves_has_the_feeds_that_run_apart_released(stage: Stage) -> None:
    quarantine(stage)
    stage.reconcile()
    pid = streams_apart(stage)
    stage.supervisor.drain()
    until_released(stage, Reason.RELEASED)
    stage.supervisor.join()
    until(lambda: has_ended(pid), "no process is left")
    assert stage.lease("a").blamed == 1


def test_a_process_that_finds_the_control_database_away_is_no_culprit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDQ_DATABASE_URL", "postgresql://nobody:none@127.0.0.1:1/none")
    settings_module.settings.cache_clear()
    quarantine(stage)
    before = stage.lease("a").blame
    stage.reconcile()
    until(lambda: stage.lease("a").reason is Reason.QUARANTINED, "it is released", limit_s=STARTED_S)
    lease = stage.lease("a")
    assert (lease.state, lease.blamed, lease.blame) == (LeaseState.IDLE, 1, before)
    assert lease.last_error == "cannot run apart: its process ended with status 1"
    assert lease.due_at is not None


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
