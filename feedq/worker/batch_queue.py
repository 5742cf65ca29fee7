"""The batch queue of a feed takes batches from its connector, as far as there is room, and hears of their
commits.

A batch queue lives on its runner's event loop; the writer's threads reach it through `feedq.worker.threads`
only. A batch that it has taken is on its way at once, and the next one is only asked for when there is room for
it: the feed's own, and that of the whole worker (`InflightBudget`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from feedq.core.model import JSON, FeedKey
from feedq.errors import FeedqError, LeaseLost
from feedq.records.batch import Batch
from feedq.sinks.base import Target
from feedq.sinks.event_time import EventTime
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import INFLIGHT_BYTES
from feedq.worker.threads import call_on, resolve

if TYPE_CHECKING:
    from feedq.worker.progress_reporter import FeedProgress
    from feedq.worker.writer import Writer


class InflightBudget:
    """Bytes received and not yet committed, over all feeds of the worker. Thread-safe.

    It is the `feedq.connectors.base.Room` of this worker's connectors: what waits in their buffers counts. A feed
    with nothing on its way may always continue, because bytes that are never taken could stop everything for ever;
    so the bound may be exceeded, by small reads, or by one batch of each feed whose connector reads by itself.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = Lock()
        self._waiting: set[Callable[[], None]] = set()
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
        for wake in woken:
            wake()

    def wake_when_free(self, wake: Callable[[], None]) -> None:
        """Call it once, on whichever thread gives bytes back, when the worker is not full any more."""
        with self._lock:
            self._waiting.add(wake)


logger = log(__name__)


class CommitAnswer(NamedTuple):
    """The result of the batches of one queue in a group commit, with their sizes added up."""

    batch_queue: BatchQueue
    size: int
    landed: int = 0
    dead: int = 0
    dead_error: str | None = None
    cursor: JSON = None
    failure: FeedqError | None = None
    """Why nothing of them was written, nor will be."""
    on_committed: Sequence[Callable[[], None]] = ()
    event_time: EventTime | None = None


@dataclass(slots=True, eq=False)
class BatchQueue:
    """The queue of one feed's batches, under one epoch, on their way into the sink."""

    key: FeedKey
    feed: str
    target: Target
    _: KW_ONLY
    cursor: JSON
    """Where the sink stands: everything up to it has been committed."""
    continues: UUID | None
    """The commit that the checkpoint was left at; for the writer's threads, one at a time."""
    budget: InflightBudget
    inflight_max: int
    writer: Writer
    progress: FeedProgress
    """Counts what is committed, over all queues of the feed, and knows who looks at the records."""
    on_change: Callable[[], None]
    """Told of news, on the loop."""

    unwritten_since: float | None = None
    """Since when something has waited without any of it being written, on the monotonic clock."""
    failure: FeedqError | None = None
    """Once set, why nothing more can be written."""
    broken: FeedqError | None = None
    """`failure` as the writer's thread knows it, sooner than the loop does: once a batch was refused, no later one
    of this epoch may land, or there would be a gap before it."""
    is_apart: bool = False
    """Set by the writer's threads while the feed is written apart from the others: it may take half of the
    worker's room, and leaves the rest to those."""
    is_postponed: bool = False
    """Whether, besides, nothing of it can be written: what waits for it is not to fill up the room of others."""
    trouble: str | None = None
    """Why nothing of it can be written just now, though the sink can."""
    back_at: float = float("-inf")
    """When the feed was last written with the others again."""
    apart_s: float = 0.0
    """How long it had to stay apart."""

    waiting: list[Batch] = field(default_factory=list)
    """What was handed over and is not decided, the oldest first; under the writer's lock."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _inflight: int = 0
    _waiter: asyncio.Future[None] | None = None

    async def put(self, batch: Batch) -> None:
        """Hand over a batch, then wait until there is room for another. Raises `failure` if there is one."""
        if self.failure is None:
            if not self._inflight:
                self.unwritten_since = monotonic()
            self._inflight += batch.size
            self.budget.take(batch.size)
            self.progress.last_record_at = batch.received_at
            self.writer.submit(self, batch)
        while self.failure is None and self._inflight and self._is_full:
            # Nothing more can come in: waiting for the interval to end would only cap the throughput.
            self.writer.flush_now()
            if self.budget.is_full:
                self.budget.wake_when_free(self._wake_from_any_thread)
            await self._wait()
        if self.failure is not None:
            raise self.failure

    @property
    def _is_full(self) -> bool:
        if self._inflight >= self.inflight_max or self.is_postponed or self.budget.is_full:
            return True
        return self.is_apart and self.budget.is_half_full

    async def join(self) -> None:
        """Wait until everything handed over is committed. Raises `failure` if there is one."""
        while self.failure is None and self._inflight:
            await self._wait()
        if self.failure is not None:
            raise self.failure

    def oldest(self, bytes_max: int) -> list[Batch]:
        """The oldest batches that wait, of so many bytes, and one at least. For the writer's threads."""
        size = 0
        for count, batch in enumerate(self.waiting):
            size += batch.size
            if count and size > bytes_max:
                return self.waiting[:count]
        return self.waiting[:]

    def has_failed(self) -> bool:
        return self.failure is not None

    @property
    def is_empty(self) -> bool:
        """Whether everything handed over has been decided."""
        return not self._inflight

    def hear(self, answer: CommitAnswer) -> None:
        """Take in what became of some batches. On the loop."""
        self._inflight -= answer.size
        self.unwritten_since = monotonic() if self._inflight else None
        if answer.failure is not None:
            self.failure = self.failure or answer.failure
        else:
            self.cursor = answer.cursor
            self.progress.count(answer)
        self.on_change()
        self._wake()
        for acknowledge in answer.on_committed:
            try:
                acknowledge()
            except Exception:
                # A connector's own code: the commit stands, and the other feeds must hear of theirs.
                logger.exception(LogEvent.UNEXPECTED, where="on_committed", feed=self.feed)

    def tell(self) -> None:
        """Tell its runner that there is news of it. From any thread."""
        call_on(self.loop, self.on_change)

    def abandon(self) -> None:
        """Drop what is not written yet, because the runner has ended: nobody waits for an answer any more."""
        self.on_change = _tell_nobody
        if self.broken is None:
            feed_id, epoch = self.key
            self.broken = LeaseLost(f"feed {feed_id} ({self.feed}): epoch {epoch} has ended on this worker")
        if self._inflight:
            self.writer.drop_abandoned()

    async def _wait(self) -> None:
        # One waiter is enough: a batch queue belongs to one runner, which does one thing at a time.
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter, None)

    def _wake_from_any_thread(self) -> None:
        call_on(self.loop, self._wake)


def _tell_nobody() -> None:
    """Do nothing, in place of the callback of a runner that has ended."""
