"""Reads for pages: never on the event loop, bounded in number and in time, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from threading import Event, Lock

import pytest

from feedq.errors import NotFound, Unavailable
from feedq.web import feed_reader
from feedq.web.feed_reader import READS_MAX, Reader

URL = "postgresql://feedq:hunter2@127.0.0.1:1/feedq"
LONG_S = 30.0
"""Longer than any test: a wait that gets there has failed."""


class Gate:
    """A blocking function that goes on when the gate is opened, and counts."""

    def __init__(self) -> None:
        self.opened = Event()
        self.calls = 0
        self.inside = 0
        self.most_inside = 0
        self._lock = Lock()

    def pass_through(self) -> int:
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        assert self.opened.wait(LONG_S)
        with self._lock:
            self.inside -= 1
            return self.calls


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG_S):
            await story()

    asyncio.run(bounded())


def test_the_loop_goes_on_while_a_read_blocks() -> None:
    async def story() -> None:
        gate = Gate()
        asked = asyncio.ensure_future(Reader(URL, timeout_s=LONG_S).read("it", gate.pass_through))
        await until(lambda: gate.inside == 1)
        gate.opened.set()
        assert await asked == 1

    run(story)


def test_one_question_is_read_once_however_many_ask_it() -> None:
    async def story() -> None:
        gate, reader = Gate(), Reader(URL, timeout_s=LONG_S)
        asked = [asyncio.ensure_future(reader.read("it", gate.pass_through)) for _ in range(50)]
        await until(lambda: gate.inside == 1)
        gate.opened.set()
        assert await asyncio.gather(*asked) == [1] * 50
        assert await reader.read("it", gate.pass_through) == 1

    run(story)


def test_an_answer_is_read_anew_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_reader, "KEPT_S", 0.0)
    monkeypatch.setattr(feed_reader, "KEPT_TIMES", 0.0)

    async def story() -> None:
        gate, reader = Gate(), Reader(URL)
        gate.opened.set()
        assert await reader.read("it", gate.pass_through) == 1
        assert await reader.read("it", gate.pass_through) == 2

    run(story)


def test_an_answer_that_took_long_is_kept_long() -> None:
    async def story() -> None:
        gate, reader = Gate(), Reader(URL, timeout_s=LONG_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = asyncio.ensure_future(reader.read("it", gate.pass_through))
        await until(lambda: loop.time() - began > 0.3)
        gate.opened.set()
        await asked
        kept_until, _ = reader._answers["it"]
        assert kept_until - began > 10 * 0.3

    run(story)


def test_a_database_that_does_not_answer_is_reported_with_its_password_masked() -> None:
    async def story() -> None:
        gate, reader = Gate(), Reader(URL, timeout_s=0.05)
        with pytest.raises(Unavailable) as raised:
            await reader.read("it", gate.pass_through)
        assert str(raised.value) == (
            "control database postgresql://feedq:***@127.0.0.1:1/feedq: no answer within 0.05 s"
        )
        gate.opened.set()
        await until(lambda: "it" in reader._answers)
        # What came too late for the one is there for the next.
        assert await reader.read("it", gate.pass_through) == 1

    run(story)


def test_frozen_reads_are_bounded_and_all_that_wait_are_told() -> None:
    async def story() -> None:
        gate, reader = Gate(), Reader(URL, timeout_s=0.2)
        asked = [asyncio.ensure_future(reader.read(n, gate.pass_through)) for n in range(10 * READS_MAX)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
        assert gate.calls == READS_MAX
        gate.opened.set()
        await until(lambda: gate.inside == 0)
        # The slots are free again.
        assert await reader.read("afterwards", lambda: "here") == "here"
        assert gate.most_inside == READS_MAX

    run(story)


def test_an_error_reaches_who_asked_and_is_not_kept() -> None:
    async def story() -> None:
        reader = Reader(URL)

        def fail() -> None:
            raise NotFound("no feed named 'x'")

        with pytest.raises(NotFound):
            await reader.read("it", fail)
        assert await reader.read("it", lambda: "here") == "here"

    run(story)


def test_what_was_read_before_a_change_ended_is_not_kept_beyond_it() -> None:
    async def story() -> None:
        gate, reader = Gate(), Reader(URL, timeout_s=LONG_S)
        asked = asyncio.ensure_future(reader.read("it", gate.pass_through))
        await until(lambda: gate.inside == 1)
        reader.forget()
        gate.opened.set()
        assert await asked == 1
        assert await reader.read("it", gate.pass_through) == 2

    run(story)


def test_answers_do_not_pile_up() -> None:
    async def story() -> None:
        reader = Reader(URL)
        for number in range(3 * feed_reader.ANSWERS_MAX):
            await reader.read(number, lambda: None)
        assert len(reader._answers) == feed_reader.ANSWERS_MAX

    run(story)
