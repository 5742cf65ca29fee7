"""The way in: from an assignment to a granted claim.

An assignment is heard of twice. The worker is rung when it is committed, and asks for what waits for it; and a
``stream_feed`` message follows, by which Celery and Flower know of the tenure. Whichever comes first has the feed
claimed. If that was the ring, the message finds its tenure under way and joins it.

Both are hints. A message may be late, repeated or forged; what is neither a tenure that runs here nor a claim that
the database grants is acknowledged and dropped with one log line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias
from uuid import UUID

from feedq.model import Claim, FeedKey
from feedq.telemetry import LogEvent, log

SUMMONED_MAX = 10_000
"""Claims that one ring brings; the next heartbeat brings the rest."""

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class TaskCallbacks:
    """What the message's side wants to hear. None of them may block: they are called on the loop."""

    accepted: Callable[[], None]
    """The claim was committed: from now on the lease brings the feed back, not the message."""
    finished: Callable[[str], None]
    """The tenure is over, or never began; says why."""
    progress: Callable[[str], None]
    """A sign of life now and then, for whoever watches Celery's events; this one is called often."""


class AssignmentListener:
    """Who hears of one tenure: the side of its message, once that is here."""

    __slots__ = ("_claim_queue", "_hooks", "_key", "_was_accepted")

    def __init__(self, claim_queue: ClaimQueue, key: FeedKey, hooks: TaskCallbacks | None) -> None:
        self._claim_queue, self._key, self._hooks = claim_queue, key, hooks
        self._was_accepted = False

    def join(self, hooks: TaskCallbacks) -> bool:
        """Whether there was nobody else; one who comes after the claim hears of it now."""
        with self._claim_queue.lock:
            if self._hooks is not None:
                return False
            self._hooks = hooks
            is_late = self._was_accepted
        if is_late:
            hooks.accepted()
        return True

    def accepted(self) -> None:
        with self._claim_queue.lock:
            self._was_accepted = True
            hooks = self._hooks
        if hooks is not None:
            hooks.accepted()

    def finished(self, why: str) -> None:
        with self._claim_queue.lock:
            self._claim_queue.tenures.pop(self._key, None)
            hooks = self._hooks
        if hooks is not None:
            hooks.finished(why)

    def progress(self, text: str) -> None:
        if self._hooks is not None:
            self._hooks.progress(text)


Granted: TypeAlias = list[tuple[Claim, AssignmentListener]]


class ClaimQueue:
    """Tenures of this worker, from the moment that their claim is asked for. Thread-safe."""

    def __init__(
        self,
        *,
        refusal: Callable[[FeedKey, int], str | None],
        claim: Callable[[FeedKey], None],
        begin: Callable[[UUID, Granted], None],
    ) -> None:
        """``refusal`` says why not, given the key and how many claims are under way."""
        self._refusal, self._claim, self._begin = refusal, claim, begin
        self.lock = Lock()
        self.tenures: dict[FeedKey, AssignmentListener] = {}
        """With `lock`, for its audiences."""
        self._pending: set[FeedKey] = set()

    def offer(self, key: FeedKey, hooks: TaskCallbacks) -> None:
        """A message came in: ask for the claim, join the tenure, or drop it."""
        refused = self._ask(key, hooks)
        if refused is None:
            return
        with self.lock:
            audience = self.tenures.get(key)
        if audience is None or not audience.join(hooks):
            _drop(key, hooks, refused)

    def summon(self, keys: Iterable[FeedKey]) -> None:
        """These wait for us, says the database: ask for the claims that are not under way."""
        for key in keys:
            self._ask(key, None)

    def _ask(self, key: FeedKey, hooks: TaskCallbacks | None) -> str | None:
        """Why the claim is not asked for, if so."""
        with self.lock:
            if key in self.tenures:
                return "a duplicate: its claim is under way, or it runs here"
            if (refused := self._refusal(key, len(self._pending))) is not None:
                return refused
            self.tenures[key] = AssignmentListener(self, key, hooks)
            self._pending.add(key)
        self._claim(key)
        return None

    @property
    def pending(self) -> int:
        return len(self._pending)

    def answered(self, worker_id: UUID, granted: list[Claim], stale: list[FeedKey]) -> None:
        """The lease client's answer to what this worker session claimed."""
        with self.lock:
            starting = [(claim, self.tenures[claim.key]) for claim in granted if claim.key in self._pending]
            dropped = [(key, self.tenures[key]) for key in stale if key in self._pending]
            self._pending -= {claim.key for claim in granted} | set(stale)
        for key, audience in dropped:
            _drop(key, audience, "stale: no such assignment is waiting for this worker")
        for _, audience in starting:
            audience.accepted()
        if starting:
            self._begin(worker_id, starting)


def _drop(key: FeedKey, hooks: TaskCallbacks | AssignmentListener, why: str) -> None:
    logger.info(LogEvent.MESSAGE_DROPPED, feed_id=key[0], epoch=key[1], why=why)
    hooks.accepted()
    hooks.finished(f"dropped: {why}")
