"""StreamPool: the Celery pool that holds thousands of streams and a few job threads in one process.

``stream_feed`` becomes a coroutine on the supervisor's loop; its message is acknowledged when the claim is
committed (`TaskCallbacks.accepted`), because from then on the lease brings the feed back, not the broker.
Every other task runs in one of ``FEEDQ_JOB_SLOTS`` threads, and reconcile in one reserved for it, so that neither
500 streams nor a full set of jobs can starve it.

Celery's callbacks send events, and may block while the broker is away. They are called one after the other on a
thread: never on the loop, and never on the lease client's. A warm shutdown waits for running tasks, as Celery's
pools do, and for nothing else that may hang.

What Celery's pools cannot do, and this one is for: terminate one task of many in a process
(`celery.concurrency.thread.TaskPool` has no ``terminate_job``), acknowledge a task neither at its start nor at its
end, and keep a window of messages (`num_processes`) that is not the number of threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Final

from celery.concurrency.base import BasePool, apply_target
from celery.utils.functional import noop
from celery.worker.request import Request
from kombu.serialization import loads

from feedq.celery.broker import settle
from feedq.celery.tasks import RECONCILE, STREAM_FEED, parse_key
from feedq.core.model import FeedKey
from feedq.settings import settings
from feedq.telemetry.logs import LogEvent, log
from feedq.worker.supervisor import Supervisor
from feedq.worker.thread_pool import Lane, ThreadPool

CLAIM_WINDOW = 256
"""Messages of `stream_feed` that a worker takes before it acknowledges: fewer, and round trips to the broker pace
a start of thousands of feeds."""
_NOTHING: Final[dict[str, Any]] = {}
_NO_PAYLOAD: Final = ((), _NOTHING, _NOTHING)
"""Arguments, and what `celery.worker.request.Request._context` puts into the headers when a task is revoked."""
CLOSE_GRACE_S = 0.3
"""What reconcile and the callbacks get to end by themselves."""

logger = log(__name__)


class StreamPool(BasePool):
    """The pool of a worker runs feeds as coroutines on one event loop, and tasks on threads. ``-c`` is the
    number of feeds that it holds; threads come on top."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supervisor: Supervisor | None = None
        self.threads = ThreadPool()
        """All threads of this worker that run jobs, tasks and callbacks."""
        self._tasks = Lane(self.threads, width=settings().job_slots)
        self._control = Lane(self.threads)
        self._callbacks = Lane(self.threads)

    @property
    def num_processes(self) -> int:
        """Celery's prefetch window, times the multiplier: messages taken and not acknowledged yet.

        Running streams are acknowledged and do not count.
        """
        return settings().job_slots + CLAIM_WINDOW

    def on_stop(self) -> None:
        """Warm shutdown: running tasks may finish, waiting ones stay with the broker."""
        self._tasks.close(timeout_s=None, drop_waiting=True)
        self._control.close(timeout_s=CLOSE_GRACE_S, drop_waiting=True)
        self._callbacks.close(timeout_s=CLOSE_GRACE_S, drop_waiting=False)

    def on_terminate(self) -> None:
        for lane in (self._tasks, self._control, self._callbacks):
            lane.close(timeout_s=0.0, drop_waiting=True)

    @property
    def is_busy(self) -> bool:
        """Whether ordinary tasks run."""
        return self._tasks.is_busy

    def run_control(self, job: Callable[[], object]) -> None:
        """Run something in the reserved thread."""
        if self.active:
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self._control.submit(partial(_watched, job))

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> Running | _Stream:
        if args and args[0] == STREAM_FEED:
            return self._stream(args, callback, accept_callback)
        lane = self._control if args and args[0] == RECONCILE else self._tasks
        running = Running()
        running.add_done_callback(partial(settle, accept_callback, self.call_later))
        # While the pool closes it takes nothing: the message is not acknowledged and stays with the broker.
        with contextlib.suppress(RuntimeError):
            lane.submit(partial(apply_target, target, args, kwargs, callback, accept_callback), running)
        return running

    def _stream(
        self,
        args: tuple[Any, ...],
        callback: Callable[..., Any] | None,
        accept_callback: Callable[..., Any] | None,
    ) -> _Stream:
        stream = _Stream(self, callback, accept_callback)
        try:
            key = _key(args)
        except Exception as error:  # noqa: BLE001 -- whatever a forged message can make a decoder raise
            logger.warning(LogEvent.MESSAGE_DROPPED, task_id=str(args[1])[:80], why=repr(error)[:200])
            stream.drop("not a stream_feed message")
            return stream
        if self.supervisor is None:
            stream.drop("this worker is not ready")
            return stream
        stream.feed_id = key[0]
        self.supervisor.offer(key, stream)
        return stream

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Terminate nothing by pid: all tasks share this process. `Running.terminate` ends the one that is
        meant."""

    def call_later(self, function: Callable[..., Any], *args: Any) -> None:
        """Call it on the thread of callbacks."""
        # Not when the pool is closing: an ack that is not sent lets the message come back, a stale one, dropped.
        with contextlib.suppress(RuntimeError):
            self._callbacks.submit(partial(_safely, function, *args))

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        feeds = self.supervisor.feeds if self.supervisor else 0
        return info | {"feeds": feeds, "job-slots": settings().job_slots}


class Running(Future[Any]):
    """A task on a thread, which Celery may terminate. Celery keeps only a weak reference to it: the lane keeps it
    until it has ended."""

    def terminate(self, signal: Any = None) -> None:
        """A task that waits is dropped, one that runs goes on."""
        self.cancel()


class _Stream:
    """The task of a feed, which tells Celery what becomes of it (`TaskCallbacks`)."""

    __slots__ = ("__weakref__", "_accept_callback", "_callback", "_pool", "_started", "feed_id")

    def __init__(
        self,
        pool: StreamPool,
        callback: Callable[..., Any] | None,
        accept_callback: Callable[..., Any] | None,
    ) -> None:
        self.feed_id: int | None = None
        """The feed, as long as its task is under way."""
        self._pool = pool
        self._callback, self._accept_callback = callback, accept_callback
        self._started = monotonic()

    def accepted(self) -> None:
        if self._accept_callback is not None:
            self._pool.call_later(_accept, self._accept_callback)
            self._accept_callback = None

    def finished(self, why: str) -> None:
        self.feed_id = None
        if self._callback is not None:
            self._pool.call_later(self._callback, (0, why, monotonic() - self._started))

    def terminate(self, signal: Any = None) -> None:
        """The stream stops, and its feed is placed again."""
        if self.feed_id is not None and self._pool.supervisor is not None:
            self._pool.supervisor.cancel(self.feed_id)

    def drop(self, why: str) -> None:
        self.accepted()
        self.finished(f"dropped: {why}")


def _key(args: tuple[Any, ...]) -> FeedKey:
    """The key in a message. Raises whatever a forged one can make a decoder raise."""
    _, _, _, body, content_type, content_encoding = args
    # JSON and nothing else: a forged content type must not choose the decoder.
    positional, _, _ = loads(body, content_type, content_encoding, accept={"application/json"})
    return parse_key(positional)


def _accept(accept_callback: Callable[..., Any]) -> None:
    """Tell Celery, which acknowledges the message; then forget the message.

    Celery keeps the request for as long as the stream runs, to show it and to revoke it by its id. The message,
    what was decoded of it, two copies of its headers and the means to acknowledge it are most of it, kilobytes a
    feed, and of no more use.
    """
    accept_callback(os.getpid(), monotonic())
    if isinstance(request := getattr(accept_callback, "__self__", None), Request):
        request._message = None
        request._body = b""
        request._request_dict = _NOTHING
        request._on_ack = request._on_reject = noop
        request._Request__payload = _NO_PAYLOAD
        request._type = request.name = STREAM_FEED
        request._kwargs, request._kwargsrepr = _NOTHING, "{}"
        request._content_type, request._content_encoding = "application/json", "utf-8"
        request._root_id, request.time_limits = request.id, Request.time_limits
        request._delivery_info = _shared(tuple(request._delivery_info.items()))


@lru_cache(maxsize=16)
def _shared(items: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """One mapping for all requests that came the same way."""
    return dict(items)


def _watched(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        logger.exception(LogEvent.UNEXPECTED, where="control")


def _safely(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 -- an event that cannot be sent, an ack on a connection that is gone
        logger.debug(LogEvent.UNEXPECTED, where="celery callback", error=repr(error))
