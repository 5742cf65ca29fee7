"""Dialing: from the name of a host to a connected socket, for every connector that opens one.

Names are resolved here and only here, so that each address can be checked against what feeds may reach
(`feedq.core.permission`) before a packet goes to it. Connectors on a library hand the connected socket to it.

Invariants:

* the guard knows a socket from before it connects until after it is shut, through a descriptor of our own: it does
  not matter when the event loop or a library closes its descriptor, or whether it tells us;
* a name server that says nothing keeps no other feed from connecting: c-ares asks without a thread, where the C
  library would hold one of the event loop's few for up to half a minute, and could not be told to stop;
* addresses of a host are tried one after the other, never two at once: a feed has one connection;
* nothing here waits beyond the time it is given.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from feedq.connectors.base import Context, Sockets
from feedq.core.permission import Permissions
from feedq.errors import FeedMisconfigured, SourceUnavailable

if TYPE_CHECKING:
    import pycares

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
"""A peer that vanished without a word is noticed after 30 + 3 x 10 seconds, whatever the idle timeout is."""
NAME_SERVER_S = 2.0
NAME_SERVER_TRIES = 3
"""Of each name server; the time doubles once all have been tried."""

Addresses: TypeAlias = list[tuple[int, Any]]
"""``(family, socket address)`` of each address, in the order to try them in."""


class Dialed:
    """A socket, and a second descriptor of it, which the guard knows and which only we close."""

    __slots__ = ("_guard", "_guarded", "sock")

    def __init__(self, sock: socket.socket, guard: Sockets) -> None:
        self.sock = sock
        """Non-blocking; for the event loop or a library to use and to close."""
        self._guarded: socket.socket | None = sock.dup()
        self._guard = guard
        guard.watch(self._guarded.fileno())

    def share(self) -> None:
        """Make do with the one descriptor of `sock`: whoever closes it calls `cut` before.

        Thousands of connections would need twice as many descriptors.
        """
        if self._guarded is None:
            return
        ours, self._guarded = self._guarded, self.sock
        self._guard.watch(self.sock.fileno())
        self._guard.forget(ours.fileno())
        ours.close()

    def cut(self) -> None:
        """End the connection for both sides, whoever still holds a descriptor of it. May be repeated."""
        if self._guarded is None:
            return
        # Forgotten first: once closed, the number may be another feed's socket.
        self._guard.forget(self._guarded.fileno())
        with suppress(OSError):  # never connected, or already shut: that is what was wanted
            self._guarded.shutdown(socket.SHUT_RDWR)
        if self._guarded is not self.sock:
            self._guarded.close()
        self._guarded = None

    def close(self) -> None:
        """Close both descriptors, when nobody else has taken `sock` over."""
        self.cut()
        self.sock.close()


@asynccontextmanager
async def bounded(where: object, timeout_s: float) -> AsyncIterator[float]:
    """Limits the time to open a connection inside; gives the loop's time at which it is over.

    Errors of the network leave as `SourceUnavailable` that begin with ``where``.
    """
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            give_up_at = deadline.when()
            assert give_up_at is not None
            yield give_up_at
    except OSError as error:
        if deadline.expired():
            raise SourceUnavailable(
                f"{where}: no connection within {timeout_s:g} s (source.connect_timeout_s)"
            ) from None
        raise explain(error, where) from error


async def dial_host(host: str, port: int, *, where: object, context: Context, timeout_s: float) -> Dialed:
    """Try each address that is permitted; all but the last get an equal share of the time that is left.

    Raises:
        FeedMisconfigured: no address of the host is permitted.
        SourceUnavailable: none answers in time, or the name does not resolve.
    """
    async with bounded(where, timeout_s) as give_up_at:
        return await dial_until(give_up_at, host, port, where=where, context=context)


async def dial_until(give_up_at: float, host: str, port: int, *, where: object, context: Context) -> Dialed:
    """The same within `bounded`, whose time and errors are then those of all that is done there."""
    loop = asyncio.get_running_loop()
    try:
        found = await resolve(host, port)
    except asyncio.CancelledError:
        # By the time-out of `bounded`, or by whoever stops the feed.
        if loop.time() < give_up_at:
            raise
        raise SourceUnavailable(
            f"{where}: {host} was not resolved in time (source.connect_timeout_s); does its name server answer?"
        ) from None
    addresses = permitted(found, host=host, where=where, permissions=context.permissions)
    reasons: dict[str, OSError] = {}
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        connecting = partial(_connect, family, address, guard=context.guard)
        try:
            if left == 1:
                return await connecting()
            async with asyncio.timeout((give_up_at - loop.time()) / left):
                return await connecting()
        except OSError as error:
            reasons[reason(error)] = error
    last = next(reversed(reasons.values()))
    raise SourceUnavailable(f"{where}: {'; '.join(reasons)}") from last


async def resolve(host: str, port: int) -> Addresses:
    """Raises `OSError` where the name has no address, or no name server says."""
    try:
        # Most sources are given by address: that needs no name server.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return [(family, address) for family, _, _, _, address in found]
    except socket.gaierror:
        pass
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "this is not a valid host name") from error
    answer: Future[pycares.AddrInfoResult] = Future()

    def told(result: pycares.AddrInfoResult, code: int | None) -> None:
        if answer.set_running_or_notify_cancel():
            if code is None:
                answer.set_result(result)
            else:
                answer.set_exception(_unresolved(code))

    name_servers().getaddrinfo(host, port, type=socket.SOCK_STREAM, callback=told)
    nodes = (await asyncio.wrap_future(answer)).nodes
    return [(node.family, (node.addr[0].decode(), *node.addr[1:])) for node in nodes]


@cache
def name_servers() -> pycares.Channel:
    """What asks them, for all of this process; it has a thread of its own."""
    import pycares  # only now: a megabyte, which is of no use where all sources are given by address

    return pycares.Channel(timeout=NAME_SERVER_S, tries=NAME_SERVER_TRIES)


def _unresolved(code: int) -> socket.gaierror:
    import pycares

    if code in (pycares.errno.ARES_ENOTFOUND, pycares.errno.ARES_ENODATA):
        return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return socket.gaierror(socket.EAI_AGAIN, pycares.errno.strerror(code))


def permitted(addresses: Addresses, *, host: str, where: object, permissions: Permissions) -> Addresses:
    """Returns the addresses that feeds may connect to. Raises `FeedMisconfigured` when there is none."""
    refusals = {address[0]: permissions.refusal(address[0]) for _, address in addresses}
    if addresses and all(refusals.values()):
        address, why = next(iter(refusals.items()))
        named = f"{host} is " if host != address else ""
        raise FeedMisconfigured(f"{where}: {named}{address}, {why}")
    return [(family, address) for family, address in addresses if refusals[address[0]] is None]


async def _connect(family: int, address: Any, *, guard: Sockets) -> Dialed:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        dialed = Dialed(sock, guard)
    except BaseException:
        sock.close()
        raise
    try:
        await dial(sock, address)
    except BaseException:
        dialed.close()
        raise
    return dialed


async def dial(sock: socket.socket, address: Any) -> None:
    """Connect a socket."""
    keep_alive(sock)
    # By hand, because uvloop's `sock_connect` has a thread resolve the address first, as if it were a name.
    try:
        sock.connect(address)
    except BlockingIOError:
        await _writable(sock)
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error)) from None
    # A port of this machine that nobody listens on can be drawn for our own end of the connection: TCP then
    # connects the socket to itself, and the feed would read its own hello.
    ours = sock.getsockname()
    if ours[1] == address[1] and ours == sock.getpeername():
        raise ConnectionRefusedError


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock, ready.set)  # which may come again before we do
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock)


def keep_alive(
    sock: socket.socket,
    *,
    idle_s: int = KEEPALIVE_IDLE_S,
    interval_s: int = KEEPALIVE_INTERVAL_S,
    probes: int = KEEPALIVE_PROBES,
) -> None:
    """Notice a peer that vanished without a word after ``idle_s`` and ``probes`` times ``interval_s``."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle_s), ("TCP_KEEPINTVL", interval_s), ("TCP_KEEPCNT", probes)):
        # macOS has only some of these; its own intervals, in hours, are what is left there.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def explain(error: Exception, where: object) -> SourceUnavailable:
    """An error of the network as one of ours."""
    return SourceUnavailable(f"{where}: {reason(error)}")


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
