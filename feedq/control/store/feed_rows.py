"""Feeds as values of `feedq.core.model`, and as their columns hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from feedq.control.store.database import Connection, Rows
from feedq.control.store.protocol import read
from feedq.core.expectations import unmet_said
from feedq.core.model import (
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    Selector,
    Status,
    TargetState,
    Unmet,
)

T = TypeVar("T")

SPEC_COLUMNS = tuple(key for key in FeedSpec.model_fields if key != "resume")
"""The columns of a declaration, called like its keys."""
STATUS_VIEW = "feedq_1.feed_status"


def stored_selector(selector: Selector) -> dict[str, dict[str, str]]:
    """Writes a selector as its column holds it, without parts that say nothing."""
    return {name: dict(part) for name, part in selector if part}


def declared_columns(spec: FeedSpec) -> dict[str, Any]:
    """Writes a declaration as its columns hold it."""
    values = {column: getattr(spec, column) for column in SPEC_COLUMNS}
    target = spec.target_state or TargetState.RUNNING
    return {**values, "selector": stored_selector(spec.selector), "target_state": target}


@dataclass(frozen=True, slots=True)
class _ViewedFeed:
    """A row of the view ``feed_status``, as its columns have it."""

    feed: Feed
    lease: Lease | None
    worker: str | None
    status: Status
    because: str | None
    unmet: Sequence[tuple[str, datetime, Any, float, str | None]] | None

    def view(self) -> FeedView:
        # No lease row yet (or any more): the next pass makes one.
        lease = self.lease or Lease(self.feed.id)
        unmet = tuple(
            Unmet(kind, since, unmet_said(kind, bound, found, why))
            for kind, since, bound, found, why in self.unmet or ()
        )
        return FeedView(self.feed, lease, self.worker, self.status, self.because, unmet)


def read_views(c: Connection, source: str, which: str, given: Mapping[str, Any]) -> list[FeedView]:
    """Read feeds from the view ``feed_status``, or a function that chooses from it; which, in which order."""
    sql = f"""
        SELECT CAST(row_to_json(found) AS text)
        FROM (SELECT feed, lease, worker, status, because, unmet FROM {source} v {which}) found
    """
    return [one.view() for one in read_documents(c.execute(sql, given), _ViewedFeed)]


def read_feeds(c: Connection, which: str, given: Mapping[str, Any]) -> list[Feed]:
    """Read the same without their leases."""
    sql = f"SELECT CAST(feed AS text) FROM {STATUS_VIEW} {which}"
    return read_documents(c.execute(sql, given), Feed)


def read_documents(rows: Rows, kind: type[T]) -> list[T]:
    """Read rows of one document each: of a hundred thousand, the database could not make one text."""
    return read(f"[{','.join(row[0] for row in rows)}]", list[kind])  # type: ignore[valid-type]
