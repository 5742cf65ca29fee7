"""What the elected beat has done beside the election, on threads of their own: neither waits for the other.

`feedq.verbs.alerts` has another one. Each does its part again and again for as long as its beat leads, and goes
on after whatever goes wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from typing import Final

from feedq.control.store.expectations import ExpectationStore
from feedq.control.store.landed_counts import LandedCounts
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, database_event, log

STOP_S: Final = 1.0
LANDED_LOOK_S: Final = 5.0
"""A beat that has just been elected, or could not reach the database, looks again so soon."""
LANDED_AFTER_S: Final = 1.0
"""Into the minute: schedules fire when it begins."""
JUDGE_EVERY_S: Final = 2.0
"""How late it is noticed that a feed is not as expected, besides what the expectation itself allows."""
JUDGE_SHARE: Final = 10.0
"""A look takes no more than one part in this many of the time: with a hundred thousand feeds it takes seconds."""
GRACE_TTLS: Final = 2.0
"""Less, and each restart of an installation would be told as silence."""

logger = log(__name__)


class LeaderThread(Thread, ABC):
    """Calls `work` at an interval while ``leads`` is true."""

    def __init__(self, name: str, leads: Callable[[], bool], *, every_s: float) -> None:
        super().__init__(name=f"feedq-{name}", daemon=True)
        self._where, self._leads, self._every_s = name, leads, every_s
        self._stopping = Event()

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join(STOP_S)

    def run(self) -> None:
        pause_s: float | None = self._every_s
        while not self._stopping.wait(self._every_s if pause_s is None else pause_s):
            pause_s = self.attempt(self.work) if self._leads() else None

    @abstractmethod
    def work(self) -> float | None:
        """Do it once; the result is the pause before the next time, if that is not the usual one."""

    def attempt(self, job: Callable[[], float | None]) -> float | None:
        """The result of ``job``; None when it failed, which the log tells."""
        try:
            return job()
        except Unavailable as error:
            logger.warning(database_event(error), where=self._where, error=str(error))
        except Exception:
            logger.exception(LogEvent.UNEXPECTED, where=self._where)
        return None


class LandedKeeper(LeaderThread):
    """Has the counters of all feeds written down once a minute: with a hundred thousand it takes a good part of a
    second."""

    def __init__(self, counts: Callable[[], LandedCounts], leads: Callable[[], bool]) -> None:
        super().__init__("landed", leads, every_s=LANDED_LOOK_S)
        self._counts = counts

    def work(self) -> float:
        return self._counts().count() + LANDED_AFTER_S


class ExpectationJudge(LeaderThread):
    """Checks whether feeds meet their expectations.

    The database judges (`feedq.control.store.expectations`); what is decided here is when. A beat that has just
    been elected, or could not reach the database, waits for two ttls: feeds that were stopped with all else are
    to come up first."""

    def __init__(
        self, s: Settings, expectations: Callable[[], ExpectationStore], leads: Callable[[], bool]
    ) -> None:
        super().__init__("judge", self._may_judge, every_s=JUDGE_EVERY_S)
        self._settings, self._expectations, self._is_elected = s, expectations, leads
        self._led = False
        self._not_before = float("-inf")

    def _may_judge(self) -> bool:
        led, self._led = self._led, self._is_elected()
        if self._led and not led:
            self._wait_for_feeds()
        return self._led and monotonic() >= self._not_before

    def work(self) -> float:
        s, began = self._settings, monotonic()
        try:
            judged = self._expectations().judge(s.expect, s.tenant_expect)
        except Unavailable:
            self._wait_for_feeds()
            raise
        if judged.begun or judged.ended:
            logger.info(LogEvent.EXPECTATIONS_JUDGED, begun=judged.begun, ended=judged.ended)
        return max(self._every_s, JUDGE_SHARE * (monotonic() - began))

    def _wait_for_feeds(self) -> None:
        self._not_before = monotonic() + GRACE_TTLS * self._settings.ttl_s
