"""The way in: from a ``stream_feed`` message to a granted claim, or to a dropped message.

A message is a hint. It may be late, repeated or forged; what is not a claim that the database grants is
acknowledged and dropped with one log line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias
from uuid import UUID

from feedq.model import Claim, FeedKey
from feedq.telemetry import LogEvent, log

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the message's side wants to hear. None of them may block: they are called on the loop."""

    accepted: Callable[[], None]
    """The claim was committed: from now on the lease brings the feed back, not the message."""
    finished: Callable[[str], None]
    """The tenure is over, or never began; says why."""
    progress: Callable[[str], None]
    """A sign of life now and then, for whoever watches Celery's events; this one is called often."""


Granted: TypeAlias = list[tuple[Claim, Hooks]]


class Intake:
    """Messages whose claims are under way. Thread-safe."""

    def __init__(
        self,
        *,
        refusal: Callable[[FeedKey, int], str | None],
        claim: Callable[[FeedKey], None],
        begin: Callable[[UUID, Granted], None],
    ) -> None:
        self._refusal, self._claim, self._begin = refusal, claim, begin
        self._lock = Lock()
        self._pending: dict[FeedKey, Hooks] = {}

    def offer(self, key: FeedKey, hooks: Hooks) -> None:
        """A message came in: ask for the claim, or drop it."""
        with self._lock:
            refused = self._refusal(key, len(self._pending))
            if key in self._pending:
                refused = "a duplicate: its claim is under way"
            if refused is None:
                self._pending[key] = hooks
        if refused is None:
            self._claim(key)
        else:
            _drop(key, hooks, refused)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def answered(self, worker_id: UUID, granted: list[Claim], stale: list[FeedKey]) -> None:
        """The desk's answer to what this worker session claimed."""
        with self._lock:
            starting = [
                (claim, self._pending.pop(claim.key)) for claim in granted if claim.key in self._pending
            ]
            dropped = [(key, self._pending.pop(key)) for key in stale if key in self._pending]
        for key, hooks in dropped:
            _drop(key, hooks, "stale: no such assignment is waiting for this worker")
        for _, hooks in starting:
            hooks.accepted()
        if starting:
            self._begin(worker_id, starting)


def _drop(key: FeedKey, hooks: Hooks, why: str) -> None:
    logger.info(LogEvent.MESSAGE_DROPPED, feed_id=key[0], epoch=key[1], why=why)
    hooks.accepted()
    hooks.finished(f"dropped: {why}")
