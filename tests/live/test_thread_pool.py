"""Threads for whatever may block, and lanes that bound what runs on them."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from threading import Event, get_ident

import pytest

from feedq.worker import thread_pool as module
from feedq.worker.thread_pool import Lane, ThreadPool
from tests.waiting import until

LIMIT_S = 10.0
said = ContextVar("said", default="nothing")


def test_an_error_is_told_to_whoever_asked_and_does_not_end_the_lane() -> None:
    lane = Lane(ThreadPool())
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 / 0).result(LIMIT_S)
    assert lane.submit(lambda: int("7")).result(LIMIT_S) == 7
    assert lane.close(timeout_s=LIMIT_S, drop_waiting=False)


@pytest.mark.parametrize("drop", [False, True])
def test_a_lane_that_closes_does_what_waits_or_drops_it(drop: bool) -> None:
    lane, started, go_on, done = Lane(ThreadPool()), Event(), Event(), list[int]()
    lane.submit(lambda: (started.set(), go_on.wait(LIMIT_S)))  # type: ignore[func-returns-value]
    assert started.wait(LIMIT_S)
    waiting = lane.submit(lambda: done.append(1))
    assert not lane.close(timeout_s=0.01, drop_waiting=drop)
    go_on.set()
    assert lane.close(timeout_s=LIMIT_S, drop_waiting=drop)
    assert (waiting.cancelled(), done) == ((True, []) if drop else (False, [1]))
    with pytest.raises(RuntimeError):
        lane.submit(lambda: done.append(2))


def test_a_lane_does_no_more_at_a_time_than_it_is_wide_and_in_order() -> None:
    lane, begun, go_on = Lane(ThreadPool(), width=2), list[int](), Event()

    def work(number: int) -> None:
        begun.append(number)
        go_on.wait(LIMIT_S)

    for number in range(5):
        lane.submit(partial(work, number))
    until(lambda: len(begun) == 2, "two have begun")
    assert lane.is_busy
    go_on.set()
    assert lane.close(timeout_s=LIMIT_S, drop_waiting=False)
    assert sorted(begun[:2]) == [0, 1]
    assert sorted(begun) == list(range(5))
    assert not lane.is_busy


def test_a_thread_is_used_again_in_an_empty_context_and_ends_when_it_has_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, seen, done = ThreadPool(), list[tuple[int, str]](), Event()

    def work() -> None:
        seen.append((get_ident(), said.get()))
        said.set("something")
        done.set()

    threads.run(work)
    assert done.wait(LIMIT_S)
    until(lambda: threads._idle, "it is idle")
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    threads.run(work)
    until(lambda: len(seen) == 2, "it was used again")
    assert seen[0] == seen[1]
    assert seen[0][1] == "nothing"
    until(lambda: not threads._idle, "it has ended")


def test_work_that_never_ends_keeps_nothing_else_from_being_done() -> None:
    threads, go_on, done = ThreadPool(), Event(), Event()

    def wait() -> None:
        go_on.wait(LIMIT_S)

    threads.run(wait)
    threads.run(done.set)
    assert done.wait(LIMIT_S)
    go_on.set()
