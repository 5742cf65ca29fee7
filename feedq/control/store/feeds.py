"""Desired state: the verbs people use on feeds and their backfills, each one transaction that also writes history.

A backfill is a feed of its own, with a lease, a place and a checkpoint of its own, so that whatever is proven of
feeds is proven of it. It begins with the declaration of its parent; from then on the trigger
``feedq.follow_parent`` carries over what becomes of that. It ends in one of three ways, each one transaction
that also tells its parent's history: a pass finds it released as finished, a person cancels it, or its parent is
removed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from feedq.control.store.channels import wake_reconcile
from feedq.control.store.database import (
    Aggregate,
    Connection,
    GivenRows,
    in_statement,
    in_transaction,
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
)
from feedq.control.store.history import HistoryRow, record, record_all
from feedq.control.store.leases import brief_cursor, transfer
from feedq.core.authorship import require_own
from feedq.core.differences import difference
from feedq.core.lease import objection_to_move
from feedq.core.model import (
    ChangedCursor,
    Event,
    Feed,
    FeedBackfill,
    FeedSpec,
    FeedView,
    Lease,
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
from feedq.errors import Conflict, FeedqError, NotFound
from feedq.telemetry.event_names import EventKind

FEED_VIEWS = f"""
    SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, feedq.now() AS now
    FROM feedq.feed f
    LEFT JOIN feedq.lease l ON l.feed_id = f.id
    LEFT JOIN feedq.worker w ON w.id = l.worker_id
"""


CHANGES_KEPT = 20
"""Options of one edit that history keeps: a declaration has fewer, unless somebody makes all of them anew."""
_TYPES = {"weight": "float8"} | dict.fromkeys(JSON_COLUMNS, "jsonb")
_SPEC = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in SPEC_COLUMNS)
_ADDED = GivenRows(f"{_SPEC}, catalog text, parent bigint, backfill jsonb")
_TOUCHED = GivenRows(f"{_SPEC}, catalog text, id bigint, generation bigint, is_removed boolean")
_PROMISED = GivenRows("feed_id bigint, target uuid")
_PROMISE = f"""
    UPDATE feedq.lease l SET promised_to = given.target, held_for = NULL,
        state = CASE state WHEN 'assigned' THEN 'idle' ELSE state END,
        worker_id = CASE WHEN state <> 'assigned' THEN worker_id END,
        moved_at = CASE WHEN state <> 'assigned' THEN moved_at END,
        retry_at = CASE WHEN held_for IS NULL THEN retry_at END,
        reason = CASE WHEN held_for IS NOT NULL OR (state IN ('idle', 'assigned') AND retry_at IS NULL)
                      THEN 'moved' ELSE reason END
    FROM {_PROMISED} WHERE l.feed_id = given.feed_id
"""


@dataclass(frozen=True, slots=True)
class FeedChange:
    """What is to become of one feed."""

    kind: EventKind
    """What history calls it: a feed is added, edited, paused, resumed, restarted or removed."""
    name: str
    spec: FeedSpec | None = None
    """The declaration of a feed that is added or edited."""
    expected: Version | None = None
    """The version that the change was decided for."""
    catalog: str | None = None
    """The catalog that wants it, and that may change nothing but its own feeds."""
    takes_over: bool = False
    """Whether an edit makes the feed one of the catalog's, whoever has declared it."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else history keeps of it."""

    def of(self, feed: Feed | None) -> Feed:
        """The feed as it becomes, which equals the one that is there when nothing changes.

        Raises `NotFound`, `Conflict`, `Outdated`, and `Forbidden` when it is not the author's to change.
        """
        current = require_changeable(self.name, feed, self.expected)
        if self.catalog is not None and not self.takes_over and current.catalog != self.catalog:
            raise Conflict(f"feed {self.name!r} {of_others(current)}")
        match self.kind:
            case EventKind.FEED_REMOVED:
                return replace(current, removed_at=current.updated_at)  # the database says when
            case EventKind.FEED_PAUSED:
                spec, differs = _targeting(current.spec, TargetState.PAUSED)
            case EventKind.FEED_RESUMED:
                spec, differs = _targeting(current.spec, TargetState.RUNNING)
            case EventKind.FEED_EDITED if self.spec is not None:
                spec = self.spec.completed(current.spec)
                differs = bool(difference(current.spec, spec))
            case _:
                return replace(current, generation=current.generation + 1)
        generation = current.generation + differs
        return replace(current, spec=spec, generation=generation, catalog=self.catalog or current.catalog)

    def told(self, before: Feed | None, after: Feed) -> dict[str, Any]:
        """What history keeps of the change."""
        told = {"generation": after.generation, **self.detail}
        if self.catalog is not None:
            told["catalog"] = self.catalog
        if before is not None and self.kind is EventKind.FEED_EDITED:
            found = difference(before.spec, after.spec)
            keys = list(dict.fromkeys(one.option.partition(".")[0] for one in found))
            told["changed"] = keys if before.catalog == after.catalog else [*keys, "catalog"]
            told["changes"] = {
                one.option: [brief_cursor(one.before), brief_cursor(one.after)]
                for one in found[:CHANGES_KEPT]
            }
        return told


