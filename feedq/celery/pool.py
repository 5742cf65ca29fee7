"""StreamPool: the Celery pool that holds thousands of streams and a few job threads in one process.

``stream_feed`` becomes a coroutine on the supervisor's loop; its message is acknowledged when the claim is
committed (`TaskCallbacks.accepted`), because from then on the lease brings the feed back, not the broker.
Every other task runs in one of ``FEEDQ_JOB_SLOTS`` threads, and reconcile in one reserved for it, so that neither
500 streams nor a full set of jobs can starve it.

Celery's callbacks send events, and may block while the broker is away. They are called on a thread of their
own: never on the loop, and never on the lease client's. A warm shutdown waits for running jobs, as Celery's
pools do, and for nothing else that may hang.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool, apply_target
from celery.utils.functional import noop
from celery.worker.request import Request
from kombu.serialization import loads

from feedq.celery.broker import settle
from feedq.celery.tasks import RECONCILE, STREAM_FEED, parse_key
from feedq.settings import settings
from feedq.telemetry.logs import LogEvent, log
from feedq.worker.supervisor import Supervisor, TaskCallbacks
from feedq.worker.threads import SerialExecutor

CLAIM_WINDOW = 256
"""Messages of `stream_feed` that a worker takes before it acknowledges: fewer, and round trips to the broker pace
a start of thousands of feeds."""
CLOSE_GRACE_S = 0.3
"""What reconcile and the callbacks get to end by themselves."""

logger = log(__name__)


class StreamPool(BasePool):
    """The pool of a worker runs feeds as coroutines on one event loop, and jobs on threads. ``-c`` is the
    number of feeds that it holds; job threads come on top."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supervisor: Supervisor | None = None
        self._jobs: ThreadPoolExecutor | None = None
        self._running_jobs: set[Future[Any]] = set()
        self._control = SerialExecutor("feedq-control")
        self._callbacks = SerialExecutor("feedq-callbacks")

    @property
    def num_processes(self) -> int:
        """Celery's prefetch window, times the multiplier: messages taken and not acknowledged yet.

        Running streams are acknowledged and do not count.
        """
        return settings().job_slots + CLAIM_WINDOW

    def on_start(self) -> None:
        self._jobs = ThreadPoolExecutor(settings().job_slots, "feedq-job")

    def on_stop(self) -> None:
        """Warm shutdown: running jobs may finish, waiting ones stay with the broker."""
        self._shut(wait=True)

    def on_terminate(self) -> None:
        self._shut(wait=False)

    def _shut(self, *, wait: bool) -> None:
        if self._jobs is not None:
            self._jobs.shutdown(wait=wait, cancel_futures=True)
        grace_s = CLOSE_GRACE_S if wait else 0.0
        self._control.close(timeout_s=grace_s, drop_waiting=True)
        self._callbacks.close(timeout_s=grace_s, drop_waiting=not wait)

    @property
    def is_busy(self) -> bool:
        """Whether ordinary tasks run."""
        return bool(self._running_jobs)

    def run_control(self, job: Callable[[], object]) -> None:
        """Run something in the reserved thread."""
        if self.active:
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self._control.submit(_watched, job)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> Running:
        assert self._jobs is not None
        if args and args[0] == STREAM_FEED:
            return self._stream(args, callback, accept_callback)
        executor = self._control if args and args[0] == RECONCILE else self._jobs
        try:
            future = executor.submit(apply_target, target, args, kwargs, callback, accept_callback)
        except RuntimeError:
            # The pool is closing: not acknowledged, the message stays with the broker.
            return Running()
        if executor is self._jobs:
            self._running_jobs.add(future)
            future.add_done_callback(self._running_jobs.discard)
        running = Running(future=future)
        # Celery itself keeps a weak reference only.
        future.add_done_callback(running.done)
        future.add_done_callback(partial(settle, accept_callback, self.call_later))
        return running

    def _stream(
        self,
        args: tuple[Any, ...],
        callback: Callable[..., Any] | None,
        accept_callback: Callable[..., Any] | None,
    ) -> Running:
        running = Running()
        stream = _Stream(self, running, callback, accept_callback)
        hooks = TaskCallbacks(stream.accepted, stream.finished)
        try:
            key = parse_key(_positional(args))
        except Exception as error:  # noqa: BLE001 -- whatever a forged message can make a decoder raise
            logger.warning(LogEvent.MESSAGE_DROPPED, task_id=str(args[1])[:80], why=repr(error)[:200])
            hooks.accepted()
            hooks.finished("dropped: not a stream_feed message")
            return running
        supervisor = self.supervisor
        if supervisor is None:
            hooks.accepted()
            hooks.finished("dropped: this worker is not ready")
            return running
        running.cancel_with(partial(supervisor.cancel, key[0]))
        supervisor.offer(key, hooks)
        return running

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Terminate nothing by pid: all tasks share this process. `Running.terminate` ends the one that is
        meant."""

    def call_later(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call it on the callbacks' thread."""
        # Not when the pool is closing: an ack that is not sent lets the message come back, a stale one, dropped.
        with contextlib.suppress(RuntimeError):
            self._callbacks.submit(_safely, function, *args, **kwargs)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        feeds = self.supervisor.feeds if self.supervisor else 0
        return info | {"feeds": feeds, "job-slots": settings().job_slots}


