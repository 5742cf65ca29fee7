"""Feeds that run apart: each in a child process, which is a worker of this one feed.

A feed that workers were lost to (`blame` in `feedq/control/sql/leases.sql`), or that is declared with ``process:
own``, is claimed like any other. Then its worker begins a process for it, which takes the lease over (`hand_over`
in `feedq/control/sql/workers.sql`). From there on it is an ordinary worker, with a session, heartbeats and a
trust window of its own, but without a queue and without a place for another feed. Once its feed has ended, it
leaves.

::

    worker ── claim ──► child: hand_over ──► claim, fence, connect, write, release ──► leave
      └── one thread a child: checks it as the worker's monitor checks the worker, ends it, says how it was lost

Only a child that has taken its lease over can be lost to its feed: before that, none of the feed's code has run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from uuid import UUID, uuid4

from feedq import __version__
from feedq.control.store.postgresql import PostgresStore
from feedq.core.loss import Loss
from feedq.core.model import Claim, FeedKey, NewWorker, Reason, Release, Worker
from feedq.core.worker import NO_SLOT_RETRY_S
from feedq.errors import FeedqError, LeaseLost
from feedq.settings import Settings, settings
from feedq.telemetry.logs import LogEvent, configure_logging, log
from feedq.telemetry.watched_threads import watch_threads
from feedq.worker.activity import CHECK_S, Activity, Limits
from feedq.worker.monitor import (
    DUMP_SIGNAL,
    DumpPipe,
    Monitor,
    default_state_dir,
    make_private,
    memory_limit,
)
from feedq.worker.threads import end_with_parent

END_S = 10.0
CHILD_BYTES = 2**30
"""What a child may use: many times what a feed that behaves takes."""
PART_OF_LIMIT = 0.5
"""The part of the worker's memory limit that a child gets; in a container that is the memory of
both together."""
RELEASE_SIGNAL = signal.SIGUSR1
"""Has a child release its feed, and leave. SIGTERM is for one whose worker leaves as well: then the feed may be
kept for the process that takes the worker's place."""

logger = log("feedq.worker.apart")  # __name__ is another in the child

OnEnded = Callable[[FeedKey, Release | None], None]
"""Hears the key that a feed was claimed under, and what is to become of its lease if its process never took it
over. Called on a thread of that feed."""
OnLost = Callable[[UUID, Loss], None]
"""Hears which worker session was lost, and how. Called on the same thread, before that."""


class Apart:
    """The children of one worker process. Thread-safe."""

    def __init__(self, settings: Settings, *, on_ended: OnEnded, on_lost: OnLost) -> None:
        self._settings, self._on_ended, self._on_lost = settings, on_ended, on_lost
        self._lock = Lock()
        self._children: dict[FeedKey, _Child] = {}

    def __len__(self) -> int:
        return len(self._children)

    @property
    def quarantined(self) -> int:
        """How many of the feeds are in quarantine."""
        return sum(child.is_quarantined for child in self._all())

    def start(self, claim: Claim, worker_id: UUID) -> None:
        """Run a claim that was granted. Returns at once. Raises `RuntimeError` when there can be no thread."""
        child = _Child(claim, worker_id, self._settings)
        thread = Thread(target=self._watch, args=(child,), name=f"feedq-apart-{claim.feed.id}", daemon=True)
        with self._lock:
            thread.start()
            self._children[claim.key] = child

    def release(self, feed_id: int) -> None:
        """Have a feed released, if it runs apart: it begins again elsewhere, or here."""
        for child in self._all():
            if child.key[0] == feed_id:
                child.signal(RELEASE_SIGNAL)

    def drain(self) -> None:
        """Have all feeds released, because the worker leaves."""
        for child in self._all():
            child.signal(signal.SIGTERM)

    def kill_all(self) -> None:
        """End them without releasing anything."""
        for child in self._all():
            child.signal(signal.SIGKILL)

    def _all(self) -> list[_Child]:
        with self._lock:
            return list(self._children.values())

    def _watch(self, child: _Child) -> None:
        release: Release | None = None
        try:
            session, loss = child.run()
            if session is None:
                release = child.release_unstarted(loss)
            elif loss is not None:
                logger.error(
                    LogEvent.QUARANTINED_LOST, feed=child.feed, why=loss.said, stack=loss.shown_stack()
                )
                self._on_lost(session, loss)
        except Exception as error:
            logger.exception(LogEvent.UNEXPECTED, where="apart", feed=child.feed)
            release = child.release_unstarted(Loss("killed", str(error)))
        finally:
            self._on_ended(child.key, release)
            with self._lock:
                self._children.pop(child.key, None)


