"""The part of the store that commands use, over the API: the same methods, which ask a server.

Documents become what the database would have given. Of a feed in a list the API says no options of source and
sink; they are empty then, and full where one feed is asked for. What the API does not do is refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from feedq.cli.api_connection import ApiConnection, error_of
from feedq.cli.api_documents import (
    NEVER,
    NOBODY,
    ONE_BY_ONE_MAX,
    ROWS_AT_ONCE,
    ApiPart,
    pages,
    reader_of,
    value_of,
    worker_view,
)
from feedq.control.store.event_listing import EventFilter, ListedEvent
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import (
    Event,
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    Selector,
    StartCursor,
    Status,
    Unmet,
    WorkerTarget,
    WorkerView,
)
from feedq.core.roles import AccessRole, AccessToken
from feedq.core.selection import ORDER_KEYS, Selection, SelectionOrder
from feedq.verbs.bulk import BulkResult, Done
from feedq.verbs.declaring import Begun, Starts
from feedq.verbs.manifest.changes import Action, Change
from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed

if TYPE_CHECKING:
    from feedq.cli.api_fleet import ApiSinkVerbs
    from feedq.cli.api_jobs import ApiJobs
    from feedq.control.store.fleet_state import JobState
    from feedq.verbs.catalogs.syncing import SyncReport
    from feedq.verbs.diagnosis.checks import Check
    from feedq.verbs.report.fleet_data import FleetData
    from feedq.verbs.report.problem_list import ListedProblem

NAMES_AT_ONCE: Final = 1_000
"""What the API takes in one request at most."""
DECLARED_AT_ONCE: Final = 500
"""Feeds that are declared in one request: it takes a second or two of the thirty that there are."""
MOVING_TO: Final = "moving to "
DAY_S = 86_400.0


class ApiFeeds(ApiPart):
    """Feeds, as far as commands ask for them."""

    def selected(
        self,
        selection: Selection,
        *,
        order: SelectionOrder = SelectionOrder.NAME,
        limit: int | None = None,
    ) -> list[FeedView]:
        if 0 < len(selection.names) <= ONE_BY_ONE_MAX:
            # The API lists no feeds by name.
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
            few = order is SelectionOrder.NAME and selection.removing and not selection.names
            rows = pages(self._api, "feeds", most=limit if few else None, **arguments)
            found = [view for view in map(self._row, rows) if selection.removing or not view.feed.removed_at]
            if selection.names:
                found = [view for view in found if selection.chooses(view)]
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

    def whole(self, views: Sequence[FeedView]) -> list[FeedView]:
        """Feeds of a list, with their whole declarations."""
        if len(views) <= ONE_BY_ONE_MAX:
            return [self.view(view.feed.name) for view in views]
        declared = {feed.name: feed.spec for feed in self.declared()}
        there = [view for view in views if view.feed.name in declared]
        return [replace(v, feed=replace(v.feed, spec=declared[v.feed.name])) for v in there]

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

    def act_on(
        self, names: Sequence[str], verb: str, *, worker: str | None = None, told: Done = lambda done: None
    ) -> BulkResult[str, Any]:
        """Do something to all. What was done comes with a feed, or with the name of the worker that gets it."""
        result: BulkResult[str, Any] = BulkResult()
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = names[start : start + NAMES_AT_ONCE]
            asked = {"verb": verb, "selection": {"names": part}, "count": len(part), "worker": worker}
            self._add_report(result, self._api.ask("POST", "bulk", "feeds", body=asked))
            told(start + len(part))
        return result

    def _add_report(self, result: BulkResult[str, Any], report: Mapping[str, Any]) -> None:
        for row in report["done"]:
            to = str(row["result"]).partition(MOVING_TO)[2]
            result.done.append((row["name"], to or _changed(row["name"], row["generation"])))
        result.failed += [(row["name"], error_of(row)) for row in report["failed"]]

    def begun(self, changes: Sequence[Change], resumes: Mapping[str, StartCursor], *, adopt: bool) -> Begun:
        """As `feedq.verbs.declaring.begun`: which of the new feeds their sinks know."""
        added = [change for change in changes if change.noun == "feed" and change.action is Action.ADD]
        notes: dict[str, str] = {}
        unasked: dict[str, None] = {}
        for part in _parts(added):
            asked = _declarations(part, resumes, adopt=adopt)
            dry = {"dry_run": True}
            report = self._api.ask("POST", "bulk", "declarations", arguments=dry, body=asked)
            notes |= {row["name"]: row["note"] for row in report["done"] if row["note"] is not None}
            unasked |= dict.fromkeys(report["unasked"])
        noted = [
            replace(c, note=notes[c.name]) if c.noun == "feed" and c.name in notes else c for c in changes
        ]
        return Begun(noted, resumes, list(unasked))

    def declare(
        self,
        changes: Sequence[Change],
        starts: Starts,
        *,
        adopt: bool = False,
        told: Done = lambda done: None,
    ) -> BulkResult[Change, Feed | None]:
        """Make these changes of feeds; what is adopted, the server finds itself."""
        resumes = {name: start for name, start in starts.items() if isinstance(start, StartCursor)}
        result: BulkResult[str, Any] = BulkResult()
        for number, part in enumerate(_parts(changes)):
            asked = _declarations(part, resumes, adopt=adopt)
            self._add_report(result, self._api.ask("POST", "bulk", "declarations", body=asked))
            told(number * DECLARED_AT_ONCE + len(part))
        of = {change.name: change for change in changes}
        done: list[tuple[Change, Feed | None]] = [(of[name], feed) for name, feed in result.done]
        return BulkResult(done, [(of[name], error) for name, error in result.failed])

    def landed(self, name: str, span: Span) -> list[LandedBucket]:
        rows = self._api.get("feeds", name, "history", span=span.value)["buckets"]
        return self._read_all(reader_of(LandedBucket), rows)

    def tapped(self, name: str, *, seconds: int, limit: int) -> Generator[dict[str, Any], None, None]:
        return self._api.events("feeds", name, "tap", seconds=seconds, limit=limit)

    def _row(self, row: Mapping[str, Any]) -> FeedView:
        return self._read(_feed_view, row)


class ApiWorkers(ApiPart):
    """Workers, as far as commands ask for them."""

    def views(self, *, gone: bool = False) -> list[WorkerView]:
        rows = self._api.get("workers", gone="true" if gone else None)["workers"]
        return self._read_all(worker_view, rows)

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        verbs = {
            WorkerTarget.CORDONED: "cordon",
            WorkerTarget.SERVING: "uncordon",
            WorkerTarget.DRAINED: "drain",
        }
        self._api.ask("POST", "workers", str(worker_id), verbs[target])
        return True


class ApiHistory(ApiPart):
    """History of everything."""

    def __init__(self, api: ApiConnection) -> None:
        super().__init__(api)
        self._next: dict[int, str] = {}

    def before(
        self, which: EventFilter, *, place: int | None = None, limit: int = ROWS_AT_ONCE
    ) -> list[ListedEvent]:
        since = None if which.since is None else which.since.isoformat()
        asked = {"kind": [kind.value for kind in which.kinds], "tenant": which.tenant, "since": since}
        path = ("events",) if which.feed is None else ("feeds", which.feed.name, "events")
        found: list[ListedEvent] = []
        cursor = None
        if place is not None and (cursor := self._next.pop(place, None)) is None:
            return found
        while len(found) < limit:
            page = self._api.get(*path, limit=min(ROWS_AT_ONCE, limit - len(found)), cursor=cursor, **asked)
            found += self._read_all(_listed_event, page["events"])
            if (cursor := page["next"]) is None:
                break
            self._next = {found[-1].id: cursor}
        return found


class ApiTokens(ApiPart):
    """Tokens of the API."""

    def add(self, name: str, role: AccessRole, *, tenant: str | None, lasts_s: float) -> str:
        asked = {"name": name, "role": role.value, "tenant": tenant, "days": lasts_s / DAY_S}
        return str(self._api.ask("POST", "tokens", body=asked)["token"])

    def all(self) -> list[AccessToken]:
        return self._read_all(reader_of(AccessToken), self._api.get("tokens")["tokens"])

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "tokens", name)


class ApiStore(ApiPart):
    """The store behind an API."""

    def __init__(self, api: ApiConnection) -> None:
        super().__init__(api)
        self.feeds = ApiFeeds(api)
        self.workers = ApiWorkers(api)
        self.history = ApiHistory(api)
        self.tokens = ApiTokens(api)
        self.close = api.close

    @cached_property
    def jobs(self) -> ApiJobs:
        from feedq.cli.api_jobs import ApiJobs

        return ApiJobs(self._api)

    @cached_property
    def sink_verbs(self) -> ApiSinkVerbs:
        from feedq.cli.api_fleet import ApiSinkVerbs

        return ApiSinkVerbs(self._api)

    def status(self) -> FleetData:
        from feedq.cli.api_fleet import fleet_of

        return self._read(fleet_of, self._api.get("status"))

    def job_state(self) -> JobState:
        return self.status().jobs

    def problems(self) -> list[ListedProblem]:
        from feedq.verbs.report.problem_list import ListedProblem

        return self._read_all(reader_of(ListedProblem), self._api.get("problems")["problems"])

    def checks(self) -> list[Check]:
        from feedq.cli.api_fleet import check_of

        return self._read_all(check_of, self._api.get("doctor")["checks"])

    def catalogs(self) -> list[str]:
        """Names of those that are set up at the server."""
        return list(self._api.get("catalogs")["catalogs"])

    def sync(self, name: str, *, dry_run: bool, **asked: Any) -> SyncReport:
        from feedq.cli.api_fleet import sync_report_of

        dry = {"dry_run": dry_run}
        found = self._api.ask("POST", "catalogs", name, "sync", arguments=dry, body=asked)
        return self._read(sync_report_of, found)

    def connectors(self, name: str | None) -> dict[str, Any]:
        """The options of one connector, or of all that the server has, as JSON Schemas by name."""
        if name is not None:
            return {name: self._api.get("connectors", name)}
        return dict(self._api.get("connectors")["connectors"])

    def schema(self) -> Any:
        """What manifests may say, as JSON Schema."""
        return self._api.get("schema")


# -- documents, read ---------------------------------------------------------------------------------


def _feed_view(row: Mapping[str, Any]) -> FeedView:
    lease = value_of(
        Lease,
        row,
        feed_id=row["id"],
        weight=row["load"],
        generation=row["generation_running"],
        avoid=dict.fromkeys(row["avoid"], NEVER),
    )
    unmet = tuple(value_of(Unmet, one) for one in row["unmet"])
    return FeedView(_feed(row), lease, row["worker"], Status(row["status"]), row["because"], unmet)


def _feed(row: Mapping[str, Any]) -> Feed:
    spec = value_of(
        FeedSpec,
        row,
        selector=Selector(**row["selector"]),
        source=row.get("source", {}),
        sink=row.get("sink", {}),
        initial_cursor=None,
        expect={},
    )
    removed_at = NEVER if row["status"] == Status.REMOVING else None
    unsaid = {"created_at": NEVER, "updated_at": NEVER, "removed_at": removed_at, "identity": NOBODY}
    return value_of(Feed, {**unsaid, **row}, spec=spec)


def _declared(spec: FeedSpec) -> Feed:
    """A feed of which nothing is known but its declaration."""
    return Feed(0, spec, 1, NEVER, NEVER, NOBODY)


def _changed(name: str, generation: int | None) -> Feed:
    """A feed of which nothing is known but its name and generation."""
    spec = FeedSpec(name=name, connector="", source={}, sink={})
    return replace(_declared(spec), generation=generation or 0)


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    for start in range(0, len(changes), DECLARED_AT_ONCE):
        yield changes[start : start + DECLARED_AT_ONCE]


def _declarations(
    changes: Sequence[Change], resumes: Mapping[str, StartCursor], *, adopt: bool
) -> dict[str, Any]:
    """What the API takes of these changes in one request."""
    specs = [change.spec for change in changes if isinstance(change.spec, FeedSpec)]
    return {
        "feeds": [plain_feed(spec, resumes.get(spec.name)) for spec in specs],
        "remove": [change.name for change in changes if change.action is Action.REMOVE],
        "adopt": adopt,
    }


def _listed_event(row: Mapping[str, Any]) -> ListedEvent:
    return ListedEvent(row["id"], value_of(Event, row), row["feed"], row["worker"])
