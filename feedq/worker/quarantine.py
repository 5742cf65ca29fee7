"""Feeds in quarantine: each in a process of its own, with its own sessions and a bound on its memory.

A feed that workers were lost to (`blame` in `feedq/control/sql/leases.sql`) is claimed like any other, and then
handed to a child process, which follows its lease (`feedq.worker.external_stream`). If it ends its process, no
other feed is hurt: the worker releases the lease, says why, and the feed is tried again later, and later each
time. If it behaves, passes let it back among the others.

::

    worker ── claim ──► child process: follow lease, fence, connect, write, release
      └── one thread a child: checks it as the worker's monitor checks the worker, ends it, releases after it
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from uuid import UUID

from feedq.core import lease
from feedq.core.model import Claim, FeedKey, Loss, Reason, Release
from feedq.core.worker import NO_SLOT_RETRY_S
from feedq.errors import FeedqError
from feedq.settings import Settings, settings
from feedq.telemetry.logs import LogEvent, configure_logging, log
from feedq.worker.activity import CHECK_S, Activity
from feedq.worker.monitor import (
    DUMP_SIGNAL,
    DumpPipe,
    Limits,
    Monitor,
    default_state_dir,
    make_private,
    memory_limit,
)
from feedq.worker.threads import end_with_parent

END_S = 10.0
QUARANTINE_BYTES = 2**30
"""What the process of a feed in quarantine may use: many times what a feed that behaves takes."""
PART_OF_LIMIT = 0.5
"""The part of the worker's memory limit that a child gets; in a container that is the memory of
both together."""

logger = log("feedq.worker.quarantine")  # __name__ is another in the child

OnEnded = Callable[[FeedKey, Release | None, str], None]
"""Hears the key that a feed was claimed under, what is to become of its lease if its process did not release
it, and why it ended. Called on a thread of that feed."""


class Quarantine:
    """The feeds in quarantine of one worker process. Thread-safe."""

    def __init__(self, settings: Settings, *, on_ended: OnEnded) -> None:
        self._settings, self._on_ended = settings, on_ended
        self._lock = Lock()
        self._children: dict[FeedKey, _Child] = {}

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, key: FeedKey) -> bool:
        return key in self._children

    def start(self, claim: Claim, worker_id: UUID) -> None:
        """Run a claim that was granted. Returns at once. Raises `RuntimeError` when there can be no thread."""
        child = _Child(claim, worker_id, self._settings)
        name = f"feedq-quarantine-{claim.feed.id}"
        thread = Thread(target=self._watch_child, args=(child,), name=name, daemon=True)
        with self._lock:
            thread.start()
            self._children[claim.key] = child

    def cancel(self, key: FeedKey) -> None:
        """End the process of one feed, which is released: it begins again elsewhere, or here."""
        with self._lock:
            child = self._children.get(key)
        if child is not None:
            child.cancel()

    def kill_all(self) -> None:
        """End them without releasing anything: the worker session that they belong to is over."""
        with self._lock:
            children = list(self._children.values())
        for child in children:
            child.kill()

    def _watch_child(self, child: _Child) -> None:
        release: Release | None = None
        try:
            loss = child.run()
            if loss is not None:
                logger.error(
                    LogEvent.QUARANTINED_LOST, feed=child.feed, why=loss.said, stack=loss.shown_stack()
                )
                release = child.release_after(loss)
            elif child.is_cancelled:
                release = Release(*child.key, Reason.RELEASED)
        except Exception as error:
            logger.exception(LogEvent.UNEXPECTED, where="quarantine", feed=child.feed)
            why = f"cannot run apart: {error}"
            release = Release(*child.key, Reason.QUARANTINED, NO_SLOT_RETRY_S, error=why)
        finally:
            self._on_ended(child.key, release, release.reason.value if release else "ended")
            with self._lock:
                self._children.pop(child.key, None)


class _Child:
    """A process that runs one claim."""

    def __init__(self, claim: Claim, worker_id: UUID, settings: Settings) -> None:
        self.key, self.feed = claim.key, claim.feed.name
        self._blamed = claim.blamed
        self._worker_id, self._settings = worker_id, settings
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self.is_cancelled = False

    def run(self) -> Loss | None:
        """Run the process until it has ended, and return how it was lost, if it was. Blocks. Raises `OSError`
        when it cannot be started."""
        directory = Path(self._settings.state_dir) if self._settings.state_dir else default_state_dir()
        make_private(directory)
        path = Path(tempfile.mktemp(prefix="feed-", dir=directory))  # noqa: S306 -- the child makes it exclusively
        theirs, ours = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- ourselves, no shell
                [sys.executable, "-m", __name__, *map(str, (*self.key, self._worker_id, path, ours))],
                stdin=subprocess.DEVNULL,
                pass_fds=[ours],
            )
            if self._is_killed:
                self.kill()
            return self._watch(self._process, path, DumpPipe(theirs))
        finally:
            os.close(theirs)
            os.close(ours)
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        self._is_killed = True
        if self._process is not None:
            self._process.kill()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.kill()

    def release_after(self, loss: Loss) -> Release:
        retry_s = lease.quarantine_retry_s(self._blamed)
        return Release(*self.key, Reason.QUARANTINED, retry_s, error=loss.said, blame=loss)

    def _watch(self, process: subprocess.Popen[bytes], path: Path, dump_pipe: DumpPipe) -> Loss | None:
        limits = Limits(self._settings.stall_s, memory_of_child(self._settings))
        monitor: Monitor | None = None
        loss: Loss | None = None
        while loss is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(CHECK_S if monitor is None else monitor.pause_s)
                if status == 0 or self._is_killed:
                    return None
                loss = monitor.explain_death() if monitor is not None else None
                if loss is None or loss.cause == "killed":
                    loss = Loss("killed", _describe(status))
                break
            if monitor is None:
                with contextlib.suppress(OSError, ValueError):
                    monitor = Monitor(
                        Activity.read(path), pid=process.pid, dump_pipe=dump_pipe, limits=limits
                    )
            else:
                loss = monitor.check()
        process.kill()
        process.wait(END_S)
        assert loss is not None
        said = f"in quarantine: {loss.said}"
        return replace(loss, said=said, feed_id=self.key[0], is_certain=True)


def memory_of_child(s: Settings) -> int:
    """Bytes that the process of a feed in quarantine may use: never so many that its worker would suffer."""
    limit = s.memory_limit or memory_limit()
    return min(QUARANTINE_BYTES, int(PART_OF_LIMIT * limit)) if limit else QUARANTINE_BYTES


def _describe(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


# -- the child ---------------------------------------------------------------------------------------


def main() -> int:
    """``python -m feedq.worker.quarantine FEED_ID EPOCH WORKER_ID FILE PIPE``, started by a worker."""
    from feedq.control.store.postgresql import PostgresStore
    from feedq.worker.external_stream import run_claimed

    feed_id, epoch, worker_id, file, pipe = sys.argv[1:]
    end_with_parent(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # For the worker: what follows for the feed is in its lease.
        signal.signal(number, signal.SIG_IGN)
    activity = Activity.create(Path(file))
    faulthandler.enable(int(pipe))
    faulthandler.register(DUMP_SIGNAL, int(pipe))
    s = settings()
    configure_logging(s)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_of_child(s),) * 2)
    store = PostgresStore(s.database_url.get_secret_value())
    try:
        run_claimed((int(feed_id), int(epoch)), UUID(worker_id), store, s, activity)
    except FeedqError as error:
        logger.error(LogEvent.UNEXPECTED, where="quarantine", error=str(error))
        return 1
    finally:
        activity.leave()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of a blocking connector, or of a database that does not answer, must not keep it alive.
    os._exit(status)
