"""How often a worker looks, so that a fleet of any size asks the database about as much. Pure.

Each worker fires ticks, ends what has expired, and asks who else is there. One look of one worker is enough for
all; many only mean that no particular one must live. So the more there are, the seldomer each looks, and the looks
of all together keep their rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

POLL_S = 0.5
"""How often a worker of a small fleet looks for what nobody told it of."""
IDLE_POLL_S = 5.0
"""The same while there is nothing to look for: no schedule with a tick to come, no run that waits or runs."""
POLL_MAX_S = 10.0
POLLS_PER_S = 50
"""Looks of one kind, of all workers together, beyond 25 of them: somebody looks every 20 ms."""
LOOKERS = 20
"""So many workers, about, look at the moment at which the next tick falls due; the others on their own time.
None of them must: that all happen to be late is as likely as a hash that collides."""
STAGGER_S = 0.01
"""They do not all look at once, but within this."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """For a fleet of so many workers."""

    workers: int = 1
    is_idle: bool = False

    @property
    def poll_s(self) -> float:
        return min(max(IDLE_POLL_S if self.is_idle else POLL_S, self.workers / POLLS_PER_S), POLL_MAX_S)

    def next_look_s(self, next_in_s: float | None, *, rng: Random) -> float:
        """When to look for due ticks, given when the next one is."""
        # Not all at the same time, as workers that were started together would for ever.
        at_most_s = self.poll_s * rng.uniform(0.75, 1.0)
        if next_in_s is None or next_in_s >= at_most_s:
            return at_most_s
        if rng.random() * self.workers > LOOKERS:
            return at_most_s
        return min(max(next_in_s, 0.0) + rng.random() * STAGGER_S, at_most_s)
