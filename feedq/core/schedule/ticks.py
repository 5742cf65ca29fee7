"""The ticks of a schedule: when they fall due, and which runs they become.

**When.** A cron expression, an interval or single moments have ticks, but for days that are left out. Jitter lets
each tick fire a little later than it falls due, always by the same for the same tick: the delay is hashed from the
schedule's id and the tick, so every node comes to the same moment, and an edit of anything but timing or jitter
moves nothing. It is shorter than the time to the next tick: ticks stay in order.

**Which runs.** A scan takes the ticks from the watermark on, in order, and decides each for good::

    watermark                     now - misfire_after                   now
        │  missed …  │  made up for …  │  on time, one by one  │  not due

- **Misfires** fired too late. The newest of them, as many as the catch-up policy says and no older than its
  window, are made up for; all older ones become one row that counts them.
- **On time** are the others that are due. The overlap policy decides each, given the runs that have not ended and
  those that this scan made. Ticks left out in a row for the same reason share one row.

A scan is bounded. Intervals count what they missed by arithmetic. Cron has to go through it tick by tick, so
a scan ends after ``limit`` missed ones, with the watermark behind them and ``more`` to do. The counts are exact
all the same: a tick is missed for certain once as many further misfires follow as are made up for, so the scan
reads ahead by that many ticks; and none is made up for before all missed ones are counted, so that those made up
for are chosen in one scan, as of one moment.

Pure: ``now`` is the database's clock, and the caller performs the decision in the transaction that locked the
schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from hashlib import blake2b
from heapq import merge
from itertools import count, groupby, islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from feedq.core.moments import instant
from feedq.core.schedule.cron import YEAR_MAX, parse
from feedq.core.schedule.model import BACKFILL_MAX, NewRun, RunKind, RunState, Schedule, ScheduleState
from feedq.core.schedule.spec import CatchUp, Overlap, ResumePolicy, ScheduleSpec, first_free
from feedq.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(YEAR_MAX, 1, 1, tzinfo=UTC)
"""Intervals have no ticks from here on."""
MICROSECOND = timedelta(microseconds=1)

TICKS_PER_SCAN = 5_000
"""Ticks of one schedule that a scan decides, besides those that are made up for: what one transaction may hold."""

_DAY = timedelta(days=1)


def next_tick(spec: ScheduleSpec, *, after: datetime) -> datetime | None:
    """The first tick later than ``after``; None when there is none any more."""
    return next(ticks_after(spec, after=after), None)


def ticks_after(spec: ScheduleSpec, *, after: datetime) -> Iterator[datetime]:
    """Yields all ticks later than ``after``, in UTC, strictly rising.

    Raises ValueError or an error of `zoneinfo` for a timing that `feedq.core.schedule.spec` would refuse.
    """
    end = spec.end
    if spec.start is not None:
        after = max(after, spec.start - MICROSECOND)
    found = _without_excluded(spec, after) if spec.exclude else _ticks_of(spec, after)
    return found if end is None else takewhile(lambda tick: tick < end, found)


def _ticks_of(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    """Yields the ticks of its timing alone."""
    if spec.cron:
        rules = [parse(expression, name=spec.name) for expression in spec.cron]
        found = [rule.ticks_after(after, zone=spec.zone) for rule in rules]
        return found[0] if len(found) == 1 else (tick for tick, _ in groupby(merge(*found)))
    if (grid := Grid.of(spec)) is not None:
        return grid.ticks_after(after)
    return iter(sorted({at.astimezone(UTC) for at in spec.at if at > after}))


def _without_excluded(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    clock = ZoneInfo(spec.zone)
    ticks = _ticks_of(spec, after)
    while (tick := next(ticks, None)) is not None:
        day = tick.astimezone(clock).date()
        free = first_free(spec.exclude, day)
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
    def of(spec: ScheduleSpec) -> Grid | None:
        if spec.every is None:
            return None
        anchor = EPOCH if spec.anchor is None else spec.anchor.astimezone(UTC)
        # Whole microseconds, as the database has them: multiples must not drift.
        return Grid(anchor, timedelta(microseconds=round(spec.every * 1_000_000)))

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
    if spec.jitter <= 0:
        return tick
    return delayed(spec, schedule_id=schedule_id, tick=tick, following=next_tick(spec, after=tick))


def delayed(spec: ScheduleSpec, *, schedule_id: int, tick: datetime, following: datetime | None) -> datetime:
    """Says the same as `fire_time`, for who knows the tick that follows."""
    if spec.jitter <= 0:
        return tick
    span = timedelta(seconds=spec.jitter)
    if following is not None:
        span = min(span, following - tick)
    text = f"{schedule_id} {tick.astimezone(UTC).isoformat()}"
    hashed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    # In whole numbers: a fraction as a float could be rounded up to one, and reach the next tick.
    return tick + (hashed * (span // MICROSECOND) >> 64) * MICROSECOND


def past_ticks(spec: ScheduleSpec, begin: datetime, end: datetime, *, now: datetime) -> list[datetime]:
    """The ticks from one time on and before the other: there are some. Raises `InvalidInput`."""
    if begin >= end:
        raise InvalidInput("the end must be later than the beginning")
    if end > now:
        raise InvalidInput("the end lies in the future; ticks there are fired when they fall due")
    later = ticks_after(spec, after=begin - MICROSECOND)
    ticks = list(islice(takewhile(lambda tick: tick < end, later), BACKFILL_MAX + 1))
    if len(ticks) > BACKFILL_MAX:
        raise InvalidInput(
            f"schedule {spec.name!r} has more than {BACKFILL_MAX} ticks in between; backfill them in parts"
        )
    if not ticks:
        raise InvalidInput(f"schedule {spec.name!r} has no ticks from {instant(begin)} to {instant(end)}")
    return ticks


# -- what a scan decides -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Runs of a schedule that have not ended."""

    waiting: int = 0
    running: int = 0
    of_backfills: int = 0
    """Those of backfills, which are not among the others: a tick may have to wait for one of them, and is never
    skipped for it."""


