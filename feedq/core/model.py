"""The nouns of feedq as frozen values.

Whatever crosses a level is one of these, never a dict. Times are the database's, in aware UTC; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from feedq.core.expectations import Expectation, read_expectations, write_expectations
from feedq.core.loss import Loss
from feedq.core.values import (
    Entry,
    Labels,
    Name,
    Number,
    Problem,
    Text,
    Word,
    Wrong,
    check_name,
    json_problems,
)
from feedq.errors import Outdated

JSON: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""Whatever JSON can say. A cursor is one of these, opaque to everyone but its connector; numbers in it that floats
would change are `msgspec.Raw`, as they were written (`feedq.core.json_texts.read_exactly`)."""

FeedKey: TypeAlias = tuple[int, int]
"""``(feed_id, epoch)``: one feed under one epoch. Whatever a worker writes, it writes under a key."""

Version: TypeAlias = tuple[int, int]
"""The id of a declared thing, and its generation: the same until somebody changes the declaration, or removes it
and declares it anew."""


def require_version(what: str, found: Version, expected: Version | None) -> None:
    """Raises `Outdated` unless ``what`` is as it was when it was looked at."""
    if expected is not None and found != expected:
        raise outdated(what, found, expected)


def outdated(what: str, found: Version, expected: Version) -> Outdated:
    if found[0] != expected[0]:
        return Outdated(f"{what} was removed and declared again: look at it again, and repeat the change")
    return Outdated(
        f"{what} is at generation {found[1]} by now, not {expected[1]}: look at it again, and repeat the "
        "change"
    )


class Process(StrEnum):
    """The process that a feed runs in."""

    SHARED = "shared"
    OWN = "own"


class TargetState(StrEnum):
    """The state that a person wants a feed to be in."""

    RUNNING = "running"
    PAUSED = "paused"


class LeaseState(StrEnum):
    """Says who has a feed: see `feedq.core.lease`."""

    IDLE = "idle"
    ASSIGNED = "assigned"
    RUNNING = "running"
    STOPPING = "stopping"


class Reason(StrEnum):
    """Why a lease is idle or stopping."""

    NEW = "new"
    EDITED = "edited"
    PAUSED = "paused"
    REMOVED = "removed"
    DRAINED = "drained"
    RELEASED = "released"
    WORKER_GONE = "worker_gone"
    BACKOFF = "backoff"
    FAILED = "failed"
    NO_CAPACITY = "no_capacity"
    NO_MATCH = "no_match"
    SETTLING = "settling"
    MOVED = "moved"
    HELD = "held"  # for a moment, for the successor of the worker that was stopped
    QUARANTINED = "quarantined"  # it is to run apart from all others, or waits for its next try there
    REAPED = "reaped"  # its owner was asked to release it and did not in time
    FENCED = "fenced"  # the sink had seen a newer epoch than its owner's
    FINISHED = "finished"  # a backfill that has landed all it was begun for


class WorkerState(StrEnum):
    """A worker session is born active, may drain, and ends gone. A session that is gone never comes back."""

    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"


class WorkerTarget(StrEnum):
    """The state that a person wants a worker session to be in; one that registers anew is wanted to serve."""

    SERVING = "serving"
    CORDONED = "cordoned"
    """It keeps what it has, and is given no more."""
    DRAINED = "drained"
    """It hands over what it has, each feed when there is another place for it, and is given no more."""


class Status(StrEnum):
    """The status of a feed that a person sees, from its lease and from what is known of its worker: see the view
    ``feed_status`` in `feedq/control/sql/feeds.sql`."""

    STREAMING = "streaming"
    CONNECTING = "connecting"
    STALLED = "stalled"
    STARTING = "starting"
    STOPPING = "stopping"
    WAITING = "waiting"
    BACKOFF = "backoff"
    FAILING = "failing"
    """It has failed several times in a row and landed nothing since, whatever it is doing at this instant."""
    REFUSING = "refusing"
    """Most of its records go to the dead letters."""
    SINK_UNAVAILABLE = "sink_unavailable"
    QUARANTINED = "quarantined"
    """It runs apart from all others, because workers were lost to it."""
    FAILED = "failed"
    PAUSED = "paused"
    REMOVING = "removing"


