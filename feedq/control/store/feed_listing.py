"""Feeds for pages that must stay quick with a million of them: one page at a time, and numbers.

The database filters, sorts and counts; what crosses is one page of rows. The status of a feed, elsewhere decided
by `feedq.lease.standing`, is said once more here, in SQL; a test compares the two over every combination. Reads
only, one transaction a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from feedq.control.store.database import Aggregate, Connection, Rows, in_transaction
from feedq.control.store.feed_rows import (
    FEED_COLUMNS,
    LEASE_COLUMNS,
    OWNER_COLUMNS,
    feed_from,
    feed_view_from,
)
from feedq.core.lease import FAILING_FROM, LAGS_S, REFUSING_S, SILENT_AFTER, WAITS_ANEW
from feedq.core.model import Concern, Feed, FeedView, Reason, Status
from feedq.core.selection import FAILING, Selection, SelectionOrder, like

PAGE_MAX = 1000
"""Rows of one page: what a browser still shows at once, and one answer of the API holds."""
LATELY_S = 86_400.0
"""Dead letters are warned of for this long: until somebody has had a working day to look at them."""
GROUPS_MAX = 500
"""Different labels that feeds may require, in one answer."""
LOOKED_UP_MAX = 1000
"""Feeds found by a text that are then looked up one by one; of more, all tables are joined and read through."""
EVERY = Selection(removing=True)
_What = tuple[Status | Concern, Reason | None]
"""What is wrong with feeds, and of those that wait, what for."""
STATEMENT_TIMEOUT_S = 30
"""A page that nobody waits for any more must not keep the control database busy."""


@dataclass(frozen=True, slots=True)
class StatusCount:
    """Feeds that share a status and a reason, counted."""

    status: Status
    reason: Reason | None
    feeds: int
    wanted: int
    """The feeds that ask for a place on a worker: neither paused nor failed nor being removed."""
    records_total: int
    refused: int = 0
    """The feeds with dead letters, the latest of which was refused within `LATELY_S`."""
    rows_per_s: float = 0.0
    """What those that stream land together, as their workers last said."""


@dataclass(frozen=True, slots=True)
class TroubledFeeds:
    """Feeds of one tenant with which the same is wrong."""

    cause: Status | Concern
    reason: Reason | None
    tenant: str
    feeds: int
    of: int
    """Feeds of all tenants with which this is wrong."""
    since: datetime | None
    """Since when the first of them, or of the first few; None when nobody knows."""
    views: Sequence[FeedView]
    """The first few."""


@dataclass(frozen=True, slots=True)
class RequiredLabels:
    """Feeds that ask for a place on a worker with these labels."""

    required: Mapping[str, str]
    feeds: int
    names: Sequence[str]
    """The first few."""


@dataclass(frozen=True, slots=True)
class SinkUse:
    """Feeds that name the same sink."""

    name: str
    feeds: int
    examples: Sequence[Feed]
    """One for each of the first tables."""


# The same decision as `feedq.lease.standing`; a feed without a lease row counts as idle.
# Feeds that run come first, for they are the most.
_WAITS_ANEW = ", ".join(f"'{reason}'" for reason in sorted(filter(None, WAITS_ANEW)))
_STATUS = f"""
    CASE
        WHEN l.state = 'running' THEN CASE
            WHEN l.reason = 'failed' AND NOT l.connected THEN 'failed'
            WHEN l.quarantined THEN 'quarantined'
            WHEN w.stands_still THEN 'stalled'
            WHEN l.sink_error IS NOT NULL THEN 'sink_unavailable'
            WHEN l.dead_per_s > l.rows_per_s
                AND %(now)s - l.dead_letter_at < make_interval(secs => {REFUSING_S}) THEN 'refusing'
            WHEN l.stalled AND l.attempts < {FAILING_FROM} THEN 'stalled'
            WHEN l.failures >= {FAILING_FROM} THEN 'failing'
            WHEN l.stalled THEN 'stalled'
            WHEN l.connected THEN 'streaming'
            ELSE 'connecting'
        END
        WHEN l.state = 'stopping' AND f.removed_at IS NOT NULL THEN 'removing'
        WHEN l.state = 'stopping' THEN 'stopping'
        WHEN coalesce(l.state, 'idle') = 'idle' AND f.removed_at IS NOT NULL THEN 'removing'
        WHEN coalesce(l.state, 'idle') = 'idle' AND f.target_state = 'paused' THEN 'paused'
        WHEN l.reason = 'failed' AND NOT l.connected THEN 'failed'
        WHEN l.quarantined THEN 'quarantined'
        WHEN l.failures >= {FAILING_FROM}
            AND NOT (l.state = 'idle' AND coalesce(l.reason IN ({_WAITS_ANEW}), true)) THEN 'failing'
        WHEN l.state = 'assigned' THEN 'starting'
        WHEN l.reason = 'backoff' THEN 'backoff'
        ELSE 'waiting'
    END
