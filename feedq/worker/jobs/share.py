"""The share of a worker in all runs: which are its own, how often it scans for them, and how workers are told
of runs that are due.

**Share.** Each worker has segments of all runs, as of the last scan of the workers; who scanned earlier or later
may see it another way, and the claim decides.

**Scans.** Each worker fires ticks, ends what has expired, and asks who else is there. One scan of one worker is
enough for all; many only mean that no particular one must live. So the more there are, the seldomer each scans,
and a fleet of any size asks the database about as much.

**Hints** are messages that tell a worker of runs that are due. They carry two numbers and no facts. Lost, late,
copied or forged, a hint costs time only: who was not told of a run finds it by its own scan, and the claim
judges everything. So they leave from a `feedq.worker.outbox.Outbox`, and nobody waits for the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from uuid import UUID

from feedq.schedule.model import Hint, JobWorker, Offer
from feedq.schedule.spread import segments_of
from feedq.store.jobs.runs import RunStore

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
STALE_S = 3.0
"""A hint that could not be sent for this long is no news: somebody else has taken the run."""
REMIND_AFTER_S = 5.0
"""A run that was mentioned is mentioned again after this, if it still waits: the message may be lost."""

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
    """Whether there was nothing to fire and nothing to run at the last scan of any worker."""

    @classmethod
    def of(cls, workers: Sequence[JobWorker], me: UUID | None, *, is_idle: bool = False) -> Share:
        segments = segments_of({worker.id: worker.slots for worker in workers})
        owners = {n: w for w in workers if w.id != me for n in segments[w.id]}
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

    def sort(self, hints: Iterable[Hint]) -> tuple[list[Hint], dict[JobWorker, list[Hint]]]:
        """Sort hints into those of this worker and those of others: of each no more than it has slots, for more
        would tell it nothing."""
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


@dataclass(frozen=True, slots=True)
class Note:
    """A note to one worker: a message ``run_job(run_id, attempt)`` for its own queue."""

    queue: str
    run_id: int
    attempt: int


Publish = Callable[[Sequence[Note]], int]
"""Sends them, in bounded time or not, and returns how many; may raise whatever the broker's client does."""


class Reminder:
    """Messages to this worker's own queue, for pools that run a job only when a message says so."""

    def __init__(
        self, runs: RunStore, *, limit: int, steal_after_s: float, tell: Callable[[Sequence[Hint]], None]
    ) -> None:
        self._runs, self._limit, self._steal_after_s = runs, limit, steal_after_s
        self._tell = tell
        self._said: dict[tuple[int, int], float] = {}
        """When each attempt was mentioned, of late."""

    def mention(self, hints: Sequence[Hint]) -> None:
        """Tell a worker of runs: at most as many as there are slots, and none that was mentioned a moment
        ago."""
        now = monotonic()
        self._said = {key: at for key, at in self._said.items() if now - at < REMIND_AFTER_S}
        fresh = [hint for hint in hints if (hint.run_id, hint.attempt) not in self._said][: self._limit]
        self._said |= {(hint.run_id, hint.attempt): now for hint in fresh}
        if fresh:
            self._tell(fresh)

    def remind(self, session_id: UUID, share: Share) -> None:
        """Mention what waits for this worker. Raises `Unavailable`."""
        self.mention(self._runs.due(Offer(session_id, self._limit, share.mine, self._steal_after_s)))
