"""A writing session lands groups of batches in one sink, and tells the queues that they came from.

A group that could not be written is written again, also when the answer to its commit was lost: then the sink
finds out what became of it. A batch is answered exactly once, by a `CommitAnswer` to its queue.

An `Outage` remembers whether the sink is reached, for everybody in the worker who uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import NamedTuple, TypeAlias

from feedq.errors import CheckpointLost, CommitUnknown, FeedMisconfigured, FeedqError, SinkUnavailable
from feedq.records.batch import Batch
from feedq.sinks.base import FeedWrite, Sink, Written
from feedq.telemetry import traces
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import (
    BYTES,
    COMMIT_DELAY_SECONDS,
    COMMIT_SECONDS,
    DEAD_LETTERS,
    RECORDS,
)
from feedq.telemetry.watched_threads import asking
from feedq.worker.batch_queue import BatchQueue, CommitAnswer
from feedq.worker.threads import call_on

NO_ANSWER_S = 8.0
"""A sink that has not answered for so long counts as away: longer than any statement of a group may take."""


class Down(NamedTuple):
    """A sink that cannot be reached: since when, on the monotonic clock, and why."""

    since: float
    error: str


class Outage:
    """Remembers whether a worker can reach a sink. Shared by the threads that use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: Down | None = None
        self._asked_at: float | None = None
        self.written_at = float("-inf")

    @property
    def down(self) -> Down | None:
        asked_at = self._asked_at
        if self._failed is None and asked_at is not None and monotonic() - asked_at > NO_ANSWER_S:
            return Down(asked_at, f"sink {self._name!r}: no answer for {NO_ANSWER_S:g} s")
        return self._failed

    def ask(self, now: float) -> None:
        """Note that something was asked of the sink that is known to take little time."""
        self._asked_at = now

    def answered(self) -> None:
        """Note that the sink has answered, whatever came of it."""
        self._asked_at = None

    def failed(self, error: Exception, *, since: float) -> None:
        first = self._failed
        if first is None:
            logger.warning(LogEvent.SINK_AWAY, sink=self._name, error=str(error))
        self._failed = Down(since if first is None else first.since, str(error))

    def over(self, *, wrote: bool = True) -> None:
        if self._failed is not None:
            away_s = round(monotonic() - self._failed.since, 1)
            logger.info(LogEvent.SINK_BACK, sink=self._name, away_s=away_s)
            self._failed = None
        if wrote:
            self.written_at = monotonic()


PROBE_S = 2.0
"""How often a sink that is away is asked whether it is back."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
"""A sink that comes back is noticed within this; asking more often would only add to its troubles."""

Group: TypeAlias = dict[BatchQueue, list[Batch]]

logger = log(__name__)


class WritingSession:
    """A session with a sink that lands groups. For one thread."""

    def __init__(self, name: str, make_sink: Callable[[], Sink], outage: Outage) -> None:
        self._name, self._make_sink, self._outage = name, make_sink, outage
        self._sink: Sink | None = None
        self._probe_at = float("-inf")
        self.must_renew = False

    def write(self, group: Mapping[BatchQueue, Sequence[Batch]], *, briefly: bool) -> Written:
        """Raises `SinkUnavailable`."""
        since = monotonic()
        if briefly:
            self._outage.ask(since)
        try:
            with asking():
                written = self._write(group, briefly=briefly)
        except SinkUnavailable as error:
            if isinstance(error, CommitUnknown):
                logger.warning(LogEvent.COMMIT_UNKNOWN, sink=self._name, feeds=len(group))
            self._outage.failed(error, since=since)
            raise
        finally:
            if briefly:
                self._outage.answered()
        self._outage.over()
        COMMIT_SECONDS.observe(took_s := monotonic() - since)
        feeds = [batch_queue.feed for batch_queue in group]
        traces.committed(self._name, feeds, records=sum(written.landed.values()), took_s=took_s)
        for batch_queue in group:
            if batch_queue.key in written.landed:
                batch_queue.continues = written.commit_id
        return written

    def _write(self, group: Mapping[BatchQueue, Sequence[Batch]], *, briefly: bool) -> Written:
        if self.must_renew:
            self.must_renew = False
            self.close()
        writes = [
            FeedWrite(
                queue.key[0],
                queue.feed,
                queue.key[1],
                queue.target,
                tuple(batches),
                queue.continues,
                queue.watch,
            )
            for queue, batches in group.items()
        ]
        return self._opened().write(writes, briefly=briefly)

    def probe(self) -> None:
        """Find out whether a sink that was away is back, when there is nothing to write."""
        began_at = monotonic()
        if self._outage.down is None or began_at < self._probe_at:
            return
        self._probe_at = began_at + PROBE_S
        try:
            with asking():
                self._opened().dead_letters(ids=[0], limit=1)  # which there is or not
        except SinkUnavailable as error:
            self._outage.failed(error, since=began_at)
        else:
            self._outage.over(wrote=False)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._make_sink()
        return self._sink

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None


# -- answers -----------------------------------------------------------------------------------------


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
    _tell(answers)


def refuse(batch_queue: BatchQueue, batches: Iterable[Batch], failure: FeedqError) -> None:
    """Say that nothing of these was written, nor will be."""
    _tell([_refusal(batch_queue, batches, failure)])


def refuse_unexpected(name: str, group: Group, error: Exception) -> None:
    """An error of ours, or of a sink: its feeds shall hear of it."""
    failure = SinkUnavailable(f"sink {name!r}: unexpected error: {error!r}")
    for batch_queue, batches in group.items():
        refuse(batch_queue, batches, failure)


def _answer_of(batch_queue: BatchQueue, batches: list[Batch], written: Written) -> CommitAnswer:
    key, (feed_id, epoch) = batch_queue.key, batch_queue.key
    if batch_queue.broken is not None:
        return _refusal(batch_queue, batches, batch_queue.broken)
    if key in written.unusable:
        return _refusal(batch_queue, batches, FeedMisconfigured(written.unusable[key]))
    if key not in written.landed:
        lost = (
            f"feed {feed_id} ({batch_queue.feed}): its checkpoint in the sink is not the one that was left there "
            f"under epoch {epoch}; it is fenced anew"
        )
        return _refusal(batch_queue, batches, CheckpointLost(lost))
    if dead := written.dead.get(key, 0):
        DEAD_LETTERS.inc(dead)
        logger.warning(LogEvent.DEAD_LETTERS, feed=batch_queue.feed, records=dead)
    landed, reader = written.landed[key], batch_queue.event_times
    if batch_queue.tap is not None:
        batch_queue.tap.take(batches, refused=dead)
    return CommitAnswer(
        batch_queue,
        sum(batch.size for batch in batches),
        landed,
        dead,
        written.errors.get(key),
        batches[-1].cursor,
        on_committed=[batch.on_committed for batch in batches if batch.on_committed is not None],
        event_time=reader.read(batches) if reader is not None and landed else None,
    )


def _refusal(batch_queue: BatchQueue, batches: Iterable[Batch], failure: FeedqError) -> CommitAnswer:
    batch_queue.broken = failure
    return CommitAnswer(batch_queue, sum(batch.size for batch in batches), failure=failure)


def _tell(answers: Sequence[CommitAnswer]) -> None:
    if answers:
        first = answers[0].batch_queue
        # It no longer burdens the worker, whether or not a runner is left to hear of it.
        first.budget.give_back(sum(answer.size for answer in answers))
        call_on(first.loop, _hear_all, answers)


def _hear_all(answers: Sequence[CommitAnswer]) -> None:
    for answer in answers:
        answer.batch_queue.hear(answer)
