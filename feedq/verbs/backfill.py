"""What a backfill is to do: from where to where, under which declaration, and how far it has come.

Decided here, before it is begun; `feedq.control.store.feeds` begins it, `feedq.worker.declared` judges
its end."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from feedq.connectors.base import ConnectorOptions, parse_options, show_cursor
from feedq.connectors.record_options import CursorOptions
from feedq.core.model import BACKFILL_SUFFIX, JSON, Feed, FeedBackfill, FeedSpec, FeedView, known_as
from feedq.core.values import parse_duration
from feedq.errors import InvalidInput
from feedq.sinks.base import Sink, parse_sink
from feedq.sinks.checkpoints import check_cursor
from feedq.verbs.cursors import checkpoint_of

ROWS_PER_S: Final = 10_000.0
"""Unless said otherwise: a tenth of what a worker lands, so that the feeds beside it notice little."""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """A backfill to begin: of this feed as it is, under this declaration."""

    feed: Feed
    spec: FeedSpec
    backfill: FeedBackfill


def plan(
    sink: Sink,
    feed: Feed,
    *,
    begin: JSON,
    end: JSON,
    now: datetime,
    rows_per_s: float | None = None,
    key: str | None = None,
) -> BackfillPlan:
    """Decide on a backfill. ``end`` None is where the feed stands, and so is one beyond that.

    Raises `InvalidInput` with what stands against it, `SinkUnavailable`.
    """
    options = parse_options(feed.spec.connector, feed.spec.source)
    _check(feed, options)
    stands = checkpoint_of(sink, feed)
    like = None if stands is None else stands.cursor
    if end is None and like is None:
        raise InvalidInput(
            f"feed {feed.name!r} has landed nothing yet, where its backfill could end; say --to"
        )
    begins_after = _said(options, begin, like, now=now, option="--from")
    ends_at = like if end is None else _said(options, end, like, now=now, option="--to")
    ends_at = _not_beyond(options, ends_at, like)
    first, last = (_place(options, cursor, of=feed) for cursor in (begins_after, ends_at))
    if first >= last:
        raise InvalidInput(
            f"--from {show_cursor(begins_after)} is not before --to {show_cursor(ends_at)}: nothing lies between"
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
    return BackfillPlan(feed, spec, FeedBackfill(feed.id, begins_after, ends_at, key))


def _check(feed: Feed, options: ConnectorOptions) -> None:
    """Raises `InvalidInput` for a feed that there can be no backfill of."""
    if feed.backfill is not None:
        raise InvalidInput(f"{feed.name!r} is a backfill itself, of feed {known_as(feed.name)!r}")
    if not parse_sink(feed.spec.sink).key:
        raise InvalidInput(
            f"feed {feed.name!r}: its sink has no key, so that what has landed already would land twice. Give the "
            "table a unique index, and name its columns in sink.key"
        )
    asks = "{cursor}" in json.dumps(dict(feed.spec.source))
    if isinstance(options, CursorOptions) and options.cursor is not None and not asks:
        raise InvalidInput(
            f"feed {feed.name!r}: its source is not asked with {{cursor}}, and cannot be told where to begin"
        )


def _said(options: ConnectorOptions, said: JSON, like: JSON, *, now: datetime, option: str) -> JSON:
    """The cursor that is meant: as JSON or a text, short where the connector can complete it, or as a time."""
    if isinstance(said, str):  # typed
        with suppress(ValueError, RecursionError):
            said = json.loads(said)
    try:
        cursor = options.cursor_said(said, like)
    except ValueError as error:
        if (at := _moment(said, now=now)) is None:
            raise InvalidInput(f"{option}: the cursor {error}") from None
        try:
            cursor = options.cursor_at(like, at)
        except ValueError as told:
            raise InvalidInput(f"{option}: {told}") from None
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


def _moment(said: JSON, *, now: datetime) -> datetime | None:
    """A time, or how long ago."""
    if not isinstance(said, str):
        return None
    try:
        return now - timedelta(seconds=parse_duration(said))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)


def _place(options: ConnectorOptions, cursor: JSON, *, of: Feed) -> int:
    try:
        return options.cursor_place(cursor)
    except ValueError as error:
        raise InvalidInput(
            f"feed {of.name!r}: nobody can tell where its backfill would end. Its cursor "
            f"{show_cursor(cursor)}: {error}"
        ) from None


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
