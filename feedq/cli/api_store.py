"""The part of the store that commands use, over the API: the same methods, which ask a server.

Documents become what the database would have given. Of a feed in a list the API says no options of source and
sink; they are empty then, and full where one feed is asked for. What the API does not do is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from feedq.access import AccessRole, AccessToken
from feedq.cli.api_connection import ApiConnection, error_of
from feedq.errors import Conflict, FeedqError, InvalidInput, Outdated
from feedq.manifest.feed_entry import FeedEntry, plain_feed
from feedq.model import (
    Event,
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    Load,
    Selector,
    Status,
    TargetState,
    Unmet,
    Worker,
    WorkerTarget,
    WorkerView,
)
from feedq.report.rows import LEASE_ERRORS, LEASE_FIELDS, LOAD_FIELDS, WORKER_FIELDS
from feedq.selection import ORDER_KEYS, Selection, SelectionOrder
from feedq.store.event_listing import EventFilter, ListedEvent

ROWS_AT_ONCE: Final = 500
"""What the API has on a page at most."""
NAMES_AT_ONCE: Final = 1_000
"""What the API takes in one request at most."""
MOVING_TO: Final = "moving to "
NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""What the API does not say of a feed in a list."""
EVENT_FIELDS = ("at", "kind", "count", "since", "feed_id", "worker_id", "epoch", "detail")
DAY_S = 86_400.0
T = TypeVar("T")


