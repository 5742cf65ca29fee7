"""Time, as an argument.

Two kinds, never mixed: ``now`` is an aware UTC datetime for what is shown or stored, ``monotonic``
counts seconds for durations and deadlines. Ownership is judged by the database's clock alone; a local
clock only ever makes a worker stop sooner.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the imperative shell reads the time; the pure policies take it as a value."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks. ``monotonic`` keeps counting while the process is stopped."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
