"""What a worker tells the control database of its feeds and of itself.

It tells what changed of a feed every few heartbeats, and a change of its status at once.

A feed that came up or broke off is news that people wait for; records that landed can wait for the next round.
News of many feeds are gathered for a moment, so that a thousand feeds that start together are one statement.

`FeedProgress` is the state of one feed: what there is to say of it, and how often it has failed.
`ProgressReporter` says it. `LoadMeter` measures what each heartbeat says of the worker: CPU, memory, how late its
loop runs, and what it lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from time import monotonic, process_time
from typing import TYPE_CHECKING

from feedq.core.backoff import NextTry, attempts_after, next_recheck_s, next_try
from feedq.core.lease import running_status, smoothed
from feedq.core.limits import NEWS_GATHERED_S
from feedq.core.model import Claim, FeedKey, Lease, LeaseState, Load, ProgressReport, Rewind, Status
from feedq.core.notices import NOTICE_CHARS_MAX, NOTICES_MAX
from feedq.errors import SinkUnavailable, SourceBusy, SourceUnavailable
from feedq.secrets import Masker
from feedq.sinks.base import Fenced
from feedq.sinks.event_time import EventTime, EventTimeReader
from feedq.sinks.field_watch import FieldWatch
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.worker.activity import resident_bytes
from feedq.worker.batch_queue import BatchQueue, CommitAnswer
from feedq.worker.taps import RecordTap

if TYPE_CHECKING:
    from feedq.worker.runner import WorkerServices

PROGRESS_MAX = 2_000
"""Feeds without news in one report; the others come with the next ones. So what a worker's reports cost, here and
in the database, has a bound: of 10,000 busy feeds each is heard of every fifth heartbeat."""

PROBE_S = 0.5
"""Interval of the timer whose lateness is the lag of the loop."""

logger = log(__name__)

Send = Callable[[list[ProgressReport]], None]


@dataclass(slots=True, eq=False)
class FeedProgress:
    """The progress and the failures of one feed under one epoch. Used on its runner's loop, but for what says
    otherwise."""

    key: FeedKey
    _feed: str
    _worker: WorkerServices
    _is_new_here: bool
    _quarantined: bool
    failures: int
    """The failures of any kind since a record of the feed landed last, or a connection held."""
    attempts: int = 0
    """The attempts to connect, or to own the checkpoint, that failed in a row."""
    rechecks: int = 0
    """How often in a row the feed was found unable to run as declared."""
    sink: str | None = None
    """The name of its sink, once it runs."""
    batch_queue: BatchQueue | None = None
    landed: int = 0
    """The records that have landed since the last report."""
    landed_ever: int = 0
    """All that the sink says have landed of the feed, and these."""
    bytes_landed: int = 0
    """The bytes of the batches that were committed since then."""
    dead: int = 0
    """The records that were refused since then."""
    dead_error: str | None = None
    """Why the latest of these was refused."""
    last_record_at: datetime | None = None
    event_times: EventTimeReader | None = None
    """What reads the event times of its records, if `max_event_lag` is expected of it."""
    event_time: EventTime | None = None
    """That of what has landed."""
    tap: RecordTap | None = None
    """What takes some of the records that land, while somebody listens."""
    stalled: bool = False
    """Whether its source was silent for too long, and has not sent anything since."""
    error: str | None = None
    """What went wrong since the last report."""
    rewind: Rewind | None = None
    """The finding, since the last report, that the sink has gone back."""
    watch: FieldWatch | None = None
    """What looks for new fields of its records, where somebody wants to know."""
    masker: Masker | None = None
    """What takes the feed's secrets out of a text, once they are known."""
    _noticed: dict[str, str] = field(default_factory=dict)
    _notices: dict[str, str | None] = field(default_factory=dict)
    """The notices since the last report."""
    _sink_error: str | None = None
    _counted_at: float = 0.0
    """When the rates were last measured."""
    _has_counted: bool = False
    """Whether anything had landed or was refused by then."""
    _refused_at: float = float("-inf")
    _per_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Rows, bytes and dead letters a second, smoothed."""
    _connected_at: float | None = None
    _owned_since: float | None = None
    """When the sink took this epoch for the latest one."""
    _failing_since: float | None = None
    """When the feed began to try for the connection that it has not got."""

    @classmethod
    def of(cls, claim: Claim, worker: WorkerServices) -> FeedProgress:
        made = cls(
            claim.key,
            claim.feed.name,
            worker,
            claim.is_new_here,
            claim.quarantined,
            claim.failures,
            _counted_at=worker.clock.monotonic(),
        )
        if claim.has_failed:
            made.rechecks = claim.attempts
        else:
            made.attempts = claim.attempts
        return made

    def masked(self, said: BaseException | str) -> str:
        """Return the text without the feed's secrets. From any thread."""
        text = mask_url(str(said) or type(said).__name__)
        return text if self.masker is None else self.masker.mask(text)

    def count(self, answer: CommitAnswer) -> None:
        """Take in what became of some batches that were committed."""
        self.landed += answer.landed
        self.landed_ever += answer.landed
        self.dead += answer.dead
        self.dead_error = answer.dead_error or self.dead_error
        self.bytes_landed += answer.size
        if answer.event_time is not None:
            self.event_time = answer.event_time.after(self.event_time)
        if answer.landed:
            self.failures = 0

    def notice(self, key: str, said: str | None) -> bool:
        """Have something told, or with None told no longer; returns whether that is news."""
        if said is None:
            self._noticed.pop(key, None)
            self._notices[key] = None
            return True
        key, said = self.masked(key), self.masked(said)[:NOTICE_CHARS_MAX]
        if self._noticed.get(key) != said and len(self._noticed) < NOTICES_MAX:
            self._noticed[key] = self._notices[key] = said
            logger.warning(LogEvent.FEED_NOTICED, feed=self._feed, about=key, said=said)
            return True
        return False

    def _take_notices(self) -> dict[str, str | None] | None:
        for key, said in self.watch.news().items() if self.watch is not None else ():
            self.notice(key, said)
        notices, self._notices = self._notices, {}
        return notices or None

    def report(self) -> ProgressReport:
        """Return what happened since the last call."""
        counts = records, size, dead = self.landed, self.bytes_landed, self.dead
        self.landed = self.bytes_landed = self.dead = 0
        error, self.error = self.error, None
        rewind, self.rewind = self.rewind, None
        dead_error, self.dead_error = self.dead_error, None
        self._measure(counts)
        sink_error = self._find_sink_error()
        if sink_error != self._sink_error:
            error, self._sink_error = error or sink_error, sink_error
        ago_s = None
        if self.last_record_at is not None:
            ago_s = max(0.0, (self._worker.clock.now() - self.last_record_at).total_seconds())
        event_time = self.event_time or EventTime()
        return ProgressReport(
            feed_id=self.key[0],
            epoch=self.key[1],
            records=records,
            bytes=size,
            dead_letters=dead,
            last_record_ago_s=ago_s,
            cursor=self.batch_queue.cursor if self.batch_queue else None,
            connected=self.is_connected,
            stalled=self.stalled,
            attempts=self.attempts,
            error=error,
            failures=self.failures,
            dead_letter_error=None if dead_error is None else self.masked(dead_error),
            sink_error=sink_error,
            rewind=rewind,
            noticed=self._take_notices(),
            has_event_times=self.event_times is not None,
            event_at=event_time.at,
            event_fault=None if event_time.fault is None else self.masked(event_time.fault),
            rows_per_s=self._per_s[0],
            bytes_per_s=self._per_s[1],
            dead_per_s=self._per_s[2],
        )

    def _find_sink_error(self) -> str | None:
        """Return why nothing of the feed can be written just now: its table, or the sink."""
        trouble = self.batch_queue.trouble if self.batch_queue is not None else None
        if trouble is None and self.sink is not None:
            trouble = self._worker.sinks.trouble(self.sink)
        return None if trouble is None else self.masked(trouble)

    def _measure(self, counts: tuple[int, int, int]) -> None:
        """Take in what has landed and what was refused since the last report."""
        at = self._worker.clock.monotonic()
        # As long as nothing has come there is no rate to go on from.
        take_in = partial(smoothed, elapsed_s=at - self._counted_at, is_first=not self._has_counted)
        rows_per_s, bytes_per_s, dead_per_s = self._per_s
        self._per_s = (
            take_in(rows_per_s, count=counts[0]),
            take_in(bytes_per_s, count=counts[1]),
            take_in(dead_per_s, count=counts[2]),
        )
        self._counted_at, self._has_counted = at, self._has_counted or any(counts)
        if counts[2]:
            self._refused_at = at

    @property
    def unwritten_s(self) -> float:
        """The seconds that something of the feed has waited without any of it being written. From any thread."""
        since = None if self.batch_queue is None else self.batch_queue.unwritten_since
        return 0.0 if since is None else max(0.0, monotonic() - since)

    def status(self, *, is_still: bool) -> Status:
        """Return the status that the control plane would see, if it knows whether this worker stands still. For
        the metrics; from any thread."""
        clock, is_refused = self._worker.clock, self._refused_at >= 0
        ago = timedelta(seconds=clock.monotonic() - self._refused_at) if is_refused else None
        lease = Lease(
            self.key[0],
            state=LeaseState.RUNNING,
            reason=None,
            connected=self.is_connected,
            stalled=self.stalled,
            attempts=self.attempts,
            failures=self.failures,
            rows_per_s=self._per_s[0],
            dead_per_s=self._per_s[2],
            dead_letter_at=None if ago is None else clock.now() - ago,
            quarantined=self._quarantined,
            sink_error=self._sink_error,
        )
        return running_status(lease, is_still=is_still, now=clock.now())

    # -- failures, and when and where it is tried again ----------------------------------------------

    def begin(self) -> None:
        """The feed tries to connect."""
        if self._failing_since is None:
            self._failing_since = self._worker.clock.monotonic()

    @property
    def is_connected(self) -> bool:
        return self._connected_at is not None

    def connected(self) -> None:
        self._connected_at, self._failing_since = self._worker.clock.monotonic(), None

    def disconnected(self) -> None:
        self._connected_at = None

    def fenced(self, fenced: Fenced) -> None:
        """The sink takes this epoch for the latest one."""
        self._owned_since = self._worker.clock.monotonic()
        self.landed_ever = fenced.records

    def next_try(self, error: SourceUnavailable | SinkUnavailable) -> NextTry:
        """Decide after a connection that broke or was not made."""
        held_s, failing_s = self._seconds_since(self._connected_at), 0.0
        if self._connected_at is None:
            failing_s = self._seconds_since(self._failing_since)
        self.failures += 1
        self.attempts = attempts_after(self.attempts, connected_s=held_s, policy=self._worker.backoff)
        return next_try(
            self.attempts,
            rng=self._worker.rng,
            policy=self._worker.backoff,
            not_before_s=error.retry_in_s if isinstance(error, SourceBusy) else 0.0,
            is_new_here=self._is_new_here and self.last_record_at is None,
            failing_s=failing_s,
        )

    def after_fence_s(self) -> float:
        """Return in how long a feed that was superseded in its sink is placed again: at once the first time,
        and later each time that follows soon. Two installations that share a sink would take it from each other
        without end."""
        self.failures += 1
        owned_s = self._seconds_since(self._owned_since)
        self.attempts = attempts_after(self.attempts, connected_s=owned_s, policy=self._worker.backoff)
        if self.attempts == 1:
            return 0.0
        return next_try(self.attempts - 1, rng=self._worker.rng, policy=self._worker.backoff).delay_s

    def unusable(self) -> None:
        """The feed cannot run as declared."""
        self.failures += 1
        self.rechecks += 1

    def next_recheck_s(self) -> float:
        """Return in how long a feed that cannot run as declared is checked again."""
        return next_recheck_s(self.rechecks, rng=self._worker.rng, policy=self._worker.backoff)

    def _seconds_since(self, at: float | None) -> float:
        return 0.0 if at is None else self._worker.clock.monotonic() - at