class _Child:
    """A process that runs one claim."""

    def __init__(self, claim: Claim, worker_id: UUID, settings: Settings) -> None:
        self.key, self.feed, self.is_quarantined = claim.key, claim.feed.name, claim.quarantined
        self.told: signal.Signals | None = None
        """What it was told to do."""
        self._worker_id, self._settings = worker_id, settings
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[UUID | None, Loss | None]:
        """Run the process until it has ended. Blocks. Raises `OSError` when it cannot be started.

        Returns its worker session, if it has taken the lease over, and how it was lost, if it was.
        """
        directory = Path(self._settings.state_dir) if self._settings.state_dir else default_state_dir()
        make_private(directory)
        theirs, ours = os.pipe()
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                notes = file.fileno()
                activity = Activity.shared(notes)
                self._process = subprocess.Popen(  # noqa: S603 -- ourselves, no shell
                    [sys.executable, "-m", __name__, *map(str, (*self.key, self._worker_id, notes, ours))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[notes, ours],
                )
            if self.told is not None:
                self.signal(self.told)
            limits = Limits(self._settings.stall_s, memory_of_child(self._settings))
            pid, dump_pipe = self._process.pid, DumpPipe(theirs)
            loss = self._watch(self._process, Monitor(activity, pid=pid, dump_pipe=dump_pipe, limits=limits))
            return activity.session, loss
        finally:
            os.close(theirs)
            os.close(ours)

    def signal(self, number: signal.Signals) -> None:
        self.told = number
        if self._process is not None:
            self._process.send_signal(number)

    def release_unstarted(self, loss: Loss | None) -> Release:
        """Return what becomes of a lease that the process has not taken over. Nobody is to blame."""
        if loss is None:
            return Release(*self.key, Reason.RELEASED)
        why = f"cannot run apart: {loss.said}"
        return Release(*self.key, Reason.QUARANTINED, NO_SLOT_RETRY_S, error=why)

    def _watch(self, process: subprocess.Popen[bytes], monitor: Monitor) -> Loss | None:
        loss: Loss | None = None
        while loss is None:
            try:
                status = process.wait(monitor.pause_s)
            except subprocess.TimeoutExpired:
                loss = monitor.check()
                continue
            if status == 0 or self.told is not None:
                return None
            loss = monitor.explain_death()
            if loss is None or loss.cause == "killed":
                loss = Loss("killed", _describe(status))
        process.kill()
        process.wait(END_S)
        if loss.cause == "stuck":
            return loss  # a thread of ours, and no fault of the feed's
        return replace(loss, feed_id=self.key[0], is_certain=True)


def memory_of_child(s: Settings) -> int:
    """Bytes that a child may use: never so many that its worker would suffer."""
    limit = s.memory_limit or memory_limit()
    return min(CHILD_BYTES, int(PART_OF_LIMIT * limit)) if limit else CHILD_BYTES


def _describe(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


# -- the child ---------------------------------------------------------------------------------------


def main() -> int:
    """``python -m feedq.worker.apart FEED_ID EPOCH WORKER_ID NOTES PIPE``, started by a worker."""
    feed_id, epoch, worker_id, notes, pipe = sys.argv[1:]
    end_with_parent(parent := os.getppid())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # for the worker: it says what follows
    activity = Activity.shared(int(notes))
    faulthandler.enable(int(pipe))
    faulthandler.register(DUMP_SIGNAL, int(pipe))
    s = settings()
    configure_logging(s)
    watch_threads()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_of_child(s),) * 2)
    store = PostgresStore(s.database_url.get_secret_value(), restart_hold_s=s.restart_hold_s)
    try:
        run_feed((int(feed_id), int(epoch)), UUID(worker_id), store, s, activity, parent=parent)
    except LeaseLost:
        pass  # somebody paused it, or its worker was declared gone
    except FeedqError as error:
        logger.error(LogEvent.UNEXPECTED, where="apart", error=str(error))
        return 1
    finally:
        activity.leave()
    return 0


def run_feed(
    key: FeedKey, owner: UUID, store: PostgresStore, s: Settings, activity: Activity, *, parent: int
) -> None:
    """Take the lease of a feed over from the worker that has claimed it, run it until it has ended, and leave.

    Blocks. Raises `LeaseLost` and `Unavailable`, when the lease could not be taken over.
    """
    from feedq.worker.supervisor import Supervisor
    from feedq.worker.watch import Watch

    supervisor = Supervisor(
        store,
        s,
        partial(_take_over, store, key, owner, s),
        reconcile=lambda: None,  # its worker sees to that
        watch=Watch(activity, Limits(s.stall_s, 0)),
        is_apart=True,
    )
    released, ended = Event(), _Ended()
    signal.signal(RELEASE_SIGNAL, lambda *_: released.set())
    signal.signal(signal.SIGTERM, lambda *_: supervisor.drain())
    supervisor.start()
    # As if the message of the assignment had come.
    supervisor.offer(key, ended)
    while not ended.wait(CHECK_S):
        if released.is_set():
            supervisor.cancel(key[0])
        if os.getppid() != parent:
            supervisor.drain()
    supervisor.join()


class _Ended(Event):
    """Set once the feed has ended, which the supervisor tells as it would the pool."""

    def accepted(self) -> None: ...

    def finished(self, why: str) -> None:
        self.set()


def _take_over(store: PostgresStore, key: FeedKey, owner: UUID, s: Settings) -> Worker:
    """Raises `LeaseLost`, `Unavailable`."""
    new = NewWorker(uuid4(), "", "", 0, socket.gethostname(), os.getpid(), __version__)
    return store.workers.hand_over(new, owner=owner, key=key, ttl_s=s.ttl_s)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of a blocking connector, or of a database that does not answer, must not keep it alive.
    os._exit(status)
