"""Group commit: one thread a sink that lands the batches of all feeds in few transactions.

It gathers what comes in until the oldest batch has waited ``flush_interval_s``, or ``flush_bytes`` wait, or
somebody is in a hurry; then one transaction lands everything and advances every checkpoint. A sink that is
away is tried again with the same batches for as long as the worker runs: backpressure stops the reading
meanwhile. A commit whose answer was lost is decided by the checkpoint, never by guessing. Feeds whose table
somebody has locked are put aside and tried again, and the others go on without them.

Invariant: batches of one feed are written in the order they were received, and a batch is answered exactly
once, through `Outlet.committed` or `Outlet.failed`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Condition, Lock, Thread
from time import monotonic
from typing import NamedTuple

from feedq.errors import FeedMisconfigured, FeedqError, LeaseLost, SinkUnavailable
from feedq.model import JSON, Batch, FeedKey
from feedq.runtime.outlet import Budget, Outlet
from feedq.sinks.base import CommitUnknown, FeedWrite, Sink, Written
from feedq.telemetry import (
    BYTES,
    COMMIT_DELAY_SECONDS,
    COMMIT_SECONDS,
    DEAD_LETTERS,
    FENCED,
    RECORDS,
    LogEvent,
    log,
)

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
"""A sink that comes back is noticed within this; asking more often would only add to its troubles."""
IDLE_S = 60.0
"""With nothing to do the thread sleeps until it is woken, and looks up now and then."""

logger = log(__name__)


Entry = tuple[Outlet, Batch, float]
"""A batch on its way, and the monotonic time of its arrival here. A bare tuple: one is made for each batch."""


class Postponed:
    """Batches of feeds whose table somebody has locked, until they are tried again: ever less often."""

    def __init__(self) -> None:
        self.batches: dict[Outlet, list[Batch]] = {}
        self._retry_at = 0.0
        self._pause_s = RETRY_FIRST_S
        self.is_retrying = False
        """Whether some of them are in the group that is being written."""

    def due_in_s(self, now: float) -> float:
        return self._retry_at - now if self.batches else IDLE_S

    def take(self, now: float) -> dict[Outlet, list[Batch]]:
        """All of them, if their time has come."""
        self.is_retrying = self.due_in_s(now) <= 0
        if not self.is_retrying:
            return {}
        taken, self.batches = self.batches, {}
        return taken

    def add(self, aside: dict[Outlet, list[Batch]], *, now: float) -> None:
        """Keep them; what is kept already is of other feeds."""
        if self.is_retrying:
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S) if aside else RETRY_FIRST_S
        self.batches |= aside
        self._retry_at = now + self._pause_s


class _Answer(NamedTuple):
    """What to tell one outlet, with the sizes of all its batches in the group added up."""

    outlet: Outlet
    size: int
    landed: int = 0
    dead: int = 0
    cursor: JSON = None
    failure: FeedqError | None = None
    on_committed: Sequence[Callable[[], None]] = ()

    def deliver(self) -> None:
        if self.failure is not None:
            self.outlet.failed(size=self.size, failure=self.failure)
            return
        self.outlet.committed(size=self.size, landed=self.landed, dead=self.dead, cursor=self.cursor)
        for acknowledge in self.on_committed:
            try:
                acknowledge()
            except Exception:
                # A connector's own code: the commit stands, and the other feeds must hear of theirs.
                logger.exception(LogEvent.UNEXPECTED, where="on_committed", feed=self.outlet.feed)


class Writer:
    """The writing end of one sink. `submit` is called on loops; everything else happens on its thread."""

    def __init__(
        self, name: str, sink: Callable[[], Sink], *, flush_interval_s: float, flush_bytes: int
    ) -> None:
        self._name = name
        self._make_sink = sink
        self._sink: Sink | None = None
        self._renew = False
        self._flush_interval_s, self._flush_bytes = flush_interval_s, flush_bytes
        # Without the counting of the lock that is the default: it is taken for each batch.
        self._lock = Lock()
        self._wakeup = Condition(self._lock)
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._postponed = Postponed()
        self._hurry = False
        self._stopping = False
        self._thread = Thread(target=self._run, name=f"feedq-writer-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, outlet: Outlet, batch: Batch) -> None:
        with self._lock:
            self._queue.append((outlet, batch, monotonic()))
            self._bytes += batch.size
            # The thread sleeps without a limit while there is nothing, and until the interval ends while
            # there is something: only the first batch and a full buffer need to wake it.
            if len(self._queue) == 1 or self._bytes >= self._flush_bytes:
                self._wakeup.notify()

    def hurry(self) -> None:
        """Commit what is there without waiting for the interval to end."""
        with self._wakeup:
            self._hurry = True
            self._wakeup.notify()

    def renew(self) -> None:
        """Use a new session from the next group on: the worker has a new name."""
        self._renew = True

    def stop(self, *, timeout_s: float) -> None:
        """End the thread. What has not been written is dropped: the checkpoint says so to the successor."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._gather()) is not None:
            try:
                if self._renew:
                    self._renew = False
                    self._close()
                self._commit(group)
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="writer", sink=self._name)
                failure = SinkUnavailable(f"sink {self._name!r}: unexpected error: {error!r}")
                self._answer([_refusal(o, bs, failure) for o, bs in group.items()])
            # Or its batches would stay in memory until the next one comes.
            del group
        self._close()

    def _close(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _gather(self) -> dict[Outlet, list[Batch]] | None:
        """Wait for a group that is due; None when the writer stops."""
        with self._wakeup:
            while not self._stopping:
                now = monotonic()
                due_in_s = min(self._queue_due_in_s(now), self._postponed.due_in_s(now))
                if due_in_s <= 0:
                    return self._take(now)
                self._wakeup.wait(due_in_s)
        return None

    def _queue_due_in_s(self, now: float) -> float:
        if not self._queue:
            return IDLE_S
        if self._hurry or self._bytes >= self._flush_bytes:
            return 0.0
        _, _, at = self._queue[0]
        return at + self._flush_interval_s - now

    def _take(self, now: float) -> dict[Outlet, list[Batch]]:
        group = self._postponed.take(now)
        waiting = self._postponed.batches
        # Twice the trigger bounds the memory of one transaction; the rest is due again at once.
        size = 0
        while self._queue and size < 2 * self._flush_bytes:
            outlet, batch, _ = self._queue.popleft()
            (waiting if outlet in waiting else group).setdefault(outlet, []).append(batch)
            size += batch.size
        self._bytes -= size
        self._hurry = False
        return group

    def _commit(self, group: dict[Outlet, list[Batch]]) -> None:
        if not group:  # all that was due joined what is put aside
            return
        writes = [
            FeedWrite(o.key[0], o.feed, o.key[1], o.landing, tuple(bs))
            for o, bs in group.items()
            if o.broken is None
        ]
        started = monotonic()
        written = self._write(writes) if writes else Written({}, {}, (), {})
        if written is None:
            return
        COMMIT_SECONDS.observe(monotonic() - started)
        if written.postponed or self._postponed.is_retrying:
            group = self._postpone(group, written.postponed)
        answers = [_answer(outlet, batches, written) for outlet, batches in group.items()]
        now = datetime.now(UTC)
        COMMIT_DELAY_SECONDS.observe_all(
            max(0.0, (now - batch.received_at).total_seconds())
            for answer in answers
            if answer.failure is None
            for batch in group[answer.outlet]
        )
        RECORDS.inc(sum(answer.landed for answer in answers))
        BYTES.inc(sum(answer.size for answer in answers if answer.failure is None))
        self._answer(answers)

    def _postpone(
        self, group: dict[Outlet, list[Batch]], why: Mapping[FeedKey, str]
    ) -> dict[Outlet, list[Batch]]:
        """Put aside the feeds that this concerns; returns the others."""
        aside = {outlet: batches for outlet, batches in group.items() if outlet.key in why}
        for reason in {why[outlet.key] for outlet in aside if not outlet.is_postponed}:
            logger.warning(LogEvent.LANDING_LOCKED, sink=self._name, error=reason)
        for outlet in group:
            outlet.is_postponed = outlet in aside
        with self._wakeup:
            self._postponed.add(aside, now=monotonic())
        return {outlet: batches for outlet, batches in group.items() if outlet not in aside}

    def _write(self, writes: list[FeedWrite]) -> Written | None:
        """Write until it is decided; None when the writer is stopped first."""
        unknown: CommitUnknown | None = None
        pause_s = RETRY_FIRST_S
        away_since: float | None = None
        while not self._stopping:
            try:
                if self._sink is None:
                    self._sink = self._make_sink()
                if unknown is not None:
                    settled = self._sink.settle(unknown)
                    unknown = None
                    if settled is not None:
                        return settled
                written = self._sink.write(writes)
            except CommitUnknown as error:
                logger.warning(LogEvent.COMMIT_UNKNOWN, sink=self._name, feeds=len(error.writes))
                unknown = error
            except SinkUnavailable as error:
                if away_since is None:
                    away_since = monotonic()
                    logger.warning(LogEvent.SINK_AWAY, sink=self._name, error=str(error))
                self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                if away_since is not None:
                    away_s = round(monotonic() - away_since, 1)
                    logger.info(LogEvent.SINK_BACK, sink=self._name, away_s=away_s)
                return written
        return None

    def _pause(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        with self._wakeup:
            while not self._stopping and (left_s := deadline - monotonic()) > 0:
                self._wakeup.wait(left_s)

    @staticmethod
    def _answer(answers: Iterable[_Answer]) -> None:
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Answer]] = defaultdict(list)
        decided: defaultdict[Budget, int] = defaultdict(int)
        for answer in answers:
            decided[answer.outlet.budget] += answer.size
            by_loop[answer.outlet.loop].append(answer)
        # It no longer burdens the worker, whether or not a runner is left to hear of it.
        for budget, size in decided.items():
            budget.give_back(size)
        for loop, mine in by_loop.items():
            # Closed, at whatever moment: nobody is left to tell there, and the others must be told all the same.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, mine)


