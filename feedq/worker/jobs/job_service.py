"""The job service of a worker process: ticker, hints and job slots, put together.

It lives beside the supervisor, under the same worker session: the lease keeper's heartbeat renews what runs here
as it renews the leases of feeds, and tells when that session is gone. On `feedq.pool.StreamPool` jobs run in slots
of their own; on Celery's own pools each runs in a slot of Celery, when a message says so
(`feedq.worker.jobs.external_jobs`).

**Leaving.** From the signal on nothing more is claimed; what runs may end, for ``FEEDQ_JOB_DRAIN_S``, while the
heartbeat goes on and feeds are drained beside. What has not ended by then is told to stop and ends with the
worker session, as its semantics say: lost, or run again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from time import monotonic
from uuid import UUID

from feedq.errors import Unavailable
from feedq.model import Worker
from feedq.schedule.model import Hint
from feedq.settings import Settings
from feedq.store.jobs.runs import RunStore
from feedq.telemetry import LogEvent, log
from feedq.telemetry_metrics import HINTS_SENT
from feedq.worker.jobs.calling import Call
from feedq.worker.jobs.share import STALE_S, Note, Publish, Reminder
from feedq.worker.jobs.slots import Slots
from feedq.worker.jobs.ticker import Ticker
from feedq.worker.outbox import Outbox

POLL_S = 0.1
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
        worker: Callable[[], Worker | None],
        is_trusted: Callable[[], bool],
        call: Call | None,
        count: int,
        publish: Publish,
    ) -> None:
        """``count`` slots; ``call`` runs a job in one of them, and is None where Celery's pool has them."""
        self._runs = runs
        self._worker, self._is_trusted = worker, is_trusted
        self._drain_s = settings.job_drain_s
        self._notes: Outbox[Note] = Outbox(
            "feedq-hints",
            lambda notes: HINTS_SENT.inc(publish(notes)),
            stale_s=STALE_S,
            event=LogEvent.HINTS_FAILED,
        )
        steal_after_s = settings.steal_after_s
        self.slots: Slots | None = None
        reminder: Reminder | None = None
        if call is not None:
            self.slots = Slots(
                runs,
                call,
                count=count,
                identity=self._identity,
                share=lambda: self._ticker.share,
                steal_after_s=steal_after_s,
            )
        elif count > 0:
            reminder = Reminder(runs, limit=count, steal_after_s=steal_after_s, tell=self._tell_queue)
        self._ticker = Ticker(
            runs,
            identity=self._identity,
            notes=self._notes,
            tell_us=self._tell_slots if reminder is None else reminder.mention,
            retention_days=settings.run_retention_days,
            reminder=reminder,
            is_known=lambda run_id: self.slots is not None and self.slots.knows(run_id),
        )
        self._drain_ends_at: float | None = None
        self._is_forced = False

    def start(self) -> None:
        if self.slots is not None:
            self.slots.start()
        self._ticker.start()

    # -- what others say -----------------------------------------------------------------------------

    def hint(self, run_id: int) -> None:
        """A ``run_job`` message came in."""
        if self.slots is not None:
            self.slots.hint([run_id])

    def notified(self) -> None:
        """The lease keeper's listener was notified."""
        self._ticker.wake()
        if self.slots is not None:
            self.slots.notified()

    def gone(self) -> None:
        """The worker session was declared gone."""
        worker = self._worker()
        if self.slots is not None and worker is not None:
            self.slots.gone(worker.id)

    # -- leaving -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Claim nothing more. Returns at once; safe in a signal handler, and when called again."""
        if self._drain_ends_at is None:
            self._drain_ends_at = monotonic() + self._drain_s
            if self.slots is not None:
                self.slots.drain()

    def force_stop(self) -> None:
        """Wait for no job any longer. Safe in a signal handler."""
        self._is_forced = True
        self.drain()

    @property
    def is_busy(self) -> bool:
        """Whether the process should stay for the sake of what runs here."""
        return not self._is_over() and self.slots is not None and not self.slots.is_idle

    def join(self) -> None:
        """Wait until the jobs that run have ended, as long as they may; then have every thread end."""
        self.drain()
        if self.slots is not None:
            self._await_slots(self.slots)
        else:
            self._await_celery()
        # Nobody waits for these: they may be asking a server that does not answer, and end with the process.
        self._notes.close(timeout_s=0.0)
        self._ticker.stop(timeout_s=0.0)
        if self.slots is not None:
            self.slots.close(timeout_s=0.0)

    def _is_over(self) -> bool:
        return self._is_forced or (self._drain_ends_at is not None and monotonic() >= self._drain_ends_at)

    def _await_slots(self, slots: Slots) -> None:
        if slots.running and not self._is_over():
            logger.info(LogEvent.JOBS_DRAINING, runs=slots.running, at_most_s=self._drain_s)
        while slots.running and not self._is_over():
            slots.wait_idle(POLL_S)
        if left := slots.running:
            logger.warning(LogEvent.JOBS_LEFT, runs=left)
            slots.cancel_all("its worker is leaving")
        began = monotonic()
        while not self._is_forced and monotonic() - began < (GIVE_BACK_S if slots.is_idle else TELL_S):
            if slots.is_idle and not slots.has_unanswered_claim:
                break
            Event().wait(POLL_S / 10)

    def _await_celery(self) -> None:
        """Celery waits for its tasks only after us; to leave before would cut them off."""
        worker = self._worker()
        try:
            while worker is not None and not self._is_over() and self._runs.held(worker.id):
                Event().wait(POLL_S)
        except Unavailable:
            return

    # -- for the parts -------------------------------------------------------------------------------

    def _identity(self) -> UUID | None:
        worker = self._worker()
        return worker.id if worker is not None and self._is_trusted() else None

    def _tell_slots(self, hints: Sequence[Hint]) -> None:
        if self.slots is not None:
            self.slots.hint([hint.run_id for hint in hints])

    def _tell_queue(self, hints: Sequence[Hint]) -> None:
        worker = self._worker()
        if worker is not None and self._drain_ends_at is None:
            self._notes.put([Note(worker.queue, hint.run_id, hint.attempt) for hint in hints])
