"""The writer of a sink gathers the batches of all feeds and lands them in few transactions, by group commit.

A batch waits in the queue of its feed (`BatchQueue.waiting`) until it is decided. The writer gathers what comes in
until the oldest batch has waited ``flush_interval_s``, or ``flush_bytes`` wait, or a flush is asked for; then one
transaction lands everything and advances every checkpoint. A group that could not be written is written again,
also when the answer to its commit was lost: then the sink finds out what became of it. A sink that is away is
tried again with the same batches for as long as the worker runs: backpressure stops the reading meanwhile.

Feeds in trouble are not waited for. What a group commit does not land at once (a record that is refused, a table
that is locked) is put apart, the others land, and `ApartWriter` writes it feed by feed, on a thread and a session
of its own, until the feed behaves. Batches of one feed are written in the order they were received, by one of the
two threads at a time, and each is answered exactly once, by a `CommitAnswer` to its queue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any, TypeAlias

from feedq.errors import CheckpointLost, CommitUnknown, FeedMisconfigured, FeedqError, SinkUnavailable
from feedq.records.batch import Batch, size_of
from feedq.sinks.base import FeedWrite, Sink, Written
from feedq.telemetry import traces
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import BYTES, COMMIT_DELAY_SECONDS, COMMIT_SECONDS, DEAD_LETTERS, RECORDS
from feedq.telemetry.watched_threads import TURN_S, note_turn
from feedq.worker.batch_queue import BatchQueue, CommitAnswer
from feedq.worker.sink_thread import Outage, SinkThread
from feedq.worker.threads import call_on

PROBE_S = 2.0
"""How often a sink that is away is asked whether it is back."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
"""A sink that comes back is noticed within this; asking more often would only add to its troubles."""
APART_AFTER = 5
"""Failures of a group in a row before one of its feeds is tried by itself, to see whether it is the sink."""

SUSPECT_S = 60.0
"""A feed that had a record refused is written apart this long, as others are to be expected of it."""
SLICE_BYTES_MIN = 64 * 1024
SLICE_FAST_S, SLICE_SLOW_S = 0.25, 1.0
"""The time that one slice of a feed that is written apart is to take: so much of it is written at once."""

logger = log(__name__)

Group: TypeAlias = dict[BatchQueue, list[Batch]]
"""The oldest batches that wait in some queues."""


class QueueWriter(SinkThread):
    """A thread that writes what waits in some batch queues. Its lock guards what waits in them, too."""

    _queues: dict[BatchQueue, Any]
    """The queues that it writes, and what it knows of each."""

    def _turn(self) -> None:
        group: Group = {}
        try:
            group = self._gather()
            if group:
                self._commit(group)
        except Exception as error:
            # An error of ours, or of a sink: its feeds shall hear of it.
            feeds = [queue.feed for queue in islice(group, 20)]
            logger.exception(LogEvent.UNEXPECTED, where="writer", sink=self._name, feeds=feeds)
            failure = SinkUnavailable(f"sink {self._name!r}: unexpected error: {error!r}")
            self._refuse(dict.fromkeys(group, failure))

    @abstractmethod
    def _gather(self) -> Group:
        """Return a group that is due, or wait for one, and return nothing yet."""

    @abstractmethod
    def _commit(self, group: Group) -> None:
        """Write a group, which may fall apart."""

    @abstractmethod
    def _forget(self, queue: BatchQueue, batches: list[Batch]) -> None:
        """These batches, the oldest that wait, are decided. With the lock held."""

    def _land(self, group: Group, *, briefly: bool) -> Written:
        """Write a group in one transaction. Raises `SinkUnavailable`."""
        writes = [
            FeedWrite(
                queue.key[0],
                queue.feed,
                queue.key[1],
                queue.target,
                tuple(batches),
                queue.continues,
                queue.progress.watch,
            )
            for queue, batches in group.items()
        ]
        since = monotonic()
        try:
            with self._asking(briefly=briefly) as sink:
                written = sink.write(writes, briefly=briefly)
        except CommitUnknown:
            logger.warning(LogEvent.COMMIT_UNKNOWN, sink=self._name, feeds=len(group))
            raise
        COMMIT_SECONDS.observe(took_s := monotonic() - since)
        feeds = [queue.feed for queue in group]
        traces.committed(self._name, feeds, records=sum(written.landed.values()), took_s=took_s)
        return written

    def _finish(self, group: Group, written: Written) -> None:
        """Count what became of a group, and tell its feeds."""
        answers = [_answer_of(queue, batches, written) for queue, batches in group.items()]
        now = datetime.now(UTC)
        COMMIT_DELAY_SECONDS.observe_all(
            max(0.0, (now - batch.received_at).total_seconds())
            for answer in answers
            if answer.failure is None
            for batch in group[answer.batch_queue]
        )
        RECORDS.inc(sum(answer.landed for answer in answers))
        BYTES.inc(sum(answer.size for answer in answers if answer.failure is None))
        # Together: no later batch of these may be answered before.
        with self._lock:
            for queue, batches in group.items():
                self._forget(queue, batches)
            _tell(answers)

    def _refuse(self, failures: Mapping[BatchQueue, FeedqError]) -> None:
        """Say that nothing that waits in these queues is written, nor will be."""
        with self._lock:
            for queue, failure in failures.items():
                if queue in self._queues:
                    batches = queue.waiting[:]
                    answer = _refusal(queue, batches, failure)
                    self._forget(queue, batches)
                    _tell([answer])

    def _refuse_broken(self) -> None:
        """Let go of feeds of which nothing may be written any more: stopped, lost, or misconfigured."""
        self._refuse({queue: queue.broken for queue in list(self._queues) if queue.broken is not None})


