"""Blocking work of pages and API, kept off Flower's event loop.

Store calls block, and a database that is away or frozen blocks them for long. Each runs on a daemon thread of its
own: a frozen database must not keep Flower from ending. Whoever asked waits for it with a timeout and says so when
it is over; the thread keeps its place until it ends.

What `Reader` reads, many browsers share: one read per question, however many ask it; an answer is kept for
`KEPT_S`, or for ten times as long as it took, so that all the browsers in the world cost the database a tenth of
one connection per question. What was read before `forget` was called is not kept beyond it: who changed something
sees so on the next page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar

from feedq.core.passwords import mask_url
from feedq.errors import Unavailable

T = TypeVar("T")

READ_TIMEOUT_S = 10.0
"""Longer than the driver's own time-out for a connection, whose message says more."""
READS_MAX = 4
CALL_TIMEOUT_S = 30.0
CALLS_MAX = 16
"""Verbs that are called at a time; others wait until the timeout."""
KEPT_S = 1.0
KEPT_TIMES = 10.0
ANSWERS_MAX = 64
"""Answers kept at a time; each may hold a page of feeds."""


def in_thread(job: Callable[[], T]) -> asyncio.Future[T]:
    """What a blocking function returns, called with the context of whoever asks."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(answer: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)  # type: ignore[arg-type] # None only if T allows it
        else:
            future.set_exception(error)
            # Retrieved here: perhaps nobody waits for it any more.
            future.exception()

    def work() -> None:
        answer, error = None, None
        try:
            answer = context.run(job)
        except BaseException as raised:  # noqa: BLE001 -- it is raised again where somebody waits
            error = raised
        # The loop is closed when Flower has ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, answer, error)

    Thread(target=work, name="feedq-web", daemon=True).start()
    return future


class Calls:
    """Calls verbs, a bounded number at a time. To be used from one event loop."""

    def __init__(self, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(CALLS_MAX)

    async def call(self, job: Callable[[], T]) -> T:
        """Returns what ``job`` does. Raises `Unavailable`, and as ``job`` does."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.acquire()
                called = in_thread(job)
                called.add_done_callback(lambda _: self._places.release())
                found: T = await asyncio.shield(called)
                return found
        except TimeoutError:
            late = f"no answer within {self._timeout_s:g} s; whether a change was made is not known"
            raise Unavailable(late) from None


class Reader:
    """Answers questions with what a blocking function returns. To be used from one event loop."""

    def __init__(self, url: str, *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(READS_MAX)
        self._running: dict[Hashable, asyncio.Future[Any]] = {}
        self._answers: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    async def read(self, question: Hashable, job: Callable[[], T]) -> T:
        """Returns the answer to ``question``, which ``job`` finds. Raises `Unavailable`, and as ``job`` does."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read(question, job)
        except TimeoutError:
            raise Unavailable(
                f"control database {mask_url(self._url)}: no answer within {self._timeout_s:g} s"
            ) from None

    def forget(self) -> None:
        """Forgets all answers; reads under way still answer those who wait for them, and nobody else."""
        self._answers.clear()
        self._running.clear()

    async def _read(self, question: Hashable, job: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        running = self._running.get(question)
        if running is None:
            kept = self._kept(question, now=loop.time())
            if kept is not None:
                answer: T = kept[1]
                return answer
            await self._slots.acquire()
            running = self._running.get(question)
            if running is None:
                running = self._begin(question, job, loop)
            else:
                # Somebody else has asked it while this one waited for a slot.
                self._slots.release()
        # Shielded: whoever gives up waiting does not take the answer from the others.
        found: T = await asyncio.shield(running)
        return found

    def _kept(self, question: Hashable, *, now: float) -> tuple[float, Any] | None:
        kept = self._answers.get(question)
        return kept if kept is not None and now < kept[0] else None

    def _begin(
        self, question: Hashable, job: Callable[[], T], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[T]:
        began = loop.time()
        self._running[question] = future = in_thread(job)

        def finish(_: asyncio.Future[T]) -> None:
            self._slots.release()
            if self._running.get(question) is not future:
                return
            del self._running[question]
            if future.exception() is None:
                now = loop.time()
                self._keep(question, future.result(), until=now + max(KEPT_S, KEPT_TIMES * (now - began)))

        future.add_done_callback(finish)
        return future

    def _keep(self, question: Hashable, answer: Any, *, until: float) -> None:
        self._answers[question] = (until, answer)
        self._answers.move_to_end(question)
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
