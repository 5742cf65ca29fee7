"""Child processes that do not outlive us, and the account that servers run under.

Invariants: every child is in a session of its own, so that Ctrl-C in a terminal reaches us alone and we stop
things in order; and every child ends when we do, even when we are killed (`feedq.local.tether`).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from feedq.errors import Unavailable
from feedq.local.tether import Tether

PORTS = range(16_000, 30_000)
"""Above the well-known ones, below those that Linux and macOS give to outgoing connections: one of those might be
taken just when a server restarts on its port."""
_tether = Tether()
Status = TypeVar("Status", int, int | None)


class Account(NamedTuple):
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The account for servers, or None to run them as ourselves. PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return Account(name, found.pw_uid, found.pw_gid)
    # A container image without /etc/passwd entries still has user ids.
    return Account("65534", 65_534, 65_534)


def run_as(account: Account | None) -> dict[str, Any]:
    """The options of `subprocess` that start a process as this account."""
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}


def may_enter(path: Path, account: Account) -> bool:
    """Whether ``account`` may pass through every directory down to and including ``path``."""
    enter = ["/bin/sh", "-c", 'cd "$0" 2>/dev/null', str(path)]
    return subprocess.run(enter, cwd="/", check=False, **run_as(account)).returncode == 0  # noqa: S603


class TetheredChild(subprocess.Popen[bytes]):
    """A child that is forgotten as soon as it has been waited for, because its pid may then belong to another
    process."""

    _is_tied = True

    def poll(self) -> int | None:
        return self._untied(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        return self._untied(super().wait(timeout))

    def _untied(self, status: Status) -> Status:
        if status is not None and self._is_tied:
            self._is_tied = False
            _tether.untie(self.pid)
        return status


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    pass_fds: Sequence[int] = (),
) -> TetheredChild:
    """Start a child that gets ``death_signal`` when this process ends, however it ends."""
    with log.open("ab") as output:
        return TetheredChild(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            preexec_fn=_tether.ties(death_signal),
            **run_as(account),
        )


def end(
    process: TetheredChild,
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
    return process.returncode


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
    """Begin a new log, keeping the one before as ``<name>.1``."""
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_name(log.name + ".1"))


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
