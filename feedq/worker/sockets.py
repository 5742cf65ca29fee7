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
    """Knows every open socket of the feeds of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[int, object] = {}
        """Descriptors, and whose they are."""

    def watch(self, fileno: int, *, owner: object = None) -> None:
        with self._lock:
            self._open[fileno] = owner

    def forget(self, fileno: int) -> None:
        with self._lock:
            self._open.pop(fileno, None)

    def of_feed(self) -> FeedSockets:
        """The sockets of one feed, which can be cut without the others."""
        return FeedSockets(self)

    def __len__(self) -> int:
        return len(self._open)

    def cut_all(self) -> int:
        """Shut every socket, in both directions. Returns how many."""
        # Under the lock: nobody can close one of these, and have its number reused, in the meantime.
        with self._lock:
            for fileno in self._open:
                _shut(fileno)
            return len(self._open)

    def cut_of(self, owner: object) -> int:
        """Shut those of one owner. Returns how many."""
        with self._lock:
            mine = [fileno for fileno, whose in self._open.items() if whose is owner]
            for fileno in mine:
                _shut(fileno)
            return len(mine)


class FeedSockets:
    """The sockets of one feed among those of its process; costs a feed next to no memory. Thread-safe."""

    __slots__ = ("_all",)

    def __init__(self, all_sockets: Sockets) -> None:
        self._all = all_sockets

    def watch(self, fileno: int) -> None:
        self._all.watch(fileno, owner=self)

    def forget(self, fileno: int) -> None:
        self._all.forget(fileno)

    def cut(self) -> int:
        """Shut them all, in both directions. Returns how many."""
        return self._all.cut_of(self)


def _shut(fileno: int) -> None:
    # Borrowed and not duplicated: that could fail for want of descriptors, and the socket would stay open.
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=fileno)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()
