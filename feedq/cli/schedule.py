"""`feedq schedule`: jobs that are run once per tick, on whichever worker has room."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from feedq.cli import declare, options
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import TableColumn, answer, answer_list, fact_lines, first, table_lines, warn
from feedq.errors import FeedqError

with lazily():
    from feedq.cli import tables
    from feedq.core import moments
    from feedq.core.schedule import model as schedule_model
    from feedq.core.schedule import spec as schedule_spec
    from feedq.verbs import declarations, details, schedules, wording

RUNS_OF_ONE = 10
"""Runs below a schedule; `feedq schedule runs` has more."""
WAIT_S = 86_400.0
"""A run may take a day."""
TRIED = "example"
"""Name of a schedule that there is not; ``H`` in its expression is hashed from it."""


@options.group(
    short_help="Jobs once per tick: list, show, next, runs, set, edit, trigger, backfill, pause, cancel.",
)
def schedule() -> None:
    """Jobs that run once per tick on the whole cluster: by cron, at intervals, or once.

    \b
    Example:
      feedq apply -f schedules.yaml
      feedq schedule show acme/cleanup
    """


for _command in (declare.set_schedules, declare.edit_schedule):
    schedule.add_command(_command)


# -- looking -----------------------------------------------------------------------------------------


@schedule.command("list", short_help="All schedules, their next tick and their last run.")
@click.option("--prefix", help="Only schedules whose name starts like this.")
@click.option(
    "--state",
    type=options.OneOf("feedq.core.schedule.model:ScheduleState"),
    help="Only schedules in this state.",
)
@options.limit(1_000, "How many.")
@click.option("--queues", is_flag=True, help="Show job queues instead, with limits and depths.")
def list_(invocation: Invocation, *, prefix: str | None, limit: int, queues: bool, **which: Any) -> None:
    """Schedules with their next tick and last run; with --queues, job queues and their limits.

    \b
    Example:
      feedq schedule list --prefix acme/
      feedq schedule list --queues
    """
    if queues:
        empty = "no queue has limits or runs"
        answer_list(invocation, invocation.do(schedules.list_queues).items, tables.QUEUE_COLUMNS, empty=empty)
        return
    found = invocation.pages(schedules.list_schedules, prefix=prefix or "", **which)
    columns = tables.schedule_columns(invocation.clock.now())
    empty = "no schedules; declare some with `feedq apply`"
    answer_list(invocation, first(found, limit, of="first"), columns, empty=empty)


@schedule.command(short_help="Everything about one schedule, with its last runs.")
@click.argument("name")
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one schedule: declaration, state, runs by state, latest runs.

    \b
    Example:
      feedq schedule show acme/cleanup
    """
    found = invocation.do(schedules.show_schedule, name=name)
    now, runs = invocation.clock.now(), found.runs[:RUNS_OF_ONE]
    facts = fact_lines(details.schedule_lines(found, now=now), found.declaration)
    latest = table_lines(runs, tables.run_columns(now, of_one=True))
    answer(invocation, found, facts, latest)


@schedule.command("next", short_help="The next ticks, in UTC and in the schedule's zone.")
@click.argument("names", nargs=-1, metavar="[NAME] [KEY=VALUE]...")
@click.option("--count", type=click.IntRange(1, 1_000), default=20, help="How many.")
@click.option("--from", "since", metavar="TIME", help="Ticks from this time on. [default: now]")
def next_(invocation: Invocation, *, names: Sequence[str], count: int, since: str | None) -> None:
    """Show the next ticks of a schedule, in UTC and in its zone.

    With KEY=VALUE, as for `feedq schedule set`, it shows the ticks that the schedule would have; without a
    name, those of a timing you want to try. Nothing is fired.

    \b
    Example:
      feedq schedule next acme/cleanup --count 5
      feedq schedule next cron="30 2 * * *" zone=Europe/Berlin --from 2027-03-26
    """
    names, assignments = declare.split_words(names)
    if len(names) > 1 or not (names or assignments):
        raise click.UsageError("give the NAME of one schedule, or a timing to try, such as cron=@daily")
    name, declared = names[0] if names else TRIED, None
    if assignments:
        if names:
            keys = declare.with_assignments(
                declare.declared_schedule(invocation, name)[0], assignments
            ).plain()
        else:
            keys = declare.assigned({"name": TRIED, "task": TRIED}, assignments, schedule_spec.ScheduleSpec)
        # The arguments of its job have no part in its timing.
        declared = json.dumps({key: keys[key] for key in keys if key not in ("args", "kwargs")}, default=str)
    found = invocation.do(schedules.show_next_ticks, name=name, declared=declared, count=count, since=since)

    is_paused = found.state is schedule_model.ScheduleState.PAUSED
    aside = " (paused: none of these fires until it is resumed)" if is_paused else ""
    head = wording.printable(f"{found.name}: {found.when}{aside}")
    lines = table_lines(found.ticks, _tick_columns(found)) or ["no ticks left"]
    answer(invocation, found, [head, *lines])


