"""`feedq feed set` and `edit`, and the same for schedules: they change a declaration as a manifest has it.

`set` puts ``key=value`` into it, `edit` opens an editor. The result is checked as `feedq apply` would check it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.apply import checked, fail_if_not_made, read_file, warn_of_schedules
from feedq.cli.choosing import NAMES_AT_ONCE, require_some, selection_of, selection_options
from feedq.cli.invocation import Invocation, changes, yes_option
from feedq.cli.options import assigned, split_words
from feedq.cli.output import answer, write_difference
from feedq.errors import FeedqError, InvalidInput, NotFound, Unreadable

if TYPE_CHECKING:
    from feedq.core.schedule.spec import ScheduleSpec
    from feedq.core.selection import Selection
    from feedq.verbs.declarations import ChangeDocument
    from feedq.verbs.manifest.feed_entry import FeedEntry

NOTHING = "nothing to set; give KEY=VALUE, such as {}"
HEAD = "# What you save is checked and shown before anything changes. An unchanged file changes nothing.\n"
words_argument = click.argument("names", nargs=-1, metavar="[NAME]... KEY=VALUE...")


# -- feeds -------------------------------------------------------------------------------------------


@click.command("set")
@words_argument
@selection_options
@yes_option
@changes
def set_feeds(invocation: Invocation, *, names: Sequence[str], yes: bool, **chosen: Any) -> None:
    """Set keys of feeds as in a manifest and keep the rest; feeds start anew with them, where they left off.

    Dots lead into mappings. Values that begin with a brace, a bracket or a quote are YAML; a plain word or number
    means what it means there, and other text is itself. KEY= takes a key out, so that it has its default.
    All feeds are checked first: if one would be wrong, none is changed.

    \b
    Example:
      feedq feed set acme/orders source.url=tcp://10.0.0.7:7001 source.hello=
      feedq feed set --tenant acme weight=2 expect.max_silence=20s labels.region=eu
    """
    from feedq.verbs.manifest.feed_entry import FeedEntry
    from feedq.verbs.wording import counted, some

    named, assignments = split_words(names)
    if not assignments:
        raise click.UsageError(NOTHING.format("weight=2"))
    selection = selection_of(named, **chosen)
    entries: list[FeedEntry] = []
    for before in _declared_feeds(invocation, selection):
        after = FeedEntry.valid(assigned(before.plain(), assignments, FeedEntry))
        if after.resume is not None:
            raise InvalidInput("resume: is for new feeds; `feedq feed cursor set` moves one that is there")
        _check_name(before, after)
        entries.append(after)

    def confirm(changes: Sequence[ChangeDocument]) -> None:
        if changes:
            what = f"{counted(len(changes), 'feed')} ({some(changes, lambda one: one.name)})"
            invocation.confirm(f"Change {what}?", yes=yes)

    # Whoever names feeds has said so already.
    _set(invocation, {"feeds": tuple(entries)}, None if selection.names or yes else confirm)


def _declared_feeds(invocation: Invocation, selection: Selection) -> list[FeedEntry]:
    """The declarations of the feeds that are named or chosen. Raises `InvalidInput` when nothing says which,
    `NotFound` when one that is named does not exist or none is chosen."""
    from feedq.verbs.declarations import list_declared_feeds
    from feedq.verbs.feeds import FeedAction, act_on_feeds

    # Any action will do: it is not done.
    tried = invocation.do(act_on_feeds, action=FeedAction.RESTART, select=selection, dry_run=True)
    require_some(invocation, tried)
    found: list[FeedEntry] = []
    for start in range(0, tried.count, NAMES_AT_ONCE):
        part = tuple(one.name for one in tried.done[start : start + NAMES_AT_ONCE])
        page = invocation.do(list_declared_feeds, names=part, limit=NAMES_AT_ONCE)
        found += [one.declaration for one in page.items]
    return found


@click.command("edit")
@click.argument("name")
@changes
def edit_feed(invocation: Invocation, *, name: str) -> None:
    """Edit a feed as it stands in a manifest, in $EDITOR; it starts anew with that, where it left off.

    \b
    Example:
      feedq feed edit acme/orders
    """
    from feedq.verbs.declarations import list_declared_feeds
    from feedq.verbs.feeds import show_feed

    found = invocation.do(list_declared_feeds, names=(name,)).items
    if not found:
        invocation.do(show_feed, name=name)
        raise NotFound(f"feed {name!r} is being removed")
    _edit(invocation, "feed", found[0].declaration, found[0].etag)


# -- schedules ---------------------------------------------------------------------------------------


@click.command("set")
@words_argument
@changes
def set_schedules(invocation: Invocation, *, names: Sequence[str]) -> None:
    """Set keys of schedules as in a manifest and keep the rest. It holds for ticks to come; runs stay as they are.

    Keys and values are written as for `feedq feed set`. Another kind of timing takes the place of the one before.

    \b
    Example:
      feedq schedule set acme/cleanup cron="0 3 * * *" timeout=30m kwargs.days=7
      feedq schedule set acme/poll every=30s retries=3
    """
    named, assignments = split_words(names)
    if not named or not assignments:
        raise click.UsageError(NOTHING.format("timeout=30m") if named else "which schedules? name them")
    entries: list[ScheduleSpec] = []
    for name in dict.fromkeys(named):
        before, _ = declared_schedule(invocation, name)
        after = with_assignments(before, assignments)
        _check_name(before, after)
        entries.append(after)
    _set(invocation, {"schedules": tuple(entries)})


@click.command("edit")
@click.argument("name")
@changes
def edit_schedule(invocation: Invocation, *, name: str) -> None:
    """Edit a schedule as it stands in a manifest, in $EDITOR. It holds for ticks to come; runs stay as they are.

    \b
    Example:
      feedq schedule edit acme/cleanup
    """
    _edit(invocation, "schedule", *declared_schedule(invocation, name))


def declared_schedule(invocation: Invocation, name: str) -> tuple[ScheduleSpec, str]:
    """A schedule that people declare, and its ETag. Raises `InvalidInput` for an entry of the beat's own file, and
    `Unreadable`."""
    from feedq.verbs.declarations import list_declared_schedules
    from feedq.verbs.schedules import show_schedule

    found = invocation.do(list_declared_schedules, names=(name,)).items
    if not found:
        invocation.do(show_schedule, name=name)
        raise InvalidInput(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    if found[0].declaration is None:
        raise Unreadable(str(found[0].unreadable))
    return found[0].declaration, found[0].etag


def with_assignments(entry: ScheduleSpec, assignments: Sequence[str]) -> ScheduleSpec:
    """The schedule with these keys set. Raises `InvalidInput` with everything that is wrong."""
    from feedq.core.schedule.spec import TIMING_KEYS, ZONED_KEYS, ScheduleSpec

    keys = entry.plain()
    given = {assignment.partition("=")[0] for assignment in assignments}
    for kind, siblings in TIMING_KEYS.items():
        if kind in given and kind not in keys:
            stale = {key for each in TIMING_KEYS.values() for key in each} - {*siblings}
            if kind == "every" and not (keys.keys() | given) & {*ZONED_KEYS}:
                stale.add("zone")
            keys = {key: value for key, value in keys.items() if key not in stale}
    return ScheduleSpec.valid(assigned(keys, assignments, ScheduleSpec))


# -- both --------------------------------------------------------------------------------------------


def _check_name(before: FeedEntry | ScheduleSpec, after: FeedEntry | ScheduleSpec) -> None:
    if after.name != before.name:
        raise InvalidInput(
            f"name: {before.noun} {before.name!r} keeps its name; declare another one and remove this one"
        )


def _set(
    invocation: Invocation,
    asked: dict[str, Any],
    confirm: Callable[[Sequence[ChangeDocument]], object] | None = None,
    *,
    is_shown: bool = False,
) -> None:
    """Makes the declarations, confirmed if need be, and says of each whether it has changed, and how unless that
    ``is_shown`` already."""
    from feedq.verbs.declarations import declare
    from feedq.verbs.wording import printable

    if confirm is not None:
        confirm(invocation.do(declare, **asked, dry_run=True).changes)
    with invocation.progress("changes"):
        found = invocation.do(declare, **asked)
    warn_of_schedules(found, asked.get("schedules", ()), now=invocation.clock.now())
    changes = {change.name: change for change in found.changes}

    def write() -> None:
        for entry in (*asked.get("feeds", ()), *asked.get("schedules", ())):
            change = changes.get(entry.name)
            if change is None or change.error is None:
                write_difference(() if change is None or is_shown else change.options)
                click.echo(printable(f"{entry.name} {'unchanged' if change is None else 'changed'}"))

    answer(invocation, found, write)
    fail_if_not_made(found)


def _edit(invocation: Invocation, noun: str, before: FeedEntry | ScheduleSpec, etag: str) -> None:
    """Lets a person edit a declaration. What was written is kept whenever it was not applied."""
    from feedq.verbs import documents

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
    try:
        after = _read(path, before)

        def confirm(changes: Sequence[ChangeDocument]) -> None:
            for change in changes:
                write_difference(change.options)
            if changes and not click.confirm(f"Change {noun} {before.name}?", err=True):
                raise InvalidInput("nothing was changed")

        _set(invocation, {f"{noun}s": (after,), "expected": etag}, confirm, is_shown=True)
    except FeedqError as error:
        from feedq.core.remedies import command

        raise type(error)(
            f"{error}\nwhat you wrote is kept in {path}: `{command('apply', '-f', path)}`"
        ) from None
    Path(path).unlink()


def _read(path: str, before: FeedEntry | ScheduleSpec) -> FeedEntry | ScheduleSpec:
    from feedq.verbs.manifest.reader import ENTRIES

    manifest = checked([read_file(path)])
    found: list[Any] = [declaration.entry for key in ENTRIES for declaration in getattr(manifest, key)]
    if len(found) != 1 or not isinstance(found[0], type(before)):
        raise InvalidInput(f"the file must hold {before.noun} {before.name!r} and nothing else")
    _check_name(before, found[0])
    return found[0]
