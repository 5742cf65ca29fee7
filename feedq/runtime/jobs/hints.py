"""Hints: messages that tell a worker of runs that are due. They carry two numbers and no facts.

Lost, late, copied or forged, a hint costs time only: who was not told of a run finds it by its own look, and the
claim judges everything. So whatever does not fit is left out, and nobody waits for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import monotonic
from uuid import UUID

from feedq.runtime.jobs.share import Share
from feedq.schedule.model import Hint
from feedq.store.jobs.base import Offer, Runs
from feedq.telemetry import HINTS_SENT, LogEvent, log

BATCHES_MAX = 1_000
STALE_S = 3.0
"""A hint that could not be sent for this long is no news: somebody else has taken the run."""
REMIND_AFTER_S = 5.0
"""A run that was mentioned is mentioned again after this, if it still waits: the message may be lost."""
WAIT_S = 0.5

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """One message ``run_job(run_id, attempt)`` to one worker's own queue."""

    queue: str
    run_id: int
    attempt: int


Publish = Callable[[Sequence[Note]], int]
"""Sends them, in bounded time or not, and returns how many; may raise whatever the broker's client does."""


class Notes:
    """Sends notes on a thread of its own, which may hang as long as it likes."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._waiting: Queue[tuple[float, Sequence[Note]]] = Queue(BATCHES_MAX)
        self._stopping = Event()
        self._is_away = False
        self._thread = Thread(target=self._run, name="feedq-hints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nobody waits for it: what it sends is news for a moment only."""
        self._stopping.set()

    def put(self, notes: Sequence[Note]) -> None:
        """Never waits; with too much to send already, they are left out."""
        try:
            self._waiting.put_nowait((monotonic(), notes))
        except Full:
            return

    def _run(self) -> None:
        while not self._stopping.is_set():
            if notes := self._gather():
                self._send(notes)

    def _gather(self) -> list[Note]:
        gathered: list[Note] = []
        try:
            entry = self._waiting.get(timeout=WAIT_S)
            while True:
                if monotonic() - entry[0] < STALE_S:
                    gathered.extend(entry[1])
                entry = self._waiting.get_nowait()
        except Empty:
            return gathered

    def _send(self, notes: Sequence[Note]) -> None:
        try:
            HINTS_SENT.inc(self._publish(notes))
            self._is_away = False
        except Exception as error:  # noqa: BLE001 -- kombu raises whatever its transport does
            if not self._is_away:
                logger.warning(LogEvent.HINTS_FAILED, error=repr(error), unsent=len(notes))
            self._is_away = True


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
