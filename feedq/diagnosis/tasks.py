"""The tasks of schedules: is each one known to the workers that run jobs?

The database does not know what code a worker has loaded. The workers are asked, through Celery's remote control,
and may be silent: one that is busy, frozen or beyond a broker of its own says nothing, and then nothing is said of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from celery import Celery

from feedq.diagnosis.broker import TIMEOUT_S, bounded_options, connect
from feedq.diagnosis.checks import Check, counted, fail, ok, one_line, warn
from feedq.store.insight import ScheduledTask
from feedq.telemetry import mask_url

NAME = "tasks"
ANSWER_S = 2.0
"""Between two answers; the last one ends it."""
NAMED_MAX = 5
"""Tasks of which each has a line of its own."""
BUILT_IN = "celery."
"""Tasks that every worker has, and names to nobody."""


def check_tasks(broker_url: str, tasks: Sequence[ScheduledTask], workers: Sequence[str]) -> Iterator[Check]:
    """``workers`` are those that run jobs, by name. Nothing to say without tasks or without workers."""
    asked = [task for task in tasks if not task.task.startswith(BUILT_IN)]
    if not asked or not workers:
        return
    try:
        known = registered(broker_url, workers)
    except Exception as error:  # noqa: BLE001  # whatever a transport raises: the broker has checks of its own
        yield ok(NAME, f"not checked: {mask_url(one_line(error))}")
        return
    yield from judge_tasks(asked, known, workers=len(workers))


def registered(broker_url: str, workers: Sequence[str]) -> dict[str, set[str]]:
    """The tasks that each of these workers has, of those that answer in time."""
    app = Celery("feedq-doctor", broker=broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        broker_connection_timeout=TIMEOUT_S,
        broker_transport_options=bounded_options(broker_url, TIMEOUT_S),
    )
    try:
        with connect(broker_url) as connection:
            # Celery itself would try for longer.
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT_S)
            inspect = app.control.inspect(
                destination=list(workers), timeout=ANSWER_S, limit=len(workers), connection=connection
            )
            answers: Mapping[str, Any] = inspect.registered() or {}
    finally:
        app.close()
    # Each is the name of a task, and its options behind a space.
    return {
        worker: {str(task).partition(" ")[0] for task in names}
        for worker, names in answers.items()
        if isinstance(names, list)
    }


def judge_tasks(
    tasks: Sequence[ScheduledTask], known: Mapping[str, Set[str]], *, workers: int
) -> Iterator[Check]:
    """``known`` are the tasks of each worker that answered, of so many that were asked. Pure."""
    if not known:
        yield ok(NAME, f"not checked: none of {counted(workers, 'worker')} answered within {ANSWER_S:g} s")
        return
    lacking = {task: [name for name in sorted(known) if task.task not in known[name]] for task in tasks}
    troubles = [(task, names) for task, names in lacking.items() if names]
    answered = f"{len(known)} of {counted(workers, 'worker')} answered"
    if not troubles:
        yield ok(NAME, f"{counted(len(tasks), 'task')} of schedules, known to all; {answered}")
    # Those that nobody knows come first.
    troubles.sort(key=lambda found: (-len(found[1]), found[0].schedule))
    for task, names in troubles[:NAMED_MAX]:
        yield _trouble(task, names, known=len(known), workers=workers)
    if len(troubles) > NAMED_MAX:
        yield warn(NAME, f"and {counted(len(troubles) - NAMED_MAX, 'more task')}", "mend these first")


def _trouble(task: ScheduledTask, names: Sequence[str], *, known: int, workers: int) -> Check:
    others = f" (and {counted(task.schedules - 1, 'other')})" if task.schedules > 1 else ""
    who = f"schedule {task.schedule}{others} names task {task.task}"
    advice = "set FEEDQ_IMPORTS to the module that defines it, and start the workers again"
    if len(names) < known:
        shown = ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
        return warn(
            NAME, f"{who}, which {len(names)} of {known} workers have not registered: {shown}", advice
        )
    if known < workers:
        return warn(NAME, f"{who}, which none of the {known} workers has that answered, of {workers}", advice)
    return fail(NAME, f"{who}, which no running worker has registered", advice)
