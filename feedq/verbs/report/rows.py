"""What `--json` and the HTTP API say: the columns of the tables, under the same names.

Fields may be added; none changes its meaning. Passwords in URLs are masked and secrets are references. Arguments
of jobs stand in a schedule's own document only, and what a name gives away as a secret is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from feedq.core.expectations import write_expectations
from feedq.core.landed import LandedBucket, Span
from feedq.core.lease import stillness_of
from feedq.core.model import ChangedCursor, Event, FeedView, Status, WorkerView
from feedq.core.notices import new_fields
from feedq.core.passwords import mask_url
from feedq.core.roles import AccessToken
from feedq.core.schedule.model import QueueDepth, Run, RunState, Schedule, ScheduleView
from feedq.core.schedule.plain import job_to_plain, policy_to_plain, timing_to_plain
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.report.masking import masked, shown
from feedq.verbs.wording import lag_s

if TYPE_CHECKING:
    from feedq.control.store.history import ListedEvent
    from feedq.sinks.base import DeadLetter  # imports what `feedq status` has no use for
    from feedq.verbs.catalogs.syncing import SyncReport
    from feedq.verbs.manifest.changes import Change
    from feedq.verbs.report.fleet_data import FleetData
    from feedq.verbs.report.problem_list import ListedProblem

LEASE_FIELDS = (
    *("epoch", "records_total", "bytes_total", "dead_letters_total", "dead_per_s", "dead_letter_at"),
    *("last_record_at", "reason", "last_error_at", "attempts", "failures", "quarantined", "blamed"),
    *("blamed_at", "retry_at", "promised_to", "stop_by", "held_for", "state", "connected", "stalled"),
    *("running_since", "rows_per_s", "bytes_per_s", "event_at", "noticed"),
)
"""Columns of a lease that are told as they are."""
LEASE_ERRORS = ("dead_letter_error", "last_error", "sink_error", "blame", "event_fault")
"""Columns of a lease that somebody else has written."""
WORKER_FIELDS = (
    *("id", "name", "host", "pid", "state", "target_state", "capacity", "job_slots", "queue", "version"),
    *("started_at", "heartbeat_at", "expires_at", "suspected_at", "loss"),
)
LOAD_FIELDS = ("rows_per_s", "bytes_per_s", "cpu", "rss", "loop_lag_s", "sinks_up", "sinks_down")
OVERVIEW_FIELDS = (
    *("active", "serving", "cordoned", "drained", "draining", "capacity", "capacity_after_loss"),
    *("rows_per_s", "bytes_per_s", "spread"),
)
LANDED_FIELDS = ("at", "rows", "rows_per_s", "dead_letters", "silent_s")
RUN_FIELDS = (
    *("id", "schedule", "key", "kind", "tick_at", "ticks", "due_at", "state", "attempt", "fence", "worker"),
    *("worker_id", "started_at", "deadline_at", "ended_at"),
)
LEADER_FIELDS = ("host", "pid", "elected_at", "expires_at", "leads")
RUN_NUMBERS = ("running", "waiting", "due", "oldest_due_s", "workers", "slots")
SCHEDULE_FIELDS = (
    *("state", "paused_until", "pause_reason", "unreadable", "next_tick_at", "next_fire_at", "failures"),
    "generation",
)


def _fields(of: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _masked(text: str | None) -> str | None:
    return None if text is None else mask_url(text)


# -- feeds and workers -------------------------------------------------------------------------------


def feed_row(view: FeedView) -> dict[str, Any]:
    """Makes one line of `feedq feed list --json`."""
    spec, lease = view.feed.spec, view.lease
    return {
        "id": view.feed.id,
        "name": spec.name,
        "status": view.status,
        "because": _masked(view.because),
        "unmet": [_fields(one, ("kind", "since", "said")) for one in view.unmet],
        "worker": view.worker,
        **_fields(lease, LEASE_FIELDS),
        **{name: _masked(getattr(lease, name)) for name in LEASE_ERRORS},
        "avoid": list(lease.avoid),
        "target_state": spec.target_state,
        "tenant": spec.tenant,
        "connector": spec.connector,
        "labels": dict(spec.labels),
        "selector": {"required": dict(spec.selector.required), "preferred": dict(spec.selector.preferred)},
        "weight": spec.weight,
        "load": lease.weight,
        "generation": view.feed.generation,
        "generation_running": lease.generation,
        "worker_id": lease.worker_id,
    }


def drift_document(view: FeedView, statements: Sequence[str], *, applied: bool) -> dict[str, Any]:
    """Makes `feedq feed drift --json`."""
    return {
        "name": view.feed.name,
        "drift": view.feed.spec.sink.get("drift", "ignore"),
        "fields": new_fields(view.lease.noticed),
        "statements": list(statements),
        "applied": applied,
    }


def feed_document(view: FeedView, *, explanation: str | None) -> dict[str, Any]:
    """Makes `feedq feed show --json`: the line, why it does not stream, its declaration, the rest of its lease."""
    feed, lease = view.feed, view.lease
    return feed_row(view) | {
        "explanation": explanation,
        "source": masked(feed.spec.source),
        "sink": masked(feed.spec.sink),
        "cursor": lease.cursor,
        "initial_cursor": feed.spec.initial_cursor,
        "expect": write_expectations(feed.spec.expect),
        "assigned_at": lease.assigned_at,
        **_fields(feed, ("created_at", "updated_at", "removed_at", "catalog")),
    }


def worker_row(view: WorkerView) -> dict[str, Any]:
    """Makes one line of `feedq worker list --json`; ``feeds`` are the leases it holds."""
    worker, load = view.worker, view.worker.load
    return {
        **_fields(worker, WORKER_FIELDS),
        **_fields(load, LOAD_FIELDS),
        "feeds": view.leases,
        "load": round(view.load, 6),
        "utilisation": None if not worker.capacity else round(view.leases / worker.capacity, 4),
        "heartbeat_age_s": round(view.heartbeat_age_s, 3),
        "because": stillness_of(view),
        "feeds_reported": load.feeds,
        "labels": dict(worker.labels),
    }


def event_row(event: Event) -> dict[str, Any]:
    names = ("at", "kind", "count", "since", "feed_id", "worker_id", "epoch")
    return _fields(event, names) | {"detail": masked(event.detail)}


def listed_event_row(listed: ListedEvent) -> dict[str, Any]:
    """Makes one line of `feedq events --json`."""
    return event_row(listed.event) | _fields(listed, ("id", "feed", "worker"))


def landed_document(span: Span, buckets: Iterable[LandedBucket]) -> dict[str, Any]:
    """Makes `feedq feed history --json`."""
    return {
        "span": span,
        "bucket_s": span.bucket_s,
        "buckets": [_fields(one, LANDED_FIELDS) for one in buckets],
    }


def token_row(token: AccessToken) -> dict[str, Any]:
    """One line of `feedq token list --json`."""
    return asdict(token)


def dead_letter_row(letter: DeadLetter) -> dict[str, Any]:
    """One line of `feedq feed dead-letters list --json`."""
    try:
        record, is_text = letter.record.decode(), True
    except UnicodeDecodeError:
        record, is_text = letter.record.hex(), False
    return {
        "id": letter.id,
        "feed": letter.feed,
        "epoch": letter.epoch,
        "at": letter.at,
        "error": letter.error,
        "cursor": letter.cursor,
        "record" if is_text else "record_hex": record,
    }


def changed_cursor_row(change: ChangedCursor) -> dict[str, Any]:
    """Makes the answer to `feedq feed cursor set --json` and the like."""
    return asdict(change)


def check_row(check: Check) -> dict[str, Any]:
    return asdict(check) | {"advice": check.advice or None}


def problem_row(found: ListedProblem) -> dict[str, Any]:
    return asdict(found)


def status_document(data: FleetData) -> dict[str, Any]:
    """Makes `feedq status --json`; its warnings are the checks that did not come out well."""
    numbers, state, jobs, leader = data.numbers, data.state, data.jobs, data.state.leader
    return {
        "feeds": {
            "total": numbers.feeds,
            "wanted": numbers.wanted,
            "by_status": {s.value: numbers.by_status.get(s, 0) for s in Status},
            "waiting": {reason.value: count for reason, count in sorted(numbers.waiting.items())},
            "moving": numbers.moving,
            "records_total": numbers.records_total,
        },
        "workers": {
            **_fields(numbers, OVERVIEW_FIELDS),
            "feeds": numbers.held,
            "utilisation": None if numbers.utilisation is None else round(numbers.utilisation, 4),
            "list": [worker_row(view) for view in data.workers],
        },
        "beat": None if leader is None else _fields(leader, LEADER_FIELDS),
        "reconcile": {"last_pass_at": state.pass_at, "last_pass_age_s": state.pass_age_s},
        "schedules": _fields(jobs, ("active", "paused", "overdue_s"))
        | {"total": jobs.schedules, "paused_by_failures": list(jobs.tripped)},
        "runs": _fields(jobs, RUN_NUMBERS),
        "warnings": [check_row(check) for check in data.warnings],
    }


def change_row(change: Change) -> dict[str, Any]:
    """Makes one change of `feedq apply --json`."""
    document: dict[str, Any] = {
        "kind": change.noun,
        "name": change.name,
        "action": change.action,
        "options": [
            {"option": o.option, "before": masked(o.before), "after": masked(o.after)} for o in change.options
        ],
    }
    return document if change.note is None else document | {"note": change.note}


def sync_row(report: SyncReport) -> dict[str, Any]:
    """Makes one catalog of `feedq sync --json`."""
    return {
        "name": report.catalog,
        **report.counts,
        "is_same": report.is_same,
        "left_out": [_fields(one, ("where", "name", "what")) for one in report.left_out],
        "changes": list(map(change_row, report.changes)),
    }


# -- schedules and runs ------------------------------------------------------------------------------


def schedule_row(view: ScheduleView) -> dict[str, Any]:
    """Makes a line of one schedule in a list."""
    return schedule_standing(view.schedule) | {
        "waiting": view.waiting,
        "running": view.running,
        "last": None if view.last is None else run_row(view.last),
    }


def schedule_standing(schedule: Schedule) -> dict[str, Any]:
    """Makes the document of a schedule by itself: what a change of it answers."""
    spec = schedule.spec
    return {
        "id": schedule.id,
        "name": spec.name,
        **_fields(schedule, SCHEDULE_FIELDS),
        "timing": timing_to_plain(spec.timing),
        "task": spec.job.task,
        "queue": spec.job.queue,
        "semantics": spec.job.semantics,
    }


def schedule_document(
    view: ScheduleView, *, counts: Mapping[RunState, int], runs: Sequence[Run]
) -> dict[str, Any]:
    """Makes the line of a schedule, the rest of its declaration, its runs by state and the newest of them."""
    schedule = view.schedule
    return schedule_row(view) | {
        "job": shown(job_to_plain(schedule.spec.job)),
        "policy": policy_to_plain(schedule.spec),
        "unserved": view.unserved,
        "counts": {state.value: counts.get(state, 0) for state in RunState},
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "runs": [run_row(run) for run in runs],
    }


def queue_row(row: QueueDepth) -> dict[str, Any]:
    limits, waiting, running = row
    return asdict(limits) | {"waiting": waiting, "running": running}


def run_row(run: Run) -> dict[str, Any]:
    """Makes the document of one run, without the arguments of its job."""
    return _fields(run, RUN_FIELDS) | {
        "correlation_id": f"{run.schedule}/{run.key}",
        "reason": _masked(run.reason),
        "task": run.job.task,
        "queue": run.job.queue,
        "lag_s": lag_s(run),
    }
