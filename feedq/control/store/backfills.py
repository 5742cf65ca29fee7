"""Backfills: rows of `feedq.feed` beside those that people declare.

A backfill is a feed of its own, with a lease, a place and a checkpoint of its own, so that whatever is proven of
feeds is proven of it. It begins with the declaration of its parent; from then on the trigger
``feedq.follow_parent`` carries over what becomes of that. It ends in one of three ways, each one transaction
that also tells its parent's history: a pass finds it released as finished, a person cancels it, or its parent is
removed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from feedq.control.store.channels import wake_reconcile
from feedq.control.store.database import Aggregate, in_statement, in_transaction, refused_when_taken
from feedq.control.store.feed_rows import event_from, feed_view_from
from feedq.control.store.feeds import FEED_VIEWS, insert_feed, locked_to_change, update_feed
from feedq.control.store.history import record
from feedq.control.store.leases import brief_cursor
from feedq.core.model import Event, Feed, FeedBackfill, FeedSpec, FeedView, TargetState
from feedq.core.remedies import command
from feedq.errors import Conflict, NotFound
from feedq.telemetry.event_names import EventKind

_ENDS = (EventKind.BACKFILL_FINISHED, EventKind.BACKFILL_CANCELLED)


class Backfills(Aggregate):
    """The backfills of the control database. Every method may raise `Unavailable`."""

    @in_transaction
    def begin(self, c: Connection, parent: Feed, spec: FeedSpec, backfill: FeedBackfill) -> bool:
        """Begin one of a feed as it was looked at. False: there was one with the same key already.

        Raises `NotFound`, `Outdated`, `Forbidden`, and `Conflict` when one runs, or the feed is paused.
        """
        locked = locked_to_change(c, parent.name, None)
        if backfill.key is not None and _is_known(c, locked.id, backfill.key):
            return False
        locked = locked_to_change(c, parent.name, parent.version)
        if locked.spec.target_state is TargetState.PAUSED:
            raise Conflict(f"feed {parent.name!r} is paused, and its backfill would be too: resume it first")
        show = command("feed", "backfill", "show", parent.name)
        taken = f"feed {parent.name!r} has a backfill already: `{show}`"
        with refused_when_taken(taken):
            insert_feed(c, spec, backfill)
        bounds = {
            "begins_after": brief_cursor(backfill.begins_after),
            "ends_at": brief_cursor(backfill.ends_at),
        }
        record(c, EventKind.BACKFILL_BEGUN, locked.id, detail=bounds | {"key": backfill.key})
        wake_reconcile(c)
        return True

    @in_transaction
    def cancel(self, c: Connection, parent: Feed) -> FeedView:
        """End the backfill of a feed, which has landed what it has. Raises `NotFound`, `Forbidden`."""
        locked = locked_to_change(c, parent.name, None)
        found = _of(c, locked)
        if found is None or found.feed.removed_at is not None:
            raise no_backfill(parent.name)
        update_feed(c, found.feed, "removed_at = clock_timestamp()")
        told = {"records": found.lease.records_total, "cursor": brief_cursor(found.lease.cursor)}
        record(c, EventKind.BACKFILL_CANCELLED, locked.id, detail=told)
        wake_reconcile(c)
        return found

    @in_statement
    def running(self, c: Connection, *, tenant: str | None = None) -> list[FeedView]:
        """All there are, by name."""
        sql = f"""
            {FEED_VIEWS} WHERE f.parent IS NOT NULL AND f.removed_at IS NULL
                AND (CAST(:tenant AS text) IS NULL OR f.tenant = :tenant)
            ORDER BY f.name
        """
        return [feed_view_from(row) for row in c.execute(text(sql), {"tenant": tenant})]

    @in_statement
    def of(self, c: Connection, parent: Feed) -> FeedView | None:
        """The one of a feed, if there is one."""
        return _of(c, parent)

    @in_statement
    def last_end(self, c: Connection, parent: Feed) -> Event | None:
        """How the last one of a feed ended, as far as history goes back."""
        sql = "SELECT * FROM feedq.event WHERE feed_id = :id AND kind = ANY(:kinds) ORDER BY id DESC LIMIT 1"
        found = c.execute(text(sql), {"id": parent.id, "kinds": [kind.value for kind in _ENDS]}).one_or_none()
        return None if found is None else event_from(found)


def no_backfill(name: str) -> NotFound:
    return NotFound(f"feed {name!r} has no backfill; `feedq feed backfill show` shows them all")


def _of(c: Connection, parent: Feed) -> FeedView | None:
    sql = f"{FEED_VIEWS} WHERE f.parent = :id ORDER BY f.removed_at DESC NULLS FIRST LIMIT 1"
    found: Any = c.execute(text(sql), {"id": parent.id}).one_or_none()
    return None if found is None else feed_view_from(found)


def _is_known(c: Connection, parent: int, key: str) -> bool:
    sql = "SELECT 1 FROM feedq.event WHERE feed_id = :id AND kind = :kind AND detail ->> 'key' = :key LIMIT 1"
    known = {"id": parent, "kind": EventKind.BACKFILL_BEGUN.value, "key": key}
    return c.execute(text(sql), known).one_or_none() is not None
