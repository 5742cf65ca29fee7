"""`feedq apply`, `diff`, `lint` and `schema`: make feeds, schedules and queues as manifests declare them, and say
what that would change, whether they are right, and what they may hold.

Everything is read and checked before anything is changed: one mistake in one of them, and nothing is applied.
Then feeds are changed, some hundred in a transaction, and the rest one by one; if the database goes away half way,
applying again does the rest.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.choosing import first_few
from feedq.cli.invocation import Invocation, changes, pass_invocation
from feedq.cli.output import answer, write_difference, write_json
from feedq.errors import FeedqError, InvalidInput, error_of

if TYPE_CHECKING:
    from feedq.core.schedule.spec import ScheduleSpec
    from feedq.verbs.declarations import ChangeDocument, Declared
    from feedq.verbs.manifest.reader import Manifest, ManifestProblem

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
"""Names of files that are manifests, in directories, end so."""
BYTES_MAX = 64 * 2**20
"""A larger file is no manifest; it is refused before it is read."""
SIGNS = {"add": "+", "change": "~", "remove": "-"}
"""By the actions of a change."""


file_option = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, allow_dash=True),
    help="A manifest, YAML or JSON, of one document or several; - is standard input, and of a directory all "
    "are taken. May be repeated.",
)
tenant_option = click.option("--tenant", help="With --prune: remove only feeds, and only this tenant's.")


@click.command(short_help="Declare feeds and schedules from YAML or JSON; shows what changes.")
@file_option
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what is not declared: feeds, schedules, queues, each if a manifest has its key.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Let new feeds go on from the checkpoints that feeds of their names have left in their sinks.",
)
@tenant_option
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing anything.")
@changes
def apply(
    invocation: Invocation,
    *,
    files: Sequence[str],
    prune: bool,
    adopt: bool,
    tenant: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make feeds, schedules and queues as the manifests declare them.

    All are checked first; if one is wrong, every mistake is listed and nothing is applied. A feed that does not
    say target_state keeps the one it has: what a person paused stays paused. So does every schedule.

    A new feed begins where its source begins, or where its `resume` says. If its sink knows a feed of that name,
    that is said, and --adopt goes on from there.

    \b
    Example:
      feedq apply -f feeds.yaml --dry-run
      cat feeds/*.yaml | feedq apply -f - --prune --yes
    """
    from feedq.verbs.declarations import declare

    with collector_paused():
        asked = _declared(files, prune=prune, tenant=tenant) | {"adopt": adopt}
        is_tried_first = dry_run or (prune and not yes)
        with invocation.progress("changes"):
            found = invocation.do(declare, **asked, dry_run=is_tried_first)
        _show(invocation, found)
        if is_tried_first and not dry_run:
            _confirm_removals(invocation, found)
            with invocation.progress("changes"):
                found = invocation.do(declare, **asked)
    warn_of_schedules(found, asked["schedules"] or (), now=invocation.clock.now())
    done = f"{found.added} added, {found.changed} changed, {found.removed} removed"
    answer(invocation, found, f"{done}, = {found.unchanged} unchanged" + (" (dry run)" if dry_run else ""))
    fail_if_not_made(found)


@click.command(short_help="What apply would change; the exit status says whether anything.")
@file_option
@click.option("--prune", is_flag=True, help="Also what would be removed because it is not declared.")
@tenant_option
@pass_invocation
def diff(invocation: Invocation, *, files: Sequence[str], prune: bool, tenant: str | None) -> None:
    """Show what `feedq apply` would change, and change nothing.

    Exit status: 0 all is as declared, 1 something differs, 2 it could not be found out.

    \b
    Example:
      feedq diff -f feeds/
    """
    from feedq.verbs.declarations import declare

    try:
        with collector_paused():
            asked = _declared(files, prune=prune, tenant=tenant)
            found = invocation.do(declare, **asked, dry_run=True)
    except FeedqError as error:
        # All that goes wrong has one exit status here: 1 says that something differs.
        raise InvalidInput(invocation.explain(error)) from error
    answer(invocation, found, lambda: show_changes(found.changes))
    if found.changes:
        raise SystemExit(1)


@click.command(short_help="Check manifests, without any server.")
@file_option
@pass_invocation
def lint(invocation: Invocation, *, files: Sequence[str]) -> None:
    """Check manifests: every mistake, with file and line. No server is asked.

    Exit status: 0 all is right, 2 something is wrong.

    \b
    Example:
      feedq lint -f feeds/
    """
    from feedq.verbs.manifest import reader
    from feedq.verbs.wording import counted

    with collector_paused():
        declared = checked(list(_manifests(files)))
    counts = {key: len(getattr(declared, key)) for key in reader.ENTRIES}
    found = [counted(count, key.removesuffix("s")) for key, count in counts.items() if count]
    answer(invocation, counts, f"{', '.join(found) or 'nothing declared'}: right")


