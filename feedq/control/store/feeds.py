"""Desired state: the verbs people use on feeds and their backfills, each one transaction that also writes history.

A backfill is a feed of its own, with a lease, a place and a checkpoint of its own, so that whatever is proven of
feeds is proven of it. It begins with the declaration of its parent; from then on the trigger
``feedq.follow_parent`` carries over what becomes of that. It ends in one of three ways, each one transaction
that also tells its parent's history: a pass finds it released as finished, a person cancels it, or its parent is
removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from feedq.control.store.channels import wake_reconcile
from feedq.control.store.database import (
    Aggregate,
    HeldDatabase,
    in_statement,
    in_transaction,
    refused_when_taken,
    storable_json,
)
from feedq.control.store.feed_listing import selected_sql
from feedq.control.store.feed_rows import (
    FEED_COLUMNS,
    JSON_COLUMNS,
    LEASE_COLUMNS,
    OWNER_COLUMNS,
    SPEC_COLUMNS,
    declared_columns,
    event_from,
    feed_from,
    feed_view_from,
    lease_from,
    stored_selector,
)
from feedq.control.store.history import record
from feedq.control.store.leases import brief_cursor, transfer
from feedq.core.authorship import require_own
from feedq.core.lease import first_reason, objection_to_move
from feedq.core.model import (
    JSON,
    ChangedCursor,
    Event,
    Feed,
    FeedBackfill,
    FeedSpec,
    FeedView,
    LeaseState,
    Reason,
    TargetState,
    Version,
    known_as,
    require_version,
)
from feedq.core.placement.base import Transfer
from feedq.core.remedies import command
from feedq.core.selection import Selection
from feedq.errors import Conflict, NotFound
from feedq.telemetry.event_names import EventKind

FEED_VIEWS = f"""
    SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, statement_timestamp() AS now
    FROM feedq.feed f
    LEFT JOIN feedq.lease l ON l.feed_id = f.id
    LEFT JOIN feedq.worker w ON w.id = l.worker_id
