"""Desired state: the verbs people use on feeds, each one transaction that also writes history."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from feedq.errors import Conflict, NotFound
from feedq.lease import first_reason
from feedq.model import Event, Feed, FeedSpec, FeedView, TargetState
from feedq.store.channels import WAKE_SQL
from feedq.store.database import Database
from feedq.store.feed_rows import (
    FEED_COLUMNS,
    LEASE_COLUMNS,
    OWNER_COLUMNS,
    event_from,
    feed_from,
    feed_view_from,
    stored_selector,
)
from feedq.store.moves import move
from feedq.telemetry import EventKind

_VIEWS = f"""
    SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, statement_timestamp() AS now
    FROM feedq.feed f
    LEFT JOIN feedq.lease l ON l.feed_id = f.id
    LEFT JOIN feedq.worker w ON w.id = l.worker_id
"""


class PostgresFeeds:
    """`feedq.store.base.Feeds` on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, spec: FeedSpec) -> Feed:
        sql = f"""
            INSERT INTO feedq.feed AS f (name, tenant, connector, source, sink, labels, selector, weight,
                target_state, dirty)
            VALUES (:name, :tenant, :connector, CAST(:source AS jsonb), CAST(:sink AS jsonb),
                    CAST(:labels AS jsonb), CAST(:selector AS jsonb), :weight, :target_state, false)
            RETURNING {FEED_COLUMNS}
        """
        with self._database.transaction() as c:
            try:
                feed = feed_from(c.execute(text(sql), _parameters(spec)).one())
            except IntegrityError as error:
                if getattr(error.orig, "pgcode", None) != "23505":
                    raise
                raise Conflict(f"feed {spec.name!r} exists already; `feedq feed edit` changes it") from None
            # Its lease says all that a pass needs to know, so there is nothing to look at.
            lease = "INSERT INTO feedq.lease (feed_id, reason) VALUES (:id, :reason)"
            c.execute(text(lease), {"id": feed.id, "reason": first_reason(feed).value})
            _record(c, EventKind.FEED_ADDED, feed)
        return feed

    def edit(self, name: str, spec: FeedSpec) -> Feed:
        with self._database.transaction() as c:
            current = _locked(c, name)
            if spec == current.spec:
                return current
            changed = [
                f.name
                for f in dataclasses.fields(FeedSpec)
                if getattr(spec, f.name) != getattr(current.spec, f.name)
            ]
            sql = f"""
                UPDATE feedq.feed f SET name = :name, tenant = :tenant, connector = :connector,
                    source = CAST(:source AS jsonb), sink = CAST(:sink AS jsonb),
                    labels = CAST(:labels AS jsonb), selector = CAST(:selector AS jsonb),
                    weight = :weight, target_state = :target_state,
                    generation = f.generation + 1, dirty = true, updated_at = clock_timestamp()
                WHERE id = :id RETURNING {FEED_COLUMNS}
            """
            try:
                feed = feed_from(c.execute(text(sql), {**_parameters(spec), "id": current.id}).one())
            except IntegrityError as error:
                if getattr(error.orig, "pgcode", None) != "23505":
                    raise
                raise Conflict(f"feed {spec.name!r} exists already") from None
            _record(c, EventKind.FEED_EDITED, feed, changed=changed)
        return feed

    def set_target(self, name: str, target: TargetState) -> Feed:
        with self._database.transaction() as c:
            current = _locked(c, name)
            if current.spec.target_state is target:
                return current
            sql = f"""
                UPDATE feedq.feed f SET target_state = :target, generation = f.generation + 1, dirty = true,
                    updated_at = clock_timestamp()
                WHERE id = :id RETURNING {FEED_COLUMNS}
            """
            feed = feed_from(c.execute(text(sql), {"id": current.id, "target": target.value}).one())
            paused = target is TargetState.PAUSED
            _record(c, EventKind.FEED_PAUSED if paused else EventKind.FEED_RESUMED, feed)
        return feed

    def restart(self, name: str) -> Feed:
        return self._touch(name, "generation = f.generation + 1", EventKind.FEED_RESTARTED)

    def remove(self, name: str) -> Feed:
        return self._touch(name, "removed_at = clock_timestamp()", EventKind.FEED_REMOVED)

    def move(self, name: str, target: UUID, *, stop_within_s: float) -> None:
        with self._database.transaction() as c:
            if not move(c, name, target, stop_within_s=stop_within_s):
                _locked(c, name)
                raise Conflict(f"feed {name!r} has no lease at the moment; the next sweep makes one")

    def get(self, name: str) -> Feed:
        return self.view(name).feed

    def view(self, name: str) -> FeedView:
        sql = _VIEWS + " WHERE f.name = :name ORDER BY f.removed_at DESC NULLS FIRST LIMIT 1"
        with self._database.transaction() as c:
            row = c.execute(text(sql), {"name": name}).one_or_none()
        if row is None:
            raise _not_found(name)
        return feed_view_from(row)

    def views(self, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        sql = (
            _VIEWS
            + """
            WHERE (CAST(:tenant AS text) IS NULL OR f.tenant = :tenant)
              AND (CAST(:worker AS text) IS NULL OR w.name = :worker)
            ORDER BY f.name, f.id
        """
        )
        # No transaction: to read a hundred thousand of them takes longer than one may rest.
        with self._database.statement() as c:
            rows = c.execute(text(sql), {"tenant": tenant, "worker": worker}).all()
        return [feed_view_from(row) for row in rows]

    def declared(self, *, tenant: str | None = None, after: str = "", limit: int = 1_000) -> list[Feed]:
        sql = f"""
            SELECT {FEED_COLUMNS} FROM feedq.feed f
            WHERE f.removed_at IS NULL AND f.name > :after
              AND (CAST(:tenant AS text) IS NULL OR f.tenant = :tenant)
            ORDER BY f.name LIMIT :limit
        """
        with self._database.transaction() as c:
            rows = c.execute(text(sql), {"tenant": tenant, "after": after, "limit": limit}).all()
        return [feed_from(row) for row in rows]

    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        feed = self.get(name)
        sql = "SELECT * FROM feedq.event WHERE feed_id = :id ORDER BY id DESC LIMIT :limit"
        with self._database.transaction() as c:
            rows = c.execute(text(sql), {"id": feed.id, "limit": limit}).all()
        return [event_from(row) for row in rows]

    def _touch(self, name: str, assignment: str, kind: EventKind) -> Feed:
        sql = f"""
            UPDATE feedq.feed f SET {assignment}, dirty = true, updated_at = clock_timestamp()
            WHERE id = :id RETURNING {FEED_COLUMNS}
        """
        with self._database.transaction() as c:
            current = _locked(c, name)
            feed = feed_from(c.execute(text(sql), {"id": current.id}).one())
            _record(c, kind, feed)
        return feed


def _parameters(spec: FeedSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "tenant": spec.tenant,
        "connector": spec.connector,
        "source": orjson.dumps(dict(spec.source)).decode(),
        "sink": orjson.dumps(dict(spec.sink)).decode(),
        "labels": orjson.dumps(dict(spec.labels)).decode(),
        "selector": orjson.dumps(stored_selector(spec.selector)).decode(),
        "weight": spec.weight,
        "target_state": spec.target_state.value,
    }


def _locked(c: Connection, name: str) -> Feed:
    sql = f"SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE name = :name AND removed_at IS NULL FOR UPDATE"
    row = c.execute(text(sql), {"name": name}).one_or_none()
    if row is None:
        raise _not_found(name)
    return feed_from(row)


def _not_found(name: str) -> NotFound:
    return NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")


def _record(c: Connection, kind: EventKind, feed: Feed, **detail: Any) -> None:
    sql = """
        INSERT INTO feedq.event (kind, feed_id, detail) VALUES (:kind, :feed_id, CAST(:detail AS jsonb))
    """
    facts = {"generation": feed.generation, **detail}
    c.execute(text(sql), {"kind": kind.value, "feed_id": feed.id, "detail": orjson.dumps(facts).decode()})
    c.execute(text(WAKE_SQL))
