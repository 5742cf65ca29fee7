"""A lock file: one user of a directory at a time, on this machine.

The lock belongs to the *open file*, so a child that inherits the descriptor keeps it locked until it too has
ended. Servers are given theirs: a directory stays locked while any process of the last server is about.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import psutil

from feedq.embedded.process import poll_until
from feedq.errors import Conflict


class FileLock:
    """An exclusive lock on a file, with the holder's pid in it."""

    def __init__(self, path: Path, *, what: str) -> None:
        self.path = path
        self._what = what
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        assert self._fd is not None, "the lock is not held"
        return self._fd

    def acquire(self, *, timeout_s: float = 0.0) -> None:
        """Raises `Conflict`, naming the holder: at once if it lives, in time if only its children do."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        poll_until(lambda: _try_lock(fd) or _holder_lives(fd), timeout_s=timeout_s)
        if not _try_lock(fd):
            holder = _holder(fd)
            os.close(fd)
            raise Conflict(
                f"{self._what} is in use by process {holder or '?'} (lock {self.path}): "
                "stop that one first, or choose another data directory"
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let go of our hold; children that inherited it keep theirs."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on this file just now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _holder_lives(fd: int) -> bool:
    holder = _holder(fd)
    # If it is us, the lock is that of a server which we have just ended.
    return holder is not None and holder != os.getpid() and psutil.pid_exists(holder)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
