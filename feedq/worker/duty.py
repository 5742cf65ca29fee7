"""A duty: something that a thread does again and again.

Each fails by itself: one that the database refuses, or that has a bug, keeps no other from being done.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from feedq.errors import Unavailable
from feedq.telemetry.logs import LogEvent, database_event, log

RETRY_S = 0.25
"""The pause before a duty that failed is tried again, woken or not."""

logger = log(__name__)


class Duty:
    """Something to do at intervals, or sooner when it is woken: by any thread. All else is for one thread."""

    def __init__(
        self, name: str, do: Callable[[], float], *, at: float = float("-inf"), woken_s: float = 0.0
    ) -> None:
        """``do`` does it, and returns the seconds until it is due again; ``woken_s`` is the least time between two
        times of which somebody woke it for the second."""
        self._name, self._do, self._woken_s = name, do, woken_s
        self._at, self._done_at = at, float("-inf")
        self._is_woken = self._is_failing = False

    def wake(self) -> None:
        self._is_woken = True

    def pause_s(self) -> float:
        """The seconds until it is due."""
        at = self._at
        if self._is_woken and not self._is_failing:
            at = min(at, self._done_at + self._woken_s)
        return max(0.0, at - monotonic())

    def attend(self) -> None:
        """Do it, if it is due. Raises nothing."""
        if self.pause_s() > 0:
            return
        # Before it is done: whatever happens meanwhile may have come too late for this time.
        self._is_woken = False
        try:
            pause_s = self._do()
            self._is_failing = False
        except Exception as error:
            pause_s = RETRY_S
            if not isinstance(error, Unavailable):
                logger.exception(LogEvent.UNEXPECTED, where=self._name)
            elif not self._is_failing:
                logger.warning(database_event(error), where=self._name, error=str(error))
            self._is_failing = True
        self._done_at = monotonic()
        self._at = self._done_at + pause_s
