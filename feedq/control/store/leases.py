"""Leases: what owners do with theirs (claim, release, report), and what frees them when an owner is gone.

What each of them promises stands in `feedq/control/sql/leases.sql`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

import msgspec

from feedq.control.store.database import (
    Aggregate,
    Connection,
    Database,
    in_statement,
    in_transaction,
    storable_json,
)
from feedq.control.store.protocol import call, document
from feedq.core.json_texts import read_exactly
from feedq.core.model import (
    JSON,
    Claim,
    FeedKey,
    ProgressReport,
    Reason,
    Release,
    Reported,
    Rewind,
    StopRequest,
)
from feedq.core.values import SAID_CHARS_MAX, storable

CURSOR_CHARS_MAX = 500
BIGINT_MAX = 2**63 - 1
_SAID = ("error", "dead_letter_error", "sink_error", "event_fault")
"""Fields that hold what a source or a sink said."""
_TOLD = {
    kind: tuple(field.name for field in fields(kind) if field.name != "blame")
    for kind in (Release, ProgressReport)
}
"""The fields that the protocol is told; kept, for a worker reports thousands of feeds at a time."""


class Leases(Aggregate):
    """The owner's side of the lease. Each statement matches feed, epoch and worker, or does nothing."""

    def __init__(self, database: Database, *, restart_hold_s: float = 0.0) -> None:
        super().__init__(database)
        self._restart_hold_s = restart_hold_s

    @in_statement
    def claim(self, c: Connection, worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        """assigned → running. Keys that do not match are left out: their messages are stale."""
        # Keys come from messages, which anybody may have forged: a number too large for its column would fail the
        # statement, and with it the claims of all the others.
        possible = [key for key in keys if all(0 < n <= BIGINT_MAX for n in key)]
        feed_ids, epochs = [feed_id for feed_id, _ in possible], [epoch for _, epoch in possible]
        return call(c, "claim", list[Claim], owner=worker_id, feed_ids=feed_ids, epochs=epochs)

    @in_transaction
    def release(self, c: Connection, worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        """running or stopping → idle; wakes reconcile. Returns what matched."""
        given = document([_said(one) for one in releases])
        keys = call(c, "release", list[FeedKey], owner=worker_id, releases=given, hold_s=self._restart_hold_s)
        for r in releases:
            if r.blame is not None and r.key in keys:
                said = storable(f"{r.blame.cause}: {r.blame.said}")
                blamed = {"feed": r.feed_id, "session": worker_id, "is_certain": r.blame.is_certain}
                call(c, "blame", bool, **blamed, said=said)
        return keys

    @in_statement
    def report(self, c: Connection, worker_id: UUID, progress: Sequence[ProgressReport]) -> Reported:
        """Add up progress. What is not among what it answers has been lost, and must be stopped."""
        given = document(
            {
                **_said(p),
                "cursor": msgspec.Raw(storable_json(p.cursor).encode()),
                "rewind": None if p.rewind is None else _detail(p.rewind),
                "noticed": None if p.noticed is None else _noticed(p.noticed),
            }
            for p in progress
        )
        return call(c, "report", Reported, owner=worker_id, progress=given)

    @in_statement
    def assigned(self, c: Connection, worker_id: UUID, *, limit: int) -> list[FeedKey]:
        """Return the assignments that wait for this worker to claim them, whether or not a message says so."""
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = %(worker_id)s AND state = 'assigned' ORDER BY feed_id LIMIT %(limit)s
        """
        return _keys(c, sql, {"worker_id": worker_id, "limit": limit})

    @in_statement
    def stop_requests(self, c: Connection, worker_id: UUID) -> list[StopRequest]:
        sql = """
            SELECT feed_id, epoch, reason FROM feedq.lease
            WHERE worker_id = %(worker_id)s AND state = 'stopping' ORDER BY feed_id
        """
        rows = c.execute(sql, {"worker_id": worker_id})
        return [StopRequest(row.feed_id, row.epoch, Reason(row.reason or "released")) for row in rows]

    @in_statement
    def running_of(self, c: Connection, tenants: Collection[str]) -> dict[str, int]:
        """Return how many feeds of each of these tenants run, on all workers; none is left out."""
        sql = """
            SELECT f.tenant, count(*) AS n FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
            WHERE f.tenant = ANY(%(tenants)s) AND l.state = 'running' GROUP BY f.tenant
        """
        rows = c.execute(sql, {"tenants": list(tenants)})
        return dict.fromkeys(tenants, 0) | {row.tenant: row.n for row in rows}

    @in_statement
    def held(self, c: Connection, worker_id: UUID) -> list[FeedKey]:
        """Return what the database thinks this worker runs (running or stopping)."""
        sql = """
            SELECT feed_id, epoch FROM feedq.lease
            WHERE worker_id = %(worker_id)s AND state IN ('running', 'stopping') ORDER BY feed_id
        """
        return _keys(c, sql, {"worker_id": worker_id})


def _keys(c: Connection, sql: str, parameters: dict[str, Any]) -> list[FeedKey]:
    return [(row.feed_id, row.epoch) for row in c.execute(sql, parameters)]


def _said(given: Release | ProgressReport) -> dict[str, Any]:
    """The fields, with what others have said made fit to be stored."""
    row = {name: getattr(given, name) for name in _TOLD[type(given)]}
    said = {name: storable(row[name]) for name in _SAID if row.get(name) is not None}
    return {**row, **said}


def _noticed(noticed: Mapping[str, str | None]) -> msgspec.Raw:
    cut = {key: said and said[:SAID_CHARS_MAX] for key, said in noticed.items()}
    return msgspec.Raw(storable_json(cut).encode())


def _detail(rewind: Rewind) -> msgspec.Raw:
    cursors = {"from": brief_cursor(rewind.left_at), "to": brief_cursor(rewind.found_at)}
    return msgspec.Raw(storable_json({"sink": rewind.sink, **cursors}).encode())


def brief_cursor(cursor: JSON) -> JSON:
    """The cursor for history, which is to be read, and kept for weeks: a long one as a text that is cut."""
    shown = storable_json(cursor)
    brief: JSON = read_exactly(shown) if len(shown) <= CURSOR_CHARS_MAX else storable(shown)
    return brief