def _tick_columns(found: schedules.ComingTicks) -> list[TableColumn[schedules.ComingTick]]:
    def local(tick: schedules.ComingTick) -> str:
        return f"{tick.local:%a %Y-%m-%d %H:%M:%S} {tick.local.isoformat()[-6:]}"

    def fires(tick: schedules.ComingTick) -> str:
        """With the date only where that is another one."""
        date, _, time = _utc(tick.fire_at).partition(" ")
        return time if _utc(tick.tick_at).startswith(date) else f"{date} {time}"

    is_jittered = any(tick.fire_at != tick.tick_at for tick in found.ticks)
    return [
        TableColumn("UTC", lambda tick: _utc(tick.tick_at)),
        TableColumn(found.zone.upper(), local),
        *([TableColumn("FIRES", fires)] if is_jittered else []),
    ]


def _utc(at: datetime) -> str:
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}Z" if at.microsecond else f"{text}Z"


@schedule.command(short_help="The history of one schedule, or of all.")
@click.argument("name", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=options.OneOf("feedq.core.schedule.model:RunState"),
    help="Only runs in this state; may be repeated.",
)
@options.limit(50)
def runs(invocation: Invocation, *, name: str | None, limit: int, **which: Any) -> None:
    """The runs of one schedule or of all, newest first, each with its worker, timing and outcome.

    RUN (NAME/KEY) is the correlation id in every log line of the job. DUE says how long ago the run was due, LAG
    how late it started. Consecutive missed ticks share a row, which says how many there were.

    \b
    Example:
      feedq schedule runs acme/cleanup --state failed --state lost
    """
    found = invocation.pages(schedules.list_runs, schedule=name, **which)
    columns = tables.run_columns(invocation.clock.now(), of_one=name is not None)
    answer_list(invocation, first(found, limit), columns, empty="no runs")


# -- changing ----------------------------------------------------------------------------------------


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--until", metavar="TIME", help="Resume automatically at this time, or after this long (2h).")
@options.changes
def pause(invocation: Invocation, *, names: Sequence[str], until: str | None) -> None:
    """Fire no more ticks until the schedules are resumed. Existing runs continue.

    \b
    Example:
      feedq schedule pause acme/cleanup --until 2h --reason "maintenance of the warehouse"
    """
    _act(invocation, names, schedules.ScheduleAction.PAUSE, "paused", until=until)


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@options.changes
def resume(invocation: Invocation, *, names: Sequence[str]) -> None:
    """Let paused schedules fire again, and forget their failures.

    The schedule's own `resume` says what happens to the ticks it missed.

    \b
    Example:
      feedq schedule resume acme/cleanup
    """
    _act(invocation, names, schedules.ScheduleAction.RESUME, "resumed")


def _act(
    invocation: Invocation, names: Sequence[str], action: schedules.ScheduleAction, done: str, **how: Any
) -> None:
    """Does something to all schedules or, if it cannot be done to one of them, to none."""
    for dry_run in (True, False):
        acted = [
            invocation.do(schedules.act_on_schedule, name=name, action=action, dry_run=dry_run, **how)
            for name in dict.fromkeys(names)
        ]
    answer(invocation, acted, "\n".join(f"{one.name} {done}" for one in acted))


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@options.yes
@options.changes
def remove(invocation: Invocation, *, names: Sequence[str], yes: bool) -> None:
    """Delete schedules and cancel their waiting runs. Running jobs may finish; history stays for a while.

    \b
    Example:
      feedq schedule remove acme/cleanup --yes
    """
    removed = declarations.Removals(schedules=tuple(dict.fromkeys(names)))
    done = invocation.do_confirmed(
        declarations.declare, lambda tried: f"Remove {', '.join(names)}?", yes=yes, remove=removed
    )
    answer(invocation, done, "\n".join(f"{name} removed" for name in removed.schedules))


