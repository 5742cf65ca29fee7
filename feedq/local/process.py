"""Child processes that do not outlive us, and the account that servers run under.

Invariants: every child is in a session of its own, so that Ctrl-C in a terminal reaches us alone and we stop
things in order; and every child ends when we do, even when we are killed. On Linux the kernel sees to that
(``PR_SET_PDEATHSIG``), elsewhere a small watcher does (`feedq.local.tether`).

The kernel's signal is tied to the *thread* that started the child: start children from a thread that lives as
long as the process, which is to say the main one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from feedq.errors import Unavailable
from feedq.local.tether import Tether

ACCOUNTS = ("postgres", "nobody")
"""Whom servers run as when we are root, in order of preference: PostgreSQL refuses root."""
PORTS = range(16_000, 30_000)
"""Above the well-known ones, below those that Linux and macOS give to outgoing connections."""
LOG_BYTES_KEPT = 64 * 2**20
"""A log that grew beyond this in one run is cut when the next one starts."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_tether = Tether()


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The account for servers, or None to run them as ourselves (we are not root)."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    # A container image without /etc/passwd entries still has user ids.
    return Account("65534", 65_534, 65_534)


def may_enter(path: Path, account: Account) -> bool:
    """Whether ``account`` may pass through every directory down to and including ``path``."""
    resolved = path.resolve()
    return all(_may_pass(directory.stat(), account) for directory in (resolved, *resolved.parents))


def _may_pass(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child that gets ``death_signal`` when this process ends, however it ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - argument lists of ours, no shell
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            # Runs after the change of user, which would clear the setting. It makes system calls only: a
            # fork of a process with threads must not import, allocate much or take locks.
            preexec_fn=_die_with_parent(os.getpid(), death_signal),
        )
    if _libc is None:
        _tether.watch(process.pid, death_signal)
    return process


def _die_with_parent(parent: int, death_signal: signal.Signals) -> Callable[[], None] | None:
    libc = _libc
    if libc is None:
        return None
    number = int(death_signal)

    def preexec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return preexec


def end(
    process: subprocess.Popen[bytes],
    *steps: tuple[signal.Signals, float],
    is_forced: Callable[[], bool] = lambda: False,
) -> int:
    """End a child by signals, each with seconds of grace, and at last by SIGKILL. Returns its exit status.

    ``is_forced`` is asked all the while; once it says yes, the grace is over.
    """
    for number, grace_s in steps:
        if process.poll() is not None or is_forced():
            break
        process.send_signal(number)
        poll_until(lambda: process.poll() is not None or is_forced(), timeout_s=grace_s, interval_s=0.02)
    if process.poll() is None:
        # With the children it may have: the group is its own, and while it is not reaped so is the number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process may be stopped or in a system call, but not for ever once it is killed.
        process.wait(30)
    release(process)
    return process.returncode


def release(process: subprocess.Popen[bytes]) -> None:
    """Forget a child that ended by itself: its pid may be somebody else's soon."""
    if _libc is None:
        _tether.forget(process.pid)


def poll_until(condition: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.05) -> bool:
    """Ask again and again until it holds; False when it did not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def free_port(*, rng: Random | None = None) -> int:
    """A loopback port that was free a moment ago; whoever binds it must be ready to try another."""
    # Not the kernel's choice: that is one of those it gives to outgoing connections, of which one might
    # have it just when a server restarts on its port.
    draw = rng or Random()
    for _ in range(1_000):
        port = draw.choice(PORTS)
        if is_free(port):
            return port
    raise Unavailable(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop - 1}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: connections of the last one in TIME_WAIT are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def rotate(log: Path) -> None:
    """Begin a new log, keeping the end of the one before as ``<name>.1``."""
    if not log.exists():
        return
    previous = log.with_name(log.name + ".1")
    log.replace(previous)
    if previous.stat().st_size > LOG_BYTES_KEPT:
        with previous.open("rb+") as file:
            file.seek(-LOG_BYTES_KEPT, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.write(kept)
            file.truncate()


def tail(log: Path, *, lines: int = 15) -> str:
    """The last lines of a log, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
