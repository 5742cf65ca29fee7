"""Processes that outlive the run of tests which started them: found by a variable they inherit, and ended.

A run that is cut off, by a time-out say, ends no fixture. Servers and workers of a `Cluster` die with it; a stack
of `feedq up` has a session of its own, and a monitor ends after its worker, unless it was frozen. Both inherit
`VARIABLE`, as all do that get the environment of the tests or `tests.node.INHERITED`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

import psutil

VARIABLE = "TESTS_RUN"
"""Holds the process id of the pytest that a process comes from."""
END_S = 10.0
"""For what was killed to be gone."""


def mark() -> None:
    """All that this process starts from now on belongs to its run."""
    os.environ[VARIABLE] = str(os.getpid())


def is_over(run: str) -> bool:
    with suppress(psutil.Error, ValueError):
        return not any("pytest" in word for word in psutil.Process(int(run)).cmdline())
    return True


def processes() -> Iterator[tuple[psutil.Process, str]]:
    """Each process that a run has started, and the run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            run = process.environ().get(VARIABLE)
            if run is not None and process.pid != os.getpid():
                yield process, run


def of_ended_runs() -> list[psutil.Process]:
    return [process for process, run in processes() if is_over(run)]


def of_this_run() -> list[psutil.Process]:
    return [process for process, run in processes() if run == str(os.getpid())]


def end(found: Collection[psutil.Process]) -> list[str]:
    """Kill them, frozen ones too, and say what each was."""
    said = []
    for process in found:
        with suppress(psutil.Error):
            said.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(list(found), timeout=END_S)
    return said


def gone_within(seconds: float) -> list[psutil.Process]:
    """What is left of this run when those that end by themselves have had the time."""
    deadline = time.monotonic() + seconds
    while (left := of_this_run()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