@dataclass(frozen=True, slots=True)
class Firing:
    """The decision of one scan."""

    runs: Sequence[NewRun]
    """The runs in the order of their ticks."""
    cancel_others: str | None
    """Why the runs that had not ended before are to be cancelled; None when they are not."""
    next_tick_at: datetime | None
    """The new watermark; never before the old one."""
    next_fire_at: datetime | None
    more: bool
    """Whether further ticks are due."""


def fire(schedule: Schedule, *, now: datetime, unfinished: Unfinished, limit: int = TICKS_PER_SCAN) -> Firing:
    """Decide the ticks that are due: at most ``limit`` of them, besides those that are made up for."""
    assert limit > 0, limit
    if schedule.next_tick_at is None:
        return Firing((), None, None, None, False)
    line = _Line(schedule, schedule.next_tick_at)
    judge = _Judge(schedule, unfinished, now)
    missed, made_up = _misfires(line, now, limit)
    if missed is not None:
        judge.miss(missed)
    if missed is not None and missed.is_full:
        # The next scan begins with those that this one read ahead.
        line.go_to(made_up[0] if made_up else line.tick)
    else:
        for tick in made_up:
            judge.make_up(tick)
        for _ in range(limit):
            if not line.fires_before(now + MICROSECOND):
                break
            judge.take(*line.pop())
    more = line.fires_before(now + MICROSECOND)
    return Firing(judge.runs, judge.cancel_others, line.tick, line.fires_at, more)


def begin(schedule: Schedule, *, now: datetime) -> Schedule:
    """A schedule that is new, or has another timing, with its watermark at the first tick after ``now``; a moment
    that has passed has none."""
    return _at(schedule, next_tick(schedule.spec, after=now))


def resumed(schedule: Schedule, *, now: datetime) -> Schedule:
    """A schedule after its pause. Its watermark never goes back. To skip the ticks of the pause is to go on
    with the first that fires after ``now``: jitter may have put off one that fell due before."""
    active = replace(schedule, state=ScheduleState.ACTIVE, paused_until=None, pause_reason=None)
    tick = schedule.next_tick_at
    if tick is not None and tick <= now and schedule.spec.resume is ResumePolicy.SKIP:
        tick, fires_at = _first_ahead(schedule, tick, now)
        return replace(active, next_tick_at=tick, next_fire_at=fires_at)
    return _at(active, tick)


def _at(schedule: Schedule, tick: datetime | None) -> Schedule:
    fires_at = None if tick is None else fire_time(schedule.spec, schedule_id=schedule.id, tick=tick)
    return replace(schedule, next_tick_at=tick, next_fire_at=fires_at)