"""
_DECLARED = "f.parent IS NULL"
"""A backfill is shown with its feed, and not counted beside it."""
_WANTED = "f.removed_at IS NULL AND f.target_state = 'running'"
# Whether a worker stands still is found out once a worker, not once a feed: OFFSET 0 is a fence here, too.
_FROM = f"""
    FROM feedq.feed f
    LEFT JOIN feedq.lease l ON l.feed_id = f.id
    LEFT JOIN (
        SELECT id, name, loop_lag_s, heartbeat_at, expires_at,
            loop_lag_s > {LAGS_S} OR
                (%(now)s - heartbeat_at) * {SILENT_AFTER[1]} > (expires_at - heartbeat_at) * {SILENT_AFTER[0]}
                AS stands_still
        FROM feedq.worker OFFSET 0
    ) w ON w.id = l.worker_id
"""
# What is searched for a text.
_FEED_TEXTS = "f.name, f.tenant, f.connector, CAST(f.labels AS text)"
_LEASE_TEXTS = "l.reason, l.last_error, l.sink_error, l.dead_letter_error, l.blame"
# What is counted of a feed, and the counts of all that have a status and a reason together.
_COUNTED = f"""
    {_STATUS} AS status, CASE WHEN l.feed_id IS NULL THEN 'new' ELSE l.reason END AS reason,
    {_WANTED} AS wanted, l.records_total, l.rows_per_s,
    CASE WHEN l.dead_letters > 0 THEN l.dead_letter_at END AS refused_at
"""
_TALLIED = f"""
    SELECT status, reason, count(*) AS feeds,
        -- A failed feed wants no place: only an edit can help it.
        count(*) FILTER (WHERE wanted AND status <> 'failed') AS wanted,
        CAST(coalesce(sum(records_total), 0) AS bigint) AS records_total,
        count(*) FILTER (WHERE refused_at > %(now)s - make_interval(secs => {LATELY_S})) AS refused,
        CASE status WHEN 'streaming' THEN sum(rows_per_s) ELSE 0 END AS rows_per_s
"""
_ORDERS = {
    SelectionOrder.NAME: "f.name ASC",
    SelectionOrder.STATUS: f"{_STATUS} ASC NULLS LAST",
    SelectionOrder.WORKER: "w.name ASC NULLS LAST",
    SelectionOrder.ROWS: "coalesce(l.records_total, 0) DESC",
    SelectionOrder.BYTES: "coalesce(l.bytes_total, 0) DESC",
    SelectionOrder.RATE: f"CASE WHEN {_STATUS} = 'streaming' THEN l.rows_per_s END DESC NULLS LAST",
    SelectionOrder.AGE: "coalesce(l.last_record_at, '-infinity') ASC",
    SelectionOrder.LAG: "l.event_at ASC NULLS LAST",
    SelectionOrder.FAILURES: "greatest(l.failures, l.attempts, 0) DESC",
    SelectionOrder.EPOCH: "coalesce(l.epoch, 0) DESC",
}


def _order(order: SelectionOrder, *, reverse: bool) -> str:
    """What to sort by; feeds without a value come last in either direction."""
    key = _ORDERS[order]
    if reverse:
        key = key.replace(" ASC", " DESC") if " ASC" in key else key.replace(" DESC", " ASC")
    return f"{key}, f.name, f.id"


# Of a backfill it is said at its feed what is wrong with it.
_SUFFERED = (
    "l.blamed, l.blamed_at, l.running_since, coalesce(l.last_record_at, l.running_since) AS silent_since"
)
_SINCE = """
    CASE status WHEN 'quarantined' THEN blamed_at WHEN 'refusing' THEN running_since
        WHEN 'stalled' THEN silent_since WHEN 'sink_unavailable' THEN silent_since END
