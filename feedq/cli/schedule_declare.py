"""`feedq schedule add`, `edit` and `export`: one schedule as it is declared.

What is given becomes the keys of a manifest and is read as one, so that both mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

from feedq import manifest
from feedq.cli import options
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.schedule_views import warn_ended, warn_unserved
from feedq.cli.views import write_difference, write_done
from feedq.errors import InvalidInput, NotFound, Unreadable
from feedq.manifest.jobs import TIMING_KEYS
from feedq.schedule.model import (
    Beat,
    CatchUp,
    DstFold,
    DstGap,
    Overlap,
    ResumePolicy,
    ScheduleSpec,
    Semantics,
    UnreadableSpec,
)

Command = TypeVar("Command", bound=Callable[..., Any])

_BELOW = {
    "retries": ("retries", "limit"),
    "retry_first": ("retries", "first"),
    "retry_factor": ("retries", "factor"),
    "retry_max": ("retries", "max"),
    "catch_up": ("catch_up", "policy"),
    "catch_up_window": ("catch_up", "window"),
    "catch_up_max": ("catch_up", "max"),
    "keep_runs": ("keep", "runs"),
    "keep_days": ("keep", "days"),
    "exclude": ("exclude", "dates"),
    "exclude_calendar": ("exclude", "calendars"),
}
"""Options that a manifest has a level below."""


COUNTS = ("pause_on_failure", "keep_runs", "keep_days")
"""Options that are a number, or none."""


def _one_or_all(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> str | list[str] | None:
    """Of an option that may be repeated: nothing, the one value, or all."""
    return None if not value else value[0] if len(value) == 1 else list(value)


def _repeated(name: str, **options: Any) -> Callable[[Command], Command]:
    options["help"] += " May be repeated."
    return click.option(name, multiple=True, callback=_one_or_all, **options)


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([value.value for value in kind])


def timing_options(command: Command) -> Command:
    """``--cron``, ``--every``, ``--at``, what goes with them, and what bounds them."""
    return _decorated(
        command,
        _repeated("--cron", metavar="FIELDS", help='Five fields such as "0 2 * * *", or @daily.'),
        click.option("--every", metavar="DURATION", help="Every 30s, 5m, 2h, or so many seconds."),
        _repeated("--at", metavar="TIME", help="Once, at a time such as 2026-12-01T08:00."),
        click.option("--zone", help="Time zone of --cron, and of times without an offset. [default: UTC]"),
        click.option("--anchor", metavar="TIME", help="With --every: count from here."),
        click.option(
            "--dst-gap", type=_choice(DstGap), help="A tick at a time that clocks leave out. [default: shift]"
        ),
        click.option(
            "--dst-fold",
            type=_choice(DstFold),
            help="A tick at a time that clocks show twice. [default: first]",
        ),
        click.option("--start", metavar="TIME", help="No tick before this time, or none."),
        click.option("--end", metavar="TIME", help="No tick from this time on, or none."),
        _repeated(
            "--exclude",
            metavar="DATES",
            help="No tick on 2026-12-24, 12-25 (each year), 2026-12-24..2027-01-02; or none.",
        ),
        _repeated(
            "--exclude-calendar", metavar="NAME", help="No tick on the days of this calendar, or none."
        ),
    )


def arguments_options(command: Command) -> Command:
    """``--args``, ``--kwargs`` and ``--arg``."""
    return _decorated(
        command,
        click.option("--args", metavar="JSON", help='Arguments of the task by position, such as "[1, 2]".'),
        click.option("--kwargs", metavar="JSON", help="Arguments by name, as a JSON object."),
        click.option(
            "--arg",
            "named",
            multiple=True,
            metavar="KEY=VALUE",
            help="One argument by name; JSON if it can be read as such, else text. May be repeated.",
        ),
    )


def _job_options(command: Command) -> Command:
    return _decorated(
        command,
        click.option(
            "--semantics", type=_choice(Semantics), help="Whether a run that broke off is repeated."
        ),
        click.option(
            "--timeout", metavar="DURATION", help="Ends a run that takes longer, or none. [default: 1h]"
        ),
        click.option("--retries", type=int, help="How often a failed run is repeated. [default: 0]"),
        click.option("--retry-first", metavar="DURATION", help="Wait before the first. [default: 10s]"),
        click.option("--retry-factor", type=float, help="Each wait is longer by this. [default: 2]"),
        click.option("--retry-max", metavar="DURATION", help="The longest wait. [default: 10m]"),
        click.option("--queue", help="Job queue, whose limits hold. [default: default]"),
        click.option("--priority", type=int, help="From -100, last, to 100, first. [default: 0]"),
        click.option(
            "--require",
            multiple=True,
            metavar="KEY=VALUE",
            help="Only on workers with this label. May be repeated.",
        ),
    )


def _policy_options(command: Command) -> Command:
    return _decorated(
        command,
        click.option(
            "--overlap", type=_choice(Overlap), help="When an earlier run has not ended. [default: skip]"
        ),
        click.option("--buffer-max", type=int, help="With buffer_all: runs that may wait. [default: 100]"),
        click.option("--catch-up", type=_choice(CatchUp), help="Ticks missed meanwhile. [default: latest]"),
        click.option(
            "--catch-up-window", metavar="DURATION", help="None older are made up for. [default: 1d]"
        ),
        click.option("--catch-up-max", type=int, help="With all: no more than this. [default: 100]"),
        click.option("--misfire-after", metavar="DURATION", help="Later than this is missed. [default: 1m]"),
        click.option("--start-deadline", metavar="DURATION", help="Not started later than this, or none."),
        click.option("--jitter", metavar="DURATION", help="Fire each tick up to this much later."),
        click.option(
            "--resume", type=_choice(ResumePolicy), help="The ticks of a pause, after it. [default: skip]"
        ),
        click.option(
            "--pause-on-failure", metavar="N", help="Pause after so many failures in a row, or none."
        ),
        click.option("--keep-runs", metavar="N", help="Keep so many runs of history, the newest; or none."),
        click.option(
            "--keep-days", metavar="N", help="Keep history so long, not as all others; or none for that."
        ),
    )


def _decorated(command: Command, *decorators: Callable[[Command], Command]) -> Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@click.command()
@click.argument("name")
@click.option("--task", required=True, help="Celery task that is run, by its name.")
@timing_options
@arguments_options
@_job_options
@_policy_options
@click.option("--paused", is_flag=True, help="Declare it, but do not fire it yet.")
@json_option
@pass_invocation
def add(invocation: Invocation, /, *, name: str, paused: bool, **given: Any) -> None:
    """Declare a new schedule: a task, and when it is run.

    \b
    Example:
      feedq schedule add acme/cleanup --task acme.jobs.cleanup --cron "H 2 * * *" \\
          --zone Europe/Berlin --arg days=30 --overlap skip --retries 3
      feedq schedule add acme/poll --task acme.jobs.poll --every 30s
    """
    keys = {"name": name} | ({"paused": True} if paused else {})
    added = invocation.jobs.schedules.add(read_spec(with_options(keys, given)))
    write_done(invocation, [name], "added")
    warn_ended([added], now=invocation.clock.now())
    warn_unserved(invocation.jobs, [name])


@click.command()
@click.argument("name")
@click.option("--task", help="Another Celery task.")
@timing_options
@arguments_options
@_job_options
@_policy_options
@json_option
@pass_invocation
def edit(invocation: Invocation, /, *, name: str, **given: Any) -> None:
    """Change what is given and keep the rest. It holds for ticks to come; runs that there are stay as they are.

    \b
    Example:
      feedq schedule edit acme/cleanup --cron "0 3 * * *" --timeout 30m
    """
    if not any(value not in (None, ()) for value in given.values()):
        raise click.UsageError("nothing to change; give --cron, --timeout or another option")
    try:
        before = invocation.jobs.schedules.get(name).spec
    except Unreadable:
        if given["task"] is None or not any(given[kind] for kind in TIMING_KEYS):
            raise  # there is nothing to keep the rest of
        shown = invocation.jobs.schedules.views(prefix=name, limit=1)[0].schedule
        invocation.jobs.schedules.edit(
            name, read_spec(with_options({"name": name, "paused": shown.spec.paused}, given))
        )
        write_done(invocation, [name], "edited")
        return
    if isinstance(before.timing, Beat):
        raise InvalidInput(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    after = read_spec(with_options(manifest.plain_schedule(before), given))
    changes = manifest.difference(manifest.plain_schedule(before), manifest.plain_schedule(after))
    edited = [invocation.jobs.schedules.edit(name, after)] if changes else []
    if not invocation.json:
        write_difference(changes)
    write_done(invocation, [name], "edited" if changes else "unchanged")
    warn_ended(edited, now=invocation.clock.now())
    warn_unserved(invocation.jobs, [name])


@click.command(short_help="Print schedules, queues and calendars as a manifest.")
@click.argument("names", nargs=-1)
@click.option("--prefix", default="", help="Only those whose name begins so.")
@json_option
@pass_invocation
def export(invocation: Invocation, *, names: Sequence[str], prefix: str) -> None:
    """Print schedules as a manifest that `feedq apply` takes; all of them, the queues and calendars, unless named.

    \b
    Example:
      feedq schedule export > schedules.yaml
    """
    specs = invocation.jobs.schedules.specs()
    missing = [name for name in names if name not in specs]
    if missing:
        raise NotFound(
            f"no schedule named {', '.join(map(repr, missing))}; `feedq schedule list` shows them all"
        )
    found = [spec for name, spec in specs.items() if (not names or name in names) and name.startswith(prefix)]
    unreadable = [spec.why for spec in found if isinstance(spec, UnreadableSpec)]
    if unreadable:
        raise Unreadable("\n".join(unreadable))
    chosen = [spec for spec in found if isinstance(spec, ScheduleSpec)]
    everything = not (names or prefix)
    queues = invocation.jobs.queues.all() if everything else []
    used = {name for spec in chosen for name in spec.exclude.calendars}
    calendars = invocation.jobs.calendars.all() if everything or used else []
    calendars = [one for one in calendars if everything or one.name in used]
    if invocation.json:
        document: dict[str, Any] = {"schedules": [manifest.plain_schedule(spec) for spec in chosen]}
        document["queues"] = [manifest.plain_queue(queue) for queue in queues]
        write_json(document | {"calendars": [manifest.plain_calendar(one) for one in calendars]})
    else:
        for part in manifest.dump_parts(schedules=chosen, queues=queues, calendars=calendars):
            click.echo(part, nl=False)


def read_spec(keys: Mapping[str, Any]) -> ScheduleSpec:
    """Raises `InvalidInput` with everything that is wrong."""
    found = manifest.read_schedule(keys)
    wrong = [what for _, what in found] if isinstance(found, list) else manifest.schedule_problems(found)
    if wrong or isinstance(found, list):
        raise InvalidInput(f"schedule {keys['name']!r}: {'; '.join(wrong)}")
    return found


def read_arguments(
    *, args: str | None, kwargs: str | None, named: Sequence[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys ``args`` and ``kwargs``, as far as they are given. Raises `InvalidInput`."""
    keys: dict[str, Any] = {}
    if args is not None:
        keys["args"] = options.parse_list(args, option="--args")
    if kwargs is not None:
        keys["kwargs"] = options.parse_object(kwargs, option="--kwargs")
    if named:
        keys["kwargs"] = options.merge_arguments(keys.get("kwargs", before), named, option="--arg")
    return keys


def with_options(keys: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a manifest, with what was given on the command line in its place."""
    found = {option: value for option, value in given.items() if value is not None}
    kwargs = keys.get("kwargs", {})
    arguments = {option: found.pop(option, None) for option in ("args", "kwargs")}
    merged = dict(keys) | read_arguments(**arguments, named=found.pop("named", ()), before=kwargs)
    if required := found.pop("require", ()):
        before = keys.get("selector", {}).get("required", {})
        merged["selector"] = {"required": options.merge_labels(before, required, option="--require")}
    for kind, siblings in TIMING_KEYS.items():
        if kind in found:
            # Of another kind of timing nothing is left, but the zone of the new time.
            with_zone = kind != "every" or "exclude" in merged
            kept = siblings if kind in merged else ("zone",) if with_zone else ()
            others = {key for each in TIMING_KEYS.values() for key in each} - {*kept}
            merged = {key: value for key, value in merged.items() if key not in others}
    for option, value in found.items():
        outer, inner = _BELOW.get(option, (option, None))
        value = _number(value) if option in COUNTS else value
        merged[outer] = value if inner is None else {**merged.get(outer, {}), inner: value}
    return merged


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text
