"""Takes feeds over in a sink: raises the epoch of their checkpoints and reads where to resume.

On a session and a thread of its own, because a fence may wait for a predecessor's commit, and the writer must
not wait with it. Both are there only while there is something to fence, and the session is opened while many feeds
are still being claimed. Feeds that start together are fenced together. A predecessor that is frozen inside its
transaction is not waited for: once the control database says that its worker is gone, its session is ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from feedq.errors import FeedqError, SinkUnavailable
from feedq.sinks.base import Blocked, FenceOutcome, FenceRequest, Sink, Superseded
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, asking, note_turn
from feedq.worker.threads import call_on
from feedq.worker.writing_session import Outage

GROUP_MAX = 1_000
"""Feeds a statement: a cold start of thousands is a handful of statements, none of them long."""
IDLE_S = 5.0
"""A fencer with nothing to do for so long gives its thread and its connection back."""
RETRY_S = 0.2

logger = log(__name__)

GoneWorkers = Callable[[Collection[UUID]], set[UUID]]
"""Which of these workers the control database has declared gone."""


@dataclass(slots=True)
class _Waiting:
    request: FenceRequest
    future: asyncio.Future[FenceOutcome]
    loop: asyncio.AbstractEventLoop


class Fencer:
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
        self._name = name
        self._make_sink = make_sink
        self._sink: Sink | None = None
        self._renew = False
        self._gone_workers = gone_workers
        self._lock_timeout_s = lock_timeout_s
        self._outage = outage
        self._asked = Condition()
        self._queue: deque[_Waiting] = deque()
        self._expects_feeds = False
        self._stopping = False
        self._thread: WatchedThread | None = None
        """The thread that fences, while there is something to fence and for a moment more."""

    async def fence(self, request: FenceRequest) -> FenceOutcome:
        """Fence a feed in its sink. The outcome is never `Blocked`: that is tried again until it is decided or
        the caller is cancelled.

        Raises `SinkUnavailable`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[FenceOutcome] = loop.create_future()
        with self._asked:
            self._begin()  # or raises: then nobody waits
            self._queue.append(_Waiting(request, future, loop))
            self._asked.notify()
        return await future

    def expect_feeds(self) -> None:
        """Open the session now: feeds to fence come in a moment."""
        with self._asked:
            self._begin()
            self._expects_feeds = True
            self._asked.notify()

    def renew(self) -> None:
        """Use a new session from the next group on: the worker has registered again, under a new id."""
        self._renew = True

    def stop(self, *, timeout_s: float) -> None:
        with self._asked:
            self._stopping = True
            self._asked.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _begin(self) -> None:
        if self._thread is None:
            thread = WatchedThread(self._run, name=f"feedq-fencer-{self._name}")
            thread.start()
            self._thread = thread

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        blocked: list[_Waiting] = []
        idle_at = monotonic() + IDLE_S
        while not self._ends(idle_at):
            note_turn()
            group = [*blocked, *self._gather(wait_s=RETRY_S if blocked else TURN_S)]
            if not group and not self._expects_feeds:
                continue
            self._expects_feeds = False
            # Whoever was cancelled in the meantime wants no answer, and no fence either.
            blocked = self._fence(_newest([w for w in group if not w.future.cancelled()]))
            idle_at = monotonic() + IDLE_S
        if self._stopping:
            self._close()

    def _gather(self, *, wait_s: float) -> list[_Waiting]:
        with self._asked:
            self._asked.wait_for(lambda: self._has_work or self._stopping, wait_s)
            return [self._queue.popleft() for _ in range(min(GROUP_MAX, len(self._queue)))]

    @property
    def _has_work(self) -> bool:
        return bool(self._queue) or self._expects_feeds

    def _ends(self, idle_at: float) -> bool:
        """Whether the thread is to end. When the next feed is to be fenced, another one begins."""
        is_over = monotonic() >= idle_at
        with self._asked:
            is_idle = is_over and not self._has_work
        if is_idle:
            self._close()  # before another thread could use it
        with self._asked:
            if is_idle and not self._has_work:
                self._thread = None
            return self._stopping or self._thread is None

    def _fence(self, group: list[_Waiting]) -> list[_Waiting]:
        """Fence a group; returns those still blocked."""
        since = monotonic()
        try:
            if self._renew:
                self._renew = False
                self._close()
                self._sink = None
            with asking():
                outcomes = self._outcomes([w.request for w in group])
            self._outage.over()
        except FeedqError as error:
            if isinstance(error, SinkUnavailable):
                self._outage.failed(error, since=since)
            _answer([(waiting, error) for waiting in group])
            return []
        except Exception as error:
            logger.exception(LogEvent.UNEXPECTED, where="fencer", sink=self._name)
            unexpected = SinkUnavailable(f"sink {self._name!r}: unexpected error: {error!r}")
            _answer([(waiting, unexpected) for waiting in group])
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

    def _outcomes(self, requests: list[FenceRequest]) -> dict[int, FenceOutcome]:
        if self._sink is None:
            self._sink = self._make_sink()
        outcomes = {o.feed_id: o for o in self._sink.fence(requests, lock_timeout_s=self._lock_timeout_s)}
        blocked = {o.feed_id: o.owner for o in outcomes.values() if isinstance(o, Blocked)}
        owners = {owner for owner in blocked.values() if owner is not None}
        # A live owner is committing, or about to be told to stop; only a dead one's session is in the way.
        gone = self._gone_among(owners) if owners else set()
        if gone:
            ended = self._sink.unblock(gone)
            logger.warning(LogEvent.FENCE_BLOCKED, sink=self._name, feeds=len(blocked), sessions_ended=ended)
            again = [r for r in requests if r.feed_id in blocked]
            outcomes |= {o.feed_id: o for o in self._sink.fence(again, lock_timeout_s=self._lock_timeout_s)}
        return outcomes

    def _gone_among(self, owners: set[UUID]) -> set[UUID]:
        try:
            return self._gone_workers(owners)
        except FeedqError as error:
            # The others of the group have been fenced and shall hear so; these ask again in a moment.
            logger.warning(database_event(error), where="fencer", error=str(error))
            return set()

    def _close(self) -> None:
        if self._sink is not None:
            self._sink.close()


def _newest(group: list[_Waiting]) -> list[_Waiting]:
    """Keep one request a feed, the one of the latest epoch: a fence may name each feed only once.

    An older stream of the same feed does not know yet that it is lost, and is told so.
    """
    newest: dict[int, _Waiting] = {}
    for waiting in group:
        feed_id = waiting.request.feed_id
        older, newer = sorted((newest.get(feed_id, waiting), waiting), key=lambda w: w.request.epoch)
        newest[feed_id] = newer
        if older is not newer:
            _answer([(older, Superseded(feed_id, older.request.epoch, newer.request.epoch))])
    return list(newest.values())


_Answer: TypeAlias = tuple[_Waiting, FenceOutcome | FeedqError]


def _answer(answers: Sequence[_Answer]) -> None:
    """Tell those who wait, with one call to their event loop."""
    if answers:
        call_on(answers[0][0].loop, _resolve_all, answers)


def _resolve_all(answers: Sequence[_Answer]) -> None:
    for waiting, outcome in answers:
        if waiting.future.done():
            continue
        if isinstance(outcome, FeedqError):
            waiting.future.set_exception(outcome)
        else:
            waiting.future.set_result(outcome)
