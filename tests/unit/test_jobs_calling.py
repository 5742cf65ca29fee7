"""Calling a Celery task as a run: what it sees, and what becomes of whatever it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import structlog
from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry

from feedq import RunCancelled, run_context
from feedq.celery import bootsteps
from feedq.core.schedule.model import ClaimedRun, Finish, Offer, RunState
from feedq.core.schedule.spec import Semantics
from feedq.errors import InvalidInput, JobSessionLost
from feedq.settings import Settings
from feedq.telemetry.logs import configure_logging
from feedq.worker.jobs.calling import (
    CallOutcome,
    TaskCaller,
    perform,
)
from feedq.worker.jobs.context import RunContext
from tests.schedules import job_spec
from tests.unit.job_runs import ME, MemoryRuns, claimed


@pytest.fixture(autouse=True)
def log_as_workers_do() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    configure_logging(Settings())
    yield
    root.handlers.clear()
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def app() -> Celery:
    return Celery("test", set_as_current=False, broker="memory://")


def untold(outcome: CallOutcome) -> Finish:
    """The end of a run that is still to be told."""
    assert outcome.finish is not None
    assert not outcome.is_told
    return outcome.finish


def call(app: Celery, run: ClaimedRun) -> Finish:
    return untold(perform(MemoryRuns(), ME, run, RunContext(run), TaskCaller(app, ("acme.jobs",))))


def finish_of(app: Celery, body: Callable[..., object], **options: Any) -> Finish:
    app.task(name="task", shared=False, **options)(body)
    return call(app, claimed())


def test_a_task_gets_its_arguments_and_sees_itself_as_the_run(app: Celery) -> None:
    seen: dict[str, Any] = {}

    @app.task(name="acme.report", bind=True, shared=False)
    def report(self: Task, month: str, *, copies: int) -> None:
        seen.update(id=self.request.id, retries=self.request.retries, args=(month, copies))
        seen.update(context=run_context().correlation_id, current=app.current_task)
        seen.update(bound=structlog.contextvars.get_contextvars())

    finish = call(app, claimed(job_spec(task="acme.report", args=["2026-11"], kwargs={"copies": 2})))
    assert finish.state is RunState.SUCCEEDED
    assert seen["id"] == seen["context"] == "acme/report/k1"
    assert seen["args"] == ("2026-11", 2)
    assert seen["retries"] == 0
    assert seen["bound"] == {"run": "acme/report/k1", "attempt": 1, "fence": 7}
    assert structlog.contextvars.get_contextvars() == {}
    assert report.request.id is None


def test_an_unknown_task_fails_with_what_to_do(app: Celery) -> None:
    finish = call(app, claimed(job_spec(task="no.such")))
    assert finish.state is RunState.FAILED
    for word in ("no.such", "FEEDQ_IMPORTS", "acme.jobs"):
        assert word in (finish.reason or "")


def raises(error: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (ValueError("no such month"), RunState.FAILED, "ValueError: no such month"),
        (SystemExit(3), RunState.FAILED, "SystemExit: 3"),
        (KeyboardInterrupt(), RunState.FAILED, "KeyboardInterrupt:"),
        (
            OSError("cannot reach amqp://me:hunter2@host"),
            RunState.FAILED,
            "OSError: cannot reach amqp://me:***@host",
        ),
        (Retry("later"), RunState.FAILED, "Retry: Celery's own retries are not for runs"),
        (Reject("not mine"), RunState.FAILED, "Reject: the task rejected it (not mine)"),
        (Ignore(), RunState.SUCCEEDED, None),
    ],
)
def test_what_a_task_raises_is_the_reason(
    app: Celery, error: BaseException, state: RunState, said: str | None
) -> None:
    finish = finish_of(app, raises(error))
    assert finish.state is state
    assert (finish.reason or "").startswith(said or "")
    assert (finish.reason is None) == (said is None)


def test_arguments_get_neither_into_the_reason_nor_into_the_log(
    app: Celery, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(Settings())  # to what stands for standard error now
    app.task(name="task", shared=False)(raises(ValueError("no")))
    finish = call(app, claimed(job_spec(task="task", kwargs={"patient": "Zaphod"})))
    shown = "".join(capsys.readouterr()) + (finish.reason or "")
    assert "run failed" in shown
    assert "Zaphod" not in shown


def nowhere() -> Celery:
    """An app that can send nothing."""
    return Celery("nowhere", set_as_current=False, broker="redis://127.0.0.1:1/0")


def test_a_retry_of_celery_sends_no_message() -> None:
    def body(self: Task) -> None:
        raise self.retry(exc=TimeoutError("slow server"))

    for finish in (
        finish_of(nowhere(), body, bind=True),
        finish_of(nowhere(), raises(TimeoutError("slow server")), autoretry_for=(TimeoutError,)),
    ):
        assert finish.reason == "TimeoutError: slow server"


def test_a_job_that_heeds_its_cancellation_is_cancelled_and_one_that_heeds_its_time_out_timed_out() -> None:
    def heed(_: ClaimedRun) -> None:
        run_context().raise_if_cancelled()

    run = claimed()
    context = RunContext(run)
    context.cancel("by hand")
    finish = untold(perform(MemoryRuns(), ME, run, context, heed))
    assert (finish.state, finish.reason) == (RunState.CANCELLED, "by hand")
    late = claimed(remaining_s=0.0)
    assert untold(perform(MemoryRuns(), ME, late, RunContext(late), heed)).state is RunState.TIMED_OUT


# -- transactional -----------------------------------------------------------------------------------


def transactional(runs: MemoryRuns) -> ClaimedRun:
    runs.add(1, semantics=Semantics.TRANSACTIONAL)
    (run,) = runs.claim(Offer(ME, 1)).runs
    return run


def write(_: ClaimedRun) -> None:
    session: Any = run_context().session
    session.written.append("row")


def test_a_transactional_job_succeeds_with_what_it_wrote() -> None:
    runs = MemoryRuns()
    run = transactional(runs)
    outcome = perform(runs, ME, run, RunContext(run), write)
    assert outcome.is_told
    assert runs.rows[1].written == ["row"]
    assert runs.states() == {1: "succeeded"}


class CutRuns(MemoryRuns):
    """The session of a transaction is cut off under way."""

    @contextmanager
    def transact(self, worker_id: UUID, run: ClaimedRun) -> Iterator[Any]:
        with super().transact(worker_id, run) as session:
            yield session
            raise JobSessionLost("for the test")


@pytest.mark.parametrize(
    ("remaining_s", "state"), [(None, RunState.LOST), (0.0, RunState.TIMED_OUT)], ids=["in time", "late"]
)
def test_one_whose_session_was_cut_off_is_lost_and_not_failed_unless_its_time_was_up(
    remaining_s: float | None, state: RunState
) -> None:
    runs = CutRuns()
    runs.remaining_s = remaining_s
    run = transactional(runs)
    finish = untold(perform(runs, ME, run, RunContext(run), write))
    assert finish.state is state
    assert runs.rows[1].written == []


LIMIT_S = 10.0


def test_a_wait_ends_when_the_run_is_cancelled() -> None:
    context, began, said = RunContext(claimed(remaining_s=None)), Event(), list[bool]()

    def job() -> None:
        began.set()
        said.append(context.wait(float("inf")))

    thread = Thread(target=job, daemon=True)
    thread.start()
    assert began.wait(LIMIT_S)
    context.cancel("by hand")
    context.cancel("for another reason")
    thread.join(LIMIT_S)
    assert said == [True]
    assert context.remaining_s is None
    with pytest.raises(RunCancelled, match=r"acme/report/k1: by hand"):
        context.raise_if_cancelled()


def test_a_time_out_is_a_cancellation_that_nobody_has_to_bring() -> None:
    context = RunContext(claimed(remaining_s=0.05))
    assert context.wait(LIMIT_S)
    assert context.is_overdue
    assert context.remaining_s == 0.0
    with pytest.raises(RunCancelled, match="its time is up"):
        context.raise_if_cancelled()


def test_only_a_transactional_job_has_a_session() -> None:
    context = RunContext(claimed())
    with pytest.raises(InvalidInput, match="semantics: transactional"):
        _ = context.session
    session: Any = object()
    with context.within(session):
        assert context.session is session
    with pytest.raises(InvalidInput):
        _ = context.session


# -- what a worker takes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "concurrency", "capacity", "job_slots"),
    [
        (("feedq", "feedq.control"), 500, 500, 4),
        (("jobs",), 20, 0, 20),
        (("jobs", "feedq"), 20, 20, 4),
    ],
)
def test_what_a_worker_takes_goes_by_its_queues_and_its_concurrency(
    queues: tuple[str, ...], concurrency: int, capacity: int, job_slots: int
) -> None:
    consumes = dict.fromkeys((*queues, bootsteps.node_queue("w1@h")))
    app = SimpleNamespace(
        amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=consumes)), tasks={"acme.report": None}
    )
    worker = SimpleNamespace(hostname="w1@h", app=app, concurrency=concurrency)
    described = bootsteps._describe(worker, Settings())
    assert (described.capacity, described.job_slots) == (capacity, job_slots)
    assert described.tasks == {"acme.report"}


def test_a_module_that_is_not_there_ends_the_process_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootsteps, "settings", lambda: Settings(imports="json, tests.no_such_module"))
    with pytest.raises(SystemExit, match=r"^feedq: FEEDQ_IMPORTS: module 'tests\.no_such_module'"):
        bootsteps._import_jobs()
