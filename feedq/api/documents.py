"""What the API answers, as models for the OpenAPI document; `feedq.verbs.report.rows` makes the answers.
And declarations in bodies of requests: the schemas of manifests, with their parts as components.

Most fields are columns of tables under the same names, so their types are taken from `feedq.core.model` and not
written down again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any, get_type_hints

from pydantic import BaseModel, create_model

from feedq.control.store.fleet_state import JobState, Leader
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import Event, Feed, Lease, Load, Status, TargetState, Unmet, Worker
from feedq.core.schedule.entries import QueueEntry, ScheduleEntry
from feedq.core.schedule.model import Run, Schedule
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.diagnosis.fleet_checks import Overview
from feedq.verbs.manifest.feed_entry import FeedEntry
from feedq.verbs.manifest.json_schema import WithoutTitles
from feedq.verbs.report import rows
from feedq.verbs.report.problem_list import ListedProblem

Model = type[BaseModel]
PROBLEM_FIELDS = tuple(field.name for field in fields(ListedProblem))
Text = str | None


def _columns(kind: type, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a model that are those of a value."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _model(name: str, about: str, /, *, base: Any = BaseModel, **fields: Any) -> Model:
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __doc__=about, __base__=base, **required)


def _list(of: Model) -> Any:
    return list.__class_getitem__(of)


def _page(name: str, of: Model, key: str) -> Model:
    return _model(name, "A page of a list.", **{key: _list(of), "next": Text})


# -- feeds and workers -------------------------------------------------------------------------------

_SELECTOR = _model(
    "SelectorRow", "Which workers may have a feed.", required=dict[str, str], preferred=dict[str, str]
)
_UNMET = _model(
    "UnmetRow", "An expectation that a feed does not meet.", kind=str, **_columns(Unmet, ("since",)), said=str
)
FEED_ROW = _model(
    "FeedRow",
    "A feed in a list: as `feedq feed list --json`.",
    id=int,
    name=str,
    status=Status,
    because=Text,
    unmet=_list(_UNMET),
    worker=Text,
    **_columns(Lease, rows.LEASE_FIELDS),
    **dict.fromkeys(rows.LEASE_ERRORS, Text),
    avoid=list[str],
    target_state=TargetState,
    tenant=str,
    connector=str,
    labels=dict[str, str],
    selector=_SELECTOR,
    weight=float,
    load=float,
    generation=int,
    generation_running=int,
    **_columns(Lease, ("worker_id",)),
)
FEED_PAGE = _page("FeedPage", FEED_ROW, "feeds")
FEED = _model(
    "FeedDocument",
    "Everything about a feed: as `feedq feed show --json`.",
    base=FEED_ROW,
    explanation=Text,
    source=dict[str, Any],
    sink=dict[str, Any],
    cursor=Any,
    initial_cursor=Any,
    expect=dict[str, Any],
    **_columns(Lease, ("assigned_at",)),
    **_columns(Feed, ("created_at", "updated_at", "removed_at", "catalog")),
)
WORKER_ROW = _model(
    "WorkerRow",
    "A worker in a list: as `feedq worker list --json`.",
    **_columns(Worker, rows.WORKER_FIELDS),
    **_columns(Load, rows.LOAD_FIELDS),
    feeds=int,
    load=float,
    utilisation=float | None,
    heartbeat_age_s=float,
    because=Text,
    feeds_reported=int,
    labels=dict[str, str],
)
WORKERS = _model("WorkerList", "All workers by name.", workers=_list(WORKER_ROW))
EVENT_ROW = _model(
    "EventRow",
    "A line of history. `feed` and `worker` are names, as long as those are known.",
    **_columns(Event, ("at", "kind", "count", "since", "feed_id", "worker_id", "epoch")),
    detail=dict[str, Any],
    id=int,
    feed=Text,
    worker=Text,
)
EVENT_PAGE = _page("EventPage", EVENT_ROW, "events")
_LANDED = _model(
    "LandedRow",
    "What a feed landed from `at` on, for the length of a bucket; null where nobody counted.",
    **_columns(LandedBucket, rows.LANDED_FIELDS),
)
LANDED = _model(
    "LandedDocument",
    "As `feedq feed history --json`: buckets, the oldest first.",
    span=Span,
    bucket_s=int,
    buckets=_list(_LANDED),
)
DEAD_LETTER = _model(
    "DeadLetterRow",
    "A record that the sink refused; `record_hex` in the place of `record` if it is no text.",
    id=int,
    feed=str,
    epoch=int,
    at=datetime,
    error=str,
    cursor=Any,
)
DEAD_LETTER_PAGE = _page("DeadLetterPage", DEAD_LETTER, "dead_letters")

# -- schedules and runs ------------------------------------------------------------------------------

RUN_ROW = _model(
    "RunRow",
    "A run: as `feedq schedule runs --json`.",
    **_columns(Run, rows.RUN_FIELDS),
    correlation_id=str,
    reason=Text,
    task=str,
    queue=str,
    lag_s=float | None,
)
RUN_PAGE = _page("RunPage", RUN_ROW, "runs")
_STANDING = _model(
    "ScheduleStanding",
    "A schedule by itself.",
    id=int,
    name=str,
    **_columns(Schedule, rows.SCHEDULE_FIELDS),
    timing=dict[str, Any],
    task=str,
    queue=str,
    semantics=str,
)
SCHEDULE_ROW = _model(
    "ScheduleRow",
    "A schedule in a list: as `feedq schedule list --json`.",
    base=_STANDING,
    waiting=int,
    running=int,
    last=RUN_ROW | None,
)
SCHEDULE_PAGE = _page("SchedulePage", SCHEDULE_ROW, "schedules")
SCHEDULE = _model(
    "ScheduleDocument",
    "Everything about a schedule: as `feedq schedule show --json`.",
    base=SCHEDULE_ROW,
    job=dict[str, Any],
    policy=dict[str, Any],
    unserved=Text,
    counts=dict[str, int],
    created_at=datetime,
    updated_at=datetime,
    runs=_list(RUN_ROW),
)
QUEUE = _model(
    "QueueRow",
    "A job queue with its limits, and its runs in numbers.",
    name=str,
    rate_per_s=float | None,
    burst=float,
    concurrency=int | None,
    waiting=int,
    running=int,
)
QUEUES = _model("QueueList", "Job queues that have limits or runs.", queues=_list(QUEUE))

# -- the fleet ---------------------------------------------------------------------------------------

_LEADER = _model("LeaderRow", "The elected beat.", **_columns(Leader, rows.LEADER_FIELDS))
_CHECK = _model(
    "CheckRow",
    "Something that was checked.",
    **_columns(Check, ("name", "level", "detail", "status")),
    advice=Text,
)
CHECKS = _model("CheckList", "As `feedq doctor --json`.", healthy=bool, checks=_list(_CHECK))
_PROBLEM = _model("ProblemRow", "Something to look at.", **_columns(ListedProblem, PROBLEM_FIELDS))
PROBLEMS = _model("ProblemList", "As `feedq status --problems --json`.", problems=_list(_PROBLEM))
_FEED_NUMBERS = _model(
    "FeedNumbers",
    "Feeds in numbers.",
    total=int,
    by_status=dict[str, int],
    waiting=dict[str, int],
    **_columns(Overview, ("wanted", "moving", "records_total")),
)
_WORKER_NUMBERS = _model(
    "WorkerNumbers",
    "Workers in numbers, and one by one.",
    **_columns(Overview, rows.OVERVIEW_FIELDS),
    feeds=int,
    utilisation=float | None,
    list=_list(WORKER_ROW),
)
_PASS = _model(
    "ReconcileRow", "The last reconcile pass.", last_pass_at=datetime | None, last_pass_age_s=float | None
)
_SCHEDULE_NUMBERS = _model(
    "ScheduleNumbers",
    "Schedules in numbers.",
    **_columns(JobState, ("active", "paused", "overdue_s")),
    total=int,
    paused_by_failures=list[str],
)
_RUN_NUMBERS = _model("RunNumbers", "Runs in numbers.", **_columns(JobState, rows.RUN_NUMBERS))
STATUS = _model(
    "StatusDocument",
    "The fleet at a glance: as `feedq status --json`.",
    feeds=_FEED_NUMBERS,
    workers=_WORKER_NUMBERS,
    beat=_LEADER | None,
    reconcile=_PASS,
    schedules=_SCHEDULE_NUMBERS,
    runs=_RUN_NUMBERS,
    warnings=_list(_CHECK),
)
CONNECTORS = _model(
    "ConnectorList", "JSON Schemas of options, by connector.", connectors=dict[str, dict[str, Any]]
)

# -- declarations in requests ------------------------------------------------------------------------

COMPONENTS: dict[str, Any] = {}
"""The parts of these schemas, by name; filled as the module is loaded."""
PLACE = "#/components/schemas/{model}"


def _component(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=PLACE, schema_generator=WithoutTitles)
    COMPONENTS.update(schema.pop("$defs", {}))
    # The name stands in the address.
    schema["required"] = [key for key in schema.get("required", []) if key != "name"]
    COMPONENTS[model.__name__] = schema
    return {"$ref": PLACE.format(model=model.__name__)}


FEED_ENTRY = _component(FeedEntry)
SCHEDULE_ENTRY = _component(ScheduleEntry)
QUEUE_ENTRY = _component(QueueEntry)
