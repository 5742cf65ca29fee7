"""The monitor of a worker: a small process beside it, for what the worker cannot do itself.

* A worker whose event loop stands still for ``FEEDQ_STALL_S`` is ended, also when somebody's code holds the
  interpreter lock, so that no thread of the worker could do it.
* A worker of which another thread is stuck (`feedq.worker.watch`) is ended too, and so is one whose watch is.
* A worker that is about to use up its memory is ended before the kernel does it, which would tell nobody why.
* When a worker has died, by whatever, the monitor says which feed's code was running. It reads this from the notes
  that the worker leaves in shared memory (`feedq.worker.activity`), and writes it to the control database.

::

    worker ── ticks, feed in hand, threads ──► shared file ──► monitor ── lost how, whose code ──► control database
       └────── stacks, on request and when it crashes (faulthandler) ── pipe ──┘    └── SIGKILL ──► worker

It decides nothing else: leases are freed in the usual way, and `feedq.core.lease` says what follows for the feed.
The verdict on a stall is in the database before the worker is ended, so that nobody places the feed as if
nothing had happened. It imports little until there is something to say, and ends with its worker.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from feedq.core.loss import Loss, ThreadStack, parse_stacks
from feedq.errors import FeedqError, Unavailable
from feedq.worker.activity import (
    CHECK_S,
    Activity,
    Limits,
    Scheduling,
    StallClock,
    processor_s,
    resident_bytes,
)
from feedq.worker.memory import loss_by_memory

if TYPE_CHECKING:
    from feedq.control.store.postgresql import PostgresStore

DUMP_SIGNAL: Final = signal.SIGVTALRM
"""Has the worker write the stacks of its threads: from a handler in C, which needs no interpreter lock."""
DUMP_S: Final = 1.0
"""How long its stacks are waited for."""
FATAL: Final = "Fatal Python error: "
STACK_BYTES_MAX: Final = 256 * 1024
PIPE_BYTES: Final = 2**20
"""A hundred threads, each with a deep stack, are to fit into the pipe."""
BURNING: Final = 0.5
"""The part of a processor: a thread that uses as much while nobody else gets the interpreter is the one that
holds it."""
WAITS_FOR_OTHERS: Final = (
    "futex",
    "poll",
    "read",
    "recv",
    "wait_data",
    "wait_woken",
    "accept",
    "connect",
    "write",
)
"""Parts of the names of kernel functions in which threads wait for locks and for data."""
MEMORY_WATCHED: Final = 0.6
MEMORY_SUSPECT: Final = 0.85
MEMORY_END: Final = 0.95
"""The part of the limit at which the worker is ended, because the kernel is about to. One that died with as
much as `MEMORY_SUSPECT` is taken to have died of it."""
REPORT_S: Final = 4.0
"""How long the control database is tried. What it has not heard by then, the next worker here reports."""
REPORT_FIRST_S: Final = 2.0
"""The same for one that the end of the worker waits for."""
RETRY_S: Final = 0.2
AFTER_FAILOVER_S: Final = 0.5
"""The pause between the end of a killed worker and its report: to import what that needs takes half a second of
a processor, just when the worker's feeds connect elsewhere."""
MINIMAL_INITS: Final = frozenset({"tini", "docker-init", "dumb-init", "catatonit"})
"""Inits that end, and all other processes with them, as soon as their only child does."""
FORWARDED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
UNLIMITED_BYTES: Final = 2**60
RESTART_S: Final = 5.0
"""The least time from one start of the monitor to the next, should it die by itself."""


