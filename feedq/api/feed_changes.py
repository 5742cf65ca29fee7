"""Feeds: declaring, editing and removing them, and what people do with those that run; columns for new fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field, RootModel, WithJsonSchema

from feedq.api.answers import answer, returns
from feedq.api.arguments import NamePath
from feedq.api.backend import Served
from feedq.api.callers import LiveFeed, changed
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
from feedq.control.store.base import Feeds, require_version
from feedq.core.model import Feed, FeedSpec, TargetState
from feedq.errors import NotFound
from feedq.sinks.base import parse_sink
from feedq.verbs import actions, adoption, new_columns
from feedq.verbs.manifest.changes import difference
from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed, validate
from feedq.verbs.report.rows import drift_document

router = APIRouter(prefix="/feeds", tags=["feeds"])
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


@router.get("/{name:name}/declaration", responses=returns(FeedDeclaration), summary="As a manifest has it")
def show_declaration(feed: LiveFeed) -> Response:
    return answer(plain_feed(feed.spec), headers={"ETag": etag_of(feed.version)})


@router.put("/{name:name}", responses=returns(ChangeRow) | returns(ChangeRow, status=201), summary="Declare")
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
        added = actions.add_feed(backend.store, spec)
    else:
        with adoption.Adopting(backend.store, backend.open_sink) as adopting:
            adopting.add(spec, entry.resume, partial(actions.add_feed, backend.store))
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


@router.patch("/{name:name}", responses=returns(ChangeRow), summary="Change some of its declaration")
def patch_feed(asked: FeedChange, patch: Annotated[dict[str, Any], Body()]) -> Response:
    """A merge patch (RFC 7396) of the declaration: null takes a key away."""
    spec = FeedEntry.valid(patched(plain_feed(asked.feed.spec), patch)).spec
    if_match = asked.if_match if asked.expected else etag_of(asked.feed.version)
    return _edit(replace(asked, if_match=if_match), asked.feed, spec)


@router.delete("/{name:name}", responses=returns(ChangeRow), summary="Stop a feed and forget it")
def remove_feed(asked: FeedChange) -> Response:
    def remove(feeds: Feeds) -> Feed:
        feeds.remove(asked.feed.name, expected=asked.expected)
        return asked.feed

    return _act(asked, "removed", remove)


@router.post("/{name:name}/pause", responses=returns(ChangeRow), summary="Stop until it is resumed")
def pause_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _target(asked, TargetState.PAUSED, "paused")


@router.post("/{name:name}/resume", responses=returns(ChangeRow), summary="Run again where it left off")
def resume_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    return _target(asked, TargetState.RUNNING, "resumed")


def _target(asked: AskedOfFeed, target: TargetState, result: str) -> Response:
    name, expected = asked.feed.name, asked.expected
    return _act(asked, result, lambda feeds: feeds.set_target(name, target, expected=expected))


@router.post("/{name:name}/restart", responses=returns(ChangeRow), summary="Stop it and start it anew")
def restart_feed(asked: FeedChange, given: Reasoned | None = None) -> Response:
    """With If-Match, a request that is repeated restarts it once."""
    name, expected = asked.feed.name, asked.expected
    return _act(asked, "restarted", lambda feeds: feeds.restart(name, expected=expected))


def _act(asked: AskedOfFeed, result: str, act: Callable[[Feeds], Feed]) -> Response:
    if asked.dry_run:
        asked.require_version()
    after = asked.feed if asked.dry_run else act(asked.backend.store.feeds)
    return asked.done(asked.feed.name, result, version=after.version)


@router.post("/{name:name}/move", responses=returns(ChangeRow), summary="Let another worker have it")
def move_feed(asked: FeedChange, given: MoveTo) -> Response:
    asked.require_version()
    name, backend = asked.feed.name, asked.backend
    target = actions.move_feed(backend.store, name, given.worker, backend.settings, dry_run=asked.dry_run)
    return asked.done(name, f"moving to {target.worker.name}", version=asked.feed.version)


@router.post("/{name:name}/adopt", responses=returns(ChangeRow), summary="Take over a namesake's checkpoint")
def adopt_checkpoint(asked: FeedChange, given: Adopt | None = None) -> Response:
    chosen, name = given or Adopt(), asked.feed.name
    asked.require_version()
    owner = asked.backend.sink_verbs.adopt(
        name, number=chosen.number, force=chosen.force, dry_run=asked.dry_run
    )
    after = asked.feed if asked.dry_run else asked.backend.store.feeds.get(name)
    return asked.done(name, "adopted", version=after.version, note=owner)


@router.get("/{name:name}/drift", responses=returns(DriftDocument), summary="Fields that no column takes")
def show_drift(backend: Served, feed: LiveFeed) -> Response:
    view = backend.store.feeds.view(feed.name)
    with backend.open_sink(parse_sink(feed.spec.sink).name) as sink:
        return answer(drift_document(view, new_columns.proposed(sink, view), applied=False))


@router.post("/{name:name}/drift", responses=returns(DriftDocument), summary="Add columns for them")
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
