"""Backfills of feeds, a bounded second stream beside each: to list, show, begin and cancel them.

What a backfill is to do is decided here, before it begins: from where to where, under which declaration.
`feedq.worker.declared` judges its end.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.connectors.base import ConnectorOptions, parse_options, show_cursor
from feedq.connectors.reading import CursorOptions
from feedq.control.store.feeds import no_backfill
from feedq.control.store.history import EventFilter
from feedq.control.store.jobs.schedules import KEY_MAX
from feedq.core.json_texts import read_exactly
from feedq.core.model import BACKFILL_SUFFIX, JSON, Feed, FeedBackfill, FeedSpec, FeedView, known_as
from feedq.core.moments import DEFAULT_ZONE, parse_moment_near
from feedq.core.passwords import mask_url
from feedq.core.roles import AccessRole
from feedq.core.selection import Selection
from feedq.errors import InvalidInput
from feedq.sinks.base import Sink, check_cursor, parse_sink
from feedq.telemetry.event_names import EventKind
from feedq.verbs.cursors import checkpoint_of, sink_of
from feedq.verbs.registry import At, Expected, NameArgument, Page, verb

ROWS_PER_S: Final = 10_000.0
"""Unless said otherwise: a tenth of what a worker lands, so that the feeds beside it notice little."""


@dataclass(frozen=True, slots=True)
class BackfillDocument:
    """A backfill of a feed: planned, under way or ended."""

    name: str
    """Of the feed that it is of."""
    tenant: str
    status: str
    """That of a feed; or ``planned``, ``finished`` or ``cancelled``."""
    because: str | None = None
    worker: str | None = None
    begins_after: Any = None
    ends_at: Any = None
    cursor: Any = None
    part: float | None = None
    """How far it has come, from 0 to 1, where that can be told."""
    records: int | None = None
    dead_letters: int | None = None
    rows_per_s: float | None = None
    limit_rows_per_s: float | None = None
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    took_s: float | None = None


TOLD: Final = ("begins_after", "ends_at", "cursor", "records", "dead_letters", "took_s")
"""What history keeps of a backfill that has ended."""
ENDED: Final = {EventKind.BACKFILL_FINISHED: "finished", EventKind.BACKFILL_CANCELLED: "cancelled"}


@verb("GET /backfills")
def list_backfills(at: At, *, tenant: NameArgument | None = None) -> Page[BackfillDocument]:
    """List running backfills by the names of their feeds."""
    if (seen := at.seen(Selection(tenant=tenant))) is None:
        return Page([])
    return Page(list(map(_document, at.store.backfills.running(tenant=seen.tenant))))


@verb("GET /feeds/{name}/backfill")
def show_backfill(at: At, *, name: NameArgument) -> BackfillDocument:
    """Show the backfill of a feed, or how its last one ended."""
    feed = at.feed(name)
    if (view := at.store.backfills.of(feed)) is not None:
        return _document(view)
    ends = at.store.history.before(EventFilter(kinds=tuple(ENDED), feed=feed), limit=1)
    if not ends:
        raise no_backfill(name)
    end = ends[0].event
    known = {key: value for key, value in end.detail.items() if key in TOLD}
    return BackfillDocument(name, feed.spec.tenant, ENDED[EventKind(end.kind)], **known, ended_at=end.at)


@verb("POST /feeds/{name}/backfill", role=AccessRole.OPERATOR)
def begin_backfill(
    at: At,
    *,
    name: NameArgument,
    begin: Any,
    end: Any = None,
    rows_per_s: Annotated[float, Meta(gt=0, le=1e12)] | None = None,
    key: Annotated[str, Meta(min_length=1, max_length=KEY_MAX)] | None = None,
    expected: Expected = None,
    dry_run: bool = False,
) -> BackfillDocument:
    """Land again what a feed's source had between two cursors, beside the live stream.

    It begins after the cursor ``begin`` and stops after ``end``, by default where the feed stands. Both may be
    times, if the connector's cursors contain them. A second call with the same ``key`` begins nothing.
    """
    feed = at.own_feed(name, expected)
    with sink_of(at, feed) as sink:
        spec, wanted = plan(sink, feed, begin=begin, end=end, now=at.store.now(), rows_per_s=rows_per_s)
    if dry_run:
        return BackfillDocument(
            name,
            feed.spec.tenant,
            "planned",
            begins_after=wanted.begins_after,
            ends_at=wanted.ends_at,
            limit_rows_per_s=spec.source["limits"]["rows_per_s"],
        )
    at.store.backfills.begin(feed, spec, replace(wanted, key=key))
    return show_backfill(at, name=name)


@verb("POST /feeds/{name}/backfill/cancel", role=AccessRole.OPERATOR)
def cancel_backfill(
    at: At, *, name: NameArgument, expected: Expected = None, dry_run: bool = False
) -> BackfillDocument:
    """End the backfill of a feed now; what it has landed stays."""
    feed = at.own_feed(name, expected)
    view = at.store.backfills.of(feed) if dry_run else at.store.backfills.cancel(feed)
    if view is None:
        raise no_backfill(name)
    return replace(_document(view), status=ENDED[EventKind.BACKFILL_CANCELLED])


def _document(view: FeedView) -> BackfillDocument:
    """One that is under way."""
    lease, spec, wanted = view.lease, view.feed.spec, view.feed.backfill
    assert wanted is not None, "it is one"
    return BackfillDocument(
        name=known_as(spec.name),
        tenant=spec.tenant,
        status=view.status.value,
        because=None if view.because is None else mask_url(view.because),
        worker=view.worker,
        begins_after=wanted.begins_after,
        ends_at=wanted.ends_at,
        cursor=lease.cursor,
        part=part_done(view),
        records=lease.records_total,
        dead_letters=lease.dead_letters_total,
        rows_per_s=lease.rows_per_s,
        limit_rows_per_s=spec.source.get("limits", {}).get("rows_per_s"),
        begun_at=view.feed.created_at,
    )


def part_done(view: FeedView) -> float | None:
    """How far a backfill has come, from 0 to 1; None if that cannot be told (it was edited meanwhile, say)."""
    feed, backfill = view.feed, view.feed.backfill
    assert backfill is not None
    try:
        options = parse_options(feed.spec.connector, feed.spec.source)
        first, last = map(options.cursor_place, (backfill.begins_after, backfill.ends_at))
        at = first if view.lease.cursor is None else options.cursor_place(view.lease.cursor)
    except (InvalidInput, ValueError):
        return None
    return min(max((at - first) / max(last - first, 1), 0.0), 1.0)


# -- what it is to do ----------------------------------------------------------------------------------


def plan(
    sink: Sink, feed: Feed, *, begin: JSON, end: JSON, now: datetime, rows_per_s: float | None = None
) -> tuple[FeedSpec, FeedBackfill]:
    """Decide on a backfill: its declaration, and from where to where.

    It ends where the feed stands if ``end`` is None, or lies beyond that.

    Raises `InvalidInput` with what stands against it, `SinkUnavailable`.
    """
    options = parse_options(feed.spec.connector, feed.spec.source)
    _check(feed, options)
    stands = checkpoint_of(sink, feed)
    like = None if stands is None else stands.cursor
    if end is None and like is None:
        raise InvalidInput(f"end: feed {feed.name!r} has landed nothing yet, so say where its backfill ends")
    begins_after = _said(options, begin, like, now=now, argument="begin")
    ends_at = like if end is None else _said(options, end, like, now=now, argument="end")
    ends_at = _not_beyond(options, ends_at, like)
    first, last = (_place(options, cursor, of=feed) for cursor in (begins_after, ends_at))
    if first >= last:
        raise InvalidInput(
            f"begin: {show_cursor(begins_after)} is not before {show_cursor(ends_at)}, the end: "
            "there is nothing to land"
        )
    limits = dict(feed.spec.source.get("limits") or {})
    limits["rows_per_s"] = rows_per_s or min(ROWS_PER_S, limits.get("rows_per_s") or ROWS_PER_S)
    differs = {
        "name": f"{feed.name}{BACKFILL_SUFFIX}",
        "source": {**feed.spec.source, "limits": limits},
        "initial_cursor": begins_after,
        "expect": {},
    }
    spec = feed.spec.model_copy(update=differs)
    parse_options(spec.connector, spec.source)  # the limit may be none
    return spec, FeedBackfill(feed.id, begins_after, ends_at)


def _check(feed: Feed, options: ConnectorOptions) -> None:
    """Raises `InvalidInput` for a feed that there can be no backfill of."""
    if feed.backfill is not None:
        raise InvalidInput(f"{feed.name!r} is a backfill itself, of feed {known_as(feed.name)!r}")
    if not parse_sink(feed.spec.sink).key:
        raise InvalidInput(
            f"feed {feed.name!r}: its sink has no key, so records that have landed would land again. Give the "
            "table a unique index, and name its columns in sink.key"
        )
    asks = "{cursor}" in json.dumps(dict(feed.spec.source))
    if isinstance(options, CursorOptions) and options.cursor is not None and not asks:
        raise InvalidInput(
            f"feed {feed.name!r}: its requests do not contain {{cursor}}, so its source cannot be told where to "
            "begin"
        )


def _said(options: ConnectorOptions, said: JSON, like: JSON, *, now: datetime, argument: str) -> JSON:
    """The cursor that is meant: as JSON or a text, short where the connector can complete it, or as a time."""
    if isinstance(said, str):  # typed
        with suppress(ValueError, RecursionError):
            said = read_exactly(said)
    try:
        cursor = options.cursor_said(said, like)
    except ValueError as error:
        try:
            at = parse_moment_near(said if isinstance(said, str) else "", DEFAULT_ZONE, now=now, sign=-1)
        except ValueError:
            raise InvalidInput(f"{argument}: the cursor {error}") from None
        try:
            cursor = options.cursor_at(like, at)
        except ValueError as told:
            raise InvalidInput(f"{argument}: {told}") from None
    check_cursor(options, cursor)
    return cursor


def _not_beyond(options: ConnectorOptions, end: JSON, stands: JSON) -> JSON:
    """Where a feed stands, if that comes before the end: what is later it lands itself, and a quiet source may
    have nothing there for long."""
    if stands is None:
        return end
    try:
        return min(end, stands, key=options.cursor_place)
    except ValueError:  # it stands at a cursor of another declaration, or nobody can tell
        return end


def _place(options: ConnectorOptions, cursor: JSON, *, of: Feed) -> int:
    try:
        return options.cursor_place(cursor)
    except ValueError as error:
        raise InvalidInput(
            f"feed {of.name!r}: cannot tell where its backfill would end. Its cursor "
            f"{show_cursor(cursor)}: {error}"
        ) from None
