"""Schedules, runs and job queues as tables and lines for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import click
from rich.table import Table
from rich.text import Text

from feedq import documents, manifest
from feedq.cli.output import Cell, rich_table, styled, warn, write_facts, write_table
from feedq.report import masked
from feedq.report import run_report as run_words
from feedq.schedule.model import (
    Beat,
    Once,
    Queue,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
)
from feedq.schedule.timing import next_tick
from feedq.schedule.words import instant, timing_words
from feedq.store.jobs.base import JobStore
from feedq.wording import ERROR_WIDTH, ago, duration, printable

WARNINGS_MAX = 10


def write_schedules(views: Sequence[ScheduleView], *, now: datetime) -> None:
    if not views:
        click.echo("no schedules; declare some with `feedq apply` or `feedq schedule add`")
        return
    rows = [
        (
            printable(view.schedule.spec.name),
            styled(view.schedule.state.value),
            printable(timing_words(view.schedule.spec.timing).removeprefix("cron ")),
            printable(view.schedule.spec.job.task),
            until(view.schedule.next_fire_at, now=now),
            "-" if view.last is None else ago(view.last.ended_at or view.last.started_at, now=now),
            "-" if view.last is None else styled(view.last.state.value),
            str(view.waiting),
            str(view.running),
        )
        for view in views
    ]
    titles = ("NAME", "STATE", "WHEN", "TASK", "NEXT", "LAST", "RESULT", "WAIT", "RUN")
    write_table(titles, rows, right="NEXT LAST WAIT RUN")


def schedules_table(views: Sequence[ScheduleView], *, now: datetime) -> Table:
    """In few columns, for a view that has others beside it."""
    rows = [
        (
            printable(view.schedule.spec.name),
            styled(view.schedule.state.value),
            _next(view.schedule, now),
            "-" if view.last is None else styled(view.last.state.value),
            "-" if view.last is None else ago(view.last.ended_at or view.last.started_at, now=now),
            str(view.running),
            str(view.waiting),
        )
        for view in views
    ]
    titles = ("SCHEDULE", "STATE", "NEXT", "LAST", "AGO", "RUN", "WAIT")
    return rich_table(titles, rows, right={"NEXT", "AGO", "RUN", "WAIT"})


def _next(schedule: Schedule, now: datetime) -> Cell:
    """How long until it fires; one that is paused does not."""
    at = None if schedule.state is ScheduleState.PAUSED else schedule.next_fire_at
    return Text(until(at, now=now), style="yellow" if at is not None and at < now else "")


def warn_unserved(jobs: JobStore, names: Collection[str]) -> None:
    """Say of which of these schedules no worker knows the task, or has the labels; the first few."""
    found = jobs.schedules.unserved(names) if names else {}
    for name in sorted(found)[:WARNINGS_MAX]:
        warn(printable(f"schedule {name}: {found[name]}"))
    if len(found) > WARNINGS_MAX:
        warn(f"and {len(found) - WARNINGS_MAX:,} more schedules; see feedq doctor")


def warn_ended(schedules: Iterable[Schedule], *, now: datetime) -> None:
    """Say which of these schedules have no tick to come, and why; the first few."""
    ended = [one for one in schedules if one.next_tick_at is None and not isinstance(one.spec.timing, Beat)]
    warn_never([schedule.spec for schedule in ended], now=now)


def never_ticks(spec: ScheduleSpec, now: datetime) -> bool:
    """Whether a declaration has no tick to come, as far as days of named calendars do not matter."""
    return not isinstance(spec.timing, Beat) and next_tick(spec, after=now) is None


def warn_never(specs: Sequence[ScheduleSpec], *, now: datetime) -> None:
    """Say of these, which have no tick to come, why; the first few."""
    for spec in specs[:WARNINGS_MAX]:
        warn(printable(f"schedule {spec.name}: has no tick to come: {_why_ended(spec, now)}"))
    if len(specs) > WARNINGS_MAX:
        warn(f"and {len(specs) - WARNINGS_MAX:,} more schedules have no tick to come")


def _why_ended(spec: ScheduleSpec, now: datetime) -> str:
    if isinstance(spec.timing, Once) and all(at <= now for at in spec.timing.moments):
        return f"at ({instant(max(spec.timing.moments))}) is in the past"
    if spec.end_at is not None and spec.end_at <= now:
        return f"its end ({instant(spec.end_at)}) is in the past"
    return "its start, its end and the days that it leaves out leave none"


def write_schedule(
    view: ScheduleView, *, counts: Mapping[RunState, int], runs: Sequence[Run], now: datetime
) -> None:
    schedule = view.schedule
    ended = {state: count for state, count in counts.items() if count}
    write_facts(
        [
            ("name", printable(schedule.spec.name)),
            ("state", styled(schedule.state.value)),
            ("paused because", None if schedule.pause_reason is None else printable(schedule.pause_reason)),
            ("paused until", _moment(schedule.paused_until, now)),
            ("cannot run", None if view.unserved is None else printable(view.unserved)),
            ("when", printable(timing_words(schedule.spec.timing))),
            ("next tick", _moment(schedule.next_tick_at, now)),
            (
                "fires",
                None
                if schedule.next_fire_at == schedule.next_tick_at
                else f"{_moment(schedule.next_fire_at, now)}, with its jitter",
            ),
            ("waiting", str(view.waiting)),
            ("running", str(view.running)),
            (
                "runs",
                ", ".join(f"{ended[state]:,} {state}" for state in RunState if state in ended) or "none",
            ),
            ("failures", f"{schedule.failures} in a row" if schedule.failures else None),
            ("generation", str(schedule.generation)),
            ("created", _moment(schedule.created_at, now)),
            ("updated", _moment(schedule.updated_at, now)),
        ]
    )
    click.echo("declaration")
    declaration = masked(manifest.plain_schedule(schedule.spec))
    for line in documents.dump(declaration).splitlines():
        click.echo(f"  {line}")
    if runs:
        click.echo()
        write_runs(runs, now=now, of_one=True)


def write_runs(runs: Sequence[Run], *, now: datetime, of_one: bool = False) -> None:
    """``of_one``: they are all of one schedule, whose name need not be repeated."""
    if not runs:
        click.echo("no runs")
        return
    rows = [
        (
            str(run.id),
            printable(run.key if of_one else f"{run.schedule}/{run.key}"),
            styled(run.state.value) + (f" x{run.ticks:,}" if run.ticks > 1 else ""),
            "-" if run.worker is None else printable(run.worker),
            _due(run.due_at, now=now),
            _seconds(run_words.lag_s(run)),
            _seconds(run_words.took_s(run, now=now)),
            _note(run),
        )
        for run in runs
    ]
    titles = ("ID", "KEY" if of_one else "RUN", "STATE", "WORKER", "DUE", "LAG", "TOOK", "NOTE")
    write_table(titles, rows, right="ID DUE LAG TOOK")


def _due(at: datetime, *, now: datetime) -> str:
    """How long ago; of a retry that waits for its time, how long until then."""
    return f"in {until(at, now=now)}" if at > now else ago(at, now=now)


def _note(run: Run) -> str:
    """What kind of run it is unless a tick, which attempt unless the first, and the reason."""
    kind = "" if run.kind is RunKind.TICK else run.kind.value
    attempt = "" if run.attempt == 1 else f"attempt {run.attempt}"
    return "; ".join(part for part in (kind, attempt, why(run)) if part)


def write_queues(queues: Mapping[str, Queue], depths: Mapping[str, tuple[int, int]]) -> None:
    """Those with limits, and those with runs that have not ended."""
    names = sorted(queues.keys() | depths.keys())
    if not names:
        click.echo("no queue has limits, or runs that wait or run; `feedq schedule queue set` sets limits")
        return
    rows = []
    for name in names:
        limits = queues.get(name, Queue(name))
        waiting, running = depths.get(name, (0, 0))
        rows.append(
            (
                printable(name),
                "-" if limits.rate_per_s is None else f"{limits.rate_per_s:g}",
                "-" if limits.rate_per_s is None else f"{limits.burst:g}",
                "-" if limits.concurrency is None else str(limits.concurrency),
                str(waiting),
                str(running),
            )
        )
    titles = ("QUEUE", "RATE/S", "BURST", "CONCURRENCY", "WAITING", "RUNNING")
    write_table(titles, rows, right="RATE/S BURST CONCURRENCY WAITING RUNNING")


def until(at: datetime | None, *, now: datetime) -> str:
    """How long until then; how long ago with a minus."""
    if at is None:
        return "-"
    seconds = (at - now).total_seconds()
    return duration(seconds) if seconds >= 0 else f"-{duration(-seconds)}"


def why(run: Run, *, width: int = ERROR_WIDTH) -> str:
    """The reason of a run, in one line of this width."""
    text = run_words.why(run)
    return text if len(text) <= width else text[: width - 1] + "…"


def _moment(at: datetime | None, now: datetime) -> str | None:
    if at is None:
        return None
    seconds = (at - now).total_seconds()
    distance = f"in {duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} ago"
    return f"{_stamp(at)} ({distance})"


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _seconds(value: float | None) -> str:
    return "-" if value is None else run_words.seconds(value)
