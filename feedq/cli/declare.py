"""`feedq feed set` and `edit`, the same for schedules, and `feedq export`: what is declared, as a manifest has it.

`set` puts ``key=value`` into it, `edit` opens an editor. The result is checked as `feedq apply` would check it.

Keys are those of a manifest, with dots into mappings: ``weight=2``, ``expect.max_silence=20s``. Values are read by
`feedq.verbs.documents.read_value`. ``key=`` takes a key out, so that it has its default.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import click

from feedq.cli import options
from feedq.cli.apply import declare, read_manifests
from feedq.cli.choosing import chooses_feeds, listed, none_match
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.options import split_assignment
from feedq.cli.output import ProgressLine, answer, say, write_difference
from feedq.errors import FeedqError, Forbidden, InvalidInput, NotFound, Unreadable

with lazily():
    from feedq.core import model, remedies, selection, values
    from feedq.core.schedule import spec as schedule_spec
    from feedq.verbs import declarations, documents, feeds, manifests, schedules, wording

DeclaredEntry: TypeAlias = "model.FeedSpec | schedule_spec.ScheduleSpec"
NOTHING = "nothing to set; give KEY=VALUE, such as {}"
LABELS = ("labels", "selector.required", "selector.preferred")
"""Mappings whose keys may have dots themselves."""
HEAD = "# What you save is checked and shown before anything changes. An unchanged file changes nothing.\n"


# -- feeds -------------------------------------------------------------------------------------------


@options.command("set")
@chooses_feeds
@options.yes
@options.changes
def set_feeds(invocation: Invocation, *, select: selection.Selection, yes: bool) -> None:
    """Change keys of feeds, as in a manifest, and keep the rest. The feeds restart where they left off.

    KEY=VALUE follows the names; dots lead into mappings. A value is a plain word, a number, or YAML in
    braces, brackets or quotes; `KEY=` restores the default. If the change is wrong for one feed, none is
    changed.

    \b
    Example:
      feedq feed set acme/orders source.url=tcp://10.0.0.7:7001 source.hello=
      feedq feed set --tenant acme weight=2 expect.max_silence=20s labels.region=eu
    """
    names, assignments = split_words(select.names)
    if not assignments:
        raise click.UsageError(NOTHING.format("weight=2"))
    select = replace(select, names=tuple(names))
    if select.is_empty:
        raise click.UsageError(
            "which feeds? name them, or choose them by --tenant, --match or another option"
        )
    made: list[model.FeedSpec] = []
    for one in listed(invocation, declarations.list_declared_feeds, select):
        before: model.FeedSpec = one.declaration
        after = model.FeedSpec.valid(assigned(before.plain(), assignments, model.FeedSpec))
        if after.resume is not None:
            raise InvalidInput("resume: only for new feeds; `feedq feed cursor set` moves an existing one")
        _check_name(before, after)
        made.append(after)
    if missing := sorted({*names} - {one.name for one in made}):
        raise _undeclared(invocation, missing[0])
    if not made:
        raise NotFound(none_match(invocation, "nothing is done"))

    def question(would: declarations.Declared) -> str | None:
        found = would.changes
        what = f"{wording.counted(len(found), 'feed')} ({wording.some(found, lambda one: one.name)})"
        return f"Change {what}?" if found else None

    # Whoever names feeds has said so already.
    _set(invocation, question, yes=yes or bool(names), feeds=tuple(made))


@options.command("edit")
@click.argument("name")
@options.changes
def edit_feed(invocation: Invocation, *, name: str) -> None:
    """Edit a feed's declaration in $EDITOR. The feed then restarts where it left off.

    \b
    Example:
      feedq feed edit acme/orders
    """
    named = selection.Selection((name,))
    found = invocation.do(declarations.list_declared_feeds, select=named).items
    if not found:
        raise _undeclared(invocation, name)
    _edit(invocation, found[0].declaration, found[0].etag)


def _undeclared(invocation: Invocation, name: str) -> NotFound:
    """Why a feed has no declaration. Raises `NotFound` itself when there is none of that name."""
    invocation.do(feeds.show_feed, name=name)
    return NotFound(f"feed {name!r} is being removed")


# -- schedules ---------------------------------------------------------------------------------------


@options.command("set")
@click.argument("names", nargs=-1, metavar="[NAME]... KEY=VALUE...")
@options.changes
def set_schedules(invocation: Invocation, *, names: Sequence[str]) -> None:
    """Change keys of schedules, as in a manifest, and keep the rest. Existing runs are not affected.

    Keys and values are written as for `feedq feed set`. A new kind of timing replaces the old one.

    \b
    Example:
      feedq schedule set acme/cleanup cron="0 3 * * *" timeout=30m kwargs.days=7
      feedq schedule set acme/poll every=30s retries=3
    """
    named, assignments = split_words(names)
    if not named or not assignments:
        raise click.UsageError(NOTHING.format("timeout=30m") if named else "which schedules? name them")
    made: list[schedule_spec.ScheduleSpec] = []
    for name in dict.fromkeys(named):
        before, _ = declared_schedule(invocation, name)
        after = with_assignments(before, assignments)
        _check_name(before, after)
        made.append(after)
    _set(invocation, schedules=tuple(made))


@options.command("edit")
@click.argument("name")
@options.changes
def edit_schedule(invocation: Invocation, *, name: str) -> None:
    """Edit a schedule's declaration in $EDITOR. Existing runs are not affected.

    \b
    Example:
      feedq schedule edit acme/cleanup
    """
    _edit(invocation, *declared_schedule(invocation, name))


def declared_schedule(invocation: Invocation, name: str) -> tuple[schedule_spec.ScheduleSpec, str]:
    """A schedule that people declare, and its ETag. Raises `InvalidInput` for an entry of the beat's own file, and
    `Unreadable`."""
    found = invocation.do(declarations.list_declared_schedules, names=(name,)).items
    if not found:
        invocation.do(schedules.show_schedule, name=name)
        raise InvalidInput(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    if found[0].declaration is None:
        raise Unreadable(str(found[0].unreadable))
    return found[0].declaration, found[0].etag


def with_assignments(
    entry: schedule_spec.ScheduleSpec, assignments: Sequence[str]
) -> schedule_spec.ScheduleSpec:
    """The schedule with these keys set. Raises `InvalidInput` with everything that is wrong."""
    keys = entry.plain()
    given = {assignment.partition("=")[0] for assignment in assignments}
    for kind, siblings in schedule_spec.TIMING_KEYS.items():
        if kind in given and kind not in keys:
            stale = {key for each in schedule_spec.TIMING_KEYS.values() for key in each} - {*siblings}
            if kind == "every" and not (keys.keys() | given) & {*schedule_spec.ZONED_KEYS}:
                stale.add("zone")
            keys = {key: value for key, value in keys.items() if key not in stale}
    return schedule_spec.ScheduleSpec.valid(assigned(keys, assignments, schedule_spec.ScheduleSpec))


# -- both --------------------------------------------------------------------------------------------


def _check_name(before: DeclaredEntry, after: DeclaredEntry) -> None:
    if after.name != before.name:
        raise InvalidInput(
            f"name: {before.noun} {before.name!r} cannot be renamed; declare another one and remove this one"
        )


def _set(
    invocation: Invocation,
    question: Callable[[declarations.Declared], str | None] = lambda would: None,
    *,
    yes: bool = True,
    is_shown: bool = False,
    **asked: Any,
) -> None:
    """Makes the declarations, confirmed if need be, and says of each whether it has changed, and how unless that
    ``is_shown`` already."""

    def show(found: declarations.Declared) -> None:
        changed = {change.name: change for change in found.changes}
        for entry in (*asked.get("feeds", ()), *asked.get("schedules", ())):
            change = changed.get(entry.name)
            if change is None or change.error is None:
                write_difference(() if change is None or is_shown else change.options)
                say(f"{entry.name} {'unchanged' if change is None else 'changed'}")

    declare(invocation, question, show, yes=yes, **asked)


def _edit(invocation: Invocation, before: DeclaredEntry, etag: str) -> None:
    """Lets a person edit a declaration. What was written is kept whenever it was not applied."""
    noun = before.noun
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            f"an editor needs a terminal; use `feedq {noun} set {before.name} KEY=VALUE` or `feedq apply -f -`"
        )
    text = HEAD + documents.dump({f"{noun}s": [before.plain()]})
    descriptor, path = tempfile.mkstemp(prefix="feedq-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    click.edit(filename=path)
    if Path(path).read_bytes() == text.encode():
        Path(path).unlink()
        click.echo(f"{before.name} unchanged")
        return

    def question(would: declarations.Declared) -> str | None:
        for change in would.changes:
            write_difference(change.options)
        return f"Change {noun} {before.name}?" if would.changes else None

    try:
        after = _read(path, before)
        try:
            _set(invocation, question, yes=False, is_shown=True, expected=etag, **{f"{noun}s": (after,)})
        except click.Abort:
            raise InvalidInput("nothing was changed") from None
    except FeedqError as error:
        again = remedies.command("apply", "-f", path)
        raise type(error)(f"{error}\nwhat you wrote is kept in {path}: `{again}`") from None
    Path(path).unlink()


def _read(path: str, before: DeclaredEntry) -> DeclaredEntry:
    manifest = read_manifests([path])
    found: list[Any] = [
        declaration.spec for key in manifests.ENTRIES for declaration in getattr(manifest, key)
    ]
    if len(found) != 1 or not isinstance(found[0], type(before)):
        raise InvalidInput(f"the file must contain {before.noun} {before.name!r} and nothing else")
    _check_name(before, found[0])
    return found[0]


# -- key=value ---------------------------------------------------------------------------------------


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tells names from assignments, which have an equals sign."""
    given = list(words)
    return [word for word in given if "=" not in word], [word for word in given if "=" in word]


