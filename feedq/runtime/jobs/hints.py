"""Hints: messages that tell a worker of runs that are due. They carry two numbers and no facts.

Lost, late, copied or forged, a hint costs time only: who was not told of a run finds it by its own look, and the
claim judges everything. So they leave from a `feedq.runtime.outbox.Outbox`, and nobody waits for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

from feedq.runtime.jobs.share import Share
from feedq.schedule.model import Hint
from feedq.store.jobs.base import Offer, Runs

STALE_S = 3.0
"""A hint that could not be sent for this long is no news: somebody else has taken the run."""
REMIND_AFTER_S = 5.0
"""A run that was mentioned is mentioned again after this, if it still waits: the message may be lost."""


@dataclass(frozen=True, slots=True)
class Note:
    """One message ``run_job(run_id, attempt)`` to one worker's own queue."""

    queue: str
    run_id: int
    attempt: int


Publish = Callable[[Sequence[Note]], int]
"""Sends them, in bounded time or not, and returns how many; may raise whatever the broker's client does."""


class Reminder:
    """Messages to this worker's own queue, for pools that run a job only when a message says so."""

    def __init__(
        self, runs: Runs, *, limit: int, steal_after_s: float, tell: Callable[[Sequence[Hint]], None]
    ) -> None:
        self._runs, self._limit, self._steal_after_s = runs, limit, steal_after_s
        self._tell = tell
        self._said: dict[tuple[int, int], float] = {}
        """When each attempt was mentioned, of late."""

    def mention(self, hints: Sequence[Hint]) -> None:
        """At most as many as there are slots, and none that was mentioned a moment ago."""
        now = monotonic()
        self._said = {key: at for key, at in self._said.items() if now - at < REMIND_AFTER_S}
        fresh = [hint for hint in hints if (hint.run_id, hint.attempt) not in self._said][: self._limit]
        self._said |= {(hint.run_id, hint.attempt): now for hint in fresh}
        if fresh:
            self._tell(fresh)

    def look(self, session_id: UUID, share: Share) -> None:
        """Mention what waits for this worker. Raises `Unavailable`."""
        self.mention(self._runs.due(Offer(session_id, self._limit, share.mine, self._steal_after_s)))
