"""The sockets of a feed, by file descriptor: so that they can be shut while the event loop is stuck.

``shutdown()`` takes effect at once and from any thread; the loop later notices that the connection is over
and closes the descriptor itself. A connector forgets its descriptor *before* it is closed, so that a number
that the kernel has given to somebody else is never shut.
"""

from __future__ import annotations

import contextlib
import socket
from threading import Lock


class Sockets:
    """The open sockets of one feed, kept in very little memory. Thread-safe."""

    __slots__ = ("_open",)
    _lock = Lock()
    """One for all feeds: it is never held for long."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def watch(self, fileno: int) -> None:
        with self._lock:
            self._open.append(fileno)

    def forget(self, fileno: int) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(fileno)

    def cut(self) -> int:
        """Shut all of them, in both directions. Returns how many."""
        # Under the lock: nobody can close one of these, and have its number reused, in the meantime.
        with self._lock:
            for fileno in self._open:
                _shut(fileno)
            return len(self._open)


def _shut(fileno: int) -> None:
    # Borrowed and not duplicated: that could fail for want of descriptors, and the socket would stay open.
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=fileno)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()
