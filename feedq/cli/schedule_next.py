"""`feedq schedule next`: the ticks to come, on the clock of the zone, and where that clock is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import click

from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json, write_table
from feedq.cli.schedule_declare import read_spec, timing_options, with_options
from feedq.errors import InvalidInput
from feedq.manifest.declared_values import moment, parse_zone
from feedq.manifest.jobs import DEFAULT_ZONE, TIMING_KEYS
from feedq.schedule.exclusions import with_calendars
from feedq.schedule.jitter import delayed
from feedq.schedule.model import Cron, ScheduleSpec, ScheduleState, Timing
from feedq.schedule.timing import ticks_after
from feedq.schedule.words import timing_words
from feedq.wording import printable

TRIED = "example"
"""Name of a schedule that there is not; ``H`` in its expression is hashed from it."""


@dataclass(frozen=True, slots=True)
class TickPreview:
    """One tick to come."""

    tick: datetime
    local: datetime
    fires: datetime
    note: str


@click.command("next", short_help="The ticks to come, in UTC and on the clock of the zone.")
@click.argument("name", required=False)
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many.")
@click.option("--from", "begin", metavar="TIME", help="Those from this time on. [default: now]")
@timing_options
@json_option
@pass_invocation
def next_(
    invocation: Invocation, /, *, name: str | None, count: int, begin: str | None, **timing: Any
) -> None:
    """The next ticks of a schedule, or of an expression to try: in UTC and on the clock of its zone.

    Where clocks are changed between two of them, a note says so. Nothing is fired.

    \b
    Example:
      feedq schedule next acme/cleanup --count 5
      feedq schedule next --cron "30 2 * * *" --zone Europe/Berlin --from 2027-03-26
    """
    given = {key: value for key, value in timing.items() if value is not None}
    schedule_id, state = 0, ScheduleState.ACTIVE
    if given.keys() & TIMING_KEYS.keys():
        spec = read_spec(with_options({"name": name or TRIED, "task": TRIED}, given))
        if spec.exclude.calendars:
            spec = with_calendars(spec, invocation.jobs.calendars.all())
    elif name is None:
        raise click.UsageError("say which: the NAME of a schedule, or --cron, --every or --at to try")
    elif others := given.keys() - {"zone"}:
        option = min(others).replace("_", "-")
        raise click.UsageError(f"--{option} goes with --cron, --every or --at, and not with a schedule")
    else:
        schedule = invocation.jobs.schedules.get(name)
        spec, schedule_id, state = schedule.spec, schedule.id, schedule.state
    zone = checked_zone(given.get("zone") or zone_of(spec.timing))
    after = invocation.clock.now() if begin is None else moment(begin, zone, option="--from")
    if begin is not None:
        # A tick at that very time is one of them.
        after -= timedelta(microseconds=1)
    found = list(islice(previews(spec, schedule_id=schedule_id, after=after, zone=zone), count))
    if invocation.json:
        write_json(_document(spec, zone, state, found))
        return
    click.echo(printable(f"{spec.name}: {timing_words(spec.timing)}") + _aside(state))
    if found:
        _write(found, zone, jittered=spec.jitter_s > 0)
    else:
        click.echo("no tick is left")


def zone_of(timing: Timing) -> str:
    """The zone on whose clock people read a schedule's times."""
    return timing.zone if isinstance(timing, Cron) else DEFAULT_ZONE


def checked_zone(zone: str) -> str:
    """Raises `InvalidInput` when there is no such zone."""
    try:
        parse_zone(zone)
    except ValueError as error:
        raise InvalidInput(f"--zone: {error}") from None
    return zone


def previews(spec: ScheduleSpec, *, schedule_id: int, after: datetime, zone: str) -> Iterator[TickPreview]:
    clock = ZoneInfo(zone)
    before = after.astimezone(clock)
    ticks = ticks_after(spec, after=after)
    tick = next(ticks, None)
    while tick is not None:
        following = next(ticks, None)
        local = tick.astimezone(clock)
        fires = delayed(spec, schedule_id=schedule_id, tick=tick, following=following)
        yield TickPreview(tick, local, fires, _change(before, local))
        before, tick = local, following


def _change(before: datetime, after: datetime) -> str:
    """What happened to the clock in between, such as ``clocks back 1:00, +02:00 to +01:00``."""
    old, new = before.utcoffset(), after.utcoffset()
    assert old is not None
    assert new is not None
    if old == new:
        return ""
    by = abs(new - old)
    hours, minutes = divmod(int(by.total_seconds()) // 60, 60)
    direction = "forward" if new > old else "back"
    return f"clocks {direction} {hours}:{minutes:02d}, {_offset(before)} to {_offset(after)}"


def _aside(state: ScheduleState) -> str:
    return "" if state is ScheduleState.ACTIVE else " (paused: none of these is fired until it is resumed)"


def _write(found: list[TickPreview], zone: str, *, jittered: bool) -> None:
    rows = [
        (
            _utc(one.tick),
            f"{one.local:%a %Y-%m-%d %H:%M:%S} {_offset(one.local)}",
            *([_fires(one)] if jittered else []),
            one.note,
        )
        for one in found
    ]
    titles = ("UTC", zone.upper(), *(["FIRES"] if jittered else []), "NOTE")
    write_table(titles, rows)


def _fires(one: TickPreview) -> str:
    """With the date only where that is another one."""
    date, _, time = _utc(one.fires).partition(" ")
    return time if _utc(one.tick).startswith(date) else f"{date} {time}"


def _utc(at: datetime) -> str:
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}Z" if at.microsecond else f"{text}Z"


def _offset(at: datetime) -> str:
    text = at.strftime("%z")
    return f"{text[:3]}:{text[3:5]}"


def _document(
    spec: ScheduleSpec, zone: str, state: ScheduleState, found: list[TickPreview]
) -> dict[str, object]:
    return {
        "name": spec.name,
        "when": timing_words(spec.timing),
        "zone": zone,
        "state": state.value,
        "ticks": [
            {
                "tick_at": one.tick,
                "local": one.local.isoformat(),
                "weekday": f"{one.local:%A}",
                "fire_at": one.fires,
                "note": one.note or None,
            }
            for one in found
        ],
    }
