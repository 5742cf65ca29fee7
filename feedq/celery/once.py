"""Entries of ``beat_schedule.py`` that run once per tick on the whole cluster, however many beats there are.

An entry asks for it with ``options={"feedq_once": True}``. When a beat finds it due, no message is sent: its
tick is enqueued as a run, under a key that any beat would give it, and the second one to do so changes nothing.
From then on it is a run as any other: claimed under a fence, shown with all schedules as ``beat:<entry>``, at
most once.

The key is the tick in the *database's* time, so that beats whose clocks differ agree on it:

* an interval: the last whole multiple of it since the epoch of Unix;
* a crontab: the last minute that matches, in UTC as all of beat.

A beat that is a moment early means the tick that is about to come, and not the one before: see `EARLY_MAX_S`.
And one that finds an entry due twice within one tick, because its clock or its loop runs a little fast, means
the next one: otherwise it would now and then lose a tick that nobody else brings.

It works in any beat, because it is the app that does it: every beat sends through `OnceCelery.send_task`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

from celery import Celery
from celery.schedules import crontab, maybe_schedule, schedule

from feedq.celery.tasks import store
from feedq.core.moments import instant
from feedq.core.schedule.spec import BEAT_PREFIX, ScheduleSpec, checked_job, job_of
from feedq.errors import InvalidInput, Unavailable
from feedq.telemetry.logs import LogEvent, log

OPTION = "feedq_once"
EARLY_MAX_S = 1.0
"""A beat whose clock is ahead of the database's by no more than this means the tick to come; of short intervals,
`EARLY_SHARE` of them."""
EARLY_SHARE = 0.1
AWAY_MAX_S = 10.0
"""How long a beat waits for a database that is away before it gives the tick up, as it does with its broker."""
AWAY_RETRY_S = 0.5
DAYS_BACK_MAX = 8 * 366
"""29 February comes at least so often."""

logger = log(__name__)


def prepare(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a beat schedule, each that wants to be run once knowing its own name.

    Raises `InvalidInput` for one that cannot be.
    """
    return {name: _prepared(name, entry) if _wants_once(entry) else entry for name, entry in entries.items()}


def _wants_once(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool((entry.get("options") or {}).get(OPTION))


def _prepared(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    timing = maybe_schedule(entry.get("schedule"))
    if type(timing) not in (schedule, crontab):
        raise InvalidInput(
            f"beat entry {name!r}: {OPTION} takes an interval or a crontab; the ticks of {type(timing).__name__} "
            "cannot be computed from the time alone"
        )
    if isinstance(timing, schedule) and timing.run_every <= timedelta():
        raise InvalidInput(f"beat entry {name!r}: {OPTION} takes an interval of more than 0 seconds")
    others = sorted(set(entry["options"]) - {OPTION})
    if others:
        raise InvalidInput(
            f"beat entry {name!r}: with {OPTION} no message is sent, so {', '.join(others)} would be ignored; "
            "remove it, or declare a schedule with `feedq apply`, which has start deadlines and queues"
        )
    checked_job(_job(name, entry["task"], entry.get("args"), entry.get("kwargs")))
    return {**entry, "options": {OPTION: name}}


def _job(entry: str, task: str, args: Any, kwargs: Any) -> ScheduleSpec:
    return job_of(BEAT_PREFIX + entry, task, args or (), kwargs)


class OnceCelery(Celery):
    """Celery, but that a beat entry with ``feedq_once`` becomes a run instead of a message."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *others: Any, **options: Any) -> Any:
        """Send a task as Celery does, but enqueue a tick for an entry that asked to be sent once. Raises
        `Unavailable` when the tick cannot be enqueued."""
        entry = options.pop(OPTION, None)
        if not entry:
            return super().send_task(name, args, kwargs, *others, **options)
        declared = self.conf.beat_schedule.get(entry)
        if declared is None or declared["options"].get(OPTION) != entry:
            raise InvalidInput(f"{OPTION}: {entry!r} is not an entry of beat_schedule.py; only those take it")
        _enqueue(entry, maybe_schedule(declared["schedule"]), _job(entry, name, args, kwargs))
        return None


_sent: dict[str, datetime] = {}
"""The tick that this process enqueued last, by entry."""


def _enqueue(entry: str, timing: schedule | crontab, job: ScheduleSpec) -> None:
    give_up_at = monotonic() + AWAY_MAX_S
    while True:
        try:
            tick = tick_of(timing, now=store().now(), sent=_sent.get(entry))
            store().jobs.schedules.once(job, instant(tick), tick)
        except Unavailable as error:
            logger.warning(LogEvent.BEAT_ONCE_FAILED, entry=entry, error=str(error))
            if monotonic() >= give_up_at:
                raise
            sleep(AWAY_RETRY_S)
        else:
            _sent[entry] = tick
            return


def tick_of(timing: schedule | crontab, *, now: datetime, sent: datetime | None = None) -> datetime:
    """The tick that a beat means by finding an entry due now, given the one that it sent last. Pure."""
    if isinstance(timing, crontab):
        # Two matches are at least a minute apart.
        last = next(_matches(timing, now + timedelta(seconds=EARLY_MAX_S)))
        return last if last != sent else next(_matches(timing, now + timedelta(minutes=1)))
    every: timedelta = timing.run_every
    epoch = datetime.fromtimestamp(0, UTC)
    early = min(timedelta(seconds=EARLY_MAX_S), EARLY_SHARE * every)
    last = epoch + (now + early - epoch) // every * every
    return last + every if last == sent and last + every - now <= every / 2 else last


def _matches(timing: crontab, moment: datetime) -> Iterator[datetime]:
    """The minutes that match, from this moment back."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for today in (day - timedelta(days=n) for n in range(DAYS_BACK_MAX)):
        if (
            today.month in timing.month_of_year
            and today.day in timing.day_of_month
            and today.isoweekday() % 7 in timing.day_of_week
        ):
            for hour in sorted(timing.hour, reverse=True):
                for minute in sorted(timing.minute, reverse=True):
                    found = today.replace(hour=hour, minute=minute)
                    if found <= moment:
                        yield found
    raise InvalidInput(f"{timing} matches no minute at all")
