"""Limits of this machine: a socket a feed needs a file descriptor a feed."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Sequence

import psutil

from feedq.diagnosis.checks import Check, counted, ok, warn
from feedq.model import WorkerView

FILES_BESIDE_FEEDS = 100
"""Descriptors of a worker that are no feed's: databases, broker, libraries, log."""


def check_open_files(workers: Sequence[WorkerView]) -> Iterator[Check]:
    """``ulimit -n`` of each worker on this machine, or of this shell for the largest when none runs here."""
    here = [view for view in workers if view.worker.host == socket.gethostname()]
    limits = [(view, limit) for view in here if (limit := _limit_of(view.worker.pid)) is not None]
    for view, limit in limits:
        if _is_short(limit, view.worker.capacity):
            yield _too_few(f"{view.worker.name} may open {limit} files", view.worker.capacity)
    if limits:
        if not any(_is_short(limit, view.worker.capacity) for view, limit in limits):
            yield ok(
                "open files", f"at least {min(limit for _, limit in limits)} for each worker on this machine"
            )
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _as_count(soft)
    largest = max((view.worker.capacity for view in workers), default=0)
    if _is_short(limit, largest):
        yield _too_few(f"a worker started from this shell may open {limit} files", largest)
    else:
        yield ok("open files", f"ulimit -n is {limit} in this shell")


def _is_short(limit: int, capacity: int) -> bool:
    return limit < capacity + FILES_BESIDE_FEEDS


def _too_few(who: str, capacity: int) -> Check:
    return warn(
        "open files",
        f"{who}, fewer than the {capacity + FILES_BESIDE_FEEDS} that {counted(capacity, 'feed')} need",
        f"raise the limit before starting it: ulimit -n {2 * (capacity + FILES_BESIDE_FEEDS)}",
    )


def _limit_of(pid: int) -> int | None:
    """None where that cannot be told: another user's process, or not Linux."""
    try:
        soft, _ = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)
    except (psutil.Error, AttributeError, OSError):
        return None
    return _as_count(soft)


def _as_count(soft: int) -> int:
    return 2**31 if soft == resource.RLIM_INFINITY else soft
