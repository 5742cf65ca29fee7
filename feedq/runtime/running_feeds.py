"""Running feeds: the runners of one worker process, and what all or some of them are told.

A runner that lost its lease has nothing left to do and ends within moments. One that does not, because its
connector swallows the cancellation or a library of it does, would go on reading from a source that is somebody
else's by now: after `LOST_S` its sockets are shut, and again for as long as it lives, since it may dial anew.

Runners come, go and are interrupted on their loop. What may be called from any thread says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from math import ceil
from threading import Lock

from feedq.lease import Owner
from feedq.model import FeedKey, Reason, StopRequest
from feedq.runtime.claim_queue import AssignmentListener
from feedq.runtime.interrupt import Interrupt
from feedq.runtime.runner import FeedRunner
from feedq.telemetry import LogEvent, log

LOST_S = 0.5
"""A runner that lost its lease has at least this long to end by itself, and twice this at most."""
STOP_TOGETHER = 25
"""Feeds that are stopped together, where there is time. A feed has no connection from the moment it is let go
until its successor has one; if all were let go at once, each would wait for all the others."""
STOP_PAUSE_S = 0.05
"""Between them: about what the others take to place and connect so many."""
SHOW_TICKS = 15
"""A running feed shows itself in Celery's event stream every so many heartbeats."""
SHOWN_MAX = 100
"""Feeds that do so in one heartbeat; with more of them each does so less often. An event costs three times what it
takes to land a record."""

logger = log(__name__)


class RunningFeeds:
    """Who runs here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = Lock()
        self._running: dict[int, tuple[FeedRunner, AssignmentListener]] = {}
        self._lost: dict[FeedRunner, float] = {}
        """Those who lost their lease and have not ended, and when they were told."""
        self._looks_after_lost = False

    def __len__(self) -> int:
        """From any thread."""
        return len(self._running)

    def __iter__(self) -> Iterator[tuple[FeedRunner, AssignmentListener]]:
        return iter(list(self._running.values()))

    @property
    def keys(self) -> set[FeedKey]:
        return {runner.key for runner, _ in self._running.values()}

    @property
    def names(self) -> list[str]:
        """From any thread."""
        with self._lock:
            return [runner.feed.name for runner, _ in self._running.values()]

    def has_feed(self, feed_id: int) -> bool:
        """From any thread."""
        return feed_id in self._running

    def has(self, key: FeedKey) -> bool:
        """From any thread."""
        held = self._running.get(key[0])
        return held is not None and held[0].key == key

    def add(self, runner: FeedRunner, audience: AssignmentListener) -> None:
        before = self._running.get(runner.key[0])
        if before is not None:
            # The feed came back before its last tenure here has ended.
            self._tell_lost(before[0])
        with self._lock:
            self._running[runner.key[0]] = (runner, audience)

    def remove(self, runner: FeedRunner) -> None:
        """It has ended."""
        self._lost.pop(runner, None)
        with self._lock:
            if self._is_here(runner):
                del self._running[runner.key[0]]

    def interrupt(self, feed_id: int, why: Interrupt, reason: Reason = Reason.RELEASED) -> None:
        held = self._running.get(feed_id)
        if held is not None:
            held[0].interrupt(why, reason=reason)

    def suspend_all(self) -> None:
        for runner, _ in self:
            runner.interrupt(Interrupt.SUSPEND)

    def lose_all(self) -> None:
        for runner, _ in self:
            self._tell_lost(runner)

    async def stop_all(self, *, within_s: float) -> None:
        """Have everybody let go, some at a time; the last are told in ``within_s`` at most."""
        runners = [runner for runner, _ in self]
        pause_s = min(STOP_PAUSE_S, within_s * STOP_TOGETHER / max(1, len(runners)))
        for at in range(0, len(runners), STOP_TOGETHER):
            if at:
                await asyncio.sleep(pause_s)
            for runner in runners[at : at + STOP_TOGETHER]:
                runner.interrupt(Interrupt.STOP)

    def _is_here(self, runner: FeedRunner) -> bool:
        held = self._running.get(runner.key[0])
        return held is not None and held[0] is runner

    def stop(self, asked: Iterable[StopRequest]) -> list[StopRequest]:
        """Those that do not run here are returned."""
        for request in asked:
            if self.has(request.key):
                self.interrupt(request.feed_id, Interrupt.STOP, request.reason)
        return [request for request in asked if not self.has(request.key)]

    def lose(self, keys: Iterable[FeedKey]) -> None:
        """Somebody else may have these by now."""
        for key in keys:
            if self.has(key):
                self._tell_lost(self._running[key[0]][0])

    def cut(self, keys: Collection[FeedKey]) -> None:
        """Shut their sockets. From any thread: the loop may be what is stuck."""
        with self._lock:
            mine = [held[0] for key in keys if (held := self._running.get(key[0])) and held[0].key == key]
        for runner in mine:
            runner.sockets.cut()

    def show(self, tick: int, *, owner: Owner | None) -> None:
        """In Celery's event stream. A slice a heartbeat: ten thousand feeds must not all do it together."""
        every = max(SHOW_TICKS, ceil(len(self) / SHOWN_MAX))
        for runner, audience in self:
            if runner.feed.id % every == tick % every:
                audience.progress(f"{runner.feed.name}: {runner.status(owner)}")

    def _tell_lost(self, runner: FeedRunner) -> None:
        runner.interrupt(Interrupt.LOST)
        self._lost.setdefault(runner, self._loop.time())
        self._look_soon()

    def _look_soon(self) -> None:
        if self._lost and not self._looks_after_lost:
            self._looks_after_lost = True
            self._loop.call_later(LOST_S, self._look_after_lost)

    def _look_after_lost(self) -> None:
        self._looks_after_lost = False
        late_by = self._loop.time() - LOST_S
        late = [runner for runner, told_at in self._lost.items() if told_at <= late_by]
        for runner in late:
            runner.interrupt(Interrupt.LOST)
            runner.sockets.cut()
        if late:
            names = [runner.feed.name for runner in late]
            logger.warning(LogEvent.STOP_OVERDUE, feeds=names[:20], count=len(names))
        self._look_soon()
