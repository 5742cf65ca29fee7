"""Fields of a feed's records that no column takes, and the columns that would."""

from __future__ import annotations

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedView
from feedq.core.notices import new_fields
from feedq.errors import Conflict, InvalidInput
from feedq.sinks.base import AddsColumns, Sink, target_of_feed
from feedq.sinks.mapping import ColumnType, Drift
from feedq.telemetry.event_names import EventKind


def wanted_columns(view: FeedView) -> dict[str, ColumnType]:
    """The columns that would take the new fields which workers have told of."""
    return {name: ColumnType(type_) for name, type_ in sorted(new_fields(view.lease.noticed).items())}


def proposed(sink: Sink, view: FeedView) -> list[str]:
    """The statements that would add columns for what no column takes. Raises `InvalidInput`, `SinkUnavailable`."""
    return _added(sink, view, dry_run=True)


def add_columns(store: PostgresStore, sink: Sink, view: FeedView) -> list[str]:
    """Write down that these columns are added, and add them. Again, or twice at once, it does what is left.

    Raises `Conflict` (nothing would fill them), `InvalidInput`, `SinkUnavailable`.
    """
    drift = target_of_feed(view.feed.spec).drift
    if drift is not Drift.ADD:
        raise Conflict(
            f"feed {view.feed.name!r}: sink.drift is {drift}, so nothing would fill new columns: set it to add "
            "(`feedq feed set NAME sink.drift=add`), or map the fields in sink.columns"
        )
    if wanted := _added(sink, view, dry_run=True):
        # Before it is done: the feed may have changed hands meanwhile, and then nothing is.
        store.feeds.tell(
            view.feed.name, EventKind.COLUMNS_ADDED, {"statements": wanted}, before=view.feed.version
        )
    return _added(sink, view, dry_run=False) if wanted else []


def _added(sink: Sink, view: FeedView, *, dry_run: bool) -> list[str]:
    wanted = wanted_columns(view)
    if not wanted:
        return []
    if not isinstance(sink, AddsColumns):
        raise InvalidInput("the sink of this feed adds no columns: add them by hand")
    return sink.add_columns(target_of_feed(view.feed.spec), wanted, dry_run=dry_run)
