"""Drift: fields of a feed's records that no column takes, and columns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedq.core.model import FeedView
from feedq.core.notices import new_fields
from feedq.core.roles import AccessRole
from feedq.errors import Conflict, InvalidInput
from feedq.sinks.base import AddsColumns, Sink, target_of_feed
from feedq.sinks.mapping import ColumnType, Drift
from feedq.telemetry.event_names import EventKind
from feedq.verbs.cursors import sink_of
from feedq.verbs.registry import At, Expected, NameArgument, verb


@dataclass(frozen=True, slots=True)
class DriftDocument:
    """Fields that no column takes, and the statements that add columns for them."""

    name: str
    drift: Drift
    """What the feed does with such fields."""
    fields: Mapping[str, str]
    """The types of the fields, by name."""
    statements: Sequence[str]
    applied: bool


@verb("GET /feeds/{name}/drift")
def show_drift(at: At, *, name: NameArgument) -> DriftDocument:
    """Fields of a feed's records that no column takes."""
    feed = at.live_feed(name)
    view = at.store.feeds.view(name)
    with sink_of(at, feed) as sink:
        return _document(view, _added(sink, view, dry_run=True), applied=False)


@verb("POST /feeds/{name}/drift", role=AccessRole.OPERATOR)
def add_columns(
    at: At, *, name: NameArgument, expected: Expected = None, dry_run: bool = False
) -> DriftDocument:
    """Add columns for the fields that no column takes. Again, or twice at once, it does what is left."""
    feed = at.own_feed(name, expected)
    view = at.store.feeds.view(name)
    with sink_of(at, feed) as sink:
        if not dry_run and (drift := target_of_feed(feed.spec).drift) is not Drift.ADD:
            raise Conflict(
                f"feed {name!r}: sink.drift is {drift}, so nothing would fill new columns: set it to add "
                "(`feedq feed set NAME sink.drift=add`), or map the fields in sink.columns"
            )
        statements = _added(sink, view, dry_run=True)
        if statements and not dry_run:
            # Before it is done: the feed may have changed hands meanwhile, and then nothing is.
            detail = {"statements": statements}
            at.store.feeds.tell(name, EventKind.COLUMNS_ADDED, detail, before=view.feed.version)
            statements = _added(sink, view, dry_run=False)
        return _document(view, statements, applied=not dry_run)


def _added(sink: Sink, view: FeedView, *, dry_run: bool) -> list[str]:
    """The statements that add columns for what no column takes. Raises `InvalidInput`, `SinkUnavailable`."""
    fields = sorted(new_fields(view.lease.noticed).items())
    if not fields:
        return []
    if not isinstance(sink, AddsColumns):
        raise InvalidInput("the sink of this feed adds no columns: add them by hand")
    wanted = {name: ColumnType(type_) for name, type_ in fields}
    return sink.add_columns(target_of_feed(view.feed.spec), wanted, dry_run=dry_run)


def _document(view: FeedView, statements: Sequence[str], *, applied: bool) -> DriftDocument:
    drift = target_of_feed(view.feed.spec).drift
    return DriftDocument(view.feed.name, drift, new_fields(view.lease.noticed), statements, applied)
