"""`feedq feed set` and `edit`, and the same for schedules: they change a declaration as a manifest has it.

`set` puts ``key=value`` into it, `edit` opens an editor. The result is checked as `feedq apply` would check it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from feedq.cli.apply import checked, read_file
from feedq.cli.choosing import (
    choose,
    confirm_chosen,
    declare_all,
    fail_if_any,
    selection_of,
    selection_options,
)
from feedq.cli.invocation import Invocation, changes, yes_option
from feedq.cli.options import assigned, split_words
from feedq.cli.output import answer_done, write_difference, write_json
from feedq.errors import Conflict, FeedqError, InvalidInput

if TYPE_CHECKING:
    from feedq.core.model import FeedSpec
    from feedq.core.schedule.model import ScheduleSpec
    from feedq.verbs.manifest.changes import Change, OptionChange
    from feedq.verbs.manifest.reader import Declaration

NOTHING = "nothing to set; give KEY=VALUE, such as {}"
HEAD = "# What you save is checked and shown before anything changes. An unchanged file changes nothing.\n"
words_argument = click.argument("names", nargs=-1, metavar="[NAME]... KEY=VALUE...")
Spec = TypeVar("Spec", "FeedSpec", "ScheduleSpec")


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
    from feedq.verbs.manifest import feed_entry
    from feedq.verbs.manifest.changes import Action, Change, difference
    from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed

    named, assignments = split_words(names)
    if not assignments:
        raise click.UsageError(NOTHING.format("weight=2"))
    selection = selection_of(named, **chosen)
    views = choose(invocation, selection)
    if invocation.api is not None:
        views = invocation.api.feeds.whole(views)
    planned: list[Change] = []
    for view in views:
        before = view.feed.spec
        entry = FeedEntry.valid(assigned(plain_feed(before), assignments, FeedEntry))
        if entry.resume is not None:
            raise InvalidInput("resume: is for new feeds; `feedq feed cursor set` moves one that is there")
        after = entry.spec
        _check_name("feed", before, after)
        feed_entry.validate(after)
        planned.append(Change(Action.CHANGE, "feed", before.name, after, difference(before, after)))
    differing = [change for change in planned if change.options]
    if differing:
        of = {change.name for change in differing}
        confirm_chosen(invocation, selection, [v for v in views if v.feed.name in of], "Change", yes=yes)
    result = declare_all(invocation, differing, {}, what="feeds changed")
    done = {change.name for change, _ in result.done}
    _answer(invocation, [change for change in planned if not change.options or change.name in done])
    fail_if_any(result, "changed")


@click.command("edit")
@click.argument("name")
@changes
def edit_feed(invocation: Invocation, *, name: str) -> None:
    """Edit a feed as it stands in a manifest, in $EDITOR; it starts anew with that, where it left off.

    \b
    Example:
      feedq feed edit acme/orders
    """
    from feedq.verbs.manifest.changes import Action, Change
    from feedq.verbs.manifest.feed_entry import plain_feed

    def current() -> FeedSpec:
        invocation.live_feed(name)
        return invocation.store.feeds.view(name).feed.spec

    def change(spec: FeedSpec, options: Sequence[OptionChange]) -> None:
        changing = Change(Action.CHANGE, "feed", name, spec, tuple(options))
        fail_if_any(declare_all(invocation, [changing], {}), "changed")

    _edit(invocation, "feed", current, plain_feed, change)


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
    from feedq.cli.tables import warn_unserved
    from feedq.core.schedule.entries import plain_schedule
    from feedq.verbs.manifest.changes import Action, Change, plain_difference

    named, assignments = split_words(names)
    if not named or not assignments:
        raise click.UsageError(NOTHING.format("timeout=30m") if named else "which schedules? name them")
    planned: list[Change] = []
    for name in dict.fromkeys(named):
        before = declared_schedule(invocation, name)
        after = with_assignments(before, assignments)
        _check_name("schedule", before, after)
        options = plain_difference(plain_schedule(before), plain_schedule(after))
        planned.append(Change(Action.CHANGE, "schedule", name, after, options))
    for change in planned:
        if change.options:
            _change_schedule(invocation, change.name, change.spec)
    _answer(invocation, planned)
    warn_unserved(invocation.jobs, named)


@click.command("edit")
@click.argument("name")
@changes
def edit_schedule(invocation: Invocation, *, name: str) -> None:
    """Edit a schedule as it stands in a manifest, in $EDITOR. It holds for ticks to come; runs stay as they are.

    \b
    Example:
      feedq schedule edit acme/cleanup
    """
    from feedq.cli.tables import warn_unserved
    from feedq.core.schedule.entries import plain_schedule

    def change(spec: ScheduleSpec, _: Sequence[OptionChange]) -> None:
        _change_schedule(invocation, name, spec)
        warn_unserved(invocation.jobs, [name])

    _edit(invocation, "schedule", lambda: declared_schedule(invocation, name), plain_schedule, change)


def declared_schedule(invocation: Invocation, name: str) -> ScheduleSpec:
    """A schedule that people declare. Raises `InvalidInput` for one that the beat's own file has."""
    from feedq.core.schedule.model import Beat

    spec = invocation.jobs.schedules.get(name).spec
    if isinstance(spec.timing, Beat):
        raise InvalidInput(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
    return spec


def with_assignments(spec: ScheduleSpec, assignments: Sequence[str]) -> ScheduleSpec:
    """The schedule with these keys set. Raises `InvalidInput` with everything that is wrong."""
    from feedq.core.schedule.entries import TIMING_KEYS, ZONED_KEYS, ScheduleEntry, plain_schedule

    keys = plain_schedule(spec)
    given = {assignment.partition("=")[0] for assignment in assignments}
    for kind, siblings in TIMING_KEYS.items():
        if kind in given and kind not in keys:
            stale = {key for each in TIMING_KEYS.values() for key in each} - {*siblings}
            if kind == "every" and not (keys.keys() | given) & {*ZONED_KEYS}:
                stale.add("zone")
            keys = {key: value for key, value in keys.items() if key not in stale}
    return ScheduleEntry.valid(assigned(keys, assignments, ScheduleEntry)).spec


def _change_schedule(invocation: Invocation, name: str, spec: Any) -> None:
    from feedq.cli.tables import warn_ended

    changed = invocation.jobs.schedules.edit(name, spec)
    warn_ended([changed], now=invocation.clock.now())


# -- both --------------------------------------------------------------------------------------------


def _check_name(noun: str, before: Spec, after: Spec) -> None:
    if after.name != before.name:
        raise InvalidInput(
            f"name: {noun} {before.name!r} keeps its name; declare another one and remove this one"
        )


def _answer(invocation: Invocation, planned: Sequence[Change]) -> None:
    results = {change.name: "changed" if change.options else "unchanged" for change in planned}
    if invocation.json:
        write_json([{"name": name, "result": result} for name, result in results.items()])
        return
    for change in planned:
        write_difference(change.options)
        answer_done(invocation, [change.name], results[change.name])


def _edit(
    invocation: Invocation,
    noun: str,
    current: Callable[[], Spec],
    plain: Callable[[Spec], dict[str, Any]],
    change: Callable[[Spec, Sequence[OptionChange]], None],
) -> None:
    """Lets a person edit a declaration. What was written is kept whenever it was not applied."""
    from feedq.verbs import documents
    from feedq.verbs.manifest.changes import plain_difference

    before = current()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            f"an editor needs a terminal; use `feedq {noun} set {before.name} KEY=VALUE` or `feedq apply -f -`"
        )
    text = HEAD + documents.dump({f"{noun}s": [plain(before)]})
    descriptor, path = tempfile.mkstemp(prefix="feedq-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    click.edit(filename=path)
    if Path(path).read_bytes() == text.encode():
        Path(path).unlink()
        answer_done(invocation, [before.name], "unchanged")
        return
    try:
        after = _read(path, noun, before)
        options = plain_difference(plain(before), plain(after))
        write_difference(options)
        if options and not click.confirm(f"Change {noun} {before.name}?", err=True):
            raise InvalidInput("nothing was changed")
        if current() != before:
            raise Conflict(
                f"{noun} {before.name!r} was changed by somebody else meanwhile; nothing was changed"
            )
        if options:
            change(after, options)
    except FeedqError as error:
        from feedq.core.remedies import command

        raise type(error)(
            f"{error}\nwhat you wrote is kept in {path}: `{command('apply', '-f', path)}`"
        ) from None
    Path(path).unlink()
    answer_done(invocation, [before.name], "changed" if options else "unchanged")


def _read(path: str, noun: str, before: Spec) -> Spec:
    from feedq.core.model import FeedSpec
    from feedq.verbs.manifest.reader import ENTRIES

    manifest = checked([read_file(path)])
    found: list[Declaration[Any]] = [declaration for key in ENTRIES for declaration in getattr(manifest, key)]
    if len(found) != 1 or not isinstance(found[0].spec, type(before)):
        raise InvalidInput(f"the file must hold {noun} {before.name!r} and nothing else")
    after = found[0].spec
    _check_name(noun, before, after)
    if found[0].says_target:
        return after
    if isinstance(before, FeedSpec):
        return replace(after, target_state=before.target_state)
    return replace(after, paused=before.paused)
