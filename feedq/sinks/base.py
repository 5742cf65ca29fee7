"""The interface of a sink: the database that records land in, with the checkpoint beside them.

A sink does a few things, each safe to be killed or frozen at any statement:

* ``fence``: raise the checkpoint's epoch and read the cursor that the predecessor left;
* ``write``: land many feeds' batches and advance their checkpoints, in *one* transaction. Feeds whose checkpoint
  is not the one that they continue have *lost* it: nothing of theirs is written, and they are fenced anew, which
  tells the cursor to go on from, or that the epoch is superseded. After a commit whose answer was lost, the same
  write finds out what became of it;
* ``unblock``: end the sessions of writers whose worker is gone, so that a fence need not wait for them;
* ``check`` and ``preview``: say whether a target can work, and how records would land, writing nothing;
* ``dead_letters``, ``replay`` and ``drop``: look after the records that were refused;
* ``change_checkpoint``: have a feed go on from another cursor, which its owner finds with its next write.

Methods block; each sink object belongs to one thread. A worker makes one to write and one to fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid4

from pydantic import Field, ValidationInfo, field_validator, model_validator

from feedq.connectors.base import ConnectorOptions, parse_options
from feedq.core.model import JSON, FeedKey, FeedSpec, Identity, StartCursor
from feedq.core.plugins import installed, load_installed, valid_options
from feedq.core.values import StrictModel
from feedq.errors import InvalidInput
from feedq.records.batch import Batch, Records
from feedq.records.csvtext import CsvFormat
from feedq.records.cursor import CURSOR_BYTES_MAX, cursor_text
from feedq.records.framing import RecordFormat
from feedq.settings import Settings
from feedq.sinks.field_watch import FieldWatch
from feedq.sinks.mapping import (
    DEFAULT_COLUMNS,
    ColumnRule,
    ColumnSource,
    ColumnType,
    Drift,
    Origin,
    check_column,
    sources_of,
    unknown_field,
)

T = TypeVar("T")

ENTRY_POINT_GROUP = "feedq.sinks"
AT_ONCE: Final = 500
"""Feeds or dead letters named in one statement: databases bound the parameters of one."""

# Tables that nothing may land in: a row in a catalog can make a table unreadable or its writer a superuser, and
# one in a control table can declare a feed. A declaration is judged by the name it gives, and each kind of sink
# judges the table that the name leads to.
CONTROL_SCHEMA: Final = "feedq"
BOOKKEEPING: Final = frozenset({"feedq_checkpoint", "feedq_dead_letter"})
"""In a sink, whatever its schema."""
OWN: Final = "is one of feedq's own: name another table"
SYSTEM: Final = "belongs to the database itself: name a table of your own"

Judge = Callable[[], None]
"""Asked right before a commit, with all locks held, whether it may be; raises when not."""


def anybody() -> None:
    """A `Judge` who lets everything pass."""


_count = attrgetter("count")


class OnConflict(StrEnum):
    """The policy for a row whose key already exists."""

    IGNORE = "ignore"
    UPDATE = "update"


def why_nowhere(table: str) -> str | None:
    """Why no kind of sink takes records for this ``table`` or ``schema.table``; None when one may."""
    schema, _, name = table.rpartition(".")
    # As databases compare names that were not quoted: of those that would, none may be deceived.
    schema, name = (part.strip('"').casefold() for part in (schema, name))
    if name in BOOKKEEPING or schema == CONTROL_SCHEMA:
        return OWN
    if schema == "information_schema" or schema.startswith(("pg_catalog", "pg_toast")):
        return SYSTEM
    return None


class SinkOptions(StrictModel):
    """A feed's ``sink``: which database, which table, and how a record becomes a row."""

    name: str = "default"
    """Name of the sink: `default`, or that of a `FEEDQ_SINKS__<NAME>`."""
    table: Annotated[str, Field(min_length=1)]
    """Table, or schema.table."""
    columns: dict[str, str | ColumnRule] = Field({})
    """What fills each column: a JSON pointer into the record (`""` for all of it), `$feed`, `$epoch`,
    `$cursor`, `$received_at`, or a rule."""
    flatten: Annotated[str | None, Field(min_length=1, max_length=8)] = None
    """Fills the other columns by name, with nested members joined by this text: with `_`, `a_b` is `/a_b`, or
    else `/a/b`."""
    key: tuple[str, ...] = ()
    """Columns of a unique index; a record whose key is already in the table does not land again."""
    on_conflict: OnConflict = OnConflict.IGNORE
    """For a record whose `key` is already there: `ignore` keeps the old row, `update` replaces it."""
    create: bool = False
    """Creates a missing table from `columns`, `types` and `key`. A default table is always created."""
    types: dict[str, ColumnType] = Field({})
    """Types of the columns of a created table; `text` for others."""

    drift: Drift = Drift.IGNORE
    """For fields that no column takes: `event` reports them, `add` also fills columns of their names."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str) -> str:
        if why := why_nowhere(table):
            raise ValueError(f"{table!r} {why}")
        return table

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: dict[str, str | ColumnRule]) -> dict[str, str | ColumnRule]:
        for column, source in columns.items():
            if isinstance(source, str):
                try:
                    check_column(source)
                except ValueError as error:
                    raise ValueError(f"column {column!r}: {error}") from None
        return columns

    @field_validator("on_conflict")
    @classmethod
    def _check_on_conflict(cls, on_conflict: OnConflict, info: ValidationInfo) -> OnConflict:
        if on_conflict is OnConflict.UPDATE and not info.data.get("key"):
            raise ValueError("update needs sink.key")
        return on_conflict

    @model_validator(mode="after")
    def _check_create(self) -> SinkOptions:
        if self.create and not (self.columns and self.flatten is None):
            raise ValueError("create needs columns, which say what to create, and does not work with flatten")
        if self.types and not self.create:
            raise ValueError("types are for a created table: set create: true")
        if self.drift is not Drift.IGNORE and not self.columns and self.flatten is None:
            raise ValueError("drift needs columns, or flatten: without them the whole record lands")
        if unknown := sorted(self.types.keys() - self.columns.keys()):
            raise ValueError(f"types: {unknown[0]!r} is not among columns")
        return self


@dataclass(frozen=True, slots=True)
class Target:
    """The table that one feed's records land in, and how a record becomes a row. Equal targets share a COPY."""

    table: str
    format: RecordFormat
    columns: tuple[ColumnSource, ...] = ()
    """Empty, without ``flatten``, means ``feed, epoch, received_at, payload``."""
    key: tuple[str, ...] = ()
    on_conflict: OnConflict = OnConflict.IGNORE
    flatten: str | None = None
    csv: CsvFormat | None = None
    """How to read a record of format ``csv``."""
    create: bool = False
    """Whether the table is made if it is not there, although it is mapped."""
    types: tuple[tuple[str, str], ...] = ()
    """Columns of the table that is made, and their types, as far as they are given."""
    drift: Drift = Drift.IGNORE
    adds_columns: bool = False
    """Whether whoever writes adds columns for `Drift.ADD` by itself."""

    @property
    def is_made(self) -> bool:
        """Whether feedq makes the table if it is not there."""
        return self.create or not self.is_mapped

    @property
    def is_mapped(self) -> bool:
        """Whether the table is the user's own, and not the default one of feedq's making."""
        return bool(self.columns) or self.flatten is not None


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """Take over a feed in the sink under a new epoch."""

    feed_id: int
    feed: str
    epoch: int
    target: Target
    identity: Identity
    """Whose the checkpoint has to be. The feed is `Unusable` if the checkpoint under its number is another feed's,
    or if it has none while another installation has one for a feed of this name."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The feed is ours: resume after this cursor."""

    feed_id: int
    epoch: int
    cursor: JSON
    records: int
    commit_id: UUID | None = field(default=None, compare=False)
    """What the first write is to continue: made anew by each fence."""
    is_given: bool = False
    """Whether a person gave the feed this cursor, and nothing has been committed since."""


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
    """The target cannot be written: no table, no such column, no permission. Or the checkpoint is somebody else's.
    It waits for an edit, or for `Sink.take`."""

    feed_id: int
    epoch: int
    error: str


