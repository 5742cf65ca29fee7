"""A TCP proxy before PostgreSQL that breaks connections at a chosen statement, to the byte.

::

    with PostgresProxy(database_url) as proxy:
        trap = proxy.arm(Fault.CUT_AFTER, "COMMIT", application="feedq-writer/")
        ... a client of proxy.url commits ...
        assert trap.tripped.wait(10)

It reads what clients send just far enough to know the simple queries in it, and passes everything on as it
is. A trap goes off once, at the first query of a matching session that begins with its statement:

===============  ==========================================  ==========================================
`Fault`          the server                                  the client
===============  ==========================================  ==========================================
``CUT_BEFORE``   loses the client, never gets the query      loses the connection
``CUT_AFTER``    carries the query out                       loses the connection, gets no answer
``HOLD``         gets the query at ``trap.release()``        waits; gets the answer after the release
``STRAND``       keeps its side of the connection open, and  loses the connection at once
                 gets the query at ``trap.release()``
===============  ==========================================  ==========================================

It knows nothing of TLS: sessions through it are in the clear. `PlainProxy` stands before any server; as all of
them it can be cut, refuse, hang (`PostgresProxy.hang`) or lose every packet (`PostgresProxy.drop`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psutil

CONNECT_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 120.0
"""A held query is dropped after this long, so that a failed test does not hang."""
CHUNK_BYTES = 256 * 1024
BACKLOG = 128
DROPPED_S = 0.3
"""A handshake on this machine that takes longer is not answered."""
PROTOCOL_3 = 3
ANSWERED = (b"Z", b"G")
"""The server is ready for the next query, or for the data of a COPY."""


class Fault(Enum):
    """What happens at the statement."""

    CUT_BEFORE = auto()
    CUT_AFTER = auto()
    HOLD = auto()
    STRAND = auto()


@dataclass(slots=True)
class Trap:
    """A fault waiting for its statement."""

    fault: Fault
    statement: str
    application: str
    tripped: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let a held or stranded query go on to the server."""
        self.released.set()

    def matches(self, query: str, application: str) -> bool:
        return query.lstrip().upper().startswith(self.statement.upper()) and application.startswith(
            self.application
        )


class PostgresProxy:
    """Listens on a free loopback port until `close`."""

    link: type[Link]
    """How it reads what goes through: PostgreSQL's protocol, unless a subclass reads another."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._links: set[Link] = set()
        self._closed = False
        self._refusing = False
        self._flowing, self._accepting = threading.Event(), threading.Event()
        self._flowing.set()
        self._accepting.set()
        self._fillers: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        credentials, at, _ = parts.netloc.rpartition("@")
        self.url: str = urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))
        """The server's URL, through this proxy."""
        self.seen: Counter[str] = Counter()
        """How many simple queries came through, by their first word."""
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def arm(self, fault: Fault, statement: str = "COMMIT", *, application: str = "") -> Trap:
        """Break the next query that begins with ``statement``, of a session whose application_name begins
        with ``application``."""
        trap = Trap(fault, statement, application)
        with self._lock:
            self._traps.append(trap)
        return trap

    def disarm(self) -> None:
        """Forget the traps that have not gone off, and release the others."""
        with self._lock:
            self._traps.clear()
            links = list(self._links)
        for link in links:
            link.release()

    def cut(self) -> int:
        """Reset every connection, as a network does. Returns how many."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def refuse(self) -> None:
        """Be unreachable: cut all connections and let nobody in."""
        self._refusing = True
        self.cut()

    def admit(self) -> None:
        """Be reachable again."""
        self._refusing = False

    def lead_to(self, url: str) -> None:
        """Have another server behind this address, for connections made from now on; cut those that there are."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self.cut()

    def hang(self) -> None:
        """Accept, and pass nothing on any more: as a frozen server, which closes and answers nothing."""
        self._flowing.clear()

    def drop(self) -> None:
        """Let nobody in and pass nothing on, without a word: as a network that drops every packet."""
        self.hang()
        self._accepting.clear()
        # Linux leaves a handshake without an answer while the queue of connections to be accepted is full.
        self._listener.listen(0)
        while (filler := _connected("127.0.0.1", self.port)) is not None:
            self._fillers.append(filler)

    def resume(self) -> None:
        """Work again, for new connections: nobody knows what those that there were have missed."""
        self.cut()
        for filler in self._fillers:
            _reset(filler)
        self._fillers.clear()
        self._listener.listen(BACKLOG)
        self._flowing.set()
        self._accepting.set()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        self._accepting.set()
        for filler in self._fillers:
            _reset(filler)
        # Closing alone would leave the thread in accept(), and it would let one more client in.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disarm()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            # Between the two, one that is let in hears nothing.
            self._accepting.wait()
            self._flowing.wait()
            if self._refusing or self.refuses(client):
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=CONNECT_TIMEOUT_S)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.link(self, client, server).start()

    def wait_flowing(self) -> None:
        self._flowing.wait()

    def refuses(self, client: socket.socket) -> bool:
        """Whether this one is turned away."""
        return False

    def trip(self, query: str, application: str) -> Trap | None:
        with self._lock:
            self.seen[query.split(None, 1)[0].upper()] += 1
            for trap in self._traps:
                if trap.matches(query, application):
                    self._traps.remove(trap)
                    return trap
        return None

    def add(self, link: Link) -> None:
        with self._lock:
            self._links.add(link)

    def remove(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)