def assigned(keys: Mapping[str, Any], assignments: Iterable[str], kind: type[values.Entry]) -> dict[str, Any]:
    """An entry of a manifest with ``key=value`` put into it, which is not checked. Raises `InvalidInput`."""
    changed = dict(keys)
    shorthands = {key: below.shorthand for key, below in values.entries_below(kind) if below.shorthand}
    for text in assignments:
        path, value = split_assignment(text, option="")
        *outer, last = _steps(path)
        inner = changed
        for number, key in enumerate(outer):
            below = {} if inner.get(key) is None else inner[key]
            if not isinstance(below, dict) and not number and key in shorthands:
                below = {shorthands[key]: below}
            if not isinstance(below, dict):
                raise InvalidInput(f"{path}: {key!r} is not a mapping")
            inner[key] = dict(below)  # what was given stays as it is
            inner = inner[key]
        if value:
            inner[last] = _value(path, value)
        elif inner.pop(last, None) is None:
            raise InvalidInput(f"{path}: is not set{values.did_you_mean(last, inner)}")
    return changed


def _steps(path: str) -> list[str]:
    for place in LABELS:
        if path.startswith(f"{place}.") and path != f"{place}.":
            return [*place.split("."), path.removeprefix(f"{place}.")]
    return path.split(".")


