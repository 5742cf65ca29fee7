"""The part of the store that commands use, over the API: the same methods, which ask a server.

Documents become what the database would have given. Of a feed in a list the API says no options of source and
sink; they are empty then, and full where one feed is asked for. What the API does not do is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from feedq.cli.api_client import (
    NEVER,
    NOBODY,
    ONE_BY_ONE_MAX,
    ROWS_AT_ONCE,
    ApiConnection,
    ApiPart,
    error_of,
    reader_of,
    timed,
    value_of,
    worker_view,
)
from feedq.control.store.fleet_state import FleetState, JobState, Leader
from feedq.control.store.history import EventFilter, ListedEvent
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import (
    JSON,
    ChangedCursor,
    Event,
    Feed,
    FeedSpec,
    FeedView,
    Lease,
    Reason,
    Selector,
    StartCursor,
    Status,
    Unmet,
    WorkerTarget,
    WorkerView,
)
from feedq.core.roles import AccessRole, AccessToken
from feedq.core.schedule.entries import ScheduleEntry, plain_queue, plain_schedule
from feedq.core.schedule.model import (
    Beat,
    Job,
    Queue,
    QueueDepth,
    Run,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    UnreadableSpec,
)
from feedq.core.schedule.plain import spec_from_json
from feedq.core.selection import ORDER_KEYS, Selection, SelectionOrder
from feedq.errors import Conflict, InvalidInput, Outdated
from feedq.sinks.base import DeadLetter
from feedq.verbs.bulk import BulkResult, Done
from feedq.verbs.catalogs.syncing import SkippedEntry, SyncReport
from feedq.verbs.declaring import Begun, Starts
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.diagnosis.fleet_checks import Overview
from feedq.verbs.manifest.changes import Action, Change, OptionChange
from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed
from feedq.verbs.refused_records import ReplayOutcome
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
            rows = self._rows("feeds", most=limit if few else None, **arguments)
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
        rows = self._rows("feeds", under=["declarations"], tenant=tenant)
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
        self.jobs = ApiJobs(api)
        self.sink_verbs = ApiSinkVerbs(api)
        self.close = api.close

    def status(self) -> FleetData:
        return self._read(fleet_of, self._api.get("status"))

    def job_state(self) -> JobState:
        return self.status().jobs

    def problems(self) -> list[ListedProblem]:
        return self._read_all(reader_of(ListedProblem), self._api.get("problems")["problems"])

    def checks(self) -> list[Check]:
        return self._read_all(check_of, self._api.get("doctor")["checks"])

    def catalogs(self) -> list[str]:
        """Names of those that are set up at the server."""
        return list(self._api.get("catalogs")["catalogs"])

    def sync(self, name: str, *, dry_run: bool, **asked: Any) -> SyncReport:
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


TICK = timedelta(microseconds=1)


class ApiSchedules(ApiPart):
    """Schedules and their runs."""

    def views(
        self, *, prefix: str = "", after: str = "", state: ScheduleState | None = None, limit: int
    ) -> list[ScheduleView]:
        rows = self._rows("schedules", most=limit, prefix=prefix, after=after, state=state)
        return self._read_all(_schedule_view, rows)

    def urgent(self, *, failing: Sequence[str] = (), limit: int) -> list[ScheduleView]:
        """The server knows itself which fail."""
        rows = self._api.get("schedules", urgent="true", limit=limit)["schedules"]
        return self._read_all(_schedule_view, rows)

    def view(self, name: str) -> ScheduleView:
        return self._read(_schedule_view, self._api.get("schedules", name))

    def get(self, name: str) -> Schedule:
        """With all arguments of its job."""
        keys = self._api.get("schedules", name, "declaration")
        found = self.view(name).schedule
        if isinstance(found.spec.timing, Beat):
            return found
        return replace(found, spec=ScheduleEntry.valid(keys).spec)

    def specs(self) -> Mapping[str, ScheduleSpec | UnreadableSpec]:
        found: dict[str, ScheduleSpec | UnreadableSpec] = {}
        for page in self._pages("schedules", under=["declarations"]):
            found |= {keys["name"]: ScheduleEntry.valid(keys).spec for keys in page["schedules"]}
            found |= {name: UnreadableSpec(why, paused=False) for name, why in page["unreadable"].items()}
        return dict(sorted(found.items()))

    def unserved(self, names: Collection[str]) -> Mapping[str, str]:
        views = {name: self.view(name) for name in names}
        return {name: view.unserved for name, view in views.items() if view.unserved is not None}

    def counts(self, name: str) -> Mapping[RunState, int]:
        found = self._api.get("schedules", name)["counts"]
        return {RunState(state): count for state, count in found.items()}

    def runs(self, name: str | None = None, *, states: Sequence[RunState] = (), limit: int) -> list[Run]:
        rows = self._rows("runs", most=limit, schedule=name, state=[one.value for one in states])
        return self._read_all(_run, rows)

    def run(self, run_id: int) -> Run:
        return self._read(_run, self._api.get("runs", str(run_id)))

    def add(self, spec: ScheduleSpec) -> Schedule:
        try:
            return self._put(spec, {"If-None-Match": "*"})
        except Outdated:
            raise Conflict(
                f"schedule {spec.name!r} exists already; `feedq schedule set` changes it"
            ) from None

    def edit(self, name: str, spec: ScheduleSpec) -> Schedule:
        return self._put(spec, {})

    def _put(self, spec: ScheduleSpec, headers: Mapping[str, str]) -> Schedule:
        keys = plain_schedule(spec) | {"paused": spec.paused}
        self._api.ask("PUT", "schedules", spec.name, body=keys, headers=headers)
        return replace(self.view(spec.name).schedule, spec=spec)

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "schedules", name)

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> None:
        asked = {"until": None if until is None else until.isoformat(), "reason": reason}
        self._api.ask("POST", "schedules", name, "pause", body=asked)

    def resume(self, name: str) -> None:
        self._api.ask("POST", "schedules", name, "resume")

    def purge(self, name: str) -> int:
        return int(self._api.ask("POST", "schedules", name, "purge")["cancelled"])

    def trigger(self, name: str, *, key: str | None = None, job: Job | None = None) -> Run:
        if key is not None and not key.isascii():
            raise InvalidInput("--key: at a server it must be ASCII")
        headers = {} if key is None else {"Idempotency-Key": key}
        asked = None if job is None else {"args": list(job.args), "kwargs": dict(job.kwargs)}
        return self._read(
            _run, self._api.ask("POST", "schedules", name, "trigger", body=asked, headers=headers)
        )

    def backfill(self, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        asked = {"from": ticks[0].isoformat(), "to": (ticks[-1] + TICK).isoformat()}
        made = self._api.ask("POST", "schedules", name, "backfill", body=asked)
        return made["made"], made["existing"]

    def cancel_run(self, run_id: int) -> Run:
        return self._read(_run, self._api.ask("POST", "runs", str(run_id), "cancel"))


class ApiQueues(ApiPart):
    """Limits of job queues."""

    def listed(self) -> list[QueueDepth]:
        names = ("name", "rate_per_s", "burst", "concurrency")
        rows = self._api.get("queues")["queues"]
        return [
            (Queue(**{name: row[name] for name in names}), row["waiting"], row["running"]) for row in rows
        ]

    def all(self) -> list[Queue]:
        return [queue for queue, _, _ in self.listed() if queue != Queue(queue.name)]

    def set(self, queue: Queue) -> None:
        self._api.ask("PUT", "queues", queue.name, body=plain_queue(queue))

    def remove(self, name: str) -> None:
        self._api.ask("DELETE", "queues", name)


class ApiJobs:
    """What `feedq.control.store.postgresql.JobStore` is at the database."""

    def __init__(self, api: ApiConnection) -> None:
        self.queues, self.schedules = ApiQueues(api), ApiSchedules(api)


def _run(row: Mapping[str, Any]) -> Run:
    return value_of(Run, row, schedule_id=0, job=Job(row["task"], queue=row["queue"]))


def _schedule_view(row: Mapping[str, Any]) -> ScheduleView:
    """Of a row in a list, and of the document of one schedule, which has its whole declaration."""
    job = row.get("job", {"task": row["task"], "queue": row["queue"], "semantics": row["semantics"]})
    timing, job, policy = map(orjson.dumps, (row["timing"], job, row.get("policy", {})))
    spec = spec_from_json(row["name"], timing=timing, job=job, policy=policy)
    schedule = value_of(Schedule, {"created_at": NEVER, "updated_at": NEVER, **row}, spec=spec)
    last = None if row["last"] is None else _run(row["last"])
    return ScheduleView(schedule, last, row["waiting"], row["running"], row.get("unserved"))


BACKFILL_TIMES = ("begun_at", "ended_at")


class ApiBackfills(ApiPart):
    """The verbs for backfills."""

    def begin(
        self, name: str, *, begin: JSON, end: JSON, rows_per_s: float | None, key: str | None, dry_run: bool
    ) -> dict[str, Any]:
        body = {"from": begin, "to": end, "rows_per_s": rows_per_s}
        headers = {} if key is None else {"Idempotency-Key": key}
        asked = {"dry_run": dry_run}
        made: dict[str, Any] = self._api.ask(
            "POST", "feeds", name, "backfill", body=body, headers=headers, arguments=asked
        )
        return timed(made, *BACKFILL_TIMES)

    def of(self, name: str) -> dict[str, Any]:
        return timed(self._api.get("feeds", name, "backfill"), *BACKFILL_TIMES)

    def running(self, *, tenant: str | None = None) -> list[dict[str, Any]]:
        return [timed(row, *BACKFILL_TIMES) for row in self._api.get("backfills", tenant=tenant)["backfills"]]

    def cancel(self, name: str) -> dict[str, Any]:
        return timed(self._api.ask("POST", "feeds", name, "backfill", "cancel"), *BACKFILL_TIMES)


class ApiSinkVerbs(ApiPart):
    """What `feedq.verbs.sink_verbs.SinkVerbs` is at the database."""

    @property
    def backfills(self) -> ApiBackfills:
        return ApiBackfills(self._api)

    def cursor(self, name: str) -> dict[str, Any]:
        return timed(self._api.get("feeds", name, "cursor"), "updated_at")

    def change_cursor(self, name: str, verb: str, *, dry_run: bool = False, **given: Any) -> ChangedCursor:
        if isinstance(given.get("to"), datetime):
            given["to"] = given["to"].isoformat()
        dry = {"dry_run": dry_run}
        made = self._api.ask("POST", "feeds", name, "cursor", verb, arguments=dry, body=given)
        return self._read(_changed_cursor, made)

    def letters(self, name: str, *, ids: Collection[int] = (), limit: int = 1) -> list[DeadLetter]:
        """The newest, or one of them."""
        path = ("feeds", name, "dead-letters")
        if ids:
            return self._read_all(_letter, [self._api.get(*path, str(one)) for one in ids])
        return self._read_all(_letter, self._api.get(*path, newest=limit)["dead_letters"])

    def replay(
        self, name: str, ids: Sequence[int], all_: bool, *, dry_run: bool = False, on_progress: object = None
    ) -> ReplayOutcome:
        """In one request, of which nothing is heard before its end."""
        made = self._chosen(name, "replay", ids, all_, dry_run=dry_run)
        refused = {int(one): error for one, error in made["refused"].items()}
        return ReplayOutcome(made["landed"], refused, made["passed_over"])

    def drop(self, name: str, ids: Sequence[int], all_: bool, *, dry_run: bool = False) -> int:
        return int(self._chosen(name, "drop", ids, all_, dry_run=dry_run)["dropped"])

    def _chosen(self, name: str, verb: str, ids: Sequence[int], all_: bool, *, dry_run: bool) -> Any:
        asked = {"ids": list(ids), "all": all_}
        path = ("feeds", name, "dead-letters", verb)
        return self._api.ask("POST", *path, arguments={"dry_run": dry_run}, body=asked)

    def adopt(self, name: str, *, number: int | None, force: bool, dry_run: bool = False) -> str:
        asked = {"number": number, "force": force}
        made = self._api.ask("POST", "feeds", name, "adopt", arguments={"dry_run": dry_run}, body=asked)
        return str(made["note"])

    def resumes(self, feeds: Sequence[Feed]) -> dict[str, StartCursor]:
        """Where feeds stand in their sinks, by name; those that have begun."""
        if len(feeds) <= ONE_BY_ONE_MAX:
            known = {feed.name: self.cursor(feed.name) for feed in feeds}
        else:
            rows = self._rows("feeds", under=["declarations"], with_cursors="true")
            known = {row["name"]: row.get("resume", {}) for row in rows}
        return {
            name: StartCursor(found["cursor"], found["records"])
            for name, found in known.items()
            if found.get("cursor") is not None
        }


def fleet_of(document: Mapping[str, Any]) -> FleetData:
    """What the document of `feedq status` was made of, as far as it is shown."""
    feeds, workers, reconcile = document["feeds"], document["workers"], document["reconcile"]
    numbers = value_of(
        Overview,
        {**workers, **feeds},
        feeds=feeds["total"],
        by_status={Status(status): count for status, count in feeds["by_status"].items()},
        waiting={Reason(reason): count for reason, count in feeds["waiting"].items()},
        held=workers["feeds"],
        lacking=0,
        lacking_after_loss=0,
    )
    beat, jobs = document["beat"], document["schedules"]
    passed = {"pass_at": reconcile["last_pass_at"], "pass_age_s": reconcile["last_pass_age_s"]}
    leader = None if beat is None else value_of(Leader, beat)
    state = value_of(FleetState, passed, now=NEVER, leader=leader)
    job_state = value_of(JobState, {**jobs, **document["runs"]}, tripped=tuple(jobs["paused_by_failures"]))
    warnings = list(map(check_of, document["warnings"]))
    return FleetData(state, job_state, numbers, (), list(map(worker_view, workers["list"])), warnings)


def check_of(row: Mapping[str, Any]) -> Check:
    return value_of(Check, row, advice=row["advice"] or "")


def sync_report_of(row: Mapping[str, Any]) -> SyncReport:
    changes, left_out = list(map(_change, row["changes"])), row["left_out"]
    skipped = [value_of(SkippedEntry, one) for one in left_out]
    return value_of(SyncReport, row, catalog=row["name"], changes=changes, left_out=skipped)


def _change(row: Mapping[str, Any]) -> Change:
    options = tuple(value_of(OptionChange, one) for one in row["options"])
    return Change(Action(row["action"]), row["kind"], row["name"], options=options, note=row.get("note"))


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    record = row["record"].encode() if "record" in row else bytes.fromhex(row["record_hex"])
    return value_of(DeadLetter, row, feed_id=0, record=record)


_changed_cursor = reader_of(ChangedCursor)
