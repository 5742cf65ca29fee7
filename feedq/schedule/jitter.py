"""Jitter: each tick fires a little later than it falls due, always by the same for the same tick.

The delay is hashed from the schedule's id and the tick, so every node comes to the same moment, and an edit of
anything but timing or jitter moves nothing. It is shorter than the time to the next tick: ticks stay in order.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from feedq.schedule.model import ScheduleSpec
from feedq.schedule.timing import next_tick

MICROSECOND = timedelta(microseconds=1)


def fire_time(spec: ScheduleSpec, *, schedule_id: int, tick: datetime) -> datetime:
    """When ``tick`` fires: at it or later, and before the next tick."""
    if spec.jitter_s <= 0:
        return tick
    return delayed(spec, schedule_id=schedule_id, tick=tick, following=next_tick(spec, after=tick))


def delayed(spec: ScheduleSpec, *, schedule_id: int, tick: datetime, following: datetime | None) -> datetime:
    """The same as `fire_time`, for who knows the tick that follows."""
    if spec.jitter_s <= 0:
        return tick
    span = timedelta(seconds=spec.jitter_s)
    if following is not None:
        span = min(span, following - tick)
    # In whole numbers: a fraction as a float could be rounded up to one, and reach the next tick.
    return tick + (_hash(schedule_id, tick) * (span // MICROSECOND) >> 64) * MICROSECOND


def _hash(schedule_id: int, tick: datetime) -> int:
    """Of 64 bits."""
    text = f"{schedule_id} {tick.astimezone(UTC).isoformat()}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