class Writer(QueueWriter):
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
        lock = Lock()  # not the one of a condition, which counts: it is taken for each batch
        super().__init__("writer", name, make_sink, outage, lock=lock)
        self._flush_interval_s, self._flush_bytes = flush_interval_s, flush_bytes
        self._apart = ApartWriter(
            name,
            make_sink,
            outage,
            lock=lock,
            flush_interval_s=flush_interval_s,
            slice_bytes_max=2 * flush_bytes,
        )
        self._queues: dict[BatchQueue, None] = {}
        """Those with something that waits and is not written apart."""
        self._bytes = 0
        """What waits in them."""
        self._since = 0.0
        """No batch that waits, and is not being written, has come before this."""
        self._flush_now = self._must_drop = False
        self._probe_at = float("-inf")

    def start(self) -> None:
        with self._lock:
            self.begin()

    def submit(self, queue: BatchQueue, batch: Batch) -> None:
        with self._lock:
            queue.waiting.append(batch)
            if queue.is_apart:
                self._apart.changed.notify()
                return
            # The thread sleeps without a limit while there is nothing, and until the interval ends while
            # there is something: only the first batch and a full buffer need to wake it.
            if not self._queues:
                self._since = monotonic()
                self.changed.notify()
            self._queues[queue] = None
            self._bytes += batch.size
            if self._bytes >= self._flush_bytes:
                self.changed.notify()

    def flush_now(self) -> None:
        """Commit what is there without waiting for the interval to end."""
        with self._lock:
            self._flush_now = True
            self.changed.notify()
            self._apart.flush_now()

    def drop_abandoned(self) -> None:
        """Drop what abandoned batch queues have brought."""
        with self._lock:
            self._must_drop = True
            self.changed.notify()
            self._apart.changed.notify()

    def renew(self) -> None:
        super().renew()
        self._apart.renew()

    def stop(self, *, timeout_s: float) -> None:
        stop_by = monotonic() + timeout_s
        self._apart.stop(timeout_s=0.0)
        super().stop(timeout_s=timeout_s)
        self._apart.stop(timeout_s=max(0.0, stop_by - monotonic()))

    # -- the thread ----------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return True  # it asks whether a sink that is away is back, and would have to begin again with each record

    def _gather(self) -> Group:
        with self._lock:
            due_in_s = self._due_in_s(monotonic())
            if due_in_s <= 0:
                return self._take()
            if not self._stopping:
                self.changed.wait(min(due_in_s, TURN_S))
            is_idle = not self._queues
        if is_idle:
            self._probe()
        return {}

    def _due_in_s(self, now: float) -> float:
        if not self._queues:
            return TURN_S
        if self._flush_now or self._bytes >= self._flush_bytes:
            return 0.0
        return self._since + self._flush_interval_s - now

    def _take(self) -> Group:
        group: Group = {}
        # Twice the trigger bounds the memory of one transaction; the rest is due again at once.
        room = 2 * self._flush_bytes
        for queue in self._queues:
            batches = group[queue] = queue.oldest(room)
            room -= size_of(batches)
            if room <= 0:
                break
        else:
            self._since = monotonic()
        self._flush_now = False
        return group

    def _probe(self) -> None:
        """Find out whether a sink that was away is back, when there is nothing to write."""
        now = monotonic()
        if self._outage.down is not None and now >= self._probe_at:
            self._probe_at = now + PROBE_S
            with suppress(SinkUnavailable), self._asking(wrote=False) as sink:
                sink.dead_letters(ids=[0], limit=1)  # which there is or not

    def _commit(self, group: Group) -> None:
        """Write until it is decided. Feeds that are gone leave the group, and it falls apart when some feed of it
        can be written and it cannot."""
        pause_s, failures = RETRY_FIRST_S, 0
        while not self._stopping:
            self._refuse_broken()
            for queue in [queue for queue in group if queue.broken is not None]:
                del group[queue]
            if not group:
                return
            try:
                self._finish_or_put_apart(group, self._land(group, briefly=True))
                return
            except SinkUnavailable:
                failures += 1
                if failures >= APART_AFTER and self._is_not_the_sinks(group):
                    self._put_apart(group)
                    return
                self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception as error:  # the feed that raises it by itself tells more
                if len(group) == 1:
                    raise
                logger.warning(LogEvent.UNEXPECTED, where="writer", sink=self._name, error=repr(error))
                self._put_apart(group)
                return

    def _finish_or_put_apart(self, group: Group, written: Written) -> None:
        if written.postponed:
            self._put_apart([queue for queue in group if queue.key in written.postponed])
            group = {queue: batches for queue, batches in group.items() if queue.key not in written.postponed}
        self._finish(group, written)

    def _is_not_the_sinks(self, group: Group) -> bool:
        """Try one feed of a group by itself; whether it landed, or there is no other to tell by."""
        if len(group) == 1:
            return True
        queue = next(iter(group))
        # Another one comes first the next time.
        batches = group[queue] = group.pop(queue)
        with suppress(SinkUnavailable):
            written = self._land({queue: batches}, briefly=True)
            if queue.key not in written.postponed:
                del group[queue]
                self._finish({queue: batches}, written)
                return True
        return False

    def _put_apart(self, queues: Iterable[BatchQueue]) -> None:
        queues = list(queues)
        logger.info(LogEvent.FEEDS_APART, sink=self._name, feeds=[queue.feed for queue in queues[:20]])
        with self._lock:
            for queue in queues:
                del self._queues[queue]
                self._bytes -= size_of(queue.waiting)
            self._apart.add(queues)

    def _forget(self, queue: BatchQueue, batches: list[Batch]) -> None:
        del queue.waiting[: len(batches)]
        self._bytes -= size_of(batches)
        del self._queues[queue]
        if queue.waiting:
            self._queues[queue] = None  # behind the others

    def _pause(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        while not self._stopping and (left_s := deadline - monotonic()) > 0:
            note_turn()
            with self._lock:
                self.changed.wait(min(left_s, TURN_S))
                must_drop, self._must_drop = self._must_drop, False
            if must_drop:
                self._refuse_broken()


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


class ApartWriter(QueueWriter):
    """Writes feeds in trouble one at a time, so that the others need not wait for them.

    A feed takes turns with others of its kind. As much of it is written in a turn as takes `SLICE_SLOW_S` at most,
    one batch at least. One that cannot be written now is retried at growing intervals. A feed goes back to the
    others only when nothing of it waits. The methods without an underscore are called with the lock held.
    """

    def __init__(
        self,
        name: str,
        make_sink: Callable[[], Sink],
        outage: Outage,
        *,
        lock: Lock,
        flush_interval_s: float,
        slice_bytes_max: int,
    ) -> None:
        super().__init__("apart", name, make_sink, outage, lock=lock)
        self._flush_interval_s, self._slice_bytes_max = flush_interval_s, slice_bytes_max
        self._queues: dict[BatchQueue, FeedApart] = {}

    def add(self, queues: Iterable[BatchQueue]) -> None:
        """Take these over, with all that comes of them later."""
        now = monotonic()
        for queue in queues:
            # One that has just come back and fails the others again is to stay for longer.
            again = now - queue.back_at < SUSPECT_S
            queue.apart_s = min(max(1.0, 2 * queue.apart_s), SUSPECT_S) if again else 0.0
            self._queues[queue] = FeedApart(due_at=now, until=now + queue.apart_s)
            queue.is_apart = queue.is_postponed = True
        self.begin()  # or raises: then the next feed tries again
        self.changed.notify()

    def flush_now(self) -> None:
        for queue, feed in self._queues.items():
            if not queue.is_postponed:
                feed.due_at = min(feed.due_at, monotonic())
        self.changed.notify()

    # -- the thread ----------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._queues)

    def _gather(self) -> Group:
        self._refuse_broken()
        with self._lock:
            for queue in list(self._queues):
                self._let_go(queue)
            wait_s = TURN_S
            if self._queues:
                queue, feed = first = min(self._queues.items(), key=_due)
                wait_s = min(_due(first)[0] - monotonic(), TURN_S)
                if queue.waiting and wait_s <= 0:
                    feed.tried_at = monotonic()
                    return {queue: queue.oldest(feed.slice_bytes)}
            if not self._stopping:
                self.changed.wait(wait_s)
        return {}

    def _let_go(self, queue: BatchQueue) -> None:
        """Have the feed written with the others again, if it is time, or if nothing of it will be written."""
        if not queue.waiting and (queue.broken is not None or monotonic() >= self._queues[queue].until):
            del self._queues[queue]
            queue.is_apart, queue.back_at = False, monotonic()

    def _commit(self, group: Group) -> None:
        (queue,) = group
        feed, started = self._queues[queue], monotonic()
        try:
            written = self._land(group, briefly=False)
        except SinkUnavailable as error:
            self._put_off(queue, feed, str(error))
            return
        if why := written.postponed.get(queue.key):
            self._put_off(queue, feed, why)
            return
        now = monotonic()
        with self._lock:
            feed.pause_s = 0.0
            # Behind those that are due already: there are more feeds like this one.
            more = size_of(queue.waiting[len(group[queue]) :])
            feed.due_at = started + self._flush_interval_s if more < feed.slice_bytes else now
            if now - started < SLICE_FAST_S:
                feed.slice_bytes = min(2 * feed.slice_bytes, self._slice_bytes_max)
            elif now - started > SLICE_SLOW_S:
                feed.slice_bytes = max(feed.slice_bytes // 2, SLICE_BYTES_MIN)
            if written.dead.get(queue.key):
                feed.until = now + SUSPECT_S
            queue.is_postponed = False
        self._finish(group, written)
        self._say(queue, None)

    def _put_off(self, queue: BatchQueue, feed: FeedApart, why: str) -> None:
        with self._lock:
            feed.pause_s = min(max(2 * feed.pause_s, RETRY_FIRST_S), RETRY_MAX_S)
            feed.due_at = monotonic() + feed.pause_s
            queue.is_postponed = True
            # Those that the same thing is in the way of: one of them is enough to find out whether it still is.
            for other, theirs in self._queues.items():
                if other.trouble == why:
                    theirs.due_at = max(theirs.due_at, feed.due_at)
        self._say(queue, why)

    def _say(self, queue: BatchQueue, trouble: str | None) -> None:
        if queue.trouble == trouble:
            return
        if trouble is not None:
            logger.warning(LogEvent.FEED_POSTPONED, sink=self._name, feed=queue.feed, error=trouble)
        queue.trouble = trouble
        queue.tell()

    def _forget(self, queue: BatchQueue, batches: list[Batch]) -> None:
        del queue.waiting[: len(batches)]
        self._let_go(queue)


def _due(apart: tuple[BatchQueue, FeedApart]) -> tuple[float, float]:
    """When there is something to do for a feed that is written separately; then, when it was last tried."""
    queue, feed = apart
    return feed.due_at if queue.waiting else feed.until, feed.tried_at


# -- answers -----------------------------------------------------------------------------------------


def _answer_of(queue: BatchQueue, batches: list[Batch], written: Written) -> CommitAnswer:
    key = queue.key
    landed = written.landed.get(key)
    if landed is not None:
        queue.continues = written.commit_id
    if queue.broken is not None:
        return _refusal(queue, batches, queue.broken)
    if key in written.unusable:
        return _refusal(queue, batches, FeedMisconfigured(written.unusable[key]))
    if landed is None:
        lost = (
            f"feed {key[0]} ({queue.feed}): its checkpoint in the sink has changed since it was written under "
            f"epoch {key[1]}; the feed is fenced again"
        )
        return _refusal(queue, batches, CheckpointLost(lost))
    if dead := written.dead.get(key, 0):
        DEAD_LETTERS.inc(dead)
        logger.warning(LogEvent.DEAD_LETTERS, feed=queue.feed, records=dead)
    reader = queue.progress.event_times
    if (tap := queue.progress.tap) is not None:
        tap.take(batches, refused=dead)
    return CommitAnswer(
        queue,
        size_of(batches),
        landed,
        dead,
        written.errors.get(key),
        batches[-1].cursor,
        on_committed=[batch.on_committed for batch in batches if batch.on_committed is not None],
        event_time=reader.read(batches) if reader is not None and landed else None,
    )


def _refusal(queue: BatchQueue, batches: Iterable[Batch], failure: FeedqError) -> CommitAnswer:
    queue.broken = failure
    return CommitAnswer(queue, size_of(batches), failure=failure)


def _tell(answers: list[CommitAnswer]) -> None:
    if answers:
        first = answers[0].batch_queue
        # It no longer burdens the worker, whether or not a runner is left to hear of it.
        first.budget.give_back(sum(answer.size for answer in answers))
        call_on(first.loop, _hear_all, answers)


def _hear_all(answers: list[CommitAnswer]) -> None:
    for answer in answers:
        answer.batch_queue.hear(answer)
