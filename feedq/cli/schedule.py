"""`feedq schedule`: jobs that are run once per tick, on whichever worker has room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from feedq.cli.declare import edit_schedule, set_schedules
from feedq.cli.invocation import (
    Invocation,
    OneOf,
    changes,
    limit_option,
    pass_invocation,
    yes_option,
)
from feedq.cli.options import duration, moment
from feedq.cli.output import answer, answer_list, write_lines, write_table
from feedq.cli.schedule_ticks import backfill, next_, trigger, zone_of
from feedq.core.authorship import give_reason
from feedq.errors import InvalidInput

if TYPE_CHECKING:
    from feedq.core.schedule.model import RunState, ScheduleState
    from feedq.verbs.schedules import ScheduleAction

PAGE = 1_000
"""Schedules that are listed unless more are asked for."""
LISTED_MAX = 100_000
RUNS_OF_ONE = 10
"""Runs below a schedule; `feedq schedule runs` has more."""
PAUSE_MAX_S = 100 * 366 * 86_400.0
"""Longer than that is for ever."""


@click.group(
    short_help="Jobs once per tick: list, show, next, runs, set, edit, trigger, backfill, pause, cancel."
)
def schedule() -> None:
    """Jobs that are run once per tick on the whole cluster: cron, intervals, or once.

    \b
    Example:
      feedq apply -f schedules.yaml
      feedq schedule show acme/cleanup
    """


for _command in (set_schedules, edit_schedule, next_, trigger, backfill):
    schedule.add_command(_command)


# -- looking -----------------------------------------------------------------------------------------


@schedule.command("list", short_help="All schedules, their next tick and their last run.")
@click.option("--prefix", default="", help="Only those whose name begins so.")
@click.option(
    "--state", type=OneOf("feedq.core.schedule.model:ScheduleState"), help="Only those in this state."
)
@click.option(
    "--limit", type=click.IntRange(1, LISTED_MAX), default=PAGE, show_default=True, help="How many."
)
@click.option("--queues", is_flag=True, help="Instead, the job queues with their limits and depths.")
@pass_invocation
def list_(
    invocation: Invocation, *, prefix: str, state: ScheduleState | None, limit: int, queues: bool
) -> None:
    """Schedules by name: when they fire next, and what became of the last run.

    If there are more than --limit, a note on standard error says so. With --queues: the job queues that have
    limits, or runs that wait or run. Limits stand in a manifest, under `queues`.

    \b
    Example:
      feedq schedule list --prefix acme/
      feedq schedule list --queues
    """
    from feedq.cli.tables import QUEUE_COLUMNS, schedule_columns
    from feedq.verbs.schedules import list_queues, list_schedules

    if queues:
        empty = "no queue has limits, or runs that wait or run"
        answer_list(invocation, invocation.do(list_queues).items, QUEUE_COLUMNS, empty=empty)
        return
    found = list(invocation.pages(limit + 1, list_schedules, prefix=prefix, state=state))
    empty = "no schedules; declare some with `feedq apply`"
    answer_list(invocation, found[:limit], schedule_columns(invocation.clock.now()), empty=empty)
    if len(found) > limit:
        click.echo(f"these are the first {limit:,}; --limit shows more, --prefix others", err=True)


@schedule.command(short_help="Everything about one schedule, with its last runs.")
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one schedule: declaration, where it stands, runs by state, and the last of them.

    \b
    Example:
      feedq schedule show acme/cleanup
    """
    from feedq.cli.tables import run_columns
    from feedq.verbs import documents
    from feedq.verbs.report.details import DetailLine, schedule_lines
    from feedq.verbs.schedules import show_schedule

    found = invocation.do(show_schedule, name=name)
    now, runs = invocation.clock.now(), found.runs[:RUNS_OF_ONE]
    lines = [
        *schedule_lines(found, now=now),
        DetailLine("declaration", documents.dump(found.declaration), code=True),
    ]

    def write() -> None:
        write_lines(lines)
        if runs:
            click.echo()
            write_table(runs, run_columns(now, of_one=True))

    answer(invocation, found, write)


@schedule.command(short_help="The history of one schedule, or of all.")
@click.argument("name", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=OneOf("feedq.core.schedule.model:RunState"),
    help="Only runs in this state; may be repeated.",
)
@limit_option(50, most=1_000)
@pass_invocation
def runs(invocation: Invocation, *, name: str | None, states: Sequence[RunState], limit: int) -> None:
    """The history of one schedule or of all, newest first: worker, lag, duration, and why a run ended so.

    RUN, the name of a schedule and the KEY of a run, is the correlation id, which stands in every log line of the
    job. DUE is how long ago it fell due, LAG how much later it began. A row that stands for many ticks missed in
    a row says how many.

    \b
    Example:
      feedq schedule runs acme/cleanup --state failed --state lost
    """
    from feedq.cli.tables import run_columns
    from feedq.verbs.schedules import list_runs

    found = list(invocation.pages(limit, list_runs, schedule=name, states=tuple(states)))
    columns = run_columns(invocation.clock.now(), of_one=name is not None)
    answer_list(invocation, found, columns, empty="no runs")