class Concern(StrEnum):
    """What can be wrong with a feed whatever its status."""

    EXPECTATION = "expectation"
    DEAD_LETTERS = "dead_letters"
    """It has some, the latest was refused of late, and it is not `refusing`."""
    LOST_WORKERS = "lost_workers"
    """A worker was lost to it of late, and it is not in quarantine."""


BACKFILL_SUFFIX: Final = "~backfill"
"""Ends the name of a backfill, which begins with that of its feed; no feed is declared under such a name."""


def known_as(name: str) -> str:
    """The name by which sources and rows know a feed: a backfill goes by that of the feed that it is of."""
    return name.removesuffix(BACKFILL_SUFFIX)


@dataclass(frozen=True, slots=True)
class StartCursor:
    """A cursor for a feed to go on from, and how many records had landed by then."""

    cursor: JSON
    records: int = 0


# -- feeds as people declare them ----------------------------------------------------------------------


def _read_options(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping of options")
    if wrong := list(json_problems(given)):
        raise Wrong(wrong)
    return given


def _read_resume(given: Any) -> StartCursor:
    is_resume = isinstance(given, Mapping) and "cursor" in given and given.keys() <= {"cursor", "records"}
    records = given.get("records", 0) if is_resume else -1
    if not isinstance(records, int) or isinstance(records, bool) or records < 0:
        raise ValueError("must be {cursor: …, records: 318}, as `feedq export --with-cursors` writes it")
    return StartCursor(given["cursor"], records)


Options = Annotated[Mapping[str, Any], PlainValidator(_read_options), WithJsonSchema({"type": "object"})]
Tenant = Annotated[Text, AfterValidator(lambda name: name and check_name(name))]
Resume = Annotated[
    Any,  # a StartCursor, whose cursor is of a type that pydantic would have to follow without end
    PlainValidator(_read_resume),
    PlainSerializer(lambda start: {"cursor": start.cursor, "records": start.records}),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"cursor": {}, "records": {"type": "integer", "minimum": 0}},
            "required": ["cursor"],
            "additionalProperties": False,
        }
    ),
]
Cursor = Annotated[
    Any,  # for the reason above
    PlainValidator(lambda given: given),
    WithJsonSchema({}),
]
Expect = Annotated[
    Mapping[str, Any],
    PlainValidator(read_expectations),
    PlainSerializer(write_expectations),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {str(key): {} for key in Expectation},
            "additionalProperties": False,
        }
    ),
]


class Selector(Entry):
    """Labels of workers. The caller has to say what happens to a worker that lacks one."""

    example = "{required: {region: eu}, preferred: {disk: ssd}}"

    required: Labels = Field({})
    """Labels that a worker must have."""
    preferred: Labels = Field({})
    """Labels that a worker should have, as long as one with them has room."""


ANYWHERE: Final = Selector.of({})


class FeedSpec(Entry):
    """A feed: a source, and where its records land."""

    # Secrets are references such as ``${env:ACME_TOKEN}``, which the worker alone resolves.
    noun = "feed"

    name: Name
    """Unique; up to 200 printable characters without spaces, such as `tenant/feed`."""
    tenant: Tenant = ""
    """Owner of the feed."""
    connector: Text
    """Kind of source, see `feedq connectors`."""
    source: Options = Field({})
    """Options of the connector."""
    sink: Options
    """Options of the sink."""
    labels: Labels = Field({})
    """Text values of your own."""
    selector: Selector = ANYWHERE
    """Labels of the workers that may run it."""
    weight: Annotated[float, Number(0, over=True)] = 1.0
    """Its load, relative to other feeds."""
    process: Word[Process] = Process.SHARED
    """`shared` with the worker's other feeds, or its `own`; a worker runs at most four of these."""
    target_state: Word[TargetState] | None = None
    """Whether it runs. A new feed is `running` by default; an existing one keeps its state."""
    initial_cursor: Cursor = None
    """Where the feed begins while it has landed nothing, also after `feedq feed cursor rewind --to-start`."""
    expect: Expect = Field({})
    """Expectations: `max_silence: 5m`, `min_rows: {per: 1h, rows: 1000}`, `max_event_lag: {at: /ts, seconds:
    60}`, `max_refused: 1%`; `none` removes one that is set for all feeds or the tenant."""
    resume: Resume | None = None
    """Where a new feed begins: `cursor`, and `records` landed before. Written by `feedq export
    --with-cursors`."""

    def completed(self, before: FeedSpec | None) -> FeedSpec:
        target = self.target_state or (before and before.target_state) or TargetState.RUNNING
        return self.model_copy(update={"target_state": target, "resume": None})

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if str(given.get("name")).endswith(BACKFILL_SUFFIX):
            yield "name", f"name: must not end in {BACKFILL_SUFFIX}, which names the backfills of feeds"
        selector = given.get("selector")
        chosen = selector if isinstance(selector, Mapping) else {}
        required, preferred = chosen.get("required"), chosen.get("preferred")
        if isinstance(required, Mapping) and isinstance(preferred, Mapping):
            for key, value in preferred.items():
                if required.get(key, value) != value:
                    yield (
                        "selector",
                        f"selector.preferred.{key}: contradicts selector.required.{key}, so no worker can have "
                        "both; remove one of them",
                    )


