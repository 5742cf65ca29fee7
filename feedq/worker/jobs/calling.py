"""Calls the Celery task of a claimed run, and says what became of it.

The task is called here and now, not sent: the database has chosen this worker. It sees itself as any task does,
``self.request.id`` is the correlation id of the run, and ``self.request.retries`` counts its earlier attempts.
What Celery's own exceptions mean:

* ``Ignore``: there was nothing to do; the run has succeeded.
* ``Reject``: the run has failed.
* ``Retry``: the run has failed. Retries are the schedule's: Celery would send a message that belongs to no run.
  ``self.retry(exc=error)`` raises that error, as it does in a task that is called directly.

No argument of a job gets into a reason or a log line, and passwords of URLs are masked in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery import Celery
from celery.app.trace import task_has_custom
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.imports import import_from_cwd

from feedq.control.store.jobs.runs import RunStore
from feedq.core.schedule.model import ClaimedRun, Finish, RunState
from feedq.core.schedule.spec import Semantics
from feedq.errors import FeedqError, InvalidInput, JobSessionLost, RunCancelled, RunTakenAway
from feedq.telemetry.hiding import structlog
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.worker.jobs.context import RunContext

REASON_MAX = 500
"""Characters of what went wrong that are kept with the run."""

SESSION_LOST = "the database session of its transaction was cut off; nothing was kept"

Call = Callable[[ClaimedRun], None]
"""Runs the code of a job; raises what it raises."""

logger = log(__name__)


def import_jobs(modules: tuple[str, ...]) -> None:
    """Import the modules with the users' tasks. Raises `InvalidInput`, naming the one that cannot be."""
    for name in modules:
        try:
            import_from_cwd(name)
        except Exception as error:
            said = mask_url(f"{type(error).__name__}: {error}")[:REASON_MAX]
            raise InvalidInput(
                f"FEEDQ_IMPORTS: module {name!r} cannot be imported ({said}); it must be on the worker's path, "
                "which begins with the directory that it is started in"
            ) from error


class TaskCaller:
    """Calls tasks of one app by their names."""

    def __init__(self, app: Celery, modules: tuple[str, ...]) -> None:
        self._app, self._modules = app, modules

    def __call__(self, run: ClaimedRun) -> None:
        task = self._app.tasks.get(run.job.task)
        if task is None:
            loaded = ", ".join(self._modules) or "none"
            raise InvalidInput(
                f"this worker knows no task {run.job.task!r}: name the module that defines it in FEEDQ_IMPORTS "
                f"(modules loaded: {loaded})"
            )
        args, kwargs = list(run.job.args), dict(run.job.kwargs)
        # Called directly, as far as `retry` is concerned: it must send no message of its own.
        task.push_request(
            id=run.correlation_id,
            args=args,
            kwargs=kwargs,
            retries=run.attempt - 1,
            called_directly=True,
            is_eager=False,
        )
        try:
            self._body(task)(*args, **kwargs)
        except Ignore:
            return
        finally:
            task.pop_request()

    @staticmethod
    def _body(task: Any) -> Callable[..., object]:
        return task if task_has_custom(task, "__call__") else task.run  # type: ignore[no-any-return] # untyped


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Says how the code of an attempt came to its end."""

    finish: Finish | None
    """None: the run had been taken away, and who has it now says how it ends."""
    is_told: bool = False
    """Whether the database knows already: the job's own transaction said so."""


def perform(
    runs: RunStore, session_id: UUID, run: ClaimedRun, context: RunContext, call: Call
) -> CallOutcome:
    """Run the code of one attempt, in this thread. Never raises for what the job does."""
    transactional = run.job.semantics is Semantics.TRANSACTIONAL
    bound = structlog.contextvars.bound_contextvars(
        run=run.correlation_id, attempt=run.attempt, fence=run.fence
    )
    with bound, context.entered():
        logger.debug(LogEvent.RUN_STARTED, task=run.job.task)
        try:
            if transactional:
                _call_in_transaction(runs, session_id, run, context, call)
            else:
                call(run)
        except RunTakenAway:
            logger.warning(LogEvent.RUN_TAKEN_AWAY, why="what it wrote was rolled back")
            return CallOutcome(None)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 -- users' code raises anything
            finish = _failure(run, context, error)
            _log_failure(run, finish, error)
            return CallOutcome(finish)
        logger.debug(LogEvent.RUN_SUCCEEDED)
        return CallOutcome(Finish(run.id, run.fence, RunState.SUCCEEDED), is_told=transactional)


def _call_in_transaction(
    runs: RunStore, session_id: UUID, run: ClaimedRun, context: RunContext, call: Call
) -> None:
    with runs.transact(session_id, run) as session, context.within(session):
        call(run)
        # What a job did that did not heed its end must not be kept: its run was said to have ended otherwise.
        context.raise_if_cancelled()


def _failure(run: ClaimedRun, context: RunContext, error: BaseException) -> Finish:
    if isinstance(error, JobSessionLost) and not context.is_cancelled:
        return Finish(run.id, run.fence, RunState.LOST, SESSION_LOST)
    if isinstance(error, RunCancelled | JobSessionLost):
        state = RunState.TIMED_OUT if context.is_overdue else RunState.CANCELLED
        return unsuccessful(run, state, context.why or "the job gave up on its own")
    return unsuccessful(run, RunState.FAILED, reason_of(error))


def timed_out(run: ClaimedRun) -> Finish:
    """The end of a run whose time is up, whatever its code does from now on."""
    logger.warning(LogEvent.RUN_TIMED_OUT, run=run.correlation_id, task=run.job.task)
    limit_s = run.job.timeout
    said = "timed out" if limit_s is None else f"timed out after {limit_s:g} s"
    return unsuccessful(run, RunState.TIMED_OUT, said)


def unsuccessful(run: ClaimedRun, state: RunState, reason: str) -> Finish:
    """Return how a worker tells of an attempt that failed, timed out or was cancelled."""
    # Lost attempts use up no retries; and who cancels a run wants no other attempt.
    is_repeated = state in (RunState.FAILED, RunState.TIMED_OUT)
    in_s = run.job.retries.wait_s(attempt=max(run.attempt - run.losses, 1)) if is_repeated else None
    return Finish(run.id, run.fence, state, reason, in_s)


def reason_of(error: BaseException) -> str:
    """Return what went wrong in one bounded line of text, without passwords of URLs."""
    if isinstance(error, Retry):
        text = "Retry: Celery's own retries are not for runs; give the schedule `retries` instead"
    elif isinstance(error, Reject):
        text = f"Reject: the task rejected it ({error.reason})"
    else:
        text = f"{type(error).__name__}: {error}"
    return mask_url(text).strip()[:REASON_MAX]


def _log_failure(run: ClaimedRun, finish: Finish, error: BaseException) -> None:
    expected = isinstance(error, FeedqError | Retry | Reject)
    logger.warning(
        LogEvent.RUN_FAILED,
        task=run.job.task,
        state=finish.state.value,
        error=finish.reason,
        exc_info=None if expected else error,
    )