"""


_NEXT_GENERATION = "generation = f.generation + 1"
_SPEC = {
    column: f"CAST(:{column} AS jsonb)" if column in JSON_COLUMNS else f":{column}" for column in SPEC_COLUMNS
}
"""The columns of a declaration, with what is written to them."""


CHANGES_KEPT = 20
"""Options of one edit that history keeps: a declaration has fewer, unless somebody makes all of them anew."""


class Feeds(Aggregate):
    """Desired state. Every change marks the feed dirty, writes an event, and wakes reconcile."""

    _wakes = True
    """Whether each change wakes reconcile, and not all of them together."""

    @contextmanager
    def together(self) -> Iterator[Feeds]:
        """Make all that is done with these feeds within the block one transaction: a few hundred changes take
        hardly longer than ten. An error that leaves the block undoes them all."""
        with self._database.transaction() as c:
            several = Feeds(HeldDatabase(self._database, c))
            several._wakes = False
            yield several
            wake_reconcile(c)

    @in_transaction
    def add(self, c: Connection, spec: FeedSpec) -> Feed:
        """Declare a feed. It is not dirty: its lease says all there is to know. Raises `Conflict` when a feed of
        that name exists."""
        with refused_when_taken(f"feed {spec.name!r} exists already; `feedq feed set` changes it"):
            feed = insert_feed(c, spec)
        self._record(c, EventKind.FEED_ADDED, feed)
        return feed

    @in_transaction
    def edit(self, c: Connection, name: str, spec: FeedSpec, *, expected: Version | None = None) -> Feed:
        """Replace the declaration. Unchanged declarations keep their generation. Raises `NotFound`.

        Here and below, ``expected`` is the version that the change was decided for: `Outdated` when it is another.
        """
        current = locked_to_change(c, name, expected)
        spec = spec.completed(current.spec)
        if spec == current.spec:
            return current
        changed = [column for column in _SPEC if getattr(spec, column) != getattr(current.spec, column)]
        columns = ", ".join(f"{column} = {value}" for column, value in _SPEC.items())
        with refused_when_taken(f"feed {spec.name!r} exists already"):
            feed = update_feed(c, current, f"{columns}, {_NEXT_GENERATION}", declared_columns(spec))
        changes = _differences(current.spec, spec)
        self._record(c, EventKind.FEED_EDITED, feed, changed=changed, changes=changes)
        return feed

    @in_transaction
    def set_target(
        self, c: Connection, name: str, target: TargetState, *, expected: Version | None = None
    ) -> Feed:
        current = locked_to_change(c, name, expected)
        if current.spec.target_state is target:
            return current
        feed = update_feed(
            c, current, f"target_state = :target, {_NEXT_GENERATION}", {"target": target.value}
        )
        paused = target is TargetState.PAUSED
        self._record(c, EventKind.FEED_PAUSED if paused else EventKind.FEED_RESUMED, feed)
        return feed

    @in_transaction
    def restart(self, c: Connection, name: str, *, expected: Version | None = None) -> Feed:
        """Bump the generation without a change: the stream stops and starts anew, failures are forgotten."""
        feed = update_feed(c, locked_to_change(c, name, expected), _NEXT_GENERATION)
        self._record(c, EventKind.FEED_RESTARTED, feed)
        return feed

    @in_transaction
    def cursor_changed(self, c: Connection, name: str, change: ChangedCursor) -> Feed:
        """Record that a person changes the cursor in the sink, and restart the feed; called right before the sink
        commits. Raises `NotFound`, and `Forbidden` when the feed is not the author's to change."""
        # The lease first, as everywhere. What its owner reports later is newer.
        shown = """
            UPDATE feedq.lease SET cursor = CAST(:cursor AS jsonb)
            WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = :name AND removed_at IS NULL)
        """
        c.execute(text(shown), {"cursor": storable_json(change.after), "name": name})
        feed = update_feed(c, locked_to_change(c, name, None), _NEXT_GENERATION)
        # Whole, and as texts: jsonb would change some, and a person may set the old one again.
        cursors = {"before": json.dumps(change.before), "after": json.dumps(change.after)}
        self._record(c, EventKind.CURSOR_CHANGED, feed, verb=change.verb, **cursors)
        return feed

    @in_transaction
    def remove(self, c: Connection, name: str, *, expected: Version | None = None) -> Feed:
        """Mark as removed; the feed's rows go once nobody streams it."""
        feed = update_feed(c, locked_to_change(c, name, expected), "removed_at = clock_timestamp()")
        self._record(c, EventKind.FEED_REMOVED, feed)
        return feed

    @in_transaction
    def move(self, c: Connection, name: str, target: UUID, *, stop_within_s: float) -> None:
        """Promise the feed to this worker, and ask its owner to release it within this time.

        Raises `NotFound`, and `Conflict` when the feed cannot be moved as it is (`lease.objection_to_move`).
        Whether the worker may have it is for the caller to say; should it not take feeds by then, the feed
        goes anywhere.
        """
        sql = f"""
            SELECT {FEED_COLUMNS}, {LEASE_COLUMNS} FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
            WHERE f.name = :name AND f.removed_at IS NULL FOR UPDATE OF l
        """
        row = c.execute(text(sql), {"name": name}).one_or_none()
        if row is None:
            _locked(c, name)
            raise Conflict(f"feed {name!r} has no lease at the moment; the next sweep makes one")
        feed, lease = feed_from(row), lease_from(row, row.id)
        # The row of the feed is as it was before the lease was waited for.
        whose = text("SELECT tenant FROM feedq.feed WHERE id = :id")
        require_own(c.execute(whose, {"id": feed.id}).scalar_one(), f"feed {name!r}")
        objection = objection_to_move(feed, lease, target)
        if objection is not None:
            raise Conflict(f"feed {name!r} {objection}")
        name_of = text("SELECT name FROM feedq.worker WHERE id = :id")
        to = c.execute(name_of, {"id": target}).scalar_one_or_none()
        record(c, EventKind.FEED_MOVED, feed_id=feed.id, detail={"to": to or str(target)})
        if lease.state is LeaseState.RUNNING:
            assert lease.worker_id is not None
            transfer(c, [Transfer(feed.id, lease.worker_id, target)], stop_within_s=stop_within_s)
            return
        if lease.state is LeaseState.ASSIGNED:
            # Not claimed: nobody streams it yet, and the message that is out becomes stale.
            whose_it_was = (feed.id, lease.worker_id, lease.epoch)
            record(c, EventKind.LEASE_FREED, *whose_it_was, detail={"reason": Reason.MOVED.value})
        promise = """
            UPDATE feedq.lease SET promised_to = :target, held_for = NULL,
                state = CASE state WHEN 'assigned' THEN 'idle' ELSE state END,
                worker_id = CASE WHEN state <> 'assigned' THEN worker_id END,
                moved_at = CASE WHEN state <> 'assigned' THEN moved_at END,
                retry_at = CASE WHEN held_for IS NULL THEN retry_at END,
                reason = CASE WHEN held_for IS NOT NULL OR (state IN ('idle', 'assigned') AND retry_at IS NULL)
                              THEN 'moved' ELSE reason END
            WHERE feed_id = :feed_id
        """
        c.execute(text(promise), {"target": target, "feed_id": feed.id})
        wake_reconcile(c)

    @in_transaction
    def tell(
        self,
        c: Connection,
        name: str,
        kind: EventKind,
        detail: Mapping[str, Any],
        *,
        before: Version | None = None,
    ) -> None:
        """Write down what somebody did to the feed elsewhere, in its sink say; or is about to do, ``before``
        which the feed has to be of this version, and theirs to change. Raises `NotFound`."""
        feed = _locked(c, name) if before is None else locked_to_change(c, name, before)
        record(c, kind, feed_id=feed.id, detail=detail)

    @in_transaction
    def dead_letters_gone(
        self,
        c: Connection,
        name: str,
        kind: EventKind,
        detail: Mapping[str, int],
        *,
        gone: int,
        are_left: bool,
    ) -> None:
        """Write down that so many dead letters of a feed were replayed or dropped, and whether there are
        others. Raises `NotFound`."""
        feed = _locked(c, name)
        # Without any left the number is right, even where somebody has deleted rows by hand.
        sql = """
            UPDATE feedq.lease SET dead_letters = CASE WHEN :are_left THEN dead_letters - :gone
                ELSE least(dead_letters - :gone, 0) END
            WHERE feed_id = :id
        """
        c.execute(text(sql), {"id": feed.id, "gone": gone, "are_left": are_left})
        if any(detail.values()):
            record(c, kind, feed_id=feed.id, detail=detail)

    def _record(self, c: Connection, kind: EventKind, feed: Feed, **detail: Any) -> None:
        record(c, kind, feed_id=feed.id, detail={"generation": feed.generation, **detail})
        if self._wakes:
            wake_reconcile(c)

    def get(self, name: str) -> Feed:
        return self.view(name).feed

    @in_statement
    def view(self, c: Connection, name: str) -> FeedView:
        sql = FEED_VIEWS + " WHERE f.name = :name ORDER BY f.removed_at DESC NULLS FIRST LIMIT 1"
        row = c.execute(text(sql), {"name": name}).one_or_none()
        if row is None:
            raise no_feed(name)
        return feed_view_from(row)

    # No transaction: to read a hundred thousand of them takes longer than one may rest.
    @in_statement
    def views(self, c: Connection, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        """Return all feeds by name, the ones being removed included."""
        sql = f"""
            {FEED_VIEWS}
            WHERE (CAST(:tenant AS text) IS NULL OR f.tenant = :tenant)
              -- What a worker has is all that it has; elsewhere a backfill is shown with its feed.
              AND CASE WHEN CAST(:worker AS text) IS NULL THEN f.parent IS NULL ELSE w.name = :worker END
            ORDER BY f.name, f.id
        """
        rows = c.execute(text(sql), {"tenant": tenant, "worker": worker})
        return [feed_view_from(row) for row in rows]

    @in_statement
    def selected(
        self,
        c: Connection,
        selection: Selection,
        *,
        limit: int | None = None,
    ) -> list[FeedView]:
        """Return the chosen feeds, by name."""
        sql, parameters = selected_sql(selection, limit)
        return [feed_view_from(row) for row in c.execute(text(sql), parameters)]

    @in_statement
    def count(self, c: Connection) -> int:
        """Return how many there are, without the ones being removed."""
        sql = "SELECT count(*) FROM feedq.feed WHERE removed_at IS NULL AND parent IS NULL"
        found: int = c.execute(text(sql)).scalar_one()
        return found

    @in_statement
    def declared(
        self,
        c: Connection,
        *,
        tenant: str | None = None,
        after: str = "",
        limit: int = 1_000,
    ) -> list[Feed]:
        """A page of feeds by name, from the first one after this name on, without the ones being removed: for
        whoever wants a hundred thousand."""
        sql = f"""
            SELECT {FEED_COLUMNS} FROM feedq.feed f
            WHERE f.removed_at IS NULL AND f.parent IS NULL AND f.name > :after
              AND (CAST(:tenant AS text) IS NULL OR f.tenant = :tenant)
            ORDER BY f.name LIMIT :limit
        """
        rows = c.execute(text(sql), {"tenant": tenant, "after": after, "limit": limit})
        return [feed_from(row) for row in rows]

    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        """Newest first."""
        feed = self.get(name)
        sql = "SELECT * FROM feedq.event WHERE feed_id = :id ORDER BY id DESC LIMIT :limit"
        with self._database.statement() as c:
            return [event_from(row) for row in c.execute(text(sql), {"id": feed.id, "limit": limit})]


def _differences(before: FeedSpec, after: FeedSpec) -> dict[str, list[JSON]]:
    """The options that change, each with both of its values, long ones cut: for people who read history."""
    old, new = _options(before), _options(after)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {name: [brief_cursor(old.get(name)), brief_cursor(new.get(name))] for name in names[:CHANGES_KEPT]}


def _options(spec: FeedSpec) -> dict[str, JSON]:
    found: dict[str, JSON] = {}
    for column in _SPEC:
        value: Any = stored_selector(spec.selector) if column == "selector" else getattr(spec, column)
        if isinstance(value, Mapping):
            found |= {f"{column}.{key}": inner for key, inner in value.items()}
        else:
            found[column] = value
    return found


def insert_feed(c: Connection, spec: FeedSpec, backfill: FeedBackfill | None = None) -> Feed:
    """A new feed, with its lease: that says all that a pass needs to know, so a pass has nothing to do."""
    made = (
        "" if backfill is None else json.dumps({k: v for k, v in asdict(backfill).items() if k != "parent"})
    )
    more = {"parent": None if backfill is None else backfill.parent, "backfill": made or None}
    columns = {**_SPEC, "parent": ":parent", "backfill": "CAST(:backfill AS jsonb)"}
    sql = f"""
        WITH f AS (
            INSERT INTO feedq.feed ({", ".join(columns)}, dirty) VALUES ({", ".join(columns.values())}, false)
            RETURNING *
        ), lease AS (INSERT INTO feedq.lease (feed_id, reason) SELECT id, :reason FROM f)
        SELECT {FEED_COLUMNS} FROM f
    """
    parameters = {**declared_columns(spec), **more, "reason": first_reason(spec).value}
    return feed_from(c.execute(text(sql), parameters).one())


def update_feed(
    c: Connection, feed: Feed, assignments: str, parameters: Mapping[str, Any] = MappingProxyType({})
) -> Feed:
    sql = f"""
        UPDATE feedq.feed f SET {assignments}, dirty = true, updated_at = clock_timestamp()
        WHERE id = :id RETURNING {FEED_COLUMNS}
    """
    return feed_from(c.execute(text(sql), {**parameters, "id": feed.id}).one())


def locked_to_change(c: Connection, name: str, expected: Version | None) -> Feed:
    """The feed, locked. Raises `NotFound`, `Outdated`, `Forbidden` when it is not the author's to change."""
    feed = _locked(c, name)
    require_no_backfill(feed)
    require_version(f"feed {name!r}", feed.version, expected)
    require_own(feed.spec.tenant, f"feed {name!r}")
    return feed


def _locked(c: Connection, name: str) -> Feed:
    sql = f"SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE name = :name AND removed_at IS NULL FOR UPDATE"
    row = c.execute(text(sql), {"name": name}).one_or_none()
    if row is None:
        raise no_feed(name)
    return feed_from(row)


def require_no_backfill(feed: Feed) -> None:
    """Raises `Conflict` for what nobody declared, and nobody edits, pauses or removes but with its feed."""
    if feed.backfill is not None:
        of = known_as(feed.name)
        raise Conflict(
            f"{feed.name!r} is the backfill of feed {of!r} and follows it; "
            f"`{command('feed', 'backfill', 'cancel', of)}` ends it"
        )


def no_feed(name: str) -> NotFound:
    return NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")


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
