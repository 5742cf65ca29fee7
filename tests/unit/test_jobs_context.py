"""What the code of a job is told of its run."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest

from feedq import RunCancelled, run_context
from feedq.errors import InvalidInput
from feedq.worker.jobs.context import RunContext
from tests.schedules import job_spec
from tests.unit.job_runs import AT, claimed

LIMIT_S = 10.0


def test_it_says_which_run_this_is() -> None:
    context = RunContext(claimed(job_spec(task="acme.report")))
    with context.entered():
        run = run_context()
    assert (run.schedule, run.key, run.correlation_id) == ("acme/report", "k1", "acme/report/k1")
    assert (run.tick_at, run.due_at, run.kind.value, run.task) == (AT, AT, "tick", "acme.report")
    assert (run.attempt, run.fence) == (1, 7)
    assert run.remaining_s is not None
    assert 0 < run.remaining_s <= 60


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
