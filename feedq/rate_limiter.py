"""How fast a source is read, and how fast connections to it begin: limits, and what keeps to them. Pure.

*Reading* is limited by token buckets. A bucket may go into debt: a batch is taken whole, however large, and
whoever took it waits until everything up to it is paid for. So the rate holds on average, and what comes at once
is bounded by what a connection buffers. Of several that share a bucket each waits for what was taken before, and
for nothing that was taken after: they come by turns, whoever has most to take.

*Connecting* goes through gates. A gate cuts time into slots, as many a second as its rate says, and lets one
through at a random moment of each. Several workers that share a rate have a gate each, with a part of it: they do
not beat in step, and together they keep to the whole, the first moment included.
"""

from __future__ import annotations

from random import Random
from sys import float_info
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

BURST_S: Final = 1.0
"""What a source that was slow may catch up with at full speed, in seconds of its rate."""
CONNECT_BURST_S: Final = 0.25
"""What may connect at once where nobody has for a while, in seconds of the rate; larger is a stampede."""
CONNECT_FIRST_S: Final = 1.0
"""The same for the first one of each gate that shares the rate: in a fleet of up to so many seconds' worth of
workers a feed that comes alone does not wait, and if it is a stampede after all, the host sees no more than this
of it at once."""
RATE_MIN: Final = 1e-9
"""Slots of more than thirty years are all alike, and would leave no digits for the time of day."""


class RateLimits(BaseModel):
    """How fast something may be read, on average; None is without a limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rows_per_s: Annotated[float | None, Field(gt=0, le=1e12)] = None
    """Records a second."""
    bytes_per_s: Annotated[float | None, Field(gt=0, le=1e15)] = None
    """Bytes of records a second."""


UNLIMITED: Final = RateLimits()


class TokenBucket:
    """Fills at a rate up to `BURST_S` of it; what is taken beyond that is a debt."""

    __slots__ = ("_at", "_rate_per_s", "_taken", "_tokens")

    def __init__(self, rate_per_s: float, *, now: float) -> None:
        self._rate_per_s = _positive(rate_per_s)
        self._tokens = self._rate_per_s * BURST_S
        self._taken = 0.0
        self._at = now

    def take(self, amount: float, *, now: float) -> float:
        """Returns the mark to wait for: how much was ever taken, up to this."""
        self._fill(now)
        self._tokens -= amount
        self._taken += amount
        return self._taken

    def wait_s(self, mark: float, *, now: float) -> float:
        """How long until what was taken up to a mark is paid for."""
        self._fill(now)
        # The difference first: both marks may be large.
        return max(0.0, (mark - self._taken - self._tokens) / self._rate_per_s)

    def change_rate(self, rate_per_s: float, *, now: float) -> None:
        """From now on. A debt stays as large as it is; tokens saved up shrink with the rate."""
        self._fill(now)
        self._rate_per_s = _positive(rate_per_s)
        self._tokens = min(self._tokens, self._rate_per_s * BURST_S)

    def _fill(self, now: float) -> None:
        elapsed_s = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._tokens + elapsed_s * self._rate_per_s, self._rate_per_s * BURST_S)


Turn = tuple[float, float]
"""The marks of what was taken from a throttle: of rows and of bytes."""


class Throttle:
    """The buckets of one `RateLimits`, of which each record counts in both."""

    __slots__ = ("_bytes", "_limits", "_rows")

    def __init__(self, limits: RateLimits, *, now: float, share: float = 1.0) -> None:
        self._limits = limits
        self._rows = _bucket(limits.rows_per_s, share, now)
        self._bytes = _bucket(limits.bytes_per_s, share, now)

    def take(self, *, rows: int, size: int, now: float) -> Turn:
        """Returns the turn to wait for before the next batch is taken."""
        return (
            self._rows.take(rows, now=now) if self._rows is not None else 0.0,
            self._bytes.take(size, now=now) if self._bytes is not None else 0.0,
        )

    def wait_s(self, turn: Turn, *, now: float) -> float:
        """How long until it is somebody's turn again."""
        return max(
            self._rows.wait_s(turn[0], now=now) if self._rows is not None else 0.0,
            self._bytes.wait_s(turn[1], now=now) if self._bytes is not None else 0.0,
        )

    def change_share(self, share: float, *, now: float) -> None:
        """Keep to this part of the limits from now on; more than 0."""
        if self._rows is not None and self._limits.rows_per_s is not None:
            self._rows.change_rate(self._limits.rows_per_s * share, now=now)
        if self._bytes is not None and self._limits.bytes_per_s is not None:
            self._bytes.change_rate(self._limits.bytes_per_s * share, now=now)


def _bucket(rate_per_s: float | None, share: float, now: float) -> TokenBucket | None:
    return None if rate_per_s is None else TokenBucket(rate_per_s * share, now=now)


def _positive(rate_per_s: float) -> float:
    # The smallest limits times a share are 0, which nobody could wait for.
    return max(rate_per_s, float_info.min)


class RateLimiter:
    """Lets connections begin at a rate, each at a random moment of a slot of its own.

    After a pause, the slots of the last `CONNECT_BURST_S`, and one slot at least, may be used at once. A gate
    that has a part of a rate has that part of the burst too, and lets its first one through at once as long as
    all together let through no more in that moment than `CONNECT_FIRST_S` of the rate. If they are more than
    that, of a slot that is only partly over the moment may be over already or still to come. So a gate with a
    rate of its own never keeps the first one waiting, and a thousand gates that share a rate of a hundred do not
    let a thousand through in one moment.
    """

    __slots__ = ("_burst", "_moment", "_rng", "_slot_at", "_spacing_s")

    def __init__(self, rate_per_s: float, *, share: float = 1.0, rng: Random) -> None:
        """``share``: the part of the rate that is this gate's, more than 0."""
        self._rng = rng
        self._burst, self._spacing_s = _slots(rate_per_s, share)
        self._slot_at = float("-inf")
        """When the next slot begins."""
        self._moment = rng.random()
        """Where in that slot somebody may pass, as a part of it."""

    @property
    def opens_at(self) -> float:
        """When the next one may pass; perhaps long ago."""
        return self._slot_at + self._moment * self._spacing_s

    def arrive(self, now: float) -> None:
        """To be called when somebody comes and nobody was waiting."""
        self._slot_at = max(self._slot_at, now - self._burst * self._spacing_s)

    def let_through(self, now: float) -> None:
        # Slots that nobody could use, because the process stood still or others were in the way, are gone.
        unused_s = max(1.0, self._burst) * self._spacing_s
        self._slot_at = max(self._slot_at, now - unused_s) + self._spacing_s
        self._moment = self._rng.random()

    def take_back(self) -> None:
        """Whoever was let through last does not make use of it."""
        self._slot_at -= self._spacing_s

    def change(self, rate_per_s: float, *, share: float, now: float) -> None:
        """From now on. Who waits for so many slots waits for as many new ones."""
        self._burst, spacing_s = _slots(rate_per_s, share)
        self._slot_at = now + (self._slot_at - now) * (spacing_s / self._spacing_s)
        self._spacing_s = spacing_s

    def is_rested(self, now: float) -> bool:
        """Whether it is as good as new."""
        return self._slot_at <= now - self._burst * self._spacing_s


def _slots(rate_per_s: float, share: float) -> tuple[float, float]:
    """How many may be used at once, and the seconds that each lasts."""
    burst = max(
        max(1.0, rate_per_s * CONNECT_BURST_S) * share, min(1.0, rate_per_s * CONNECT_FIRST_S * share)
    )
    return burst, 1 / max(rate_per_s * share, RATE_MIN)
