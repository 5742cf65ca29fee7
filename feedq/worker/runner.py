"""Runs one feed under one epoch: fences, connects, streams and tries again, until the feed is stopped, lost or
released.

::

    claim ──► fence ──► connect ──► batches ──► batch queue ──► (committed) ──► progress
                           ▲            │
                           └── backoff ─┘  trouble at the source, with the lease still held

A runner is one coroutine. It ends with a `Release`, or with None when the control database has said that the
lease is lost and there is nothing left to release. It never decides about ownership: the supervisor interrupts
it, the sink's epoch stops it. What only the sink has said is not known to the control database, so a runner that
was stopped by an epoch releases its lease as well: if that is somebody else's, the release matches nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from functools import partial
from random import Random
from traceback import format_exception
from types import MappingProxyType

from feedq.connectors.base import Connector, Context, Sockets, load_connector, tell_if_unanswered
from feedq.connectors.blocking import open_stream
from feedq.connectors.local_files import FILES
from feedq.core.backoff import BackoffPolicy
from feedq.core.clock import Clock
from feedq.core.expectations import Expectation, Expectations
from feedq.core.loss import Loss
from feedq.core.model import JSON, Claim, Feed, FeedKey, Reason, Release, Rewind, known_as
from feedq.core.permission import Permissions
from feedq.errors import (
    CheckpointLost,
    EndReached,
    FeedMisconfigured,
    FeedqError,
    InvalidInput,
    LeaseLost,
    SinkUnavailable,
    SourceSilent,
    SourceUnavailable,
)
from feedq.records.batch import Batch
from feedq.secrets import Masker, resolve_secrets, secret_files
from feedq.sinks.base import (
    Fenced,
    FenceRequest,
    Superseded,
    Target,
    Unusable,
)
from feedq.sinks.event_time import event_time_reader
from feedq.sinks.field_watch import FieldWatch
from feedq.sinks.mapping import Drift
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import FENCED, RECONNECTS, SINK_REWINDS
from feedq.telemetry.traces import FeedTrace
from feedq.worker.batch_queue import BatchQueue
from feedq.worker.declared import BackfillEnd, ParsedFeed, declared
from feedq.worker.first_records import FirstRecords
from feedq.worker.pacing import ConnectLimiter, FeedThrottle, Pacing
from feedq.worker.progress_reporter import FeedProgress
from feedq.worker.sink_pool import SinkPool

UNEXPECTED_RETRY_S = 5.0
CANCEL_AGAIN_S = 1.0
"""A connector has this long to end after a cancellation. One that swallowed it is cancelled again, with the next
request, of which there is one a heartbeat; sooner, we would only disturb it while it tidies up."""

NO_SECRETS: Mapping[str, str] = MappingProxyType({})

logger = log(__name__)


class Interrupt(IntEnum):
    """The reason why a runner is woken from whatever it waits for. Each overrides those before it."""

    SUSPEND = auto()
    """The lease cannot be trusted for the moment: cut the connection, wait, go on."""
    STOP = auto()
    """Commit what has been received, then release the feed."""
    LOST = auto()
    """Somebody else is owner, or may be: end without writing or releasing anything."""


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """The surroundings of a runner: what it needs of its worker."""

    clock: Clock
    rng: Random
    backoff: BackoffPolicy
    permissions: Permissions
    environment: str
    sinks: SinkPool
    note_thread: Callable[[int], AbstractContextManager[None]]
    """Notes that a thread runs code of this feed."""
    pacing: Pacing
    connect_limiter: ConnectLimiter
    trusted: asyncio.Event
    """Set while this worker may act as owner; belongs to the runner's loop."""
    commit_timeout_s: float
    """How long a feed that ends waits for its last commits."""
    expected: Callable[[str, Expectations], Expectations]
    """What is expected of a feed of this tenant that expects something of itself."""
    on_progress: Callable[[FeedProgress], None]
    """Progress was made; it will be collected with `FeedProgress.report`."""
    on_status: Callable[[FeedProgress], None]
    """The status changed; so will this."""


