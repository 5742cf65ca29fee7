"""The writer of a sink gathers the batches of all feeds and lands them in few transactions, by group commit.

It gathers what comes in until the oldest batch has waited ``flush_interval_s``, or ``flush_bytes`` wait, or
a flush is asked for; then one transaction lands everything and advances every checkpoint. A sink that is
away is tried again with the same batches for as long as the worker runs: backpressure stops the reading
meanwhile.

Feeds in trouble are not waited for. What a group commit does not land at once (a record that is refused, a table
that is locked) is put apart, the others land, and `ApartWriter` writes it feed by feed, on a thread and a session
of its own, until the feed behaves. Batches of one feed are written in the order they were received.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from threading import Condition, Lock
from time import monotonic

from feedq.errors import SinkUnavailable
from feedq.records.batch import Batch
from feedq.sinks.base import Sink, Written
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, note_turn
from feedq.worker.batch_queue import BatchQueue
from feedq.worker.writing_session import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    Group,
    Outage,
    WritingSession,
    finish,
    refuse,
    refuse_unexpected,
)

APART_AFTER = 5
"""Failures of a group in a row before one of its feeds is tried by itself, to see whether it is the sink."""

SUSPECT_S = 60.0
"""A feed that had a record refused is written apart this long, as others are to be expected of it."""
SLICE_BYTES_MIN = 64 * 1024
SLICE_FAST_S, SLICE_SLOW_S = 0.25, 1.0
"""The time that one slice of a feed that is written apart is to take: so much of it is written at once."""

logger = log(__name__)

Entry = tuple[BatchQueue, Batch, float]
"""A batch on its way, and the monotonic time of its arrival here. A bare tuple: one is made for each batch."""


class Writer:
    """The writing end of one sink. `submit` is called on loops; everything else happens on its threads."""

    def __init__(
        self,
        name: str,
        make_sink: Callable[[], Sink],
        outage: Outage,
        *,
        flush_interval_s: float,
        flush_bytes: int,
    ) -> None:
        self._name, self._outage = name, outage
        self._flush_interval_s, self._flush_bytes = flush_interval_s, flush_bytes
        self._session = WritingSession(name, make_sink, outage)
        self._apart = ApartWriter(
            name,
            WritingSession(name, make_sink, outage),
            flush_interval_s=flush_interval_s,
            slice_bytes_max=2 * flush_bytes,
        )
        # Without the counting of the lock that is the default: it is taken for each batch.
        self._lock = Lock()
        self._wakeup = Condition(self._lock)
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._flush_now = self._must_drop = False
        self._stopping = False
        self._thread = WatchedThread(self._run, name=f"feedq-writer-{name}")

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch_queue: BatchQueue, batch: Batch) -> None:
        with self._lock:
            self._queue.append((batch_queue, batch, monotonic()))
            self._bytes += batch.size
            # The thread sleeps without a limit while there is nothing, and until the interval ends while
            # there is something: only the first batch and a full buffer need to wake it.
            if len(self._queue) == 1 or self._bytes >= self._flush_bytes:
                self._wakeup.notify()

    def flush_now(self) -> None:
        """Commit what is there without waiting for the interval to end."""
        with self._wakeup:
            self._flush_now = True
            self._wakeup.notify()
        self._apart.flush_now()

    def drop_abandoned(self) -> None:
        """Drop what abandoned batch queues have brought."""
        with self._wakeup:
            self._must_drop = True
            self._wakeup.notify()
        self._apart.drop_abandoned()

    def renew(self) -> None:
        """Use new sessions from the next group on: the worker has registered again, under a new id."""
        self._session.must_renew = self._apart.session.must_renew = True

    def stop(self, *, timeout_s: float) -> None:
        """End the threads. What has not been written is dropped: the checkpoint says so to the successor."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        stop_by = monotonic() + timeout_s
        self._apart.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._apart.join(max(0.0, stop_by - monotonic()))

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            note_turn()
            group = self._gather()
            try:
                if group:
                    self._commit(group)
                elif not self._queue:
                    self._session.probe()
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="writer", sink=self._name)
                refuse_unexpected(self._name, group, error)
            # Or its batches would stay in memory until the next one comes.
            del group
        self._session.close()

    def _gather(self) -> Group:
        """Return a group that is due, or wait for one, and return nothing yet."""
        with self._wakeup:
            due_in_s = self._due_in_s(monotonic())
            if due_in_s <= 0:
                return self._take()
            if not self._stopping:
                self._wakeup.wait(min(due_in_s, TURN_S))
        return {}

    def _due_in_s(self, now: float) -> float:
        if not self._queue:
            return TURN_S
        if self._flush_now or self._bytes >= self._flush_bytes:
            return 0.0
        _, _, at = self._queue[0]
        return at + self._flush_interval_s - now

    def _take(self) -> Group:
        group: Group = {}
        # Twice the trigger bounds the memory of one transaction; the rest is due again at once.
        size = 0
        while self._queue and size < 2 * self._flush_bytes:
            batch_queue, batch, _ = self._queue.popleft()
            if not batch_queue.is_apart or not self._apart.take(batch_queue, batch):
                group.setdefault(batch_queue, []).append(batch)
            size += batch.size
        self._bytes -= size
        self._flush_now = False
        return group

    def _commit(self, group: Group) -> None:
        written = self._write(group)
        if written is None:
            return
        if written.postponed:
            self._put_apart(
                {queue: batches for queue, batches in group.items() if queue.key in written.postponed}
            )
            group = {queue: batches for queue, batches in group.items() if queue.key not in written.postponed}
        finish(group, written)

    def _write(self, group: Group) -> Written | None:
        """Write until it is decided; None when there is nothing left to be decided here.

        Feeds that are gone leave the group, and it falls apart when some feed of it can be written and it cannot.
        """
        pause_s, failures = RETRY_FIRST_S, 0
        while not self._stopping:
            _drop_broken(group)
            if not group:
                return None
            try:
                return self._session.write(group, briefly=True)
            except SinkUnavailable:
                failures += 1
                if failures >= APART_AFTER and self._is_not_the_sinks(group):
                    self._put_apart(group)
                    return None
                self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception as error:  # the feed that raises it by itself tells more
                if len(group) == 1:
                    raise
                logger.warning(LogEvent.UNEXPECTED, where="writer", sink=self._name, error=repr(error))
                self._put_apart(group)
                return None
        return None

    def _is_not_the_sinks(self, group: Group) -> bool:
        """Try one feed of a group by itself; whether it landed, or there is no other to tell by."""
        if len(group) == 1:
            return True
        batch_queue = next(iter(group))
        # Another one comes first the next time.
        batches = group[batch_queue] = group.pop(batch_queue)
        with contextlib.suppress(SinkUnavailable):
            written = self._session.write({batch_queue: batches}, briefly=True)
            if batch_queue.key not in written.postponed:
                del group[batch_queue]
                finish({batch_queue: batches}, written)
                return True
        return False

    def _put_apart(self, group: Group) -> None:
        logger.info(LogEvent.FEEDS_APART, sink=self._name, feeds=[queue.feed for queue in islice(group, 20)])
        self._apart.add(group)

    def _pause(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        with self._wakeup:
            while not self._stopping and (left_s := deadline - monotonic()) > 0:
                if self._must_drop:
                    self._must_drop = False
                    self._queue = deque(entry for entry in self._queue if not self._is_gone(entry))
                note_turn()
                self._wakeup.wait(min(left_s, TURN_S))

    def _is_gone(self, entry: Entry) -> bool:
        batch_queue, batch, _ = entry
        if batch_queue.broken is None:
            return False
        self._bytes -= batch.size
        refuse(batch_queue, [batch], batch_queue.broken)
        return True


def _drop_broken(group: Group) -> None:
    """Let go of feeds of which nothing may be written any more: stopped, lost, or misconfigured."""
    for batch_queue in list(group):
        if batch_queue.broken is not None:
            refuse(batch_queue, group.pop(batch_queue), batch_queue.broken)


# -- feeds in trouble ---------------------------------------------------------------------------------


@dataclass(slots=True)
class FeedApart:
    """A feed that is written separately."""

    due_at: float
    until: float
    """The moment at which the feed is written with the others again, when nothing of it waits then."""
    slice_bytes: int = 4 * SLICE_BYTES_MIN
    pause_s: float = 0.0
    tried_at: float = float("-inf")
    batches: deque[Batch] = field(default_factory=deque)
    bytes: int = 0

    def next_slice(self) -> list[Batch]:
        taken: list[Batch] = []
        size = 0
        for batch in self.batches:
            if taken and size + batch.size > self.slice_bytes:
                break
            taken.append(batch)
            size += batch.size
        return taken


class ApartWriter:
    """Writes feeds in trouble one at a time, so that the others need not wait for them.

    A feed takes turns with others of its kind. As much of it is written in a turn as takes `SLICE_SLOW_S` at most,
    one batch at least. One that cannot be written now is retried at growing intervals. What waits for a feed here
    is always older than what `Writer` still has of it, and a feed goes back only when nothing does.
    """

    def __init__(
        self, name: str, session: WritingSession, *, flush_interval_s: float, slice_bytes_max: int
    ) -> None:
        self._name, self.session = name, session
        self._flush_interval_s, self._slice_bytes_max = flush_interval_s, slice_bytes_max
        self._wakeup = Condition()
        self._feeds: dict[BatchQueue, FeedApart] = {}
        self._stopping = False
        self._thread: WatchedThread | None = None

    def add(self, group: Group) -> None:
        """Take these over, with all that comes of them later."""
        now = monotonic()
        with self._wakeup:
            for batch_queue, batches in group.items():
                # One that has just come back and fails the others again is to stay for longer.
                again = now - batch_queue.back_at < SUSPECT_S
                batch_queue.apart_s = min(max(1.0, 2 * batch_queue.apart_s), SUSPECT_S) if again else 0.0
                feed = self._feeds[batch_queue] = FeedApart(due_at=now, until=now + batch_queue.apart_s)
                feed.batches += batches
                feed.bytes = sum(batch.size for batch in batches)
                batch_queue.is_apart = batch_queue.is_postponed = True
            if self._thread is None and not self._stopping:
                thread = WatchedThread(self._run, name=f"feedq-apart-{self._name}")
                thread.start()  # or raises: then the next feed tries again
                self._thread = thread
            self._wakeup.notify()

    def take(self, batch_queue: BatchQueue, batch: Batch) -> bool:
        """Take over what comes later of a feed that is here; False when it is to go with the others again."""
        now = monotonic()
        with self._wakeup:
            feed = self._feeds.get(batch_queue)
            if feed is None or (not feed.batches and now >= feed.until):
                self._rejoin(batch_queue, now)
                return False
            if not feed.batches:
                feed.due_at = max(feed.due_at, now)
            feed.batches.append(batch)
            feed.bytes += batch.size
            self._wakeup.notify()
            return True

    def flush_now(self) -> None:
        with self._wakeup:
            for batch_queue, feed in self._feeds.items():
                if not batch_queue.is_postponed:
                    feed.due_at = min(feed.due_at, monotonic())
            self._wakeup.notify()

    def drop_abandoned(self) -> None:
        with self._wakeup:
            self._wakeup.notify()

    def stop(self) -> None:
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (turn := self._next_turn()) is not None:
            batch_queue, feed, batches = turn
            try:
                self._write(batch_queue, feed, batches)
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="writer", sink=self._name, feed=batch_queue.feed)
                refuse_unexpected(self._name, {batch_queue: batches}, error)
                self._done(feed, batches)
            del turn, batch_queue, feed, batches
        self.session.close()

    def _next_turn(self) -> tuple[BatchQueue, FeedApart, list[Batch]] | None:
        with self._wakeup:
            while not self._stopping:
                self._drop_broken()
                now = monotonic()
                waiting = [(f.due_at, f.tried_at, n) for n, f in enumerate(self._feeds.values()) if f.batches]
                if waiting and (first := min(waiting))[0] <= now:
                    batch_queue, feed = next(islice(self._feeds.items(), first[2], None))
                    feed.tried_at = now
                    return batch_queue, feed, feed.next_slice()
                if not self._feeds:
                    self.session.close()
                note_turn()
                self._wakeup.wait(min(first[0] - now, TURN_S) if waiting else TURN_S)
        return None

    def _drop_broken(self) -> None:
        for batch_queue in list(self._feeds):
            if batch_queue.broken is not None:
                refuse(batch_queue, self._feeds.pop(batch_queue).batches, batch_queue.broken)

    def _rejoin(self, batch_queue: BatchQueue, now: float) -> None:
        self._feeds.pop(batch_queue, None)
        batch_queue.is_apart, batch_queue.back_at = False, now

    def _write(self, batch_queue: BatchQueue, feed: FeedApart, batches: list[Batch]) -> None:
        started = monotonic()
        try:
            written = self.session.write({batch_queue: batches}, briefly=False)
        except SinkUnavailable as error:
            self._put_off(batch_queue, feed, str(error))
            return
        if why := written.postponed.get(batch_queue.key):
            self._put_off(batch_queue, feed, why)
            return
        now = monotonic()
        finish({batch_queue: batches}, written)
        with self._wakeup:
            self._done(feed, batches)
            feed.pause_s = 0.0
            # Behind those that are due already: there are more feeds like this one.
            feed.due_at = started + self._flush_interval_s if feed.bytes < feed.slice_bytes else now
            if now - started < SLICE_FAST_S:
                feed.slice_bytes = min(2 * feed.slice_bytes, self._slice_bytes_max)
            elif now - started > SLICE_SLOW_S:
                feed.slice_bytes = max(feed.slice_bytes // 2, SLICE_BYTES_MIN)
            if written.dead.get(batch_queue.key):
                feed.until = now + SUSPECT_S
            batch_queue.is_postponed = False
        self._say(batch_queue, None)

    def _put_off(self, batch_queue: BatchQueue, feed: FeedApart, why: str) -> None:
        with self._wakeup:
            feed.pause_s = min(max(2 * feed.pause_s, RETRY_FIRST_S), RETRY_MAX_S)
            feed.due_at = monotonic() + feed.pause_s
            batch_queue.is_postponed = True
            # Those that the same thing is in the way of: one of them is enough to find out whether it still is.
            for other, theirs in self._feeds.items():
                if other.trouble == why:
                    theirs.due_at = max(theirs.due_at, feed.due_at)
        self._say(batch_queue, why)

    def _say(self, batch_queue: BatchQueue, trouble: str | None) -> None:
        if batch_queue.trouble == trouble:
            return
        if trouble is not None:
            logger.warning(LogEvent.FEED_POSTPONED, sink=self._name, feed=batch_queue.feed, error=trouble)
        batch_queue.trouble = trouble
        batch_queue.tell()

    @staticmethod
    def _done(feed: FeedApart, batches: list[Batch]) -> None:
        for batch in batches:
            feed.batches.popleft()
            feed.bytes -= batch.size