class ProgressReporter:
    """Collects what is to be reported of the feeds of one loop. Used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send) -> None:
        self._loop, self._send = loop, send
        self._progressed: dict[FeedProgress, None] = {}
        """The feeds that made progress, in the order in which their reports are due."""
        self._news: dict[FeedProgress, None] = {}
        self._soon: asyncio.TimerHandle | None = None

    def note(self, feed: FeedProgress) -> None:
        """Note that a feed made progress. Called for each batch of each feed."""
        self._progressed[feed] = None

    def tell(self, feed: FeedProgress) -> None:
        """Note that the status of a feed changed."""
        self._news[feed] = None
        if self._soon is None:
            self._soon = self._loop.call_later(NEWS_GATHERED_S, self._tell_news)

    def discard(self, feed: FeedProgress) -> None:
        self._progressed.pop(feed, None)
        self._news.pop(feed, None)

    def report(self) -> None:
        """Send what has gathered."""
        due = dict.fromkeys(islice(self._progressed, PROGRESS_MAX))
        due.update(self._news)
        self._report(due)

    def _tell_news(self) -> None:
        # Nothing but news: while thousands of feeds begin there are some at any moment, and to send the progress
        # of those that have begun each time would cost more than the rest of it.
        self._soon = None
        self._report(dict(self._news))

    def _report(self, due: dict[FeedProgress, None]) -> None:
        for feed in due:
            self.discard(feed)
        if due:
            self._send([feed.report() for feed in due])


class LoadMeter:
    """Measures one process and its event loop. `load` from any thread, the others on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cpu = (monotonic(), process_time())
        self._lag_s = 0.0
        self._due_at = 0.0
        self._landed = self._landed_before = (0, 0)
        self._rows_per_s = self._bytes_per_s = 0.0

    def start(self) -> None:
        self._due_at = self._loop.time() + PROBE_S
        self._loop.call_at(self._due_at, self._probe)

    def _probe(self) -> None:
        self._lag_s = max(0.0, self._loop.time() - self._due_at)
        self.start()

    def count(self, progress: Iterable[ProgressReport]) -> None:
        """Add what has landed since the last call."""
        rows, size = self._landed
        for one in progress:
            rows += one.records
            size += one.bytes
        # One assignment: `load` reads both on another thread.
        self._landed = (rows, size)

    def load(self, *, feeds: int) -> Load:
        at, used = monotonic(), process_time()
        before_at, before_used = self._cpu
        self._cpu = (at, used)
        elapsed_s = at - before_at
        cpu = (used - before_used) / elapsed_s if elapsed_s > 0 else 0.0
        (rows, size), (rows_before, size_before) = self._landed, self._landed_before
        self._landed_before = (rows, size)
        self._rows_per_s = smoothed(
            self._rows_per_s, count=rows - rows_before, elapsed_s=elapsed_s, is_first=False
        )
        self._bytes_per_s = smoothed(
            self._bytes_per_s, count=size - size_before, elapsed_s=elapsed_s, is_first=False
        )
        return Load(
            feeds=feeds,
            cpu=round(cpu, 3),
            rss=resident_bytes(),
            loop_lag_s=round(self.lag_s, 4),
            rows_per_s=round(self._rows_per_s, 3),
            bytes_per_s=round(self._bytes_per_s, 1),
        )

    @property
    def lag_s(self) -> float:
        """The seconds by which the loop last ran a timer late. One that is stuck runs none: what it is late
        already counts."""
        overdue_s = max(0.0, self._loop.time() - self._due_at) if self._due_at else 0.0
        return max(self._lag_s, overdue_s)
