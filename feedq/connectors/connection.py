"""One TCP or TLS connection of a feed: opened within a time limit, read with a bound, cut at will.

It is an `asyncio.Protocol` and not a pair of streams because thousands of them share a process: an idle
connection holds an empty buffer, one timer, and nothing per byte or per chunk.

Invariants:

* at most ``buffer_bytes`` plus one read of the event loop (256 KiB) wait here; beyond it reading is paused
  and the source's own sends block;
* the guard knows the socket from before it connects until after it is shut, through a descriptor of our
  own: when the event loop closes its descriptor, and whether it tells us before or after, does not matter;
* addresses of a host are tried one after the other, never two at once: a feed has one connection.

Errors of the network leave as `SourceUnavailable` that say what happened to which endpoint. This module
knows neither records nor cursors.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from feedq.connectors.base import SocketGuard
from feedq.connectors.endpoint import Endpoint
from feedq.connectors.tls import TlsFiles, client_context
from feedq.errors import SourceSilent, SourceUnavailable

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
"""A peer that vanished without a word is noticed after 30 + 3 x 10 seconds, whatever the idle timeout is."""

READ_BYTES = 256 * 1024
"""What asyncio and uvloop read from a socket at once, hence how far a bound may be overshot."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect, and when to give up; durations in seconds, 0 for an idle timeout is none."""

    endpoint: Endpoint
    connect_timeout_s: float
    idle_timeout_s: float
    buffer_bytes: int
    keepalive: bool
    tls_files: TlsFiles
    server_name: str | None


