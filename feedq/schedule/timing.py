"""When a schedule falls due: its ticks, without jitter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

from feedq.schedule.cron import YEAR_MAX, parse
from feedq.schedule.model import Beat, Cron, Every, Once, ScheduleSpec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(YEAR_MAX, 1, 1, tzinfo=UTC)
"""Intervals have no ticks from here on."""


def next_tick(spec: ScheduleSpec, *, after: datetime) -> datetime | None:
    """The first tick later than ``after``; None when there is none any more."""
    return next(ticks_after(spec, after=after), None)


def ticks_after(spec: ScheduleSpec, *, after: datetime) -> Iterator[datetime]:
    """All ticks later than ``after``, in UTC, strictly rising.

    Raises ValueError or an error of `zoneinfo` for a timing that `feedq.schedule.check` would refuse.
    """
    match spec.timing:
        case Cron(expression, zone, gap, fold):
            return parse(expression, name=spec.name).ticks_after(after, zone=zone, gap=gap, fold=fold)
        case Every() as every:
            return Grid.of(every).ticks_after(after)
        case Once(at):
            return iter((at.astimezone(UTC),) if at > after else ())
        case Beat():
            return iter(())


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
        """How many ticks are earlier than ``moment``; so this is also the number of the first that is not."""
        return max(0, -((self.anchor - moment) // self.period))

    def ticks_after(self, after: datetime) -> Iterator[datetime]:
        for number in count(max(0, (after - self.anchor) // self.period + 1)):
            tick = self.at(number)
            if tick >= END:
                return
            yield tick
