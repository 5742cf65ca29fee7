"""One TCP or TLS connection of a feed: opened within a time limit, read with a bound, cut at will.

It is an `asyncio.Protocol` and not a pair of streams because thousands of them share a process: an idle
connection holds an empty buffer, one timer, and nothing per byte or per chunk.

Invariants:

* at most ``buffer_bytes`` plus one read (256 KiB) wait here, and once the worker has no room for more, one
  small read (4 KiB); beyond it reading is paused and the source's own sends block;
* the guard knows the socket from before it connects until after it is shut: see `feedq.connectors.wire.dialing`.

Errors of the network leave as `SourceUnavailable` that say what happened to which endpoint. This module
knows neither records nor cursors.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from feedq.connectors.base import Context, Room
from feedq.connectors.local_files import FILES
from feedq.connectors.wire.dialing import Dialed, bounded, dial_until, explain
from feedq.connectors.wire.remote import Location, RemoteOptions, client_context
from feedq.errors import SourceSilent, SourceUnavailable
from feedq.records.turns import PIECE_BYTES, others_turn

READ_BYTES = 256 * 1024
"""What is read from a socket at once, hence how far ``buffer_bytes`` may be overshot."""
READ_BYTES_MIN = 4 * 1024
"""The same while the worker has no room: a feed that has nothing on its way must not starve behind the others."""
UNSENT_BYTES_MAX = 64 * 1024
"""Bounds what a source that asks for answers and never reads them can make us keep."""


class _Scratch(threading.local):
    """What a thread's event loop reads into: one socket at a time, and we copy before it reads the next."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(READ_BYTES))


_scratch = _Scratch()


