"""Looks whether feeds are as expected, for as long as this beat is the elected one.

On a thread of its own: neither the election nor the passes wait for it, and it does not wait for them. The
database judges (`feedq.store.expectations`); what is decided here is when. A beat that has just been elected, or
could not reach the database, waits for two ttls: feeds that were stopped with all else are to come up first.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from typing import Final

from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.store.expectations import ExpectationStore
from feedq.telemetry import LogEvent, database_event, log

SHARE: Final = 10.0
"""A look takes no more than one part in this many of the time: with a hundred thousand feeds it takes seconds."""
GRACE_TTLS: Final = 2.0
"""Less, and each restart of an installation would be told as silence."""
STOP_S: Final = 1.0

logger = log(__name__)


class ExpectationJudge(Thread):
    """The thread of a beat that judges."""

    def __init__(
        self, s: Settings, expectations: Callable[[], ExpectationStore], leads: Callable[[], bool]
    ) -> None:
        super().__init__(name="feedq-judge", daemon=True)
        self._settings, self._expectations, self._leads = s, expectations, leads
        self._stopping = Event()
        self._led = False
        self._not_before = float("-inf")

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join(STOP_S)

    def run(self) -> None:
        interval_s = pause_s = self._settings.expect_interval_s
        while not self._stopping.wait(pause_s):
            began = monotonic()
            led, self._led = self._led, self._leads()
            if self._led and not led:
                self._pause()
            if not self._led or monotonic() < self._not_before:
                continue
            try:
                self._judge()
            except Unavailable as error:
                logger.warning(database_event(error), where="judge", error=str(error))
                self._pause()
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="judge")
            pause_s = max(interval_s, SHARE * (monotonic() - began))

    def _judge(self) -> None:
        s = self._settings
        judged = self._expectations().judge(s.expect, s.tenant_expect)
        if judged.begun or judged.ended:
            logger.info(LogEvent.EXPECTATIONS_JUDGED, begun=judged.begun, ended=judged.ended)

    def _pause(self) -> None:
        self._not_before = monotonic() + GRACE_TTLS * self._settings.ttl_s
