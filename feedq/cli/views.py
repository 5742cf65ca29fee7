"""Feeds, workers and events as tables and lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click
import orjson
from rich.text import Text

from feedq import documents
from feedq.cli.invocation import Invocation
from feedq.cli.output import styled, write_facts, write_json, write_table
from feedq.declaration import ABSENT, OptionChange
from feedq.diagnosis.checks import counted
from feedq.lease import stillness_of
from feedq.model import Event, FeedView, Lease, Load, WorkerView
from feedq.report import masked
from feedq.telemetry import mask_url
from feedq.wording import ago, duration, percent, printable, size, why


def write_feeds(views: Sequence[FeedView], *, now: datetime) -> None:
    if not views:
        click.echo("no feeds; declare some with `feedq apply` or `feedq feed add`")
        return
    rows = [
        (
            printable(view.feed.name),
            styled(view.status.value),
            printable(view.worker or "-"),
            str(view.lease.epoch),
            f"{view.lease.records_total:,}",
            size(view.lease.bytes_total),
            ago(view.lease.last_record_at, now=now),
            why(view, now=now),
        )
        for view in views
    ]
    titles = ("NAME", "STATUS", "WORKER", "EPOCH", "RECORDS", "BYTES", "LAST", "WHY")
    write_table(titles, rows, right="EPOCH RECORDS BYTES LAST")


def write_feed(view: FeedView, *, now: datetime, explanation: str | None) -> None:
    feed, lease = view.feed, view.lease
    spec = feed.spec
    write_facts(
        [
            ("name", printable(feed.name)),
            ("status", styled(view.status.value)),
            ("why", None if explanation is None else printable(explanation)),
            ("reason", lease.reason.value if lease.reason else None),
            ("last error", _said(lease.last_error, lease.last_error_at, now)),
            ("attempts", str(lease.attempts) if lease.attempts else None),
            ("failures", _failures(lease)),
            ("sink", _said(lease.sink_error)),
            ("quarantined", _blamed(lease, now)),
            ("retry at", _stamp(lease.retry_at)),
            ("worker", None if view.worker is None else printable(view.worker)),
            ("epoch", str(lease.epoch)),
            ("lease", lease.state.value),
            ("running since", _since(lease.running_since, now)),
            ("records", f"{lease.records_total:,} ({size(lease.bytes_total)})"),
            ("dead letters", f"{lease.dead_letters_total:,}" if lease.dead_letters_total else None),
            ("latest refused", _said(lease.dead_letter_error, lease.dead_letter_at, now)),
            ("last record", _since(lease.last_record_at, now)),
            ("cursor", None if lease.cursor is None else printable(compact(lease.cursor))),
            ("target state", spec.target_state.value),
            ("generation", _generation(view)),
            ("tenant", spec.tenant or None),
            ("labels", _pairs(spec.labels)),
            ("requires", _pairs(spec.selector.required)),
            ("prefers", _pairs(spec.selector.preferred)),
            ("weight", f"{spec.weight:g}"),
            ("counts for", None if lease.weight == spec.weight else f"{lease.weight:.3g}, as measured"),
            ("landing", f"{lease.rows_per_s:,.1f} rows/s, {size(lease.bytes_per_s)}/s"),
            ("created", _since(feed.created_at, now)),
            ("updated", _since(feed.updated_at, now)),
            ("connector", spec.connector),
        ]
    )
    click.echo(_indented("source", spec.source) + _indented("sink", spec.sink), nl=False)


def _said(text: str | None, at: datetime | None = None, now: datetime | None = None) -> str | None:
    """What somebody else said, and when; None if nothing was."""
    if text is None:
        return None
    shown = printable(mask_url(text))
    return shown if now is None else f"{shown} ({_when(at, now)})"


def _failures(lease: Lease) -> str | None:
    if not lease.failures:
        return None
    where = f", on {printable(', '.join(lease.avoid))}" if lease.avoid else ""
    return f"{lease.failures} in a row, with nothing landed since{where}"


def _blamed(lease: Lease, now: datetime) -> str | None:
    if not (lease.blamed or lease.quarantined):
        return None
    lost = f"{counted(lease.blamed, 'worker')} lost to it, the last {_when(lease.blamed_at, now)}"
    return f"{'yes' if lease.quarantined else 'no'}; {lost}: {_said(lease.blame) or 'nobody knows how'}"


def _generation(view: FeedView) -> str:
    wanted, running = view.feed.generation, view.lease.generation
    if view.lease.worker_id is None or running == wanted:
        return str(wanted)
    return f"{wanted} (running with {running})"


def _pairs(labels: Mapping[str, str]) -> str | None:
    return printable(", ".join(f"{key}={value}" for key, value in labels.items())) or None


def _indented(title: str, options: Mapping[str, Any]) -> str:
    text = documents.dump(masked(options)) if options else "(none)\n"
    return f"{title}\n" + "".join(f"  {line}\n" for line in text.splitlines())


def write_events(events: Sequence[Event], *, workers: Mapping[UUID, str]) -> None:
    rows = [
        (
            _stamp(event.at) or "-",
            event.kind,
            "" if event.count == 1 else f"{event.count:,} times since {_stamp(event.since)}",
            "-" if event.epoch is None else str(event.epoch),
            "-" if event.worker_id is None else workers.get(event.worker_id, str(event.worker_id)),
            printable(", ".join(f"{k}={compact(masked(v))}" for k, v in event.detail.items())),
        )
        for event in events
    ]
    write_table(("AT", "KIND", "AGAIN", "EPOCH", "WORKER", "DETAIL"), rows, right="EPOCH")


def load_cells(load: Load) -> tuple[str, ...]:
    """Rows a second, megabytes a second, cores, memory and lag, as the tables of workers show them."""
    return (
        f"{load.rows_per_s:,.0f}",
        f"{load.bytes_per_s / 1e6:,.2f}",
        f"{load.cpu:.2f}",
        size(load.rss),
        f"{1000 * load.loop_lag_s:.0f} ms",
    )


def write_workers(views: Sequence[WorkerView], *, now: datetime) -> None:
    if not views:
        click.echo("no workers; start one with `celery -A feedq worker`, or everything with `feedq up`")
        return
    rows: list[tuple[str | Text, ...]] = [
        (
            printable(view.worker.name),
            styled(view.worker.state.value),
            styled(view.worker.target_state.value),
            f"{view.leases}/{view.worker.capacity}",
            percent(view.leases, view.worker.capacity),
            f"{view.load:,.4g}",
            *load_cells(view.worker.load),
            duration(view.heartbeat_age_s),
            ago(view.worker.started_at, now=now),
            printable(f"{view.worker.host}:{view.worker.pid}"),
            str(view.worker.id)[:8],
            worker_trouble(view),
        )
        for view in views
    ]
    titles = (
        *("NAME", "STATE", "TARGET", "FEEDS", "USED", "LOAD", "ROWS/S", "MB/S"),
        *("CPU", "RSS", "LAG", "HEARTBEAT", "UP", "HOST:PID", "ID", "WHY"),
    )
    write_table(titles, rows, right="FEEDS USED LOAD ROWS/S MB/S CPU RSS LAG HEARTBEAT UP")


def worker_trouble(view: WorkerView) -> str:
    """What is wrong with a worker, on one line; empty for one that fares well."""
    down = view.worker.load.sinks_down
    parts = (
        view.worker.loss,
        stillness_of(view),
        f"cannot write to sink {', '.join(down)}" if down else None,
    )
    return printable("; ".join(part for part in parts if part))


def write_worker(view: WorkerView, *, now: datetime) -> None:
    worker, load = view.worker, view.worker.load
    write_facts(
        [
            ("name", printable(worker.name)),
            ("id", str(worker.id)),
            ("state", styled(worker.state.value)),
            ("why", worker_trouble(view) or None),
            ("target state", styled(worker.target_state.value)),
            ("feeds", f"{view.leases} of {worker.capacity} ({percent(view.leases, worker.capacity)})"),
            ("load", f"{view.load:,.4g}, the sum of their weights"),
            ("job slots", str(worker.job_slots)),
            ("landing", f"{load.rows_per_s:,.0f} rows/s, {size(load.bytes_per_s)}/s"),
            ("host", printable(worker.host)),
            ("pid", str(worker.pid)),
            ("queue", printable(worker.queue)),
            ("version", printable(worker.version)),
            ("labels", _pairs(worker.labels)),
            ("started", _since(worker.started_at, now)),
            ("heartbeat", f"{duration(view.heartbeat_age_s)} ago"),
            ("cpu", f"{load.cpu:.2f} cores"),
            ("rss", size(load.rss)),
            ("loop lag", f"{1000 * load.loop_lag_s:.0f} ms"),
            ("writes to", printable(", ".join(load.sinks_up)) or None),
            ("suspected", _since(worker.suspected_at, now)),
        ]
    )


def write_difference(changes: Iterable[OptionChange]) -> None:
    for change in changes:
        click.echo(f"    {change.option}: {_shown(change.before)} -> {_shown(change.after)}")


def write_done(invocation: Invocation, names: Sequence[str], done: str) -> None:
    """What was done to the feeds of these names."""
    if invocation.json:
        write_json([{"name": name, "result": done} for name in dict.fromkeys(names)])
    else:
        for name in dict.fromkeys(names):
            click.echo(f"{name} {done}")


def _shown(value: Any) -> str:
    return ABSENT if value is ABSENT else printable(compact(masked(value)))


def compact(value: Any) -> str:
    """JSON on one line."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        # An integer beyond 64 bits.
        return str(value)


def _since(at: datetime | None, now: datetime) -> str | None:
    return None if at is None else f"{_stamp(at)} ({ago(at, now=now)} ago)"


def _when(at: datetime | None, now: datetime) -> str:
    return "at an unknown time" if at is None else f"{ago(at, now=now)} ago"


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")