class SourceConnection(asyncio.BufferedProtocol):
    """An open connection. Made only by `open_connection`."""

    def __init__(
        self,
        options: RemoteOptions,
        dialed: Dialed,
        room: Room,
        *,
        endpoint: Location,
        idle_timeout_s: float,
        buffer_bytes: int,
    ) -> None:
        self._options = options
        self._endpoint = endpoint
        self._idle_timeout_s = idle_timeout_s
        self._buffer_bytes = buffer_bytes
        self._dialed = dialed
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._scratch = _scratch.memory
        self._buffer = bytearray()
        self._is_cut = False
        """Whether the last piece was not all that had arrived."""
        self._held = 0
        """What of ``room`` is taken for the buffer."""
        self._transport: asyncio.Transport | None = None
        self.is_paused = False
        """Whether the source is being held back."""
        self._waiter: asyncio.Future[None] | None = None
        self._lost: SourceUnavailable | bool = False
        """True once the connection has ended by itself; the error if it did so badly."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- the consumer's side -------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and wait to be taken."""
        return len(self._buffer)

    def peek(self) -> bytes:
        """Returns what has arrived and leaves it there."""
        return bytes(self._buffer)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return not self._lost

    async def receive(self, *, piece_bytes: int = PIECE_BYTES) -> bytearray:
        """Returns what has arrived since the last call: at least one byte and at most ``piece_bytes``, nothing at
        the end. Between two pieces of what arrived at once, the others of the loop have their turn.

        Raises:
            SourceUnavailable: the connection broke, and all that had arrived before was taken.
            SourceSilent: the same, for want of a sign of life.
        """
        if self._is_cut:
            await others_turn()
        while not self._buffer:
            if isinstance(self._lost, SourceUnavailable):
                raise self._lost
            if self._lost:
                return self._buffer
            await self._woken()
        self._is_cut = len(self._buffer) > piece_bytes
        if self._is_cut:
            taken = self._buffer[:piece_bytes]
            del self._buffer[:piece_bytes]
            self._give_back(piece_bytes)
            return taken
        # The buffer changes hands as it is: no copy, and the next one begins small again.
        taken, self._buffer = self._buffer, bytearray()
        self._give_back(self._held)
        if self.is_paused and not self._lost:
            assert self._transport is not None
            self.is_paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
        return taken

    def put_back(self, data: bytes | bytearray) -> None:
        """Give back what was received and is for somebody else: the next `receive` returns it again."""
        self._buffer[:0] = data
        self._room.take(len(data))
        self._held += len(data)

    def send(self, data: bytes, *, unsent_bytes_max: int = UNSENT_BYTES_MAX) -> None:
        """Send without waiting: it is a hello or answers, a few bytes. Once the connection has ended they are
        dropped, and whoever reads learns why.

        Raises:
            SourceUnavailable: the source has not read what was sent before.
        """
        assert self._transport is not None
        # A transport that is closed raises, whatever is asked of it.
        if data and not self._lost:
            if self._transport.get_write_buffer_size() > unsent_bytes_max:
                raise SourceUnavailable(f"{self._endpoint}: does not read the answers that it is sent")
            self._transport.write(data)

    async def start_tls(self) -> None:
        """Begin TLS on a connection that began in the clear; for ``tls_later`` of `open_connection`.

        Raises:
            OSError: the handshake fails.
            FeedMisconfigured: a file is missing or wrong.
            SourceUnavailable: the source has gone on in the clear.
        """
        tls = await _tls_arguments(self._options, self._endpoint)
        if self._buffer:
            raise SourceUnavailable(
                f"{self._endpoint}: the server continued in plain text where TLS must begin"
            )
        assert self._transport is not None
        self._transport = await self._loop.start_tls(self._transport, self, tls.pop("ssl"), **tls)

    async def finish(self, *, at_most_s: float) -> None:
        """Cut the connection once what was sent has left, or the time is over."""
        if self._transport is not None and not self._lost:
            self._transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(at_most_s):
                    while not self._lost:
                        await self._woken()
        self.close()

    def close(self) -> None:
        """Cut the connection at once; what has not been sent is dropped. May be repeated."""
        self._end(True)
        self._give_back(self._held)
        if self._transport is not None:
            self._transport.abort()

    # -- the event loop's side -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._lost:  # cancelled while the loop was on its way here
            self.close()
            return
        self._heard_at = self._loop.time()
        if self._idle_timeout_s > 0:
            self._check_silence()

    def get_buffer(self, sizehint: int) -> memoryview:
        # Reserved before it is read: thousands of sources that send at once would overshoot the bound a lot.
        left = self._room.left
        return self._scratch if left >= READ_BYTES else self._scratch[: max(READ_BYTES_MIN, left)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost:
            return
        self._buffer += self._scratch[:nbytes]
        room = self._room
        room.take(nbytes)
        self._held += nbytes
        self._heard_at = self._loop.time()
        is_full = len(self._buffer) >= self._buffer_bytes or room.left <= 0
        if is_full and not self.is_paused:
            assert self._transport is not None
            self.is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(True if error is None else explain(error, self._endpoint))

    def _end(self, how: SourceUnavailable | bool) -> None:
        self._lost = self._lost or how
        self._dialed.cut()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _give_back(self, size: int) -> None:
        self._room.give_back(size)
        self._held -= size

    def _woken(self) -> asyncio.Future[None]:
        """Done once something has come or the connection has ended."""
        # No coroutine: of each feed, that would be one more that waits.
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _check_silence(self) -> None:
        # One timer that looks again later, instead of one set back with every byte.
        now = self._loop.time()
        # While reading is paused it is we who do not listen: the source cannot be called silent.
        silent_at = (now if self.is_paused else self._heard_at) + self._idle_timeout_s
        if silent_at > now:
            self._timer = self._loop.call_at(silent_at, self._check_silence)
            return
        self._end(
            SourceSilent(
                f"{self._endpoint}: connected, but nothing received for {self._idle_timeout_s:g} s "
                "(source.idle_timeout_s)"
            )
        )
        assert self._transport is not None
        self._transport.abort()


async def open_connection(
    options: RemoteOptions,
    context: Context,
    *,
    idle_timeout_s: float = 0.0,
    buffer_bytes: int | None = None,
    to: Location | None = None,
    is_home: bool = True,
    tls_later: bool = False,
) -> SourceConnection:
    """Connect to the URL, and for TLS shake hands, within ``connect_timeout_s``.

    ``idle_timeout_s`` of 0 is never; ``buffer_bytes`` stands in for the option. ``to`` is another place, such as
    where a redirect leads: unless it ``is_home``, it is not shown our certificate, nor asked for ``server_name``.
    With ``tls_later`` the caller says when TLS begins, by `SourceConnection.start_tls`.

    Raises:
        SourceUnavailable: no connection; says why.
        FeedMisconfigured: a TLS file is missing or wrong, or the address is not permitted.
    """
    endpoint = to or options.location
    async with bounded(endpoint, options.connect_timeout_s) as give_up_at:
        has_tls = endpoint.tls and not tls_later
        tls = await _tls_arguments(options, endpoint, is_home=is_home) if has_tls else {}
        dialed = await dial_until(give_up_at, endpoint.host, endpoint.port, where=endpoint, context=context)
        connection = SourceConnection(
            options,
            dialed,
            context.room,
            endpoint=endpoint,
            idle_timeout_s=idle_timeout_s,
            buffer_bytes=buffer_bytes or options.buffer_bytes,
        )
        try:
            # From here on the socket belongs to the transport, which closes it in its own time.
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=dialed.sock, **tls)
        except BaseException:
            connection.close()
            raise
        if not endpoint.tls:
            # Such a transport says that the connection is lost before it closes the socket; with TLS, after it.
            dialed.share()
        return connection


async def _tls_arguments(
    options: RemoteOptions, endpoint: Location, *, is_home: bool = True
) -> dict[str, Any]:
    files = options.tls_files if is_home else replace(options.tls_files, cert_file=None, key_file=None)
    paths = filter(None, (files.ca_file, files.cert_file, files.key_file))
    return {
        "ssl": await FILES.read(paths, partial(client_context, files)),
        "server_hostname": (options.server_name if is_home else None) or endpoint.host,
        "ssl_handshake_timeout": options.connect_timeout_s,
    }
