"""`feedq schedule add`, `edit` and `export`: one schedule as it is declared.

What is given becomes the keys of a manifest and is read as one, so that both mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, get_origin

import click

from feedq.cli import options
from feedq.cli.invocation import Command, Invocation, changes, decorated, pass_invocation
from feedq.cli.output import answer_done, write_difference, write_json
from feedq.cli.tables import warn_ended, warn_unserved
from feedq.core.schedule.entries import TIMING_KEYS, ScheduleEntry, plain_queue, plain_schedule
from feedq.core.schedule.model import (
    Beat,
    ScheduleSpec,
    UnreadableSpec,
)
from feedq.core.values import exact_duration
from feedq.errors import InvalidInput, NotFound, Unreadable
from feedq.verbs import documents
from feedq.verbs.manifest.changes import plain_difference

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
}
"""Options that a manifest has a level below."""
METAVARS = {
    "cron": "FIELDS",
    "exclude": "DATES",
    **dict.fromkeys(("at", "anchor", "start", "end"), "TIME"),
    **dict.fromkeys(("every", "timeout", "retry_first", "retry_max", "catch_up_window"), "DURATION"),
    **dict.fromkeys(("misfire_after", "start_deadline", "jitter"), "DURATION"),
    **dict.fromkeys(("pause_on_failure", "keep_runs", "keep_days"), "N"),
}
"""What stands for the value of an option that is text; an ``N`` is a number, or none."""


def _one_or_all(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> str | list[str] | None:
    """Takes of an option that may be repeated nothing, the one value, or all."""
    return None if not value else value[0] if len(value) == 1 else list(value)


def _option(name: str) -> Callable[[Command], Command]:
    """Makes an option for a key of a schedule; its type, help and default are those of the model."""
    outer, inner = _BELOW.get(name, (name, None))
    field = ScheduleEntry.model_fields[outer]
    if inner is not None:
        below: Any = field.annotation
        field = below.model_fields[inner]
    flag, kind, about, default = (
        f"--{name.replace('_', '-')}",
        field.annotation,
        field.description,
        field.default,
    )
    if get_origin(kind) is tuple:
        about = f"{about} May be repeated."
        return click.option(flag, multiple=True, callback=_one_or_all, metavar=METAVARS[name], help=about)
    if default or isinstance(default, int):
        usual = exact_duration(default) if METAVARS.get(name) == "DURATION" else default
        about = f"{about} [default: {usual:g}]" if isinstance(usual, float) else f"{about} [default: {usual}]"
    if name in METAVARS:
        return click.option(flag, metavar=METAVARS[name], help=about)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return click.option(flag, type=click.Choice([word.value for word in kind]), help=about)
    return click.option(flag, type=kind if kind in (int, float) else str, help=about)


timing_options = decorated(
    *map(_option, ("cron", "every", "at", "zone", "anchor", "start", "end", "exclude")),
)
"""When a schedule ticks: ``--cron``, ``--every``, ``--at``, what goes with them, and what bounds them."""

arguments_options = decorated(
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
"""``--args``, ``--kwargs`` and ``--arg``."""

_policy_options = decorated(
    *map(_option, ("semantics", "timeout", "retries", "retry_first", "retry_factor", "retry_max")),
    *map(_option, ("queue", "priority")),
    click.option(
        "--require",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only on workers with this label. May be repeated.",
    ),
    *map(_option, ("overlap", "buffer_max", "catch_up", "catch_up_window", "catch_up_max")),
    *map(_option, ("misfire_after", "start_deadline", "jitter", "resume", "pause_on_failure")),
    *map(_option, ("keep_runs", "keep_days")),
)
"""How its runs are run, and what becomes of those that fail or come late."""


@click.command()
@click.argument("name")
@click.option("--task", required=True, help="Celery task that is run, by its name.")
@timing_options
@arguments_options
@_policy_options
@click.option("--paused", is_flag=True, help="Declare it, but do not fire it yet.")
@changes
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
    answer_done(invocation, [name], "added")
    warn_ended([added], now=invocation.clock.now())
    warn_unserved(invocation.jobs, [name])


@click.command()
@click.argument("name")
@click.option("--task", help="Another Celery task.")
@timing_options
@arguments_options
@_policy_options
@changes
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
        answer_done(invocation, [name], "edited")
        return
    if isinstance(before.timing, Beat):
        raise InvalidInput(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    after = read_spec(with_options(plain_schedule(before), given))
    changes = plain_difference(plain_schedule(before), plain_schedule(after))
    edited = [invocation.jobs.schedules.edit(name, after)] if changes else []
    if not invocation.json:
        write_difference(changes)
    answer_done(invocation, [name], "edited" if changes else "unchanged")
    warn_ended(edited, now=invocation.clock.now())
    warn_unserved(invocation.jobs, [name])


@click.command(short_help="Print schedules and queues as a manifest.")
@click.argument("names", nargs=-1)
@click.option("--prefix", default="", help="Only those whose name begins so.")
@pass_invocation
def export(invocation: Invocation, *, names: Sequence[str], prefix: str) -> None:
    """Print schedules as a manifest that `feedq apply` takes; all of them, and the queues, unless named.

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
    lists: dict[str, Iterable[Any]] = {
        "schedules": map(plain_schedule, chosen),  # one by one: there may be a hundred thousand
        "queues": list(map(plain_queue, queues)),
    }
    if invocation.json:
        write_json({key: list(found) for key, found in lists.items()})
        return
    for part in documents.dump_lists({key: found for key, found in lists.items() if found}):
        click.echo(part, nl=False)


def read_spec(keys: Mapping[str, Any]) -> ScheduleSpec:
    """Reads a declaration. Raises `InvalidInput` with everything that is wrong."""
    return ScheduleEntry.valid(keys).spec


def read_arguments(
    *, args: str | None, kwargs: str | None, named: Sequence[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads the keys ``args`` and ``kwargs``, as far as they are given. Raises `InvalidInput`."""
    keys: dict[str, Any] = {}
    if args is not None:
        keys["args"] = options.parse_list(args, option="--args")
    if kwargs is not None:
        keys["kwargs"] = options.parse_object(kwargs, option="--kwargs")
    if named:
        keys["kwargs"] = options.merge_arguments(keys.get("kwargs", before), named, option="--arg")
    return keys


def with_options(keys: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Puts what was given on the command line over the keys of a manifest."""
    found = {option: value for option, value in given.items() if value is not None}
    kwargs = keys.get("kwargs", {})
    arguments = {option: found.pop(option, None) for option in ("args", "kwargs")}
    merged = dict(keys) | read_arguments(**arguments, named=found.pop("named", ()), before=kwargs)
    if required := found.pop("require", ()):
        before = keys.get("selector", {}).get("required", {})
        labels = (options.split_assignment(text, option="--require") for text in required)
        merged["selector"] = {"required": dict(before) | dict(labels)}
    for kind, siblings in TIMING_KEYS.items():
        if kind in found:
            # Of another kind of timing nothing is left, but the zone of the new time.
            with_zone = kind != "every" or "exclude" in merged
            kept = siblings if kind in merged else ("zone",) if with_zone else ()
            others = {key for each in TIMING_KEYS.values() for key in each} - {*kept}
            merged = {key: value for key, value in merged.items() if key not in others}
    for option, value in found.items():
        outer, inner = _BELOW.get(option, (option, None))
        value = _number(value) if METAVARS.get(option) == "N" else value
        merged[outer] = value if inner is None else {**merged.get(outer, {}), inner: value}
    return merged


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text
