"""A sink on dicts, with the faults that a real one has: for tests of what stands in front of a sink.

It knows default landings only, and tells one format of records from another by trying to read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from feedq.core.json_texts import read_json
from feedq.core.model import JSON, FeedKey, Identity
from feedq.errors import CommitUnknown, InvalidInput, SinkUnavailable
from feedq.records.batch import Batch
from feedq.sinks.base import (
    Blocked,
    Checkpoint,
    CheckpointChange,
    DeadLetter,
    FeedWrite,
    Fenced,
    FenceOutcome,
    FenceRequest,
    Judge,
    Preview,
    Replayed,
    Sink,
    Superseded,
    Target,
    Unusable,
    Written,
    anybody,
)
from feedq.sinks.fencing import strangers
from feedq.sinks.mapping import ColumnType
from feedq.sinks.transactional import UnknownCommit
from feedq.sinks.upkeep import not_its_own, taken_meanwhile

IDENTITY: Final = Identity(UUID(int=0), UUID(int=0))
"""Of feeds in tests that are about something else."""


@dataclass(slots=True)
class MemoryCheckpoint:
    """One row of ``feedq_checkpoint``."""

    epoch: int
    owner: UUID
    cursor: JSON = None
    records: int = 0
    commit_id: UUID | None = None
    feed: str | None = None
    feed_uuid: UUID = IDENTITY.feed
    installation: UUID = IDENTITY.installation
    is_given: bool = False
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def as_read(self, feed_id: int) -> Checkpoint:
        return Checkpoint(
            feed_id,
            self.feed or f"feed {feed_id}",
            self.epoch,
            self.cursor,
            self.records,
            self.updated_at,
            self.commit_id,
            self.feed_uuid,
            self.installation,
            self.owner,
            self.is_given,
        )


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row of a landing table."""

    table: str
    feed: str
    epoch: int
    record: bytes


@dataclass(slots=True)
class MemoryTables:
    """What all sessions of a sink share, and the switches of its faults."""

    rows: dict[str, list[bytes]] = field(default_factory=dict)
    """Landed records by feed, in order."""
    landed: list[MemoryRow] = field(default_factory=list)
    """The same as rows of their tables."""
    checkpoints: dict[int, MemoryCheckpoint] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    commits: int = 0
    away: bool = False
    """Every statement raises `SinkUnavailable`."""
    lose_answer: bool | None = None
    """The next commit's answer is lost: True, after it happened; False, before."""
    away_after: bool = False
    """Whether the sink is away from the next lost answer on."""
    poison: bytes | None = None
    """Records with these bytes are refused and counted as dead."""
    unreadable: bool = False
    """Whether records that are not of their landing's format are refused, too."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Table to why it cannot be written."""
    locked: set[int] = field(default_factory=set)
    """Feeds whose checkpoint a frozen predecessor holds."""
    locked_tables: set[str] = field(default_factory=set)
    """Landing tables that an operator holds: feeds that land there are postponed."""
    lock: Lock = field(default_factory=Lock)
    environments: dict[str, MemoryTables] = field(default_factory=dict)
    dead_letter_ids: Iterator[int] = field(default_factory=lambda: count(1))

    def of(self, environment: str) -> MemoryTables:
        """The tables that another installation has in the same database."""
        if environment not in self.environments:
            self.environments[environment] = MemoryTables(
                poison=self.poison,
                unreadable=self.unreadable,
                unusable=self.unusable,
                dead_letter_ids=self.dead_letter_ids,
            )
        return self.environments[environment]


