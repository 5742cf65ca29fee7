"""The job service of a worker process: one thread that fires what is due, and claims and ends runs.

Each thing that it does in turn is a `Duty`: those of the ticker, and the turns of the job slots. The jobs
themselves run on threads of the worker's pool, and wake this one when they end.

It lives beside the supervisor, under the same worker session: the lease keeper's heartbeat renews what runs here
as it renews the leases of feeds, and tells when that session is gone.

**Leaving.** From the signal on nothing more is claimed; what runs may end, for ``FEEDQ_JOB_DRAIN_S``, while the
heartbeat goes on and feeds are drained beside. What has not ended by then is told to stop and ends with the
worker session, as its semantics say: lost, or run again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Event
from time import monotonic
from uuid import UUID

from feedq.control.store.jobs.runs import RunStore
from feedq.control.store.worker_session import NotifyReason
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, note_turn
from feedq.worker.duty import Duty
from feedq.worker.jobs.calling import Call
from feedq.worker.jobs.slots import Slots
from feedq.worker.jobs.ticker import Ticker
from feedq.worker.thread_pool import ThreadPool

POLL_S = 0.02
"""How often a worker that leaves looks whether its jobs have ended."""
GIVE_BACK_S = 0.5
"""How long it tries to give back what it may have claimed and never heard of."""
TELL_S = 5.0
"""How long a worker that leaves tries to tell of its last ends, once nothing runs any more."""

logger = log(__name__)


class Jobs:
    """Jobs of one worker process."""

    def __init__(
        self,
        runs: RunStore,
        settings: Settings,
        *,
        session: Callable[[], UUID | None],
        is_trusted: Callable[[], bool],
        call: Call,
        count: int,
        threads: ThreadPool,
    ) -> None:
        """``count`` slots; ``call`` runs a job in one of them, on one of ``threads``. For ``session`` and
        ``is_trusted`` see `Slots`."""
        self._drain_s = settings.job_drain_s
        self.slots = Slots(
            runs,
            call,
            count=count,
            session=session,
            is_trusted=is_trusted,
            peers=lambda: self._ticker.peers,
            threads=threads,
            on_change=self._wake_slots,
        )
        self._ticker = Ticker(runs, tell_us=self.slots.wake, retention_days=settings.run_retention_days)
        self._slots_turn = Duty("jobs", self.slots.turn)
        # What was fired is claimed before anything else is done.
        first, firing, *others = self._ticker.duties
        self._duties = (first, firing, self._slots_turn, *others)
        self._woken = Event()
        self._drain_ends_at: float | None = None
        self._is_forced = self._is_closed = False
        self._thread = WatchedThread(self._serve, name="feedq-jobs")

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_closed:
            self._woken.wait(min(TURN_S, *(duty.pause_s() for duty in self._duties)))
            self._woken.clear()
            for duty in self._duties:
                note_turn()
                duty.attend()

    def _wake_slots(self) -> None:
        self._slots_turn.wake()
        self._woken.set()

    # -- what the supervisor says --------------------------------------------------------------------

    def notified(self, reasons: Collection[str]) -> None:
        if NotifyReason.JOBS.is_among(reasons):
            self._ticker.firing.wake()
            self.slots.notified()
        elif NotifyReason.RUNS.is_among(reasons):
            self.slots.wake()

    # -- leaving -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Claim nothing more. Returns at once; safe in a signal handler, and when called again."""
        if self._drain_ends_at is None:
            self._drain_ends_at = monotonic() + self._drain_s
            self.slots.drain()

    def force_stop(self) -> None:
        """Wait for no job any longer. Safe in a signal handler."""
        self._is_forced = True
        self.drain()

    @property
    def is_busy(self) -> bool:
        """Whether the process should stay for the sake of what runs here."""
        return not self._is_over() and not self.slots.is_idle

    def join(self) -> None:
        """Wait until the jobs that run have ended, as long as they may; then have the thread end."""
        self.drain()
        self._await_slots()
        # Nobody waits for it: it may be asking a server that does not answer, and ends with the process.
        self._is_closed = True
        self._woken.set()

    def _is_over(self) -> bool:
        return self._is_forced or (self._drain_ends_at is not None and monotonic() >= self._drain_ends_at)

    def _await_slots(self) -> None:
        slots = self.slots
        if slots.running and not self._is_over():
            logger.info(LogEvent.JOBS_DRAINING, runs=slots.running, at_most_s=self._drain_s)
        while slots.running and not self._is_over():
            Event().wait(POLL_S)
        if left := slots.running:
            logger.warning(LogEvent.JOBS_LEFT, runs=left)
            slots.cancel_all("its worker is leaving")
        began = monotonic()
        while not self._is_forced and monotonic() - began < (GIVE_BACK_S if slots.is_idle else TELL_S):
            if slots.is_idle and not slots.has_unanswered_claim:
                break
            Event().wait(POLL_S)
