"""One worker process: its loop, its runners, and the threads around them.

The supervisor owns no policy. It starts a runner for each granted claim, passes on what the lease keeper learns
(suspend, resume, gone, stop requests), collects progress, and ends everything in order. Its public methods may
be called from any thread; whatever touches a runner happens on that runner's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from threading import Event, Thread
from typing import Any
from uuid import UUID

import uvloop

from feedq.clock import Clock, SystemClock
from feedq.errors import Unavailable
from feedq.lease import Owner
from feedq.model import (
    FeedKey,
    Heartbeat,
    Load,
    Loss,
    NewWorker,
    Progress,
    Reason,
    Release,
    Status,
    StopRequest,
    Worker,
)
from feedq.runtime.activity import NO_FEED, Activity, current_feed
from feedq.runtime.claim_queue import SUMMONED_MAX, AssignmentListener, ClaimQueue, Granted, TaskCallbacks
from feedq.runtime.connect_limiter import connect_limiter_of, shared_connect_limiter
from feedq.runtime.external_pool import FOLLOW_S, ExternalPool, Tenures
from feedq.runtime.interrupt import Interrupt
from feedq.runtime.lease_client import LeaseClient
from feedq.runtime.lease_keeper import LeaseKeeper
from feedq.runtime.load_meter import LoadMeter
from feedq.runtime.memory import MemoryWatch
from feedq.runtime.monitor import Watch
from feedq.runtime.progress_reporter import ProgressReporter
from feedq.runtime.quarantine import Quarantine
from feedq.runtime.runner import FeedRunner, Surroundings
from feedq.runtime.running_feeds import RunningFeeds
from feedq.runtime.sink_pool import SinkPool, sinks_to_leave
from feedq.runtime.sockets import Sockets
from feedq.runtime.stall import LOOK_S, Scheduling, StallClock
from feedq.runtime.start_limiter import StartLimiter
from feedq.runtime.throttling import SHARE_TICKS, Pacing
from feedq.settings import Settings
from feedq.store.base import Store
from feedq.telemetry import LogEvent, log

AUDIT_INTERVAL_S = 60.0
"""How often what runs here is compared with what the database thinks runs here."""
AUDIT_GATHER_S = 0.1
"""The audits that many feeds ask for at once are one."""
AUDIT_BESIDE_INTERVAL_S = 5.0
"""The same for tenures beside us: these can be killed one by one, and are few."""
STOP_GRACE_S = 0.3
"""What all threads together get to end by themselves once the feeds are done, or their time is over."""

logger = log(__name__)


class Supervisor:
    """The data plane of one worker process."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        new_worker: Callable[[], NewWorker],
        *,
        reconcile: Callable[[], None],
        tenures_beside: Tenures | None = None,
        watch: Watch | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``tenures_beside``: on Celery's own pools, where tenures do not run in here. ``watch``: the monitor of
        this process, if it has one."""
        self._store, self._settings = store, settings
        self._reconcile = reconcile
        self._watch = watch
        self._activity = watch.activity if watch is not None else Activity.private()
        self._clock = clock = clock or SystemClock()
        self._rng = rng = Random()
        self.lease_keeper = LeaseKeeper(store, new_worker, self, settings=settings, clock=clock, rng=rng)
        self._claim_queue = ClaimQueue(refusal=self._refusal, claim=self._claim, begin=self._granted)
        self.lease_client = LeaseClient(
            store,
            on_claimed=self._claim_queue.answered,
            on_lost=lambda keys: self._soon_after(self._running_feeds.lose, keys),
            on_doubt=lambda _: self._ask_for_audit(),
        )
        self._external_pool = tenures_beside and ExternalPool(
            store, self.lease_client, tenures_beside, clock=clock
        )
        self.sockets = Sockets()
        self._ends = SinkPool(settings, worker_id=self._session_id, gone_workers=store.workers.gone_among)
        self._pacing = Pacing(settings.tenant_limits, clock, room_bytes=settings.inflight_bytes_total)
        shared = shared_connect_limiter(settings) if tenures_beside else None
        self._connect_limiter = shared or connect_limiter_of(settings, clock, rng)
        self._asked: set[FeedKey] = set()
        """Of which the database said last that they are to stop. Written on the lease client's thread only."""
        self._over: UUID | None = None
        """The worker session that was declared gone last."""
        self._draining = False
        self._drain_began = 0.0
        self._drained = Event()
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._running_feeds = RunningFeeds(self._loop)
        self._start_limiter = StartLimiter()
        self._quarantine = Quarantine(
            settings, release=self.lease_client.release, on_ended=lambda: self._soon(self._note_if_drained)
        )
        self._progress_reporter = ProgressReporter(self._loop, self._report, worker_id=self._session_id)
        self._trusted = asyncio.Event()
        self._load_meter = LoadMeter(self._loop)
        limit = watch.limits.memory_bytes if watch is not None else 0
        self._memory_watch = (
            MemoryWatch(self._activity, limit_bytes=limit, let_go=partial(self._soon, self._let_go))
            if limit
            else None
        )
        self._stall, self._scheduling = StallClock(), Scheduling(os.getpid())
        self._sinks_down: set[str] = set()
        self._audit_soon: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = Thread(target=self._run_loop, name="feedq-loop", daemon=True)

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register and begin to serve. Raises `Unavailable` while the control database is away."""
        self.lease_keeper.start()
        if self.lease_keeper.trusted:
            self._trusted.set()
        self.lease_client.start()
        self._thread.start()
        if self._memory_watch is not None:
            self._memory_watch.start()

    @property
    def worker(self) -> Worker | None:
        return self.lease_keeper.worker

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def loop_lag_s(self) -> float:
        return self._load_meter.lag_s

    @property
    def loop_stalled_s(self) -> float:
        """For how long the loop has stood still although it could have turned, as the lease keeper last saw it."""
        return self._stall.stalled_s

    def statuses(self) -> Counter[Status]:
        """The feeds that run here, by status, at this moment. From any thread: the loop may be stuck."""
        worker = self.lease_keeper.worker
        if worker is None:
            return Counter()
        owner = self._owner(worker)
        counts = Counter(runner.status(owner) for runner, _ in self._running_feeds)
        counts[Status.QUARANTINED] += len(self._quarantine)
        return counts

    def _owner(self, worker: Worker) -> Owner:
        """What the control plane would know of this worker, had it just been told."""
        heartbeat_at = self._clock.now() - timedelta(seconds=self.lease_keeper.heartbeat_age_s)
        expires_at = heartbeat_at + timedelta(seconds=self._settings.ttl_s)
        return Owner(worker.name, self.loop_lag_s, heartbeat_at, expires_at)

    @property
    def unwritten_s(self) -> float:
        """The longest that a feed has waited for any of its batches to be written. From any thread."""
        return max((runner.unwritten_s for runner, _ in self._running_feeds), default=0.0)

    def drain(self) -> None:
        """Begin to let go of everything, and take nothing more. Returns at once; safe in a signal handler."""
        if self._draining:
            return
        self._drain_began = self._clock.monotonic()
        self._draining = True
        self._activity.leave()
        self._soon(self._drain)

    def join(self) -> None:
        """Wait until the drain is over, at most ``drain_timeout_s``, then end every thread and say goodbye.

        All of it takes at most `STOP_GRACE_S` longer than that, whichever server is away.
        """
        drain_by = self._drain_began + self._settings.drain_timeout_s
        if not self._drained.wait(self._left_s(drain_by)):
            left = self._running_feeds.names
            logger.warning(LogEvent.STOP_OVERDUE, feeds=left[:20], count=len(left))
            self.sockets.cut_all()
            self._quarantine.kill_all()
        worker = self.lease_keeper.worker
        leave = None if worker is None else partial(self._store.workers.leave, worker.id)
        if self._external_pool and worker is not None:
            self._external_pool.await_end(worker.id, timeout_s=self._settings.drain_timeout_s + FOLLOW_S)
        leave_by = max(drain_by, self._clock.monotonic()) + STOP_GRACE_S
        self.lease_client.stop(timeout_s=self._left_s(leave_by), farewell=leave)
        self.lease_keeper.stop(timeout_s=partial(self._left_s, leave_by))
        self._ends.stop(timeout_s=partial(self._left_s, leave_by))
        if self._memory_watch is not None:
            self._memory_watch.stop()
        self._soon(self._loop.stop)
        if self._thread.is_alive():
            self._thread.join(self._left_s(leave_by))
        logger.info(LogEvent.WORKER_LEFT, worker=worker.name if worker else None)

    def _left_s(self, until: float) -> float:
        return max(0.0, until - self._clock.monotonic())

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call it on the loop; once that is closed, there is nobody left to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _soon_after(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call it on the loop after the coroutines that earlier answers have woken: one of these may be a raised
        epoch, by which its runner is known from then on."""
        self._soon(self._soon, callback, *arguments)

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
        """Note that the loop turns, twice as often as anybody looks."""
        self._activity.tick()
        self._loop.call_later(LOOK_S / 2, self._turn)

    # -- messages ------------------------------------------------------------------------------------

    def offer(self, key: FeedKey, hooks: TaskCallbacks) -> None:
        """A ``stream_feed`` message came in: claim the feed, or drop the message."""
        self._claim_queue.offer(key, hooks)

    def cancel(self, feed_id: int) -> None:
        """Stop one feed because somebody revoked its task; reconcile will start it again elsewhere."""
        self._soon(self._running_feeds.interrupt, feed_id, Interrupt.STOP)
        self._quarantine.cancel(feed_id)

    @property
    def feeds(self) -> int:
        return len(self._running_feeds) + len(self._quarantine)

    def _refusal(self, key: FeedKey, pending: int) -> str | None:
        worker = self.lease_keeper.worker
        if self._draining or worker is None:
            return "this worker is draining" if self._draining else "this worker is not registered yet"
        if self._running_feeds.has(key):
            return "a duplicate: this tenure is running here"
        if self.feeds + pending >= worker.capacity and not self._has_feed(key[0]):
            # The broker may hand out more than was asked for, after a reconnect for instance.
            return f"this worker holds {worker.capacity} feeds already"
        return None

    def _has_feed(self, feed_id: int) -> bool:
        return self._running_feeds.has_feed(feed_id) or self._quarantine.has_feed(feed_id)

    def _claim(self, key: FeedKey) -> None:
        self.lease_client.claim(self._session_id(), key)

    def _granted(self, worker_id: UUID, starting: Granted) -> None:
        if not len(self._running_feeds):
            # In a fleet that starts cold nobody has heard of the others yet; the pass that gave us these has.
            self.lease_keeper.beat_soon()
        self._soon(self._begin, worker_id, starting)

    # -- runners, on the loop ------------------------------------------------------------------------

    def _begin(self, worker_id: UUID, starting: Granted) -> None:
        surroundings = self._surroundings()
        for claim, audience in starting:
            if worker_id == self._over or worker_id != self._session_id():
                # Declared gone while the answer was under way: the feed is somebody else's by now.
                audience.finished("lost")
                continue
            if claim.quarantined:
                self._quarantine.start(claim, audience, worker_id)
                continue
            runner = FeedRunner(claim, surroundings)
            self._running_feeds.add(runner, audience)
            if self._draining:
                runner.interrupt(Interrupt.STOP)
            self._go(
                self._live(runner, audience, worker_id), name=f"feed-{claim.feed.id}", feed_id=claim.feed.id
            )

    def _go(self, coroutine: Coroutine[Any, Any, None], *, name: str, feed_id: int = NO_FEED) -> None:
        context = copy_context()
        context.run(current_feed.set, feed_id)
        task = self._loop.create_task(coroutine, name=name, context=context)
        self._tasks.add(task)  # or it could be collected while it waits
        task.add_done_callback(self._tasks.discard)

    async def _live(self, runner: FeedRunner, audience: AssignmentListener, worker_id: UUID) -> None:
        logger.debug(LogEvent.FEED_CLAIMED, feed=runner.feed.name, epoch=runner.key[1])
        release: Release | None = None
        said = "lost"
        try:
            release = await runner.run()
            said = release.reason.value if release else "lost"
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 -- masked by the runner
            runner.log_unexpected(error, "runner")
            release = runner.release_after(error)
            said = f"failed: {release.error}"
        finally:
            self._end(runner, release, worker_id)
            audience.finished(said)

    def _end(self, runner: FeedRunner, release: Release | None, worker_id: UUID) -> None:
        self._running_feeds.remove(runner)
        self._progress_reporter.forget(runner)
        if release is not None:
            # What it did since the last report belongs to its tenure: tell it before letting go.
            self._report(worker_id, [runner.progress()])
            self.lease_client.release(worker_id, release)
            logger.debug(LogEvent.FEED_RELEASED, feed=runner.feed.name, reason=release.reason.value)
            if release.reason is Reason.FENCED:
                self._ask_for_audit()  # the sink knew of a newer owner and the database did not: of what else?
        self._note_if_drained()

    def _note_if_drained(self) -> None:
        if self._draining and not self.feeds:
            self._drained.set()

    def _report(self, worker_id: UUID, progress: list[Progress]) -> None:
        self._load_meter.count(progress)
        self.lease_client.report(worker_id, progress)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            clock=self._clock,
            rng=self._rng,
            backoff=self._settings.backoff,
            guard=self.sockets,
            permissions=self._settings.permissions,
            environment=self._settings.environment,
            note_thread=self._activity.thread_of,
            pacing=self._pacing,
            connect_limiter=self._connect_limiter,
            start_limiter=self._start_limiter,
            trusted=self._trusted,
            drain_timeout_s=self._settings.drain_timeout_s * 0.6,
            fence=self._ends.fence,
            raise_epoch=self._raise_epoch,
            open_batch_queue=self._ends.open_batch_queue,
            hurry=self._ends.hurry,
            sink_trouble=self._ends.trouble,
            on_progress=self._progress_reporter.note,
            on_status=self._progress_reporter.tell,
        )

    def _let_go(self, feed_id: int, blame: Loss) -> None:
        for runner, _ in self._running_feeds:
            if runner.feed.id == feed_id:
                logger.error(LogEvent.FEED_LET_GO, feed=runner.feed.name, why=blame.said)
                runner.let_go(blame)

    def _leave_sinks(self, answer: Heartbeat) -> None:
        """Let go of feeds whose sinks this worker alone does not reach: if nobody does, nothing is won by it."""
        patience_s = self._settings.sink_patience_s
        left = sinks_to_leave(self._ends.down(for_s=patience_s), answer.sinks_up_elsewhere)
        # Where nobody has tried, somebody has to, and may find it away as well.
        left |= sinks_to_leave(self._ends.down(for_s=2 * patience_s), answer.sinks_untried_elsewhere)
        for runner, _ in self._running_feeds:
            if runner.sink in left:
                runner.give_up(left[runner.sink])

    def _tell_of_sinks(self) -> None:
        """Have the feeds of sinks that went away, or came back, reported at once."""
        before, self._sinks_down = self._sinks_down, set(self._ends.down())
        changed = before ^ self._sinks_down
        for runner, _ in self._running_feeds if changed else ():
            if runner.sink in changed:
                self._progress_reporter.tell(runner)

    def _drain(self) -> None:
        worker = self.lease_keeper.worker
        logger.info(
            LogEvent.WORKER_DRAINING, worker=worker.name if worker else None, feeds=len(self._running_feeds)
        )
        if worker is not None:
            # Before the releases, on the same thread: reconcile must not place here what we let go.
            self.lease_client.do(lambda: self._store.workers.drain(worker.id))
        self._note_if_drained()
        self._go(self._running_feeds.stop_all(within_s=self._settings.drain_timeout_s * 0.5), name="drain")

    def _tick(self, count: int) -> None:
        """Every heartbeat: report what moved, compare notes with the database now and then."""
        interval_s = max(self._settings.heartbeat_s, 0.05)
        self._loop.call_later(interval_s, self._tick, count + 1)
        self._resume()
        self._keep_watch()
        self._tell_of_sinks()
        self._progress_reporter.report()
        if (worker := self.lease_keeper.worker) is None:
            return
        self._running_feeds.show(count, owner=self._owner(worker))
        if count % SHARE_TICKS == 0 and (tenants := self._pacing.limited_tenants()):
            self.lease_client.do(lambda: self._pacing.share(self._store.leases.running_of(tenants)))
        audit_interval_s = AUDIT_BESIDE_INTERVAL_S if self._external_pool else AUDIT_INTERVAL_S
        if count and count % max(1, round(audit_interval_s / interval_s)) == 0:
            self._ask_for_audit()

    def _keep_watch(self) -> None:
        if self._watch is not None and not self._draining:
            try:
                started = self._watch.keep()
            except OSError as error:
                logger.warning(LogEvent.MONITOR_OFF, error=str(error))
            else:
                if started:
                    logger.info(LogEvent.MONITOR_STARTED)

    def _ask_for_audit(self) -> None:
        """Have what runs here compared with what the database thinks runs here. From any thread."""
        self._soon(self._gather_audits)

    def _gather_audits(self) -> None:
        if self._audit_soon is None:
            self._audit_soon = self._loop.call_later(AUDIT_GATHER_S, self._begin_audit)

    def _begin_audit(self) -> None:
        self._audit_soon = None
        worker_id = self._session_id()
        if self._external_pool:
            self._external_pool.audit(worker_id)
        else:
            self.lease_client.do(
                lambda: self._soon_after(self._audit, worker_id, set(self._store.leases.held(worker_id)))
            )

    def _audit(self, worker_id: UUID, held: set[FeedKey]) -> None:
        if worker_id != self._session_id():
            return  # declared gone meanwhile: what runs here is another session's
        # Claims pass through the lease client and reach the loop in the order of this question: what was granted
        # before it is among the running feeds by now, what came later is not yet.
        running = self._running_feeds.keys
        self._running_feeds.lose(running - held)
        running |= self._quarantine.keys
        for feed_id, epoch in held - running:
            self.lease_client.release(worker_id, Release(feed_id, epoch, Reason.RELEASED))

    async def _raise_epoch(self, key: FeedKey, above: int) -> FeedKey | None:
        answer: asyncio.Future[FeedKey | None] = self._loop.create_future()
        worker_id = self._session_id()

        def job() -> None:
            try:
                raised = self._store.leases.raise_epoch(worker_id, key, above=above)
            except Unavailable:
                raise  # asked again
            except Exception:
                self._soon(_resolve, answer, None)
                raise
            self._soon(_resolve, answer, raised)

        self.lease_client.do(job)
        return await answer

    def _session_id(self) -> UUID:
        assert self.lease_keeper.worker is not None
        return self.lease_keeper.worker.id

    # -- what the lease keeper says (LeaseListener) --------------------------------------------------------

    def reconnected(self) -> None:
        # It may be another database than before, and know less: a replica that was promoted.
        self._ask_for_audit()

    def registered(self, worker: Worker) -> None:
        self._activity.begin_session(worker.id)
        # Sessions with the sinks carry the id of a worker session that has ended.
        self._ends.renew()

    def suspend(self, why: str) -> None:
        # First the sockets, from this thread: the loop may be what is stuck.
        self.sockets.cut_all()
        self._soon(self._suspend)

    def _suspend(self) -> None:
        if not self.lease_keeper.trusted:
            self._trusted.clear()
            self._running_feeds.suspend_all()

    def resume(self) -> None:
        self._soon(self._resume)

    def _resume(self) -> None:
        # Asked again here: between the heartbeat and this, the trust may have run out once more.
        if self.lease_keeper.trusted:
            self._trusted.set()

    def gone(self) -> None:
        self._over = self._session_id()
        self.sockets.cut_all()
        self._quarantine.kill_all()
        self._soon(self._running_feeds.lose_all)

    def answered(self, answer: Heartbeat) -> None:
        self._connect_limiter.share(answer.active_workers)
        if answer.sinks_up_elsewhere or answer.sinks_untried_elsewhere:
            self._soon(self._leave_sinks, answer)
        if answer.stops_pending or answer.claims_pending or self._asked:
            self.summoned()

    def summoned(self) -> None:
        worker = self.lease_keeper.worker
        if worker is not None and not self._external_pool:
            self.lease_client.do(partial(self._attend, worker.id))

    def _attend(self, worker_id: UUID) -> None:
        if not self._draining:
            self._claim_queue.summon(self._store.leases.assigned(worker_id, limit=SUMMONED_MAX))
        asked = self._store.leases.stop_requests(worker_id)
        before, self._asked = self._asked, {request.key for request in asked}
        # Only its owner ends a stop request, by a release, and then it is among the running feeds no more;
        # unless it was too slow, and the lease was taken away. It may be the loop that is: the sockets do not
        # wait for it.
        if over := before - self._asked:
            self._running_feeds.cut(over)
            self._soon(self._running_feeds.lose, over)
        self._soon(self._stop, asked)

    def _stop(self, asked: list[StopRequest]) -> None:
        # The database thinks that we run these, and we do not: let go of them, or they would wait for ever.
        apart = self._quarantine.keys  # they follow their leases themselves
        for request in self._running_feeds.stop([request for request in asked if request.key not in apart]):
            self.lease_client.release(
                self._session_id(), Release(request.feed_id, request.epoch, request.reason)
            )

    def stalled_s(self) -> float:
        self._activity.pulse()
        return self._stall.look(self._scheduling.sight(self._activity.ticks))

    def reconcile_overdue(self) -> None:
        self._reconcile()

    def load(self) -> Load:
        load = self._load_meter.load(feeds=self.feeds)
        return replace(load, sinks_up=self._ends.up(), sinks_down=tuple(sorted(self._ends.down())))


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
