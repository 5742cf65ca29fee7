"""Threads for jobs: used again, as many as run, none kept by what is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event, Thread, current_thread

import pytest

from feedq.worker.jobs.slots import JobThreads

LIMIT_S = 10.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def test_one_after_the_other_runs_in_the_same_thread_with_an_empty_context() -> None:
    threads, names, found = JobThreads(keep=1), list[str](), list[str]()
    left = ContextVar("left", default="nothing")

    def work() -> None:
        names.append(current_thread().name)
        found.append(left.get())
        left.set("something")

    for number in range(1, 4):
        threads.run(work)
        until(lambda: len(names) == number and threads._idle, "it is done")  # noqa: B023
    assert len(set(names)) == 1
    assert found == ["nothing"] * 3
    threads.close()


def test_what_is_stuck_keeps_its_thread_and_no_other() -> None:
    threads, go_on, done = JobThreads(keep=1), Event(), list[int]()
    threads.run(lambda: done.append(0) if go_on.wait(LIMIT_S) else None)
    for number in (1, 2):
        threads.run(lambda: done.append(number))  # noqa: B023
        until(lambda: len(done) == number, "another thread does it")  # noqa: B023
    assert 0 not in done
    go_on.set()
    until(lambda: 0 in done, "it goes on")
    until(lambda: len(threads._idle) == 1, "no more are kept than were asked for")
    threads.close()


def test_no_thread_is_left_when_it_is_closed() -> None:
    threads, seen, go_on = JobThreads(keep=4), list[Thread](), Event()

    def work() -> None:
        seen.append(current_thread())
        go_on.wait(LIMIT_S)

    for _ in range(3):
        threads.run(work)
    until(lambda: len(seen) == 3, "all run")
    threads.close()
    go_on.set()
    for thread in seen:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_a_thread_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        JobThreads(keep=1).run(lambda: None)