@schedule.command()
@click.argument("name", required=False)
@click.option(
    "--run",
    "run_id",
    type=click.IntRange(1, 2**63 - 1),
    help="A single run, by the id in `feedq schedule runs`.",
)
@options.changes
def cancel(invocation: Invocation, *, name: str | None, run_id: int | None) -> None:
    """Cancel the waiting runs of a schedule, or one run. A running job is asked to stop.

    \b
    Example:
      feedq schedule cancel acme/cleanup
      feedq schedule cancel --run 4711
    """
    if name is not None and run_id is None:
        action = schedules.ScheduleAction.CANCEL
        done = invocation.do(schedules.act_on_schedule, name=name, action=action)
        answer(invocation, done, f"{name}: {wording.counted(done.cancelled, 'waiting run')} cancelled")
    elif run_id is not None and name is None:
        run = invocation.do(schedules.cancel_run, id=run_id)
        answer(invocation, run, f"run {run.id} ({run.schedule}/{run.key}) {run.state}")
    else:
        raise click.UsageError("give either the NAME of a schedule or --run")


# -- runs that somebody asks for ---------------------------------------------------------------------


@schedule.command(short_help="Run a schedule's job now, and optionally wait for it.")
@click.argument("name")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--key", help="Idempotency key: the same key returns the run that exists.")
@options.waits(WAIT_S)
@options.changes
def trigger(
    invocation: Invocation,
    *,
    name: str,
    assignments: Sequence[str],
    wait: bool,
    timeout_s: float,
    **asked: Any,
) -> None:
    """Run a schedule's job now, even while it is paused, under its overlap policy.

    args=… and kwargs.KEY=… replace declared arguments for this run. The exit status is 1 if the run is
    skipped and, with --wait, unless it succeeds.

    \b
    Example:
      feedq schedule trigger acme/cleanup kwargs.days=7 --key release-4.2 --wait
    """
    if assignments:
        asked |= _arguments(invocation, name, assignments)
    run = invocation.do(schedules.trigger_schedule, name=name, **asked)
    if not run.state.is_final and (unserved := invocation.do(schedules.show_schedule, name=name).unserved):
        warn(f"schedule {name}: {unserved}")
    if wait and not run.state.is_final:
        run = _ended(invocation, run, timeout_s=timeout_s)
    because = wording.cut(wording.why_run(run), wording.ERROR_WIDTH)
    text = f"run {run.id} ({run.schedule}/{run.key}) {run.state}" + (f": {because}" if because else "")
    answer(invocation, run, text)
    if run.state is schedule_model.RunState.SKIPPED_OVERLAP:
        raise FeedqError(f"schedule {name}: this run was skipped under its `overlap` policy: {because}")
    if wait and run.state is not schedule_model.RunState.SUCCEEDED:
        raise SystemExit(1)


def _arguments(invocation: Invocation, name: str, assignments: Sequence[str]) -> dict[str, Any]:
    """The arguments of a job that are declared, with these put into them."""
    if others := [one for one in assignments if not one.startswith(("args=", "kwargs=", "kwargs."))]:
        key = others[0].partition("=")[0]
        raise click.UsageError(f"{key}: only args and kwargs can be given for one run")
    job = declare.declared_schedule(invocation, name)[0]
    return declare.assigned({"args": job.args, "kwargs": job.kwargs}, assignments, schedule_spec.ScheduleSpec)


def _ended(invocation: Invocation, run: schedule_model.Run, *, timeout_s: float) -> schedule_model.Run:
    return invocation.wait_for(
        lambda: invocation.do(schedules.show_run, id=run.id),
        lambda seen: seen.state.is_final,
        timeout_s=timeout_s,
        what=f"run {run.id} ends",
        why=lambda seen: f"It is {seen.state}" + (f" on {seen.worker}" if seen.worker else ""),
    )


@schedule.command()
@click.argument("name")
@click.option("--from", "begin", required=True, metavar="TIME", help="First tick at or after this time.")
@click.option("--to", "end", required=True, metavar="TIME", help="Last tick before this time.")
@options.yes
@options.changes
def backfill(invocation: Invocation, *, name: str, begin: str, end: str, yes: bool) -> None:
    """Run the ticks of a past period, one after another. Ticks that already have a run are skipped.

    Times without an offset are in the schedule's zone.

    \b
    Example:
      feedq schedule backfill acme/cleanup --from 2026-11-01 --to 2026-11-08 --yes
    """

    def question(tried: schedules.PastTicks) -> str:
        period = f"{moments.instant(tried.first_tick_at)} to {moments.instant(tried.last_tick_at)}"
        return f"Make {wording.counted(tried.ticks, 'run')} of {name}, for the ticks {period}?"

    done = invocation.do_confirmed(
        schedules.backfill_schedule, question, yes=yes, name=name, begin=begin, end=end
    )
    answer(invocation, done, f"{name}: {done.made} made, {done.existing} existed already")