class Link:
    """One client's connection and ours to the server for it, with a thread for each direction."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._trap: Trap | None = None
        self._answered = threading.Event()
        self.application = ""

    def start(self) -> None:
        self._proxy.add(self)
        for work in (self._upstream, self._downstream):
            threading.Thread(target=work, name="proxy-link", daemon=True).start()

    def release(self) -> None:
        if self._trap is not None:
            self._trap.release()

    def cut(self) -> None:
        _reset(self._client)
        _reset(self._server)
        self._proxy.remove(self)

    def _upstream(self) -> None:
        try:
            for message, query in self.messages():
                trap = self._proxy.trip(query, self.application) if query.strip() else None
                if trap is None:
                    self._server.sendall(message)
                elif not self._spring(trap, message):
                    return
        except OSError:
            pass
        finally:
            if self._trap is None or self._trap.fault is not Fault.STRAND:
                self.cut()

    def _spring(self, trap: Trap, message: bytes) -> bool:
        """Carry out a fault; returns whether the connection goes on."""
        if trap.fault is Fault.CUT_AFTER:
            self._trap = trap
            self._server.sendall(message)
            self._answered.wait(RELEASE_TIMEOUT_S)
            self.cut()
            trap.tripped.set()
        elif trap.fault is Fault.CUT_BEFORE:
            self.cut()
            trap.tripped.set()
        elif trap.fault is Fault.HOLD:
            trap.tripped.set()
            self._trap = trap
            trap.released.wait(RELEASE_TIMEOUT_S)
            self._trap = None
            self._server.sendall(message)
            return True
        else:
            self._trap = trap
            _reset(self._client)
            trap.tripped.set()
            trap.released.wait(RELEASE_TIMEOUT_S)
            with contextlib.suppress(OSError):
                self._server.sendall(message)
                self._answered.wait(CONNECT_TIMEOUT_S)
            self.cut()
        return False

    def _downstream(self) -> None:
        """Pass the server's answers on, or swallow them when a fault says so."""
        swallowed = bytearray()
        try:
            while data := self._server.recv(CHUNK_BYTES):
                self._proxy.wait_flowing()
                if self._trap is None or self._trap.fault is Fault.HOLD:
                    self._client.sendall(data)
                    continue
                swallowed += data
                if self.is_answer(swallowed):
                    self._answered.set()
        except OSError:
            pass
        finally:
            self._answered.set()
            if self._trap is None or self._trap.fault is Fault.HOLD:
                # The server hung up: pass that on after its last words, which a reset would swallow.
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_WR)

    def is_answer(self, swallowed: bytearray) -> bool:
        """Whether the server has answered a query in what it said; takes off what was looked at."""
        return any(kind in ANSWERED for kind, _ in _typed_messages(swallowed))

    def messages(self) -> Iterator[tuple[bytes, str]]:
        """What the client sends, message by message, with the text of each simple query."""
        buffer = bytearray()
        started = False
        while data := self.receive():
            buffer += data
            while not started and (message := _take(buffer, typed=False)):
                started = self._is_startup(message)
                yield message, ""
            if started:
                for kind, message in _typed_messages(buffer):
                    query = message[5:-1].decode(errors="replace") if kind == b"Q" else ""
                    yield message, query

    def receive(self) -> bytes:
        """What the client sends next; empty at its end."""
        data = self._client.recv(CHUNK_BYTES)
        self._proxy.wait_flowing()
        return data

    def _is_startup(self, message: bytes) -> bool:
        """Whether it opens the session; requests for encryption come before, and are refused in one byte."""
        (major,) = struct.unpack_from(">H", message, 4)
        if major != PROTOCOL_3:
            return False
        words = message[8:].decode(errors="replace").split("\0")
        options = dict(zip(words[::2], words[1::2], strict=False))
        self.application = options.get("application_name", "")
        return True


