"""Which part of all runs is this worker's: its segments, and whose the others are.

As of the last look at the workers; who looked earlier or later may see it another way, and the claim decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from feedq.runtime.jobs.poll_intervals import PollIntervals
from feedq.schedule.model import Hint
from feedq.schedule.spread import segments_of
from feedq.store.jobs.base import JobWorker

Identity = Callable[[], UUID | None]
"""The session under which this worker may claim now; None while it may not."""


@dataclass(frozen=True, slots=True)
class Share:
    """The workers that run jobs, and how the segments are dealt out among them."""

    mine: Sequence[int] = ()
    owners: Mapping[int, JobWorker] = field(default_factory=dict)
    """The worker of each segment that is not ours."""
    workers: int = 1
    """How many there are, at least one."""
    is_idle: bool = False
    """Whether there was nothing to fire and nothing to run when somebody looked last."""

    @property
    def pace(self) -> PollIntervals:
        return PollIntervals(self.workers, self.is_idle)

    @classmethod
    def of(cls, workers: Sequence[JobWorker], me: UUID | None, *, is_idle: bool = False) -> Share:
        segments = segments_of({worker.id: worker.slots for worker in workers})
        owners = {n: w for w in workers if w.id != me for n in segments[w.id]}
        return cls(segments.get(me, ()) if me is not None else (), owners, max(1, len(workers)), is_idle)

    def sort(self, hints: Iterable[Hint]) -> tuple[list[Hint], dict[JobWorker, list[Hint]]]:
        """Ours, and those of others: of each no more than it has slots, for more would tell it nothing."""
        mine = set(self.mine)
        ours: list[Hint] = []
        theirs: dict[JobWorker, list[Hint]] = defaultdict(list)
        for hint in hints:
            owner = self.owners.get(hint.segment)
            if hint.segment in mine:
                ours.append(hint)
            elif owner is not None and len(theirs[owner]) < owner.slots:
                theirs[owner].append(hint)
        return ours, dict(theirs)
