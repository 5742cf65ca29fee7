"""A worker on paper whose way to sources or sink may be cut, and feeds whose tables are missing.

What it does about it is what `feedq.worker` does, by the same policies: it tries again in place, lets go, says
which sinks it cannot write to, and lets go of their feeds when others can.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from feedq.core.backoff import RetryElsewhere, next_recheck_s, next_try
from feedq.core.model import FeedKey, Load, Reason, Release
from feedq.settings import DEFAULT_SINK
from tests.fakes.stream import FakeStream, numbers
from tests.fakes.worker import FakeWorker

SINK_PATIENCE_S = 5.0


class Longest(Random):
    """No jitter, so that a story has one end: every delay is as long as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class TroubledWorker(FakeWorker):
    """Its troubles are set by the story; ``missing`` are feeds without a table, for all workers alike."""

    missing: set[int] = set()  # noqa: RUF012 - shared on purpose: there is one sink
    has_no_source = False
    sink_lost_at: float | None = None
    tries = 0
    """How often it could not connect."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._troubles: dict[FeedKey, list[float]] = {}
        """By epoch, attempts and when the next one is due."""

    def _load(self) -> Load:
        sinks = (DEFAULT_SINK,)
        if self.sink_lost_at is not None:
            return Load(feeds=len(self.streams), sinks_down=sinks)
        return Load(feeds=len(self.streams), sinks_up=sinks if self.streams else ())

    def _may_connect(self, stream: FakeStream) -> bool:
        now = self.clock.monotonic()
        trouble = self._troubles.setdefault(stream.key, [stream.claim.attempts, now])
        attempts, again_at = trouble
        if now < again_at or self.sink_lost_at is not None:
            return False
        if stream.key[0] in self.missing:
            rechecks = 1 + (stream.claim.attempts if stream.claim.has_failed else 0)
            again_s = next_recheck_s(rechecks, rng=Longest(), policy=self._settings.backoff)
            self._give_up(stream, Release(*stream.key, Reason.FAILED, again_s, rechecks, "no table"))
            return False
        if not self.has_no_source:
            return True
        self.tries += 1
        trouble[0] = attempts = int(attempts) + 1
        decision = next_try(
            attempts, rng=Longest(), policy=self._settings.backoff, is_new_here=stream.claim.is_new_here
        )
        trouble[1] = now + decision.delay_s
        if isinstance(decision, RetryElsewhere):
            release = Release(*stream.key, Reason.BACKOFF, decision.delay_s, attempts, "no route")
            self._give_up(stream, release)
        return False

    def _give_up(self, stream: FakeStream, release: Release) -> None:
        self._end(stream, release)
        self._say(f"lets go of {numbers([stream.key[0]])} ({release.error})")

    def _commit(self, feed_ids: Iterable[int]) -> None:
        if self.sink_lost_at is None:
            super()._commit(feed_ids)
            return
        if self.clock.monotonic() < self.sink_lost_at + SINK_PATIENCE_S:
            return
        others = [w.load for w in self._store.database.tables.workers.values() if w.name != self.name]
        if any(DEFAULT_SINK in load.sinks_up for load in others):
            for stream in list(self.streams.values()):
                self._give_up(stream, Release(*stream.key, Reason.BACKOFF, 0.0, 1, "no way to the sink"))
