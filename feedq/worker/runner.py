"""One feed under one tenure: fence, connect, stream, try again; until it is stopped, lost, or let go.

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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from random import Random
from time import monotonic
from traceback import format_exception

from feedq.backoff import BackoffPolicy, LetGo, attempts_after, next_look_s, next_try
from feedq.clock import Clock
from feedq.connectors.base import Connector, Context, load_connector, open_stream
from feedq.errors import (
    FeedMisconfigured,
    FeedqError,
    InvalidInput,
    LeaseLost,
    SinkRewound,
    SinkUnavailable,
    SourceBusy,
    SourceSilent,
    SourceUnavailable,
)
from feedq.lease import Owner, smoothed, standing
from feedq.model import (
    Batch,
    Claim,
    FeedKey,
    Lease,
    LeaseState,
    Loss,
    Progress,
    Reason,
    Release,
    Rewind,
    Status,
)
from feedq.permission import Permissions
from feedq.secrets import Masker, resolve_secrets
from feedq.sinks.base import (
    Fenced,
    FenceOutcome,
    FenceRequest,
    Landing,
    Superseded,
    Unusable,
)
from feedq.telemetry import RECONNECTS, LogEvent, log, mask_url
from feedq.worker.batch_queue import BatchQueue
from feedq.worker.connect_limiter import ConnectLimiter
from feedq.worker.declared import Declared, declared, lean
from feedq.worker.sockets import Sockets
from feedq.worker.start_limiter import StartLimiter
from feedq.worker.throttling import FeedThrottle, Pacing

UNEXPECTED_RETRY_S = 5.0
CANCEL_AGAIN_S = 1.0
"""A connector has this long to end after a cancellation. One that swallowed it is cancelled again, with the next
request, of which there is one a heartbeat; sooner, we would only disturb it while it tidies up."""

logger = log(__name__)


class Interrupt(Enum):
    """Why a runner is woken from whatever it waits for."""

    SUSPEND = auto()
    """The lease cannot be trusted for the moment: cut the connection, wait, go on."""
    STOP = auto()
    """Commit what has been received, then let go."""
    LOST = auto()
    """Somebody else is owner, or may be: end without writing or releasing anything."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a runner needs of its worker."""

    clock: Clock
    rng: Random
    backoff: BackoffPolicy
    guard: Sockets
    permissions: Permissions
    environment: str
    note_thread: Callable[[int], AbstractContextManager[None]]
    """Notes that a thread runs code of this feed."""
    pacing: Pacing
    connect_limiter: ConnectLimiter
    start_limiter: StartLimiter
    trusted: asyncio.Event
    """Set while this worker may act as owner; belongs to the runner's loop."""
    drain_timeout_s: float
    fence: Callable[[str, FenceRequest], Awaitable[FenceOutcome]]
    raise_epoch: Callable[[FeedKey, int], Awaitable[FeedKey | None]]
    open_batch_queue: Callable[[str, FeedKey, str, Landing, Fenced, Callable[[], None]], BatchQueue]
    hurry: Callable[[str], None]
    """Ask the writer of a sink to commit now."""
    sink_trouble: Callable[[str], str | None]
    """Why this worker has not reached a sink for a while; None when it has."""
    on_progress: Callable[[FeedRunner], None]
    """Progress was made; it will be collected with `progress`."""
    on_status: Callable[[FeedRunner], None]
    """The status changed; so will this."""