@click.command(short_help="What manifests may say, as JSON Schema for editors.")
@pass_invocation
def schema(invocation: Invocation) -> None:
    """Print the JSON Schema of manifests, with the options of every connector that is installed, here or at the
    server.

    Editors check a manifest by it while it is written, and show what a key means.

    \b
    Example:
      feedq schema > feedq.schema.json
    """
    from feedq.verbs.fleet import show_schema

    write_json(invocation.do(show_schema))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Does without the search for cycles among objects: of a large manifest hundreds of thousands come into being,
    all of them in use, and to look through them again and again takes longer than to read it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _declared(files: Sequence[str], *, prune: bool, tenant: str | None) -> dict[str, Any]:
    """What the files declare, as arguments of the verb."""
    if tenant is not None and not prune:
        raise click.UsageError("--tenant limits --prune, and means nothing without it")
    manifest = checked(list(_manifests(files)))
    # Kinds that the manifests say nothing about are left alone: who keeps schedules in a file of their own does
    # not mean to lose all feeds with --prune.
    kinds = manifest.keys or {"feeds"}

    def entries(kind: str) -> tuple[Any, ...] | None:
        return tuple(one.entry for one in getattr(manifest, kind)) if kind in kinds else None

    return {kind: entries(kind) for kind in ("feeds", "schedules", "queues")} | {
        "prune": prune,
        "tenant": tenant,
    }


def _manifests(files: Sequence[str]) -> Iterator[Manifest]:
    """Reads files, and all manifests in directories and below these, by name."""
    from feedq.verbs.manifest.reader import Manifest, ManifestProblem

    for file in files:
        path = Path(file)
        if file == STDIN or not path.is_dir():
            yield read_file(file)
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        if not found:
            what = f"has no manifest, which is a file that ends in {', '.join(SUFFIXES)}"
            yield Manifest(problems=(ManifestProblem(file, what),))
        yield from map(read_file, map(str, found))


def read_file(file: str) -> Manifest:
    from feedq.verbs.manifest import reader
    from feedq.verbs.manifest.reader import Manifest, ManifestProblem

    origin = "standard input" if file == STDIN else os.fsdecode(file)
    try:
        if file == STDIN:
            raw = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            return Manifest(problems=(ManifestProblem(origin, f"is larger than {BYTES_MAX} bytes"),))
        return reader.parse(raw.decode("utf-8"), origin=origin)
    except OSError as error:
        return Manifest(problems=(ManifestProblem(origin, f"cannot be read: {error.strerror}"),))
    except UnicodeDecodeError as error:
        return Manifest(problems=(ManifestProblem(origin, f"is not UTF-8 text (byte {error.start})"),))


def checked(manifests: Sequence[Manifest]) -> Manifest:
    """Joins the manifests, if all are right. Raises `InvalidInput` with every mistake of every file."""
    from feedq.verbs.manifest import feed_entry, reader
    from feedq.verbs.manifest.reader import ManifestProblem

    joined = reader.join(manifests)
    found = [*joined.problems]
    for feed in joined.feeds:
        for what in feed_entry.option_problems(feed.spec):
            found.append(ManifestProblem(feed.where, f"feed {feed.entry.name!r}: {what}"))
    _refuse(found)
    return joined


def _refuse(found: Sequence[ManifestProblem]) -> None:
    from feedq.verbs.wording import counted, printable

    if found:
        mistakes = counted(len(found), "mistake")
        lines = "\n".join(f"  {printable(str(problem))}" for problem in found)
        raise InvalidInput(f"{mistakes}; nothing was applied\n{lines}")


def _show(invocation: Invocation, found: Declared) -> None:
    from feedq.verbs.wording import printable

    if invocation.json:
        return
    for note in found.unasked:
        click.echo(printable(note), err=True)
    show_changes(found.changes)


def show_changes(changes: Sequence[ChangeDocument]) -> None:
    from feedq.verbs.wording import printable

    for change in changes:
        noun = "" if change.kind == "feed" else f"{change.kind} "
        click.echo(f"{SIGNS[change.action]} {noun}{printable(change.name)}")
        if change.note is not None:
            click.echo(f"    {printable(change.note)}")
        write_difference(change.options)


def _confirm_removals(invocation: Invocation, found: Declared) -> None:
    from feedq.verbs.manifest.changes import Action
    from feedq.verbs.wording import counted

    removals = Counter(change.kind for change in found.changes if change.action is Action.REMOVE)
    if removals:
        what = " and ".join(counted(count, noun) for noun, count in removals.items())
        invocation.confirm(f"Remove {what} that the manifests do not declare?", yes=False)


def warn_of_schedules(found: Declared, declared: Sequence[ScheduleSpec], *, now: datetime) -> None:
    """Warns of changed schedules that have no tick to come or that no worker can run."""
    from feedq.cli.tables import warn_never, warn_unserved

    changed = {change.name for change in found.changes if change.kind == "schedule"}
    warn_never([spec for spec in declared if spec.name in changed], now=now)
    warn_unserved(found.unserved)


def fail_if_not_made(found: Declared) -> None:
    """Raises when some of the changes could not be made, naming each."""
    failed = [change for change in found.changes if change.error is not None]
    if not failed:
        return
    lines = first_few([f"{one.kind} {one.name!r}: {one.detail}" for one in failed], "and {:,} more")
    total = len(found.changes)
    lines.append(f"{total - len(failed)} of {total} changes were made; applying again makes the rest")
    raise error_of(str(failed[0].error), "\n".join(lines))
