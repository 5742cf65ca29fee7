"""Feeds for pages that must stay quick with a million of them: one page at a time, and numbers.

The database filters, sorts and counts; what crosses is one page of rows. What feeds are like stands in
`feedq/control/sql/feeds.sql`: the view ``feed_status``, and the functions that choose from it. Reads only, one
transaction a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from feedq.control.store.database import Aggregate, Connection, Rows, in_statement, in_transaction
from feedq.control.store.feed_rows import STATUS_VIEW, read_documents, read_feeds, read_views
from feedq.core.model import ChosenFeed, Concern, Feed, FeedView, Reason, Status
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
    """Feeds of one tenant with the same trouble."""

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
class LabelsWanted:
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


_ORDERS = {
    SelectionOrder.NAME: "name ASC",
    SelectionOrder.STATUS: "status ASC NULLS LAST",
    SelectionOrder.WORKER: "worker ASC NULLS LAST",
    SelectionOrder.ROWS: "coalesce(records_total, 0) DESC",
    SelectionOrder.BYTES: "coalesce(bytes_total, 0) DESC",
    SelectionOrder.RATE: "CASE WHEN status = 'streaming' THEN rows_per_s END DESC NULLS LAST",
    SelectionOrder.AGE: "coalesce(last_record_at, '-infinity') ASC",
    SelectionOrder.LAG: "event_at ASC NULLS LAST",
    SelectionOrder.FAILURES: "greatest(failures, attempts, 0) DESC",
    SelectionOrder.EPOCH: "coalesce(epoch, 0) DESC",
}


def _order(order: SelectionOrder, *, reverse: bool) -> str:
    """What to sort by; feeds without a value come last in either direction."""
    key = _ORDERS[order]
    if reverse:
        key = key.replace(" ASC", " DESC") if " ASC" in key else key.replace(" DESC", " ASC")
    return f"{key}, name, id"


_TALLIED = """
    SELECT status, reason, count(*) AS feeds, count(*) FILTER (WHERE is_wanted) AS wanted,
        CAST(coalesce(sum(records_total), 0) AS bigint) AS records_total,
        count(*) FILTER (WHERE was_refused) AS refused,
        CASE status WHEN 'streaming' THEN sum(rows_per_s) ELSE 0 END AS rows_per_s
"""
# All feeds are gone through once: what follows needs the sums of each tenant. The fence keeps the planner from
# expecting a group for each feed, and from sorting them all.
_OF_TENANTS = f"""
    {_TALLIED}, tenant, min(since) AS since,
        count(*) FILTER (WHERE lost_workers) AS lost, min(blamed_at) FILTER (WHERE lost_workers) AS lost_since
    FROM (
        SELECT tenant, status, reason, is_wanted, records_total, rows_per_s, was_refused, lost_workers, since,
            blamed_at
        FROM feedq_1.feed_status WHERE parent IS NULL OFFSET 0
    ) found
    GROUP BY status, reason, tenant ORDER BY status, reason
"""
# Of a backfill it is said at its feed what is wrong with it.
_UNMET = """
    SELECT f.tenant, count(DISTINCT f.id) AS feeds, min(u.since) AS since
    FROM feedq.unmet u JOIN feedq.feed f ON f.id = u.feed_id WHERE f.parent IS NULL GROUP BY f.tenant
