"""`feedq schedule next`, `trigger` and `backfill`: the ticks to come, and runs that somebody asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from feedq.cli.declare import declared_schedule, with_assignments
from feedq.cli.invocation import Invocation, changes, pass_invocation, yes_option
from feedq.cli.options import assigned, duration, moment, split_words
from feedq.cli.output import TableColumn, answer, write_table

if TYPE_CHECKING:
    from feedq.core.schedule.model import ScheduleState
    from feedq.core.schedule.spec import ScheduleSpec
    from feedq.verbs.schedules import RunDocument

TRIED = "example"
"""Name of a schedule that there is not; ``H`` in its expression is hashed from it."""


@dataclass(frozen=True, slots=True)
class TickPreview:
    """Describes one tick to come."""

    tick: datetime
    local: datetime
    fires: datetime
    note: str


@click.command("next", short_help="The ticks to come, in UTC and on the clock of the zone.")
@click.argument("names", nargs=-1, metavar="[NAME] [KEY=VALUE]...")
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many.")
@click.option("--from", "begin", metavar="TIME", help="Those from this time on. [default: now]")
@pass_invocation
def next_(invocation: Invocation, *, names: Sequence[str], count: int, begin: str | None) -> None:
    """The next ticks of a schedule: in UTC and on the clock of its zone.

    With KEY=VALUE, as for `feedq schedule set`, those that it would have; without a name, those of a timing to
    try. Where clocks are changed between two of them, a note says so. Nothing is fired.

    \b
    Example:
      feedq schedule next acme/cleanup --count 5
      feedq schedule next cron="30 2 * * *" zone=Europe/Berlin --from 2027-03-26
    """
    from feedq.core.schedule.model import ScheduleState
    from feedq.verbs.wording import printable, timing_words

    spec, schedule_id, state = _chosen(invocation, *split_words(names))
    zone = timing_zone(spec)
    after = invocation.clock.now() if begin is None else moment(begin, zone, option="--from")
    if begin is not None:
        # A tick at that very time is one of them.
        after -= timedelta(microseconds=1)
    found = list(islice(previews(spec, schedule_id=schedule_id, after=after, zone=zone), count))

    def write() -> None:
        aside = (
            "" if state is ScheduleState.ACTIVE else " (paused: none of these is fired until it is resumed)"
        )
        click.echo(printable(f"{spec.name}: {timing_words(spec)}") + aside)
        if found:
            write_table(found, _columns(zone, jittered=spec.jitter > 0))
        else:
            click.echo("no tick is left")

    answer(invocation, _document(spec, zone, state, found), write)


def _chosen(
    invocation: Invocation, names: Sequence[str], assignments: Sequence[str]
) -> tuple[ScheduleSpec, int, ScheduleState]:
    """The schedule of this name as it is or would be, with its id and state; or a timing that is to be tried."""
    from feedq.core.schedule.model import ScheduleState
    from feedq.core.schedule.spec import ScheduleSpec
    from feedq.verbs.schedules import show_schedule

    if len(names) > 1 or not (names or assignments):
        raise click.UsageError("say which: the NAME of one schedule, or a timing to try, such as cron=@daily")
    if not names:
        keys = assigned({"name": TRIED, "task": TRIED}, assignments, ScheduleSpec)
        spec, schedule_id, state = ScheduleSpec.valid(keys), 0, ScheduleState.ACTIVE
    else:
        row = invocation.do(show_schedule, name=names[0]).schedule
        entry, _ = declared_schedule(invocation, names[0])
        spec, schedule_id, state = with_assignments(entry, assignments), row.id, row.state
    return spec, schedule_id, state


def zone_of(invocation: Invocation, name: str) -> str:
    """The zone on whose clock people read the times of a schedule; UTC for one without a readable declaration."""
    from feedq.core.values import DEFAULT_ZONE
    from feedq.verbs.declarations import list_declared_schedules

    found = [one.declaration for one in invocation.do(list_declared_schedules, names=(name,)).items]
    return DEFAULT_ZONE if not found or found[0] is None else timing_zone(found[0])


def timing_zone(spec: ScheduleSpec) -> str:
    from feedq.core.values import DEFAULT_ZONE

    return spec.zone if spec.cron else DEFAULT_ZONE


def previews(spec: ScheduleSpec, *, schedule_id: int, after: datetime, zone: str) -> Iterator[TickPreview]:
    from feedq.core.schedule.ticks import delayed, ticks_after

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
    """Says what happened to the clock in between, such as ``clocks back 1:00, +02:00 to +01:00``."""
    old, new = before.utcoffset(), after.utcoffset()
    assert old is not None
    assert new is not None
    if old == new:
        return ""
    by = abs(new - old)
    hours, minutes = divmod(int(by.total_seconds()) // 60, 60)
    direction = "forward" if new > old else "back"
    return f"clocks {direction} {hours}:{minutes:02d}, {_offset(before)} to {_offset(after)}"


def _columns(zone: str, *, jittered: bool) -> list[TableColumn[TickPreview]]:
    return [
        TableColumn("UTC", lambda one: _utc(one.tick)),
        TableColumn(zone.upper(), lambda one: f"{one.local:%a %Y-%m-%d %H:%M:%S} {_offset(one.local)}"),
        *([TableColumn("FIRES", _fires)] if jittered else []),
        TableColumn("NOTE", lambda one: one.note),
    ]


def _fires(one: TickPreview) -> str:
    """Says when a tick fires, with the date only where that is another one."""
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
    from feedq.verbs.wording import timing_words

    return {
        "name": spec.name,
        "when": timing_words(spec),
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


@click.command(short_help="Run a schedule's job now, and wait for it if need be.")
@click.argument("name")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--key", help="Triggered again with the same key, no other run is made: it shows that of then.")
@click.option(
    "--wait", is_flag=True, help="Return only once it has ended; exit status 1 unless it succeeded."
)
@click.option("--timeout", metavar="DURATION", help="With --wait: give up after this long. [default: never]")
@changes
def trigger(
    invocation: Invocation,
    *,
    name: str,
    assignments: Sequence[str],
    key: str | None,
    wait: bool,
    timeout: str | None,
) -> None:
    """Run a schedule's job now, whatever its timing, even while it is paused; under its overlap policy.

    args=… and kwargs.KEY=… stand in for the arguments that are declared, for this run.

    \b
    Example:
      feedq schedule trigger acme/cleanup kwargs.days=7 --key release-4.2 --wait
    """
    from feedq.cli.tables import warn_unserved
    from feedq.core.schedule.model import RunState
    from feedq.verbs.schedules import show_schedule, trigger_schedule
    from feedq.verbs.wording import ERROR_WIDTH, cut, why_run

    timeout_s = inf if timeout is None else duration(timeout, option="--timeout")
    arguments = _arguments(invocation, name, assignments) if assignments else {}
    run = invocation.do(trigger_schedule, name=name, key=key, **arguments)
    if not run.state.is_final and (unserved := invocation.do(show_schedule, name=name).unserved):
        warn_unserved({name: unserved})
    if wait and not run.state.is_final:
        run = _ended(invocation, run, timeout_s=timeout_s)
    because = cut(why_run(run), ERROR_WIDTH)
    text = f"run {run.id} ({run.schedule}/{run.key}) {run.state}" + (f": {because}" if because else "")
    answer(invocation, run, text)
    refused = run.state.is_final and run.state is not RunState.SUCCEEDED
    if refused and (wait or run.state is RunState.SKIPPED_OVERLAP):
        raise SystemExit(1)


def _arguments(invocation: Invocation, name: str, assignments: Sequence[str]) -> dict[str, Any]:
    """The arguments of a job that are declared, with these put into them."""
    from feedq.core.schedule.spec import ScheduleSpec

    if others := [one for one in assignments if not one.startswith(("args=", "kwargs=", "kwargs."))]:
        raise click.UsageError(
            f"{others[0].partition('=')[0]}: only args and kwargs can be given for one run"
        )
    job = declared_schedule(invocation, name)[0]
    return assigned({"args": job.args, "kwargs": job.kwargs}, assignments, ScheduleSpec)


def _ended(invocation: Invocation, run: RunDocument, *, timeout_s: float) -> RunDocument:
    from feedq.verbs.schedules import show_run

    latest = [run]

    def has_ended() -> bool:
        latest[0] = invocation.do(show_run, id=run.id)
        return latest[0].state.is_final

    invocation.wait_until(
        has_ended,
        timeout_s=timeout_s,
        what=f"run {run.id} ends",
        why=lambda: f"It is {latest[0].state}" + (f" on {latest[0].worker}" if latest[0].worker else ""),
    )
    return latest[0]


@click.command()
@click.argument("name")
@click.option(
    "--from", "begin", required=True, metavar="TIME", help="The first time whose tick is one of them."
)
@click.option("--to", "end", required=True, metavar="TIME", help="All ticks are before this time.")
@yes_option
@changes
def backfill(invocation: Invocation, *, name: str, begin: str, end: str, yes: bool) -> None:
    """Run the ticks of a time in the past, one after another. A tick that has a run gets no other.

    Times without an offset are in the schedule's zone.

    \b
    Example:
      feedq schedule backfill acme/cleanup --from 2026-11-01 --to 2026-11-08 --yes
    """
    from feedq.core.values import instant
    from feedq.verbs.schedules import backfill_schedule
    from feedq.verbs.wording import counted

    zone = zone_of(invocation, name)
    first, last = moment(begin, zone, option="--from"), moment(end, zone, option="--to")
    if not yes:
        tried = invocation.do(backfill_schedule, name=name, begin=first, end=last, dry_run=True)
        period = f"{instant(tried.first_tick_at)} to {instant(tried.last_tick_at)}"
        invocation.confirm(f"Make {counted(tried.ticks, 'run')} of {name}, for the ticks {period}?", yes=yes)
    done = invocation.do(backfill_schedule, name=name, begin=first, end=last)
    answer(invocation, done, f"{name}: {done.made} made, {done.existing} there already")
