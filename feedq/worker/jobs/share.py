"""The share of a worker in all runs: which are its own, and how often it scans for them.

**Share.** Each worker has segments of all runs, as of the last scan of the workers; who scanned earlier or later
may see it another way, and the claim decides.

**Scans.** Each worker fires ticks, ends what has expired, and asks who else is there. One scan of one worker is
enough for all; many only mean that no particular one must live. So the more there are, the seldomer each scans,
and a fleet of any size asks the database about as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from feedq.core.schedule.spread import segments_of

POLL_S = 0.5
"""How often a worker of a small fleet scans for what nobody told it of."""
IDLE_POLL_S = 5.0
"""The same while there is nothing to find: no schedule with a tick to come, no run that waits or runs."""
POLL_MAX_S = 10.0
POLLS_PER_S = 50
"""The scans of one kind a second, of all workers together, beyond 25 of them: one every 20 ms."""
SCANNERS = 20
"""The number of workers, about, that scan at the moment at which the next tick falls due; the others do on
their own time. None of them must: that all happen to be late is as likely as a hash that collides."""
STAGGER_S = 0.01
"""The time over which they are spread, so that not all scan at once."""

Identity = Callable[[], UUID | None]
"""The session under which this worker may claim now; None while it may not."""


@dataclass(frozen=True, slots=True)
class Share:
    """The workers that run jobs, and how the segments are dealt out among them."""

    mine: Sequence[int] = ()
    owners: Mapping[int, UUID] = field(default_factory=dict)
    """The worker of each segment."""
    workers: int = 1
    """How many there are, at least one."""
    is_idle: bool = False
    """Whether there was nothing to fire and nothing to run at the last scan of any worker."""

    @classmethod
    def of(cls, workers: Mapping[UUID, int], me: UUID | None, *, is_idle: bool = False) -> Share:
        """``workers``: the job slots of each."""
        segments = segments_of(workers)
        owners = {segment: worker for worker, its in segments.items() for segment in its}
        return cls(segments.get(me, ()) if me is not None else (), owners, max(1, len(workers)), is_idle)

    @property
    def poll_s(self) -> float:
        return min(max(IDLE_POLL_S if self.is_idle else POLL_S, self.workers / POLLS_PER_S), POLL_MAX_S)

    def next_scan_s(self, next_in_s: float | None, *, rng: Random) -> float:
        """Return in how long to scan for due ticks, given when the next one is."""
        # Not all at the same time, as workers that were started together would for ever.
        at_most_s = self.poll_s * rng.uniform(0.75, 1.0)
        if next_in_s is None or next_in_s >= at_most_s:
            return at_most_s
        if rng.random() * self.workers > SCANNERS:
            return at_most_s
        return min(max(next_in_s, 0.0) + rng.random() * STAGGER_S, at_most_s)

    def owners_of(self, segments: Iterable[int]) -> set[UUID]:
        """Return the workers that own these segments."""
        return {self.owners[segment] for segment in segments if segment in self.owners}