class _Stream:
    """Tells Celery what becomes of one feed's task."""

    __slots__ = ("_accept_callback", "_callback", "_pool", "_request", "_running", "_started")

    def __init__(
        self,
        pool: StreamPool,
        running: Running,
        callback: Callable[..., Any] | None,
        accept_callback: Callable[..., Any] | None,
    ) -> None:
        self._pool = pool
        # Celery itself keeps a weak reference only: this one holds as long as the stream does.
        self._running = running
        self._callback, self._accept_callback = callback, accept_callback
        # Found through Celery's own bound method: the way to send events under its task id.
        self._request = getattr(accept_callback, "__self__", None)
        self._started = monotonic()

    def accepted(self) -> None:
        if self._accept_callback is not None:
            self._pool.call_later(_accept, self._accept_callback, self._request)
            self._accept_callback = None

    def finished(self, why: str) -> None:
        self._running.done()
        if self._callback is not None:
            self._pool.call_later(self._callback, (0, why, monotonic() - self._started))


class Running:
    """The handle by which Celery terminates a task under way."""

    __slots__ = ("__weakref__", "_cancel", "_future")

    def __init__(self, *, future: Future[Any] | None = None) -> None:
        self._future = future
        self._cancel: Callable[[], None] | None = None

    def cancel_with(self, cancel: Callable[[], None]) -> None:
        """Set what ends the task, from any thread, until it is `done`."""
        self._cancel = cancel

    def done(self, _: object = None) -> None:
        """Note that the task is over: there is nothing left to end."""
        self._cancel = self._future = None

    def get(self, timeout: float | None = None) -> Any:
        return self._future.result(timeout) if self._future is not None else None

    def terminate(self, signal: Any = None) -> None:
        """A stream stops and its feed is placed again; a job that waits is dropped, one that runs goes on."""
        if self._cancel is not None:
            self._cancel()
        elif self._future is not None:
            self._future.cancel()


def _positional(args: tuple[Any, ...]) -> Any:
    """The positional arguments of a message. Raises whatever a forged one can make a decoder raise."""
    _, _, _, body, content_type, content_encoding = args
    # JSON and nothing else: a forged content type must not choose the decoder.
    positional, _, _ = loads(body, content_type, content_encoding, accept={"application/json"})
    return positional


def _accept(accept_callback: Callable[..., Any], request: Any) -> None:
    """Tell Celery, which acknowledges the message; then forget the message.

    Celery keeps the request for as long as the stream runs, to show it and to revoke it by its id. The message,
    two copies of its headers and the means to acknowledge it are most of it, kilobytes a feed, and of no more use.
    """
    accept_callback(os.getpid(), monotonic())
    if isinstance(request, Request):
        request._message = None
        request._body = b""
        request._request_dict = {}
        request._on_ack = request._on_reject = noop


def _watched(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        logger.exception(LogEvent.UNEXPECTED, where="control")


def _safely(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 -- an event that cannot be sent, an ack on a connection that is gone
        logger.debug(LogEvent.UNEXPECTED, where="celery callback", error=repr(error))