class MemorySink:
    """`feedq.sinks.base.Sink` over `MemoryTables`."""

    def __init__(
        self,
        url: str,
        *,
        environment: str,
        worker_id: UUID,
        role: str,
        tables: MemoryTables | None = None,
    ) -> None:
        self.tables = tables if tables is not None else MemoryTables()
        self._worker_id = worker_id
        self._unknown: UnknownCommit | None = None

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        with self.tables.lock:
            self._require()
            why = strangers(requests, self._known())
            return [self._fence(request, why.get(request.feed_id)) for request in requests]

    def _fence(self, request: FenceRequest, stranger: str | None) -> FenceOutcome:
        feed_id, epoch = request.feed_id, request.epoch
        if request.target.table in self.tables.unusable:
            return Unusable(feed_id, epoch, self.tables.unusable[request.target.table])
        if stranger is not None:
            return Unusable(feed_id, epoch, stranger)
        row = self.tables.checkpoints.get(feed_id)
        if row is not None and feed_id in self.tables.locked:
            return Blocked(feed_id, epoch, row.owner)
        if row is not None and (row.epoch > epoch or (row.epoch == epoch and row.owner != self._worker_id)):
            return Superseded(feed_id, epoch, row.epoch)
        if row is None:
            row = self.tables.checkpoints[feed_id] = MemoryCheckpoint(epoch, self._worker_id)
        row.epoch, row.owner, row.commit_id = epoch, self._worker_id, uuid4()
        row.feed = request.feed
        row.feed_uuid, row.installation = request.identity.feed, request.identity.installation
        return Fenced(feed_id, epoch, row.cursor, row.records, row.commit_id, is_given=row.is_given)

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        with self.tables.lock:
            self._require()
            if (settled := self._settle(writes)) is not None:
                return settled
            mine = [w for w in writes if self._is_as_left(w)]
            unusable = {w.key: why for w in mine if (why := self._why_unusable(w))}
            postponed = {
                w.key: f"table {w.target.table!r} is locked"
                for w in mine
                if w.key not in unusable and w.target.table in self.tables.locked_tables
            }
            errors = {w.key: why for w in mine for _, r in _records(w) if (why := self.refusal(w, r))}
            if briefly:
                postponed |= {key: why for key, why in errors.items() if key not in unusable | postponed}
            target = [w for w in mine if w.key not in unusable and w.key not in postponed]
            kept = {w.key: [r for _, r in _records(w) if not self.refusal(w, r)] for w in target}
            commit_id = uuid4()
            written = Written(
                landed={key: len(records) for key, records in kept.items()},
                dead={w.key: n for w in target if (n := w.records - len(kept[w.key]))},
                lost=tuple(w.key for w in writes if w not in mine),
                unusable=unusable,
                postponed=postponed,
                errors=errors,
                commit_id=commit_id,
            )
            lost, self.tables.lose_answer = self.tables.lose_answer, None
            if lost is not False:
                self._apply(target, kept, commit_id)
            if lost is not None:
                self.tables.away |= self.tables.away_after
                self._unknown = UnknownCommit(writes, written)
                raise CommitUnknown(f"the answer to a commit of {len(writes)} feeds was lost")
            return written

    def _settle(self, writes: Sequence[FeedWrite]) -> Written | None:
        unknown, self._unknown = self._unknown, None
        if unknown is None or not unknown.covers(writes):
            return None
        return unknown.decide({n: row.as_read(n) for n, row in self.tables.checkpoints.items()})

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        with self.tables.lock:
            self._require()
            freed = {i for i in self.tables.locked if self.tables.checkpoints[i].owner in worker_ids}
            self.tables.locked -= freed
            return len(freed)

    def check(self, target: Target) -> str | None:
        self._require()
        return self.tables.unusable.get(target.table)

    def preview(self, write: FeedWrite) -> list[Preview]:
        self._require_usable(write.target)
        known = {"feed": write.feed, "epoch": str(write.epoch)}
        return [
            Preview(
                record, {**known, "payload": record.decode(errors="replace")}, self.refusal(write, record)
            )
            for _, record in _records(write)
        ]

    def dead_letters(
        self,
        feed: str | None = None,
        *,
        ids: Collection[int] = (),
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        with self.tables.lock:
            self._require()
            found = [
                letter
                for letter in self.tables.dead
                if feed in (None, letter.feed)
                and (before is None or letter.id < before)
                and (not ids or letter.id in ids)
                and (after is None or letter.id > after)
            ]
        return sorted(found, key=lambda letter: letter.id, reverse=after is None)[:limit]

    def replay(self, ids: Collection[int], target: Target, *, judge: Judge = anybody) -> Replayed:
        with self.tables.lock:
            self._require_usable(target)
            judge()
            refused: dict[int, str] = {}
            letters = [letter for letter in self.tables.dead if letter.id in ids]
            for letter in letters:
                write = FeedWrite(letter.feed_id, letter.feed, letter.epoch, target, ())
                if why := self.refusal(write, letter.record):
                    refused[letter.id] = why
                    self.tables.dead[self.tables.dead.index(letter)] = replace(letter, error=why)
                else:
                    self.tables.dead.remove(letter)
                    self._land(write, letter.record)
            return Replayed(len(letters) - len(refused), refused)

    def drop(self, ids: Collection[int], *, judge: Judge = anybody) -> int:
        with self.tables.lock:
            self._require()
            judge()
            kept = [letter for letter in self.tables.dead if letter.id not in ids]
            dropped = len(self.tables.dead) - len(kept)
            self.tables.dead = kept
            return dropped

    def checkpoints(self, feeds: Collection[str] | None = None) -> list[Checkpoint]:
        with self.tables.lock:
            self._require()
            return [one for one in self._known() if feeds is None or one.feed in feeds]

    def _known(self) -> list[Checkpoint]:
        rows = self.tables.checkpoints
        return [row.as_read(feed_id) for feed_id, row in rows.items() if row.feed is not None]

    def change_checkpoint(self, change: CheckpointChange) -> None:
        with self.tables.lock:
            self._require()
            old, rows, identity = change.instead_of, self.tables.checkpoints, change.identity
            known = self._known()
            if old is not None and old not in known:
                raise taken_meanwhile(old)
            own = next((one for one in known if one.feed_id == change.feed_id), None)
            if own is not None and own.feed_uuid != identity.feed:
                raise not_its_own(change)
            start = change.choose(own)
            change.judge()
            if old is not None:
                del rows[old.feed_id]
            row = rows.setdefault(change.feed_id, MemoryCheckpoint(0, self._worker_id, feed=change.feed))
            row.cursor, row.records, row.commit_id = start.cursor, start.records, uuid4()
            row.feed_uuid, row.installation = identity.feed, identity.installation
            row.is_given = True

    def add_columns(
        self, target: Target, columns: Mapping[str, ColumnType], *, dry_run: bool = False
    ) -> list[str]:
        raise InvalidInput("there are no columns in memory")

    def close(self) -> None:
        """Nothing to close."""

    def _apply(
        self, target: Sequence[FeedWrite], kept: Mapping[FeedKey, list[bytes]], commit_id: UUID
    ) -> None:
        self.tables.commits += 1
        for write in target:
            for batch, record in _records(write):
                if why := self.refusal(write, record):
                    self._bury(write, batch, record, why)
                else:
                    self._land(write, record)
            row = self.tables.checkpoints[write.feed_id]
            row.cursor, row.commit_id, row.is_given = write.cursor, commit_id, False
            row.records += len(kept[write.key])

    def _land(self, write: FeedWrite, record: bytes) -> None:
        self.tables.rows.setdefault(write.feed, []).append(record)
        self.tables.landed.append(MemoryRow(write.target.table, write.feed, write.epoch, record))

    def _bury(self, write: FeedWrite, batch: Batch, record: bytes, why: str) -> None:
        self.tables.dead.append(
            DeadLetter(
                next(self.tables.dead_letter_ids),
                write.feed_id,
                write.feed,
                write.epoch,
                record,
                why,
                batch.cursor,
                datetime.now(UTC),
            )
        )

    def _is_as_left(self, write: FeedWrite) -> bool:
        row = self.tables.checkpoints.get(write.feed_id)
        return row is not None and row.as_read(write.feed_id).is_left_by(write)

    def _why_unusable(self, write: FeedWrite) -> str | None:
        if write.target.table in self.tables.unusable:
            return self.tables.unusable[write.target.table]
        # The only value that compares unequal to itself, and no JSON.
        return "the cursor cannot be kept: not a number" if write.cursor != write.cursor else None

    def refusal(self, write: FeedWrite, record: bytes) -> str | None:
        """Why the record cannot land."""
        if self.tables.poison is not None and self.tables.poison in record:
            return "poison"
        if self.tables.unreadable:
            try:
                if write.target.format == "json":
                    read_json(record)
            except ValueError as error:
                return f"invalid JSON: {error}"
        return None

    def _require(self) -> None:
        if self.tables.away:
            raise SinkUnavailable("sink (in memory): away")

    def _require_usable(self, target: Target) -> None:
        self._require()
        if target.table in self.tables.unusable:
            raise InvalidInput(self.tables.unusable[target.table])


def _records(write: FeedWrite) -> Iterator[tuple[Batch, bytes]]:
    return ((batch, record) for batch in write.batches for record in batch.split())


if TYPE_CHECKING:

    def _is_a_sink(sink: MemorySink) -> Sink:
        return sink