"""
# The first few feeds of these tenants with which each is wrong; that may be more than one thing.
_FIRST = """
    WITH found AS MATERIALIZED (
        SELECT id, name, tenant, status, reason, since, was_refused, lost_workers, blamed_at
        FROM feedq_1.feed_status WHERE parent IS NULL AND tenant = ANY(%(tenants)s)
    ), causes (id, name, tenant, cause, reason, since) AS (
        SELECT id, name, tenant, status,
            CASE WHEN status = 'waiting' AND reason = ANY(%(reasons)s) THEN reason ELSE '' END, since
        FROM found WHERE status = ANY(%(statuses)s)
        UNION ALL
        SELECT id, name, tenant, 'expectation', '', min(u.since)
        FROM found JOIN feedq.unmet u ON u.feed_id = id GROUP BY id, name, tenant
        UNION ALL
        SELECT id, name, tenant, 'dead_letters', '', NULL FROM found WHERE was_refused AND status <> 'refusing'
        UNION ALL
        SELECT id, name, tenant, 'lost_workers', '', blamed_at FROM found WHERE lost_workers
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
_REQUIRED = """
    SELECT selector -> 'required' AS required, count(*) AS feeds,
        (array_agg(name ORDER BY id))[1:CAST(%(each)s AS int)] AS names
    FROM feedq_1.feed_status WHERE parent IS NULL AND is_wanted AND selector -> 'required' <> '{}'
    GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(limit)s
"""
_SINKS = """
    SELECT sink, id, of FROM (
        SELECT sink, min(id) AS id, CAST(sum(count(*)) OVER same AS bigint) AS of,
            row_number() OVER (same ORDER BY min(id)) AS place
        FROM (
            SELECT id, lower(coalesce(sink ->> 'name', 'default')) AS sink, CAST(sink AS jsonb) AS options,
                source ->> 'format' AS format
            FROM feedq.feed WHERE parent IS NULL AND removed_at IS NULL
        ) feed
        GROUP BY sink, options, format WINDOW same AS (PARTITION BY sink)
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
        _bound(c)
        chosen, given = _chosen_with(c, selection, text_)
        where = ""
        if place is not None:
            where = "WHERE (name, id) > (%(after)s, %(after_id)s)"
            given |= dict(zip(("after", "after_id"), place, strict=True))
        given["limit"] = min(max(limit, 0), PAGE_MAX)
        last = "ORDER BY name, id LIMIT %(limit)s"
        if text_ or selection.statuses or selection.failing or selection.unmet or selection.dead_letters:
            # Few may be found: the ids first, of all feeds at once, as `ordered` reads them.
            ids = f"SELECT id FROM (SELECT id, name FROM {chosen} v {where} OFFSET 0) found {last}"
            return read_views(c, STATUS_VIEW, f"WHERE id IN ({ids}) ORDER BY name, id", given)
        return read_views(c, chosen, f"{where} {last}", given)

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
        _bound(c)
        chosen, given = _chosen_with(c, selection, text_)
        by = _order(order, reverse=reverse)
        # The ids first: wide rows would make the sort of a large table spill to disk.
        ids = f"SELECT id FROM {chosen} v ORDER BY {by} LIMIT %(limit)s OFFSET %(offset)s"
        given |= {"limit": min(max(limit, 0), PAGE_MAX), "offset": offset}
        return read_views(c, STATUS_VIEW, f"WHERE id IN ({ids}) ORDER BY {by}", given)

    @in_transaction
    def tallies(self, c: Connection, selection: Selection = EVERY, *, text_: str = "") -> list[StatusCount]:
        """Count feeds by status and reason: all, or those chosen where ``text_`` is found."""
        _bound(c)
        chosen, given = _chosen_with(c, selection, text_)
        sql = f"""
            {_TALLIED} FROM (
                SELECT status, reason, is_wanted, records_total, rows_per_s, was_refused FROM {chosen} v OFFSET 0
            ) found GROUP BY status, reason ORDER BY status, reason
        """
        return [_tally(row) for row in c.execute(sql, given)]

    @in_statement
    def selected(self, c: Connection, selection: Selection) -> list[FeedView]:
        """Return the chosen feeds, by name, however many: in one statement, for rows that are built inside a
        transaction keep it idle, which has a limit."""
        chosen, given = _chosen(selection)
        return read_views(c, chosen, "ORDER BY name, id", given)

    @in_statement
    def chosen(self, c: Connection, selection: Selection, *, limit: int) -> list[ChosenFeed]:
        """Return the chosen feeds, by name, as far as it takes to act on them."""
        chosen, given = _chosen(selection)
        sql = f"""
            SELECT CAST(row_to_json(found) AS text) FROM (
                SELECT id, name, tenant, generation, selector, worker FROM {chosen} v
                ORDER BY name, id LIMIT %(limit)s
            ) found
        """
        return read_documents(c.execute(sql, given | {"limit": limit}), ChosenFeed)

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
        _bound(c)
        rows = c.execute(_OF_TENANTS)
        wrong = _wrong(rows, c.execute(_UNMET), statuses, reasons)
        shown = {
            what: sorted(groups.items(), key=lambda one: (-one[1][0], one[0]))[:tenants]
            for what, groups in sorted(wrong.items(), key=lambda one: (one[0][0], one[0][1] or _LAST))
        }
        asked = {
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
        found = read_views(c, STATUS_VIEW, "WHERE id = ANY(%(ids)s)", {"ids": ids})
        views = {view.feed.id: view for view in found}
        began = {row.id: row.since for row in c.execute(_BEGAN, {"ids": ids})}
        known = views.keys() & began.keys()
        troubled = []
        for (cause, reason), groups in shown.items():
            of = sum(feeds for feeds, _ in wrong[cause, reason].values())
            for tenant, (feeds, since) in groups:
                some = [id_ for id_ in first.get((cause, reason or "", tenant), ()) if id_ in known]
                if not some:
                    continue  # mended meanwhile
                if since is None and isinstance(cause, Status):
                    since = min(began[id_] for id_ in some)
                shown_of = [views[id_] for id_ in some]
                troubled.append(TroubledFeeds(cause, reason, tenant, feeds, of, since, shown_of))
        return _summed(rows), troubled

    @in_transaction
    def placing(self, c: Connection, *, each: int) -> list[LabelsWanted]:
        """Count the feeds that ask for a place, by the labels that they require; the most frequent first."""
        _bound(c)
        found = c.execute(_REQUIRED, {"each": each, "limit": GROUPS_MAX})
        return [LabelsWanted(row.required, row.feeds, row.names) for row in found]

    @in_transaction
    def sinks(self, c: Connection, *, each: int) -> list[SinkUse]:
        """Count the feeds that name each sink, with one feed of each of the first so many tables."""
        _bound(c)
        found = c.execute(_SINKS, {"each": each})
        feeds = read_feeds(c, "WHERE id = ANY(%(ids)s) ORDER BY name", {"ids": [row.id for row in found]})
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


def _chosen_with(c: Connection, selection: Selection, searched: str) -> tuple[str, dict[str, Any]]:
    """The same of those feeds of a selection that show this text somewhere."""
    chosen, given = _chosen(selection)
    if not searched:
        return chosen, given
    reasons = [reason.value for reason in Reason if searched.lower() in reason]
    # A status is worked out of ten columns, for each feed: only where the name of one holds the text.
    statuses = [status.value for status in Status if searched.lower() in status]
    if selection.is_empty and not statuses:
        sql = "SELECT * FROM feedq_1.search_feeds(%(searched)s, %(reasons)s, %(most)s) AS found (id)"
        asked = {"searched": searched, "reasons": reasons, "most": LOOKED_UP_MAX}
        ids = [row.id for row in c.execute(sql, asked)]
        if len(ids) < LOOKED_UP_MAX:
            return chosen, given | {"found": ids}
    return chosen, given | {
        "searched": searched,
        "reasons_found": reasons,
        "statuses_found": statuses or None,
    }


def _bound(c: Connection) -> None:
    """Bound the transaction's statements."""
    c.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_S}s'")


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


def _chosen(selection: Selection) -> tuple[str, dict[str, Any]]:
    """What to read the feeds of a selection from, and its parameters."""
    statuses = {*selection.statuses} or {*Status}
    if selection.failing:
        statuses &= FAILING
    is_asked = bool(selection.statuses) or selection.failing
    given: dict[str, Any] = {
        "names": list(selection.names) or None,
        "of_tenant": selection.tenant,
        "with_labels": json.dumps(dict(selection.labels)) if selection.labels else None,
        "on_worker": selection.worker,
        "in_statuses": sorted(status.value for status in statuses) if is_asked else None,
        "of_connector": selection.connector,
        "name_like": None if selection.match is None else like(selection.match),
        "is_unmet": selection.unmet,
        "has_dead_letters": selection.dead_letters,
        "removing": selection.removing,
        **dict.fromkeys(("searched", "reasons_found", "statuses_found", "found")),
    }
    return f"feedq_1.chosen_feeds({', '.join(f'{name} => %({name})s' for name in given)})", given
