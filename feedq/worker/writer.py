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
from itertools import islice
from threading import Condition, Lock, Thread
from time import monotonic

from feedq.core.model import Batch
from feedq.errors import SinkUnavailable
from feedq.sinks.base import Sink, Written
from feedq.telemetry.logs import LogEvent, log
from feedq.worker.apart_writer import ApartWriter
from feedq.worker.batch_queue import BatchQueue
from feedq.worker.writing_session import (
    IDLE_S,
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
        self._thread = Thread(target=self._run, name=f"feedq-writer-{name}", daemon=True)

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
        self._session.must_renew = True
        self._apart.renew()

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
        while (group := self._gather()) is not None:
            try:
                self._commit(group)
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="writer", sink=self._name)
                refuse_unexpected(self._name, group, error)
            # Or its batches would stay in memory until the next one comes.
            del group
        self._session.close()

    def _gather(self) -> Group | None:
        """Wait for a group that is due; None when the writer stops."""
        with self._wakeup:
            while not self._stopping:
                due_in_s = self._due_in_s(monotonic())
                if due_in_s <= 0:
                    return self._take()
                self._wakeup.wait(due_in_s)
        return None

    def _due_in_s(self, now: float) -> float:
        if not self._queue:
            return IDLE_S
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
        self._outage.is_tried = True
        try:
            written = self._write(group)
        finally:
            self._outage.is_tried = False
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
                self._session.leave_undecided()
                return None
            try:
                return self._session.write(group, briefly=True)
            except SinkUnavailable:
                failures += 1
                if failures >= APART_AFTER and self._session.is_decided and self._is_not_the_sinks(group):
                    self._put_apart(group)
                    return None
                self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception as error:  # the feed that raises it by itself tells more
                if len(group) == 1:
                    raise
                logger.warning(LogEvent.UNEXPECTED, where="writer", sink=self._name, error=repr(error))
                self._session.leave_undecided()
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
                self._wakeup.wait(left_s)

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
