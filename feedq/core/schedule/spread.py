"""Chooses which worker starts a run: segments of a hash, dealt out by weighted rendezvous with bounded load.

Each run of a schedule belongs to one of 256 segments, by a hash of schedule and key. Each worker owns segments in
proportion to its job slots and takes their runs at once; the runs of others it takes only when they have waited a
while. So workers seldom want the same row, and no message has to arrive for a run to start. Nothing is agreed
upon: who knows the same workers comes to the same segments. Who does not is late or early, and never wrong,
because the claim decides.

Every pair of segment and worker has a score from a hash. The best pairs of all are matched first, as long as the
worker is not past its share: all have the whole part of it, and as many one more as are left over. When a worker
comes or goes, its own segments change hands, and a few more that make the others even again: a tenth as many
among four workers, and up to a tenth of all segments among fifty, where each has five.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b, shake_128
from math import log
from struct import unpack
from uuid import UUID

SEGMENTS = 256
"""One segment is 0.4 % of all runs: what the share of a worker may differ by."""


def segment_of(schedule_id: int, key: str) -> int:
    """The segment of a run."""
    return blake2b(f"{schedule_id} {key}".encode(), digest_size=8).digest()[0] % SEGMENTS


def segments_of(workers: Mapping[UUID, int]) -> Mapping[UUID, tuple[int, ...]]:
    """The segments of each worker, in order, given the job slots of all. Who has no slot has none."""
    return dict(_segments_of(tuple(sorted(workers.items()))))


@lru_cache(maxsize=16)
def _segments_of(workers: tuple[tuple[UUID, int], ...]) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    total = sum(max(slots, 0) for _, slots in workers)
    owned: dict[UUID, list[int]] = {worker: [] for worker, _ in workers}
    if total == 0:
        return tuple((worker, ()) for worker in owned)
    whole = {worker: SEGMENTS * max(slots, 0) // total for worker, slots in workers}
    may_have_more = {worker for worker, slots in workers if SEGMENTS * max(slots, 0) % total}
    left_over = SEGMENTS - sum(whole.values())
    taken: set[int] = set()
    for _, segment, worker in sorted(score for pair in workers for score in _scores(*pair)):
        if segment in taken:
            continue
        excess = len(owned[worker]) - whole[worker]
        if excess >= 0:
            if excess > 0 or left_over == 0 or worker not in may_have_more:
                continue
            left_over -= 1
        owned[worker].append(segment)
        taken.add(segment)
    return tuple((worker, tuple(sorted(found))) for worker, found in owned.items())


def _scores(worker: UUID, slots: int) -> list[tuple[float, int, UUID]]:
    """Draws the score of a worker for each segment, the lower the better: exponentially distributed, by so much as
    it has slots."""
    if slots <= 0:
        return []
    draws = unpack(f">{SEGMENTS}Q", shake_128(worker.bytes).digest(SEGMENTS * 8))
    return [(-log((draw + 1) / 2**64) / slots, segment, worker) for segment, draw in enumerate(draws)]