@cache  # thousands of feeds may be given the same
def _value(path: str, text: str) -> Any:
    try:
        return documents.read_value(text)
    except documents.DocumentError as error:  # without the text: it may hold a secret
        raise InvalidInput(
            f"{path}: {error}; quote a text that begins with a brace, a bracket or a quote"
        ) from None


# -- as a manifest -----------------------------------------------------------------------------------


@options.command(short_help="Print feeds, schedules and queues as a manifest.")
@chooses_feeds
@click.option(
    "--with-cursors",
    is_flag=True,
    help="Include each feed's cursor, so that it continues there when it is applied elsewhere.",
)
def export(invocation: Invocation, *, select: selection.Selection, with_cursors: bool) -> None:
    """Print feeds, schedules and queues as a manifest for `feedq apply`: all of them, those named, or the
    chosen feeds.

    Pause the feeds before you export their cursors: what they import afterwards would be imported again
    elsewhere.

    \b
    Example:
      feedq export > feeds.yaml
      feedq export acme/orders --with-cursors > moved.yaml
    """
    names, is_by_name = select.names, select == selection.Selection(names=select.names)
    with ProgressLine("feeds") as line:
        line.may_show &= not sys.stdout.isatty()  # there the feeds themselves go by
        found = _plain_feeds(invocation, select, line, with_cursors=with_cursors)
        if names:
            found = list(found)
        named = [entry["name"] for entry in found] if isinstance(found, list) else []
        lists: dict[str, Iterable[Any]] = {} if is_by_name and names and not named else {"feeds": found}
        if is_by_name:
            lists |= _jobs(invocation, names, named)
        if invocation.json:
            answer(invocation, {key: list(one) for key, one in lists.items()})
            return
        for part in documents.dump_lists(lists):
            click.echo(part, nl=False)


def _plain_feeds(
    invocation: Invocation, select: selection.Selection, line: ProgressLine, *, with_cursors: bool
) -> Iterable[dict[str, Any]]:
    found = listed(invocation, declarations.list_declared_feeds, select, with_cursors=with_cursors)
    for done, one in enumerate(found, 1):
        yield one.declaration.plain()
        line(done)


def _jobs(invocation: Invocation, names: Sequence[str], named: Sequence[str]) -> dict[str, Iterable[Any]]:
    """The lists of schedules and queues that are not empty. Raises `NotFound` for a name that neither a feed nor a
    schedule has."""
    missing = sorted({*names} - {*named})
    try:
        every = invocation.pages(declarations.list_declared_schedules)
        found = [one for one in every if not names or one.name in names]
    except Forbidden:
        if not names or missing:
            raise
        return {}  # schedules are for those who may see everything
    there = {one.name for one in found}
    if unknown := [name for name in missing if name not in there]:
        raise NotFound(f"no feed and no schedule named {', '.join(map(repr, unknown))}")
    if unreadable := [one.unreadable for one in found if one.unreadable is not None]:
        raise Unreadable("\n".join(unreadable))
    queues = [] if names else invocation.do(declarations.list_declared_queues).items
    lists: dict[str, Iterable[Any]] = {}
    if found:
        lists["schedules"] = (one.declaration.plain() for one in found if one.declaration is not None)
    if queues:
        lists["queues"] = [queue.plain() for queue in queues]
    return lists