"""
_LOST = f"""
    blamed > 0 AND status <> 'quarantined'
        AND coalesce(blamed_at > %(now)s - make_interval(secs => {LATELY_S}), true)
"""
# All feeds are gone through once: what follows needs the sums of each tenant.
_OF_TENANTS = f"""
    {_TALLIED}, tenant, min({_SINCE}) AS since,
        count(*) FILTER (WHERE {_LOST}) AS lost, min(blamed_at) FILTER (WHERE {_LOST}) AS lost_since
    FROM (SELECT f.tenant, {_COUNTED}, {_SUFFERED} {_FROM} WHERE {_DECLARED} OFFSET 0) found
    GROUP BY status, reason, tenant ORDER BY status, reason
"""
_UNMET = f"""
    SELECT f.tenant, count(DISTINCT f.id) AS feeds, min(u.since) AS since
    FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id WHERE {_DECLARED} GROUP BY f.tenant
"""
# The first few feeds of these tenants with which each is wrong; that may be more than one thing.
_FIRST = f"""
    WITH found AS MATERIALIZED (
        SELECT f.id, f.name, f.tenant, {_COUNTED}, {_SUFFERED}
        {_FROM} WHERE {_DECLARED} AND f.tenant = ANY(%(tenants)s)
    ), causes (id, name, tenant, cause, reason, since) AS (
        SELECT id, name, tenant, status,
            CASE WHEN status = 'waiting' AND reason = ANY(%(reasons)s) THEN reason ELSE '' END, {_SINCE}
        FROM found WHERE status = ANY(%(statuses)s)
        UNION ALL
        SELECT id, name, tenant, '{Concern.EXPECTATION}', '', min(u.since)
        FROM found JOIN feedq.unmet u ON u.feed_id = id GROUP BY id, name, tenant
        UNION ALL
        SELECT id, name, tenant, '{Concern.DEAD_LETTERS}', '', NULL
        FROM found WHERE refused_at > %(now)s - make_interval(secs => {LATELY_S}) AND status <> 'refusing'
        UNION ALL
        SELECT id, name, tenant, '{Concern.LOST_WORKERS}', '', blamed_at FROM found WHERE {_LOST}
    )
    SELECT cause, reason, tenant, array_agg(id ORDER BY nth) AS ids FROM (
        SELECT id, cause, reason, tenant, row_number() OVER (
            PARTITION BY cause, reason, tenant COLLATE "C" ORDER BY since, name COLLATE "C") AS nth
        FROM causes
    ) found WHERE nth <= %(each)s GROUP BY cause, reason, tenant
"""
# Since when feeds that nobody streams are as they are: the latest that happened to each, apart from new tries.
_BEGAN = """
    SELECT f.id, coalesce(e.since, e.at, f.created_at) AS since FROM feedq.feed f LEFT JOIN LATERAL (
        SELECT at, since FROM feedq.event
        WHERE feed_id = f.id AND kind NOT IN ('lease_assigned', 'lease_claimed', 'lease_raised')
        ORDER BY id DESC LIMIT 1
    ) e ON true WHERE f.id = ANY(%(ids)s)
