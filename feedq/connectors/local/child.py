"""A child process whose output is read: started without a shell, held on a leash, and ended with all it started.

Invariants:

* its standard output is a socket and not a pipe, so that the guard can cut it whatever else is stuck;
* it is in a process group of its own, all of which is ended with it;
* it inherits no descriptor but its three, and no variable but those it is given;
* what is kept of its standard error is bounded, and the rest of it is read and dropped.

All of it blocks: it belongs on the thread of a blocking connector.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from feedq.connectors.base import SocketGuard
from feedq.connectors.local import leash

TERMINATE_S = 0.5
"""Between SIGTERM and SIGKILL: a feed has to end within a second."""
KILL_S = 5.0
"""A killed process that is still there hangs in the kernel; it is left there."""
READ_BYTES = 256 * 1024
REST_S = 0.2
"""After the program has ended, what it has started may hold its output for ever: when nothing has come for this
long, nothing does."""
STDERR_BYTES_KEPT = 16 * 1024


class Child:
    """A running program. To be ended by `end`, also when it has ended by itself."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], guard: SocketGuard) -> None:
        """Raises OSError when no process can be made, and ValueError for a NUL in what it is given."""
        self._guard = guard
        self._said = bytearray()
        self._said_more = False
        self._status: int | None = None
        self._output, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - no shell; the caller has checked the program
                    [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *argv],
                    bufsize=0,
                    stdin=subprocess.DEVNULL,
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    env=dict(env),
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            self._output.close()
            raise
        assert self._process.stderr is not None
        self._errors: IO[bytes] = self._process.stderr
        os.set_blocking(self._errors.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._errors, select.POLLIN)
        self._is_over = False
        """The program itself has ended; what it started may still hold its output."""
        self._ending: int | None = None
        """Tells when it does, where the kernel has such descriptors; elsewhere only the end of its output does."""
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._ending = os.pidfd_open(self._process.pid)
                self._poll.register(self._ending, select.POLLIN)
        guard.watch(self._output.fileno())

    def receive(self, *, timeout_s: float | None) -> bytes | None:
        """What it has written, at least a byte; nothing once it writes no more, or has ended; None if it did
        not in time.
        """
        timeout_s = REST_S if self._is_over else timeout_s
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            ready = {fileno for fileno, _ in self._poll.poll(None if left_s is None else left_s * 1000)}
            if self._output.fileno() in ready:
                try:
                    return self._output.recv(READ_BYTES)
                except ConnectionError:
                    return b""  # it ended with something of ours unread, which there is not, or was cut
            if self._errors.fileno() in ready:
                self._hear()
            if left_s == 0.0:
                return b"" if self._is_over else None
            if self._ending is not None and self._ending in ready:
                self._poll.unregister(self._ending)
                self._is_over = True
                give_up_at = time.monotonic() + REST_S

    def end(self, *, after_s: float = 0.0) -> int:
        """Let it end by itself for a while, then end it with all it has started; its exit status.

        May be repeated.
        """
        if self._status is not None:
            return self._status
        # Forgotten first: once closed, the number may be another feed's.
        self._guard.forget(self._output.fileno())
        self._output.close()
        if self._ending is not None:
            os.close(self._ending)
        if not self._has_ended(after_s):
            self._signal(signal.SIGTERM)
        if not self._has_ended(TERMINATE_S):
            self._signal(signal.SIGKILL)
        self._has_ended(KILL_S)
        # What it left running: the group exists as long as somebody is in it, and its number is nobody else's yet.
        self._signal(signal.SIGKILL)
        self._hear()
        self._errors.close()
        status = self._process.returncode
        self._status = -signal.SIGKILL if status is None else status
        return self._status

    @property
    def last_words(self) -> str:
        """The end of what it has written to its standard error, in whole lines."""
        said = bytes(self._said)
        if self._said_more:
            _, _, said = said.partition(b"\n")
        return said.decode(errors="replace").strip()

    def _hear(self) -> None:
        data = self._errors.read(READ_BYTES)
        if data == b"":
            with suppress(KeyError):  # heard before
                self._poll.unregister(self._errors)
            return
        self._said += data or b""
        if len(self._said) > STDERR_BYTES_KEPT:
            self._said_more = True
            del self._said[:-STDERR_BYTES_KEPT]

    def _has_ended(self, within_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def program_problem(program: str) -> str | None:
    """Why a program cannot be run here; None if it can."""
    path = Path(program)
    if not path.is_file():
        return "there is no such program on this worker"
    if not os.access(path, os.X_OK):
        return "it may not be executed by the worker"
    return None