class DumpPipe:
    """The pipe that faulthandler writes to for the worker."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._said = b""

    def hear(self) -> str:
        """Return the end of all that was written, as far as it is kept."""
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._descriptor, 65_536):
                self._said = (self._said + data)[-STACK_BYTES_MAX:]
        return self._said.decode(errors="replace")

    def clear(self) -> None:
        self.hear()
        self._said = b""


class Monitor:
    """Watches one process until that has ended."""

    def __init__(self, activity: Activity, *, pid: int, dump_pipe: DumpPipe, limits: Limits) -> None:
        self._activity, self._pid, self._dump_pipe, self._limits = activity, pid, dump_pipe, limits
        self._scheduling = Scheduling(pid)
        self._clock = StallClock()
        self._watch_clock, self._watch_scheduling = StallClock(), Scheduling(pid)
        self._memory = 0
        self._ticks = self._pulses = 0
        self._used: dict[int, tuple[float, float]] = {}
        """Processor times of threads, and when that was: as the loop last turned."""

    def check(self) -> Loss | None:
        """Check the worker once, and return why it has to be ended now, if so."""
        self._memory = resident_bytes(self._pid)
        if self._fills(MEMORY_END):
            return self._explain_memory()
        if self._fills(MEMORY_WATCHED):
            _import_what_a_report_needs()
        if self._limits.stall_s and self._activity.ticks:
            if stuck := self._activity.stuck or self._stuck_watch():
                return self._explain_stuck(*stuck)
            stalled_s = self._stalled_s()
            if stalled_s >= self._limits.stall_s:
                return self._explain_stall()
            if stalled_s >= self._limits.stall_s / 4:
                _import_what_a_report_needs()
        return None

    @property
    def pause_s(self) -> float:
        """The seconds until the next check: memory may go fast."""
        return CHECK_S / 5 if self._fills(MEMORY_WATCHED) else CHECK_S

    def _fills(self, part: float) -> bool:
        return bool(self._limits.memory_bytes) and self._memory >= part * self._limits.memory_bytes

    def explain_death(self) -> Loss | None:
        """Explain the death of a worker that has ended by itself or by somebody else; None when that was in
        order."""
        said = self._dump_pipe.hear()
        feed_id = self._activity.feed or None
        if FATAL in said:
            return self._explain_crash(said[said.rindex(FATAL) :])
        if self._activity.is_leaving:
            return None
        if self._fills(MEMORY_SUSPECT):
            return self._explain_memory()
        return Loss("killed", "by a signal, or by its own code without a message", feed_id)

    # -- what was it ---------------------------------------------------------------------------------

    def _explain_stall(self) -> Loss | None:
        stacks = self._ask_for_stacks()
        ident, feed_id = self._holder()
        stack = next((stack for stack in stacks if stack.ident == ident), None)
        stalled_s = self._stalled_s()
        if stalled_s < self._limits.stall_s:
            return None  # it turned while we asked
        where = f" at {stack.where}" if stack else ""
        said = f"its event loop stood still for {stalled_s:.1f} s{where}"
        return Loss("stalled", said, feed_id, True, stack.calls if stack else ())

    def _explain_stuck(self, ident: int, said: str) -> Loss | None:
        stack = next((stack for stack in self._ask_for_stacks() if stack.ident == ident), None)
        if not (self._activity.stuck or self._stuck_watch()):
            return None  # it turned while we asked
        where = f" at {stack.where}" if stack else ""
        return Loss("stuck", f"its {said}{where}", stack=stack.calls if stack else ())

    def _explain_crash(self, said: str) -> Loss:
        stacks = parse_stacks(said)
        current = next((stack for stack in stacks if stack.is_current), None)
        what = said.splitlines()[0]
        if current is None:
            return Loss("crashed", what, self._activity.feed or None)
        feed_id = self._feed_of(current.ident)
        return Loss("crashed", f"{what} at {current.where}", feed_id, feed_id is not None, current.calls)

    def _explain_memory(self) -> Loss:
        return loss_by_memory(self._activity, used=self._memory, limit=self._limits.memory_bytes)

    def _holder(self) -> tuple[int, int | None]:
        """Python's id of the thread that keeps the loop from turning, and whose code runs there."""
        activity = self._activity
        loop = (activity.loop_ident, activity.feed or None)
        if activity.pulses > self._pulses + 1:
            return loop  # others get the interpreter: it is the loop's own step that does not end
        if self._share(activity.loop_thread) >= BURNING:
            return loop
        threads = activity.threads
        holders = [t for t in threads if self._share(t.thread) >= BURNING]
        if not holders and not self._sleeps(activity.loop_thread):
            holders = [t for t in threads if self._sleeps(t.thread)]
        return (holders[0].ident, holders[0].feed_id) if len(holders) == 1 else loop

    def _sleeps(self, thread: int) -> bool:
        """Return whether a thread waits in the kernel for something that is neither data nor a lock."""
        with contextlib.suppress(OSError):
            waits_in = Path(f"/proc/{self._pid}/task/{thread}/wchan").read_text()
            return waits_in not in ("", "0") and not any(word in waits_in for word in WAITS_FOR_OTHERS)
        return False

    def _feed_of(self, ident: int) -> int | None:
        if ident == self._activity.loop_ident:
            return self._activity.feed or None
        return next((t.feed_id for t in self._activity.threads if t.ident == ident), None)

    # -- what is seen --------------------------------------------------------------------------------

    def _stalled_s(self) -> float:
        ticks = self._activity.ticks
        if ticks != self._ticks:
            self._ticks = ticks
            self._note_where_it_turned()
        return self._clock.observe(self._scheduling.sample(ticks))

    def _stuck_watch(self) -> tuple[int, str] | None:
        """The watch, if it has not turned for too long although the event loop does."""
        stalled_s = self._watch_clock.observe(self._watch_scheduling.sample(self._activity.pulses))
        is_stuck = stalled_s >= self._limits.stall_s and not self._clock.stalled_s
        return (0, f"thread feedq-watch has stood still for {stalled_s:.1f} s") if is_stuck else None

    def _note_where_it_turned(self) -> None:
        self._pulses = self._activity.pulses
        threads = [self._activity.loop_thread, *(t.thread for t in self._activity.threads)]
        now = monotonic()
        self._used = {thread: (now, processor_s(self._pid, thread)) for thread in threads}

    def _share(self, thread: int) -> float:
        """Return the share of a processor that was used since the loop last turned."""
        if thread not in self._used:
            return 0.0
        since, used = self._used[thread]
        return (processor_s(self._pid, thread) - used) / max(monotonic() - since, 0.001)

    def _ask_for_stacks(self) -> list[ThreadStack]:
        self._dump_pipe.clear()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, DUMP_SIGNAL)
        until = monotonic() + DUMP_S
        text = ""
        while monotonic() < until and f"0x{self._activity.loop_ident:016x}" not in text:
            select.select([], [], [], 0.02)
            text = self._dump_pipe.hear()
        select.select([], [], [], 0.02)  # the rest of it
        stacks = parse_stacks(self._dump_pipe.hear())
        self._dump_pipe.clear()
        return stacks


