"""Servers and processes of `feedq up`: the demo, the environment for shells, children, and how all stop."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from feedq.local import tether
from feedq.local.datadir import DataDir
from feedq.local.process import (
    end,
    poll_until,
    spawn,
    tail,
)
from feedq.local.server import FileLock, is_locked
from feedq.local.stack import (
    Service,
    stop_all,
)

GENEROUS_S = 20.0

SLEEP = ["/bin/sleep", "600"]


PARENT = """
    import os, sys, time
    from pathlib import Path
    from feedq.local import process, tether
    from feedq.local.process import end, spawn

    def child():
        return spawn(["/bin/sleep", "600"], log=Path(sys.argv[1]), env=dict(os.environ), cwd=Path("/"))

    gone, kept = child(), child()
    end(gone)
    print(kept.pid, process._tether._watcher.pid, flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def parent(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A process with a child; yields it, the child's pid and the watcher's."""
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(log)], stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    child = 0
    try:
        with started, started.stdout:
            child, watcher = map(int, started.stdout.readline().split())
            yield started, child, watcher
            started.kill()
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)


def test_a_child_ends_when_its_parent_is_killed_even_while_it_is_frozen(tmp_path: Path) -> None:
    with parent(tmp_path / "log") as (process, child, watcher):
        # A signal to everything does not end the watcher before its parent.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(watcher, number)
        os.kill(child, signal.SIGSTOP)
        process.kill()
        assert poll_until(lambda: not is_running(child), timeout_s=GENEROUS_S)
        assert poll_until(lambda: not is_running(watcher), timeout_s=GENEROUS_S)


def test_the_watcher_ends_its_children_and_leaves_those_that_had_ended_before() -> None:
    """Their numbers may be those of other processes by now."""
    tied, stranger = (subprocess.Popen(SLEEP) for _ in range(2))
    lines = f"+{stranger.pid} 9\n+{tied.pid} 15\n-{stranger.pid} 0\n"
    try:
        with subprocess.Popen([sys.executable, tether.__file__], stdin=subprocess.PIPE) as watcher:
            assert watcher.stdin is not None
            watcher.stdin.write(lines.encode())
            watcher.stdin.close()
            assert tied.wait(GENEROUS_S) == -signal.SIGTERM
        assert watcher.returncode == 0
        assert stranger.poll() is None
    finally:
        for process in (tied, stranger):
            process.kill()
            process.wait(GENEROUS_S)


def test_a_lock_is_held_until_the_child_that_inherited_it_ends(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock", what="the data")
    lock.acquire()
    child = spawn(SLEEP, log=tmp_path / "log", env=os.environ, cwd=tmp_path, pass_fds=[lock.fd])
    lock.release()
    try:
        assert is_locked(lock.path)
    finally:
        end(child)
    lock.acquire(timeout_s=GENEROUS_S)
    lock.release()


STARTS_S = 30.0


@contextmanager
def service(directory: Path, code: str, *, name: str = "worker1") -> Iterator[Service]:
    argv = ["/bin/sh", "-c", code]
    made = Service(name, argv, directory / f"{name}.log", dict(os.environ), lambda _: True)
    try:
        yield made
    finally:
        stop_all([made], grace_s=0, is_forced=lambda: True)


def test_all_are_asked_to_stop_and_only_the_deaf_are_killed(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with service(tmp_path, deaf, name="deaf") as one, service(tmp_path, polite, name="polite") as other:
        for made in (one, other):
            made.start()
            assert poll_until(lambda: tail(made.log) == "up", timeout_s=STARTS_S)  # noqa: B023
        assert stop_all([one, other], grace_s=3.0, is_forced=lambda: False) == ["deaf"]
        assert [s.process.returncode for s in (one, other) if s.process] == [-signal.SIGKILL, 0]


FEEDQ = f"{sys.executable} -c 'from feedq.cli import main; main()'"

SETTINGS = {
    "FEEDQ_TENANT_LIMITS": '{"acme": {"rows_per_s": 5000}, "*": {"rows_per_s": 10}}',
    "FEEDQ_ALERT_URLS": 'mailto://ada:it\'s "me"@example.com  slack://$HOME/`id`/$(id)',
    "FEEDQ_SINKS__FILES": "sqlite:///a\\b !c*\t~;&|<>#\x1b[0m",
    "FEEDQ_ENVIRONMENT": "first line\n\nthird line\n",
    "FEEDQ_IMPORTS": "",
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_gets_every_value_as_it_is(shell: str, tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "it's a $HOME 'data'")
    shown = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    typed = f'set -e; eval "$({FEEDQ} env --data-dir {shlex.quote(str(data_dir.path))})"; {shown}'
    with data_dir.held():
        data_dir.write_settings(SETTINGS)
        done = subprocess.run([shell, "-c", typed], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout).items() >= SETTINGS.items()
