"""Limits of this machine: a socket a feed needs a file descriptor a feed."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Sequence

from feedq.core.model import WorkerView
from feedq.verbs.diagnosis.checks import Check, not_checked, ok, warn
from feedq.verbs.wording import counted, some

FILES_BESIDE_FEEDS = 100
"""Descriptors of a worker that are no feed's: databases, broker, libraries, log."""


def check_open_files(workers: Sequence[WorkerView]) -> Iterator[Check]:
    """``ulimit -n`` of each worker on this machine, or of this shell for the largest when none runs here."""
    here = {
        view.worker.name: (_limit_of(view.worker.pid), view.worker.capacity + FILES_BESIDE_FEEDS)
        for view in workers
        if view.worker.host == socket.gethostname()
    }
    limits = [
        (f"{name} may open", limit, needed) for name, (limit, needed) in here.items() if limit is not None
    ]
    if hidden := [name for name, (limit, _) in here.items() if limit is None]:
        yield not_checked(
            "open files",
            f"the limit of {some(hidden)} cannot be read from here",
            "run feedq doctor as the user that the worker runs as",
        )
    found = f"at least {min((limit for _, limit, _ in limits), default=0)} for each worker on this machine"
    if not here:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        largest = max((view.worker.capacity for view in workers), default=0)
        limits = [
            ("a worker started from this shell may open", _as_count(soft), largest + FILES_BESIDE_FEEDS)
        ]
        found = f"ulimit -n is {_as_count(soft)} in this shell"
    short = [one for one in limits if one[1] < one[2]]
    for who, limit, needed in short:
        feeds = counted(needed - FILES_BESIDE_FEEDS, "feed")
        yield warn(
            "open files",
            f"{who} {limit} files, fewer than the {needed} that {feeds} need",
            f"raise the limit before starting it: ulimit -n {2 * needed}",
        )
    if limits and not short:
        yield ok("open files", found)


def _limit_of(pid: int) -> int | None:
    """Asks how many files a process may open; None where that cannot be told: another user's process, or not
    Linux."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (AttributeError, OSError):
        return None
    return _as_count(soft)


def _as_count(soft: int) -> int:
    return 2**31 if soft == resource.RLIM_INFINITY else soft
