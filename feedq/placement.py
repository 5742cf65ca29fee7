"""Where feeds go: a pure function from feeds and workers to assignments.

Heaviest first onto the least-utilised worker, where utilisation is load ÷ capacity. Ties are broken by a
hash of worker and feed, so that equal workers fill in no fixed order and two runs decide alike. Equal
feeds on equal workers end within one of each other: each feed goes to a worker that has fewest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from uuid import UUID

from feedq.model import Reason


@dataclass(frozen=True, slots=True)
class Waiting:
    """A feed that may start and has no owner."""

    feed_id: int
    weight: float = 1.0
    reason: Reason | None = None
    """Why it waits, as last written to its lease."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An active worker, with what it holds (assigned, running and stopping alike)."""

    worker_id: UUID
    queue: str
    capacity: int
    feeds: int
    load: float
    started_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision: who gets what, and why the rest waits."""

    assignments: tuple[tuple[int, UUID], ...]
    """``(feed_id, worker_id)`` pairs."""
    unplaced: tuple[tuple[int, Reason], ...]


def place(
    waiting: Iterable[Waiting], workers: Sequence[Candidate], *, now: datetime, settle_s: float
) -> Placement:
    """Assign every waiting feed that fits.

    While *every* worker is younger than ``settle_s`` the fleet is starting cold, and nothing is placed:
    the first worker up must not take everything. One older worker is enough to go ahead at once.
    """
    queue = sorted(waiting, key=lambda w: (-w.weight, w.feed_id))
    if workers and is_cold(workers, now=now, settle_s=settle_s):
        return Placement((), tuple((w.feed_id, Reason.SETTLING) for w in queue))

    heap = [_Slot.of(w) for w in workers if w.feeds < w.capacity]
    heapq.heapify(heap)
    assignments: list[tuple[int, UUID]] = []
    unplaced: list[tuple[int, Reason]] = []
    for feed in queue:
        if not heap:
            unplaced.append((feed.feed_id, Reason.NO_CAPACITY))
            continue
        slot = heap[0]
        assignments.append((feed.feed_id, slot.worker_id))
        slot.take(feed)
        if slot.free:
            heapq.heapreplace(heap, slot)
        else:
            heapq.heappop(heap)
    return Placement(tuple(assignments), tuple(unplaced))


def is_cold(workers: Sequence[Candidate], *, now: datetime, settle_s: float) -> bool:
    """Whether the whole fleet has only just come up."""
    return all(now - w.started_at < timedelta(seconds=settle_s) for w in workers)


class _Slot:
    """A worker in the heap, ordered by utilisation, then by a hash that changes with each feed taken."""

    __slots__ = ("capacity", "feeds", "load", "tie", "worker_id")

    def __init__(self, worker_id: UUID, capacity: int, feeds: int, load: float, tie: bytes) -> None:
        self.worker_id = worker_id
        self.capacity = capacity
        self.feeds = feeds
        self.load = load
        self.tie = tie

    @classmethod
    def of(cls, w: Candidate) -> _Slot:
        return cls(w.worker_id, w.capacity, w.feeds, w.load, _tie(w.worker_id, w.feeds))

    @property
    def free(self) -> bool:
        return self.feeds < self.capacity

    def take(self, feed: Waiting) -> None:
        self.feeds += 1
        self.load += feed.weight
        self.tie = _tie(self.worker_id, self.feeds)

    def __lt__(self, other: _Slot) -> bool:
        # load/capacity compared crosswise: exact for the integers that loads usually are.
        mine, theirs = self.load * other.capacity, other.load * self.capacity
        return (mine, self.tie) < (theirs, other.tie)


def _tie(worker_id: UUID, feeds: int) -> bytes:
    return blake2b(worker_id.bytes + feeds.to_bytes(8, "big"), digest_size=8).digest()
