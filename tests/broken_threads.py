"""Breaks a thread of a worker from inside: a module for ``FEEDQ_IMPORTS`` of workers under test.

A file ``PID-THREAD`` in the directory that ``BROKEN_THREADS`` names says what becomes of that thread: it hangs
where it would note its next turn, or inside the driver of a database, or it dies wherever it is.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg2
from psycopg2.extensions import cursor

from feedq.telemetry.watched_threads import WatchedThread
from feedq.worker.activity import Activity

VARIABLE = "BROKEN_THREADS"
LOOK_S = 0.05

Fault = Literal["hangs", "hangs in the driver", "dies"]


def break_thread(directory: Path, pid: int, thread: str, fault: Fault) -> None:
    (directory / "half").write_text(fault)
    (directory / "half").rename(directory / f"{pid}-{thread}")


def hung(directory: Path, pid: int, thread: str) -> Path:
    """Return the file that is there once a thread hangs in the driver; some ask only every few seconds."""
    return directory / f"{pid}-{thread}.hung"


def fault_of(thread: str) -> str:
    path = Path(os.environ[VARIABLE], f"{os.getpid()}-{thread}")
    return path.read_text() if path.exists() else ""


def hang_if_told() -> None:
    if fault_of(threading.current_thread().name) == "hangs":
        threading.Event().wait()


class Turns:
    """In the place of `WatchedThread.turns`."""

    def __get__(self, thread: Any, _: object) -> int:
        return int(thread.__dict__["turns"])

    def __set__(self, thread: Any, turns: int) -> None:
        thread.__dict__["turns"] = turns
        if threading.current_thread() is thread:
            hang_if_told()


class HangingCursor(cursor):
    """A cursor whose statements never return if the thread that executes one is told to hang there."""

    def execute(self, *arguments: Any, **named: Any) -> None:
        thread = threading.current_thread().name
        if fault_of(thread) == "hangs in the driver":
            hung(Path(os.environ[VARIABLE]), os.getpid(), thread).touch()
            threading.Event().wait()
        super().execute(*arguments, **named)


def pulse(activity: Activity) -> None:
    hang_if_told()
    real_pulse(activity)


def kill_threads() -> None:
    """End threads that are to die, as an exception that nobody expects would."""
    while True:
        for thread in threading.enumerate():
            if fault_of(thread.name) == "dies":
                ident = ctypes.c_ulong(thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(GeneratorExit))
        time.sleep(LOOK_S)


if VARIABLE in os.environ:
    real_pulse = Activity.pulse
    Activity.pulse = pulse  # type: ignore[method-assign, assignment]
    psycopg2.connect = partial(psycopg2.connect, cursor_factory=HangingCursor)
    WatchedThread.turns = Turns()  # type: ignore[assignment]
    threading.Thread(target=kill_threads, daemon=True).start()
