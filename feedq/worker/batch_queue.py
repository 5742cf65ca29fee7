"""The batch queue of a feed: its runner puts batches there and learns what became of them.

A batch queue lives on its runner's event loop; the writer thread reaches it through `feedq.worker.loops` only.
It bounds what is received and not yet committed, for its feed and, through `InflightBudget`, for the whole worker:
a batch that it has taken is on its way at once, and the next one is only asked for when there is room for it. What
became of the batches comes back as `CommitAnswer`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from threading import Lock
from time import monotonic
from typing import NamedTuple
from uuid import UUID

from feedq.errors import FeedqError, LeaseLost
from feedq.model import JSON, Batch, FeedKey
from feedq.sinks.base import Target
from feedq.telemetry import INFLIGHT_BYTES, LogEvent, log
from feedq.worker.loops import call_on, call_on_each, resolve

logger = log(__name__)


class InflightBudget:
    """Bytes received and not yet committed, over all feeds of the worker. Thread-safe.

    It is the `feedq.connectors.base.Room` of this worker's connectors: what waits in their buffers counts. A
    feed with nothing on its way may always go on, or bytes that nobody takes could stop everything for ever;
    so the bound may be exceeded, by small reads, or by one batch of each feed whose connector reads by itself.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = Lock()
        self._waiting: set[BatchQueue] = set()
        INFLIGHT_BYTES.set_function(lambda: self._bytes)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def left(self) -> int:
        """Bytes; none or less when the worker is full."""
        return self._bytes_max - self._bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    @property
    def is_half_full(self) -> bool:
        return 2 * self._bytes >= self._bytes_max

    def take(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            if self._bytes >= self._bytes_max or not self._waiting:
                return
            woken, self._waiting = self._waiting, set()
        for batch_queue in woken:
            batch_queue.wake_from_any_thread()

    def wake_when_free(self, batch_queue: BatchQueue) -> None:
        with self._lock:
            self._waiting.add(batch_queue)


class BatchQueue:
    """The way of one feed, under one epoch, into the sink.

    ``cursor`` is where the sink stands: everything up to it has been committed. ``failure``, once set, is
    why nothing more can be written: `LeaseLost` or `FeedMisconfigured`.
    """

    __slots__ = (
        "_flush_now",
        "_forget",
        "_inflight",
        "_inflight_max",
        "_on_change",
        "_submit",
        "_waiter",
        "apart_s",
        "back_at",
        "broken",
        "budget",
        "bytes_landed",
        "continues",
        "cursor",
        "dead",
        "dead_error",
        "failure",
        "feed",
        "is_apart",
        "is_postponed",
        "key",
        "landed",
        "last_record_at",
        "loop",
        "target",
        "trouble",
        "unwritten_since",
    )

    def __init__(
        self,
        key: FeedKey,
        feed: str,
        target: Target,
        *,
        cursor: JSON,
        continues: UUID | None,
        budget: InflightBudget,
        inflight_max: int,
        submit: Callable[[BatchQueue, Batch], None],
        flush_now: Callable[[], None],
        forget: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self.key, self.feed, self.target = key, feed, target
        self.cursor = cursor
        self.continues = continues
        """The commit that the checkpoint was left at; for the writer's threads, one at a time."""
        self.landed = self.dead = self.bytes_landed = 0
        self.dead_error: str | None = None
        """Why the latest of the dead was refused."""
        self.last_record_at: datetime | None = None
        self.failure: FeedqError | None = None
        self.broken: FeedqError | None = None
        """`failure` as the writer's thread knows it, sooner than the loop does: once a batch was refused, no
        later one of this epoch may land, or there would be a gap before it."""
        self.is_apart = False
        """Set by the writer's threads while the feed is written apart from the others: it may take half of the
        worker's room, and leaves the rest to those."""
        self.is_postponed = False
        """Whether, besides, nothing of it can be written: what waits for it is not to fill up the room of
        others at all."""
        self.trouble: str | None = None
        """Why nothing of it can be written just now, though the sink can."""
        self.back_at, self.apart_s = float("-inf"), 0.0
        """When the feed was last written with the others again, and how long it had to stay apart."""
        self.unwritten_since: float | None = None
        """Since when something has waited without any of it being written, on the monotonic clock."""
        self.loop = asyncio.get_running_loop()
        self.budget, self._inflight, self._inflight_max = budget, 0, inflight_max
        self._submit, self._flush_now, self._forget, self._on_change = submit, flush_now, forget, on_change
        self._waiter: asyncio.Future[None] | None = None

    async def put(self, batch: Batch) -> None:
        """Hand over a batch, then wait until there is room for another. Raises `failure` if there is one."""
        if self.failure is None:
            if not self._inflight:
                self.unwritten_since = monotonic()
            self._inflight += batch.size
            self.budget.take(batch.size)
            self.last_record_at = batch.received_at
            self._submit(self, batch)
        while self.failure is None and self._inflight and self._is_full:
            # Nothing more can come in: waiting for the interval to end would only cap the throughput.
            self._flush_now()
            if self.budget.is_full:
                self.budget.wake_when_free(self)
            await self._wait()
        if self.failure is not None:
            raise self.failure

    @property
    def _is_full(self) -> bool:
        if self._inflight >= self._inflight_max or self.is_postponed or self.budget.is_full:
            return True
        return self.is_apart and self.budget.is_half_full

    async def drained(self) -> None:
        """Wait until everything handed over is committed. Raises `failure` if there is one."""
        while self.failure is None and self._inflight:
            await self._wait()
        if self.failure is not None:
            raise self.failure

    @property
    def is_drained(self) -> bool:
        return not self._inflight

    def committed(
        self, *, size: int, landed: int, dead: int, cursor: JSON, dead_error: str | None = None
    ) -> None:
        """The writer's answer; on the loop."""
        self._decided(size)
        self.cursor = cursor
        self.landed += landed
        self.dead += dead
        self.dead_error = dead_error or self.dead_error
        self.bytes_landed += size
        self._on_change()
        self.wake()

    def failed(self, *, size: int, failure: FeedqError) -> None:
        """The writer's other answer: nothing of this was written, nor will be. On the loop."""
        self._decided(size)
        self.failure = self.failure or failure
        self._on_change()
        self.wake()

    def _decided(self, size: int) -> None:
        self._inflight -= size
        self.unwritten_since = monotonic() if self._inflight else None

    def take_over(self, counts_of: BatchQueue) -> None:
        """Go on counting where another batch queue of this epoch has ended."""
        before = counts_of
        self.landed, self.dead, self.bytes_landed = before.landed, before.dead, before.bytes_landed
        self.dead_error, self.last_record_at = before.dead_error, before.last_record_at

    def abandon(self) -> None:
        """Drop what is not written yet, because the runner has ended: nobody waits for an answer any more."""
        self._on_change = _tell_nobody
        if self.broken is None:
            feed_id, epoch = self.key
            self.broken = LeaseLost(f"feed {feed_id} ({self.feed}): epoch {epoch} has ended on this worker")
        if self._inflight:
            self._forget()

    def tell(self) -> None:
        """Tell its runner that there is news of it. From any thread."""
        call_on(self.loop, self._on_change)

    def wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter, None)

    def wake_from_any_thread(self) -> None:
        call_on(self.loop, self.wake)

    async def _wait(self) -> None:
        # One waiter is enough: a batch queue belongs to one runner, which does one thing at a time.
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class CommitAnswer(NamedTuple):
    """Says what became of the batches of one queue in a group commit, with their sizes added up."""

    batch_queue: BatchQueue
    size: int
    landed: int = 0
    dead: int = 0
    dead_error: str | None = None
    cursor: JSON = None
    failure: FeedqError | None = None
    on_committed: Sequence[Callable[[], None]] = ()

    def deliver(self) -> None:
        if self.failure is not None:
            self.batch_queue.failed(size=self.size, failure=self.failure)
            return
        self.batch_queue.committed(
            size=self.size,
            landed=self.landed,
            dead=self.dead,
            cursor=self.cursor,
            dead_error=self.dead_error,
        )
        for acknowledge in self.on_committed:
            try:
                acknowledge()
            except Exception:
                # A connector's own code: the commit stands, and the other feeds must hear of theirs.
                logger.exception(LogEvent.UNEXPECTED, where="on_committed", feed=self.batch_queue.feed)


def answer_all(answers: Iterable[CommitAnswer]) -> None:
    """Tell the queues, each on its loop. From the writer's threads."""
    decided: defaultdict[InflightBudget, int] = defaultdict(int)
    answers = list(answers)
    for one in answers:
        decided[one.batch_queue.budget] += one.size
    # It no longer burdens the worker, whether or not a runner is left to hear of it.
    for budget, size in decided.items():
        budget.give_back(size)
    call_on_each(lambda one: one.batch_queue.loop, _deliver, answers)


def _deliver(answers: list[CommitAnswer]) -> None:
    for one in answers:
        one.deliver()


def _tell_nobody() -> None:
    """Do nothing, in place of the callback of a runner that has ended."""
