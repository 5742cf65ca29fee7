"""Streams one feed in quarantine, in a process and on a loop of its own.

The lease keeper lives in the worker's main process; here the lease is *followed*: asked for every half second,
and trusted only as long as the worker's heartbeat reaches, counted from before the question was sent. A worker
that drains is seen the same way. What follows is decided by a `WorkerCore` for this one feed.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from random import Random
from time import monotonic, sleep
from uuid import UUID

import uvloop

from feedq.control.store.leases import Followed
from feedq.control.store.postgresql import PostgresStore
from feedq.core.clock import SystemClock
from feedq.core.model import Claim, FeedKey, Reason, Release, StopRequest, WorkerState
from feedq.core.worker import WorkerCore
from feedq.core.worker_actions import Action, CutSockets, LoseFeeds, Resume, StopFeeds, Suspend
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.worker.activity import CHECK_S, Activity, current_feed
from feedq.worker.pacing import ConnectLimiter, Pacing
from feedq.worker.runner import FeedRunner, Interrupt, WorkerServices
from feedq.worker.sink_pool import SinkPool
from feedq.worker.taps import TapWriter

FOLLOW_S = 0.5
"""How often the lease is asked for: a stop request is heard within this, for one statement a feed."""
TURN_S_MIN = 0.01
RELEASE_TRIES = 8
RELEASE_RETRY_S = 0.25

logger = log(__name__)


def run_claimed(
    key: FeedKey, worker_id: UUID, store: PostgresStore, settings: Settings, activity: Activity
) -> str:
    """Stream a feed that this worker session has claimed already. Blocks; returns why its lease ended."""
    claim = store.leases.claimed(worker_id, key)
    if claim is None:
        return "lost"
    stream = _Stream(claim, worker_id, store, settings, activity)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        release = loop.run(stream.run())
    if release is None:
        return "lost"
    _release(store, worker_id, release)
    return release.reason.value


class _Stream:
    """A runner on a loop of its own, the worker core of this one feed, and the coroutine that follows its
    lease."""

    def __init__(
        self, claim: Claim, worker_id: UUID, store: PostgresStore, settings: Settings, activity: Activity
    ) -> None:
        self._activity = activity
        self._claim, self._worker_id = claim, worker_id
        self._store, self._settings = store, settings
        self._sinks = SinkPool(settings, worker_id=lambda: worker_id, gone_workers=store.workers.gone_among)
        self._pacing = Pacing(settings.tenant_limits, SystemClock(), room_bytes=settings.inflight_bytes_total)
        self._trusted = asyncio.Event()
        self._core = WorkerCore(settings, rng=Random(), now=monotonic())
        self._runner: FeedRunner | None = None

    async def run(self) -> Release | None:
        loop = asyncio.get_running_loop()
        self._activity.watch_loop(loop)
        self._turn(loop)
        runner = self._runner = self._make_runner()
        self._begin()
        current_feed.set(self._claim.feed.id)
        watch = asyncio.create_task(self._follow(runner))
        release: Release | None
        try:
            release = await runner.run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- the runner logs it, for it can mask its secrets
            runner.log_unexpected(error, "runner")
            release = runner.release_after(error)
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if release is not None:
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(
                    self._store.leases.report, self._worker_id, [runner.progress.report()]
                )
        return release

    def _begin(self) -> None:
        """Tell the core of the claim that was granted: nothing follows from it that is not done here anyhow."""
        core, key = self._core, self._claim.key
        core.registered(self._worker_id, capacity=1, now=monotonic())
        core.assignments_found(self._worker_id, [key])
        claim = replace(self._claim, quarantined=False)  # this is its process
        core.claims_answered(self._worker_id, [claim], [], sure=True, now=monotonic())

    def _make_runner(self) -> FeedRunner:
        clock, rng = SystemClock(), Random()
        return FeedRunner(
            self._claim,
            WorkerServices(
                clock=clock,
                rng=rng,
                backoff=self._settings.backoff,
                permissions=self._settings.permissions,
                environment=self._settings.environment,
                sinks=self._sinks,
                note_thread=self._activity.thread_of,
                pacing=self._pacing,
                connect_limiter=ConnectLimiter(
                    self._settings.connects_per_s, self._settings.host_connects_per_s, clock, rng=rng
                ),
                trusted=self._trusted,
                commit_timeout_s=self._settings.drain_timeout_s,
                raise_epoch=self._raise_epoch,
                expected=self._settings.expected_of,
                on_progress=lambda _: None,
                on_status=lambda _: None,
            ),
        )

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that the loop turns, and tell the core the time."""
        self._activity.tick()
        self._perform(self._core.tick(monotonic()))
        # The end of the trust window is noticed when it comes, and not at the next turn.
        left_s = max(self._core.wakes_at() - monotonic(), TURN_S_MIN)
        loop.call_later(min(left_s, CHECK_S / 2), self._turn, loop)

    async def _follow(self, runner: FeedRunner) -> None:
        loop = asyncio.get_running_loop()
        report_at = loop.time()
        send = partial(self._store.taps.put, self._worker_id)
        taps = TapWriter(loop, elsewhere=partial(loop.run_in_executor, None), send=send)
        while True:
            sent_at = monotonic()
            try:
                if loop.time() >= report_at:
                    report_at = loop.time() + self._settings.heartbeat_s
                    await asyncio.to_thread(
                        self._store.leases.report, self._worker_id, [runner.progress.report()]
                    )
                    if tenants := self._pacing.limited_tenants():
                        self._pacing.share(await asyncio.to_thread(self._store.leases.running_of, tenants))
                followed = await asyncio.to_thread(self._store.leases.follow, runner.key)
                self._heard(runner.key, followed, sent_at)
                is_tapped = followed is not None and followed.tapped
                taps.follow((runner.feed.id,) if is_tapped else (), (runner,))
            except Unavailable as error:
                logger.warning(database_event(error), where="follow", error=str(error))
            except Exception:
                # Whoever stops following is suspended for good, with the lease still held.
                logger.exception(LogEvent.UNEXPECTED, where="follow", feed=runner.feed.name)
            await asyncio.sleep(FOLLOW_S)

    def _heard(self, key: FeedKey, followed: Followed | None, sent_at: float) -> None:
        core, now = self._core, monotonic()
        if followed is None or followed.worker_id != self._worker_id:
            self._perform(core.held_found(self._worker_id, (), now=now))
            return
        if followed.stopping is not None or followed.worker_state is not WorkerState.ACTIVE:
            request = StopRequest(*key, followed.stopping or Reason.RELEASED)
            self._perform(core.stops_found(self._worker_id, [request], now=now))
        self._perform(core.confirmed(sent_at=sent_at, ttl_s=followed.remaining_s, now=now))

    def _perform(self, actions: list[Action]) -> None:
        runner = self._runner
        for action in actions:
            match action:
                case Suspend() if runner is not None:
                    self._trusted.clear()
                    runner.sockets.cut()
                    runner.interrupt(Interrupt.SUSPEND)
                case Resume():
                    self._trusted.set()
                case StopFeeds([(_, reason)]) if runner is not None:
                    runner.interrupt(Interrupt.STOP, reason=reason)
                case LoseFeeds() if runner is not None:
                    runner.interrupt(Interrupt.LOST)
                case CutSockets() if runner is not None:
                    runner.sockets.cut()

    async def _raise_epoch(self, key: FeedKey, above: int) -> FeedKey | None:
        raised = await asyncio.to_thread(self._store.leases.raise_epoch, self._worker_id, key, above=above)
        if raised is not None:
            self._core.epoch_raised(key, raised)
        return raised


def _release(store: PostgresStore, worker_id: UUID, release: Release) -> None:
    for _ in range(RELEASE_TRIES):
        try:
            store.leases.release(worker_id, [release])
        except Unavailable as error:
            logger.warning(database_event(error), where="release", error=str(error))
            sleep(RELEASE_RETRY_S)
        else:
            return