def _targeting(spec: FeedSpec, target: TargetState) -> tuple[FeedSpec, bool]:
    """The declaration with another target, and whether that is another one."""
    return spec.model_copy(update={"target_state": target}), spec.target_state is not target


class Feeds(Aggregate):
    """Desired state. Every change marks the feed dirty, writes an event, and wakes reconcile."""

    @in_transaction
    def change(self, c: Connection, changes: Sequence[FeedChange]) -> list[Feed | FeedqError]:
        """Change some hundred feeds, each once, in one transaction; their rows stay locked until it ends.

        Answers each change with the feed as it is then, or with why it was left as it was, which `FeedChange.of`
        says: one feed keeps no other from being changed.
        """
        return _changed(c, changes)

    def _one(self, kind: EventKind, name: str, spec: FeedSpec | None = None) -> Feed:
        return made(self.change([FeedChange(kind, name, spec)])[0])

    def add(self, spec: FeedSpec) -> Feed:
        """Declare a feed. Raises `Conflict` when a feed of that name exists."""
        return self._one(EventKind.FEED_ADDED, spec.name, spec)

    def edit(self, spec: FeedSpec) -> Feed:
        """Replace the declaration. One that is as it was keeps its generation. Raises as `FeedChange.of`, and so
        do the methods below."""
        return self._one(EventKind.FEED_EDITED, spec.name, spec)

    def set_target(self, name: str, target: TargetState) -> Feed:
        is_paused = target is TargetState.PAUSED
        return self._one(EventKind.FEED_PAUSED if is_paused else EventKind.FEED_RESUMED, name)

    def restart(self, name: str) -> Feed:
        """Bump the generation without a change: the stream stops and starts anew, failures are forgotten."""
        return self._one(EventKind.FEED_RESTARTED, name)

    def remove(self, name: str) -> Feed:
        """Mark as removed; the feed's rows go once nobody streams it."""
        return self._one(EventKind.FEED_REMOVED, name)

    @in_transaction
    def cursor_changed(self, c: Connection, name: str, change: ChangedCursor) -> Feed:
        """Record that a person changes the cursor in the sink, and restart the feed; called right before the sink
        commits. Raises `NotFound`, and `Forbidden` when the feed is not the author's to change."""
        # The lease first, as everywhere. What its owner reports later is newer.
        shown = """
            UPDATE feedq.lease SET cursor = CAST(%(cursor)s AS jsonb)
            WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = %(name)s AND removed_at IS NULL)
        """
        c.execute(shown, {"cursor": storable_json(change.after), "name": name})
        # Whole, and as texts: jsonb would change some, and a person may set the old one again.
        cursors = {"before": json.dumps(change.before), "after": json.dumps(change.after)}
        detail = {"verb": change.verb, **cursors}
        return made(_changed(c, [FeedChange(EventKind.CURSOR_CHANGED, name, detail=detail)])[0])

    @in_transaction
    def move(
        self, c: Connection, targets: Sequence[tuple[str, UUID]], *, stop_within_s: float
    ) -> list[FeedqError | None]:
        """Promise each of some hundred feeds to its worker, and ask their owners to release them within this time.

        Answers each with why it cannot be moved as it is (`lease.objection_to_move`), if it cannot. Whether the
        worker may have it is for the caller to say; should it not take feeds by then, the feed goes anywhere.
        """
        ids, names = [target for _, target in targets], [name for name, _ in targets]
        leases = _locked_leases(c, names)
        # Only now: a feed may have changed while its lease was waited for.
        feeds = {feed.name: feed for feed in _declared(c, names=names)}
        rows = c.execute("SELECT id, name FROM feedq.worker WHERE id = ANY(%(ids)s)", {"ids": ids})
        workers = {row.id: row.name for row in rows}
        outcomes: list[FeedqError | None] = []
        running: list[Transfer] = []
        waiting: list[tuple[int, str]] = []
        events: list[HistoryRow] = []
        for name, target in targets:
            try:
                feed, lease = movable(name, feeds.get(name), leases, target)
            except FeedqError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            to = workers.get(target, str(target))
            events.append(HistoryRow(EventKind.FEED_MOVED, feed.id, detail={"to": to}))
            if lease.state is LeaseState.RUNNING and lease.worker_id is not None:
                running.append(Transfer(feed.id, lease.worker_id, target))
                continue
            waiting.append((feed.id, str(target)))
            if lease.state is LeaseState.ASSIGNED:
                # Not claimed: nobody streams it yet, and the message that is out becomes stale.
                freed = (EventKind.LEASE_FREED, feed.id, lease.worker_id, lease.epoch)
                events.append(HistoryRow(*freed, detail={"reason": Reason.MOVED.value}))
        record_all(c, events)
        if running:
            transfer(c, running, stop_within_s=stop_within_s)
        c.execute(_PROMISE, _PROMISED.of(waiting))
        wake_reconcile(c)
        return outcomes

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
        feed = _locked_one(c, name) if before is None else _locked_to_change(c, name, before)
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
        feed = _locked_one(c, name)
        # Without any left the number is right, even where somebody has deleted rows by hand.
        sql = """
            UPDATE feedq.lease SET dead_letters = CASE WHEN %(are_left)s THEN dead_letters - %(gone)s
                ELSE least(dead_letters - %(gone)s, 0) END
            WHERE feed_id = %(id)s
        """
        c.execute(sql, {"id": feed.id, "gone": gone, "are_left": are_left})
        if any(detail.values()):
            record(c, kind, feed_id=feed.id, detail=detail)

    def get(self, name: str) -> Feed:
        return self.view(name).feed

    @in_statement
    def view(self, c: Connection, name: str) -> FeedView:
        sql = FEED_VIEWS + " WHERE f.name = %(name)s ORDER BY f.removed_at DESC NULLS FIRST LIMIT 1"
        row = c.execute(sql, {"name": name}).one_or_none()
        if row is None:
            raise no_feed(name)
        return feed_view_from(row)

    # No transaction: to read a hundred thousand of them takes longer than one may rest.
    @in_statement
    def views(self, c: Connection, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        """Return all feeds by name, the ones being removed included."""
        sql = f"""
            {FEED_VIEWS}
            WHERE (CAST(%(tenant)s AS text) IS NULL OR f.tenant = %(tenant)s)
              -- What a worker has is all that it has; elsewhere a backfill is shown with its feed.
              AND CASE WHEN CAST(%(worker)s AS text) IS NULL THEN f.parent IS NULL ELSE w.name = %(worker)s END
            ORDER BY f.name, f.id
        """
        rows = c.execute(sql, {"tenant": tenant, "worker": worker})
        return [feed_view_from(row) for row in rows]

    @in_statement
    def selected(
        self,
        c: Connection,
        selection: Selection,
        *,
        limit: int | None = None,
    ) -> list[FeedView]:
        """Return the chosen feeds, by name, however many: in one statement, for rows that are built inside a
        transaction keep it idle, which has a limit."""
        sql, parameters = selected_sql(selection, limit)
        return [feed_view_from(row) for row in c.execute(sql, parameters)]

    @in_statement
    def declared(
        self,
        c: Connection,
        *,
        names: Collection[str] | None = None,
        tenant: str | None = None,
        catalog: str | None = None,
    ) -> list[Feed]:
        """Feeds by name, without backfills and those being removed: all of them, or those of these names, of a
        tenant, or of a catalog."""
        return _declared(c, names=names, tenant=tenant, catalog=catalog)

    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        """Newest first."""
        feed = self.get(name)
        sql = "SELECT * FROM feedq.event WHERE feed_id = %(id)s ORDER BY id DESC LIMIT %(limit)s"
        with self._database.statement() as c:
            return [event_from(row) for row in c.execute(sql, {"id": feed.id, "limit": limit})]


def made(outcome: Feed | FeedqError) -> Feed:
    if isinstance(outcome, FeedqError):
        raise outcome
    return outcome


def _changed(c: Connection, changes: Sequence[FeedChange]) -> list[Feed | FeedqError]:
    new = [change for change in changes if change.kind is EventKind.FEED_ADDED]
    added = _insert(c, [(change.spec, change.catalog, None) for change in new if change.spec])
    before = _locked(c, [change.name for change in changes if change.kind is not EventKind.FEED_ADDED])
    outcomes = [_outcome(change, before.get(change.name), added.get(change.name)) for change in changes]
    found = [feed for feed in outcomes if isinstance(feed, Feed)]
    touched = _update(c, [feed for feed in found if feed.name in before and feed != before[feed.name]])
    outcomes = [touched.get(one.id, one) if isinstance(one, Feed) else one for one in outcomes]
    changed = touched.keys() | {feed.id for feed in added.values()}
    record_all(
        c,
        [
            HistoryRow(change.kind, feed.id, detail=change.told(before.get(change.name), feed))
            for change, feed in zip(changes, outcomes, strict=True)
            if isinstance(feed, Feed) and feed.id in changed
        ],
    )
    if changed:
        wake_reconcile(c)
    return outcomes


def _outcome(change: FeedChange, before: Feed | None, added: Feed | None) -> Feed | FeedqError:
    if change.kind is EventKind.FEED_ADDED:
        return added or taken(change.name)
    try:
        return change.of(before)
    except FeedqError as error:
        return error


def _insert(
    c: Connection, feeds: Sequence[tuple[FeedSpec, str | None, FeedBackfill | None]]
) -> dict[str, Feed]:
    """Add the feeds whose names are free, each with its lease: that says all that a pass needs to know, so that a
    pass has nothing to do."""
    columns = ", ".join((*SPEC_COLUMNS, "catalog", "parent", "backfill"))
    # By name: two who add the same feeds must not wait for each other.
    sql = f"""
        WITH f AS (
            INSERT INTO feedq.feed ({columns}, dirty) SELECT {columns}, false FROM {_ADDED} ORDER BY name
            ON CONFLICT (name) WHERE removed_at IS NULL DO NOTHING RETURNING *
        ), leased AS (
            INSERT INTO feedq.lease (feed_id, reason)
            SELECT id, CASE target_state WHEN 'paused' THEN 'paused' ELSE 'new' END FROM f
        )
        SELECT {FEED_COLUMNS} FROM f
    """
    rows = []
    for spec, catalog, backfill in feeds:
        more = None if backfill is None else {k: v for k, v in asdict(backfill).items() if k != "parent"}
        parent = None if backfill is None else backfill.parent
        declared = declared_columns(spec.completed(None)).values()
        rows.append((*declared, catalog, parent, None if more is None else json.dumps(more)))
    return _by_name(c.execute(sql, _ADDED.of(rows))) if rows else {}


def _update(c: Connection, feeds: Sequence[Feed]) -> dict[int, Feed]:
    """Make feeds, whose rows are locked, as they are given. Returns them by id, as they are then."""
    assigned = ", ".join(f"{name} = given.{name}" for name in (*SPEC_COLUMNS, "catalog", "generation"))
    sql = f"""
        UPDATE feedq.feed f SET {assigned}, dirty = true, updated_at = feedq.clock(),
            removed_at = CASE WHEN given.is_removed THEN feedq.clock() END
        FROM {_TOUCHED} WHERE f.id = given.id RETURNING f.id, f.updated_at, f.removed_at
    """
    if not feeds:
        return {}
    rows = [
        (
            *declared_columns(one.spec).values(),
            one.catalog,
            one.id,
            one.generation,
            one.removed_at is not None,
        )
        for one in feeds
    ]
    at = {row.id: row for row in c.execute(sql, _TOUCHED.of(rows))}
    return {
        one.id: replace(one, updated_at=at[one.id].updated_at, removed_at=at[one.id].removed_at)
        for one in feeds
    }


def _locked(c: Connection, names: Collection[str]) -> dict[str, Feed]:
    """Feeds by name, locked in the order in which passes lock them."""
    sql = f"""
        SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE name = ANY(%(names)s) AND removed_at IS NULL
        ORDER BY id FOR UPDATE
    """
    return _by_name(c.execute(sql, {"names": list(names)})) if names else {}


def _declared(
    c: Connection,
    *,
    names: Collection[str] | None = None,
    tenant: str | None = None,
    catalog: str | None = None,
) -> list[Feed]:
    asked = {
        "f.name = ANY(%(names)s)": ("names", None if names is None else list(names)),
        "f.tenant = %(tenant)s": ("tenant", tenant),
        "f.catalog = %(catalog)s": ("catalog", catalog),
    }
    given = {condition: (name, value) for condition, (name, value) in asked.items() if value is not None}
    where = " AND ".join(("f.removed_at IS NULL", "f.parent IS NULL", *given))
    sql = f"SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE {where} ORDER BY f.name"
    return [feed_from(row) for row in c.execute(sql, dict(given.values()))]


def _locked_leases(c: Connection, names: Collection[str]) -> dict[int, Lease]:
    """The leases of feeds, locked, by the ids of their feeds."""
    sql = f"""
        SELECT l.feed_id, {LEASE_COLUMNS} FROM feedq.lease l WHERE l.feed_id IN (
            SELECT id FROM feedq.feed WHERE name = ANY(%(names)s) AND removed_at IS NULL
        ) ORDER BY l.feed_id FOR UPDATE
    """
    rows = c.execute(sql, {"names": list(names)})
    return {row.feed_id: lease_from(row, row.feed_id) for row in rows}


def movable(name: str, feed: Feed | None, leases: Mapping[int, Lease], target: UUID) -> tuple[Feed, Lease]:
    """A feed that may be moved to this worker, and its lease. Raises `NotFound`, `Forbidden`, `Conflict`."""
    if feed is None:
        raise no_feed(name)
    require_own(feed.spec.tenant, f"feed {name!r}")
    lease = leases.get(feed.id)
    if lease is None:
        raise Conflict(f"feed {name!r} has no lease at the moment; the next sweep makes one")
    if (objection := objection_to_move(feed, lease, target)) is not None:
        raise Conflict(f"feed {name!r} {objection}")
    return feed, lease


def _by_name(rows: Iterable[Any]) -> dict[str, Feed]:
    return {row.name: feed_from(row) for row in rows}


def require_changeable(name: str, feed: Feed | None, expected: Version | None) -> Feed:
    """Raises `NotFound`, `Outdated`, `Forbidden` when it is not the author's to change, and `Conflict` for a
    backfill."""
    if feed is None:
        raise no_feed(name)
    require_no_backfill(feed)
    require_version(f"feed {name!r}", feed.version, expected)
    require_own(feed.spec.tenant, f"feed {name!r}")
    return feed


def _locked_to_change(c: Connection, name: str, expected: Version | None = None) -> Feed:
    return require_changeable(name, _locked(c, [name]).get(name), expected)


def _locked_one(c: Connection, name: str) -> Feed:
    if (feed := _locked(c, [name]).get(name)) is None:
        raise no_feed(name)
    return feed


def require_no_backfill(feed: Feed) -> None:
    """Raises `Conflict` for what nobody declared, and nobody edits, pauses or removes but with its feed."""
    if feed.backfill is not None:
        of = known_as(feed.name)
        raise Conflict(
            f"{feed.name!r} is the backfill of feed {of!r} and follows it; "
            f"`{command('feed', 'backfill', 'cancel', of)}` ends it"
        )


def taken(name: str) -> Conflict:
    return Conflict(f"feed {name!r} exists already; `feedq feed set` changes it")


def of_others(feed: Feed) -> str:
    whose = "declared by hand" if feed.catalog is None else f"made from catalog {feed.catalog!r}"
    return f"was {whose}, and is left alone"


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
        locked = _locked_to_change(c, parent.name)
        if backfill.key is not None and _is_known(c, locked.id, backfill.key):
            return False
        locked = _locked_to_change(c, parent.name, parent.version)
        if locked.spec.target_state is TargetState.PAUSED:
            raise Conflict(f"feed {parent.name!r} is paused, and its backfill would be too: resume it first")
        show = command("feed", "backfill", "show", parent.name)
        taken = f"feed {parent.name!r} has a backfill already: `{show}`"
        if not _insert(c, [(spec, None, backfill)]):
            raise Conflict(taken)
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
        locked = _locked_to_change(c, parent.name)
        found = _of(c, locked)
        if found is None or found.feed.removed_at is not None:
            raise no_backfill(parent.name)
        _update(c, [replace(found.feed, removed_at=found.feed.updated_at)])
        told = {"records": found.lease.records_total, "cursor": brief_cursor(found.lease.cursor)}
        record(c, EventKind.BACKFILL_CANCELLED, locked.id, detail=told)
        wake_reconcile(c)
        return found

    @in_statement
    def running(self, c: Connection, *, tenant: str | None = None) -> list[FeedView]:
        """All there are, by name."""
        sql = f"""
            {FEED_VIEWS} WHERE f.parent IS NOT NULL AND f.removed_at IS NULL
                AND (CAST(%(tenant)s AS text) IS NULL OR f.tenant = %(tenant)s)
            ORDER BY f.name
        """
        return [feed_view_from(row) for row in c.execute(sql, {"tenant": tenant})]

    @in_statement
    def of(self, c: Connection, parent: Feed) -> FeedView | None:
        """The one of a feed, if there is one."""
        return _of(c, parent)

    @in_statement
    def last_end(self, c: Connection, parent: Feed) -> Event | None:
        """How the last one of a feed ended, as far as history goes back."""
        sql = "SELECT * FROM feedq.event WHERE feed_id = %(id)s AND kind = ANY(%(kinds)s) ORDER BY id DESC LIMIT 1"
        found = c.execute(sql, {"id": parent.id, "kinds": [kind.value for kind in _ENDS]}).one_or_none()
        return None if found is None else event_from(found)


def no_backfill(name: str) -> NotFound:
    return NotFound(f"feed {name!r} has no backfill; `feedq feed backfill show` shows them all")


def _of(c: Connection, parent: Feed) -> FeedView | None:
    sql = f"{FEED_VIEWS} WHERE f.parent = %(id)s ORDER BY f.removed_at DESC NULLS FIRST LIMIT 1"
    found: Any = c.execute(sql, {"id": parent.id}).one_or_none()
    return None if found is None else feed_view_from(found)


def _is_known(c: Connection, parent: int, key: str) -> bool:
    sql = """
        SELECT 1 FROM feedq.event
        WHERE feed_id = %(id)s AND kind = %(kind)s AND detail ->> 'key' = %(key)s LIMIT 1
    """
    known = {"id": parent, "kind": EventKind.BACKFILL_BEGUN.value, "key": key}
    return c.execute(sql, known).one_or_none() is not None
