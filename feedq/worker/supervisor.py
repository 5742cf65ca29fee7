"""The supervisor of a worker process carries out what its core decides.

`feedq.core.worker` decides, `feedq.worker.lease_keeper` and `feedq.worker.lease_client` talk to the control
database, and the supervisor does the rest: it starts a runner for each granted claim on its event loop, passes
on suspensions and stop requests, collects progress, and ends everything in order. Its public methods may be
called from any thread; whatever touches a runner happens on that runner's loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Protocol, cast
from uuid import UUID

import uvloop

from feedq.connectors.base import load_connector
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import NotifyReason
from feedq.core import worker_actions as actions
from feedq.core.clock import Clock, SystemClock
from feedq.core.lease import stillness
from feedq.core.limits import CLAIMS_FEW
from feedq.core.loss import Loss
from feedq.core.model import (
    Claim,
    FeedKey,
    Heartbeat,
    Load,
    ProgressReport,
    Reason,
    Release,
    Status,
    Worker,
)
from feedq.core.passwords import mask_url
from feedq.core.tap import TapPart
from feedq.core.worker import WorkerCore
from feedq.core.worker_actions import Action
from feedq.errors import InvalidInput
from feedq.settings import HEARTBEAT_MIN_S, Settings
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.watched_threads import WatchedThread, note_turn
from feedq.worker.activity import CHECK_S, current_feed
from feedq.worker.apart import Apart
from feedq.worker.duty import Duty
from feedq.worker.lease_client import LeaseClient
from feedq.worker.lease_keeper import CoreDriver, LeaseKeeper
from feedq.worker.memory import MemoryWatch
from feedq.worker.pacing import SHARE_TICKS, ConnectLimiter, Pacing
from feedq.worker.progress_reporter import LoadMeter, ProgressReporter
from feedq.worker.runner import UNEXPECTED_RETRY_S, FeedRunner, Interrupt, WorkerServices
from feedq.worker.sink_pool import SinkPool
from feedq.worker.taps import TapWriter
from feedq.worker.thread_pool import Lane, ThreadPool
from feedq.worker.threads import call_on
from feedq.worker.watch import LOOP, Standstill, Watch

if TYPE_CHECKING:
    from feedq.worker.jobs.job_service import Jobs

SINK_PATIENCE_S = 5.0
"""A worker that has not reached a sink for this long lets go of its feeds, if another worker reaches the
sink: longer than the restart of a connection pooler. If no worker reaches it, this one keeps them."""
STOP_GRACE_S = 0.3
"""What all threads together get to end by themselves once the feeds are done, or their time is over."""
COMMIT_PART = 0.6
"""The part of the drain timeout that a feed may wait for its last commits. With all of it, a sink that hangs takes
the time to release the lease as well, and the feed is silent until its ttl is over; with too little, what a slow
sink would have committed is read and written again."""

logger = log(__name__)


class TaskCallbacks(Protocol):
    """The receiver of ``stream_feed`` messages. Nothing of it may block."""

    def accepted(self) -> None:
        """The claim was committed: from now on the lease brings the feed back, not the message."""

    def finished(self, why: str) -> None:
        """The feed has ended here, or never began."""


class Supervisor:
    """Carries out what the core of one worker process decides."""

    def __init__(
        self,
        store: PostgresStore,
        settings: Settings,
        register: Callable[[], Worker],
        *,
        reconcile: Callable[[], None],
        watch: Watch,
        is_apart: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """``register`` begins a worker session. ``watch`` is that of this process, which outlives the supervisor.
        ``is_apart``: the process runs one feed apart."""
        self._store, self._settings = store, settings
        self._reconcile = reconcile
        self._watch = watch
        self._activity = watch.activity
        self._clock = clock = clock or SystemClock()
        self._rng = rng = Random()
        self.core = WorkerCore(settings, rng=rng, now=clock.monotonic(), is_apart=is_apart)
        self._driver = CoreDriver(self.core, self._perform, woken=watch.woken)
        self.lease_keeper = LeaseKeeper(
            store,
            self._driver,
            register,
            settings=settings,
            clock=clock,
            load=self.load,
            stalled_s=lambda: watch.stalled_s,
            on_registered=self._registered,
            on_answer=self._answered,
        )
        self.lease_client = LeaseClient(
            store,
            self._driver,
            on_claimed=self._claims_answered,
            on_lost=self._reports_refused,
            on_heard=self._heard,
        )
        self._sink_pool = SinkPool(settings, worker_id=self._worker_id, gone_workers=store.workers.gone_among)
        self._pacing = Pacing(settings.tenant_limits, clock, room_bytes=settings.inflight_bytes_total)
        self._connect_limiter = ConnectLimiter(
            settings.connects_per_s, settings.host_connects_per_s, clock, rng=rng
        )
        self.jobs: Jobs | None = None
        """The jobs of this process, if it runs any."""
        self._was_interrupted = False
        self._drained = Event()
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._runners: dict[FeedKey, FeedRunner] = {}
        """Changed on the loop, read from any thread."""
        self._apart = Apart(settings, on_ended=self._apart_ended, on_lost=self._apart_lost)
        self._progress_reporter = ProgressReporter(self._loop, self._report)
        self._trusted = asyncio.Event()
        # Not the lease client's thread: no claim may wait for what people watch.
        self._tap_writer = TapWriter(self._loop, elsewhere=Lane(ThreadPool()).submit, send=self._send_taps)
        self._load_meter = LoadMeter(self._loop)
        self._sinks_down: set[str] = set()
        self._missed: set[FeedKey] = set()
        """The feeds that were to run and did not at the last heartbeat."""
        self._tasks: dict[asyncio.Task[Release | None], FeedRunner] = {}
        self._on_task_done = self._runner_ended  # made once: of each feed, it is kept
        self._thread = WatchedThread(self._run_loop, name=LOOP)

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register and begin to serve. Raises `Unavailable` while the control database is away."""
        self._sink_pool.load()
        self.lease_keeper.start()
        self.lease_client.start()
        self._thread.start()
        self._watch.idle_backends = self._store.idle_backends
        self._watch.add(Duty("core", self.lease_keeper.watch))
        if self._watch.limits.memory_bytes:
            release = partial(self._soon, self._release_for_memory)
            memory = MemoryWatch(self._activity, limit_bytes=self._watch.limits.memory_bytes, release=release)
            self._watch.add(Duty("memory", memory.look))
        self._watch.start()

    @property
    def worker(self) -> Worker | None:
        return self.lease_keeper.worker

    @property
    def is_draining(self) -> bool:
        return self.core.is_draining

    @property
    def loop_lag_s(self) -> float:
        return self._load_meter.lag_s

    @property
    def stuck(self) -> Standstill | None:
        """The thread of this process that does not get on, if there is one."""
        return self._watch.stuck

    @property
    def loop_stalled_s(self) -> float:
        """The seconds that the loop has stood still although it could have turned."""
        return self._watch.loop_stalled_s

    def statuses(self) -> Counter[Status]:
        """The feeds that run here, by status, at this moment. From any thread: the loop may be stuck."""
        if self.lease_keeper.worker is None:
            return Counter()
        # As the control plane would find, had it just been told.
        age, ttl = (timedelta(seconds=s) for s in (self.lease_keeper.heartbeat_age_s, self._settings.ttl_s))
        is_still = stillness(loop_lag_s=self.loop_lag_s, heartbeat_age=age, ttl=ttl) is not None
        counts = Counter(runner.progress.status(is_still=is_still) for runner in self._all_runners())
        counts[Status.QUARANTINED] += self._apart.quarantined
        return counts

    @property
    def unwritten_s(self) -> float:
        """The longest that a feed has waited for any of its batches to be written. From any thread."""
        return max((runner.progress.unwritten_s for runner in self._all_runners()), default=0.0)

    @property
    def feeds(self) -> int:
        """The number of feeds that have been granted and have not ended."""
        return self.core.feeds

    def _all_runners(self) -> list[FeedRunner]:
        return list(self._runners.values())

    def drain(self) -> None:
        """Begin to release all feeds, and take nothing more. Returns at once; safe in a signal handler."""
        self._activity.leave()
        self._soon(self._drain)

    def join(self) -> None:
        """Wait until the drain is over, at most ``drain_timeout_s``, then end every thread and say goodbye.

        All of it takes at most `STOP_GRACE_S` longer than that, whichever server is away.
        """
        self._drain()  # the loop may be stuck, and not have come to it
        assert self.core.drain_began is not None
        drain_by = self.core.drain_began + self._settings.drain_timeout_s
        if not self._drained.wait(self._left_s(drain_by)):
            left = [runner.name for runner in self._all_runners()]
            logger.warning(LogEvent.STOP_OVERDUE, feeds=left[:20], count=len(left))
            self._cut_all_sockets()
            self._apart.kill_all()
        worker = self.lease_keeper.worker
        leave = None if worker is None else partial(self._store.workers.leave, worker.id)
        leave_by = max(drain_by, self._clock.monotonic()) + STOP_GRACE_S
        self.lease_client.stop(timeout_s=self._left_s(leave_by), farewell=leave)
        self.lease_keeper.stop(timeout_s=self._left_s(leave_by))
        self._sink_pool.stop(timeout_s=partial(self._left_s, leave_by))
        self._soon(self._loop.stop)
        if self._thread.is_alive():
            self._thread.join(self._left_s(leave_by))
        logger.info(LogEvent.WORKER_LEFT, worker=worker.name if worker else None)

    def _left_s(self, until: float) -> float:
        return max(0.0, until - self._clock.monotonic())

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call it on the loop."""
        call_on(self._loop, callback, *arguments)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._activity.watch_loop(self._loop)
        self._turn()
        self._load_meter.start()
        self._tick(0)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _turn(self) -> None:
        """Note that the loop turns, twice as often as that is checked."""
        self._activity.tick()
        note_turn()
        self._loop.call_later(CHECK_S / 2, self._turn)

    # -- what others tell ----------------------------------------------------------------------------

    def offer(self, key: FeedKey, callbacks: TaskCallbacks) -> None:
        """A ``stream_feed`` message came in: claim the feed, or drop the message."""
        self._driver.tell(self.core.message_received, key, callbacks)

    def cancel(self, feed_id: int) -> None:
        """Stop one feed because somebody revoked its task; reconcile will start it again elsewhere."""
        self._apart.release(feed_id)
        self._driver.tell(self.core.stop_feed, feed_id)

    def _claims_answered(
        self, worker_id: UUID, granted: list[Claim], refused: list[FeedKey], sure: bool
    ) -> None:
        # Here, not on the event loop: the first feed of a connector has it imported, for tenths of a second.
        for kind in {claim.feed.spec.connector for claim in granted}:
            with suppress(InvalidInput):  # the feed is told
                load_connector(kind)
        now = self._clock.monotonic()
        self._driver.tell(self.core.claims_answered, worker_id, granted, refused, sure=sure, now=now)

    def _reports_refused(self, keys: list[FeedKey]) -> None:
        self._driver.tell(self.core.reports_refused, keys, now=self._clock.monotonic())

    def _feed_ended(self, key: FeedKey, release: Release | None, why: str) -> None:
        self._driver.tell(self.core.feed_ended, key, release, why, now=self._clock.monotonic())

    # -- what the core decides -----------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        """Carry it out, or have it carried out on another thread: this must not block."""
        match action:
            case actions.StartFeeds():
                self._soon(self._start_feeds, action.claims)
            case actions.StartApart():
                self._soon(self._start_apart, action.claims)
            case actions.StopFeeds():
                self._soon(self._stop_feeds, action.feeds)
            case actions.LoseFeeds():
                # Told first, or they would take the end of their connections for the source's doing.
                self._soon(self._lose_feeds, action.keys)
                self._cut_sockets(action)
            case actions.AcceptMessage(callbacks) | actions.FinishMessage(callbacks):
                message = cast(TaskCallbacks, callbacks)
                if isinstance(action, actions.FinishMessage):
                    message.finished(action.why)
                else:
                    message.accepted()
            case actions.DropMessage():
                drop_message(action)
            case actions.Drained():
                self._drained.set()
            case actions.RunReconcile(pass_age_s):
                logger.warning(LogEvent.WATCHDOG, pass_age_s=pass_age_s)
                self._reconcile()
            case actions.Suspend(why):
                logger.warning(LogEvent.WORKER_SUSPENDED, why=why)
                # First the sockets, from this thread: the loop may be what is stuck.
                self._cut_all_sockets()
                self._was_interrupted = True
                self._soon(self._suspend)
            case actions.Resume():
                if self._was_interrupted:
                    logger.info(LogEvent.WORKER_RESUMED)
                self._soon(self._trusted.set)
                if self.jobs is not None:
                    self.jobs.slots.wake()
            case _:
                self._ask_database(action)

    def _ask_database(self, action: Action) -> None:
        client = self.lease_client
        match action:
            case actions.ClaimFeeds(worker_id, keys):
                client.claim(worker_id, keys)
                if len(keys) > CLAIMS_FEW:
                    self._sink_pool.expect_feeds()
            case actions.ReleaseLeases(worker_id, releases):
                client.release(worker_id, releases)
            case actions.FetchOrders(worker_id):
                client.do(partial(self._fetch_orders, worker_id))
            case actions.FetchHeld(worker_id):
                client.do(partial(self._fetch_held, worker_id))
            case actions.AnnounceDrain(worker_id):
                client.do(partial(self._store.workers.drain, worker_id))
            case _:
                raise AssertionError(f"nothing carries out {action}")

    def _fetch_orders(self, worker_id: UUID) -> None:
        if not self.is_draining:
            keys = self._store.leases.assigned(worker_id, limit=actions.ASSIGNMENTS_MAX)
            self._driver.tell(self.core.assignments_found, worker_id, keys)
        requests = self._store.leases.stop_requests(worker_id)
        self._driver.tell(self.core.stops_found, worker_id, requests, now=self._clock.monotonic())

    def _fetch_held(self, worker_id: UUID) -> None:
        held = set(self._store.leases.held(worker_id))
        self._driver.tell(self.core.held_found, worker_id, held, now=self._clock.monotonic())

    def _cut_all_sockets(self) -> None:
        for runner in self._all_runners():
            runner.sockets.cut()

    def _cut_sockets(self, action: actions.LoseFeeds) -> None:
        runners = [runner for key in action.keys if (runner := self._runners.get(key))]
        for runner in runners:
            runner.sockets.cut()
        if action.overdue:
            names = [runner.name for runner in runners]
            logger.warning(LogEvent.STOP_OVERDUE, feeds=names[:20], count=len(names))

    # -- runners, on the loop ------------------------------------------------------------------------

    def _start_feeds(self, claims: list[Claim]) -> None:
        services = self._worker_services()
        for claim in claims:
            try:
                self._start_runner(FeedRunner(claim, services))
            except Exception as error:
                logger.exception(LogEvent.UNEXPECTED, where="start", feed=claim.feed.name)
                self._release_unstarted(claim.key, Reason.BACKOFF, mask_url(str(error)))

    def _start_apart(self, claims: list[Claim]) -> None:
        for claim in claims:
            try:
                self._apart.start(claim, self._worker_id())
            except RuntimeError as error:
                logger.exception(LogEvent.UNEXPECTED, where="start", feed=claim.feed.name)
                self._release_unstarted(claim.key, Reason.QUARANTINED, str(error))

    def _apart_ended(self, key: FeedKey, release: Release | None) -> None:
        self._feed_ended(key, release, release.reason.value if release else "ended")

    def _apart_lost(self, session: UUID, loss: Loss) -> None:
        self.lease_client.do(partial(self._store.workers.report_loss, session, loss, has_ended=True))

    def _start_runner(self, runner: FeedRunner) -> None:
        feed_id = runner.key[0]
        context = copy_context()
        context.run(current_feed.set, feed_id)
        task = self._loop.create_task(runner.run(), name=f"feed-{feed_id}", context=context)
        self._tasks[task] = runner
        task.add_done_callback(self._on_task_done, context=context)
        self._runners[runner.key] = runner
        logger.debug(LogEvent.FEED_CLAIMED, feed=runner.name, epoch=runner.key[1])

    def _release_unstarted(self, key: FeedKey, reason: Reason, why: str) -> None:
        said = f"it could not be started: {why}"
        self._feed_ended(key, Release(*key, reason, UNEXPECTED_RETRY_S, 1, said), f"failed: {said}")

    def _check_started(self) -> None:
        """Release feeds that were to start here and do not run, whatever kept them from it: the control database
        would have them connecting for ever. They are missed twice, as the start of one may be about to come."""
        missed = {feed.key for feed in self.core} - self._runners.keys()
        for key in missed & self._missed:
            logger.error(LogEvent.UNEXPECTED, where="start", feed_id=key[0], error="it does not run")
            self._release_unstarted(key, Reason.BACKOFF, "it did not run")
        self._missed = missed - self._missed

    def _stop_feeds(self, feeds: list[tuple[FeedKey, Reason]]) -> None:
        for key, reason in feeds:
            if (runner := self._runners.get(key)) is not None:
                runner.interrupt(Interrupt.STOP, reason=reason)

    def _lose_feeds(self, keys: list[FeedKey]) -> None:
        for key in keys:
            if (runner := self._runners.get(key)) is not None:
                runner.interrupt(Interrupt.LOST)

    def _suspend(self) -> None:
        self._trusted.clear()
        for runner in self._all_runners():
            runner.interrupt(Interrupt.SUSPEND)

    def _runner_ended(self, task: asyncio.Task[Release | None]) -> None:
        runner = self._tasks.pop(task)
        release, why = None, "lost"
        if not task.cancelled():
            if (error := task.exception()) is not None:
                runner.log_unexpected(error, "runner")
                release = runner.release_after(error)
                why = f"failed: {release.error}"
            elif (release := task.result()) is not None:
                why = release.reason.value
        self._runners.pop(runner.key, None)
        self._progress_reporter.discard(runner.progress)
        if release is not None:
            # What it did since the last report belongs to this epoch: it is told before the release.
            self._report([runner.progress.report()])
            logger.debug(LogEvent.FEED_RELEASED, feed=runner.name, reason=release.reason.value)
        self._feed_ended(runner.key, release, why)

    def _report(self, progress: list[ProgressReport]) -> None:
        self._load_meter.count(progress)
        self.lease_client.report(self._worker_id(), progress)

    def _worker_services(self) -> WorkerServices:
        return WorkerServices(
            clock=self._clock,
            rng=self._rng,
            backoff=self._settings.backoff,
            permissions=self._settings.permissions,
            environment=self._settings.environment,
            sinks=self._sink_pool,
            note_thread=self._activity.thread_of,
            pacing=self._pacing,
            connect_limiter=self._connect_limiter,
            trusted=self._trusted,
            commit_timeout_s=self._settings.drain_timeout_s * COMMIT_PART,
            expected=self._settings.expected_of,
            on_progress=self._progress_reporter.note,
            on_status=self._progress_reporter.tell,
        )

    def _release_for_memory(self, feed_id: int, blame: Loss) -> None:
        for runner in self._all_runners():
            if runner.key[0] == feed_id:
                logger.error(LogEvent.FEED_LET_GO, feed=runner.name, why=blame.said)
                runner.interrupt(Interrupt.STOP, reason=Reason.QUARANTINED, error=blame.said, blame=blame)

    def _leave_sinks(self, answer: Heartbeat) -> None:
        """Let go of feeds whose sinks this worker alone does not reach: if nobody does, nothing is won by it."""
        sinks = self._sink_pool
        left = {
            n: why for n, why in sinks.down(for_s=SINK_PATIENCE_S).items() if n in answer.sinks_up_elsewhere
        }
        # Where nobody has tried, somebody has to, and may find it away as well.
        for name, why in sinks.down(for_s=2 * SINK_PATIENCE_S).items():
            if name in answer.sinks_untried_elsewhere:
                left[name] = why
        for runner in self._all_runners():
            if runner.progress.sink in left:
                error = left[runner.progress.sink]
                runner.interrupt(Interrupt.STOP, reason=Reason.BACKOFF, error=error)

    def _tell_of_sinks(self) -> None:
        """Have the feeds of sinks that went away, or came back, reported at once."""
        before, self._sinks_down = self._sinks_down, set(self._sink_pool.down())
        changed = before ^ self._sinks_down
        for runner in self._all_runners() if changed else ():
            if runner.progress.sink in changed:
                self._progress_reporter.tell(runner.progress)

    def _drain(self) -> None:
        if self.is_draining:
            return
        worker = self.lease_keeper.worker
        logger.info(LogEvent.WORKER_DRAINING, worker=worker.name if worker else None, feeds=self.feeds)
        self._apart.drain()
        self._driver.tell(self.core.drain, now=self._clock.monotonic())

    def _tick(self, count: int) -> None:
        """Every heartbeat: see to it that all feeds run, and report what moved. Now and then, share out the limits
        of tenants."""
        interval_s = max(self._settings.heartbeat_s, HEARTBEAT_MIN_S)
        self._loop.call_later(interval_s, self._tick, count + 1)
        self._check_started()
        self._tell_of_sinks()
        self._progress_reporter.report()
        if count % SHARE_TICKS == 0 and (tenants := self._pacing.limited_tenants()):
            self.lease_client.do(lambda: self._pacing.share(self._store.leases.running_of(tenants)))

    def _registered(self, worker: Worker) -> None:
        self._activity.begin_session(worker.id)
        # Sessions with the sinks carry the id of a worker session that has ended.
        self._sink_pool.renew()
        self.lease_client.follow(worker)

    def _worker_id(self) -> UUID:
        assert self.lease_keeper.worker is not None
        return self.lease_keeper.worker.id

    # -- what the lease keeper and the lease client tell ---------------------------------------------

    def _heard(self, reasons: Collection[str]) -> None:
        """The worker was notified for these reasons."""
        if NotifyReason.FEEDS.is_among(reasons):
            self._driver.tell(self.core.orders_pending)
        if self.jobs is not None:
            self.jobs.notified(reasons)

    def _answered(self, answer: Heartbeat) -> None:
        self._soon(self._connect_limiter.share, answer.active_workers)
        self._soon(self._follow_taps, answer.tapped)
        if answer.sinks_up_elsewhere or answer.sinks_untried_elsewhere:
            self._soon(self._leave_sinks, answer)

    def _follow_taps(self, feed_ids: Collection[int]) -> None:
        self._tap_writer.follow(feed_ids, (runner.progress for runner in self._runners.values()))

    def _send_taps(self, parts: Sequence[TapPart]) -> None:
        self._store.taps.put(self._worker_id(), parts)

    def load(self) -> Load:
        load = self._load_meter.load(feeds=self.feeds)
        return replace(load, sinks_up=self._sink_pool.up(), sinks_down=tuple(sorted(self._sink_pool.down())))


def drop_message(dropped: actions.DropMessage) -> None:
    """Let its broker forget it, and say why."""
    feed_id, epoch = dropped.key
    logger.info(LogEvent.MESSAGE_DROPPED, feed_id=feed_id, epoch=epoch, why=dropped.why)
    if dropped.message is not None:
        message = cast(TaskCallbacks, dropped.message)
        message.accepted()
        message.finished(f"dropped: {dropped.why}")
