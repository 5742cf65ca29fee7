"""Runs one claimed run in a slot of Celery's own pools: on a thread, or in a child process.

The lease keeper lives in the main process, and its heartbeat renews what runs here. The run is claimed in this
process, in the name of that worker, and *followed* on a thread beside: asked for every half second, and ended
at its time-out. What the job does after that is not heard, but it keeps its slot: here nobody else could have
it.
"""

from __future__ import annotations

import os
import socket
from threading import Event, Lock, Thread
from time import monotonic, sleep
from uuid import UUID

from feedq.errors import Unavailable
from feedq.model import WorkerState
from feedq.schedule.model import ClaimedRun, Finish, Offer
from feedq.store.base import Store
from feedq.store.jobs.runs import RunStore
from feedq.telemetry import LogEvent, database_event, log
from feedq.telemetry_metrics import RUN_WAIT_SECONDS, RUNS_ENDED
from feedq.worker.jobs.calling import Call, perform, timed_out
from feedq.worker.jobs.context import TIMED_OUT, RunContext

FOLLOW_S = 0.5
TELL_MAX_S = 600.0
"""The time for which it is tried to tell how a run ended: longer than most outages of a database. Then the
worker's ticker says that its time was up, if it has a time-out."""
TELL_RETRY_S = 0.25

logger = log(__name__)


def session_of(store: Store, hostname: str) -> UUID | None:
    """The live session of the worker of this name whose process this is, or is a child of."""
    pids = (os.getpid(), os.getppid())
    mine = [
        view.worker
        for view in store.workers.views()
        if view.worker.name == hostname
        and view.worker.state is WorkerState.ACTIVE
        and view.worker.host == socket.gethostname()
        and view.worker.pid in pids
    ]
    return max(mine, key=lambda worker: worker.started_at).id if mine else None


def run_hinted(run_id: int, session_id: UUID, runs: RunStore, call: Call) -> str:
    """Claim this run and nothing else, and run it. Blocks; returns how it ended.

    Raises `Unavailable` when it cannot be claimed. A claim whose answer was lost is found by its time-out, or with
    the end of the worker.
    """
    granted = runs.claim(Offer(session_id, 1, (), float("inf"), (run_id,)))
    if not granted.runs:
        return "dropped: it is not this worker's to run now"
    (run,) = granted.runs
    RUN_WAIT_SECONDS.observe(max(run.waited_s, 0.0))
    return _Followed(runs, session_id, run).live(call)


class _Followed:
    """An attempt, and the thread that follows it."""

    def __init__(self, runs: RunStore, session_id: UUID, run: ClaimedRun) -> None:
        self._runs, self._session_id, self._run = runs, session_id, run
        self._context = RunContext(run)
        self._lock = Lock()
        self._is_decided = False
        self._over = Event()

    def live(self, call: Call) -> str:
        Thread(target=self._follow, name="feedq-follow", daemon=True).start()
        try:
            outcome = perform(self._runs, self._session_id, self._run, self._context, call)
        finally:
            self._over.set()
        if outcome.finish is None or not self._decide():
            return "lost" if outcome.finish is None else (self._context.why or "over")
        if not outcome.is_told:
            self._tell(outcome.finish)
        else:
            RUNS_ENDED.labels(outcome.finish.state.value).inc()
        return outcome.finish.state.value

    def _decide(self) -> bool:
        """Return whether nobody has decided yet how the run ends."""
        with self._lock:
            was, self._is_decided = self._is_decided, True
        return not was

    def _follow(self) -> None:
        run = self._run
        while not self._over.wait(min(FOLLOW_S, self._context.remaining_s or FOLLOW_S)):
            try:
                if self._context.is_overdue:
                    if self._decide():
                        self._context.cancel(TIMED_OUT)
                        self._tell(timed_out(run))
                    return
                if self._runs.taken_away(self._session_id, {run.id: run.fence}) and self._decide():
                    logger.info(LogEvent.RUN_TAKEN_AWAY, run=run.correlation_id, why="cancelled")
                    self._context.cancel("it was cancelled, or taken away from this worker")
                    return
            except Unavailable as error:
                logger.warning(database_event(error), where="run", error=str(error))

    def _tell(self, finish: Finish) -> None:
        """Tell the database how the run has ended. Raises nothing: what cannot be told ends long after its
        time-out, or with the worker."""
        until = monotonic() + TELL_MAX_S
        while monotonic() < until:
            try:
                if self._runs.finish(self._session_id, [finish]):
                    RUNS_ENDED.labels(finish.state.value).inc()
                else:
                    logger.warning(
                        LogEvent.RUN_TAKEN_AWAY, run=self._run.correlation_id, why="its end was rejected"
                    )
            except Unavailable as error:
                logger.warning(database_event(error), where="run", error=str(error))
                sleep(TELL_RETRY_S)
            else:
                return