"""
_LAST = "~"
"""Sorts behind every reason."""
_WANTS_PLACE = f"{_DECLARED} AND {_WANTED} AND {_STATUS} <> 'failed'"
_REQUIRED = f"""
    SELECT f.selector -> 'required' AS required, count(*) AS feeds,
        (array_agg(f.name ORDER BY f.id))[1:CAST(%(each)s AS int)] AS names
    {_FROM} WHERE {_WANTS_PLACE} AND f.selector -> 'required' <> '{{}}'
    GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(limit)s
"""
_SINK = "lower(coalesce(f.sink ->> 'name', 'default'))"
_SINKS = f"""
    SELECT * FROM (
        SELECT {_SINK} AS sink, min(f.id) AS id, CAST(sum(count(*)) OVER same AS bigint) AS of,
            row_number() OVER (same ORDER BY min(f.id)) AS place
        FROM feedq.feed f WHERE {_DECLARED} AND f.removed_at IS NULL
        GROUP BY {_SINK}, f.sink, f.source ->> 'format' WINDOW same AS (PARTITION BY {_SINK})
    ) found WHERE place <= %(each)s
"""


class FeedListing(Aggregate):
    """Pages of feeds. Every method may raise `Unavailable`."""

    @in_transaction
    def after(
        self,
        c: Connection,
        selection: Selection,
        *,
        text_: str = "",
        place: tuple[str, int] | None = None,
        limit: int = PAGE_MAX,
    ) -> list[FeedView]:
        """Return the chosen feeds by name and id, from behind ``place`` on, those where ``text_`` is found. A page
        costs what it shows, and what it leaves out on the way: for programs that go through all of them, while
        others are added and removed."""
        now = _begin(c)
        conditions, parameters = _chosen_with(c, selection, text_)
        if place is not None:
            conditions.append("(f.name, f.id) > (%(name)s, %(id)s)")
            parameters |= dict(zip(("name", "id"), place, strict=True))
        wide = f"SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, %(now)s AS now {_FROM}"
        sql = f"{wide} {_filtered(conditions)} ORDER BY f.name, f.id LIMIT %(limit)s"
        if text_ or selection.statuses or selection.failing or selection.unmet or selection.dead_letters:
            # Few may be found: the ids first, of all feeds at once, as `page` reads them.
            narrow = f"SELECT f.id, f.name {_FROM} {_filtered(conditions)} OFFSET 0"
            ids = f"SELECT id FROM ({narrow}) found ORDER BY name, id LIMIT %(limit)s"
            sql = f"{wide} WHERE f.id IN ({ids}) ORDER BY f.name, f.id"
        parameters |= {"now": now, "limit": min(max(limit, 0), PAGE_MAX)}
        return [feed_view_from(row) for row in c.execute(sql, parameters)]

    @in_transaction
    def ordered(
        self,
        c: Connection,
        selection: Selection,
        order: SelectionOrder,
        *,
        reverse: bool = False,
        text_: str = "",
        offset: int = 0,
        limit: int = PAGE_MAX,
    ) -> list[FeedView]:
        """Return so many of the chosen feeds where ``text_`` is found, in this order, without the first ones."""
        now = _begin(c)
        conditions, parameters = _chosen_with(c, selection, text_)
        by = _order(order, reverse=reverse)
        # The ids first: wide rows would make the sort of a large table spill to disk.
        sql = f"""
            SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, %(now)s AS now {_FROM} WHERE f.id IN (
                SELECT f.id {_FROM} {_filtered(conditions)} ORDER BY {by} LIMIT %(limit)s OFFSET %(offset)s
            ) ORDER BY {by}
        """
        parameters |= {"now": now, "limit": min(max(limit, 0), PAGE_MAX), "offset": offset}
        return [feed_view_from(row) for row in c.execute(sql, parameters)]

    @in_transaction
    def tallies(self, c: Connection, selection: Selection = EVERY, *, text_: str = "") -> list[StatusCount]:
        """Count feeds by status and reason: all, or those chosen where ``text_`` is found."""
        now = _begin(c)
        conditions, parameters = _chosen_with(c, selection, text_)
        # The fence keeps the planner from expecting a group for each feed, and from sorting them all.
        sql = f"""
            {_TALLIED} FROM (SELECT f.name, {_COUNTED} {_FROM} {_filtered(conditions)} OFFSET 0) found
            GROUP BY status, reason ORDER BY status, reason
        """
        return [_tally(row) for row in c.execute(sql, {**parameters, "now": now})]

    @in_transaction
    def survey(
        self,
        c: Connection,
        statuses: Collection[Status],
        reasons: Collection[Reason],
        *,
        each: int,
        tenants: int,
    ) -> tuple[list[StatusCount], list[TroubledFeeds]]:
        """Count all feeds, as `tallies` does, and those that somebody has to look at.

        The latter by what is wrong with them and by tenant.
        Of what is wrong with feeds of many tenants, the first so many are found, those with the most feeds. What a
        feed waits for matters where it is one of ``reasons``.
        """
        now = _begin(c)
        rows = c.execute(_OF_TENANTS, {"now": now})
        wrong = _wrong(rows, c.execute(_UNMET), statuses, reasons)
        shown = {
            what: sorted(groups.items(), key=lambda one: (-one[1][0], one[0]))[:tenants]
            for what, groups in sorted(wrong.items(), key=lambda one: (one[0][0], one[0][1] or _LAST))
        }
        asked = {
            "now": now,
            "statuses": [status.value for status in statuses],
            "reasons": [reason.value for reason in reasons],
            "each": each,
            "tenants": sorted({tenant for groups in shown.values() for tenant, _ in groups}),
        }
        first = (
            {(row.cause, row.reason, row.tenant): row.ids for row in c.execute(_FIRST, asked)}
            if shown
            else {}
        )
        ids = sorted({id_ for found in first.values() for id_ in found})
        wide = f"SELECT {FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, %(now)s AS now {_FROM}"
        views = {
            row.id: feed_view_from(row)
            for row in c.execute(f"{wide} WHERE f.id = ANY(%(ids)s)", {"now": now, "ids": ids})
        }
        began = {row.id: row.since for row in c.execute(_BEGAN, {"ids": ids})}
        known = views.keys() & began.keys()
        found = []
        for (cause, reason), groups in shown.items():
            of = sum(feeds for feeds, _ in wrong[cause, reason].values())
            for tenant, (feeds, since) in groups:
                some = [id_ for id_ in first.get((cause, reason or "", tenant), ()) if id_ in known]
                if not some:
                    continue  # mended meanwhile
                if since is None and isinstance(cause, Status):
                    since = min(began[id_] for id_ in some)
                found.append(
                    TroubledFeeds(cause, reason, tenant, feeds, of, since, [views[id_] for id_ in some])
                )
        return _summed(rows), found

    @in_transaction
    def placing(self, c: Connection, *, each: int) -> list[RequiredLabels]:
        """Count the feeds that ask for a place, by the labels that they require; the most frequent first."""
        found = c.execute(_REQUIRED, {"each": each, "limit": GROUPS_MAX, "now": _begin(c)})
        return [RequiredLabels(row.required, row.feeds, row.names) for row in found]

    @in_transaction
    def sinks(self, c: Connection, *, each: int) -> list[SinkUse]:
        """Count the feeds that name each sink, with one feed of each of the first so many tables."""
        found = c.execute(_SINKS, {"each": each, "now": _begin(c)})
        sql = f"SELECT {FEED_COLUMNS} FROM feedq.feed f WHERE f.id = ANY(%(ids)s) ORDER BY f.name"
        feeds = [feed_from(row) for row in c.execute(sql, {"ids": [row.id for row in found]})]
        of = {row.id: row.sink for row in found}
        counts = {row.sink: row.of for row in found}
        return [
            SinkUse(sink, count, [one for one in feeds if of[one.id] == sink])
            for sink, count in sorted(counts.items())
        ]

    @in_transaction
    def identities(self, c: Connection) -> tuple[UUID, set[str]]:
        """Read the installation, and which feeds it has: as text, for to make a UUID of each takes a second."""
        feeds = c.execute(
            "SELECT array_agg(uuid::text) FROM feedq.feed WHERE removed_at IS NULL"
        ).scalar_one()
        return c.execute("SELECT id FROM feedq.installation").scalar_one(), set(feeds or ())


def _chosen_with(c: Connection, selection: Selection, searched: str) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions that a feed is chosen and shows this text somewhere, and their parameters."""
    conditions, parameters = _chosen(selection)
    if not searched:
        return conditions, parameters
    # A status is worked out of ten columns, for each feed: only where the name of one holds the text.
    statuses = [status.value for status in Status if searched.lower() in status]
    if replace(selection, removing=False) == Selection() and not statuses:
        # Few of all feeds: to search each table by itself takes half the time of joining them first.
        found = f"""
            SELECT f.id FROM feedq.feed f WHERE {_holding(searched, _FEED_TEXTS)}
            UNION ALL SELECT l.feed_id FROM feedq.lease l WHERE {_holding(searched, _LEASE_TEXTS)}
            UNION ALL SELECT l.feed_id FROM feedq.lease l JOIN feedq.worker w ON w.id = l.worker_id
                WHERE {_holding(searched, "w.name")}
            LIMIT {LOOKED_UP_MAX}
        """
        ids = [row.id for row in c.execute(found, {"search": searched})]
        if len(ids) < LOOKED_UP_MAX:
            return [*conditions, "f.id = ANY(%(found)s)"], parameters | {"found": ids}
    condition = _holding(searched, f"{_FEED_TEXTS}, {_LEASE_TEXTS}, w.name")
    if statuses:
        condition = f"({condition} OR {_STATUS} = ANY(%(found_statuses)s))"
    return [*conditions, condition], parameters | {"search": searched, "found_statuses": statuses}


