"""The sockets of the feeds, by file descriptor: so that they can be shut while the event loop is stuck.

``shutdown()`` takes effect at once and from any thread; the loop later notices that the connection is over
and closes the descriptor itself. A connector forgets its descriptor *before* it is closed, so that a number
that the kernel has given to somebody else is never shut.
"""

from __future__ import annotations

import contextlib
import socket
from threading import Lock


class Sockets:
    """Every open socket of the feeds of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: set[int] = set()

    def watch(self, fileno: int) -> None:
        with self._lock:
            self._open.add(fileno)

    def forget(self, fileno: int) -> None:
        with self._lock:
            self._open.discard(fileno)

    def __len__(self) -> int:
        return len(self._open)

    def cut_all(self) -> int:
        """Shut every socket, in both directions. Returns how many."""
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
