"""Rows of the control tables as values of `feedq.model`, and the column lists that select them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from feedq import lease as policy
from feedq.model import (
    ANYWHERE,
    Event,
    Feed,
    FeedSpec,
    FeedView,
    Identity,
    Lease,
    LeaseState,
    Load,
    Reason,
    Selector,
    TargetState,
    Worker,
    WorkerState,
    WorkerTarget,
    WorkerView,
)

FEED_COLUMNS = (
    "f.id, f.name, f.tenant, f.connector, f.source, f.sink, f.labels, f.selector, "
    "f.weight AS feed_weight, f.target_state, f.generation AS feed_generation, f.created_at, f.updated_at, "
    "f.removed_at, f.uuid AS feed_uuid, (SELECT id FROM feedq.installation) AS installation"
)
LEASE_COLUMNS = (
    "l.epoch, l.state, l.reason, l.worker_id, l.generation, l.assigned_at, l.running_since, l.retry_at, "
    "l.attempts, l.last_error, l.last_error_at, l.connected, l.stalled, l.records_total, l.bytes_total, "
    "l.dead_letters_total, l.last_record_at, l.cursor, l.promised_to, l.moved_at, l.stop_by, l.held_for, "
    "l.weight, l.rows_per_s, l.bytes_per_s, l.reported_at, l.failures, l.avoid, l.dead_per_s, "
    "l.dead_letter_error, l.dead_letter_at, l.sink_error, l.blamed, l.blamed_at, l.blame, l.quarantined, "
    "l.lost_worker, l.lost_at"
)
WORKER_COLUMNS = (
    "w.id, w.name, w.queue, w.capacity, w.labels, w.host, w.pid, w.version, w.state, w.lock_key, "
    "w.started_at, w.heartbeat_at, w.expires_at, w.suspected_at, w.feeds, w.cpu, w.rss, w.loop_lag_s, "
    "w.rows_per_s, w.bytes_per_s, w.target_state, w.job_slots, w.sinks_up, w.sinks_down, w.loss"
)

OWNER_COLUMNS = "w.name AS worker_name, w.loop_lag_s, w.heartbeat_at, w.expires_at"
"""Of the worker that has a feed, beside ``now``: the moment to judge it at."""


def selector_from(stored: Mapping[str, Mapping[str, str]] | None) -> Selector:
    return Selector(stored.get("required", {}), stored.get("preferred", {})) if stored else ANYWHERE


def stored_selector(selector: Selector) -> dict[str, dict[str, str]]:
    """As its column holds it: parts that say nothing are left out."""
    parts = {"required": dict(selector.required), "preferred": dict(selector.preferred)}
    return {name: part for name, part in parts.items() if part}


def avoided_from(stored: Mapping[str, float] | None) -> tuple[tuple[str, datetime], ...]:
    """The workers on which a feed failed, by name, each with the time; the latest last."""
    failed = sorted((stored or {}).items(), key=lambda one: one[1])
    return tuple((name, datetime.fromtimestamp(at, UTC)) for name, at in failed)


def feed_from(row: Any) -> Feed:
    spec = FeedSpec(
        name=row.name,
        connector=row.connector,
        source=row.source,
        sink=row.sink,
        tenant=row.tenant,
        labels=row.labels,
        selector=selector_from(row.selector),
        weight=row.feed_weight,
        target_state=TargetState(row.target_state),
    )
    identity = Identity(row.feed_uuid, row.installation)
    return Feed(row.id, spec, row.feed_generation, row.created_at, row.updated_at, row.removed_at, identity)


def lease_from(row: Any, feed_id: int) -> Lease:
    return Lease(
        feed_id=feed_id,
        epoch=row.epoch,
        state=LeaseState(row.state),
        reason=None if row.reason is None else Reason(row.reason),
        worker_id=row.worker_id,
        generation=row.generation,
        assigned_at=row.assigned_at,
        running_since=row.running_since,
        retry_at=row.retry_at,
        attempts=row.attempts,
        last_error=row.last_error,
        last_error_at=row.last_error_at,
        connected=row.connected,
        stalled=row.stalled,
        records_total=row.records_total,
        bytes_total=row.bytes_total,
        dead_letters_total=row.dead_letters_total,
        last_record_at=row.last_record_at,
        cursor=row.cursor,
        promised_to=row.promised_to,
        moved_at=row.moved_at,
        stop_by=row.stop_by,
        held_for=row.held_for,
        weight=row.weight,
        rows_per_s=row.rows_per_s,
        bytes_per_s=row.bytes_per_s,
        reported_at=row.reported_at,
        failures=row.failures,
        avoid=dict(avoided_from(row.avoid)),
        dead_per_s=row.dead_per_s,
        dead_letter_error=row.dead_letter_error,
        dead_letter_at=row.dead_letter_at,
        sink_error=row.sink_error,
        blamed=row.blamed,
        blamed_at=row.blamed_at,
        blame=row.blame,
        quarantined=row.quarantined,
        lost_worker=row.lost_worker,
        lost_at=row.lost_at,
    )


def feed_view_from(row: Any) -> FeedView:
    """From `FEED_COLUMNS`, `LEASE_COLUMNS` and `OWNER_COLUMNS`, joined from the left, and ``now``."""
    feed = feed_from(row)
    # No lease row yet (or any more): the next pass makes one.
    its_lease = Lease(feed.id) if row.epoch is None else lease_from(row, feed.id)
    owner = None
    if row.worker_name is not None:
        owner = policy.Owner(row.worker_name, row.loop_lag_s, row.heartbeat_at, row.expires_at)
    found = policy.standing(feed, its_lease, owner, now=row.now)
    return FeedView(feed, its_lease, row.worker_name, found.status, found.because)


def worker_from(row: Any) -> Worker:
    return Worker(
        id=row.id,
        name=row.name,
        queue=row.queue,
        capacity=row.capacity,
        host=row.host,
        pid=row.pid,
        version=row.version,
        labels=row.labels,
        state=WorkerState(row.state),
        lock_key=row.lock_key,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        expires_at=row.expires_at,
        load=Load(
            row.feeds,
            row.cpu,
            row.rss,
            row.loop_lag_s,
            row.rows_per_s,
            row.bytes_per_s,
            tuple(row.sinks_up),
            tuple(row.sinks_down),
        ),
        suspected_at=row.suspected_at,
        target_state=WorkerTarget(row.target_state),
        job_slots=row.job_slots,
        loss=row.loss,
    )


def worker_view_from(row: Any) -> WorkerView:
    return WorkerView(worker_from(row), row.leases, row.heartbeat_age_s, row.promised, row.load)


def event_from(row: Any) -> Event:
    return Event(row.at, row.kind, row.feed_id, row.worker_id, row.epoch, row.detail, row.count, row.since)
