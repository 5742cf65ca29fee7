"""Reads for pages: never on the event loop, bounded in number and in time, and shared."""

from __future__ import annotations

import asyncio
from threading import Event, Lock

import pytest
from pydantic import SecretStr

from feedq.api.handler import Calls
from feedq.errors import NotFound, Unavailable
from feedq.settings import Settings
from feedq.web.pages import ANSWERS_MAX, WebQueries
from tests.unit.data_path import until

PLACES = 4
LONG_S = 30.0
"""Longer than any test: a wait that gets there has failed."""


class Gate:
    """A blocking function that goes on when the gate is opened, and counts."""

    def __init__(self) -> None:
        self.opened = Event()
        self.calls = 0
        self.inside = 0
        self._lock = Lock()

    def pass_through(self) -> int:
        with self._lock:
            self.calls += 1
            self.inside += 1
        assert self.opened.wait(LONG_S)
        with self._lock:
            self.inside -= 1
            return self.calls


def reader(*, timeout_s: float = LONG_S) -> WebQueries:
    made = WebQueries(Settings(database_url=SecretStr("postgresql://127.0.0.1:1/feedq")))
    made.reads = Calls(timeout_s=timeout_s, places=PLACES)
    return made


async def test_the_loop_goes_on_while_one_question_is_read_once_however_many_ask_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedq.web.pages.KEPT_S", LONG_S)
    gate, pages = Gate(), reader()
    asked = [asyncio.ensure_future(pages.read("it", gate.pass_through)) for _ in range(50)]
    await until(lambda: gate.inside == 1, "it is read")
    gate.opened.set()
    assert await asyncio.gather(*asked) == [1] * 50
    assert await pages.read("it", gate.pass_through) == 1


async def test_an_answer_is_read_anew_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedq.web.pages.KEPT_S", 0.0)
    monkeypatch.setattr("feedq.web.pages.KEPT_TIMES", 0.0)
    gate, pages = Gate(), reader()
    gate.opened.set()
    assert await pages.read("it", gate.pass_through) == 1
    assert await pages.read("it", gate.pass_through) == 2


async def test_frozen_reads_are_bounded_and_all_that_wait_are_told() -> None:
    gate, pages = Gate(), reader(timeout_s=0.2)
    asked = [asyncio.ensure_future(pages.read(n, gate.pass_through)) for n in range(10 * PLACES)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert gate.calls == PLACES
    gate.opened.set()
    await until(lambda: pages.reads._free == PLACES, "all have ended")
    # The places are free again.
    pages.reads.timeout_s = LONG_S
    assert await pages.read("afterwards", lambda: "here") == "here"


async def test_an_error_reaches_who_asked_and_is_not_kept() -> None:
    pages = reader()

    def fail() -> None:
        raise NotFound("no feed named 'x'")

    with pytest.raises(NotFound):
        await pages.read("it", fail)
    assert await pages.read("it", lambda: "here") == "here"


async def test_what_was_read_before_a_change_ended_is_not_kept_beyond_it() -> None:
    gate, pages = Gate(), reader()
    asked = asyncio.ensure_future(pages.read("it", gate.pass_through))
    await until(lambda: gate.inside == 1, "it is read")
    pages.forget()
    gate.opened.set()
    assert await asked == 1
    assert await pages.read("it", gate.pass_through) == 2


async def test_answers_do_not_pile_up() -> None:
    pages = reader()
    for number in range(3 * ANSWERS_MAX):
        await pages.read(number, lambda: None)
    assert len(pages._known) == ANSWERS_MAX
