"""The job slots of a worker: claims runs as long as there is room, and runs each in a thread.

A turn ends what is past its time-out, tells how attempts have ended (all that gathered, in one call), asks which
were taken away, and claims as many runs as there are free slots. It is due after a notification, when a slot
becomes free, and by the time; `feedq.worker.jobs.job_service` takes the turns.

* **Killed or frozen at any point**: the rows say what runs here. They are freed when the worker is declared
  gone, and what this process says afterwards matches no fence.
* **The answer to a claim is lost**: before the next claim the database is asked what it thinks runs here. What
  has a fence above all that were heard of was claimed and never begun: it is given back.
* **The database is away**: ends wait and are told again, before anything is claimed; nobody else may end what runs
  here meanwhile, even if its time is up.
* **Declared gone, and alive**: the process registers anew, and what runs here goes on under the new session, if
  nobody has taken it away by then. Otherwise its job is told, and of its end nobody hears.
* **A job does not heed its end** (timed out, cancelled, taken away): its run has ended all the same, and its
  thread is *stuck*. A stuck thread takes no slot, until there are as many of them as slots: then nothing more
  is claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from threading import RLock
from time import monotonic
from uuid import UUID

from feedq.control.store.jobs.runs import RunStore
from feedq.core.schedule.model import ClaimedRun, Finish, Finished, Offer, RunState
from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import JOB_SLOTS, RUN_WAIT_SECONDS, RUNS_ENDED
from feedq.worker.jobs.calling import Call, perform, timed_out
from feedq.worker.jobs.context import TIMED_OUT, RunContext
from feedq.worker.jobs.ticker import Peers
from feedq.worker.thread_pool import ThreadPool

CHECK_S = 2.0
"""How often it is asked which runs were taken away, beside being notified of it."""
CLAIM_PAUSE_S = 0.01
"""The pause between two claims that nobody asked for: what may start in a moment cannot become a loop without a
pause."""

logger = log(__name__)


@dataclass(eq=False, slots=True)
class Attempt:
    """An attempt at a claimed run."""

    session_id: UUID
    run: ClaimedRun
    context: RunContext
    is_decided: bool = False
    """Whether its end was decided from outside; what its code does from now on is not heard."""
    finish: Finish | None = None
    """The end of the attempt, once it is known."""


class Slots:
    """Thread-safe, but for `turn`."""

    def __init__(
        self,
        runs: RunStore,
        call: Call,
        *,
        count: int,
        session: Callable[[], UUID | None],
        is_trusted: Callable[[], bool],
        peers: Callable[[], Peers],
        threads: ThreadPool,
        on_change: Callable[[], None],
    ) -> None:
        """``session`` is the worker session, None while there is none, and nothing is claimed under it unless it
        ``is_trusted``. ``threads`` run the jobs. ``on_change`` is called, on any thread, when a `turn` is due at
        once."""
        self._runs, self._call, self._count = runs, call, count
        self._session, self._is_trusted = session, is_trusted
        self._peers, self._rng = peers, Random()
        self._threads, self._on_change = threads, on_change
        self._lock = RLock()
        self._attempts: set[Attempt] = set()
        """The attempts whose threads run, the stuck ones included."""
        self._ended: list[Attempt] = []
        """The attempts of whose end the database has not been told. One that was timed out may be in both."""
        self._claim_at = self._check_at = float("-inf")
        self._is_draining = self._said_stuck = False
        self._last_fence = 0
        """The highest that was heard of."""
        self._unanswered_claim: UUID | None = None
        """The session for which a claim was asked and its answer not heard."""
        for state in RunState:
            RUNS_ENDED.labels(state.value)  # at 0: Prometheus sees a first one as a rise

    # -- what others say -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Note that there may be runs to claim, or a new session under which to go on."""
        with self._lock:
            self._claim_at = float("-inf")
            self._on_change()

    def notified(self) -> None:
        """Note that something has changed: a run was taken away, or triggered."""
        with self._lock:
            self._check_at = float("-inf")
            self.wake()

    def drain(self) -> None:
        """Claim nothing more. Safe in a signal handler: it takes no lock, and wakes nobody."""
        self._is_draining = True

    def cancel_all(self, why: str) -> None:
        """Tell every job to stop, and hear of none of them again."""
        with self._lock:
            for attempt in self._attempts:
                self._decide(attempt, why)
            self._on_change()

    @property
    def running(self) -> int:
        """Attempts under way, the stuck ones left out."""
        with self._lock:
            return len(self._running())

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and the database was told of everything."""
        with self._lock:
            return not self._ended and not self._running()

    @property
    def has_unanswered_claim(self) -> bool:
        """Whether more may have been claimed than was heard of."""
        return self._unanswered_claim is not None

    def _running(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts if not attempt.is_decided]

    def _end(self, attempt: Attempt, finish: Finish) -> None:
        """Have the database told of its end."""
        attempt.finish = finish
        self._ended.append(attempt)

    @staticmethod
    def _decide(attempt: Attempt, why: str) -> None:
        attempt.is_decided = True
        attempt.context.cancel(why)

    # -- the job's thread ----------------------------------------------------------------------------

    def _live(self, attempt: Attempt) -> None:
        outcome = perform(self._runs, attempt.session_id, attempt.run, attempt.context, self._call)
        with self._lock:
            self._attempts.discard(attempt)
            if not attempt.is_decided and outcome.finish is not None:
                if outcome.is_told:
                    RUNS_ENDED.labels(outcome.finish.state.value).inc()
                else:
                    self._end(attempt, outcome.finish)
            # A slot is free, and maybe the way for another run of the schedule or queue.
            self.wake()

    # -- a turn --------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Do all that is due by now, and return the seconds until more is. Raises `Unavailable` when the database
        does not let us: nothing is claimed before it was told of what has ended."""
        self._time_out()
        try:
            self._take_over()
            self._tell()
            self._ask_what_was_taken_away()
            self._give_back()
            self._claim()
        except Exception:
            # Whatever was under way is asked again: a scan that was not answered was none.
            with self._lock:
                self._claim_at = self._check_at = float("-inf")
            raise
        self._show()
        with self._lock:
            return self._pause_s()

    def _pause_s(self) -> float:
        now = monotonic()
        wanted = [now + CHECK_S]
        if running := self._running():
            wanted += [self._check_at, *(attempt.context.ends_at for attempt in running)]
        if self._room() > 0:
            wanted.append(self._claim_at)
        return max(0.0, min(wanted) - now)

    def _time_out(self) -> None:
        with self._lock:
            for attempt in self._running():
                if attempt.context.is_overdue:
                    self._decide(attempt, TIMED_OUT)
                    self._end(attempt, timed_out(attempt.run))

    def _take_over(self) -> None:
        """Have what runs under a session that is gone, and what has ended under it, go on under ours. What was
        taken away before is somebody else's business by now."""
        session_id = self._trusted_session()
        if session_id is None:
            return
        with self._lock:
            theirs = [a for a in (*self._running(), *self._ended) if a.session_id != session_id]
        for was in {attempt.session_id for attempt in theirs}:
            asked = {a.run.id: a for a in theirs if a.session_id == was}
            kept = self._runs.take_over(session_id, was, {i: a.run.fence for i, a in asked.items()})
            with self._lock:
                for run_id, attempt in asked.items():
                    if run_id in kept:
                        attempt.session_id = session_id
                    elif attempt in self._ended:
                        self._ended.remove(attempt)
                    elif not attempt.is_decided:
                        self._decide(attempt, "its worker was declared gone")
            if lost := sorted(asked.keys() - kept):
                logger.warning(LogEvent.RUN_TAKEN_AWAY, runs=lost, why="its worker was declared gone")

    def _tell(self) -> None:
        """Tell how attempts ended, all that have. Those of which it is not answered stay."""
        with self._lock:
            told = list(self._ended)
        for session_id in dict.fromkeys(attempt.session_id for attempt in told):
            self._tell_of(session_id, [attempt for attempt in told if attempt.session_id == session_id])

    def _tell_of(self, session_id: UUID, ended: list[Attempt]) -> None:
        finishes = [attempt.finish for attempt in ended if attempt.finish is not None]
        try:
            finished = self._runs.finish(session_id, finishes)
        except Unavailable:
            raise
        except Exception:
            if len(ended) > 1:
                # One that cannot be stored must not keep the others from being told.
                for attempt in ended:
                    self._tell_of(session_id, [attempt])
                return
            # The run ends with this worker session.
            logger.exception(LogEvent.UNEXPECTED, where="finish", runs=[f.run_id for f in finishes])
            finished = Finished((), ())
        matched, busy = set(finished.ended), set(finished.busy)
        with self._lock:
            told = {attempt for attempt in ended if attempt.run.id not in busy}
            self._ended = [attempt for attempt in self._ended if attempt not in told]
        for state, number in Counter(f.state for f in finishes if f.run_id in matched).items():
            if state.is_final:
                RUNS_ENDED.labels(state.value).inc(number)
        if rejected := [finish.run_id for finish in finishes if finish.run_id not in matched | busy]:
            logger.warning(LogEvent.RUN_TAKEN_AWAY, runs=rejected, why="its end was rejected")

    def _ask_what_was_taken_away(self) -> None:
        with self._lock:
            asked = self._running()
            if monotonic() < self._check_at or not asked:
                return
            # Before the question: what comes during it is asked once more.
            self._check_at = monotonic() + CHECK_S
        for session_id in {attempt.session_id for attempt in asked}:
            mine = {a.run.id: a for a in asked if a.session_id == session_id}
            taken = self._runs.taken_away(session_id, {i: a.run.fence for i, a in mine.items()})
            with self._lock:
                for attempt in (mine[run_id] for run_id in taken):
                    if attempt in self._attempts and not attempt.is_decided:
                        self._decide(attempt, "it was cancelled, or taken away from this worker")
                        logger.info(LogEvent.RUN_TAKEN_AWAY, run=attempt.run.correlation_id, why="cancelled")

    def _trusted_session(self) -> UUID | None:
        """The session under which this worker may claim now; None while it may not."""
        return self._session() if self._is_trusted() else None

    def _room(self) -> int:
        stuck = len(self._attempts) - self.running
        if self._is_draining or stuck >= max(self._count, 1):
            return 0
        return self._count - self.running

    def _claim(self) -> None:
        with self._lock:
            room = self._room()
            session_id = self._trusted_session()
            if room <= 0 or monotonic() < self._claim_at:
                return
            peers = self._peers()
            self._claim_at = monotonic() + peers.poll_s
            if session_id is None:
                return
        self._unanswered_claim = session_id
        granted = self._runs.claim(Offer(session_id, room, self._count, peers.slots))
        self._unanswered_claim = None
        for run in granted.runs:
            self._begin(session_id, run)
        if granted.next_in_s is not None:
            soon = monotonic() + max(peers.next_scan_s(granted.next_in_s, rng=self._rng), CLAIM_PAUSE_S)
            with self._lock:
                self._claim_at = min(self._claim_at, soon)

    def _give_back(self) -> None:
        """Give back what was claimed and never heard of, before anything else is claimed, or the worker
        leaves."""
        session_id = self._unanswered_claim
        if session_id is not None and session_id == self._session():
            held = self._runs.held(session_id)
            unheard = [Finish(i, f, RunState.WAITING) for i, f in held.items() if f > self._last_fence]
            if unheard:
                self._runs.finish(session_id, unheard)
                self._last_fence = max(finish.fence for finish in unheard)
        self._unanswered_claim = None

    def _begin(self, session_id: UUID, run: ClaimedRun) -> None:
        self._last_fence = max(self._last_fence, run.fence)
        RUN_WAIT_SECONDS.observe(max(run.waited_s, 0.0))
        attempt = Attempt(session_id, run, RunContext(run))
        with self._lock:
            if session_id != self._session():
                return  # it is gone, while the answer was under way
            if self._is_draining:
                self._end(attempt, Finish(run.id, run.fence, RunState.WAITING))
                return
            self._attempts.add(attempt)
        try:
            self._threads.run(partial(self._live, attempt))
        except RuntimeError as error:
            logger.error(LogEvent.UNEXPECTED, where="jobs", error=str(error), run=run.correlation_id)
            with self._lock:
                self._attempts.discard(attempt)
                self._end(attempt, Finish(run.id, run.fence, RunState.WAITING))

    def _show(self) -> None:
        with self._lock:
            running = self.running
            stuck = len(self._attempts) - running
        JOB_SLOTS.labels("busy").set(running)
        JOB_SLOTS.labels("stuck").set(stuck)
        JOB_SLOTS.labels("free").set(max(self._count - running, 0))
        if stuck >= max(self._count, 1) and not self._said_stuck:
            logger.error(LogEvent.JOBS_STUCK, threads=stuck, slots=self._count)
        self._said_stuck = stuck >= max(self._count, 1)