# -- feeds as the database has them ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies the owner of a checkpoint. A feed that is removed and declared again is another one."""

    feed: UUID
    installation: UUID


@dataclass(frozen=True, slots=True)
class ChangedCursor:
    """A change of a feed's cursor."""

    verb: str
    before: JSON
    after: JSON
    records: int
    """Landed by then."""
    duplicates: bool
    """Whether records that the source sends again land a second time: the sink has no ``key``."""


@dataclass(frozen=True, slots=True)
class FeedBackfill:
    """The range of a backfill."""

    parent: int
    """The id of the feed that it is of."""
    begins_after: JSON
    ends_at: JSON
    """The cursor after which nothing is landed."""
    key: str | None = None
    """Given by whoever began it, so that it is begun once."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A declared feed. Every edit makes ``generation`` one larger."""

    id: int
    spec: FeedSpec
    generation: int
    created_at: datetime
    updated_at: datetime
    identity: Identity
    removed_at: datetime | None = None
    catalog: str | None = None
    """The catalog that it was made from, if it was; nothing but a sync of that one may remove it unasked."""
    backfill: FeedBackfill | None = None
    """Set if it is a backfill of another feed, which nobody declared."""
    stream_generation: int = 1
    """The latest generation by which its stream became another one. Labels, for one, do not change a stream."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> Version:
        return self.id, self.generation


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a feed: who has it, under which epoch until when; and its progress, as its owners report it."""

    feed_id: int
    epoch: int = 0
    state: LeaseState = LeaseState.IDLE
    reason: Reason | None = Reason.NEW
    worker_id: UUID | None = None
    generation: int = 0
    """Generation of the feed that the running stream was started with."""
    running_since: datetime | None = None
    due_at: datetime | None = None
    """While it is idle, not to be placed before; while assigned, to be claimed by then; while stopping, to be
    released by then."""
    weight: float = 1.0  # at the worker that has it
    promised_to: UUID | None = None
    """The worker that it goes to when its owner has released it."""
    moved_at: datetime | None = None
    """When its owner was asked to hand it over, until it is connected at another."""
    held_for: str | None = None
    """Name of the worker whose successor may have it before anybody else, until `due_at`."""
    avoid: Mapping[str, datetime] = field(default_factory=dict)
    """Names of the workers on which it failed, each with the time when it last did, the latest last. Emptied by an
    edit, and when it lands records on one of them: then the workers were not to blame."""
    blamed: int = 0
    """Workers that were lost to this feed."""
    blamed_at: datetime | None = None
    blame: str | None = None
    """How the last of them was lost."""
    quarantined: bool = False
    lost_worker: UUID | None = None
    """The worker that was lost while it held this feed, the last one."""
    lost_at: datetime | None = None

    connected: bool = False
    stalled: bool = False
    attempts: int = 0
    failures: int = 0
    """In a row, since the feed last landed a record."""
    records_total: int = 0
    bytes_total: int = 0
    dead_letters_total: int = 0
    dead_letters: int = 0
    """Those of them that are still there: neither replayed nor dropped."""
    rows_per_s: float = 0.0
    """Rows landed, smoothed over half a minute or so, as of `reported_at`."""
    bytes_per_s: float = 0.0
    dead_per_s: float = 0.0
    """Dead letters, smoothed as `rows_per_s` is."""
    reported_at: datetime | None = None
    last_record_at: datetime | None = None
    dead_letter_at: datetime | None = None
    last_error_at: datetime | None = None
    event_at: datetime | None = None
    """The event time of the newest record; None where no `max_event_lag` is expected."""
    last_error: str | None = None
    dead_letter_error: str | None = None
    """Why the latest dead letter was refused."""
    sink_error: str | None = None
    """Why the owner cannot write to the sink just now; None when it can."""
    event_fault: str | None = None
    """Why the last record has no event time."""
    cursor: Any = None  # JSON, in which floats may be `msgspec.Raw`
    noticed: Mapping[str, str] | None = None
    """What was noticed of its source and its records since it was edited: see `feedq.core.notices`."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a worker, as it says with each heartbeat."""

    feeds: int = 0
    cpu: float = 0.0
    """Cores in use since the last heartbeat."""
    rss: int = 0
    """Resident memory, in bytes."""
    loop_lag_s: float = 0.0
    """How late the event loop last ran a timer."""
    rows_per_s: float = 0.0  # landed, smoothed over the last minute or so
    bytes_per_s: float = 0.0
    sinks_up: tuple[str, ...] = ()
    """Named sinks that this worker has written to lately."""
    sinks_down: tuple[str, ...] = ()
    """Named sinks that it cannot write to just now."""


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A worker session about to register."""

    id: UUID
    name: str
    queue: str
    capacity: int
    host: str
    pid: int
    version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    job_slots: int = 0  # runs of schedules that it takes at a time
    tasks: Collection[str] | None = None
    """The Celery tasks that it knows, by their names: it claims runs of these alone. None does not say."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker *session*; a restarted process is a new one."""

    id: UUID
    name: str
    queue: str
    capacity: int
    host: str
    pid: int
    version: str
    labels: Mapping[str, str]
    state: WorkerState
    lock_key: int  # the second key of the session advisory lock that each of its database sessions holds
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    load: Load = Load()
    suspected_at: datetime | None = None
    """When the beat last saw no session of this worker holding its lock."""
    target_state: WorkerTarget = WorkerTarget.SERVING
    job_slots: int = 0
    loss: str | None = None
    """How its process was lost, in words, once that is known."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """An expectation that a feed does not meet."""

    kind: str
    since: datetime
    said: str


@dataclass(frozen=True, slots=True)
class FeedView:
    """A feed with its lease and its worker's name, as lists and pages show it."""

    feed: Feed
    lease: Lease
    worker: str | None
    status: Status
    because: str | None = None
    """Why it has this status, as the database has it: not masked, and perhaps not printable."""
    unmet: tuple[Unmet, ...] = ()
    """What is not as expected of it."""


