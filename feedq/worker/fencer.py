"""Takes feeds over in a sink: raises the epoch of their checkpoints and reads where to resume.

On a session and a thread of its own, because a fence may wait for a predecessor's commit, and the writer must
not wait with it. The session is opened while many feeds are still being claimed, and feeds that start together are
fenced together. A predecessor that is frozen inside its transaction is not waited for: once the control database
says that its worker is gone, its session is ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from feedq.core.limits import starts_together
from feedq.errors import FeedqError, SinkUnavailable
from feedq.sinks.base import Blocked, FenceOutcome, FenceRequest, Sink
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.watched_threads import TURN_S
from feedq.worker.sink_thread import Outage, SinkThread
from feedq.worker.threads import call_on

GROUP_MAX = 1_000
"""Feeds a statement: a cold start of thousands is a handful of statements, none of them long."""
RETRY_S = 0.2

logger = log(__name__)

GoneWorkers = Callable[[Collection[UUID]], set[UUID]]
"""Which of these workers the control database has declared gone."""


class _Waiting(NamedTuple):
    request: FenceRequest
    future: asyncio.Future[FenceOutcome]


class Fencer(SinkThread):
    """The fencing end of one sink."""

    def __init__(
        self,
        name: str,
        make_sink: Callable[[], Sink],
        outage: Outage,
        *,
        gone_workers: GoneWorkers,
        lock_timeout_s: float,
    ) -> None:
        super().__init__("fencer", name, make_sink, outage)
        self._gone_workers = gone_workers
        self._lock_timeout_s = lock_timeout_s
        self._queue: deque[_Waiting] = deque()
        self._blocked: list[_Waiting] = []
        """What was asked of the sink and is not decided: somebody is in the way."""
        self._expects_feeds = False

    async def fence(self, request: FenceRequest) -> FenceOutcome:
        """Fence a feed in its sink. The outcome is never `Blocked`: that is tried again until it is decided or
        the caller is cancelled.

        Raises `SinkUnavailable`.
        """
        future: asyncio.Future[FenceOutcome] = asyncio.get_running_loop().create_future()
        with self._lock:
            self.begin()  # or raises: then nobody waits
            self._queue.append(_Waiting(request, future))
            self.changed.notify()
        return await future

    def expect_feeds(self) -> None:
        """Open the session now: feeds to fence come in a moment."""
        with self._lock:
            self.begin()
            self._expects_feeds = True
            self.changed.notify()

    # -- the thread ----------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._queue or self._blocked) or self._expects_feeds

    def _turn(self) -> None:
        with self._lock:
            wait_s = RETRY_S if self._blocked else TURN_S
            self.changed.wait_for(lambda: self._queue or self._expects_feeds or self._stopping, wait_s)
            group = [
                *self._blocked,
                *(self._queue.popleft() for _ in range(min(GROUP_MAX, len(self._queue)))),
            ]
            must_open, self._expects_feeds = self._expects_feeds, False
        if group or must_open:
            # Whoever was cancelled in the meantime wants no answer, and no fence either. So each feed is here
            # once: an earlier stream of it is cancelled before a later one begins.
            self._blocked = self._fence([w for w in group if not w.future.cancelled()])

    def _fence(self, group: list[_Waiting]) -> list[_Waiting]:
        """Fence a group; returns those still blocked."""
        try:
            with self._asking() as sink:
                outcomes = self._outcomes(sink, [w.request for w in group])
        except Exception as error:
            if not isinstance(error, FeedqError):
                logger.exception(LogEvent.UNEXPECTED, where="fencer", sink=self._name)
                error = SinkUnavailable(f"sink {self._name!r}: unexpected error: {error!r}")
            _answer([(waiting, error) for waiting in group])
            return []
        blocked: list[_Waiting] = []
        answers: list[_Answer] = []
        for waiting in group:
            outcome = outcomes.get(waiting.request.feed_id)
            if outcome is None or isinstance(outcome, Blocked):
                blocked.append(waiting)
            else:
                answers.append((waiting, outcome))
        _answer(answers)
        return blocked

    def _outcomes(self, sink: Sink, requests: list[FenceRequest]) -> dict[int, FenceOutcome]:
        outcomes = {o.feed_id: o for o in sink.fence(requests, lock_timeout_s=self._lock_timeout_s)}
        blocked = {o.feed_id: o.owner for o in outcomes.values() if isinstance(o, Blocked)}
        owners = {owner for owner in blocked.values() if owner is not None}
        # A live owner is committing, or about to be told to stop; only a dead one's session is in the way.
        gone = self._gone_among(owners) if owners else set()
        if gone:
            ended = sink.unblock(gone)
            logger.warning(LogEvent.FENCE_BLOCKED, sink=self._name, feeds=len(blocked), sessions_ended=ended)
            again = [r for r in requests if r.feed_id in blocked]
            outcomes |= {o.feed_id: o for o in sink.fence(again, lock_timeout_s=self._lock_timeout_s)}
        return outcomes

    def _gone_among(self, owners: set[UUID]) -> set[UUID]:
        try:
            return self._gone_workers(owners)
        except FeedqError as error:
            # The others of the group have been fenced and shall hear so; these ask again in a moment.
            logger.warning(database_event(error), where="fencer", error=str(error))
            return set()


_Answer: TypeAlias = tuple[_Waiting, FenceOutcome | FeedqError]


def _answer(answers: Sequence[_Answer]) -> None:
    """Tell those who wait, on their event loop."""
    if answers:
        loop = answers[0][0].future.get_loop()
        call_on(loop, _resolve, loop, deque(answers))


def _resolve(loop: asyncio.AbstractEventLoop, answers: deque[_Answer]) -> None:
    """Tell some in this turn of the loop and the others in the next ones, so that the first of them stream while
    the last begin."""
    for _ in range(min(starts_together(len(answers)), len(answers))):
        (_, future), outcome = answers.popleft()
        if future.done():
            continue
        if isinstance(outcome, FeedqError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    if answers:
        loop.call_soon(_resolve, loop, answers)
