"""Remembers which sinks a worker cannot reach: since when, and why."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from feedq.telemetry.logs import LogEvent, log

NO_ANSWER_S = 8.0
"""A sink that has not answered for so long counts as away: longer than any statement of a group may take."""

logger = log(__name__)


class Down(NamedTuple):
    """A sink that is not reached: since when, on the monotonic clock, and why."""

    since: float
    error: str


class Outage:
    """Remembers whether one worker reaches one sink. Shared by the threads that use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: Down | None = None
        self._asked_at: float | None = None
        self.is_tried = False
        """Whether somebody has something to write: nobody else need find out whether the sink is back."""
        self.written_at = float("-inf")

    @property
    def down(self) -> Down | None:
        asked_at = self._asked_at
        if self._failed is None and asked_at is not None and monotonic() - asked_at > NO_ANSWER_S:
            return Down(asked_at, f"sink {self._name!r}: no answer for {NO_ANSWER_S:g} s")
        return self._failed

    def ask(self, now: float) -> None:
        """Note that something was asked of the sink that is known to take little time."""
        self._asked_at = now

    def answered(self) -> None:
        """Note that the sink has answered, whatever came of it."""
        self._asked_at = None

    def failed(self, error: Exception, *, since: float) -> None:
        first = self._failed
        if first is None:
            logger.warning(LogEvent.SINK_AWAY, sink=self._name, error=str(error))
        self._failed = Down(since if first is None else first.since, str(error))

    def over(self, *, wrote: bool = True) -> None:
        if self._failed is not None:
            away_s = round(monotonic() - self._failed.since, 1)
            logger.info(LogEvent.SINK_BACK, sink=self._name, away_s=away_s)
            self._failed = None
        if wrote:
            self.written_at = monotonic()