class ApiFeeds:
    """Feeds, as far as commands ask for them."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def selected(
        self,
        selection: Selection,
        *,
        order: SelectionOrder = SelectionOrder.NAME,
        limit: int | None = None,
    ) -> list[FeedView]:
        if selection.names:
            # The API lists no feeds by name; each is asked for, and the rest of the selection is judged here.
            views = [self._row(self._api.get("feeds", name)) for name in sorted(set(selection.names))]
            found = [view for view in views if selection.chooses(view)]
        else:
            arguments: dict[str, Any] = {
                "tenant": selection.tenant,
                "worker": selection.worker,
                "status": [status.value for status in selection.statuses],
                "connector": selection.connector,
                "match": selection.match,
                "failing": "true" if selection.failing else None,
                "label": [f"{key}={value}" for key, value in selection.labels.items()],
            }
            most = limit if order is SelectionOrder.NAME and selection.removing else None
            rows = pages(self._api, "feeds", most=most, **arguments)
            found = [view for view in map(self._row, rows) if selection.removing or not view.feed.removed_at]
        return sorted(found, key=ORDER_KEYS[order])[:limit]

    def views(self, *, tenant: str | None = None, worker: str | None = None) -> list[FeedView]:
        return self.selected(Selection(tenant=tenant, worker=worker, removing=True))

    def count(self) -> int:
        return len(self.selected(Selection()))

    def declared(self, *, tenant: str | None = None, after: str = "", limit: int = 1_000) -> list[Feed]:
        """All of them at once, and none after these."""
        if after:
            return []
        rows = pages(self._api, "feeds", under="declarations", tenant=tenant)
        return [_declared(FeedEntry.valid(keys).spec) for keys in rows]

    def view(self, name: str) -> FeedView:
        return self.explained(name)[0]

    def explained(self, name: str) -> tuple[FeedView, str | None]:
        """A feed with its declaration, and why it does not stream."""
        row = self._api.get("feeds", name)
        view = self._row(row)
        if view.status is not Status.REMOVING:
            keys = self._api.get("feeds", name, "declaration")
            view = replace(view, feed=replace(view.feed, spec=FeedEntry.valid(keys).spec))
        return view, row["explanation"]

    def get(self, name: str) -> Feed:
        return self._row(self._api.get("feeds", name)).feed

    def add(self, spec: FeedSpec) -> Feed:
        only_new = {"If-None-Match": "*"}
        try:
            self._api.ask("PUT", "feeds", spec.name, body=plain_feed(spec), headers=only_new)
        except Outdated:
            raise Conflict(f"feed {spec.name!r} exists already; `feedq feed edit` changes it") from None
        return _declared(spec)

    def edit(self, name: str, spec: FeedSpec) -> Feed:
        made = self._api.ask("PUT", "feeds", name, body=plain_feed(spec))
        return replace(_declared(spec), generation=made["generation"])

    def move_to(self, name: str, worker: str) -> str:
        """Ask for the move of one feed. Returns the name of the worker that gets it."""
        made = self._api.ask("POST", "feeds", name, "move", body={"worker": worker})
        return str(made["result"]).removeprefix(MOVING_TO)

    def move_all(
        self, names: Sequence[str], worker: str | None
    ) -> tuple[dict[str, str], dict[str, FeedqError]]:
        """Ask for the moves of several. Returns the workers that get them, and why others do not move, by feed."""
        moved: dict[str, str] = {}
        failed: dict[str, FeedqError] = {}
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = names[start : start + NAMES_AT_ONCE]
            asked = {"verb": "move", "selection": {"names": part}, "count": len(part), "worker": worker}
            report = self._api.ask("POST", "bulk", "feeds", body=asked)
            moved |= {row["name"]: row["result"].removeprefix(MOVING_TO) for row in report["done"]}
            failed |= {row["name"]: error_of(row) for row in report["failed"]}
        return moved, failed

    def set_target(self, name: str, target: TargetState) -> Feed:
        return self._changed(name, "pause" if target is TargetState.PAUSED else "resume")

    def restart(self, name: str) -> Feed:
        return self._changed(name, "restart")

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "feeds", name)

    def _changed(self, name: str, verb: str) -> Feed:
        made = self._api.ask("POST", "feeds", name, verb)
        spec = FeedSpec(name=name, connector="", source={}, sink={})
        return replace(_declared(spec), generation=made["generation"])

    def events(self, name: str, *, limit: int = 50) -> list[Event]:
        rows = pages(self._api, "events", under=("feeds", name), most=limit)
        return [_read(self._api, _event, row) for row in rows]

    def tapped(self, name: str, *, seconds: int, limit: int) -> Generator[dict[str, Any], None, None]:
        return self._api.events("feeds", name, "tap", seconds=seconds, limit=limit)

    def _row(self, row: Mapping[str, Any]) -> FeedView:
        return _read(self._api, _feed_view, row)

    def __getattr__(self, name: str) -> Any:
        raise not_served()


class ApiWorkers:
    """Workers, as far as commands ask for them."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def views(self, *, gone: bool = False) -> list[WorkerView]:
        rows = self._api.get("workers", gone="true" if gone else None)["workers"]
        return [_read(self._api, _worker_view, row) for row in rows]

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        verbs = {
            WorkerTarget.CORDONED: "cordon",
            WorkerTarget.SERVING: "uncordon",
            WorkerTarget.DRAINED: "drain",
        }
        self._api.ask("POST", "workers", str(worker_id), verbs[target])
        return True


class ApiHistory:
    """History of everything."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api
        self._next: dict[int, str] = {}

    def before(
        self, which: EventFilter, *, place: int | None = None, limit: int = ROWS_AT_ONCE
    ) -> list[ListedEvent]:
        since = None if which.since is None else which.since.isoformat()
        asked = {"kind": [kind.value for kind in which.kinds], "tenant": which.tenant, "since": since}
        found: list[ListedEvent] = []
        cursor = None
        if place is not None and (cursor := self._next.pop(place, None)) is None:
            return found
        while len(found) < limit:
            page = self._api.get(
                "events", limit=min(ROWS_AT_ONCE, limit - len(found)), cursor=cursor, **asked
            )
            found += [_read(self._api, _listed_event, row) for row in page["events"]]
            if (cursor := page["next"]) is None:
                break
            self._next = {found[-1].id: cursor}
        return found


class ApiTokens:
    """Tokens of the API."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def add(self, name: str, role: AccessRole, *, tenant: str | None, lasts_s: float) -> str:
        asked = {"name": name, "role": role.value, "tenant": tenant, "days": lasts_s / DAY_S}
        return str(self._api.ask("POST", "tokens", body=asked)["token"])

    def all(self) -> list[AccessToken]:
        names = ("name", "role", "tenant", "created_at", "expires_at")
        rows = self._api.get("tokens")["tokens"]
        return [
            _read(self._api, lambda row: AccessToken(**_fields(AccessToken, names, row)), r) for r in rows
        ]

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "tokens", name)


