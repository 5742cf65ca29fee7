"""What a run of tests that was cut off has left is found and ended by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests import leftovers
from tests.cluster import wait_until

SLEEP = "import time; time.sleep(600)"


def started(run: int) -> psutil.Popen:
    """A process of that run, in a session of its own, as a stack of `feedq up` is."""
    env = {**os.environ, leftovers.VARIABLE: str(run)}
    return psutil.Popen([sys.executable, "-c", SLEEP], env=env, start_new_session=True)


@pytest.fixture
def ended_run() -> Iterator[int]:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait(10)
    yield process.pid
    leftovers.end([process for process, run in leftovers.processes() if run == str(process.pid)])


def test_what_outlived_a_run_is_ended_even_if_it_is_frozen_and_what_runs_is_left_alone(
    ended_run: int,
) -> None:
    stack, monitor, mine = started(ended_run), started(ended_run), started(os.getpid())
    monitor.send_signal(signal.SIGSTOP)
    wait_until(lambda: monitor.status() == psutil.STATUS_STOPPED, limit_s=10, what="it is frozen")
    left = leftovers.of_ended_runs()
    assert {stack.pid, monitor.pid} <= {process.pid for process in left}
    said = leftovers.end([process for process in left if process.pid in (stack.pid, monitor.pid)])
    assert sorted(line.split()[0] for line in said) == sorted(map(str, (stack.pid, monitor.pid)))
    assert not any(process.is_running() for process in (stack, monitor))
    assert mine in leftovers.of_this_run()
    assert mine not in leftovers.of_ended_runs()
    leftovers.end([mine])
