"""Has the counters of all feeds written down once a minute, for as long as this beat is the elected one.

On a thread of its own, like the judge: with a hundred thousand feeds it takes a good part of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from feedq.errors import Unavailable
from feedq.store.landed_counts import LandedCounts
from feedq.telemetry import LogEvent, database_event, log

LOOK_S: Final = 5.0
"""A beat that has just been elected, or could not reach the database, looks again so soon."""
AFTER_S: Final = 1.0
"""Into the minute: schedules fire when it begins."""
STOP_S: Final = 1.0

logger = log(__name__)


class LandedKeeper(Thread):
    """The thread of a beat that has counters written down."""

    def __init__(self, counts: Callable[[], LandedCounts], leads: Callable[[], bool]) -> None:
        super().__init__(name="feedq-landed", daemon=True)
        self._counts, self._leads = counts, leads
        self._stopping = Event()

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join(STOP_S)

    def run(self) -> None:
        pause_s = LOOK_S
        while not self._stopping.wait(pause_s):
            pause_s = LOOK_S
            if not self._leads():
                continue
            try:
                pause_s = self._counts().count() + AFTER_S
            except Unavailable as error:
                logger.warning(database_event(error), where="landed", error=str(error))
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="landed")
