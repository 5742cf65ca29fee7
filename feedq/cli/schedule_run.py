"""`feedq schedule trigger` and `backfill`: runs that somebody asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from math import inf

import click

from feedq import manifest
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.schedule_declare import arguments_options, read_arguments
from feedq.cli.schedule_next import zone_of
from feedq.cli.schedule_views import warn_unserved, why
from feedq.diagnosis.checks import counted
from feedq.errors import InvalidInput
from feedq.manifest.declared_values import duration, moment
from feedq.report import run_row
from feedq.schedule.model import Job, Run, RunState, ScheduleSpec
from feedq.schedule.timing import ticks_after
from feedq.schedule.words import instant
from feedq.store.jobs.base import BACKFILL_MAX
from feedq.wording import printable


@click.command(short_help="Run a schedule's job now, and wait for it if need be.")
@click.argument("name")
@click.option("--key", help="Triggered again with the same key, no other run is made: it shows that of then.")
@arguments_options
@click.option(
    "--wait", is_flag=True, help="Return only once it has ended; exit status 1 unless it succeeded."
)
@click.option("--timeout", metavar="DURATION", help="With --wait: give up after this long. [default: never]")
@json_option
@pass_invocation
def trigger(
    invocation: Invocation,
    /,
    *,
    name: str,
    key: str | None,
    args: str | None,
    kwargs: str | None,
    named: Sequence[str],
    wait: bool,
    timeout: str | None,
) -> None:
    """Run a schedule's job now, whatever its timing, even while it is paused; under its overlap policy.

    Arguments given here stand in for those declared: --args and --kwargs as a whole, --arg one by one.

    \b
    Example:
      feedq schedule trigger acme/cleanup --key release-4.2 --arg days=7 --wait
    """
    timeout_s = inf if timeout is None else duration(timeout, option="--timeout")
    job = None
    if args is not None or kwargs is not None or named:
        spec = invocation.jobs.schedules.get(name).spec
        job = _job_with(spec, args=args, kwargs=kwargs, named=named)
    run = invocation.jobs.schedules.trigger(name, key=key, job=job)
    if not run.state.is_final:
        warn_unserved(invocation.jobs, [name])
    if wait and not run.state.is_final:
        run = _ended(invocation, run, timeout_s=timeout_s)
    if invocation.json:
        write_json(run_row(run))
    else:
        because = why(run)
        click.echo(
            printable(f"run {run.id} ({run.schedule}/{run.key}) {run.state}")
            + (f": {because}" if because else "")
        )
    refused = run.state.is_final and run.state is not RunState.SUCCEEDED
    if refused and (wait or run.state is RunState.SKIPPED_OVERLAP):
        raise SystemExit(1)


def _job_with(spec: ScheduleSpec, *, args: str | None, kwargs: str | None, named: Sequence[str]) -> Job:
    given = read_arguments(args=args, kwargs=kwargs, named=named, before=spec.job.kwargs)
    if "args" in given:
        given["args"] = tuple(given["args"])
    job = replace(spec.job, **given)
    wrong = manifest.schedule_problems(replace(spec, job=job))
    if wrong:
        raise InvalidInput(f"schedule {spec.name!r}: {'; '.join(wrong)}")
    return job


def _ended(invocation: Invocation, run: Run, *, timeout_s: float) -> Run:
    latest = [run]

    def has_ended() -> bool:
        latest[0] = invocation.jobs.schedules.run(run.id)
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_invocation
def backfill(invocation: Invocation, *, name: str, begin: str, end: str, yes: bool) -> None:
    """Run the ticks of a time in the past, one after another. A tick that has a run gets no other.

    Times without an offset are in the schedule's zone.

    \b
    Example:
      feedq schedule backfill acme/cleanup --from 2026-11-01 --to 2026-11-08 --yes
    """
    spec = invocation.jobs.schedules.get(name).spec
    zone = zone_of(spec.timing)
    first, last = moment(begin, zone, option="--from"), moment(end, zone, option="--to")
    if first >= last:
        raise InvalidInput("--to: must be later than --from")
    if last > invocation.database_now():
        raise InvalidInput("--to: lies in the future, whose ticks are fired when they fall due")
    ticks = ticks_between(spec, first, last)
    if not ticks:
        raise InvalidInput(f"schedule {name!r} has no ticks from {instant(first)} to {instant(last)}")
    if not yes:
        invocation.confirm(
            f"Make {counted(len(ticks), 'run')} of {name}, for the ticks {instant(ticks[0])} to "
            f"{instant(ticks[-1])}?"
        )
    made, existing = invocation.jobs.schedules.backfill(name, ticks)
    if invocation.json:
        write_json({"name": name, "ticks": len(ticks), "made": made, "existing": existing})
    else:
        click.echo(printable(f"{name}: {made} made, {existing} there already"))


def ticks_between(spec: ScheduleSpec, begin: datetime, end: datetime) -> list[datetime]:
    """Its ticks from one time on and before the other. Raises `InvalidInput` when they are too many."""
    later = ticks_after(spec, after=begin - timedelta(microseconds=1))
    found = list(islice(takewhile(lambda tick: tick < end, later), BACKFILL_MAX + 1))
    if len(found) > BACKFILL_MAX:
        raise InvalidInput(
            f"schedule {spec.name!r} has more than {BACKFILL_MAX} ticks in between; backfill the time in parts"
        )
    return found