# -- the process -------------------------------------------------------------------------------------


class MonitorProcess:
    """The worker's side: its notes, and the monitor that reads them, started again should it end."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        """Raises `OSError` when there can be no notes."""
        self._limits = limits
        make_private(directory)
        self._path = Path(tempfile.mktemp(prefix="worker-", dir=directory))  # noqa: S306 -- made exclusively below
        self.activity = Activity.create(self._path)
        self._theirs, ours = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        faulthandler.enable(ours)
        faulthandler.register(DUMP_SIGNAL, ours)
        atexit.register(self.activity.leave)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")

    def keep(self) -> float:
        """See to it that the monitor runs. A duty of the watch."""
        is_there = self._process is not None and self._process.poll() is None
        if not (is_there or self.activity.is_leaving or monotonic() < self._started_at + RESTART_S):
            self._started_at = monotonic()
            self._start()
        return RESTART_S

    def _start(self) -> None:
        from feedq.telemetry.logs import LogEvent, log

        arguments = [self._path, self._theirs, self._limits.stall_s, self._limits.memory_bytes]
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- ourselves, no shell
                [sys.executable, "-m", __name__, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=[self._theirs],
            )
        except OSError as error:
            log(__name__).warning(LogEvent.MONITOR_OFF, error=str(error))
        else:
            log(__name__).info(LogEvent.MONITOR_STARTED)


def main() -> None:
    """``python -m feedq.worker.monitor FILE PIPE STALL_S MEMORY_BYTES``, started by the worker itself."""
    file, pipe, stall_s, memory_bytes = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # Sent to the whole group, as from a terminal; it ends with its worker and not before.
        signal.signal(number, signal.SIG_IGN)
    path, worker = Path(file), os.getppid()
    activity = Activity.read(path)
    if activity.pid != worker:
        return  # it died before it was checked
    ended = os.pidfd_open(worker) if hasattr(os, "pidfd_open") else None
    limits = Limits(float(stall_s), int(memory_bytes))
    monitor = Monitor(activity, pid=worker, dump_pipe=DumpPipe(int(pipe)), limits=limits)
    loss: Loss | None = None
    while loss is None and not _has_ended(ended, worker, within_s=monitor.pause_s):
        loss = monitor.check()
    is_over = loss is None
    if is_over:
        loss = monitor.explain_death()
        if loss is not None and loss.cause == "killed":
            sleep(AFTER_FAILOVER_S)
    if loss is not None:
        report = VerdictWriter(activity, loss)
        if not is_over:
            # First the verdict, then the end: whoever takes its feeds over must know. Memory does not wait.
            report.join(0.0 if loss.cause == "memory" else REPORT_FIRST_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        _log(activity, loss)
        report.join(REPORT_S)
        if not report.is_done:
            return  # the notes stay, for the next worker that starts here
    path.unlink(missing_ok=True)


def _has_ended(ended: int | None, worker: int, *, within_s: float) -> bool:
    """Wait for the time of the next check, or for the worker's end."""
    readable, _, _ = select.select([] if ended is None else [ended], [], [], within_s)
    return bool(readable) or os.getppid() != worker


