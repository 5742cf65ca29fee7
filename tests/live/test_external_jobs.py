"""One run on a thread or child process of Celery's own pools."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from threading import Event, Thread
from uuid import uuid4

import pytest

from feedq import run_context
from feedq.model import NewWorker
from feedq.schedule.model import ClaimedRun, Semantics
from feedq.worker.jobs import external_jobs as module
from feedq.worker.jobs.external_jobs import run_hinted, session_of
from tests.fakes import ManualClock, MemoryStore
from tests.unit.job_runs import ME, MemoryRuns

LIMIT_S = 10.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def nothing(_: ClaimedRun) -> None:
    """A job that is done at once."""


def heed(_: ClaimedRun) -> None:
    run_context().wait(LIMIT_S)
    run_context().raise_if_cancelled()


def test_the_run_that_was_named_is_run_and_no_other() -> None:
    runs = MemoryRuns()
    runs.add(1)
    runs.add(2)
    assert run_hinted(2, ME, runs, nothing) == "succeeded"
    assert runs.states() == {1: "waiting", 2: "succeeded"}
    assert run_hinted(2, ME, runs, nothing).startswith("dropped"), "a copy of the message"
    assert run_hinted(99, ME, runs, nothing).startswith("dropped"), "a forged one"


def test_a_failure_is_told() -> None:
    def fail(_: ClaimedRun) -> None:
        raise ValueError("no")

    runs = MemoryRuns()
    runs.add(1)
    assert run_hinted(1, ME, runs, fail) == "failed"
    assert runs.rows[1].reason == "ValueError: no"


def test_a_time_out_is_told_when_it_comes_and_not_when_the_job_ends() -> None:
    go_on = Event()

    def deaf(_: ClaimedRun) -> None:
        assert go_on.wait(LIMIT_S)

    runs, said = MemoryRuns(), list[str]()
    runs.remaining_s = 0.05
    runs.add(1, timeout_s=3.0)
    thread = Thread(target=lambda: said.append(run_hinted(1, ME, runs, deaf)), daemon=True)
    thread.start()
    until(lambda: runs.states()[1] == "timed_out", "told")
    assert said == []
    go_on.set()
    thread.join(LIMIT_S)
    assert said == ["its time is up"]
    assert runs.rows[1].reason == "timed out after 3 s"
    assert runs.rejected == []


def test_a_job_is_told_that_its_run_was_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    runs, said = MemoryRuns(), list[str]()
    runs.add(1)
    thread = Thread(target=lambda: said.append(run_hinted(1, ME, runs, heed)), daemon=True)
    thread.start()
    until(lambda: runs.asked["taken_away"] > 1, "it is followed")
    runs.take_away(1)
    thread.join(LIMIT_S)
    assert said == ["it was cancelled, or taken away from this worker"]
    assert runs.asked["finish"] == 0


def test_an_outage_meanwhile_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(module, "TELL_RETRY_S", 0.01)
    runs, go_on = MemoryRuns(), Event()
    runs.add(1)

    def wait(_: ClaimedRun) -> None:
        assert go_on.wait(LIMIT_S)

    thread = Thread(target=run_hinted, args=(1, ME, runs, wait), daemon=True)
    thread.start()
    until(lambda: runs.asked["taken_away"], "it is followed")
    runs.is_away = True
    asked = runs.asked["taken_away"]
    until(lambda: runs.asked["taken_away"] > asked, "it asks on")
    go_on.set()
    until(lambda: runs.asked["finish"], "its end cannot be told")
    runs.is_away = False
    thread.join(LIMIT_S)
    assert runs.states() == {1: "succeeded"}


def test_a_transactional_job_tells_by_itself() -> None:
    runs = MemoryRuns()
    runs.add(1, semantics=Semantics.TRANSACTIONAL)
    assert run_hinted(1, ME, runs, nothing) == "succeeded"
    assert runs.asked["finish"] == 0


def test_the_session_is_the_one_of_this_process_or_its_parent() -> None:
    store = MemoryStore(ManualClock())

    def register(name: str, *, pid: int, host: str = "") -> NewWorker:
        new = NewWorker(uuid4(), name, "q", 0, host or socket.gethostname(), pid, "0", job_slots=1)
        store.workers.register(new, ttl_s=6)
        return new

    assert session_of(store, "a@h") is None
    register("a@h", pid=os.getpid(), host="elsewhere")
    register("a@h", pid=1)
    register("b@h", pid=os.getpid())
    assert session_of(store, "a@h") is None
    mine = register("a@h", pid=os.getpid())
    assert session_of(store, "a@h") == mine.id
    parents = register("c@h", pid=os.getppid())
    assert session_of(store, "c@h") == parents.id
    store.workers.drain(mine.id)
    assert session_of(store, "a@h") is None, "it takes nothing more"
