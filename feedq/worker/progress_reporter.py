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
from feedq.worker.runner import FeedRunner

NEWS_S = 0.2
"""How long news of a status waits for others."""
PROGRESS_MAX = 2_000
"""Feeds without news in one report; the others come with the next ones. So what a worker's reports cost, here and
in the database, has a bound: of 10,000 busy feeds each is heard of every fifth heartbeat."""

Send = Callable[[UUID, list[Progress]], None]


class ProgressReporter:
    """What is to be reported of the runners of one loop. Used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, *, worker_id: Callable[[], UUID]) -> None:
        self._loop, self._send, self._worker_id = loop, send, worker_id
        self._progressed: dict[FeedRunner, None] = {}
        """In the order in which they are due."""
        self._news: dict[FeedRunner, None] = {}
        self._soon: asyncio.TimerHandle | None = None

    def note(self, runner: FeedRunner) -> None:
        """It made progress. Called for each batch of each feed."""
        self._progressed[runner] = None

    def tell(self, runner: FeedRunner) -> None:
        """Its status changed."""
        self._news[runner] = None
        if self._soon is None:
            self._soon = self._loop.call_later(NEWS_S, self._tell_news)

    def forget(self, runner: FeedRunner) -> None:
        self._progressed.pop(runner, None)
        self._news.pop(runner, None)

    def report(self) -> None:
        """Send what has gathered."""
        due = dict.fromkeys(islice(self._progressed, PROGRESS_MAX))
        due.update(self._news)
        self._report(due)

    def _tell_news(self) -> None:
        # Nothing but news: while thousands of feeds begin there are some at any moment, and to send the progress
        # of those that have begun each time would cost more than the rest of it.
        self._soon = None
        self._report(dict(self._news))

    def _report(self, due: dict[FeedRunner, None]) -> None:
        for runner in due:
            self.forget(runner)
        if due:
            self._send(self._worker_id(), [runner.progress() for runner in due])
