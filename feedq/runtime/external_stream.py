"""One tenure on a thread or child process of Celery's own pools, with a loop of its own.

For connectors that need a process to themselves. The lease keeper lives in the main process; here the lease is
*followed*: asked for every half second, and trusted only as long as the worker's heartbeat reaches, counted
from before the question was sent. A worker that drains is seen the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from random import Random
from threading import Lock
from time import monotonic, sleep
from uuid import UUID

import uvloop

from feedq.clock import SystemClock
from feedq.errors import Unavailable
from feedq.lease import TrustWindow
from feedq.model import Claim, FeedKey, Reason, Release, WorkerState
from feedq.rate_limiter import RateLimits
from feedq.runtime.activity import Activity, current_feed
from feedq.runtime.connect_limiter import shared_connect_limiter
from feedq.runtime.external_pool import FOLLOW_S
from feedq.runtime.interrupt import Interrupt
from feedq.runtime.runner import FeedRunner, Surroundings
from feedq.runtime.sink_pool import SinkPool
from feedq.runtime.sockets import Sockets
from feedq.runtime.stall import LOOK_S
from feedq.runtime.start_limiter import StartLimiter
from feedq.runtime.throttling import Pacing
from feedq.settings import Settings
from feedq.store.base import Followed, Store
from feedq.telemetry import LogEvent, database_event, log

RELEASE_TRIES = 8
RELEASE_RETRY_S = 0.25

logger = log(__name__)


def run_tenure(key: FeedKey, store: Store, settings: Settings) -> str:
    """Claim the feed and stream it until its tenure ends. Blocks; returns why it ended."""
    assigned = store.leases.follow(key)
    claims = store.leases.claim(assigned.worker_id, [key]) if assigned else []
    if assigned is None or not claims:
        why = "stale: no such assignment is waiting for this worker"
        logger.info(LogEvent.MESSAGE_DROPPED, feed_id=key[0], epoch=key[1], why=why)
        return f"dropped: {why}"
    return _run(claims[0], assigned.worker_id, store, settings, Activity.private())


def run_claimed(key: FeedKey, worker_id: UUID, store: Store, settings: Settings, activity: Activity) -> str:
    """Stream a feed that this worker session has claimed already. Blocks; returns why its tenure ended."""
    claim = store.leases.claimed(worker_id, key)
    return "lost" if claim is None else _run(claim, worker_id, store, settings, activity)


def _run(claim: Claim, worker_id: UUID, store: Store, settings: Settings, activity: Activity) -> str:
    tenure = _Tenure(claim, worker_id, store, settings, activity)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        release = loop.run(tenure.run())
    if release is None:
        return "lost"
    _release(store, worker_id, release)
    return release.reason.value


_ends_of: dict[UUID, SinkPool] = {}
_ends_lock = Lock()


def _ends(store: Store, settings: Settings, worker_id: UUID) -> SinkPool:
    """The sinks of this process, shared by its feeds; a new worker session has new ones."""
    with _ends_lock:
        if worker_id not in _ends_of:
            # Feeds of an earlier session are lost, and so are their last batches, which the epoch would
            # refuse anyway. Nobody waits for its threads.
            for ended in _ends_of.values():
                ended.stop(timeout_s=lambda: 0.0)
            _ends_of.clear()
            _ends_of[worker_id] = SinkPool(
                settings, worker_id=lambda: worker_id, gone_workers=store.workers.gone_among
            )
        return _ends_of[worker_id]


def _pacing(settings: Settings) -> Pacing:
    """The limits of this process, shared by its feeds."""
    return _pacing_of(frozenset(settings.tenant_limits.items()), settings.inflight_bytes_total)


@cache
def _pacing_of(tenant_limits: frozenset[tuple[str, RateLimits]], room_bytes: int) -> Pacing:
    return Pacing(dict(tenant_limits), SystemClock(), room_bytes=room_bytes)


class _Tenure:
    """A runner, and the coroutine that follows its lease."""

    def __init__(
        self, claim: Claim, worker_id: UUID, store: Store, settings: Settings, activity: Activity
    ) -> None:
        self._activity = activity
        self._claim, self._worker_id = claim, worker_id
        self._store, self._settings = store, settings
        self._sockets = Sockets()
        self._trusted = asyncio.Event()
        self._runner: FeedRunner | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def run(self) -> Release | None:
        loop = asyncio.get_running_loop()
        self._activity.watch_loop(loop)
        self._turn(loop)
        ends = _ends(self._store, self._settings, self._worker_id)
        runner = FeedRunner(
            self._claim,
            Surroundings(
                clock=SystemClock(),
                rng=Random(),
                backoff=self._settings.backoff,
                guard=self._sockets,
                permissions=self._settings.permissions,
                environment=self._settings.environment,
                note_thread=self._activity.thread_of,
                pacing=_pacing(self._settings),
                connect_limiter=shared_connect_limiter(self._settings),
                start_limiter=StartLimiter(),
                trusted=self._trusted,
                drain_timeout_s=self._settings.drain_timeout_s,
                fence=ends.fence,
                raise_epoch=self._raise_epoch,
                open_batch_queue=ends.open_batch_queue,
                hurry=ends.hurry,
                sink_trouble=ends.trouble,
                on_progress=lambda _: None,
                on_status=lambda _: None,
            ),
        )
        self._runner = runner
        current_feed.set(self._claim.feed.id)
        watch = asyncio.create_task(self._watch(runner))
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
                await asyncio.to_thread(self._store.leases.report, self._worker_id, [runner.progress()])
        return release

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._activity.tick()
        loop.call_later(LOOK_S / 2, self._turn, loop)

    async def _watch(self, runner: FeedRunner) -> None:
        loop = asyncio.get_running_loop()
        report_at = loop.time()
        pacing = _pacing(self._settings)
        while True:
            sent_at = monotonic()
            try:
                if loop.time() >= report_at:
                    report_at = loop.time() + self._settings.heartbeat_s
                    await asyncio.to_thread(self._store.leases.report, self._worker_id, [runner.progress()])
                    if tenants := pacing.limited_tenants():
                        pacing.share(await asyncio.to_thread(self._store.leases.running_of, tenants))
                self._heed(runner, await asyncio.to_thread(self._store.leases.follow, runner.key), sent_at)
            except Unavailable as error:
                logger.warning(database_event(error), where="tenure", error=str(error))
            except Exception:
                # Whoever stops following is suspended for good, with the lease still held.
                logger.exception(LogEvent.UNEXPECTED, where="tenure", feed=runner.feed.name)
            await asyncio.sleep(FOLLOW_S)

    def _heed(self, runner: FeedRunner, followed: Followed | None, sent_at: float) -> None:
        if followed is None or followed.worker_id != self._worker_id:
            runner.interrupt(Interrupt.LOST)
            return
        if followed.stopping is not None or followed.worker_state is not WorkerState.ACTIVE:
            runner.interrupt(Interrupt.STOP, reason=followed.stopping or Reason.RELEASED)
        trust = TrustWindow.after_heartbeat(
            sent_at=sent_at, ttl_s=followed.remaining_s, margin_s=self._settings.trust_margin_s
        )
        if self._expiry is not None:
            self._expiry.cancel()
        left_s = trust.until - monotonic()
        if left_s > 0:
            self._trusted.set()
            self._expiry = asyncio.get_running_loop().call_later(left_s, self._suspend)
        else:
            self._suspend()

    def _suspend(self) -> None:
        self._trusted.clear()
        self._sockets.cut_all()
        if self._runner is not None:
            self._runner.interrupt(Interrupt.SUSPEND)

    async def _raise_epoch(self, key: FeedKey, above: int) -> FeedKey | None:
        return await asyncio.to_thread(self._store.leases.raise_epoch, self._worker_id, key, above=above)


def _release(store: Store, worker_id: UUID, release: Release) -> None:
    for _ in range(RELEASE_TRIES):
        try:
            store.leases.release(worker_id, [release])
        except Unavailable as error:
            logger.warning(database_event(error), where="release", error=str(error))
            sleep(RELEASE_RETRY_S)
        else:
            return