def _holding(searched: str, texts: str) -> str:
    """The condition that one of these columns holds the text, in any case."""
    # Letters beyond ASCII cost the time of all others together, and are none of an ASCII text.
    collation = ' COLLATE "C"' if searched.isascii() else ""
    # No match reaches over two columns: nobody types what separates them.
    return f"strpos(lower(concat_ws(chr(1), {texts}){collation}), lower(%(search)s)) > 0"


def _filtered(conditions: Sequence[str]) -> str:
    """A WHERE clause, if there is any condition."""
    given = " AND ".join(filter(None, conditions))
    return f"WHERE {given}" if given else ""


def _begin(c: Connection) -> datetime:
    """Bound the transaction's statements, and say when it is."""
    c.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
    now: datetime = c.execute("SELECT feedq.clock()").scalar_one()
    return now


def _wrong(
    rows: Rows, unmet: Rows, statuses: Collection[Status], reasons: Collection[Reason]
) -> dict[_What, dict[str, tuple[int, datetime | None]]]:
    """Count the feeds of each tenant with which something is wrong, with since when the first of them."""
    found: dict[_What, dict[str, tuple[int, datetime | None]]] = {}

    def add(
        cause: Status | Concern, tenant: str, feeds: int, since: datetime | None, why: Any = None
    ) -> None:
        of_tenants = found.setdefault((cause, why), {})
        before, earlier = of_tenants.get(tenant, (0, None))
        of_tenants[tenant] = before + feeds, min(filter(None, (earlier, since)), default=None)

    for row in rows:
        status = Status(row.status)
        if status in statuses:
            matters = status is Status.WAITING and row.reason in reasons
            add(status, row.tenant, row.feeds, row.since, Reason(row.reason) if matters else None)
        if row.refused and status is not Status.REFUSING:
            add(Concern.DEAD_LETTERS, row.tenant, row.refused, None)
        if row.lost:
            add(Concern.LOST_WORKERS, row.tenant, row.lost, row.lost_since)
    for row in unmet:
        add(Concern.EXPECTATION, row.tenant, row.feeds, row.since)
    return found


