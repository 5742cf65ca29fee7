"""Tells the control database how feeds fare: what changed, every few heartbeats; and a change of status at once.

A feed that came up or broke off is news that people wait for; records that landed can wait for the next round.
News of many feeds are gathered for a moment, so that a thousand feeds that start together are one statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from uuid import UUID

from feedq.model import Progress
from feedq.runtime.runner import FeedRunner

NEWS_S = 0.2
"""How long news of a status waits for others."""
PROGRESS_MAX = 2_000
"""Feeds without news in one report; the others come with the next ones. So what a worker's reports cost, here and
in the database, has a bound: of 10,000 busy feeds each is heard of every fifth heartbeat."""

Send = Callable[[UUID, list[Progress]], None]


class Reporter:
    """What is to be reported of the runners of one loop. Used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, *, worker_id: Callable[[], UUID]) -> None:
        self._loop, self._send, self._worker_id = loop, send, worker_id
        self._changed: dict[FeedRunner, None] = {}
        """In the order in which they are due."""
        self._soon: asyncio.TimerHandle | None = None

    def note(self, runner: FeedRunner) -> None:
        """Something changed with this feed."""
        self._changed[runner] = None
        if runner.has_news and self._soon is None:
            self._soon = self._loop.call_later(NEWS_S, self.report)

    def forget(self, runner: FeedRunner) -> None:
        self._changed.pop(runner, None)

    def report(self) -> None:
        """Send what has gathered."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        due = dict.fromkeys(islice(self._changed, PROGRESS_MAX))
        due.update(dict.fromkeys(runner for runner in self._changed if runner.has_news))
        for runner in due:
            del self._changed[runner]
        if due:
            self._send(self._worker_id(), [runner.progress() for runner in due])