class FeedRunner:
    """Runs one claim. All methods but `run` may be called from its loop only."""

    def __init__(self, claim: Claim, worker: Surroundings) -> None:
        self._worker = worker
        self.sockets = worker.guard.of_feed()
        self.feed = lean(claim.feed)
        self.key = claim.key
        self._failures = claim.failures
        self.sink: str | None = None
        """The name of its sink, once it runs."""
        self._sink_error: str | None = None
        self._gave_up: str | None = None
        self._attempts = 0 if claim.has_failed else claim.attempts
        self._looks = claim.attempts if claim.has_failed else 0
        """How often in a row the feed was found unable to run as declared."""
        self._is_new_here = claim.is_new_here
        self._after_loss = claim.after_loss
        """Until it has had its first turn to connect here."""
        self._owned_since: float | None = None
        """When the sink took this tenure for the latest one."""
        self._failing_since: float | None = None
        """When it began to try for the connection that it has not got."""
        self._interrupt: Interrupt | None = None
        self._interrupted_at = float("-inf")
        self._letting_go = self._stalled = False
        self._stop_reason = Reason.RELEASED
        self._task: asyncio.Task[Release | None] | None = None
        self._batch_queue: BatchQueue | None = None
        self._must_fence = False
        """Whether its batch queue has failed, though the tenure has not: it gets another one."""
        self._rewind: Rewind | None = None
        self._secrets: dict[str, str] = {}
        self._memory: dict[str, object] = {}
        self._masker: Masker | None = None
        self._connected_at: float | None = None
        self._error: str | None = None
        self._blame: Loss | None = None
        self._reported = (0, 0, 0)
        self._landed = 0
        """What had landed when that was last looked at."""
        self._quarantined = claim.quarantined
        self._counted_at = self._refused_at = float("-inf")
        self._rows_per_s = self._dead_per_s = 0.0

    # -- what the supervisor does to it --------------------------------------------------------------

    def interrupt(self, why: Interrupt, *, reason: Reason = Reason.RELEASED) -> None:
        """Wake it up for ``why``; LOST overrides STOP overrides SUSPEND. May be repeated, and may come early."""
        now = self._worker.clock.monotonic()
        if self._interrupt is not None:
            rank = (Interrupt.SUSPEND, Interrupt.STOP, Interrupt.LOST)
            if rank.index(why) < rank.index(self._interrupt):
                return
            if why is self._interrupt and (self._letting_go or now < self._interrupted_at + CANCEL_AGAIN_S):
                return
        self._interrupt, self._interrupted_at = why, now
        if why is Interrupt.STOP:
            self._stop_reason = reason
        if self._task is not None:
            self._task.cancel()

    def let_go(self, blame: Loss) -> None:
        """End this tenure, and let the feed run apart from others from now on."""
        self._blame = blame
        self.interrupt(Interrupt.STOP, reason=Reason.QUARANTINED)

    def give_up(self, why: str) -> None:
        """Let go of the feed at once, and drop what is not written: others reach its sink, and we do not."""
        if self._interrupt is None:
            self._gave_up = why
            self.interrupt(Interrupt.STOP, reason=Reason.BACKOFF)

    def progress(self) -> Progress:
        """What happened since the last call."""
        batch_queue = self._batch_queue
        now = (batch_queue.landed, batch_queue.bytes_landed, batch_queue.dead) if batch_queue else (0, 0, 0)
        before, self._reported = self._reported, now
        error, self._error = self._error, None
        rewind, self._rewind = self._rewind, None
        self._measure(rows=now[0] - before[0], dead=now[2] - before[2])
        sink_error, dead_error = self._find_sink_error(), None
        if sink_error != self._sink_error:
            error, self._sink_error = error or sink_error, sink_error
        if batch_queue is not None and batch_queue.dead_error is not None:
            dead_error, batch_queue.dead_error = self._masked(batch_queue.dead_error), None
        ago_s = None
        if batch_queue is not None and batch_queue.last_record_at is not None:
            ago_s = max(0.0, (self._worker.clock.now() - batch_queue.last_record_at).total_seconds())
        return Progress(
            feed_id=self.key[0],
            epoch=self.key[1],
            records=now[0] - before[0],
            bytes=now[1] - before[1],
            dead_letters=now[2] - before[2],
            last_record_ago_s=ago_s,
            cursor=batch_queue.cursor if batch_queue else None,
            connected=self._connected_at is not None,
            stalled=self._stalled,
            attempts=self._attempts,
            error=error,
            failures=self._failures,
            dead_letter_error=dead_error,
            sink_error=sink_error,
            rewind=rewind,
        )

    def _find_sink_error(self) -> str | None:
        """Why nothing of it can be written just now: its table, or the sink."""
        trouble = self._batch_queue.trouble if self._batch_queue is not None else None
        if trouble is None and self.sink is not None:
            trouble = self._worker.sink_trouble(self.sink)
        return None if trouble is None else self._masked(trouble)

    def _measure(self, *, rows: int, dead: int) -> None:
        """Take in what has landed and what was refused since the last report, as the database does."""
        now, is_first = self._worker.clock.monotonic(), self._counted_at < 0
        elapsed_s = 0.0 if is_first else now - self._counted_at
        self._rows_per_s = smoothed(self._rows_per_s, count=rows, elapsed_s=elapsed_s, is_first=is_first)
        self._dead_per_s = smoothed(self._dead_per_s, count=dead, elapsed_s=elapsed_s, is_first=is_first)
        self._counted_at = now
        if dead:
            self._refused_at = now

    @property
    def unwritten_s(self) -> float:
        """How long something of it has waited without any of it being written. From any thread."""
        since = None if self._batch_queue is None else self._batch_queue.unwritten_since
        return 0.0 if since is None else max(0.0, monotonic() - since)

    def status(self, owner: Owner | None) -> Status:
        """As the control plane sees it if this is the worker, for the metrics. From any thread."""
        clock, is_refused = self._worker.clock, self._refused_at >= 0
        ago = timedelta(seconds=clock.monotonic() - self._refused_at) if is_refused else None
        lease = Lease(
            self.key[0],
            state=LeaseState.RUNNING,
            reason=None,
            connected=self._connected_at is not None,
            stalled=self._stalled,
            attempts=self._attempts,
            failures=self._failures,
            rows_per_s=self._rows_per_s,
            dead_per_s=self._dead_per_s,
            dead_letter_at=None if ago is None else clock.now() - ago,
            quarantined=self._quarantined,
            sink_error=self._sink_error,
        )
        return standing(self.feed, lease, owner, now=clock.now()).status

    # -- its life ------------------------------------------------------------------------------------

    async def run(self) -> Release | None:
        """Until the end of the tenure. Never raises for what a feed, its source or its sink can do."""
        self._task = asyncio.current_task()
        try:
            return await self._tenure()
        except LeaseLost as error:
            logger.warning(LogEvent.FEED_FENCED, feed=self.feed.name, epoch=self.key[1], error=str(error))
            return None if self._interrupt is Interrupt.LOST else self._release_fenced(error)
        except (FeedMisconfigured, InvalidInput) as error:
            message = self._masked(error)
            self._failures += 1
            say = logger.debug if self._looks else logger.error
            say(LogEvent.FEED_FAILED, feed=self.feed.name, error=message)
            # What came before the record that cannot pass is to be in the table when a person looks.
            try:
                with contextlib.suppress(FeedqError):
                    await self._drain()
            except asyncio.CancelledError:
                if self._interrupt is None:
                    raise
                if self._interrupt is Interrupt.LOST:
                    return None
            again_s = next_look_s(self._looks + 1, rng=self._worker.rng, policy=self._worker.backoff)
            return self._release(Reason.FAILED, error=message, retry_in_s=again_s)
        finally:
            self._task = None
            if self._batch_queue is not None:
                self._batch_queue.abandon()

    async def _tenure(self) -> Release | None:
        kind, what = load_connector(self.feed.spec.connector), declared(self.feed)
        self.sink = what.sink
        with self._worker.pacing.of(self.feed, what.options.limits) as pace:
            while True:
                # An interrupt may be older than the first step of this coroutine: nobody could cancel it then.
                if self._interrupt is None:
                    ended = await self._attempt(kind, what, pace)
                    if ended is not None:
                        return ended
                match self._heed():
                    case Interrupt.LOST:
                        return None
                    case Interrupt.STOP:
                        return await self._let_go(what.sink)
                # Suspended, or a reconnect whose delay is over: wait until we may, then go round again.

    async def _attempt(self, kind: type[Connector], what: Declared, pace: FeedThrottle) -> Release | None:
        """One connection, from its fence to its end. None: go on as the interrupt says, or try again."""
        try:
            if what.options.secrets and self._masker is None:
                self._secrets = await asyncio.to_thread(
                    resolve_secrets,
                    what.options.secrets,
                    tenant=self.feed.spec.tenant,
                    permissions=self._worker.permissions,
                )
                self._masker = await asyncio.to_thread(Masker, self._secrets.values())
            await self._worker.trusted.wait()
            if self._batch_queue is None or self._must_fence:
                self._batch_queue = await self._open_batch_queue(what, self._batch_queue)
            # What was received before the last connection broke must be decided before we ask again.
            await self._batch_queue.drained()
            await self._worker.start_limiter.turn()
            await self._worker.connect_limiter.turn(what.options.remote_host, after_loss=self._after_loss)
            self._after_loss = False
            context = self._context(self._batch_queue, pace)
            if self._failing_since is None:
                self._failing_since = self._worker.clock.monotonic()
            stream = open_stream(kind, what.options, context=context, cursor=self._batch_queue.cursor)
            await self._stream(stream, self._batch_queue, pace)
        except asyncio.CancelledError:
            self._disconnected()
            # An interrupt cancels the task to wake it; anybody else's cancellation goes on.
            if self._interrupt is None:
                raise
        except (SourceUnavailable, SinkUnavailable) as error:
            if self._batch_queue is not None and self._batch_queue.failure is error:
                self._must_fence = True
            return await self._after_failure(error)
        return None

    async def _stream(
        self, batches: AsyncGenerator[Batch, None], batch_queue: BatchQueue, pace: FeedThrottle
    ) -> None:
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    if self._interrupt is not None:
                        raise asyncio.CancelledError  # the connector, or a library of its, swallowed ours
                    if self._stalled:
                        self._stalled = False
                        self._changed()
                    await batch_queue.put(batch)
                    if pace.is_limited:
                        await pace.keep(batch, unless=lambda: batch_queue.failure)
                    del batch  # or it would stay in memory until the next one comes
        except (SourceUnavailable, FeedMisconfigured, LeaseLost, SinkUnavailable):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # these two would end all other feeds too
            self.log_unexpected(error, "connector")
            raise SourceUnavailable(f"unexpected error in connector: {error!r}") from error
        raise SourceUnavailable("the source ended the stream")

    async def _open_batch_queue(self, what: Declared, failed: BatchQueue | None) -> BatchQueue:
        """Fence, and begin where the sink says; what waits in a queue that has ``failed`` is asked for again."""
        if failed is not None:
            failed.abandon()
        fenced = await self._fence(what.sink, what.landing)
        self._owned_since, self._must_fence = self._worker.clock.monotonic(), False
        batch_queue = self._worker.open_batch_queue(
            what.sink, self.key, self.feed.name, what.landing, fenced, self._progressed
        )
        if failed is not None:
            batch_queue.take_over(failed)
        if failed is not None and isinstance(failed.failure, SinkRewound):
            # It may tell of records as landed that the sink has no more.
            self._memory = {}
            self._rewind = Rewind(what.sink, failed.cursor, fenced.cursor)
            logger.warning(LogEvent.SINK_REWOUND, feed=self.feed.name, sink=what.sink, epoch=self.key[1])
            self._worker.on_progress(self)
        return batch_queue

    async def _fence(self, sink_name: str, landing: Landing) -> Fenced:
        while True:
            request = FenceRequest(self.key[0], self.feed.name, self.key[1], landing, self.feed.identity)
            match await self._worker.fence(sink_name, request):
                case Fenced() as fenced:
                    return fenced
                case Unusable(error=error):
                    raise FeedMisconfigured(error)
                case Superseded(epoch_in_sink=above):
                    raised = await self._worker.raise_epoch(self.key, above)
                    if raised is None:
                        raise LeaseLost(
                            f"feed {self.key[0]} ({self.feed.name}): epoch {self.key[1]} was superseded by "
                            f"{above} in sink {sink_name!r}"
                        )
                    logger.warning(
                        LogEvent.EPOCH_RAISED, feed=self.feed.name, epoch=raised[1], sink_epoch=above
                    )
                    self.key = raised
                case other:
                    raise AssertionError(f"a fence ended with {other!r}")

    async def _after_failure(self, error: SourceUnavailable | SinkUnavailable) -> Release | None:
        held_s = failing_s = 0.0
        now = self._worker.clock.monotonic()
        if self._connected_at is not None:
            held_s = now - self._connected_at
        elif self._failing_since is not None:
            failing_s = now - self._failing_since
        self._failures += 1
        has_received = self._batch_queue is not None and self._batch_queue.last_record_at is not None
        self._attempts = attempts_after(self._attempts, connected_s=held_s, policy=self._worker.backoff)
        decision = next_try(
            self._attempts,
            rng=self._worker.rng,
            policy=self._worker.backoff,
            not_before_s=error.retry_in_s if isinstance(error, SourceBusy) else 0.0,
            is_new_here=self._is_new_here and not has_received,
            failing_s=failing_s,
        )
        message = self._masked(error)
        self._error = message
        silent = isinstance(error, SourceSilent)
        self._stalled = self._stalled or silent
        self._disconnected()
        RECONNECTS.inc()
        logger.info(
            LogEvent.FEED_STALLED if silent else LogEvent.FEED_BROKEN_OFF,
            feed=self.feed.name,
            error=message,
            attempts=self._attempts,
            again_in_s=round(decision.delay_s, 2),
        )
        if self._interrupt is not None:
            return None  # its cancellation came out of the connector as this error
        try:
            if isinstance(decision, LetGo):
                await self._drain()
                return self._release(Reason.BACKOFF, error=message, retry_in_s=decision.delay_s)
            await asyncio.sleep(decision.delay_s)
        except asyncio.CancelledError:
            if self._interrupt is None:
                raise
        return None

    def _release_fenced(self, error: LeaseLost) -> Release:
        """Lets the feed be placed again at once the first time, and later each time that follows soon: two
        installations that share a sink would take it from each other without end."""
        self._disconnected()
        self._failures += 1
        policy, rng = self._worker.backoff, self._worker.rng
        owned_s = 0.0 if self._owned_since is None else self._worker.clock.monotonic() - self._owned_since
        self._attempts = attempts_after(self._attempts, connected_s=owned_s, policy=policy)
        again_s = 0.0 if self._attempts == 1 else next_try(self._attempts - 1, rng=rng, policy=policy).delay_s
        return self._release(Reason.FENCED, error=self._masked(error), retry_in_s=again_s)

    async def _let_go(self, sink_name: str) -> Release | None:
        self._letting_go = True
        if self._gave_up is not None:
            self._failures += 1
            return self._release(self._stop_reason, error=self._gave_up)
        self._worker.hurry(sink_name)
        try:
            await self._drain()
        except asyncio.CancelledError:
            # Lost while we were letting go; or the loop is going down, which releases nothing either.
            return None
        return self._release(self._stop_reason)

    async def _drain(self) -> None:
        """Wait for the last commits, but not for ever: what is not committed, the successor asks for again."""
        if self._batch_queue is None:
            return
        with contextlib.suppress(TimeoutError, SinkUnavailable):
            async with asyncio.timeout(self._worker.drain_timeout_s):
                await self._batch_queue.drained()

    def _heed(self) -> Interrupt | None:
        """Why it was interrupted, if it was; the cancellations that said so are spent."""
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

    def _context(self, batch_queue: BatchQueue, pace: FeedThrottle) -> Context:
        return Context(
            feed=self.feed.name,
            clock=self._worker.clock,
            guard=self.sockets,
            on_connected=self._connected,
            secrets=self._secrets,
            permissions=self._worker.permissions,
            environment=self._worker.environment,
            note_thread=partial(self._worker.note_thread, self.feed.id),
            room=pace.room(batch_queue.budget),
            memory=self._memory,
        )

    def _connected(self) -> None:
        self._connected_at = self._worker.clock.monotonic()
        self._failing_since = None
        logger.debug(LogEvent.FEED_CONNECTED, feed=self.feed.name)
        self._changed()

    def _disconnected(self) -> None:
        self._connected_at = None
        self._changed()

    def _progressed(self) -> None:
        batch_queue = self._batch_queue
        if batch_queue is not None and batch_queue.landed > self._landed:
            self._landed, self._failures = batch_queue.landed, 0
        if batch_queue is not None and batch_queue.failure is not None:
            # Its next record may be long in coming. Woken, it looks at the batch queue before it connects again.
            self.interrupt(Interrupt.SUSPEND)
        self._worker.on_progress(self)

    def _changed(self) -> None:
        self._worker.on_status(self)

    def _release(self, reason: Reason, *, error: str | None = None, retry_in_s: float = 0.0) -> Release:
        counts = {
            Reason.BACKOFF: self._attempts,
            Reason.FENCED: self._attempts,
            Reason.FAILED: self._looks + 1,
        }
        attempts = counts.get(reason, 0)
        if self._blame is not None and reason is Reason.QUARANTINED:
            error = self._blame.said
        return Release(*self.key, reason, retry_in_s, attempts, error, self._blame)

    def release_after(self, error: BaseException) -> Release:
        """For whoever runs it, when it ended in a way that it should not: another worker may try."""
        self._failures += 1
        said = self._masked(f"unexpected error: {str(error) or type(error).__name__}")
        return Release(*self.key, Reason.BACKOFF, UNEXPECTED_RETRY_S, 1, said)

    def log_unexpected(self, error: BaseException, where: str) -> None:
        """With its traceback, masked: what a library raises may quote what it was given."""
        trace = self._masked("".join(format_exception(error)))
        logger.error(LogEvent.UNEXPECTED, where=where, feed=self.feed.name, exception=trace)

    def _masked(self, said: BaseException | str) -> str:
        text = mask_url(str(said) or type(said).__name__)
        return text if self._masker is None else self._masker.mask(text)
