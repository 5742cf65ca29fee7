"""Blocking work kept off an event loop: what `feedq api` and Flower call in threads, and how much of it at a time.

A database that is away or frozen blocks a call for long. Each call runs on a daemon thread of its own, so that it
cannot keep the process from ending. Whoever asked waits for it with a timeout and hears when that is over; the
thread keeps its place until it ends, as the time-outs of the control database have it. What comes while all places
are taken is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import Any, Final, TypeVar

from feedq.errors import Unavailable

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
PLACES: Final = 64
"""More wait for the connections of the pool than it would answer within the timeout."""


def in_thread(job: Callable[[], T]) -> asyncio.Future[T]:
    """What a blocking function returns, called with the context of whoever asks."""
    called: Future[T] = Future()
    called.set_running_or_notify_cancel()  # from here on nobody takes it back
    context = copy_context()

    def work() -> None:
        try:
            called.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 -- it is raised again where somebody waits
            called.set_exception(error)

    future = asyncio.wrap_future(called)
    # Looked at here: perhaps nobody waits for it any more.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    Thread(target=work, name="feedq-call", daemon=True).start()
    return future


class Calls:
    """Calls blocking functions, a bounded number at a time. To be used from one event loop."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, places: int = PLACES) -> None:
        self.timeout_s = timeout_s
        self._free = places
        self.requests: set[asyncio.Task[Any]] = set()
        """Requests of the API that are being answered."""
        self.streams = 0
        """Streams of events that are being sent."""

    async def call(self, job: Callable[[], T], *, until: float | None = None) -> T:
        """Returns what ``job`` does; ``until``, in the loop's time, is when the timeout is over if it has begun.

        Raises `Unavailable`, and as ``job`` does.
        """
        if self._free <= 0:
            raise Unavailable("too many requests are being answered; ask again in a moment")
        self._free -= 1
        called = in_thread(job)
        called.add_done_callback(self._give_back)
        end = asyncio.get_running_loop().time() + self.timeout_s if until is None else until
        try:
            async with asyncio.timeout_at(end):
                found: T = await asyncio.shield(called)
                return found
        except TimeoutError:
            late = f"no answer within {self.timeout_s:g} s; it is not known whether anything was changed"
            raise Unavailable(late) from None

    def _give_back(self, _: asyncio.Future[Any]) -> None:
        self._free += 1
