"""Backfills of feeds, a bounded second stream beside each: to list, show, begin and cancel them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.control.store.feeds import no_backfill
from feedq.control.store.jobs.schedules import KEY_MAX
from feedq.core.model import JSON, Feed, FeedView, known_as
from feedq.core.passwords import mask_url
from feedq.core.roles import AccessRole
from feedq.telemetry.event_names import EventKind
from feedq.verbs import backfill
from feedq.verbs.cursors import sink_of
from feedq.verbs.registry import At, Expected, NameArgument, Page, verb


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
    begins_after: JSON = None
    ends_at: JSON = None
    cursor: JSON = None
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
    """Backfills that are under way, by name of the feed."""
    found = at.store.backfills.running(tenant=tenant or at.caller.tenant)
    return Page(
        [backfill_document(view.feed, view) for view in found if at.caller.sees(view.feed.spec.tenant)]
    )


@verb("GET /feeds/{name}/backfill")
def show_backfill(at: At, *, name: NameArgument) -> BackfillDocument:
    """The backfill of a feed, or how its last one ended."""
    return _of(at, at.feed(name))


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
    """Land what a feed's source had between two cursors again, beside what the feed lands.

    ``begin`` is the cursor after which it begins and ``end`` the last one, where the feed stands unless given; or
    times, where the connector's cursors tell them. Asked again with the same ``key``, nothing is begun again.
    """
    feed = at.own_feed(name, expected)
    with sink_of(at, feed) as sink:
        wanted = backfill.plan(
            sink, feed, begin=begin, end=end, now=at.store.now(), rows_per_s=rows_per_s, key=key
        )
    if dry_run:
        return BackfillDocument(
            name,
            feed.spec.tenant,
            "planned",
            begins_after=wanted.backfill.begins_after,
            ends_at=wanted.backfill.ends_at,
            limit_rows_per_s=wanted.spec.source["limits"]["rows_per_s"],
        )
    at.store.backfills.begin(feed, wanted.spec, wanted.backfill)
    return _of(at, feed)


@verb("POST /feeds/{name}/backfill/cancel", role=AccessRole.OPERATOR)
def cancel_backfill(
    at: At, *, name: NameArgument, expected: Expected = None, dry_run: bool = False
) -> BackfillDocument:
    """End the backfill of a feed now; what it has landed stays."""
    feed = at.own_feed(name, expected)
    view = at.store.backfills.of(feed) if dry_run else at.store.backfills.cancel(feed)
    if view is None:
        raise no_backfill(name)
    return replace(backfill_document(feed, view), status=ENDED[EventKind.BACKFILL_CANCELLED])


def _of(at: At, feed: Feed) -> BackfillDocument:
    """Raises `NotFound`."""
    view = at.store.backfills.of(feed)
    if view is not None:
        return backfill_document(feed, view)
    end = at.store.backfills.last_end(feed)
    if end is None:
        raise no_backfill(feed.name)
    known = {key: value for key, value in end.detail.items() if key in TOLD}
    status = ENDED[EventKind(end.kind)]
    return BackfillDocument(feed.name, feed.spec.tenant, status, **known, ended_at=end.at)


def backfill_document(feed: Feed, view: FeedView) -> BackfillDocument:
    """One that is under way, with the feed that it is of."""
    lease, wanted = view.lease, view.feed.backfill
    assert wanted is not None, "it is one"
    return BackfillDocument(
        name=known_as(feed.name),
        tenant=feed.spec.tenant,
        status=view.status.value,
        because=None if view.because is None else mask_url(view.because),
        worker=view.worker,
        begins_after=wanted.begins_after,
        ends_at=wanted.ends_at,
        cursor=lease.cursor,
        part=backfill.part_done(view),
        records=lease.records_total,
        dead_letters=lease.dead_letters_total,
        rows_per_s=lease.rows_per_s,
        limit_rows_per_s=view.feed.spec.source.get("limits", {}).get("rows_per_s"),
        begun_at=view.feed.created_at,
    )