@dataclass(frozen=True, slots=True)
class ChosenFeed:
    """The part of a feed that is needed to act on it."""

    id: int
    name: str
    tenant: str
    generation: int
    selector: Selector
    worker: str | None
    """The name of the worker that has it."""

    @property
    def version(self) -> Version:
        return self.id, self.generation


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, the leases it holds, and the age of its heartbeat on the database's clock."""

    worker: Worker
    leases: int
    heartbeat_age_s: float
    promised: int = 0
    """Feeds that are to go there as soon as their owners have released them."""
    load: float = 0.0
    """Sum of the weights of these leases."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event: one line of history, the latest if the same happened again and again."""

    at: datetime
    kind: str
    feed_id: int | None = None
    worker_id: UUID | None = None
    epoch: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    """How often it happened."""
    since: datetime | None = None
    """When it first did, if more than once."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The database's answer to a heartbeat."""

    state: WorkerState
    stops_pending: bool
    """Whether some lease of this worker waits in `stopping`."""
    claims_pending: bool
    """Whether some lease waits in `assigned` for this worker to claim it."""
    pass_age_s: float | None
    """Seconds since a reconcile pass last finished; None if none ever did."""
    active_workers: int = 1
    """How many there are in the fleet, as the last pass counted them."""
    sinks_up_elsewhere: tuple[str, ...] = ()
    """Of the sinks that this worker cannot write to: those that another worker has written to lately."""
    sinks_untried_elsewhere: tuple[str, ...] = ()
    """And those of which nobody knows, but which some other worker has not found to be away."""
    tapped: tuple[int, ...] = ()
    """Feeds of this worker whose records somebody listens to."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """A statement about one feed under one epoch."""

    feed_id: int
    epoch: int

    @property
    def key(self) -> FeedKey:
        return (self.feed_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Assignment(Keyed):
    """A feed given to a worker under a new epoch; the message that follows says just this."""

    worker_id: UUID
    queue: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that was granted: the feed as it was declared at that moment."""

    feed: Feed
    epoch: int
    attempts: int
    failures: int = 0
    quarantined: bool = False
    is_new_here: bool = False
    """Whether it has not failed on this worker yet, and so should go elsewhere soon if it does."""
    has_failed: bool = False
    """Whether it could not run as declared when it was last tried; ``attempts`` counts how often in a row."""
    after_loss: bool = False
    """Whether its last owner was lost a moment ago, beside this one: until then its source had this connection."""

    @property
    def key(self) -> FeedKey:
        return (self.feed.id, self.epoch)

    @property
    def is_apart(self) -> bool:
        """Whether it is to run in a process of its own."""
        return self.quarantined or self.feed.spec.process is Process.OWN


