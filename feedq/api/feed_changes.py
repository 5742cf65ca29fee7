"""Feeds: declaring, editing and removing them, and what people do with those that run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from pydantic import Field, RootModel, WithJsonSchema

from feedq import adoption, verbs
from feedq.api.answers import answer, returns
from feedq.api.backend import Served
from feedq.api.callers import Viewer, changed, seen
from feedq.api.changing import (
    Asked,
    Change,
    ChangeRow,
    IfNoneMatch,
    Reasoned,
    etag_of,
    heed,
    require_none,
)
from feedq.api.names import NamePath
from feedq.api.schemas import FEED_ENTRY
from feedq.errors import Conflict, InvalidInput, NotFound, Outdated
from feedq.manifest.changes import difference
from feedq.manifest.feed_entry import FeedEntry, plain_feed, validate
from feedq.model import Feed, FeedSpec, TargetState
from feedq.store.base import require_version

TRIES = 5
"""A feed that is added and removed again and again by others is given up."""

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


@router.get("/{name:name}/declaration", responses=returns(FeedDeclaration), summary="As a manifest has it")
def show_declaration(request: Request, backend: Served, caller: Viewer, name: NamePath) -> Response:
    feed = verbs.live_feed(backend.store, name)
    seen(caller, feed, backend, request)
    return answer(plain_feed(feed.spec), headers={"ETag": etag_of(feed.version)})


@router.put("/{name:name}", responses=returns(ChangeRow) | returns(ChangeRow, status=201), summary="Declare")
def put_feed(
    asked: Change, name: NamePath, declared: Annotated[Declaration, Body()], if_none_match: IfNoneMatch = None
) -> Response:
    """Add the feed, or make it what is declared; what is so already is left alone."""
    if declared.get("name", name) != name:
        raise InvalidInput(f"name: must be {name!r}, as in the address, or left out")
    entry = FeedEntry.valid(declared | {"name": name})
    for _ in range(TRIES):
        before = _existing(asked, name)
        require_none(f"feed {name!r}", if_none_match, exists=before is not None)
        if before is None and asked.if_match is not None:
            raise Outdated(f"there is no feed {name!r}, and If-Match says that there is")
        spec = _kept(entry, before)
        try:
            return _add(asked, entry, spec) if before is None else _edit(asked, before, spec)
        except Conflict as error:
            # Somebody else was faster. Who did not say what it must be like has it made so all the same.
            if asked.if_match or if_none_match:
                raise Outdated(str(error)) from error
    raise Conflict(f"feed {name!r} is changed by others again and again; nothing was changed")


def _existing(asked: Asked, name: str) -> Feed | None:
    """The feed that is to be changed. Raises `Forbidden`, `Outdated`."""
    try:
        found = verbs.live_feed(asked.backend.store, name)
    except NotFound:
        return None
    changed(asked.caller, found)
    return found


def _kept(entry: FeedEntry, before: Feed | None) -> FeedSpec:
    """What is declared; a feed that is there keeps its target state unless another one is said."""
    if before is None or entry.target_state is not None:
        return entry.spec
    return replace(entry.spec, target_state=before.spec.target_state)


def _add(asked: Asked, entry: FeedEntry, spec: FeedSpec) -> Response:
    asked.caller.require_tenant(spec.tenant, f"a feed of tenant {spec.tenant!r}")
    validate(spec)
    if asked.dry_run:
        return asked.done(spec.name, "added")
    backend = asked.backend
    if entry.resume is None:
        added = verbs.add_feed(backend.store, spec)
    else:
        with adoption.Adopting(backend.store, backend.open_sink) as adopting:
            adopting.add(spec, entry.resume, partial(verbs.add_feed, backend.store))
        added = backend.store.feeds.get(spec.name)
    return asked.done(spec.name, "added", version=added.version, status=201)


def _edit(asked: Asked, before: Feed, spec: FeedSpec) -> Response:
    asked.caller.require_tenant(spec.tenant, f"a feed of tenant {spec.tenant!r}")
    validate(spec)
    changes = difference(before.spec, spec)
    # Whose it is was judged for this version alone.
    expected = asked.expected or (before.version if asked.caller.tenant is not None else None)
    if asked.dry_run:
        _require(asked, before)
        return asked.done(
            spec.name, "edited" if changes else "unchanged", version=before.version, changes=changes
        )
    after = asked.backend.store.feeds.edit(spec.name, spec, expected=expected)
    result = "unchanged" if after.generation == before.generation else "edited"
    return asked.done(spec.name, result, version=after.version, changes=changes)


def _require(asked: Asked, feed: Feed) -> None:
    """For what is not carried out, the comparison that the store would make. Raises `Outdated`."""
    require_version(f"feed {feed.name!r}", feed.version, asked.expected)


@router.patch("/{name:name}", responses=returns(ChangeRow), summary="Change some of its declaration")
def patch_feed(asked: Change, name: NamePath, patch: Annotated[dict[str, Any], Body()]) -> Response:
    """A merge patch (RFC 7396) of the declaration: null takes a key away."""
    before = _live(asked, name)
    keys = merge_patch(plain_feed(before.spec), patch)
    if keys.get("name") != name:
        raise InvalidInput(
            "name: cannot be changed; declare the feed under its new name, and remove this one"
        )
    spec = FeedEntry.valid(keys).spec
    asked = replace(asked, if_match=asked.if_match if asked.expected else etag_of(before.version))
    return _edit(asked, before, spec)


def merge_patch(before: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _live(asked: Asked, name: str) -> Feed:
    """Raises `NotFound`, `Forbidden`."""
    found = verbs.live_feed(asked.backend.store, name)
    changed(asked.caller, found)
    return found


@router.delete("/{name:name}", responses=returns(ChangeRow), summary="Stop a feed and forget it")
def remove_feed(asked: Change, name: NamePath) -> Response:
    feed = _live(asked, name)
    if asked.dry_run:
        _require(asked, feed)
    else:
        asked.backend.store.feeds.remove(name, expected=asked.expected)
    return asked.done(name, "removed", version=feed.version)


@router.post("/{name:name}/pause", responses=returns(ChangeRow), summary="Stop until it is resumed")
def pause_feed(asked: Change, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, TargetState.PAUSED, "paused", given)


@router.post("/{name:name}/resume", responses=returns(ChangeRow), summary="Run again where it left off")
def resume_feed(asked: Change, name: NamePath, given: Reasoned | None = None) -> Response:
    return _target(asked, name, TargetState.RUNNING, "resumed", given)


def _target(asked: Asked, name: str, target: TargetState, result: str, given: Reasoned | None) -> Response:
    heed(given)
    feed = _live(asked, name)
    if asked.dry_run:
        _require(asked, feed)
    else:
        feed = asked.backend.store.feeds.set_target(name, target, expected=asked.expected)
    return asked.done(name, result, version=feed.version)


@router.post("/{name:name}/restart", responses=returns(ChangeRow), summary="Stop it and start it anew")
def restart_feed(asked: Change, name: NamePath, given: Reasoned | None = None) -> Response:
    """With If-Match, a request that is repeated restarts it once."""
    heed(given)
    feed = _live(asked, name)
    if asked.dry_run:
        _require(asked, feed)
    else:
        feed = asked.backend.store.feeds.restart(name, expected=asked.expected)
    return asked.done(name, "restarted", version=feed.version)


@router.post("/{name:name}/move", responses=returns(ChangeRow), summary="Let another worker have it")
def move_feed(asked: Change, name: NamePath, given: MoveTo) -> Response:
    heed(given)
    feed = _live(asked, name)
    _require(asked, feed)
    backend = asked.backend
    target = verbs.move_feed(backend.store, name, given.worker, backend.settings, dry_run=asked.dry_run)
    return asked.done(name, f"moving to {target.worker.name}", version=feed.version)


@router.post("/{name:name}/adopt", responses=returns(ChangeRow), summary="Take over a namesake's checkpoint")
def adopt_checkpoint(asked: Change, name: NamePath, given: Adopt | None = None) -> Response:
    heed(given)
    chosen = given or Adopt()
    feed = _live(asked, name)
    _require(asked, feed)
    owner = asked.backend.sink_verbs.adopt(
        name, number=chosen.number, force=chosen.force, dry_run=asked.dry_run
    )
    after = feed if asked.dry_run else asked.backend.store.feeds.get(name)
    return asked.done(name, "adopted", version=after.version, note=owner)