PostgresProxy.link = Link


class PlainLink(Link):
    """Passes on whatever comes, of any protocol."""

    def messages(self) -> Iterator[tuple[bytes, str]]:
        while data := self.receive():
            yield data, ""

    @property
    def client_port(self) -> int:
        try:
            port: int = self._client.getpeername()[1]
        except OSError:
            return 0  # gone already
        return port


class PlainProxy(PostgresProxy):
    """A proxy before any other server, which knows nothing of what it passes on."""

    link = PlainLink


class SourceProxy(PlainProxy):
    """Before a source of any protocol: cuts single processes of this machine off from it."""

    def __init__(self, url: str) -> None:
        self._cut_off: set[int] = set()
        super().__init__(url)

    def cut_off(self, *pids: int) -> None:
        """Reset the connections of these processes, and let them make no new ones."""
        self._cut_off.update(pids)
        ports = _ports_of(pids)
        with self._lock:
            links = [link for link in self._links if isinstance(link, PlainLink)]
        for link in links:
            if link.client_port in ports:
                link.cut()

    def let_in(self, *pids: int) -> None:
        """Be reachable again for these processes."""
        self._cut_off.difference_update(pids)

    def refuses(self, client: socket.socket) -> bool:
        return bool(self._cut_off) and client.getpeername()[1] in _ports_of(self._cut_off)


def _ports_of(pids: Iterable[int]) -> set[int]:
    """From which these processes are connected to anybody."""
    return {
        connection.laddr.port
        for pid in list(pids)
        if psutil.pid_exists(pid)
        for connection in psutil.Process(pid).net_connections(kind="tcp")
    }


def _typed_messages(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the complete messages off the front of a buffer: ``(type, whole message)``."""
    while message := _take(buffer, typed=True):
        yield message[:1], message


def _take(buffer: bytearray, *, typed: bool) -> bytes:
    """Take one complete message off the front; empty when there is none yet."""
    start = 1 if typed else 0
    if len(buffer) < start + 4:
        return b""
    (length,) = struct.unpack_from(">I", buffer, start)
    if len(buffer) < start + length:
        return b""
    message = bytes(buffer[: start + length])
    del buffer[: start + length]
    return message


def _connected(host: str, port: int) -> socket.socket | None:
    """A connection, if the handshake is answered."""
    try:
        return socket.create_connection((host, port), timeout=DROPPED_S)
    except TimeoutError:
        return None


def _reset(end: socket.socket) -> None:
    """Close with a RST: the other side learns of it at once, and no byte still under way gets there."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
