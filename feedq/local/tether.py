"""Ends children with their parent where the kernel does not (macOS): a watcher at the other end of a pipe.

The watcher is told each child's pid and signal. When the parent ends, in whatever way, the pipe closes, and
the watcher signals the children that are left, then kills them. It imports nothing of feedq: run as a script,
it must start fast and depend on nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import BinaryIO

GRACE_S = 5.0
"""Between a child's signal and its SIGKILL."""


class Tether:
    """Our end of the pipe. Starts the watcher with the first child."""

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int, death_signal: signal.Signals) -> None:
        self._tell(f"+{pid} {int(death_signal)}\n")

    def forget(self, pid: int) -> None:
        """Must be called once a child has been waited for: its pid may be somebody else's soon."""
        self._tell(f"-{pid} 0\n")

    def _tell(self, line: str) -> None:
        if self._watcher is None or self._watcher.poll() is not None:
            self._watcher = subprocess.Popen(  # noqa: S603 - our own file, run by our own Python
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(line.encode())
        self._watcher.stdin.flush()


def watch(pipe: BinaryIO) -> None:
    """Keep the list of children until the pipe closes, then end them."""
    children: dict[int, int] = {}
    for line in pipe:
        fields = line[1:].split()
        if line.startswith(b"+"):
            children[int(fields[0])] = int(fields[1])
        else:
            children.pop(int(fields[0]), None)
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
