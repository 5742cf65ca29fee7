"""Feeds, workers, events, and the fleet as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedq.diagnosis import Check, Overview
from feedq.lease import stillness_of
from feedq.model import Event, FeedView, Status, WorkerView
from feedq.report.masking import masked
from feedq.store.insight import FleetState, JobState
from feedq.telemetry import mask_url


def feed_row(view: FeedView) -> dict[str, Any]:
    """One line of `feedq feed list --json`."""
    spec, lease = view.feed.spec, view.lease
    return {
        "id": view.feed.id,
        "name": spec.name,
        "status": view.status.value,
        "because": None if view.because is None else mask_url(view.because),
        "worker": view.worker,
        "epoch": lease.epoch,
        "records_total": lease.records_total,
        "bytes_total": lease.bytes_total,
        "dead_letters_total": lease.dead_letters_total,
        "dead_per_s": lease.dead_per_s,
        "dead_letter_error": None if lease.dead_letter_error is None else mask_url(lease.dead_letter_error),
        "dead_letter_at": lease.dead_letter_at,
        "last_record_at": lease.last_record_at,
        "reason": None if lease.reason is None else lease.reason.value,
        "last_error": None if lease.last_error is None else mask_url(lease.last_error),
        "last_error_at": lease.last_error_at,
        "attempts": lease.attempts,
        "failures": lease.failures,
        "avoid": list(lease.avoid),
        "sink_error": None if lease.sink_error is None else mask_url(lease.sink_error),
        "quarantined": lease.quarantined,
        "blamed": lease.blamed,
        "blamed_at": lease.blamed_at,
        "blame": None if lease.blame is None else mask_url(lease.blame),
        "retry_at": lease.retry_at,
        "promised_to": lease.promised_to,
        "stop_by": lease.stop_by,
        "held_for": lease.held_for,
        "target_state": spec.target_state.value,
        "state": lease.state.value,
        "connected": lease.connected,
        "stalled": lease.stalled,
        "running_since": lease.running_since,
        "tenant": spec.tenant,
        "connector": spec.connector,
        "labels": dict(spec.labels),
        "selector": {"required": dict(spec.selector.required), "preferred": dict(spec.selector.preferred)},
        "weight": spec.weight,
        "load": lease.weight,
        "rows_per_s": lease.rows_per_s,
        "bytes_per_s": lease.bytes_per_s,
        "generation": view.feed.generation,
    }


def feed_document(view: FeedView, *, explanation: str | None) -> dict[str, Any]:
    """`feedq feed show --json`: the line, why it does not stream, its declaration, the rest of its lease."""
    feed, lease = view.feed, view.lease
    return feed_row(view) | {
        "explanation": explanation,
        "source": masked(feed.spec.source),
        "sink": masked(feed.spec.sink),
        "cursor": lease.cursor,
        "worker_id": lease.worker_id,
        "generation_running": lease.generation,
        "assigned_at": lease.assigned_at,
        "created_at": feed.created_at,
        "updated_at": feed.updated_at,
        "removed_at": feed.removed_at,
    }


def worker_row(view: WorkerView) -> dict[str, Any]:
    """One line of `feedq worker list --json`; ``feeds`` are the leases it holds."""
    worker, load = view.worker, view.worker.load
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state.value,
        "target_state": worker.target_state.value,
        "feeds": view.leases,
        "capacity": worker.capacity,
        "load": round(view.load, 6),
        "utilisation": None if not worker.capacity else round(view.leases / worker.capacity, 4),
        "rows_per_s": load.rows_per_s,
        "bytes_per_s": load.bytes_per_s,
        "heartbeat_age_s": round(view.heartbeat_age_s, 3),
        "cpu": load.cpu,
        "rss": load.rss,
        "loop_lag_s": load.loop_lag_s,
        "because": stillness_of(view),
        "sinks_up": list(load.sinks_up),
        "sinks_down": list(load.sinks_down),
        "feeds_reported": load.feeds,
        "job_slots": worker.job_slots,
        "queue": worker.queue,
        "labels": dict(worker.labels),
        "version": worker.version,
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "expires_at": worker.expires_at,
        "suspected_at": worker.suspected_at,
        "loss": worker.loss,
    }


def event_row(event: Event) -> dict[str, Any]:
    return {
        "at": event.at,
        "kind": event.kind,
        "count": event.count,
        "since": event.since,
        "feed_id": event.feed_id,
        "worker_id": event.worker_id,
        "epoch": event.epoch,
        "detail": masked(event.detail),
    }


def status_document(
    numbers: Overview,
    workers: Sequence[WorkerView],
    state: FleetState | None,
    warnings: Sequence[Check],
    *,
    jobs: JobState | None = None,
) -> dict[str, Any]:
    """`feedq status --json`; ``warnings`` are the checks that did not come out well."""
    leader = None if state is None else state.leader
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
            "active": numbers.active,
            "serving": numbers.serving,
            "cordoned": numbers.cordoned,
            "drained": numbers.drained,
            "draining": numbers.draining,
            "capacity": numbers.capacity,
            "capacity_after_loss": numbers.capacity_after_loss,
            "feeds": numbers.held,
            "utilisation": None if numbers.utilisation is None else round(numbers.utilisation, 4),
            "rows_per_s": numbers.rows_per_s,
            "bytes_per_s": numbers.bytes_per_s,
            "spread": None if numbers.spread is None else list(numbers.spread),
            "list": [worker_row(view) for view in workers],
        },
        "beat": None
        if leader is None
        else {
            "host": leader.host,
            "pid": leader.pid,
            "elected_at": leader.elected_at,
            "expires_at": leader.expires_at,
            "leads": leader.leads,
        },
        "reconcile": None
        if state is None
        else {"last_pass_at": state.pass_at, "last_pass_age_s": state.pass_age_s},
        "schedules": None if jobs is None else _schedules(jobs),
        "runs": None if jobs is None else _runs(jobs),
        "warnings": [
            {"name": c.name, "level": c.level.value, "detail": c.detail, "advice": c.advice} for c in warnings
        ],
    }


def _schedules(jobs: JobState) -> dict[str, Any]:
    return {
        "total": jobs.schedules,
        "active": jobs.active,
        "paused": jobs.paused,
        "paused_by_failures": list(jobs.tripped),
        "overdue_s": jobs.overdue_s,
    }


def _runs(jobs: JobState) -> dict[str, Any]:
    return {
        "running": jobs.running,
        "waiting": jobs.waiting,
        "due": jobs.due,
        "oldest_due_s": jobs.oldest_due_s,
        "workers": jobs.workers,
        "slots": jobs.slots,
    }