class FeedRunner:
    """Runs one claim. All methods but `run` may be called from its loop only."""

    def __init__(self, claim: Claim, worker: WorkerServices) -> None:
        self._worker = worker
        self.sockets = Sockets()
        feed = claim.feed
        self.name, self._tenant, self._identity = feed.name, feed.spec.tenant, feed.identity
        self._initial_cursor = feed.spec.initial_cursor
        self._unread: Feed | None = feed
        """The declaration, until it is read: what a feed needs of it to stream is much less."""
        self._kind: type[Connector]
        self.progress = FeedProgress.of(claim, worker)
        self._after_loss = claim.after_loss
        """Whether the feed comes from a lost worker, until it has had its first turn to connect here."""
        self._interrupt: Interrupt | None = None
        self._cancel_again_at = float("-inf")
        """When the same interrupt has an effect again."""
        self._stop: Release | None = None
        """What the feed is to be released with, once it is told to stop."""
        self._task: asyncio.Task[Release | None] | None = None
        self._first_records: FirstRecords | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Will tell that the source does not answer; or, once it has, that the connection holds."""
        self._must_fence = False
        """Whether its batch queue has failed, though the stream has not: it gets another one."""
        self._secrets: Mapping[str, str] = NO_SECRETS
        self._memory: dict[str, object] = {}
        self._backfill_end: BackfillEnd | None = None
        self._read_whole: BatchQueue | None = None
        """The queue that has got all that a backfill is to read."""
        self._trace = FeedTrace()

    @property
    def key(self) -> FeedKey:
        return self.progress.key

    @property
    def _batch_queue(self) -> BatchQueue | None:
        return self.progress.batch_queue

    # -- what the supervisor does to it --------------------------------------------------------------

    def interrupt(
        self,
        why: Interrupt,
        *,
        reason: Reason = Reason.RELEASED,
        error: str | None = None,
        blame: Loss | None = None,
    ) -> None:
        """Wake it up for ``why``. May be repeated, and may come early.

        The first stop says what the feed is released with; only ``blame`` is added to it later. With the reason
        BACKOFF, what is not written is dropped: other workers reach the sink of the feed, and this one does not.
        """
        if blame is not None and self._stop is not None:
            # Without it, the feed would grow again on the next worker.
            self._stop = replace(self._stop, blame=blame)
        now, before = self._worker.clock.monotonic(), self._interrupt
        is_again = why is before and now < self._cancel_again_at
        if is_again or (before is not None and why < before):
            return
        self._interrupt, self._cancel_again_at = why, now + CANCEL_AGAIN_S
        if why is Interrupt.STOP and self._stop is None:
            self._stop = Release(*self.key, reason, error=error, blame=blame)
        if self._task is not None:
            self._task.cancel()

    # -- its life ------------------------------------------------------------------------------------

    async def run(self) -> Release | None:
        """Stream until the lease ends. Raises only what is a bug, ours or of a plugin."""
        self._task = asyncio.current_task()
        try:
            what = self._read_declaration()
            with self._worker.pacing.of(self._tenant, what.options.limits) as pace:
                while True:
                    # An interrupt may be older than the first step of this coroutine: nobody could cancel it then.
                    if self._interrupt is None:
                        ended = await self._attempt(what, pace)
                        if ended is not None:
                            return ended
                    match self._take_interrupt():
                        case Interrupt.LOST:
                            return None
                        case Interrupt.STOP:
                            return await self._commit_and_release(what.sink)
                    # Suspended, or a reconnect whose delay is over: wait until we may, then go round again.
        except LeaseLost as error:
            FENCED.inc()
            logger.warning(LogEvent.FEED_FENCED, feed=self.name, epoch=self.key[1], error=str(error))
            return None if self._interrupt is Interrupt.LOST else self._release_fenced(error)
        except (FeedMisconfigured, InvalidInput) as error:
            return await self._release_unusable(error)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end all other feeds too
            raise RuntimeError(f"its code would end the process: {error!r}") from error
        finally:
            self._task = None
            self._trace.end()
            if self._batch_queue is not None:
                self._batch_queue.abandon()

    def _read_declaration(self) -> ParsedFeed:
        """Raises `InvalidInput`."""
        feed, self._unread = self._unread, None
        assert feed is not None
        self._trace.begin(feed, self.key)
        self._kind = load_connector(feed.spec.connector)
        what = declared(feed.spec)
        self.progress.sink = what.sink
        self._backfill_end = BackfillEnd.of(feed, what.options)
        self.progress.watch = FieldWatch() if what.target.drift is not Drift.IGNORE else None
        expected = self._worker.expected(feed.spec.tenant, feed.spec.expect)
        lag = expected.get(Expectation.MAX_EVENT_LAG)
        if lag is not None:
            self.progress.event_times = event_time_reader(lag["at"], what.target)
        return what

    async def _attempt(self, what: ParsedFeed, pace: FeedThrottle) -> Release | None:
        """Make one connection, from its fence to its end. None: go on as the interrupt says, or try again."""
        try:
            if what.options.secrets and self.progress.masker is None:
                await self._resolve_secrets(what)
            await self._worker.trusted.wait()
            if self._batch_queue is None or self._must_fence:
                self.progress.batch_queue = await self._open_batch_queue(what, self._batch_queue)
            batch_queue = self._batch_queue
            assert batch_queue is not None
            # What was received before the last connection broke must be decided before we ask again.
            await batch_queue.join()
            if self._is_finished(batch_queue):
                return Release(*self.key, Reason.FINISHED, records=self.progress.landed_ever)
            await self._worker.connect_limiter.turn(what.options.remote_host, after_loss=self._after_loss)
            self._after_loss = False
            self.progress.begin()
            self._trace.connecting()
            await self._stream(self._open_stream(what, batch_queue, pace), batch_queue, pace)
        except EndReached:
            # What is on its way is decided first, with the next turn of this.
            self._read_whole = self._batch_queue
            self._disconnected()
        except asyncio.CancelledError:
            self._disconnected()
            # An interrupt cancels the task to wake it; anybody else's cancellation goes on.
            if self._interrupt is None:
                raise
        except (SourceUnavailable, SinkUnavailable) as error:
            if self._batch_queue is not None and self._batch_queue.failure is error:
                self._must_fence = True
            if self._interrupt is None and not isinstance(error, CheckpointLost):
                return await self._after_failure(error)
            # Nothing has failed: the fence tells more, or a cancellation came out of the connector as this error.
            self._disconnected()
        return None

    async def _resolve_secrets(self, what: ParsedFeed) -> None:
        secrets = what.options.secrets
        resolve = partial(resolve_secrets, secrets, tenant=self._tenant, permissions=self._worker.permissions)
        self._secrets = await FILES.read(secret_files(secrets), resolve)
        self.progress.masker = await asyncio.to_thread(Masker, self._secrets.values())

    def _open_stream(
        self, what: ParsedFeed, batch_queue: BatchQueue, pace: FeedThrottle
    ) -> AsyncGenerator[Batch, None]:
        context, cursor = self._context(batch_queue, pace), self._begins_after(batch_queue)
        stream = open_stream(self._kind, what.options, context=context, cursor=cursor)
        self._first_records = FirstRecords(what.options, what.target, from_beginning=cursor is None)
        # After a failure, the status has that already: the same news with each try would only cost writes.
        if not self.progress.attempts:
            self._timer = tell_if_unanswered(what.options, self._waits)
        return stream if self._backfill_end is None else self._backfill_end.within(stream, cursor)

    async def _stream(
        self, batches: AsyncGenerator[Batch, None], batch_queue: BatchQueue, pace: FeedThrottle
    ) -> None:
        try:
            try:
                async for batch in batches:
                    self._received()
                    if self._first_records is not None:
                        self._look_at_first(batch)
                    await batch_queue.put(batch)
                    if pace.is_limited:
                        await pace.keep(batch, unless=batch_queue.has_failed)
                    del batch  # or it would stay in memory until the next one comes
            finally:
                await batches.aclose()
        except (SourceUnavailable, FeedMisconfigured, LeaseLost, SinkUnavailable, EndReached):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # these two would end all other feeds too
            self.log_unexpected(error, "connector")
            raise SourceUnavailable(f"unexpected error in connector: {error!r}") from error
        finally:
            self._stop_timer()
        raise SourceUnavailable("the source ended the stream")

    async def _open_batch_queue(self, what: ParsedFeed, failed: BatchQueue | None) -> BatchQueue:
        """Fence, and begin where the sink says; what waits in a queue that has ``failed`` is asked for again."""
        if failed is not None:
            failed.abandon()
        with self._trace.fencing():
            fenced = await self._fence(what.sink, what.target)
        self.progress.fenced(fenced)
        self._must_fence = False
        batch_queue = self._worker.sinks.open_batch_queue(
            what.sink, known_as(self.name), what.target, fenced, self.progress, self._progressed
        )
        if failed is not None and isinstance(failed.failure, CheckpointLost):
            # It may tell of records as landed that the sink has no more.
            self._memory = {}
            if not fenced.is_given:
                self._tell_rewind(Rewind(what.sink, failed.cursor, fenced.cursor))
        return batch_queue

    def _tell_rewind(self, rewind: Rewind) -> None:
        """Say that nobody has taken the checkpoint from us, and that it has changed all the same."""
        SINK_REWINDS.inc()
        self.progress.rewind = rewind
        logger.warning(LogEvent.SINK_REWOUND, feed=self.name, sink=rewind.sink, epoch=self.key[1])
        self._worker.on_progress(self.progress)

    async def _fence(self, sink_name: str, target: Target) -> Fenced:
        """Take the checkpoint. Raises `LeaseLost` and `FeedMisconfigured`."""
        feed_id, epoch = self.key
        request = FenceRequest(feed_id, self.name, epoch, target, self._identity)
        match await self._worker.sinks.fence(sink_name, request):
            case Fenced() as fenced:
                return fenced
            case Unusable(error=error):
                raise FeedMisconfigured(error)
            case Superseded(epoch_in_sink=above):
                said = f"epoch {epoch} was superseded by {above} in sink {sink_name!r}"
                raise LeaseLost(f"feed {feed_id} ({self.name}): {said}", sink_epoch=above)
            case other:
                raise AssertionError(f"a fence ended with {other!r}")

    async def _after_failure(self, error: SourceUnavailable | SinkUnavailable) -> Release | None:
        decision = self.progress.next_try(error)
        message = self.progress.masked(error)
        self._trace.failed(message)
        silent = isinstance(error, SourceSilent)
        self.progress.error = message
        self.progress.stalled |= silent
        self._disconnected()
        RECONNECTS.inc()
        logger.info(
            LogEvent.FEED_STALLED if silent else LogEvent.FEED_BROKEN_OFF,
            feed=self.name,
            error=message,
            attempts=self.progress.attempts,
            again_in_s=round(decision.delay_s, 2),
        )
        with self._until_interrupted():
            if decision.is_elsewhere:
                await self._await_commits()
                return Release(*self.key, Reason.BACKOFF, decision.delay_s, self.progress.attempts, message)
            await asyncio.sleep(decision.delay_s)
        return None

    async def _release_unusable(self, error: FeedMisconfigured | InvalidInput) -> Release | None:
        message = self.progress.masked(error)
        say = logger.debug if self.progress.rechecks else logger.error
        self.progress.unusable()
        say(LogEvent.FEED_FAILED, feed=self.name, error=message)
        # What came before the record that cannot pass is to be in the table when a person looks.
        with self._until_interrupted(), contextlib.suppress(FeedqError):
            await self._await_commits()
        if self._interrupt is Interrupt.LOST:
            return None
        again_s, rechecks = self.progress.next_recheck_s(), self.progress.rechecks
        return Release(*self.key, Reason.FAILED, again_s, rechecks, message)

    def _release_fenced(self, error: LeaseLost) -> Release:
        self._disconnected()
        again_s, said = self.progress.after_fence_s(), self.progress.masked(error)
        attempts = self.progress.attempts
        return Release(*self.key, Reason.FENCED, again_s, attempts, said, sink_epoch=error.sink_epoch)

    async def _commit_and_release(self, sink_name: str) -> Release | None:
        release = self._stop
        assert release is not None
        self._cancel_again_at = float("inf")  # a second stop would only cut the first one short
        if release.reason is Reason.BACKOFF:
            self.progress.failures += 1
            return replace(release, attempts=self.progress.attempts)
        self._worker.sinks.flush_now(sink_name)
        with self._until_interrupted():
            await self._await_commits()
            return self._stop
        # Lost while it was being released; or the loop is going down, which releases nothing either.
        return None

    async def _await_commits(self) -> None:
        """Wait for the last commits, but not for ever: what is not committed, the successor asks for again."""
        if self._batch_queue is None:
            return
        with contextlib.suppress(TimeoutError, SinkUnavailable):
            async with asyncio.timeout(self._worker.commit_timeout_s):
                await self._batch_queue.join()

    @contextlib.contextmanager
    def _until_interrupted(self) -> Iterator[None]:
        """Leave the block when an interrupt cancels the task to wake it. Another cancellation goes on."""
        try:
            yield
        except asyncio.CancelledError:
            if self._interrupt is None:
                raise

    def _take_interrupt(self) -> Interrupt | None:
        """Return why it was interrupted, if it was; the cancellations that said so are spent."""
        why = self._interrupt
        if why is not None:
            task = asyncio.current_task()
            assert task is not None
            while task.uncancel():
                pass
        if why is Interrupt.SUSPEND:
            self._interrupt = None
        return why

    # -- small things --------------------------------------------------------------------------------

    def _is_finished(self, batch_queue: BatchQueue) -> bool:
        """Whether a backfill has landed all it was begun for: the sink's cursor says so, also to a successor."""
        if self._backfill_end is None:
            return False
        return self._read_whole is batch_queue or self._backfill_end.is_reached(
            self._begins_after(batch_queue)
        )

    def _begins_after(self, batch_queue: BatchQueue) -> JSON:
        """Where to resume; or where the feed is to begin, when the sink has no cursor of it."""
        return self._initial_cursor if batch_queue.cursor is None else batch_queue.cursor

    def _context(self, batch_queue: BatchQueue, pace: FeedThrottle) -> Context:
        return Context(
            feed=self.name,
            clock=self._worker.clock,
            guard=self.sockets,
            on_connected=self._connected,
            on_waiting=self._waits,
            on_notice=self._notices,
            secrets=self._secrets,
            permissions=self._worker.permissions,
            environment=self._worker.environment,
            note_thread=self._note_thread,
            room=pace.room(batch_queue.budget),
            ends_at=None if self._backfill_end is None else self._backfill_end.ends_at,
            memory=self._memory,
        )

    def _note_thread(self) -> AbstractContextManager[None]:
        return self._worker.note_thread(self.key[0])

    def _connected(self) -> None:
        if not self.progress.is_connected:
            self._stop_timer()
        if self.progress.failures and self._timer is None:
            healthy_s = self._worker.backoff.healthy_s
            self._timer = asyncio.get_running_loop().call_later(healthy_s, self._holds)
        self.progress.connected()
        self._trace.connected()
        logger.debug(LogEvent.FEED_CONNECTED, feed=self.name)
        self._changed()

    def _holds(self) -> None:
        self.progress.attempts = self.progress.failures = 0
        self._changed()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at_first(self, batch: Batch) -> None:
        assert self._first_records is not None
        self._first_records.look(batch, self._notices)
        if self._first_records.is_over:
            self._first_records = None

    def _waits(self, why: str) -> None:
        self._stop_timer()
        self.progress.error = self.progress.masked(why)
        self._changed()

    def _notices(self, key: str, said: str | None) -> None:
        if self.progress.notice(key, said):
            self._changed()

    def _disconnected(self) -> None:
        self.progress.disconnected()
        self._changed()

    def _received(self) -> None:
        if self._interrupt is not None:
            raise asyncio.CancelledError  # the connector, or a library of its, swallowed ours
        if self.progress.stalled:
            self.progress.stalled = False
            self._changed()

    def _progressed(self) -> None:
        batch_queue = self._batch_queue
        if self.progress.landed:
            self._trace.landed()
        if batch_queue is not None and batch_queue.failure is not None:
            # Its next record may be long in coming. Woken, it checks the batch queue before it connects again.
            self.interrupt(Interrupt.SUSPEND)
        self._worker.on_progress(self.progress)

    def _changed(self) -> None:
        self._worker.on_status(self.progress)

    def release_after(self, error: BaseException) -> Release:
        """Return the release of a feed whose runner ended in a way that it should not: another worker may
        try."""
        self.progress.failures += 1
        said = self.progress.masked(f"unexpected error: {str(error) or type(error).__name__}")
        return Release(*self.key, Reason.BACKOFF, UNEXPECTED_RETRY_S, 1, said)

    def log_unexpected(self, error: BaseException, where: str) -> None:
        """Log an unexpected error with its traceback, masked: what a library raises may quote what it was
        given."""
        trace = self.progress.masked("".join(format_exception(error)))
        logger.error(LogEvent.UNEXPECTED, where=where, feed=self.name, exception=trace)
