"""Blocking connectors: plain generators, each on a thread of its own, as the event loop sees them.

::

    loop    take ◄───────── one batch ─────────┐           cancelled: stopping is set, the sockets are shut
    thread  generator ──► hand over, wait until it is taken ──► generator … or is closed

Invariants:

* a generator runs, and is closed, on its own thread; nothing else of the feed does;
* one batch waits at most: the generator goes on when the loop has taken it, which is its backpressure;
* a thread that was told to stop hands nothing over any more. The feed waits `STOP_S` for it at most; after that
  the thread is left behind and named in the log, and can do nothing but hold memory.

The threads are daemons and not the loop's own pool: thousands of feeds could not share that, and a process must be
able to end without them. `Batch.on_committed` is called on the loop, as for every connector: a generator that
acknowledges must look for what the callback left, since nothing can call it while it waits.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from feedq.connectors.base import Connector, ConnectorOptions, Context
from feedq.connectors.wire.dialing import dial_host
from feedq.core.model import JSON
from feedq.errors import FeedqError, SourceUnavailable
from feedq.records.batch import Batch
from feedq.telemetry.logs import LogEvent, log

STOP_S: Final = 0.8
"""A feed has to end within a second; a worker that leaves gives its feeds little more."""
CUT_AGAIN_S: Final = 0.05

logger = log(__name__)


def open_stream(
    kind: type[Connector], options: ConnectorOptions, *, context: Context, cursor: JSON
) -> AsyncGenerator[Batch, None]:
    """A connection attempt of whichever kind; to be closed with ``aclose``."""
    if inspect.isgeneratorfunction(kind.stream):
        return stream_blocking(kind, options, context=context, cursor=cursor)
    # The protocol promises an async iterator; those with an `aclose` get it called in time.
    return cast("AsyncGenerator[Batch, None]", kind(options, context).stream(cursor))


async def stream_blocking(
    kind: type[Connector], options: ConnectorOptions, *, context: Context, cursor: JSON
) -> AsyncGenerator[Batch, None]:
    """What the connector's generator yields; errors come through as they are."""
    worker = _Worker(kind, options, context=context, cursor=cursor)
    worker.start()
    try:
        while (batch := await worker.take()) is not None:
            yield batch
    finally:
        await worker.stop()


@contextmanager
def dialed(host: str, port: int, *, context: Context, timeout_s: float) -> Iterator[socket.socket]:
    """A connected socket for a blocking connector, dialed as those of all others are; it has no timeout itself.

    Raises:
        FeedMisconfigured: no address of the host is permitted.
        SourceUnavailable: none answers within ``timeout_s``, or the name does not resolve.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Dialing takes a loop, if only for a moment, and that of the worker is another thread's.
    connected = asyncio.run(dial_host(host, port, where=where, context=context, timeout_s=timeout_s))
    try:
        if context.stopping.is_set():  # nobody may look for its sockets any more
            raise SourceUnavailable(f"{where}: stopped before it was connected")
        connected.sock.setblocking(True)
        yield connected.sock
    finally:
        connected.close()


class _Worker:
    """The thread of one connection attempt. Public methods belong to the loop."""

    def __init__(
        self, kind: type[Connector], options: ConnectorOptions, *, context: Context, cursor: JSON
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._feed = context.feed
        self._stopping = threading.Event()
        self._kind = kind
        self._options = options
        self._cursor = cursor
        self._context = replace(
            context,
            stopping=self._stopping,
            on_connected=self._on_loop(context.on_connected),
            on_waiting=self._on_loop(context.on_waiting),
            on_notice=self._on_loop(context.on_notice),
        )
        self._handed: Batch | None = None
        self._arrived = asyncio.Event()
        self._taken = threading.Semaphore(0)
        self._error: Exception | None = None
        """What the generator has ended with."""
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"feedq-{self._feed}", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._over.set()
            raise SourceUnavailable(
                f"no thread for a blocking connector ({error}); this worker has too many, or too little memory"
            ) from error

    async def take(self) -> Batch | None:
        """The next batch; None at the end. Raises what the generator raised."""
        await self._arrived.wait()
        self._arrived.clear()
        batch, self._handed = self._handed, None
        if batch is None and self._error is not None:
            raise self._error
        self._taken.release()
        return batch

    async def stop(self) -> None:
        """End the thread, or leave it behind."""
        self._stopping.set()
        self._taken.release()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    while not self._over.is_set():
                        # Again and again: it may be opening one, and not have looked at `Context.stopping` yet.
                        self._context.guard.cut()
                        with suppress(TimeoutError):
                            async with asyncio.timeout(CUT_AGAIN_S):
                                await self._over.wait()
        finally:
            if not self._over.is_set():
                logger.warning(
                    LogEvent.THREAD_LEFT_BEHIND, feed=self._feed, thread=self._thread.name, waited_s=STOP_S
                )

    def _on_loop(self, callback: Callable[..., None]) -> Callable[..., None]:
        """A callback of the context, to be called on the thread; nobody hears it any more once the feed stops."""

        def heard(*said: Any) -> None:
            if not self._stopping.is_set():
                callback(*said)

        return lambda *said: self._tell(partial(heard, *said))

    # -- on the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._context.note_thread():
                self._generate()
        except Exception as raised:  # noqa: BLE001 - it goes on in the loop
            self._error = raised
        except BaseException as raised:  # noqa: BLE001 - it must not end the loop, as a SystemExit would
            self._error = RuntimeError(f"connector ended with {raised!r}")
            self._error.__cause__ = raised
        if self._stopping.is_set() and not isinstance(self._error, FeedqError | OSError | None):
            # Its sockets were shut: it may well say that they are. Anything else is a fault, told to nobody else.
            logger.error(LogEvent.UNEXPECTED, where="connector", feed=self._feed, exc_info=self._error)
        self._tell(self._arrived.set)
        self._tell(self._over.set)

    def _generate(self) -> None:
        # The protocol promises an iterator; `open_stream` has seen that it is a generator.
        batches = cast(
            "Generator[Batch, None, None]", self._kind(self._options, self._context).stream(self._cursor)
        )
        try:
            for batch in batches:
                self._handed = batch
                self._tell(self._arrived.set)
                self._taken.acquire()
                if self._stopping.is_set():
                    return
        finally:
            batches.close()

    def _tell(self, what: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear
            self._loop.call_soon_threadsafe(what)