FenceOutcome = Fenced | Superseded | Blocked | Unusable


@dataclass(slots=True)
class FeedWrite:
    """Batches of one feed, in order, for one group commit. It is not frozen, for the same reason as `Batch`."""

    feed_id: int
    feed: str
    epoch: int
    target: Target
    batches: tuple[Batch, ...]
    continues: UUID | None = None
    """The commit, or fence, that the checkpoint was left at. If the row names another one, nothing is written: a
    successor has the feed, a person has changed its cursor, or the sink has gone back (a backup was restored, a
    replica promoted, commits were lost). None: whatever the row says, for those who only try records out."""
    watch: FieldWatch | None = None
    """Set where ``target.drift`` has somebody look for fields that no column takes."""

    @property
    def key(self) -> FeedKey:
        return (self.feed_id, self.epoch)

    @property
    def cursor(self) -> JSON:
        return self.batches[-1].cursor

    @property
    def records(self) -> int:
        return sum(map(_count, self.batches))


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a group commit."""

    landed: Mapping[FeedKey, int]
    """Records in the table, per feed; the checkpoint stands after all batches of these feeds."""
    dead: Mapping[FeedKey, int]
    """Records that the database refused, per feed: in ``feedq_dead_letter``, in the same commit."""
    lost: Collection[FeedKey]
    """Feeds whose checkpoint is not the one that they continue: nothing of theirs was written. Each has to be
    fenced anew, and to go on from the cursor that the sink then gives, if it gives one."""
    unusable: Mapping[FeedKey, str]
    """Feeds whose target cannot work any more, and why: nothing of theirs was written."""
    postponed: Mapping[FeedKey, str] = field(default_factory=dict)
    """Feeds that are in trouble, and why: nothing of theirs was written. The same batches are to come again,
    before any later ones and apart from the other feeds, which need not wait for them."""
    errors: Mapping[FeedKey, str] = field(default_factory=dict, compare=False)
    """Why the last of the ``dead`` records was refused, per feed."""
    commit_id: UUID | None = field(default=None, compare=False)
    """What the next write of each feed that has ``landed`` is to continue."""


class Sink(Protocol):
    """A session with a sink database, on behalf of one worker."""

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None: ...

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        """Fence many feeds in few statements. Without any, only open the session. Raises `SinkUnavailable`."""

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        """Land and checkpoint in one transaction. Raises `SinkUnavailable`: nothing was written, or with
        `CommitUnknown` nobody knows.

        The sink remembers a commit whose answer was lost. If the next write is the same, or a part of it, it
        returns what the commit did, or writes if nothing happened. With any other write the commit is forgotten,
        and if it happened, its feeds are `Written.lost`.

        ``briefly``: other feeds wait. A feed whose records need a closer look, or whose table cannot be written
        now, is `Written.postponed`, and comes again by itself, without ``briefly``. The sink is only unavailable
        when it is so to every feed.
        """

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        """End the writing sessions of these workers, which the caller knows to be gone. Returns how many."""

    def check(self, target: Target) -> str | None:
        """Why the target cannot work; None when it can. Writes nothing. Raises `SinkUnavailable`."""

    def preview(self, write: FeedWrite) -> list[Preview]:
        """How the records would land, in order. Writes nothing, and needs no fence. Raises `SinkUnavailable`,
        and `InvalidInput` when `check` would complain."""

    def dead_letters(
        self,
        feed: str | None = None,
        *,
        ids: Collection[int] = (),
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        """Refused records, newest first: of one feed or of all, or just these. Raises `SinkUnavailable`.

        With ``after``, oldest first, and only those whose ids are larger: for going through all of them. With
        ``before``, only those whose ids are smaller.
        """

    def replay(self, ids: Collection[int], target: Target, *, judge: Judge = anybody) -> Replayed:
        """Land refused records after all, each in the same transaction that takes it from the dead letters.

        They keep their feed, epoch, cursor and time. What is refused again stays, with the new error; the
        checkpoint is not touched. Twice at once lands nothing twice. Raises `SinkUnavailable`, and what
        ``judge`` raises, which is asked before the commit.
        """

    def drop(self, ids: Collection[int], *, judge: Judge = anybody) -> int:
        """Delete refused records for good. Returns how many there were. Raises as `replay` does."""

    def checkpoints(self, feeds: Collection[str] | None = None) -> list[Checkpoint]:
        """What the sink knows of feeds of these names, or of all, in its environment. Raises `SinkUnavailable`."""

    def change_checkpoint(self, change: CheckpointChange) -> None:
        """Have a feed go on from another cursor, in one transaction. The owner of the checkpoint finds it changed
        with its next write; nothing that it has under way lands.

        Raises `Conflict` (the checkpoint is another feed's, or what is to be replaced has changed since),
        `SinkUnavailable` (nothing was changed, or nobody knows), and what ``choose`` and ``judge`` raise: then
        nothing was changed.
        """

    def add_columns(
        self, target: Target, columns: Mapping[str, ColumnType], *, dry_run: bool = False
    ) -> list[str]:
        """Add those of these columns that the table lacks, each in a transaction of its own. Returns the
        statements. Raises `InvalidInput` (no such table, too many columns, no right to), `SinkUnavailable`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of a feed, as a sink keeps it."""

    feed_id: int
    feed: str
    epoch: int
    cursor: JSON
    records: int
    updated_at: datetime
    commit_id: UUID | None
    feed_uuid: UUID
    installation: UUID
    owner: UUID
    """The worker that fenced the feed last: only it writes to the checkpoint, and can have it locked for long."""
    is_given: bool
    """See `Fenced.is_given`."""

    def is_left_by(self, write: FeedWrite) -> bool:
        """Whether this is the checkpoint that this write continues."""
        return self.epoch == write.epoch and write.continues in (None, self.commit_id)

    @property
    def whose(self) -> str:
        """Whose it is, in words."""
        when = self.updated_at.isoformat(sep=" ", timespec="seconds")
        return (
            f"feed {self.feed!r} of installation {self.installation} "
            f"({self.records} records, last written {when})"
        )


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A checkpoint that a person gives to a feed."""

    feed_id: int
    feed: str
    identity: Identity
    choose: Callable[[Checkpoint | None], StartCursor]
    """What the feed goes on from, given the checkpoint that it has, if any. Called with the checkpoint locked: no
    record lands meanwhile."""
    instead_of: Checkpoint | None = None
    """The checkpoint of another feed, which is deleted, if it still is as it was read."""
    judge: Judge = anybody


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


class SuspectRecord(NamedTuple):
    """A record on its own, with where it came from."""

    write: FeedWrite
    batch: Batch
    record: bytes

    @classmethod
    def of_writes(cls, writes: Iterable[FeedWrite]) -> Iterator[SuspectRecord]:
        """All records of these writes, in order."""
        return (
            cls(write, batch, record)
            for write in writes
            for batch in write.batches
            for record in batch.split()
        )

    @classmethod
    def of_dead_letter(cls, letter: DeadLetter, target: Target) -> SuspectRecord:
        """A dead letter, to be tried again."""
        batch = Records(records=(letter.record,)).batch(cursor=letter.cursor, received_at=letter.at)
        write = FeedWrite(letter.feed_id, letter.feed, letter.epoch, target, (batch,))
        return cls(write, batch, letter.record)


DeadRecord = tuple[SuspectRecord, str]
"""A record that was refused, and the error."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of a record: its columns as texts (None is NULL), or why it would be refused."""

    record: bytes
    columns: Mapping[str, str | None]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of trying dead letters again."""

    landed: int
    refused: Mapping[int, str]
    """The new error, by id of the dead letter."""


def parts(values: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """Cuts values into parts of at most ``size``."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def parse_sink(sink: Mapping[str, Any]) -> SinkOptions:
    """Validate a feed's ``sink``. Raises `InvalidInput`, naming each option that is wrong."""
    return valid_options("sink", SinkOptions, sink)


def target_of_feed(spec: FeedSpec) -> Target:
    """Raises `InvalidInput`."""
    return target_of(parse_sink(spec.sink), parse_options(spec.connector, spec.source))


def target_of(options: SinkOptions, source: ConnectorOptions) -> Target:
    """Raises `InvalidInput` when sink and source do not go together."""
    columns = sources_of(options.columns)
    pointing = options.flatten is not None or any(c.origin is Origin.POINTER for c in columns)
    if pointing and source.record_format not in ("json", "csv"):
        raise InvalidInput(
            f"sink.columns and sink.flatten point into records, which needs source.format json or csv, "
            f"not {source.record_format}"
        )
    if options.drift is not Drift.IGNORE and source.record_format != "json":
        raise InvalidInput(
            f"sink.drift looks into records, which needs source.format json, not {source.record_format}"
        )
    if source.record_csv is not None and (why := unknown_field(columns, source.record_csv.fields)):
        raise InvalidInput(why)
    for column in options.key if options.flatten is None else ():
        if column not in (options.columns or DEFAULT_COLUMNS):
            known = (
                "sink.columns" if options.columns else f"the columns written: {', '.join(DEFAULT_COLUMNS)}"
            )
            raise InvalidInput(f"sink.key: {column!r} is not among {known}")
    return Target(
        options.table,
        source.record_format,
        columns,
        options.key,
        on_conflict=options.on_conflict,
        flatten=options.flatten,
        csv=source.record_csv,
        create=options.create,
        types=tuple((column, type_.value) for column, type_ in sorted(options.types.items())),
        drift=options.drift,
    )


def check_cursor(options: ConnectorOptions, cursor: JSON) -> None:
    """Raises `InvalidInput` for a cursor that a person gives to a feed with these options, and cannot."""
    try:
        size = len(cursor_text(cursor) or "")
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    if size > CURSOR_BYTES_MAX:
        raise InvalidInput(f"the cursor has {size} bytes, and at most {CURSOR_BYTES_MAX} are kept")
    try:
        if cursor is not None:
            options.check_cursor(cursor)
    except ValueError as error:
        raise InvalidInput(f"the cursor {error}") from None


BUILT_IN: Final = "PostgreSQL (postgresql://…), MariaDB and MySQL (mariadb://…, mysql://…) and SQLite (sqlite:////path/to/file)"
_ALIASES: Final = {"postgres": "postgresql", "mysql": "mariadb"}


@cache
def load_sink(url: str) -> type[Sink]:
    """The sink for a database URL, by its scheme. Looked up once a process, as connectors are: the first feed of a
    worker asks on its event loop. Raises `InvalidInput`."""
    scheme = url.partition("://")[0].partition("+")[0]
    name, known = _ALIASES.get(scheme, scheme), installed(ENTRY_POINT_GROUP)
    if name not in known:
        raise InvalidInput(
            f"no sink for {scheme}:// URLs: records land in {BUILT_IN}; installed here are {', '.join(known)}"
        )
    loaded: type[Sink] = load_installed(ENTRY_POINT_GROUP, name, "sink")
    return loaded


@contextmanager
def opened_sink(settings: Settings, name: str, *, role: str) -> Iterator[Sink]:
    """A session with a named sink, for who is no worker. Raises `InvalidInput` when it is not set up here."""
    url = settings.sink_url(name)
    made = load_sink(url)(url, environment=settings.environment, worker_id=uuid4(), role=role)
    with closing(made) as sink:
        yield sink
