"""What is due when: a manual clock that jumps from one appointment to the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from math import ceil

Action = Callable[[], None]
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


def to_ms(seconds: float) -> int:
    """Rounds seconds up to milliseconds: nothing happens early."""
    return ceil(seconds * 1000 - 1e-6)


class Agenda:
    """Keeps appointments by the millisecond; those of one millisecond in the order in which they were made.

    Many fall on the same one (a thousand claims of one pass), so the heap holds times and not appointments.
    """

    def __init__(self) -> None:
        self.now = 0
        self._times: list[int] = []
        self._due: dict[int, list[Action]] = {}

    def at(self, when: int, action: Action) -> None:
        """Adds an appointment, never before now."""
        when = max(when, self.now)
        due = self._due.get(when)
        if due is None:
            due = self._due[when] = []
            heappush(self._times, when)
        due.append(action)

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + to_ms(seconds), action)

    def run(self, until: int, *, before_jump: Callable[[int], None]) -> None:
        """Keep all appointments before ``until``; ``before_jump`` hears of each time that comes."""
        while self._times and self._times[0] < until:
            when = heappop(self._times)
            before_jump(when)
            self.now = when
            for action in self._due[when]:  # which may make more for this very moment
                action()
            del self._due[when]
        before_jump(until)
        self.now = until


class AgendaClock:
    """Is a `feedq.clock.Clock` by an agenda, which begins with the year 2000."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda

    def now(self) -> datetime:
        return BEGINNING + timedelta(milliseconds=self.agenda.now)

    def monotonic(self) -> float:
        return self.agenda.now / 1000