# -- changing ----------------------------------------------------------------------------------------


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--until", metavar="TIME", help="Resume by itself then; in the schedule's zone without an offset."
)
@click.option("--for", "for_", metavar="DURATION", help="Resume by itself after this long, such as 2h.")
@click.option("--reason", help="Why; lists show it.")
@pass_invocation
def pause(
    invocation: Invocation, *, names: Sequence[str], until: str | None, for_: str | None, reason: str | None
) -> None:
    """Fire no more ticks, until the schedules are resumed. Runs that there are go on.

    \b
    Example:
      feedq schedule pause acme/cleanup --for 2h --reason "maintenance of the warehouse"
    """
    if until is not None and for_ is not None:
        raise click.UsageError("--until and --for exclude each other")
    give_reason(reason)
    end = None
    if for_ is not None:
        seconds = duration(for_, option="--for")
        if seconds > PAUSE_MAX_S:
            raise InvalidInput(f"--for: {for_!r} is too long; leave it out to pause for good")
        end = invocation.clock.now() + timedelta(seconds=seconds)

    def until_of(name: str) -> datetime | None:
        return end if until is None else moment(until, zone_of(invocation, name), option="--until")

    from feedq.verbs.schedules import ScheduleAction

    _each(invocation, names, ScheduleAction.PAUSE, "paused", until_of)


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@changes
def resume(invocation: Invocation, *, names: Sequence[str]) -> None:
    """Let paused schedules fire again; failures in a row are forgotten.

    What becomes of the ticks of the pause, the schedule's own `resume` says.

    \b
    Example:
      feedq schedule resume acme/cleanup
    """
    from feedq.verbs.schedules import ScheduleAction

    _each(invocation, names, ScheduleAction.RESUME, "resumed")


@schedule.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@changes
def remove(invocation: Invocation, *, names: Sequence[str], yes: bool) -> None:
    """Forget schedules and cancel what waits of them. A run under way may end; history stays for a while.

    \b
    Example:
      feedq schedule remove acme/cleanup --yes
    """
    from feedq.verbs.declarations import Removals, declare

    removed = Removals(schedules=tuple(dict.fromkeys(names)))
    invocation.do(declare, remove=removed, dry_run=True)
    invocation.confirm(f"Remove {', '.join(names)}?", yes=yes)
    done = invocation.do(declare, remove=removed)
    answer(invocation, done, "\n".join(f"{name} removed" for name in removed.schedules))


@schedule.command()
@click.argument("name", required=False)
@click.option(
    "--run",
    "run_id",
    type=click.IntRange(1, 2**63 - 1),
    help="One run, by the id that `feedq schedule runs` shows.",
)
@changes
def cancel(invocation: Invocation, *, name: str | None, run_id: int | None) -> None:
    """Cancel the waiting runs of a schedule, or one run; a job under way is told, and has to obey.

    \b
    Example:
      feedq schedule cancel acme/cleanup
      feedq schedule cancel --run 4711
    """
    from feedq.verbs.schedules import ScheduleAction, act_on_schedule, cancel_run
    from feedq.verbs.wording import counted

    if (name is None) == (run_id is None):
        raise click.UsageError("say either the NAME of a schedule or --run")
    if name is not None:
        done = invocation.do(act_on_schedule, name=name, action=ScheduleAction.CANCEL)
        answer(invocation, done, f"{name}: {counted(done.cancelled, 'waiting run')} cancelled")
    elif run_id is not None:
        run = invocation.do(cancel_run, id=run_id)
        answer(invocation, run, f"run {run.id} ({run.schedule}/{run.key}) {run.state}")


def _each(
    invocation: Invocation,
    names: Sequence[str],
    action: ScheduleAction,
    done: str,
    until_of: Callable[[str], datetime | None] = lambda name: None,
) -> None:
    """Does something to all schedules or, if one of them does not exist, to none."""
    from feedq.verbs.schedules import act_on_schedule

    asked = {name: until_of(name) for name in names}
    for dry_run in (True, False):
        acted = [
            invocation.do(act_on_schedule, name=name, action=action, until=until, dry_run=dry_run)
            for name, until in asked.items()
        ]
    answer(invocation, acted, "\n".join(f"{one.name} {done}" for one in acted))