def _deliver(answers: list[_Answer]) -> None:
    for answer in answers:
        answer.deliver()


def _answer(outlet: Outlet, batches: list[Batch], written: Written) -> _Answer:
    if outlet.broken is not None:
        return _refusal(outlet, batches, outlet.broken)
    if outlet.key in written.unusable:
        return _refusal(outlet, batches, FeedMisconfigured(written.unusable[outlet.key]))
    if outlet.key not in written.landed:
        FENCED.inc()
        feed_id, epoch = outlet.key
        lost = f"feed {feed_id} ({outlet.feed}): epoch {epoch} was superseded; this worker stops writing"
        return _refusal(outlet, batches, LeaseLost(lost))
    landed, dead = written.landed[outlet.key], written.dead.get(outlet.key, 0)
    if dead:
        DEAD_LETTERS.inc(dead)
        logger.warning(LogEvent.DEAD_LETTERS, feed=outlet.feed, records=dead)
    size = 0
    on_committed: list[Callable[[], None]] = []
    for batch in batches:
        size += batch.size
        if batch.on_committed is not None:
            on_committed.append(batch.on_committed)
    return _Answer(outlet, size, landed, dead, batches[-1].cursor, on_committed=on_committed)


def _refusal(outlet: Outlet, batches: list[Batch], failure: FeedqError) -> _Answer:
    outlet.broken = failure
    return _Answer(outlet, sum(batch.size for batch in batches), failure=failure)
