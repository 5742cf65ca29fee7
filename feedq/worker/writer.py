"""The writer of a sink gathers the batches of all feeds and lands them in few transactions, by group commit.

It gathers what comes in until the oldest batch has waited ``flush_interval_s``, or ``flush_bytes`` wait, or
a flush is asked for; then one transaction lands everything and advances every checkpoint. A sink that is
away is tried again with the same batches for as long as the worker runs: backpressure stops the reading
meanwhile. A commit whose answer was lost is decided by the checkpoint, never by guessing.

Feeds in trouble are not waited for. What a group commit does not land at once (a record that is refused, a table
that is locked) is put apart, the others land, and `ApartWriter` writes it feed by feed, on a thread and a session
of its own, until the feed behaves.

Invariant: batches of one feed are written in the order they were received, and a batch is answered exactly
once, through `BatchQueue.committed` or `BatchQueue.failed`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from feedq.errors import FeedMisconfigured, FeedqError, LeaseLost, SinkRewound, SinkUnavailable
from feedq.model import Batch
from feedq.sinks.base import CommitUnknown, FeedWrite, Sink, Written
from feedq.telemetry import (
    BYTES,
    COMMIT_DELAY_SECONDS,
    COMMIT_SECONDS,
    DEAD_LETTERS,
    FENCED,
    RECORDS,
    SINK_REWINDS,
    LogEvent,
    log,
)
from feedq.worker.batch_queue import BatchQueue, CommitAnswer, answer_all
from feedq.worker.outage import Outage

if TYPE_CHECKING:
    from feedq.worker.apart_writer import ApartWriter

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
"""A sink that comes back is noticed within this; asking more often would only add to its troubles."""
IDLE_S = 60.0
"""The longest sleep of a thread with nothing to do, unless it is woken."""
APART_AFTER = 5
"""Failures of a group in a row before one of its feeds is tried by itself, to see whether it is the sink."""

logger = log(__name__)


Entry = tuple[BatchQueue, Batch, float]
"""A batch on its way, and the monotonic time of its arrival here. A bare tuple: one is made for each batch."""
Group = dict[BatchQueue, list[Batch]]


class WritingSession:
    """A session with a sink that lands groups, and knows of a commit whose answer was lost. For one thread."""

    def __init__(self, name: str, make_sink: Callable[[], Sink], outage: Outage) -> None:
        self._name, self._make_sink, self.outage = name, make_sink, outage
        self._sink: Sink | None = None
        self._unknown: CommitUnknown | None = None
        self.must_renew = False

    @property
    def is_decided(self) -> bool:
        """Whether it is known what became of the last group. If not, the same is to be written next."""
        return self._unknown is None

    def write(self, group: Mapping[BatchQueue, Sequence[Batch]], *, briefly: bool) -> Written:
        """Raises `SinkUnavailable`."""
        since = monotonic()
        if briefly:
            self.outage.ask(since)
        try:
            written = self._write(group, briefly=briefly)
        except SinkUnavailable as error:
            self.outage.failed(error, since=since)
            raise
        else:
            self.outage.over()
            COMMIT_SECONDS.observe(monotonic() - since)
            for batch_queue in group:
                if batch_queue.key in written.landed:
                    batch_queue.continues = written.commit_id
            return written
        finally:
            if briefly:
                self.outage.answered()

    def _write(self, group: Mapping[BatchQueue, Sequence[Batch]], *, briefly: bool) -> Written:
        if self.must_renew and self.is_decided:
            self.must_renew = False
            self.close()
        if self._sink is None:
            self._sink = self._make_sink()
        if self._unknown is not None:
            settled = self._sink.settle(self._unknown)
            self._unknown = None
            if settled is not None:
                return settled
        try:
            return self._sink.write(
                [
                    FeedWrite(
                        queue.key[0], queue.feed, queue.key[1], queue.target, tuple(batches), queue.continues
                    )
                    for queue, batches in group.items()
                ],
                briefly=briefly,
            )
        except CommitUnknown as error:
            logger.warning(LogEvent.COMMIT_UNKNOWN, sink=self._name, feeds=len(error.writes))
            self._unknown = error
            raise SinkUnavailable(f"sink {self._name!r}: {error}") from error

    def forget(self) -> None:
        """Forget the last group: nobody will ask what became of it; if it landed, its feeds are
        `Written.rewound` next."""
        self._unknown = None

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None


class Writer:
    """The writing end of one sink. `submit` is called on loops; everything else happens on its threads."""

    def __init__(
        self,
        name: str,
        session: WritingSession,
        apart: ApartWriter,
        *,
        flush_interval_s: float,
        flush_bytes: int,
    ) -> None:
        self._name, self._session, self._apart = name, session, apart
        self._flush_interval_s, self._flush_bytes = flush_interval_s, flush_bytes
        # Without the counting of the lock that is the default: it is taken for each batch.
        self._lock = Lock()
        self._wakeup = Condition(self._lock)
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._flush_now = self._must_forget = False
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

    def forget(self) -> None:
        """Drop what an abandoned batch queue has brought."""
        with self._wakeup:
            self._must_forget = True
            self._wakeup.notify()
        self._apart.forget()

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
        self._session.outage.is_tried = True
        try:
            written = self._write(group)
        finally:
            self._session.outage.is_tried = False
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
                self._session.forget()
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
                self._session.forget()
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
                if self._must_forget:
                    self._must_forget = False
                    self._queue = deque(entry for entry in self._queue if not self._is_gone(entry))
                self._wakeup.wait(left_s)

    def _is_gone(self, entry: Entry) -> bool:
        batch_queue, batch, _ = entry
        if batch_queue.broken is None:
            return False
        self._bytes -= batch.size
        answer_all([refusal(batch_queue, [batch], batch_queue.broken)])
        return True


def finish(group: Group, written: Written) -> None:
    """Count what became of a group, and tell its feeds."""
    answers = [_answer_of(batch_queue, batches, written) for batch_queue, batches in group.items()]
    now = datetime.now(UTC)
    COMMIT_DELAY_SECONDS.observe_all(
        max(0.0, (now - batch.received_at).total_seconds())
        for answer in answers
        if answer.failure is None
        for batch in group[answer.batch_queue]
    )
    RECORDS.inc(sum(answer.landed for answer in answers))
    BYTES.inc(sum(answer.size for answer in answers if answer.failure is None))
    answer_all(answers)


def _drop_broken(group: Group) -> None:
    """Let go of feeds of which nothing may be written any more: stopped, lost, or misconfigured."""
    for batch_queue in [batch_queue for batch_queue in group if batch_queue.broken is not None]:
        assert batch_queue.broken is not None
        answer_all([refusal(batch_queue, group.pop(batch_queue), batch_queue.broken)])


def refuse_unexpected(name: str, group: Group, error: Exception) -> None:
    """An error of ours, or of a sink: its feeds shall hear of it."""
    failure = SinkUnavailable(f"sink {name!r}: unexpected error: {error!r}")
    answer_all([refusal(batch_queue, batches, failure) for batch_queue, batches in group.items()])


def _answer_of(batch_queue: BatchQueue, batches: list[Batch], written: Written) -> CommitAnswer:
    if batch_queue.broken is not None:
        return refusal(batch_queue, batches, batch_queue.broken)
    if batch_queue.key in written.unusable:
        return refusal(batch_queue, batches, FeedMisconfigured(written.unusable[batch_queue.key]))
    feed_id, epoch = batch_queue.key
    if batch_queue.key in written.rewound:
        SINK_REWINDS.inc()
        gone_back = (
            f"feed {feed_id} ({batch_queue.feed}): its checkpoint in the sink is not the one that was left there "
            f"under epoch {epoch}: the sink has gone back, or the row was changed; going on from its cursor"
        )
        return refusal(batch_queue, batches, SinkRewound(gone_back))
    if batch_queue.key not in written.landed:
        FENCED.inc()
        lost = f"feed {feed_id} ({batch_queue.feed}): epoch {epoch} was superseded; this worker stops writing"
        return refusal(batch_queue, batches, LeaseLost(lost))
    landed, dead = written.landed[batch_queue.key], written.dead.get(batch_queue.key, 0)
    if dead:
        DEAD_LETTERS.inc(dead)
        logger.warning(LogEvent.DEAD_LETTERS, feed=batch_queue.feed, records=dead)
    size = 0
    on_committed: list[Callable[[], None]] = []
    for batch in batches:
        size += batch.size
        if batch.on_committed is not None:
            on_committed.append(batch.on_committed)
    error = written.errors.get(batch_queue.key)
    return CommitAnswer(batch_queue, size, landed, dead, error, batches[-1].cursor, on_committed=on_committed)


def refusal(batch_queue: BatchQueue, batches: list[Batch], failure: FeedqError) -> CommitAnswer:
    batch_queue.broken = failure
    return CommitAnswer(batch_queue, sum(batch.size for batch in batches), failure=failure)
