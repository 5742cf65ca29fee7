"""A clock that moves when told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """`feedq.core.clock.Clock` whose time stands still until `advance` is called."""

    def __init__(self, start: datetime = NEW_YEAR) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        # Rounded, so that a thousand steps of 0.1 s end at 100 s and not a hair beside it.
        assert seconds >= 0, "time does not go backwards"
        self._elapsed_s = round(self._elapsed_s + seconds, 6)

    def put_back(self, seconds: float) -> None:
        """Set the time of day back, as a person does or NTP. What is monotonic goes on."""
        self._start -= timedelta(seconds=seconds)


class SkewedClock:
    """Another machine's idea of a `ManualClock`: off by ``offset_s``, and faster by ``rate``.

    A worker may have any offset at all; it is only the rate that the trust margin must cover.
    """

    def __init__(self, base: ManualClock, *, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._base = base
        self._offset_s = offset_s
        self._rate = rate

    def now(self) -> datetime:
        drift_s = self._base.monotonic() * (self._rate - 1.0)
        return self._base.now() + timedelta(seconds=self._offset_s + drift_s)

    def monotonic(self) -> float:
        return self._offset_s + self._base.monotonic() * self._rate
