"""Drift: fields of a feed's records that no column takes, and columns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedq.core.model import FeedView
from feedq.core.notices import new_fields
from feedq.core.roles import AccessRole
from feedq.sinks.base import target_of_feed
from feedq.sinks.mapping import Drift
from feedq.verbs import new_columns
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
        return _document(view, new_columns.proposed(sink, view), applied=False)


@verb("POST /feeds/{name}/drift", role=AccessRole.OPERATOR)
def add_columns(
    at: At, *, name: NameArgument, expected: Expected = None, dry_run: bool = False
) -> DriftDocument:
    """Add columns for the fields that no column takes."""
    feed = at.own_feed(name, expected)
    view = at.store.feeds.view(name)
    with sink_of(at, feed) as sink:
        if dry_run:
            return _document(view, new_columns.proposed(sink, view), applied=False)
        return _document(view, new_columns.add_columns(at.store, sink, view), applied=True)


def _document(view: FeedView, statements: Sequence[str], *, applied: bool) -> DriftDocument:
    drift = target_of_feed(view.feed.spec).drift
    return DriftDocument(view.feed.name, drift, new_fields(view.lease.noticed), statements, applied)
