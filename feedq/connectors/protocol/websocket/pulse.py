"""Signs of life: when to ping a source, and when to give it up. Pure: told the time, it decides.

Two clocks run. Whatever is heard answers a ping, for it proves as well as a pong that the source is there; only a
message shows that the feed goes on, since pings and pongs are sent by libraries whatever the source behind them
does. Times are monotonic seconds; a duration of 0 is never.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf


class Due(Enum):
    """What to do now."""

    NOTHING = auto()
    PING = auto()
    UNANSWERED = auto()
    """Give it up: nothing at all came after a ping."""
    SILENT = auto()
    """Give it up: no message came."""


class Pulse:
    """Of one connection, from its beginning at ``now``."""

    __slots__ = (
        "_idle_timeout_s",
        "_message_at",
        "_next_ping_at",
        "_ping_interval_s",
        "_ping_timeout_s",
        "_unanswered_since",
    )

    def __init__(
        self, *, ping_interval_s: float, ping_timeout_s: float, idle_timeout_s: float, now: float
    ) -> None:
        self._ping_interval_s = ping_interval_s or inf
        self._ping_timeout_s = ping_timeout_s or inf
        self._idle_timeout_s = idle_timeout_s or inf
        self._message_at = now
        self._next_ping_at = now + self._ping_interval_s
        self._unanswered_since = inf

    def heard(self, now: float, *, message: bool) -> None:
        """Something came, and with it perhaps a message or a part of one."""
        self._unanswered_since = inf
        if message:
            self._message_at = now

    def pinged(self, now: float) -> None:
        self._next_ping_at = now + self._ping_interval_s
        self._unanswered_since = min(self._unanswered_since, now)

    def due(self, now: float) -> Due:
        if now >= self._message_at + self._idle_timeout_s:
            return Due.SILENT
        if now >= self._unanswered_since + self._ping_timeout_s:
            return Due.UNANSWERED
        return Due.PING if now >= self._next_ping_at else Due.NOTHING

    @property
    def next_at(self) -> float:
        """When something will be due; infinite for never. What is heard can only put it off."""
        return min(
            self._message_at + self._idle_timeout_s,
            self._unanswered_since + self._ping_timeout_s,
            self._next_ping_at,
        )