@dataclass(frozen=True, slots=True)
class StopRequest(Keyed):
    """The control plane asks the owner to release the feed."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Release(Keyed):
    """The owner releases the feed. ``retry_in_s`` holds the feed back, counted on the database's clock."""

    reason: Reason
    retry_in_s: float = 0.0
    attempts: int = 0
    error: str | None = None
    blame: Loss | None = None
    """Set when the feed is to run apart from others from now on."""
    records: int | None = None
    """All that ever landed of it, where the sink has said so."""
    sink_epoch: int | None = None
    """The epoch that superseded this owner's in the sink: the next owner gets a larger one."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """A sink was found to have lost commits of a feed."""

    sink: str
    left_at: JSON
    """The cursor that was left there."""
    found_at: JSON
    """The cursor that is there now."""


@dataclass(frozen=True, slots=True)
class ProgressReport(Keyed):
    """The progress of a running feed; counters are since the last report, and are added up by the database."""

    records: int
    bytes: int
    dead_letters: int
    last_record_ago_s: float | None
    """Seconds since the last record was received, at the time of the report."""
    cursor: JSON
    connected: bool
    stalled: bool
    attempts: int
    error: str | None
    failures: int = 0
    """In a row, since the feed last landed a record."""
    dead_letter_error: str | None = None
    """Why the latest dead letter was refused; None when there was none since the last report."""
    sink_error: str | None = None
    """Why the sink cannot be written just now; None when it can."""
    rewind: Rewind | None = None
    """Set once after the sink has gone back."""
    has_event_times: bool = False
    """Whether `max_event_lag` is expected."""
    event_at: float | None = None
    """The event time of the newest record of this stream that has landed, in seconds since 1970."""
    event_fault: str | None = None
    """Why the last record has none."""
    noticed: Mapping[str, str | None] | None = None
    """What was noticed since the last report; None of what is so no longer."""
    rows_per_s: float = 0.0  # smoothed, as the two below: see `feedq.core.lease.smoothed`
    bytes_per_s: float = 0.0
    dead_per_s: float = 0.0

    def after(self, unheard: ProgressReport) -> ProgressReport:
        """This report together with an earlier one of the same lease that was not taken in."""
        return replace(
            self,
            records=unheard.records + self.records,
            bytes=unheard.bytes + self.bytes,
            dead_letters=unheard.dead_letters + self.dead_letters,
            error=self.error or unheard.error,
            dead_letter_error=self.dead_letter_error or unheard.dead_letter_error,
            rewind=self.rewind or unheard.rewind,
            noticed={**(unheard.noticed or {}), **(self.noticed or {})} or None,
        )


@dataclass(frozen=True, slots=True)
class Reported:
    """The result of an owner's reports. A lease in neither of them is not the owner's any more."""

    held: list[FeedKey]
    """Leases whose reports were taken in."""
    busy: list[FeedKey]
    """Leases that somebody has locked: they are still the owner's, and have to be reported again."""