def make_private(directory: Path) -> None:
    """Make a directory that is this user's alone, or see that it is. Raises `OSError`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{directory} is not a directory that only user {os.getuid()} may write to: remove it, or set "
            "FEEDQ_STATE_DIR"
        )


def default_state_dir() -> Path:
    """A directory of this user's, in memory where there is such a place."""
    shared = Path("/dev/shm")  # noqa: S108 -- the directory below it is this user's alone
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"feedq-{os.getuid()}"


def memory_limit() -> int:
    """Bytes that this process's cgroup may use; 0 when there is no limit."""
    limits = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                limits += [directory / "memory.max" for directory in _upwards("/sys/fs/cgroup", path)]
            elif "memory" in controllers.split(","):
                paths = _upwards("/sys/fs/cgroup/memory", path)
                limits += [directory / "memory.limit_in_bytes" for directory in paths]
    found = []
    for limit in limits:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(limit.read_text()))
    # The first version writes a number that no machine has where there is none.
    return min((bytes_ for bytes_ in found if bytes_ < UNLIMITED_BYTES), default=0)


def _upwards(root: str, path: str) -> list[Path]:
    """The directories of a cgroup and of those that it is in; in a container only the first may be there."""
    group = Path(root + path.rstrip("/"))
    return [
        Path(root),
        *(directory for directory in (group, *group.parents) if directory.is_relative_to(root)),
    ]


def report_losses(directory: Path, store: PostgresStore) -> None:
    """Report workers that died together with their monitors, from the notes that they left here."""
    for path in directory.glob("worker-*"):
        with contextlib.suppress(OSError, ValueError, FeedqError):
            if not Activity.is_of_the_dead(path):
                continue
            activity = Activity.read(path)
            if activity.session is not None and not activity.is_leaving:
                said = "killed, and its monitor could not report it"
                store.workers.report_loss(activity.session, Loss("killed", said, activity.feed or None))
            path.unlink()


def is_container_init() -> bool:
    """Return whether this is the first process of a container, or the only child of a minimal init that is."""
    if os.getpid() == 1:
        return True
    with contextlib.suppress(OSError):
        return os.getppid() == 1 and Path("/proc/1/comm").read_text().strip() in MINIMAL_INITS
    return False


def serve_as_init(worker: int) -> int:
    """Serve as the first process of a container beside its worker: pass signals on, reap whatever ends, and
    stay until the monitor has said what it knows. Returns the worker's exit status, as a shell would."""
    for number in FORWARDED:
        signal.signal(number, lambda number, _: _send(worker, number))
    pid, ended = os.wait()
    while pid != worker:
        pid, ended = os.wait()
    give_up_at = monotonic() + REPORT_S + REPORT_FIRST_S
    with contextlib.suppress(ChildProcessError):
        # What the worker left behind is ours by now: its monitor, for one.
        while monotonic() < give_up_at:
            left, _ = os.waitpid(-1, os.WNOHANG)
            if not left:
                sleep(RETRY_S / 4)
    status = os.waitstatus_to_exitcode(ended)
    return status if status >= 0 else 128 - status


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class VerdictWriter(Thread):
    """Writes the verdict into the control database, if that answers in time."""

    def __init__(self, activity: Activity, loss: Loss) -> None:
        super().__init__(name="feedq-report", daemon=True)
        self._session, self._loss = activity.session, loss
        self.is_done = activity.session is None
        self.start()

    def run(self) -> None:
        from feedq.control.store.postgresql import PostgresStore
        from feedq.settings import settings

        if self._session is None:
            return
        store = PostgresStore(settings().database_url.get_secret_value())
        give_up_at = monotonic() + REPORT_S
        while monotonic() < give_up_at:
            try:
                store.workers.report_loss(self._session, self._loss)
            except Unavailable:
                sleep(RETRY_S)
            else:
                self.is_done = True
                return


def _import_what_a_report_needs() -> None:
    """Import what a report needs, only when there may be something to report: a process for each worker had
    better be small."""
    import feedq.control.store.postgresql
    import feedq.settings
    import feedq.telemetry.logs  # noqa: F401


def _log(activity: Activity, loss: Loss) -> None:
    from feedq.settings import settings
    from feedq.telemetry.logs import LogEvent, configure_logging, log

    configure_logging(settings())
    log("feedq.worker.monitor").error(
        LogEvent.WORKER_LOST,
        worker_id=str(activity.session),
        pid=activity.pid,
        cause=loss.cause,
        why=loss.said,
        feed_id=loss.feed_id,
        certain=loss.is_certain,
        stack=loss.shown_stack(),
    )


if __name__ == "__main__":
    main()
