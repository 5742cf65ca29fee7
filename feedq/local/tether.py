"""Ends children with their parent, however it ends: a watcher at the other end of a pipe.

Each child tells the watcher its process id before it becomes another program, so there is no moment at which it
would be missed. When the parent ends, even by SIGKILL, the kernel closes its end of the pipe; the watcher then
sends each child that is left its signal, and SIGKILL to those that remain after a grace. It works the same on
Linux and macOS. The watcher imports nothing of feedq: run as a script, it must start fast and depend on nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

GRACE_S = 5.0
"""Between a child's signal and its SIGKILL."""


class Tether:
    """Our end of the pipe. Starts the watcher with the first child."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None

    def ties(self, number: signal.Signals) -> Callable[[], None]:
        """What a child runs before it becomes another program, so that it gets this signal when we end."""
        if self._watcher is None or self._watcher.poll() is not None:
            self._watcher = subprocess.Popen(  # noqa: S603 - our own file, run by our own Python
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                env={},
                start_new_session=True,
                preexec_fn=_ignore_signals,
            )
        pipe = self._descriptor()

        # Runs in a fork of a process with threads: it must not import, allocate much or take locks.
        def tie() -> None:
            os.write(pipe, b"+%d %d\n" % (os.getpid(), number))

        return tie

    def untie(self, pid: int) -> None:
        """Forget a child that has been waited for."""
        if self._watcher is not None and self._watcher.poll() is None:
            os.write(self._descriptor(), b"-%d 0\n" % pid)

    def _descriptor(self) -> int:
        assert self._watcher is not None
        assert self._watcher.stdin is not None
        return self._watcher.stdin.fileno()


def _ignore_signals() -> None:
    """Whoever stops a whole group or service means the parent, and its children after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def watch(pipe: BinaryIO) -> None:
    """Keep the list of children until the pipe closes, then end them."""
    children: dict[int, int] = {}
    for line in pipe:
        pid, number = map(int, line[1:].split())
        if line.startswith(b"+"):
            children[pid] = number
        else:
            children.pop(pid, None)
    left = {pid for pid, number in children.items() if _signal(pid, number)}
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = {pid for pid in left if _signal(pid, 0)}
    for pid in left:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    watch(sys.stdin.buffer)
