"""The socket under an `feedq.connectors.protocol.mqtt.link`: TLS over it, and reading it in large pieces."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

READ_BYTES = 64 * 1024


class ReadAhead:
    """A non-blocking socket read in large pieces, since paho asks for one byte or two at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(b"")
        self.heard = False
        """Whether anything was received; for whoever wants to know to set back."""
        self.is_dry = False
        """Whether the last reading found nothing more."""
        self.error: OSError | None = None
        """Why the connection broke; None if the broker ended it in order."""

    def recv(self, size: int) -> bytes:
        if not self._buffer:
            self._buffer = memoryview(self._receive())
            self.heard = True
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return bytes(taken)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self.is_dry = True
            raise
        except OSError as error:
            self.error = error
            raise

    def send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.error = error
            raise

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)


async def shake_hands(sock: socket.socket, tls: ssl.SSLContext, *, server_name: str) -> ssl.SSLSocket:
    """TLS over a connected socket, whose place it takes. Raises `OSError`."""
    wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await _ready(wrapped, loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _ready(wrapped, loop.add_writer, loop.remove_writer)
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


async def _ready(sock: socket.socket, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), wake)
    try:
        await ready
    finally:
        remove(sock.fileno())