class Connection(asyncio.Protocol):
    """An open connection. Only `open_connection` makes one."""

    __slots__ = (
        "_buffer",
        "_guarded",
        "_heard_at",
        "_idle_timer",
        "_loop",
        "_lost",
        "_options",
        "_paused",
        "_transport",
        "_waiter",
    )

    def __init__(self, options: ConnectionOptions, guarded: GuardedSocket) -> None:
        self._options = options
        self._guarded = guarded
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._lost: SourceUnavailable | bool = False
        """True once the connection has ended by itself; the error if it did so badly."""
        self._heard_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # -- the consumer's side -------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and wait to be taken."""
        return len(self._buffer)

    @property
    def is_paused(self) -> bool:
        """Whether the source is being held back."""
        return self._paused

    async def receive(self) -> bytearray:
        """Everything that has arrived since the last call, at least one byte; nothing at the end.

        Raises:
            SourceUnavailable: the connection broke, and all that had arrived before was taken.
            SourceSilent: the same, for want of a sign of life.
        """
        while not self._buffer:
            if isinstance(self._lost, SourceUnavailable):
                raise self._lost
            if self._lost:
                return self._buffer
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        # The buffer changes hands as it is: no copy, and the next one begins small again.
        taken, self._buffer = self._buffer, bytearray()
        if self._paused and not self._lost:
            assert self._transport is not None
            self._paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
        return taken

    def send(self, data: bytes) -> None:
        """Nothing waits for it to be sent: only the few bytes of a hello ever are."""
        assert self._transport is not None
        if data:
            self._transport.write(data)

    def close(self) -> None:
        """Cut the connection at once; what has not been sent is dropped. May be repeated."""
        self._end(True)
        if self._transport is not None:
            self._transport.abort()

    # -- the event loop's side -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._lost:  # cancelled while the loop was on its way here
            self.close()
            return
        self._heard_at = self._loop.time()
        if self._options.idle_timeout_s > 0:
            self._watch_idleness(self._options.idle_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        self._buffer += data
        self._heard_at = self._loop.time()
        if not self._paused and len(self._buffer) >= self._options.buffer_bytes:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(True if error is None else explain(error, self._options.endpoint))

    def _end(self, how: SourceUnavailable | bool) -> None:
        self._lost = self._lost or how
        self._guarded.cut()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _watch_idleness(self, left_s: float) -> None:
        self._idle_timer = self._loop.call_later(left_s, self._check_idleness)

    def _check_idleness(self) -> None:
        # One timer that looks again later, instead of one set back with every chunk.
        idle_timeout_s = self._options.idle_timeout_s
        # While reading is paused it is we who do not listen: the source cannot be called silent.
        silent_s = 0.0 if self._paused else self._loop.time() - self._heard_at
        if silent_s < idle_timeout_s:
            self._watch_idleness(idle_timeout_s - silent_s)
            return
        self._end(
            SourceSilent(
                f"{self._options.endpoint}: connected, but nothing received for {idle_timeout_s:g} s "
                "(source.idle_timeout_s)"
            )
        )
        assert self._transport is not None
        self._transport.abort()


class GuardedSocket:
    """A second descriptor of a socket, which the guard knows, and which only we close."""

    __slots__ = ("_guard", "_socket")

    def __init__(self, sock: socket.socket, guard: SocketGuard) -> None:
        self._socket: socket.socket | None = sock.dup()
        self._guard = guard
        guard.watch(self._socket.fileno())

    def cut(self) -> None:
        """End the connection for both sides, whoever still holds a descriptor of it. May be repeated."""
        if self._socket is None:
            return
        # Forgotten first: once closed, the number may be another feed's socket.
        self._guard.forget(self._socket.fileno())
        with suppress(OSError):  # never connected, or already shut: that is what was wanted
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._socket = None


async def open_connection(options: ConnectionOptions, guard: SocketGuard) -> Connection:
    """Connect, and for ``tls`` shake hands, within ``connect_timeout_s``.

    Raises:
        SourceUnavailable: no connection; says why.
        FeedMisconfigured: a TLS file is missing or wrong.
    """
    try:
        async with asyncio.timeout(options.connect_timeout_s) as deadline:
            context = None
            if options.endpoint.tls:
                context = await asyncio.to_thread(client_context, options.tls_files)
            return await _open(options, guard, context=context, deadline=deadline)
    except OSError as error:
        if deadline.expired():
            raise SourceUnavailable(
                f"{options.endpoint}: no connection within {options.connect_timeout_s:g} s "
                "(source.connect_timeout_s)"
            ) from None
        raise explain(error, options.endpoint) from error


async def _open(
    options: ConnectionOptions,
    guard: SocketGuard,
    *,
    context: ssl.SSLContext | None,
    deadline: asyncio.Timeout,
) -> Connection:
    """Try each address; all but the last get an equal share of the time that is left."""
    addresses = await _resolve(options.endpoint)
    reasons: dict[str, OSError] = {}
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        end_at = deadline.when()
        assert end_at is not None
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout((end_at - now) / left if left > 1 else None):
                return await _connect(options, guard, family=family, address=address, context=context)
        except OSError as error:
            reasons[reason(error)] = error
    last = next(reversed(reasons.values()))
    raise SourceUnavailable(f"{options.endpoint}: {'; '.join(reasons)}") from last


async def _resolve(endpoint: Endpoint) -> list[tuple[int, Any]]:
    """``(family, socket address)`` of each address, in the resolver's order."""
    try:
        # Most sources are given by address: that needs no thread and cannot block.
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _connect(
    options: ConnectionOptions,
    guard: SocketGuard,
    *,
    family: int,
    address: Any,
    context: ssl.SSLContext | None,
) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        connection = Connection(options, GuardedSocket(sock, guard))
    except BaseException:
        sock.close()
        raise
    tls: dict[str, Any] = {}
    if context is not None:
        tls = {
            "ssl": context,
            "server_hostname": options.server_name or options.endpoint.host,
            "ssl_handshake_timeout": options.connect_timeout_s,
        }
    try:
        await dial(sock, address, keepalive=options.keepalive)
        # From here on `sock` belongs to the transport, which closes it in its own time.
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock, **tls)
    except BaseException:
        connection.close()
        raise
    return connection


async def dial(sock: socket.socket, address: Any, *, keepalive: bool) -> None:
    """Connect a socket, or close it."""
    try:
        if keepalive:
            _keep_alive(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
        # A port of this machine that nobody listens on can be drawn for our own end of the connection: TCP
        # then connects the socket to itself, and the feed would read its own hello.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError
    except BaseException:
        sock.close()
        raise


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        # macOS has only some of these; its own intervals, in hours, are what is left there.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def explain(error: Exception, endpoint: Endpoint) -> SourceUnavailable:
    """An error of the network as one of ours."""
    return SourceUnavailable(f"{endpoint}: {reason(error)}")


def reason(error: Exception) -> str:
    """What happened, and what to look at."""
    match error:
        case socket.gaierror():
            return f"the host name cannot be resolved ({error.strerror}); check source.url"
        case ConnectionRefusedError():
            return "connection refused; does the source run, and listen on that port?"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset by the peer"
        case TimeoutError():
            return "no answer (timed out)"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not accepted: {error.verify_message}; "
                "check source.ca_file, source.server_name, or the certificate"
            )
        case ssl.SSLError():
            # Only errors that come out of OpenSSL have a `reason`.
            detail = (getattr(error, "reason", None) or error.strerror or "unknown").replace("_", " ").lower()
            return (
                f"TLS failed: {detail}; does the source speak TLS on that port, and accept our certificate?"
            )
        case OSError() if error.strerror:
            return error.strerror
    return f"{type(error).__name__}: {error}"
