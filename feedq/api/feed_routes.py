"""Feeds: lists, one of them and its history; declaring, editing and removing them, what people do with those that
run, and columns for new fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field, RootModel, WithJsonSchema

from feedq.api import documents
from feedq.api.answers import answer, answer_page, returns
from feedq.api.arguments import AskedMoment, Cursor, Kinds, Limit, NamePath, place_of
from feedq.api.callers import LiveFeed, SeenFeed, Served, Viewer, changed
from feedq.api.changing import (
    Asked,
    AskedOfFeed,
    Change,
    ChangeRow,
    FeedChange,
    IfNoneMatch,
    Reasoned,
    etag_of,
    named,
    patched,
    put,
)
from feedq.api.documents import FEED_ENTRY
from feedq.control.store.event_listing import EventFilter
from feedq.control.store.feeds import Feeds
from feedq.core.landed import Span
from feedq.core.model import Feed, FeedSpec, Status, TargetState, require_version
from feedq.core.selection import Selection
from feedq.core.values import NAME_MAX
from feedq.errors import InvalidInput, NotFound
from feedq.sinks.base import parse_sink
from feedq.verbs import actions, adoption, declaring, new_columns
from feedq.verbs.adoption import resumes_of
from feedq.verbs.diagnosis.waiting_checks import explain
from feedq.verbs.manifest.changes import difference
from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed, validate
from feedq.verbs.report.rows import drift_document, feed_document, feed_row, landed_document, listed_event_row

TEXT_MAX = 200
LABELS_MAX = 20
STATUSES_MAX = len(Status)

feeds = APIRouter(prefix="/feeds", tags=["feeds"])
declarations = APIRouter(prefix="/declarations", tags=["declarations"])


@feeds.get("", responses=returns(documents.FEED_PAGE), summary="Feeds by name")
def list_feeds(
    backend: Served,
    caller: Viewer,
    status: Annotated[list[Status], Query(max_length=STATUSES_MAX)] = [],  # noqa: B006 -- FastAPI copies it
    tenant: str | None = None,
    worker: Annotated[str | None, Query(description="The whole name of the worker that has it.")] = None,
    connector: str | None = None,
    match: Annotated[str | None, Query(max_length=NAME_MAX, description="Names like `acme/*`.")] = None,
    failing: Annotated[
        bool, Query(description="Only those in trouble, which somebody has to look at.")
    ] = False,
    label: Annotated[
        list[str], Query(max_length=LABELS_MAX, description="As `key=value`; all of them.")
    ] = [],  # noqa: B006
    text: Annotated[
        str, Query(max_length=TEXT_MAX, description="Looked for wherever a feed shows some, in any case.")
    ] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    if tenant is not None and not caller.sees(tenant):
        return answer({"feeds": [], "next": None})
    chosen = Selection(
        tenant=tenant if caller.tenant is None else caller.tenant,
        labels=labels_of(label),
        worker=worker,
        statuses=tuple(status),
        connector=connector,
        match=match,
        failing=failing,
        removing=True,
    )
    place = place_of(cursor, str, int) or ("", 0)
    found = backend.store.listing.after(chosen, text_=text.strip(), place=place, limit=limit + 1)
    return answer_page("feeds", found, limit, feed_row, lambda view: (view.feed.name, view.feed.id))


@feeds.get("/{name:name}", responses=returns(documents.FEED), summary="Everything about one feed")
def show_feed(backend: Served, feed: SeenFeed) -> Response:
    view = backend.store.feeds.view(feed.name)
    workers, now = backend.store.workers.views(), backend.store.now()
    why = explain(view, workers, now=now, rules=backend.settings.rules)
    return answer(feed_document(view, explanation=why))


@feeds.get("/{name:name}/events", responses=returns(documents.EVENT_PAGE), summary="History of one feed")
def list_events_of_feed(
    backend: Served,
    feed: SeenFeed,
    kind: Kinds = [],  # noqa: B006 -- FastAPI copies it
    since: AskedMoment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    (place,) = place_of(cursor, int) or (None,)
    which = EventFilter(tuple(kind), feed=feed, since=since)
    found = backend.store.history.before(which, place=place, limit=limit + 1)
    return answer_page("events", found, limit, listed_event_row, lambda one: (one.id,))


@feeds.get(
    "/{name:name}/history",
    responses=returns(documents.LANDED),
    summary="What one feed landed in an hour or a day",
)
def show_landed(
    backend: Served,
    feed: SeenFeed,
    span: Annotated[Span, Query(description="By minutes, or by quarters of an hour.")] = Span.HOUR,
) -> Response:
    return answer(landed_document(span, backend.store.landed.of_feed(feed.id, span)))


def labels_of(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, pairs, strict=True):
        if not key or not equals:
            raise InvalidInput(f"label {text!r}: write it as key=value")
    return {key: value for key, _, value in pairs}


Declaration = Annotated[dict[str, Any], WithJsonSchema(FEED_ENTRY)]


class FeedDeclaration(RootModel[Declaration]):
    """A feed as it stands in a manifest."""


class MoveTo(Reasoned):
    """Where a feed is to go on."""

    worker: str = Field(
        description="Its name, the part of it before the `@`, its id, or the beginning of that."
    )


class Adopt(Reasoned):
    """Which checkpoint a feed is to go on from."""

    number: int | None = Field(None, ge=1, description="Which, if there are several of its name.")
    force: bool = Field(False, description="Also if the feed has landed records of its own already.")


class DriftDocument(BaseModel):
    """Fields that no column takes with the types of columns for them, and the statements that add these."""

    name: str
    drift: str
    fields: dict[str, str]
    statements: list[str]
    applied: bool


@feeds.get("/{name:name}/declaration", responses=returns(FeedDeclaration), summary="As a manifest has it")
def show_declaration(feed: LiveFeed) -> Response:
    return answer(plain_feed(feed.spec), headers={"ETag": etag_of(feed.version)})


@feeds.put("/{name:name}", responses=returns(ChangeRow) | returns(ChangeRow, status=201), summary="Declare")
def put_feed(
    asked: Change, name: NamePath, declared: Annotated[Declaration, Body()], if_none_match: IfNoneMatch = None
) -> Response:
    """Add the feed, or make it what is declared; what is so already is left alone."""
    entry = FeedEntry.valid(named(declared, name))

    def make(before: Feed | None) -> Response:
        if before is None:
            return _add(asked, entry, entry.spec)
        # It keeps its target state unless another one is said.
        kept = entry.target_state or before.spec.target_state
        return _edit(asked, before, replace(entry.spec, target_state=kept))

    return put(asked, f"feed {name!r}", if_none_match, lambda: _existing(asked, name), make)


def _existing(asked: Asked, name: str) -> Feed | None:
    """The feed that is to be changed. Raises `Forbidden`."""
    try:
        found = actions.live_feed(asked.backend.store, name)
    except NotFound:
        return None
    changed(asked.caller, found)
    return found


def _add(asked: Asked, entry: FeedEntry, spec: FeedSpec) -> Response:
    asked.caller.require_tenant(spec.tenant, f"a feed of tenant {spec.tenant!r}")
    validate(spec)
    if asked.dry_run:
        return asked.done(spec.name, "added")
    backend = asked.backend
    if entry.resume is None:
        added = declaring.add_feed(backend.store, spec)
    else:
        with adoption.Adopting(backend.store, backend.open_sink) as adopting:
            adopting.add(spec, entry.resume, partial(declaring.add_feed, backend.store))
        added = backend.store.feeds.get(spec.name)
    return asked.done(spec.name, "added", version=added.version, status=201)


def _edit(asked: Asked, before: Feed, spec: FeedSpec) -> Response:
    asked.caller.require_tenant(spec.tenant, f"a feed of tenant {spec.tenant!r}")
    validate(spec)
    changes = difference(before.spec, spec)
    # Whose it is was judged for this version alone.
    expected = asked.expected or (before.version if asked.caller.tenant is not None else None)
    if asked.dry_run:
        require_version(f"feed {before.name!r}", before.version, asked.expected)
        return asked.done(
            spec.name, "edited" if changes else "unchanged", version=before.version, changes=changes
        )
    after = asked.backend.store.feeds.edit(spec.name, spec, expected=expected)
    result = "unchanged" if after.generation == before.generation else "edited"
    return asked.done(spec.name, result, version=after.version, changes=changes)


@feeds.patch("/{name:name}", responses=returns(ChangeRow), summary="Change some of its declaration")
def patch_feed(asked: FeedChange, patch: Annotated[dict[str, Any], Body()]) -> Response:
    """A merge patch (RFC 7396) of the declaration: null takes a key away."""
    spec = FeedEntry.valid(patched(plain_feed(asked.feed.spec), patch)).spec
    if_match = asked.if_match if asked.expected else etag_of(asked.feed.version)
    return _edit(replace(asked, if_match=if_match), asked.feed, spec)


@feeds.delete("/{name:name}", responses=returns(ChangeRow), summary="Stop a feed and forget it")
def remove_feed(asked: FeedChange) -> Response:
    def remove(feeds: Feeds) -> Feed:
        feeds.remove(asked.feed.name, expected=asked.expected)
        return asked.feed

    return _act(asked, "removed", remove)


@feeds.post("/{name:name}/pause", responses=returns(ChangeRow), summary="Stop until it is resumed")
def pause_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _target(asked, TargetState.PAUSED, "paused")


@feeds.post("/{name:name}/resume", responses=returns(ChangeRow), summary="Run again where it left off")
def resume_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _target(asked, TargetState.RUNNING, "resumed")


def _target(asked: AskedOfFeed, target: TargetState, result: str) -> Response:
    name, expected = asked.feed.name, asked.expected
    return _act(asked, result, lambda feeds: feeds.set_target(name, target, expected=expected))


@feeds.post("/{name:name}/restart", responses=returns(ChangeRow), summary="Stop it and start it anew")
def restart_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    """With If-Match, a request that is repeated restarts it once."""
    name, expected = asked.feed.name, asked.expected
    return _act(asked, "restarted", lambda feeds: feeds.restart(name, expected=expected))


def _act(asked: AskedOfFeed, result: str, act: Callable[[Feeds], Feed]) -> Response:
    if asked.dry_run:
        asked.require_version()
    after = asked.feed if asked.dry_run else act(asked.backend.store.feeds)
    return asked.done(asked.feed.name, result, version=after.version)


@feeds.post("/{name:name}/move", responses=returns(ChangeRow), summary="Let another worker have it")
def move_feed(asked: FeedChange, given: MoveTo) -> Response:
    asked.require_version()
    name, backend = asked.feed.name, asked.backend
    target = actions.move_feed(backend.store, name, given.worker, backend.settings, dry_run=asked.dry_run)
    return asked.done(name, f"moving to {target.worker.name}", version=asked.feed.version)


@feeds.post("/{name:name}/adopt", responses=returns(ChangeRow), summary="Take over a namesake's checkpoint")
def adopt_checkpoint(asked: FeedChange, given: Adopt | None = None) -> Response:
    chosen, name = given or Adopt(), asked.feed.name
    asked.require_version()
    owner = asked.backend.sink_verbs.adopt(
        name, number=chosen.number, force=chosen.force, dry_run=asked.dry_run
    )
    after = asked.feed if asked.dry_run else asked.backend.store.feeds.get(name)
    return asked.done(name, "adopted", version=after.version, note=owner)


@feeds.get("/{name:name}/drift", responses=returns(DriftDocument), summary="Fields that no column takes")
def show_drift(backend: Served, feed: LiveFeed) -> Response:
    view = backend.store.feeds.view(feed.name)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        return answer(drift_document(view, new_columns.proposed(sink, view), applied=False))


@feeds.post("/{name:name}/drift", responses=returns(DriftDocument), summary="Add columns for them")
def add_columns(asked: FeedChange, given: Reasoned | None = None) -> Response:
    asked.require_version()
    store = asked.backend.store
    view = store.feeds.view(asked.feed.name)
    with asked.backend.open_sink(parse_sink(asked.feed.spec.sink).name) as sink:
        if asked.dry_run:
            statements = new_columns.proposed(sink, view)
        else:
            statements = new_columns.add_columns(store, sink, view)
        return answer(drift_document(view, statements, applied=not asked.dry_run))


class FeedDeclarations(BaseModel):
    """A page of feeds as they stand in a manifest."""

    feeds: list[Declaration]
    next: str | None


@declarations.get("/feeds", responses=returns(FeedDeclarations), summary="Feeds as manifests have them")
def export_feeds(
    backend: Served,
    caller: Viewer,
    tenant: str | None = None,
    with_cursors: Annotated[bool, Query(description="Also where each stands in its sink.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    if tenant is not None and not caller.sees(tenant):
        return answer({"feeds": [], "next": None})
    (after,) = place_of(cursor, str) or ("",)
    whose = tenant if caller.tenant is None else caller.tenant
    found = backend.store.feeds.declared(tenant=whose, after=after, limit=limit + 1)
    resumes = resumes_of(found, backend.open_sink) if with_cursors else {}
    return answer_page(
        "feeds",
        found,
        limit,
        lambda feed: plain_feed(feed.spec, resumes.get(feed.name)),
        lambda feed: (feed.name,),
    )