def refusal(spec: ScheduleSpec, unfinished: Unfinished) -> str | None:
    """Return why the overlap policy lets no further run wait; None when it does."""
    match spec.overlap:
        case Overlap.SKIP if unfinished.waiting or unfinished.running:
            return "an earlier run has not ended"
        case Overlap.BUFFER_ONE if unfinished.waiting:
            return "an earlier run waits"
        case Overlap.BUFFER_ALL if unfinished.waiting >= spec.buffer_max:
            return f"{unfinished.waiting} earlier runs wait; buffer_max is {spec.buffer_max}"
    return None


def _first_ahead(
    schedule: Schedule, first: datetime, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """The first tick, of those from ``first`` on, that fires after ``now``, and when it does."""
    spec = schedule.spec
    # A tick fires before the next one falls due, and no later than its jitter: of those until now only the last
    # may be ahead. It is looked for from now backwards, since `first` may be years ago.
    earliest = max(first - MICROSECOND, now - timedelta(seconds=spec.jitter))
    back = timedelta(seconds=1)
    after = max(earliest, now - back)
    while after > earliest and ((tick := next_tick(spec, after=after)) is None or tick > now):
        back *= 2
        after = max(earliest, now - back)
    for tick in ticks_after(spec, after=after):
        fires_at = fire_time(spec, schedule_id=schedule.id, tick=tick)
        if fires_at > now:
            return tick, fires_at
    return None, None


# -- misfires ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Missed:
    """Misfires in a row that are not made up for."""

    ticks: int
    first: datetime
    last: datetime
    is_full: bool = False
    """Whether there may be more of them than one scan counts."""


def _misfires(line: _Line, now: datetime, limit: int) -> tuple[_Missed | None, Sequence[datetime]]:
    """Tells misfires that are missed from those to be made up for; the line stands behind both."""
    spec = line.spec
    late = now - timedelta(seconds=spec.misfire_after)
    oldest = now - timedelta(seconds=spec.catch_up.window)
    keep = _made_up_max(spec)
    if (grid := Grid.of(spec)) is not None and not spec.exclude:
        return _misfires_of_grid(line, grid, late, oldest, keep)
    missed: _Missed | None = None
    kept: deque[datetime] = deque()
    while line.fires_before(late):
        kept.append(line.pop()[0])
        if len(kept) <= keep and kept[0] >= oldest:
            continue
        tick = kept.popleft()
        missed = missed or _Missed(0, first=tick, last=tick)
        missed.ticks += 1
        missed.last = tick
        if missed.ticks == limit:
            missed.is_full = True
            break
    return missed, kept


def _misfires_of_grid(
    line: _Line, grid: Grid, late: datetime, oldest: datetime, keep: int
) -> tuple[_Missed | None, Sequence[datetime]]:
    """Does the same for an interval by arithmetic: however many there are, one look counts them all."""
    if not line.fires_before(late):
        return None, ()
    assert line.tick is not None
    first = grid.count_before(line.tick)
    end = grid.count_before(late if line.spec.end is None else min(late, line.spec.end))
    # All but the newest of them fire before the tick that comes after them, and so before `late`.
    if fire_time(line.spec, schedule_id=line.schedule_id, tick=grid.at(end - 1)) >= late:
        end -= 1
    kept_from = max(first, end - keep, min(end, grid.count_before(oldest)))
    line.go_to(grid.at(end))
    missed = None
    if kept_from > first:
        missed = _Missed(kept_from - first, first=grid.at(first), last=grid.at(kept_from - 1))
    return missed, [grid.at(number) for number in range(kept_from, end)]


def _made_up_max(spec: ScheduleSpec) -> int:
    match spec.catch_up.policy:
        case CatchUp.SKIP:
            return 0
        case CatchUp.LATEST:
            return 1
        case CatchUp.ALL:
            # Of several, each would cancel the one before it.
            return 1 if spec.overlap is Overlap.CANCEL_OTHER else spec.catch_up.max


class _Line:
    """The ticks of a schedule, in order, each with the moment at which it fires."""

    def __init__(self, schedule: Schedule, first: datetime) -> None:
        self.spec = schedule.spec
        self.schedule_id = schedule.id
        self.tick: datetime | None = None
        """The next one."""
        self.fires_at: datetime | None = None
        self._following: datetime | None = None
        self._ticks: Iterator[datetime] = iter(())
        self.go_to(first)

    def go_to(self, tick: datetime | None) -> None:
        """Stand before this tick; or before the first after it, if that is what the rules of its zone say now."""
        if tick is not None:
            self._ticks = ticks_after(self.spec, after=tick - MICROSECOND)
            self._following = next(self._ticks, None)
            self._advance()

    def fires_before(self, moment: datetime) -> bool:
        return self.fires_at is not None and self.fires_at < moment

    def pop(self) -> tuple[datetime, datetime]:
        """The next tick and when it fires."""
        assert self.tick is not None
        assert self.fires_at is not None
        found = self.tick, self.fires_at
        self._advance()
        return found

    def _advance(self) -> None:
        tick = self.tick = self._following
        self.fires_at = None
        if tick is not None:
            self._following = next(self._ticks, None)
            self.fires_at = delayed(
                self.spec, schedule_id=self.schedule_id, tick=tick, following=self._following
            )


# -- overlap -----------------------------------------------------------------------------------------


class _Judge:
    """Makes rows of ticks, one after the other, minding what has not ended."""

    def __init__(self, schedule: Schedule, unfinished: Unfinished, now: datetime) -> None:
        self._id, self._spec = schedule.id, schedule.spec
        self._now = now
        self._waiting = unfinished.waiting
        self._running = unfinished.running
        self._of_backfills = unfinished.of_backfills
        self.runs: list[NewRun] = []
        self.cancel_others: str | None = None

    def miss(self, missed: _Missed) -> None:
        last = missed.last if missed.ticks > 1 else None
        reason = f"not fired in time; catch_up is {self._spec.catch_up.policy}"
        if self._spec.catch_up.policy is not CatchUp.SKIP:
            reason += f", within {self._spec.catch_up.window:g} s and the newest {_made_up_max(self._spec)}"
        counted = {"ticks": missed.ticks, "last_tick_at": last, "reason": reason}
        self._leave_out(self._run(missed.first, missed.first, RunState.MISSED_CATCHUP, **counted))

    def make_up(self, tick: datetime) -> None:
        """Late as it is, its start deadline counts from now."""
        self._admit(tick, due_at=self._now)

    def take(self, tick: datetime, fires_at: datetime) -> None:
        """A tick on time."""
        start_by = self._start_by(fires_at)
        objection = refusal(self._spec, Unfinished(self._waiting, self._running))
        if start_by is not None and start_by < self._now:
            # Not left to the claim: until then it would keep later ticks from being run.
            reason = f"not fired within {self._spec.start_deadline:g} s"
            self._leave_out(
                self._run(tick, fires_at, RunState.MISSED_DEADLINE, reason=reason, start_by=start_by)
            )
        elif objection is not None:
            self._leave_out(self._run(tick, fires_at, RunState.SKIPPED_OVERLAP, reason=objection))
        else:
            self._admit(tick, due_at=fires_at)

    def _run(self, tick: datetime, due_at: datetime, state: RunState, **more: Any) -> NewRun:
        return NewRun(self._id, RunKind.TICK, instant(tick), tick, due_at, state, **more)

    def _leave_out(self, run: NewRun) -> None:
        """Add a tick that is left out; of many in a row, for the same reason, one row is enough."""
        last = self.runs[-1] if self.runs else None
        if last is None:
            run = replace(run, folds=True)
        elif (last.state, last.reason) == (run.state, run.reason):
            run = replace(last, ticks=last.ticks + 1, last_tick_at=run.tick_at)
            self.runs.pop()
        self.runs.append(run)

    def _admit(self, tick: datetime, *, due_at: datetime) -> None:
        if self._spec.overlap is Overlap.CANCEL_OTHER:
            self._cancel_others(tick)
        has_turn = self._spec.overlap in (Overlap.ALLOW_ALL, Overlap.CANCEL_OTHER) or not (
            self._waiting or self._running or self._of_backfills
        )
        state = RunState.WAITING if has_turn else RunState.BUFFERED
        self._waiting += 1
        self.runs.append(self._run(tick, due_at, state, start_by=self._start_by(due_at)))

    def _start_by(self, due_at: datetime) -> datetime | None:
        deadline_s = self._spec.start_deadline
        return None if deadline_s is None else due_at + timedelta(seconds=deadline_s)

    def _cancel_others(self, tick: datetime) -> None:
        reason = f"overlap is {Overlap.CANCEL_OTHER}, and the tick of {instant(tick)} fell due"
        self.cancel_others = reason
        # At most one waits, the last admitted; what came after it had missed its deadline.
        for index in range(len(self.runs) - 1, -1, -1):
            if self.runs[index].state is RunState.WAITING:
                self.runs[index] = replace(self.runs[index], state=RunState.CANCELLED, reason=reason)
                break