def _summed(rows: Rows) -> list[StatusCount]:
    """Of all tenants together; the rows are in order of status and reason."""
    return [
        _tally((status, reason, *map(sum, zip(*(row[2:7] for row in same), strict=True))))
        for (status, reason), same in groupby(rows, key=itemgetter(0, 1))
    ]


def _tally(row: Sequence[Any]) -> StatusCount:
    status, reason, *counts = row
    return StatusCount(Status(status), None if reason is None else Reason(reason), *counts)


# -- selections --------------------------------------------------------------------------------------

_CHOSEN_BY = {
    "names": "f.name = ANY(%(names)s)",
    "tenant": "f.tenant = %(tenant)s",
    "labels": "f.labels @> CAST(%(labels)s AS jsonb)",
    "worker": "w.name = %(worker)s",
    "statuses": f"{_STATUS} = ANY(%(statuses)s)",
    "connector": "f.connector = %(connector)s",
    "match": "f.name LIKE %(match)s",
    "failing": f"{_STATUS} = ANY(%(failing)s)",
    "unmet": "f.id IN (SELECT feed_id FROM feedq.unmet)",
    "dead_letters": "l.dead_letters > 0",
}


VIEW_COLUMNS = f"{FEED_COLUMNS}, {LEASE_COLUMNS}, {OWNER_COLUMNS}, %(now)s AS now"
CHOSEN_COLUMNS = "f.id, f.name, f.tenant, f.generation, f.selector, l.worker_id"


