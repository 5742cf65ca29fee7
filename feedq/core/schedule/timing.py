"""The timing of a schedule: when it falls due, its ticks, and when each of them fires.

Jitter lets each tick fire a little later than it falls due, always by the same for the same tick. The delay is
hashed from the schedule's id and the tick, so every node comes to the same moment, and an edit of anything but
timing or jitter moves nothing. It is shorter than the time to the next tick: ticks stay in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from hashlib import blake2b
from heapq import merge
from itertools import count, groupby, islice, takewhile
from zoneinfo import ZoneInfo

from feedq.core.schedule.cron import YEAR_MAX, parse
from feedq.core.schedule.exclusions import first_free
from feedq.core.schedule.model import BACKFILL_MAX, Beat, Cron, Every, Once, ScheduleSpec
from feedq.core.values import instant
from feedq.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(YEAR_MAX, 1, 1, tzinfo=UTC)
"""Intervals have no ticks from here on."""
MICROSECOND = timedelta(microseconds=1)


def next_tick(spec: ScheduleSpec, *, after: datetime) -> datetime | None:
    """The first tick later than ``after``; None when there is none any more."""
    return next(ticks_after(spec, after=after), None)


def ticks_after(spec: ScheduleSpec, *, after: datetime) -> Iterator[datetime]:
    """Yields all ticks later than ``after``, in UTC, strictly rising.

    Raises ValueError or an error of `zoneinfo` for a timing that `feedq.core.schedule.entries` would refuse.
    """
    end_at = spec.end_at
    if spec.start_at is not None:
        after = max(after, spec.start_at - MICROSECOND)
    found = _without_excluded(spec, after) if spec.exclude else _ticks_of(spec, after)
    return found if end_at is None else takewhile(lambda tick: tick < end_at, found)


def _ticks_of(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    """Yields the ticks of its timing alone."""
    match spec.timing:
        case Cron() as cron:
            rules = [parse(expression, name=spec.name) for expression in cron.expressions]
            found = [rule.ticks_after(after, zone=cron.zone) for rule in rules]
            return found[0] if len(found) == 1 else (tick for tick, _ in groupby(merge(*found)))
        case Every() as every:
            return Grid.of(every).ticks_after(after)
        case Once() as once:
            return iter(sorted({at.astimezone(UTC) for at in once.moments if at > after}))
        case Beat():
            return iter(())


def _without_excluded(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    clock = ZoneInfo(spec.exclude.zone)
    ticks = _ticks_of(spec, after)
    while (tick := next(ticks, None)) is not None:
        day = tick.astimezone(clock).date()
        free = first_free(spec.exclude.dates, day)
        if free == day:
            yield tick
        else:
            # Not tick by tick: an interval may have a million of them in a day.
            midnight = datetime.combine(free, time(), clock).astimezone(UTC)
            ticks = _ticks_of(spec, max(tick, midnight - MICROSECOND))


@dataclass(frozen=True, slots=True)
class Grid:
    """The ticks of an interval, numbered from 0. There are none before the anchor."""

    anchor: datetime
    period: timedelta

    @staticmethod
    def of(every: Every) -> Grid:
        anchor = EPOCH if every.anchor is None else every.anchor.astimezone(UTC)
        # Whole microseconds, as the database has them: multiples must not drift.
        return Grid(anchor, timedelta(microseconds=round(every.every_s * 1_000_000)))

    def at(self, number: int) -> datetime:
        return self.anchor + number * self.period

    def count_before(self, moment: datetime) -> int:
        """Return how many ticks are earlier than ``moment``; so this is also the number of the first that is
        not."""
        return max(0, -((self.anchor - moment) // self.period))

    def ticks_after(self, after: datetime) -> Iterator[datetime]:
        for number in count(max(0, (after - self.anchor) // self.period + 1)):
            tick = self.at(number)
            if tick >= END:
                return
            yield tick


def fire_time(spec: ScheduleSpec, *, schedule_id: int, tick: datetime) -> datetime:
    """Says when ``tick`` fires: at it or later, and before the next tick."""
    if spec.jitter_s <= 0:
        return tick
    return delayed(spec, schedule_id=schedule_id, tick=tick, following=next_tick(spec, after=tick))


def delayed(spec: ScheduleSpec, *, schedule_id: int, tick: datetime, following: datetime | None) -> datetime:
    """Says the same as `fire_time`, for who knows the tick that follows."""
    if spec.jitter_s <= 0:
        return tick
    span = timedelta(seconds=spec.jitter_s)
    if following is not None:
        span = min(span, following - tick)
    text = f"{schedule_id} {tick.astimezone(UTC).isoformat()}"
    hashed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    # In whole numbers: a fraction as a float could be rounded up to one, and reach the next tick.
    return tick + (hashed * (span // MICROSECOND) >> 64) * MICROSECOND


def ticks_between(spec: ScheduleSpec, begin: datetime, end: datetime) -> list[datetime]:
    """Lists the ticks from one time on and before the other. Raises `InvalidInput` when they are too many."""
    later = ticks_after(spec, after=begin - timedelta(microseconds=1))
    found = list(islice(takewhile(lambda tick: tick < end, later), BACKFILL_MAX + 1))
    if len(found) > BACKFILL_MAX:
        raise InvalidInput(
            f"schedule {spec.name!r} has more than {BACKFILL_MAX} ticks in between; backfill the time in parts"
        )
    return found


def past_ticks(
    spec: ScheduleSpec, begin: datetime, end: datetime, *, now: datetime, option: str = ""
) -> list[datetime]:
    """The ticks from one time on and before the other: there are some. Raises `InvalidInput`; ``option`` is how
    the names of both begin where people write them."""
    if begin >= end:
        raise InvalidInput(f"{option}to: must be later than {option}from")
    if end > now:
        raise InvalidInput(f"{option}to: lies in the future, whose ticks are fired when they fall due")
    ticks = ticks_between(spec, begin, end)
    if not ticks:
        raise InvalidInput(f"schedule {spec.name!r} has no ticks from {instant(begin)} to {instant(end)}")
    return ticks
