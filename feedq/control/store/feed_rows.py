"""Rows of the control tables as values of `feedq.core.model`, and the column lists that select them.

The fields of a lease, a worker's load and an event are called like their columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from feedq.core import lease as policy
from feedq.core.expectations import unmet_said
from feedq.core.model import (
    ANYWHERE,
    Event,
    Feed,
    FeedBackfill,
    FeedSpec,
    FeedView,
    Identity,
    Lease,
    LeaseState,
    Load,
    Reason,
    Selector,
    TargetState,
    Unmet,
    Worker,
    WorkerState,
    WorkerTarget,
)

_LEASE_FIELDS = [field.name for field in fields(Lease) if field.name != "feed_id"]
_WORKER_FIELDS = [field.name for field in fields(Worker) if field.name != "load"]
LOAD_FIELDS = [field.name for field in fields(Load)]
_STATE, _REASON, _AVOID = map(_LEASE_FIELDS.index, ("state", "reason", "avoid"))
_worker_values = attrgetter(*_WORKER_FIELDS)
_event_values = attrgetter(*(field.name for field in fields(Event)))

FEED_COLUMNS = (
    "f.id, f.name, f.tenant, f.connector, f.source, f.sink, f.labels, f.selector, "
    "f.weight AS feed_weight, f.target_state, f.generation AS feed_generation, f.created_at, f.updated_at, "
    "f.stream_generation, f.initial_cursor, f.expect, f.removed_at, f.catalog, f.uuid AS feed_uuid, f.parent, "
    "f.backfill, (SELECT id FROM feedq.installation) AS installation"
)
SPEC_COLUMNS = tuple(key for key in FeedSpec.model_fields if key != "resume")
"""The columns of a declaration, called like its keys."""
LEASE_COLUMNS = ", ".join(f"l.{name}" for name in _LEASE_FIELDS).replace(
    "l.dead_letters,", "greatest(l.dead_letters, 0) AS dead_letters,"
)
WORKER_COLUMNS = ", ".join(f"w.{name}" for name in (*_WORKER_FIELDS, *LOAD_FIELDS))
OWNER_COLUMNS = (
    "w.name AS worker_name, w.loop_lag_s, w.heartbeat_at, w.expires_at, "
    "ARRAY(SELECT jsonb_build_array(u.kind, extract(epoch FROM u.since), u.bound, u.found, u.why) "
    "FROM feedq.unmet u WHERE u.feed_id = f.id ORDER BY u.since, u.kind) AS unmet"
)
"""The columns of the worker that has a feed, beside ``now``: the moment to judge it at; and what is not as
expected of the feed."""


def selector_from(stored: Mapping[str, Mapping[str, str]] | None) -> Selector:
    return Selector.of(stored) if stored else ANYWHERE


def stored_selector(selector: Selector) -> dict[str, dict[str, str]]:
    """Writes a selector as its column holds it, without parts that say nothing."""
    return {name: dict(part) for name, part in selector if part}


def declared_columns(spec: FeedSpec) -> dict[str, Any]:
    """Writes a declaration as its columns hold it."""
    values = {column: getattr(spec, column) for column in SPEC_COLUMNS}
    target = spec.target_state or TargetState.RUNNING
    return {**values, "selector": stored_selector(spec.selector), "target_state": target}


def avoided_from(stored: Mapping[str, float] | None) -> tuple[tuple[str, datetime], ...]:
    """The workers on which a feed failed, by name, each with the time; the latest last."""
    failed = sorted((stored or {}).items(), key=lambda one: one[1])
    return tuple((name, datetime.fromtimestamp(at, UTC)) for name, at in failed)


def feed_from(row: Any) -> Feed:
    spec = FeedSpec.of(
        {
            "name": row.name,
            "connector": row.connector,
            "source": row.source,
            "sink": row.sink,
            "tenant": row.tenant,
            "labels": row.labels,
            "selector": selector_from(row.selector),
            "weight": row.feed_weight,
            "target_state": TargetState(row.target_state),
            "initial_cursor": row.initial_cursor,
            "expect": row.expect,
        }
    )
    identity = Identity(row.feed_uuid, row.installation)
    backfill = None if row.parent is None else FeedBackfill(row.parent, **row.backfill)
    return Feed(
        row.id,
        spec,
        row.feed_generation,
        row.created_at,
        row.updated_at,
        identity,
        row.removed_at,
        row.catalog,
        backfill,
        row.stream_generation,
    )


def lease_from(row: Any, feed_id: int) -> Lease:
    # By position, which is faster than by name: the columns stand side by side, in the order of the fields.
    first = row._fields.index(_LEASE_FIELDS[0])
    values = list(row[first : first + len(_LEASE_FIELDS)])
    values[_STATE] = LeaseState(values[_STATE])
    values[_REASON] = None if values[_REASON] is None else Reason(values[_REASON])
    values[_AVOID] = dict(avoided_from(values[_AVOID]))
    return Lease(feed_id, *values)


def feed_view_from(row: Any) -> FeedView:
    """Reads `FEED_COLUMNS`, `LEASE_COLUMNS` and `OWNER_COLUMNS`, joined from the left, and ``now``."""
    feed = feed_from(row)
    # No lease row yet (or any more): the next pass makes one.
    its_lease = Lease(feed.id) if row.epoch is None else lease_from(row, feed.id)
    owner = None
    if row.worker_name is not None:
        owner = policy.Owner(row.worker_name, row.loop_lag_s, row.heartbeat_at, row.expires_at)
    found = policy.standing(feed, its_lease, owner, now=row.now)
    unmet = tuple(
        Unmet(kind, datetime.fromtimestamp(since, UTC), unmet_said(kind, bound, float(amount), why))
        for kind, since, bound, amount, why in row.unmet
    )
    return FeedView(feed, its_lease, row.worker_name, found.status, found.because, unmet)


def worker_from(row: Any) -> Worker:
    values = dict(zip(_WORKER_FIELDS, _worker_values(row), strict=True))
    values["state"], values["target_state"] = WorkerState(row.state), WorkerTarget(row.target_state)
    load = {name: getattr(row, name) for name in LOAD_FIELDS}
    load["sinks_up"], load["sinks_down"] = tuple(row.sinks_up), tuple(row.sinks_down)
    return Worker(**values, load=Load(**load))


def event_from(row: Any) -> Event:
    return Event(*_event_values(row))
