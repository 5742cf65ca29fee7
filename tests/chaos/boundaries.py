"""Makes a worker end, or freeze, at a commit of its own choosing. Imported in the worker, by ``FEEDQ_IMPORTS``.

``FEEDQ_TEST_DOOM=<boundary>:<side>:<action>:<count>`` names the moment: the count-th time that a transaction of
this kind has something to commit, before or after its commit. The worker says so in its log and sends itself
SIGKILL (``kill``) or SIGSTOP (``stop``).

``FEEDQ_TEST_LOST=<seed>`` loses some of the notifications by which others tell this worker of runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from threading import Lock, get_ident, local
from typing import Any

import sqlalchemy

from feedq.control.store.database import Connection, Database
from feedq.control.store.jobs import firing, runs, sessions
from feedq.control.store.protocol import call
from feedq.control.store.worker_session import Listener, NotifyReason
from feedq.core.schedule.model import ClaimedRun

BOUNDARIES = ("fire_due", "claim", "finish", "transact", "expire")
WRITTEN_BY = {
    "fire": "fire_due",
    "claim_runs": "claim",
    "finish": "finish",
    "succeed": "finish",
    "expire_runs": "expire",
}
"""The boundary at which a function of the protocol writes."""
SAID = "doomed: "
LOST = 0.5

_here = local()
_lock = Lock()


class Doom:
    """When this process is to end."""

    def __init__(self, text: str) -> None:
        self.boundary, self.side, self.action, count = text.split(":")
        self._left = int(count)

    def strike(self, boundary: str, side: str) -> None:
        if (boundary, side) != (self.boundary, self.side):
            return
        with _lock:
            self._left -= 1
            if self._left != 0:
                return
        os.write(2, f"{SAID}{boundary} {side} {self.action}\n".encode())
        # To this very thread: a stop of the process may reach another one first, and this one gets as far as its
        # next commit meanwhile.
        signal.pthread_kill(get_ident(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


def install(doom: Doom) -> None:
    """Have the store's own transactions pass by the doom."""
    _watch_calls()
    transaction, commit = Database.transaction, sessions.JobSessions._commit

    @contextmanager
    def watched(self: Database) -> Iterator[Any]:
        _here.pending = None
        with transaction(self) as c:
            yield c
            pending, _here.pending = _here.pending, None
            if pending is not None:
                doom.strike(pending, "before")
        if pending is not None:
            doom.strike(pending, "after")

    def watched_commit(self: sessions.JobSessions, for_job: sqlalchemy.Connection, run: ClaimedRun) -> None:
        doom.strike("transact", "before")
        commit(self, for_job, run)
        doom.strike("transact", "after")

    # What is one statement is one transaction, too.
    Database.transaction = Database.statement = watched
    sessions.JobSessions._commit = watched_commit


def _watch_calls() -> None:
    def watched(c: Connection, function: str, kind: type[Any], /, **given: object) -> Any:
        answer = call(c, function, kind, **given)
        wrote = {"claim_runs": "runs", "finish": "ended"}.get(function)
        if function in WRITTEN_BY and (answer if wrote is None else getattr(answer, wrote)):
            _here.pending = WRITTEN_BY[function]
        return answer

    for module in (runs, firing):
        vars(module)["call"] = watched


def lose_notifications(rng: Random) -> None:
    """Do not hear some of them."""
    wait = Listener.wait

    def waited(self: Listener, *args: Any, **kwargs: Any) -> bool:
        wait(self, *args, **kwargs)
        if rng.random() < LOST:
            self.heard = {reason for reason in self.heard if reason != NotifyReason.RUNS}
        return bool(self.heard)

    listener: Any = Listener
    listener.wait = waited


if chosen := os.environ.get("FEEDQ_TEST_DOOM"):
    install(Doom(chosen))
if seed := os.environ.get("FEEDQ_TEST_LOST"):
    lose_notifications(Random(seed))
