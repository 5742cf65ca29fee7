"""Schedules and runs as the tables show them: whether somebody fires and runs what falls due. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feedq.diagnosis.checks import Check, counted, fail, ok, warn
from feedq.schedule.model import ScheduleSpec, UnreadableSpec
from feedq.store.insight import JobState
from feedq.wording import duration

NAMED_MAX = 5
"""Schedules named in one warning; `feedq schedule list --state paused` has them all."""
OVERDUE_S = 30.0
"""A tick is fired within a second of its time: what is this late is fired by nobody."""
WAITING_S = 60.0
"""A run that has been due for so long waits for more than its turn."""


def job_checks(state: JobState) -> Iterator[Check]:
    """None for an installation without schedules and runs."""
    if not (state.schedules or state.waiting or state.running):
        return
    yield _slots(state)
    if state.overdue_s is not None and state.overdue_s > OVERDUE_S:
        yield fail(
            "ticks",
            f"a tick fell due {duration(state.overdue_s)} ago and has not been fired",
            "workers fire them, all alike: see that one is up and reaches the control database",
        )
    if state.tripped:
        yield _tripped(state)
    if state.slots and state.oldest_due_s is not None and state.oldest_due_s > WAITING_S:
        yield _waiting(state)


def declaration_checks(declared: Mapping[str, ScheduleSpec | UnreadableSpec]) -> Iterator[Check]:
    """None where all can be read."""
    names = [name for name, spec in declared.items() if isinstance(spec, UnreadableSpec)]
    if names:
        yield warn(
            "declarations",
            f"{counted(len(names), 'schedule')} that this release of feedq cannot read: {_named(names)}",
            "upgrade feedq, or declare them anew: feedq apply; or feedq schedule edit, with --task and a timing",
        )


def described_schedules(state: JobState) -> str:
    """Such as ``12: 10 active, 2 paused (1 by failures)``."""
    tripped = f" ({len(state.tripped)} by failures)" if state.tripped else ""
    paused = f", {state.paused} paused{tripped}" if state.paused else ""
    return f"{state.schedules}: {state.active} active{paused}"


def described_runs(state: JobState) -> str:
    """Such as ``3 running, 5 waiting, the oldest due for 12s``."""
    oldest = "" if state.oldest_due_s is None else f", the oldest due for {duration(state.oldest_due_s)}"
    return f"{state.running} running, {state.waiting} waiting{oldest}"


def _slots(state: JobState) -> Check:
    if state.slots:
        slots = f"{counted(state.slots, 'job slot')} on {counted(state.workers, 'worker')}"
        return ok("schedules", f"{described_schedules(state)}; {slots}")
    return fail(
        "schedules",
        f"{described_schedules(state)}; no worker that serves has job slots, and nothing is run",
        "start or uncordon a worker: celery -A feedq worker; for jobs alone, celery -A feedq worker -Q jobs -c 8",
    )


def _tripped(state: JobState) -> Check:
    return warn(
        "paused",
        f"{counted(len(state.tripped), 'schedule')} paused by failures: {_named(state.tripped)}",
        "feedq schedule runs NAME --state failed says why; then feedq schedule resume NAME",
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _waiting(state: JobState) -> Check:
    assert state.oldest_due_s is not None
    waits = f"{counted(state.due, 'run')} due and not started, the oldest for {duration(state.oldest_due_s)}"
    if state.running >= state.slots:
        return warn(
            "runs",
            f"{waits}; all {counted(state.slots, 'job slot')} are taken",
            "start another worker, or raise FEEDQ_JOB_SLOTS",
        )
    return warn(
        "runs",
        f"{waits}, while {counted(state.slots - state.running, 'job slot')} are free",
        "a limit holds them back, or an earlier run of their schedule: feedq schedule runs --state waiting, "
        "feedq schedule queue list",
    )