def selected_sql(
    selection: Selection, limit: int | None, *, columns: str = VIEW_COLUMNS
) -> tuple[str, dict[str, Any]]:
    """Return the statement that reads the chosen feeds, and its parameters."""
    conditions, given = _chosen(selection)
    sql = f"""
        SELECT {columns}
        {_FROM} {_filtered([" AND ".join(conditions)])}
        ORDER BY f.name, f.id LIMIT %(limit)s
    """
    return sql.replace("%(now)s", "feedq.now()"), given | {"limit": limit}


_NEEDS = {
    Status.PAUSED: "f.target_state = 'paused'",
    Status.REMOVING: "f.removed_at IS NOT NULL",
    Status.FAILED: "l.reason = 'failed'",
    Status.QUARANTINED: "l.quarantined",
    Status.SINK_UNAVAILABLE: "l.sink_error IS NOT NULL",
    Status.REFUSING: "l.dead_per_s > l.rows_per_s",
    Status.FAILING: f"l.failures >= {FAILING_FROM}",
    Status.BACKOFF: "l.reason = 'backoff'",
    Status.STARTING: "l.state = 'assigned'",
    Status.STOPPING: "l.state = 'stopping'",
}
"""What a status cannot be without, on one column: few rows are then joined, and their status worked out."""


def _chosen(selection: Selection) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions of a selection, and their parameters."""
    asked: dict[str, Any] = {
        "names": list(selection.names),
        "tenant": selection.tenant,
        "labels": json.dumps(dict(selection.labels)) if selection.labels else None,
        "worker": selection.worker,
        "statuses": [status.value for status in selection.statuses],
        "connector": selection.connector,
        "match": None if selection.match is None else like(selection.match),
        "failing": sorted(status.value for status in FAILING) if selection.failing else None,
        "unmet": selection.unmet or None,
        "dead_letters": selection.dead_letters or None,
    }
    given = {name: value for name, value in asked.items() if value is not None and value != []}
    conditions = [_DECLARED, *(_CHOSEN_BY[name] for name in given)]
    for name in given.keys() & {"statuses", "failing"}:
        conditions.append(f"({' OR '.join(_NEEDS.get(Status(one), 'true') for one in given[name])})")
    if not selection.removing:
        conditions.append("f.removed_at IS NULL")
    return conditions, given
