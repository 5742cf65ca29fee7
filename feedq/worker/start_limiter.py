"""Lets feeds that begin together go on a few at a time, so that the first of them stream while the last begin.

Each step of a coroutine waits for its next turn of the event loop. Hundreds that take every step together would
all reach their sources only when the last of them does.
"""

from __future__ import annotations

import asyncio
from collections import deque

TOGETHER = 4
"""Feeds a turn of the loop, at least."""
TURNS = 50
"""So many turns for all who wait: with thousands of feeds a turn is long, and few a turn would take all day."""


class StartLimiter:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._passed = 0
        """In this turn of the loop."""

    async def turn(self) -> None:
        """Wait for one's turn, which is at once unless many come together."""
        loop = asyncio.get_running_loop()
        if self._passed < TOGETHER and not self._waiting:
            self._count(loop)
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._passed:
            loop.call_soon(self._next, loop)
        self._passed += 1

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._passed = 0
        together = max(TOGETHER, len(self._waiting) // TURNS)
        while self._waiting and self._passed < together:
            waiting = self._waiting.popleft()
            if not waiting.done():  # or it was cancelled
                waiting.set_result(None)
                self._count(loop)
