"""A sink on dicts, with the faults that a real one has: for tests of what stands in front of a sink."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from feedq.errors import SinkUnavailable
from feedq.model import JSON, FeedKey
from feedq.sinks.base import (
    Blocked,
    CommitUnknown,
    FeedWrite,
    Fenced,
    FenceOutcome,
    FenceRequest,
    Sink,
    Superseded,
    Unusable,
    Written,
)


@dataclass(slots=True)
class MemoryCheckpoint:
    """One row of ``feedq_checkpoint``."""

    epoch: int
    owner: UUID
    cursor: JSON = None
    records: int = 0
    commit_id: UUID | None = None


@dataclass(slots=True)
class MemoryTables:
    """What all sessions of a sink share, and the switches of its faults."""

    rows: dict[str, list[bytes]] = field(default_factory=dict)
    """Landed records by feed, in order."""
    checkpoints: dict[int, MemoryCheckpoint] = field(default_factory=dict)
    commits: int = 0
    away: bool = False
    """Every statement raises `SinkUnavailable`."""
    lose_answer: bool | None = None
    """The next commit's answer is lost: True, after it happened; False, before."""
    poison: bytes | None = None
    """Records with these bytes are refused and counted as dead."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Table to why it cannot be written."""
    locked: set[int] = field(default_factory=set)
    """Feeds whose checkpoint a frozen predecessor holds."""
    lock: Lock = field(default_factory=Lock)


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

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        with self.tables.lock:
            self._require()
            return [self._fence(request) for request in requests]

    def _fence(self, request: FenceRequest) -> FenceOutcome:
        feed_id, epoch = request.feed_id, request.epoch
        if request.landing.table in self.tables.unusable:
            return Unusable(feed_id, epoch, self.tables.unusable[request.landing.table])
        row = self.tables.checkpoints.get(feed_id)
        if row is not None and feed_id in self.tables.locked:
            return Blocked(feed_id, epoch, row.owner)
        if row is not None and (row.epoch > epoch or (row.epoch == epoch and row.owner != self._worker_id)):
            return Superseded(feed_id, epoch, row.epoch)
        if row is None:
            row = self.tables.checkpoints[feed_id] = MemoryCheckpoint(epoch, self._worker_id)
        row.epoch, row.owner = epoch, self._worker_id
        return Fenced(feed_id, epoch, row.cursor, row.records)

    def write(self, writes: Sequence[FeedWrite]) -> Written:
        with self.tables.lock:
            self._require()
            mine = [w for w in writes if self._epoch(w) == w.epoch]
            fenced = tuple(w.key for w in writes if w not in mine)
            unusable = {
                w.key: self.tables.unusable[w.landing.table]
                for w in mine
                if w.landing.table in self.tables.unusable
            }
            landing = [w for w in mine if w.key not in unusable]
            kept = {w.key: [r for b in w.batches for r in b.split() if not self._refuses(r)] for w in landing}
            written = Written(
                landed={key: len(records) for key, records in kept.items()},
                dead={w.key: n for w in landing if (n := w.records - len(kept[w.key]))},
                fenced=fenced,
                unusable=unusable,
            )
            commit_id = uuid4()
            lost, self.tables.lose_answer = self.tables.lose_answer, None
            if lost is not False:
                self._apply(landing, kept, commit_id)
            if lost is not None:
                raise CommitUnknown(commit_id, writes, written)
            return written

    def settle(self, unknown: CommitUnknown) -> Written | None:
        with self.tables.lock:
            self._require()
            rows = [self.tables.checkpoints[key[0]] for key in unknown.written.landed]
            return unknown.written if any(row.commit_id == unknown.commit_id for row in rows) else None

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        with self.tables.lock:
            freed = {i for i in self.tables.locked if self.tables.checkpoints[i].owner in worker_ids}
            self.tables.locked -= freed
            return len(freed)

    def close(self) -> None:
        """Nothing to close."""

    def _apply(self, landing: Sequence[FeedWrite], kept: dict[FeedKey, list[bytes]], commit_id: UUID) -> None:
        self.tables.commits += 1
        for write in landing:
            self.tables.rows.setdefault(write.feed, []).extend(kept[write.key])
            row = self.tables.checkpoints[write.feed_id]
            row.cursor, row.commit_id = write.cursor, commit_id
            row.records += len(kept[write.key])

    def _epoch(self, write: FeedWrite) -> int | None:
        row = self.tables.checkpoints.get(write.feed_id)
        return None if row is None else row.epoch

    def _refuses(self, record: bytes) -> bool:
        return self.tables.poison is not None and self.tables.poison in record

    def _require(self) -> None:
        if self.tables.away:
            raise SinkUnavailable("sink (in memory): away")


if TYPE_CHECKING:

    def _is_a_sink(sink: MemorySink) -> Sink:
        return sink