class ApiStore:
    """The store behind an API."""

    def __init__(self, api: ApiConnection) -> None:
        self.feeds = ApiFeeds(api)
        self.workers = ApiWorkers(api)
        self.history = ApiHistory(api)
        self.tokens = ApiTokens(api)
        self.close = api.close


def not_served() -> InvalidInput:
    return InvalidInput(
        "this is not done by a server that --server or FEEDQ_SERVER names: do it where the database can be "
        "reached, without them"
    )


def pages(
    api: ApiConnection, key: str, *, under: str | Sequence[str] = (), most: int | None = None, **asked: Any
) -> list[Mapping[str, Any]]:
    """The rows of all pages of a list, or the first so many."""
    path = [under] if isinstance(under, str) else [*under]
    found: list[Mapping[str, Any]] = []
    cursor = None
    while True:
        left = ROWS_AT_ONCE if most is None else min(ROWS_AT_ONCE, most - len(found))
        page = api.get(*path, key, limit=left, cursor=cursor, **asked)
        found += page[key]
        cursor = page["next"]
        if cursor is None or len(found) == most:
            return found


# -- documents, read ---------------------------------------------------------------------------------


def _read(api: ApiConnection, read: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    """Raises `Unavailable` when the document lacks something."""
    try:
        return read(row)
    except (KeyError, TypeError, ValidationError) as error:
        raise api.skewed() from error


@cache
def _adapters(kind: type, names: tuple[str, ...]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind)
    return {name: TypeAdapter(hints[name]) for name in names}


def _fields(kind: type, names: tuple[str, ...], row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that a document has under their own names."""
    return {name: one.validate_python(row[name]) for name, one in _adapters(kind, names).items()}


def _feed_view(row: Mapping[str, Any]) -> FeedView:
    names = (*LEASE_FIELDS, *LEASE_ERRORS, "worker_id")
    lease = Lease(
        row["id"],
        **_fields(Lease, names, row),
        weight=row["load"],
        generation=row["generation_running"],
        avoid=dict.fromkeys(row["avoid"], NEVER),
        cursor=row.get("cursor"),
    )
    if "assigned_at" in row:
        lease = replace(lease, **_fields(Lease, ("assigned_at",), row))
    unmet = tuple(Unmet(**_fields(Unmet, ("kind", "since", "said"), one)) for one in row["unmet"])
    return FeedView(_feed(row), lease, row["worker"], Status(row["status"]), row["because"], unmet)


def _feed(row: Mapping[str, Any]) -> Feed:
    plain = ("name", "tenant", "connector", "labels", "weight", "target_state")
    spec = FeedSpec(
        **_fields(FeedSpec, plain, row),
        selector=Selector(**row["selector"]),
        source=row.get("source", {}),
        sink=row.get("sink", {}),
    )
    feed = replace(_declared(spec), id=row["id"], generation=row["generation"])
    if "created_at" in row:
        more = _fields(Feed, ("created_at", "updated_at", "removed_at", "catalog"), row)
        return replace(feed, **more)
    return replace(feed, removed_at=NEVER) if row["status"] == Status.REMOVING else feed


def _declared(spec: FeedSpec) -> Feed:
    """A feed of which nothing is known but its declaration."""
    return Feed(0, spec, 1, NEVER, NEVER)


def _worker_view(row: Mapping[str, Any]) -> WorkerView:
    load = Load(feeds=row["feeds_reported"], **_fields(Load, LOAD_FIELDS, row))
    fields = _fields(Worker, (*WORKER_FIELDS, "labels"), row)
    worker = Worker(**fields, load=load, lock_key=0)
    return WorkerView(worker, row["feeds"], row["heartbeat_age_s"], load=row["load"])


def _event(row: Mapping[str, Any]) -> Event:
    return Event(**_fields(Event, EVENT_FIELDS, row))


def _listed_event(row: Mapping[str, Any]) -> ListedEvent:
    return ListedEvent(row["id"], _event(row), row["feed"], row["worker"])
