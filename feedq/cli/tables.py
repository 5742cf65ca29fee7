"""The columns of the tables, for `list` and for `top`, and what is warned of beside schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from feedq.cli.output import Styled, TableColumn, number, state, styled, warn
from feedq.core.landed import LandedBucket
from feedq.core.model import Event, FeedView, WorkerView
from feedq.core.schedule.model import (
    Beat,
    Once,
    QueueDepth,
    Run,
    RunKind,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
)
from feedq.core.values import instant
from feedq.verbs.report.details import event_detail
from feedq.verbs.wording import (
    ERROR_WIDTH,
    ago,
    cut,
    distance,
    duration,
    lag_s,
    pairs,
    percent,
    seconds,
    size,
    stamp,
    timing_words,
    took_s,
    until,
    why,
    why_run,
    worker_trouble,
)

if TYPE_CHECKING:
    from feedq.control.store.history import ListedEvent
    from feedq.control.store.postgresql import JobStore

WARNINGS_MAX = 10
NO_FEEDS = "no feeds; declare some with `feedq apply`"
NO_WORKERS = "no workers; start one with `celery -A feedq worker`, or everything with `feedq up`"


# -- feeds and workers -------------------------------------------------------------------------------


def feed_columns(
    now: datetime,
    *,
    title: str = "NAME",
    rates: Mapping[int, float] | None = None,
    width: int = ERROR_WIDTH,
) -> list[TableColumn[FeedView]]:
    """Makes the columns of feeds; with ``rates``, records a second by feed id, in the place of bytes."""
    amount: TableColumn[FeedView] = number("BYTES", lambda view: size(view.lease.bytes_total))
    if rates is not None:
        amount = number("PER S", lambda view: _whole(rates.get(view.feed.id)))
    return [
        TableColumn(title, lambda view: view.feed.name),
        state("STATUS", lambda view: view.status),
        TableColumn("WORKER", lambda view: view.worker),
        number("EPOCH", lambda view: str(view.lease.epoch)),
        number("RECORDS", lambda view: f"{view.lease.records_total:,}"),
        amount,
        number("LAST", lambda view: ago(view.lease.last_record_at, now=now)),
        TableColumn("WHY", lambda view: why(view, now=now, width=width)),
    ]


def wide_feed_columns(now: datetime) -> list[TableColumn[FeedView]]:
    """Makes the columns of feeds that a wide list has besides."""
    return [
        TableColumn("TENANT", lambda view: view.feed.spec.tenant or None),
        TableColumn("CONNECTOR", lambda view: view.feed.spec.connector),
        TableColumn("LABELS", lambda view: pairs(view.feed.spec.labels) or None),
        number("LAG", lambda view: ago(view.lease.event_at, now=now)),
        number("ROWS/S", lambda view: f"{view.lease.rows_per_s:,.1f}"),
        number("FAILURES", lambda view: str(max(view.lease.failures, view.lease.attempts))),
        number("GENERATION", lambda view: str(view.feed.generation)),
    ]


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


LANDED_COLUMNS: list[TableColumn[LandedBucket]] = [
    TableColumn("FROM", lambda bucket: stamp(bucket.at)),
    number("ROWS", lambda bucket: _whole(bucket.rows)),
    number("ROWS/S", lambda bucket: None if bucket.rows_per_s is None else f"{bucket.rows_per_s:,.4g}"),
    number("DEAD LETTERS", lambda bucket: _whole(bucket.dead_letters)),
    number(
        "LAST RECORD",
        lambda bucket: None if bucket.silent_s is None else f"{duration(bucket.silent_s)} before",
    ),
]


def worker_columns(*, title: str = "NAME", heard: str = "HEARTBEAT") -> list[TableColumn[WorkerView]]:
    """Makes the columns that `top` shows of workers on a narrow terminal."""
    return [
        TableColumn(title, lambda view: view.worker.name),
        state("STATE", lambda view: view.worker.state),
        state("TARGET", lambda view: view.worker.target_state),
        number("FEEDS", lambda view: f"{view.leases}/{view.worker.capacity}"),
        number("USED", lambda view: percent(view.leases, view.worker.capacity)),
        number("ROWS/S", lambda view: f"{view.worker.load.rows_per_s:,.0f}"),
        number("MB/S", lambda view: f"{view.worker.load.bytes_per_s / 1e6:,.2f}"),
        number("CPU", lambda view: f"{view.worker.load.cpu:.2f}"),
        number("RSS", lambda view: size(view.worker.load.rss)),
        number("LAG", lambda view: f"{1000 * view.worker.load.loop_lag_s:.0f} ms"),
        number(heard, lambda view: duration(view.heartbeat_age_s)),
    ]


WORKER_WHY: TableColumn[WorkerView] = TableColumn("WHY", worker_trouble)


def all_worker_columns(now: datetime) -> list[TableColumn[WorkerView]]:
    columns = worker_columns()
    columns.insert(5, number("LOAD", lambda view: f"{view.load:,.4g}"))
    return [
        *columns,
        number("UP", lambda view: ago(view.worker.started_at, now=now)),
        TableColumn("HOST:PID", lambda view: f"{view.worker.host}:{view.worker.pid}"),
        TableColumn("ID", lambda view: str(view.worker.id)[:8]),
        WORKER_WHY,
    ]


# -- history -----------------------------------------------------------------------------------------


def _again(event: Event) -> str:
    return f"{event.count:,} times since {stamp(event.since)}; " if event.since is not None else ""


EVENT_COLUMNS: list[TableColumn[ListedEvent]] = [
    TableColumn("AT", lambda listed: stamp(listed.event.at)),
    TableColumn("KIND", lambda listed: listed.event.kind),
    TableColumn("FEED", lambda listed: listed.feed),
    TableColumn("WORKER", lambda listed: listed.worker),
    TableColumn("DETAIL", lambda listed: _again(listed.event) + event_detail(listed.event)),
]
EVENT_EPOCH: list[TableColumn[ListedEvent]] = [
    number("EPOCH", lambda listed: None if listed.event.epoch is None else str(listed.event.epoch)),
]
"""What a wide list of events has besides."""


# -- schedules and runs ------------------------------------------------------------------------------


def schedule_columns(now: datetime) -> list[TableColumn[ScheduleView]]:
    return [
        TableColumn("NAME", lambda view: view.schedule.spec.name),
        state("STATE", lambda view: view.schedule.state),
        TableColumn("WHEN", lambda view: timing_words(view.schedule.spec.timing).removeprefix("cron ")),
        TableColumn("TASK", lambda view: view.schedule.spec.job.task),
        number("NEXT", lambda view: until(view.schedule.next_fire_at, now=now)),
        number("LAST", lambda view: _last(view, now)),
        TableColumn("RESULT", _result),
        number("WAIT", lambda view: str(view.waiting)),
        number("RUN", lambda view: str(view.running)),
    ]


def urgent_columns(now: datetime) -> list[TableColumn[ScheduleView]]:
    """Makes few columns of schedules, for a view that has other tables beside them."""
    return [
        TableColumn("SCHEDULE", lambda view: view.schedule.spec.name),
        state("STATE", lambda view: view.schedule.state),
        number("NEXT", lambda view: _next(view.schedule, now)),
        TableColumn("LAST", _result),
        number("AGO", lambda view: _last(view, now)),
        number("RUN", lambda view: str(view.running)),
        number("WAIT", lambda view: str(view.waiting)),
    ]


def _last(view: ScheduleView, now: datetime) -> str | None:
    return None if view.last is None else ago(view.last.ended_at or view.last.started_at, now=now)


def _result(view: ScheduleView) -> Styled | None:
    return None if view.last is None else styled(view.last.state)


def _next(schedule: Schedule, now: datetime) -> Styled:
    """Says how long it is until a schedule fires; one that is paused does not."""
    at = None if schedule.state is ScheduleState.PAUSED else schedule.next_fire_at
    return Styled(until(at, now=now), "yellow" if at is not None and at < now else "")


def run_columns(now: datetime, *, of_one: bool) -> list[TableColumn[Run]]:
    """Makes the columns of runs; ``of_one``: all are of one schedule, whose name need not be repeated."""
    key: TableColumn[Run] = TableColumn("RUN", lambda run: f"{run.schedule}/{run.key}")
    return [
        number("ID", lambda run: str(run.id)),
        TableColumn("KEY", lambda run: run.key) if of_one else key,
        TableColumn(
            "STATE", lambda run: styled(run.state, after=f" x{run.ticks:,}" if run.ticks > 1 else "")
        ),
        TableColumn("WORKER", lambda run: run.worker),
        # Of a retry that waits for its time, how long until then.
        number("DUE", lambda run: distance(run.due_at, now=now).removesuffix(" ago")),
        number("LAG", lambda run: seconds(lag_s(run))),
        number("TOOK", lambda run: seconds(took_s(run, now=now))),
        TableColumn("NOTE", _note),
    ]


def _note(run: Run) -> str:
    """Says what kind of run it is unless a tick, which attempt unless the first, and the reason."""
    kind = "" if run.kind is RunKind.TICK else run.kind.value
    attempt = "" if run.attempt == 1 else f"attempt {run.attempt}"
    return "; ".join(filter(None, (kind, attempt, cut(why_run(run), ERROR_WIDTH))))


QUEUE_COLUMNS: list[TableColumn[QueueDepth]] = [
    TableColumn("QUEUE", lambda row: row[0].name),
    number("RATE/S", lambda row: None if row[0].rate_per_s is None else f"{row[0].rate_per_s:g}"),
    number("BURST", lambda row: None if row[0].rate_per_s is None else f"{row[0].burst:g}"),
    number("CONCURRENCY", lambda row: None if row[0].concurrency is None else str(row[0].concurrency)),
    number("WAITING", lambda row: str(row[1])),
    number("RUNNING", lambda row: str(row[2])),
]


# -- warnings beside schedules -----------------------------------------------------------------------


def warn_unserved(jobs: JobStore, names: Collection[str]) -> None:
    """Says of which of these schedules no worker knows the task, or has the labels; the first few."""
    found = jobs.schedules.unserved(names) if names else {}
    _warn_few([f"schedule {name}: {found[name]}" for name in sorted(found)], "; see feedq doctor")


def warn_ended(schedules: Iterable[Schedule], *, now: datetime) -> None:
    """Says which of these schedules have no tick to come, and why; the first few."""
    ended = [one for one in schedules if one.next_tick_at is None and not isinstance(one.spec.timing, Beat)]
    warn_never([schedule.spec for schedule in ended], now=now)


def never_ticks(spec: ScheduleSpec, now: datetime) -> bool:
    """Says whether a declaration has no tick to come."""
    from feedq.core.schedule.ticks import next_tick

    return not isinstance(spec.timing, Beat) and next_tick(spec, after=now) is None


def warn_never(specs: Sequence[ScheduleSpec], *, now: datetime) -> None:
    """Says of these, which have no tick to come, why; the first few."""
    said = [f"schedule {spec.name}: has no tick to come: {_why_ended(spec, now)}" for spec in specs]
    _warn_few(said, " have no tick to come")


def _warn_few(said: Sequence[str], of_others: str) -> None:
    for text in said[:WARNINGS_MAX]:
        warn(text)
    if len(said) > WARNINGS_MAX:
        warn(f"and {len(said) - WARNINGS_MAX:,} more schedules{of_others}")


def _why_ended(spec: ScheduleSpec, now: datetime) -> str:
    if isinstance(spec.timing, Once) and all(at <= now for at in spec.timing.moments):
        return f"at ({instant(max(spec.timing.moments))}) is in the past"
    if spec.end_at is not None and spec.end_at <= now:
        return f"its end ({instant(spec.end_at)}) is in the past"
    return "its start, its end and the days that it leaves out leave none"
