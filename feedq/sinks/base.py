"""What a sink is: the database that records land in, with the checkpoint beside them.

A sink does five things, each safe to be killed or frozen at any statement:

* ``fence``: raise the checkpoint's epoch and read the cursor that the predecessor left;
* ``write``: land many feeds' batches and advance their checkpoints, in *one* transaction gated by the
  epochs; feeds whose epoch has passed are left out and reported;
* ``settle``: after a commit whose answer was lost, find out whether it happened;
* ``unblock``: end the sessions of writers whose worker is gone, so that a fence need not wait for them;
* ``check``: say whether a landing can work, before anything is written.

Methods block; each sink object belongs to one thread. A worker makes one to write and one to fence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import entry_points
from typing import Any, Protocol
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from feedq.connectors.base import RecordFormat, explain_options
from feedq.errors import InvalidInput
from feedq.model import JSON, Batch, FeedKey

ENTRY_POINT_GROUP = "feedq.sinks"


class SinkOptions(BaseModel):
    """A feed's ``sink``: which database, which table, and how a record becomes a row."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str = Field(default="default", description="Named sink database, see FEEDQ_SINKS__<NAME>.")
    table: str = Field(min_length=1, description="Table, or schema.table.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description='Column to JSON pointer into the record; "" is the whole record.',
    )
    key: tuple[str, ...] = Field(
        default=(), description="Columns of a unique index; rows already there are left alone."
    )

    @field_validator("table")
    @classmethod
    def _not_control(cls, table: str) -> str:
        if table.strip('"').startswith(("feedq.", 'feedq".', "feedq_checkpoint", "feedq_dead_letter")):
            raise ValueError(f"{table!r} is one of feedq's own; choose another name")
        return table

    @field_validator("columns")
    @classmethod
    def _pointers(cls, columns: dict[str, str]) -> dict[str, str]:
        for column, pointer in columns.items():
            if pointer and not pointer.startswith("/"):
                raise ValueError(f"column {column!r}: {pointer!r} is no JSON pointer; it must begin with '/'")
        return columns


@dataclass(frozen=True, slots=True)
class Landing:
    """Where and how one feed's records land; equal landings share a COPY."""

    table: str
    format: RecordFormat
    columns: tuple[tuple[str, str], ...] = ()
    """``(column, JSON pointer)`` pairs; empty means ``feed, epoch, received_at, payload``."""
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """Take over a feed in the sink under a new epoch."""

    feed_id: int
    feed: str
    epoch: int
    landing: Landing


@dataclass(frozen=True, slots=True)
class Fenced:
    """The feed is ours: resume after this cursor."""

    feed_id: int
    epoch: int
    cursor: JSON
    records: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The sink has seen a larger epoch than the one we came with, or the same of another worker."""

    feed_id: int
    epoch: int
    epoch_in_sink: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The predecessor's transaction holds the row: ``owner`` is the worker that fenced it last."""

    feed_id: int
    epoch: int
    owner: UUID | None


@dataclass(frozen=True, slots=True)
class Unusable:
    """The landing cannot work: no table, no such column, no permission. Waits for an edit."""

    feed_id: int
    epoch: int
    error: str


FenceOutcome = Fenced | Superseded | Blocked | Unusable


@dataclass(frozen=True, slots=True)
class FeedWrite:
    """Batches of one feed, in order, for one group commit."""

    feed_id: int
    feed: str
    epoch: int
    landing: Landing
    batches: tuple[Batch, ...]

    @property
    def key(self) -> FeedKey:
        return (self.feed_id, self.epoch)

    @property
    def cursor(self) -> JSON:
        return self.batches[-1].cursor

    @property
    def records(self) -> int:
        return sum(batch.count for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a group commit."""

    landed: Mapping[FeedKey, int]
    """Records in the table, per feed; the checkpoint stands after all batches of these feeds."""
    dead: Mapping[FeedKey, int]
    """Records that the database refused, per feed: in ``feedq_dead_letter``, in the same commit."""
    fenced: Collection[FeedKey]
    """Feeds whose epoch has passed: nothing of theirs was written."""
    unusable: Mapping[FeedKey, str]
    """Feeds whose landing cannot work any more, and why: nothing of theirs was written."""


class CommitUnknown(Exception):
    """The connection broke between COMMIT and its answer; ask `Sink.settle`."""

    def __init__(self, commit_id: UUID, writes: Sequence[FeedWrite], written: Written) -> None:
        super().__init__(f"commit {commit_id} of {len(writes)} feeds: its answer was lost")
        self.commit_id = commit_id
        self.writes = tuple(writes)
        self.written = written


class Sink(Protocol):
    """One session with a sink database, on behalf of one worker."""

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None: ...

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        """Fence many feeds in few statements. Raises `SinkUnavailable`."""

    def write(self, writes: Sequence[FeedWrite]) -> Written:
        """Land and checkpoint in one transaction. Raises `SinkUnavailable` (nothing was written) or
        `CommitUnknown`."""

    def settle(self, unknown: CommitUnknown) -> Written | None:
        """Whether the lost commit happened; None: nothing of it did. Raises `SinkUnavailable`."""

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        """End the writing sessions of these workers, which the caller knows to be gone. Returns how many."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not land, as kept in the sink."""

    id: int
    feed_id: int
    feed: str
    epoch: int
    record: bytes
    error: str
    cursor: JSON
    at: datetime


def parse_sink(sink: Mapping[str, Any]) -> SinkOptions:
    """Validate a feed's ``sink``. Raises `InvalidInput`, naming each option that is wrong."""
    try:
        return SinkOptions.model_validate(dict(sink))
    except ValidationError as error:
        raise InvalidInput(explain_options("sink", error, SinkOptions)) from None


def landing_of(options: SinkOptions, record_format: RecordFormat) -> Landing:
    if options.columns and record_format != "json":
        raise InvalidInput(f"sink.columns needs source.format json, not {record_format}")
    for column in options.key:
        if options.columns and column not in options.columns:
            raise InvalidInput(f"sink.key: {column!r} is not among sink.columns")
    return Landing(options.table, record_format, tuple(options.columns.items()), options.key)


def load_sink(url: str) -> type[Sink]:
    """The sink for a database URL, by its scheme. Raises `InvalidInput`."""
    scheme = url.partition("://")[0].partition("+")[0]
    kind = {"postgres": "postgresql"}.get(scheme, scheme)
    found = entry_points(group=ENTRY_POINT_GROUP, name=kind)
    if not found:
        known = ", ".join(sorted(e.name for e in entry_points(group=ENTRY_POINT_GROUP)))
        raise InvalidInput(f"no sink for {scheme}:// URLs; installed are: {known or 'none'}")
    loaded: type[Sink] = next(iter(found)).load()
    return loaded
