"""The columns of the tables, for `list` and for `top`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from feedq.cli.output import TableColumn, number, state
from feedq.core.model import Event, FeedView, WorkerView
from feedq.core.schedule.model import QueueDepth, Run, RunKind, ScheduleState
from feedq.core.schedule.spec import Queue
from feedq.verbs import wording
from feedq.verbs.details import event_detail

if TYPE_CHECKING:
    from feedq.control.store.history import ListedEvent
    from feedq.verbs.schedules import ScheduleRow

NO_FEEDS = "no feeds; declare some with `feedq apply`"
NO_WORKERS = "no workers; start one with `celery -A feedq worker`, or everything with `feedq up`"


# -- feeds and workers -------------------------------------------------------------------------------


BYTES: TableColumn[FeedView] = number("BYTES", lambda view: wording.size(view.lease.bytes_total))
ROWS_PER_S: TableColumn[FeedView] = number("ROWS/S", lambda view: f"{view.lease.rows_per_s:,.1f}")


def feed_columns(now: datetime, amount: TableColumn[FeedView] = BYTES) -> list[TableColumn[FeedView]]:
    """Makes the columns of feeds."""
    return [
        TableColumn("NAME", lambda view: view.feed.name),
        state("STATUS", lambda view: view.status),
        TableColumn("WORKER", lambda view: view.worker),
        number("EPOCH", lambda view: str(view.lease.epoch)),
        number("RECORDS", lambda view: f"{view.lease.records_total:,}"),
        amount,
        number("LAST", lambda view: wording.ago(view.lease.last_record_at, now=now)),
        TableColumn("WHY", lambda view: wording.why(view, now=now)),
    ]


def wide_feed_columns(now: datetime) -> list[TableColumn[FeedView]]:
    """Makes the columns of feeds that a wide list has besides."""
    return [
        TableColumn("TENANT", lambda view: view.feed.spec.tenant or None),
        TableColumn("CONNECTOR", lambda view: view.feed.spec.connector),
        TableColumn("LABELS", lambda view: wording.pairs(view.feed.spec.labels) or None),
        number("LAG", lambda view: wording.ago(view.lease.event_at, now=now)),
        ROWS_PER_S,
        number("FAILURES", lambda view: str(max(view.lease.failures, view.lease.attempts))),
        number("GENERATION", lambda view: str(view.feed.generation)),
    ]


WORKER_COLUMNS: list[TableColumn[WorkerView]] = [
    TableColumn("NAME", lambda view: view.worker.name),
    state("STATE", lambda view: view.worker.state),
    state("TARGET", lambda view: view.worker.target_state),
    number("FEEDS", lambda view: f"{view.leases}/{view.worker.capacity}"),
    number("USED", lambda view: wording.percent(view.leases, view.worker.capacity)),
    number("LOAD", lambda view: f"{view.load:,.4g}"),
    number("ROWS/S", lambda view: f"{view.worker.load.rows_per_s:,.0f}"),
    number("MB/S", lambda view: f"{view.worker.load.bytes_per_s / 1e6:,.2f}"),
    number("CPU", lambda view: f"{view.worker.load.cpu:.2f}"),
    number("RSS", lambda view: wording.size(view.worker.load.rss)),
    number("LAG", lambda view: f"{1000 * view.worker.load.loop_lag_s:.0f} ms"),
    number("HEARTBEAT", lambda view: wording.duration(view.heartbeat_age_s)),
    TableColumn("WHY", wording.worker_trouble),
]


def worker_columns(now: datetime) -> list[TableColumn[WorkerView]]:
    return [
        *WORKER_COLUMNS[:-1],
        number("UP", lambda view: wording.ago(view.worker.started_at, now=now)),
        TableColumn("HOST:PID", lambda view: f"{view.worker.host}:{view.worker.pid}"),
        TableColumn("ID", lambda view: str(view.worker.id)[: wording.ID_SHOWN]),
        WORKER_COLUMNS[-1],
    ]


# -- history -----------------------------------------------------------------------------------------


def _again(event: Event) -> str:
    return f"{event.count:,} times since {wording.stamp(event.since)}; " if event.since is not None else ""


EVENT_COLUMNS: list[TableColumn[ListedEvent]] = [
    TableColumn("AT", lambda listed: wording.stamp(listed.event.at)),
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


def schedule_columns(now: datetime) -> list[TableColumn[ScheduleRow]]:
    return [
        TableColumn("NAME", lambda row: row.name),
        state("STATE", lambda row: row.state),
        TableColumn("WHEN", lambda row: row.when.removeprefix("cron ")),
        TableColumn("TASK", lambda row: row.task),
        number("NEXT", lambda row: wording.until(_fires_at(row), now=now)),
        number("LAST", lambda row: _last(row, now)),
        state("RESULT", lambda row: None if row.last is None else row.last.state),
        number("WAIT", lambda row: str(row.waiting)),
        number("RUN", lambda row: str(row.running)),
    ]


def _fires_at(row: ScheduleRow) -> datetime | None:
    """When it fires; one that is paused does not."""
    return None if row.state is ScheduleState.PAUSED else row.next_fire_at


def _last(row: ScheduleRow, now: datetime) -> str | None:
    return None if row.last is None else wording.ago(row.last.ended_at or row.last.started_at, now=now)


def run_columns(now: datetime, *, of_one: bool) -> list[TableColumn[Run]]:
    """Makes the columns of runs; ``of_one``: all are of one schedule, whose name need not be repeated."""
    key: TableColumn[Run] = TableColumn("RUN", lambda run: f"{run.schedule}/{run.key}")
    return [
        number("ID", lambda run: str(run.id)),
        TableColumn("KEY", lambda run: run.key) if of_one else key,
        state("STATE", lambda run: run.state + (f" x{run.ticks:,}" if run.ticks > 1 else "")),
        TableColumn("WORKER", lambda run: run.worker),
        # Of a retry that waits for its time, how long until then.
        number("DUE", lambda run: wording.distance(run.due_at, now=now).removesuffix(" ago")),
        number("LAG", lambda run: wording.seconds(run.lag_s)),
        number("TOOK", lambda run: wording.seconds(wording.took_s(run, now=now))),
        TableColumn("NOTE", _note),
    ]


def _note(run: Run) -> str:
    """Says what kind of run it is unless a tick, which attempt unless the first, and the reason."""
    kind = "" if run.kind is RunKind.TICK else run.kind.value
    attempt = "" if run.attempt == 1 else f"attempt {run.attempt}"
    return "; ".join(filter(None, (kind, attempt, wording.cut(wording.why_run(run), wording.ERROR_WIDTH))))


QUEUE_COLUMNS: list[TableColumn[QueueDepth]] = [
    TableColumn("QUEUE", lambda row: row.name),
    number("RATE/S", lambda row: _said(row.limits, "rate_per_s")),
    number("BURST", lambda row: _said(row.limits, "burst") if row.limits and row.limits.rate_per_s else None),
    number("CONCURRENCY", lambda row: _said(row.limits, "concurrency")),
    number("WAITING", lambda row: str(row.waiting)),
    number("RUNNING", lambda row: str(row.running)),
]


def _said(limits: Queue | None, key: str) -> str | None:
    limit = getattr(limits, key, None)
    return None if limit is None else f"{limit:g}"
