"""Reads for pages, which many browsers share: one read per question, however many ask it.

An answer is kept for `KEPT_S`, or for ten times as long as it took, so that all the browsers in the world cost
the database a tenth of one connection per question. What was read before `forget` was called is not kept beyond
it: who changed something sees so on the next page. Whoever asked waits with a timeout; a read keeps its slot until
it ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from feedq.api.calls import in_thread
from feedq.core.passwords import mask_url
from feedq.errors import Unavailable

T = TypeVar("T")

READ_TIMEOUT_S = 10.0
"""Longer than the driver's own time-out for a connection, whose message says more."""
READS_MAX = 4
KEPT_S = 1.0
KEPT_TIMES = 10.0
ANSWERS_MAX = 64
"""Answers kept at a time; each may hold a page of feeds."""


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
