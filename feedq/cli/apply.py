"""`feedq apply`, `lint`, `schema` and `sync`: make feeds, schedules and queues as manifests declare them, and say
what that would change, whether they are right, and what they may hold.

Everything is read and checked before anything is changed: one mistake in one of them, and nothing is applied.
Then feeds are changed, some hundred in a transaction, and the rest one by one; if the database goes away half way,
applying again does the rest.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from feedq.cli import options
from feedq.cli.invocation import Form, Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import answer, say, warn, write_difference
from feedq.errors import FeedqError, InvalidInput, error_of

with lazily():
    from feedq.verbs import declarations, json_schema, manifests, wording
    from feedq.verbs.catalogs import syncing


STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
"""Names of files that are manifests, in directories, end so."""
BYTES_MAX = 64 * 2**20
"""A larger file is not a manifest; it is refused before it is read."""
WARNINGS_MAX = 10
CHANGES_SHOWN_MAX = 100
"""Changes that are listed of a sync that makes them; a dry run and --json list all."""
SIGNS = {"add": "+", "change": "~", "remove": "-"}
"""By the actions of a change."""


file_option = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, allow_dash=True),
    help="A YAML or JSON manifest, a directory of them, or - for standard input. May be repeated.",
)


@options.command(short_help="Declare feeds and schedules from YAML or JSON.")
@file_option
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove feeds, schedules or queues that the manifests leave out, if they have that key.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Let new feeds continue from checkpoints that feeds of the same name left in their sinks.",
)
@click.option("--tenant", help="With --prune: remove only feeds of this tenant.")
@click.option("--dry-run", is_flag=True, help="Show what would change without changing it.")
@options.yes
@options.changes
def apply(
    invocation: Invocation, *, files: Sequence[str], prune: bool, dry_run: bool, yes: bool, **how: Any
) -> None:
    """Create or change feeds, schedules and queues to match manifests.

    Nothing is applied if any of them has a mistake; every mistake is listed. Without `target_state`, a feed
    that somebody paused stays paused, and so does a schedule. A new feed starts where its source starts, or
    at its `resume`; to continue from a checkpoint that a feed of the same name left in the sink, use
    --adopt.

    \b
    Example:
      feedq apply -f feeds.yaml --dry-run
      cat feeds/*.yaml | feedq apply -f - --prune --yes
    """
    is_asked = prune and not (yes or dry_run)

    def question(would: declarations.Declared) -> str | None:
        if not invocation.json:
            write_changes(would.changes)
        return _removals(would)

    def show(found: declarations.Declared) -> None:
        if not is_asked:
            write_changes(found.changes)
        done = f"{found.added} added, {found.changed} changed, {found.removed} removed"
        say(f"{done}, = {found.unchanged} unchanged" + (" (dry run)" if dry_run else ""))

    manifest = _manifest(files)
    if manifest.problems:
        _require_right(manifest)
    # Kinds that the manifests say nothing about are left alone: who keeps schedules in a file of their own does
    # not mean to lose all feeds with --prune.
    declared = {
        kind: tuple(one.spec for one in getattr(manifest, kind)) for kind in manifest.keys or ("feeds",)
    }
    try:
        declare(invocation, question, show, yes=not is_asked, dry_run=dry_run, prune=prune, **declared, **how)
    except InvalidInput:
        # The verb checks the options of what changes, and does not know files and lines. To look for every mistake
        # takes half a second of thousands of feeds.
        _require_right(manifest)
        raise


@options.command(short_help="Check manifests, without any server.")
@file_option
def lint(invocation: Invocation, *, files: Sequence[str]) -> None:
    """Check manifests without any server, and list every mistake with file and line.

    Exit status: 0 no mistakes, 2 mistakes.

    \b
    Example:
      feedq lint -f feeds/
    """
    declared = read_manifests(files)
    counts = {key: len(getattr(declared, key)) for key in manifests.ENTRIES}
    found = [wording.counted(count, key.removesuffix("s")) for key, count in counts.items() if count]
    answer(invocation, counts, f"{', '.join(found) or 'nothing declared'}: no mistakes")


@options.command(short_help="The JSON Schema of manifests, for editors.")
def schema(invocation: Invocation) -> None:
    """Print the JSON Schema of manifests, including the options of every installed connector.

    Editors use it to check a manifest and explain its keys.

    \b
    Example:
      feedq schema > feedq.schema.json
    """
    invocation.form = Form.JSON
    answer(invocation, invocation.do(json_schema.show_schema))


def read_manifests(files: Sequence[str]) -> manifests.Manifest:
    """What files declare together, and all manifests in directories and below these.

    Raises `InvalidInput` with every mistake of every file.
    """
    manifest = _manifest(files)
    _require_right(manifest)
    return manifest


def _manifest(files: Sequence[str]) -> manifests.Manifest:
    manifest = manifests.Manifest()
    for file in files:
        found = [file]
        if file != STDIN and Path(file).is_dir():
            found = sorted(str(p) for p in Path(file).rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not found:
                suffixes = ", ".join(SUFFIXES)
                manifest.complain(file, f"holds no manifest: no file ends in {suffixes}")
        for one in found:
            _read(manifest, one)
    return manifest


def _require_right(manifest: manifests.Manifest) -> None:
    """Raises `InvalidInput` with every mistake, in the options of feeds as well."""
    problems = [*manifest.problems]
    for feed in manifest.feeds:
        for what in manifests.option_problems(feed.spec):
            problems.append(manifests.ManifestProblem(feed.where, f"feed {feed.spec.name!r}: {what}"))
    if problems:
        mistakes = wording.counted(len(problems), "mistake")
        lines = "\n".join(f"  {wording.printable(str(problem))}" for problem in problems)
        raise InvalidInput(f"{mistakes}; nothing was applied\n{lines}")


def _read(manifest: manifests.Manifest, file: str) -> None:
    origin = "standard input" if file == STDIN else os.fsdecode(file)
    try:
        with nullcontext(sys.stdin.buffer) if file == STDIN else Path(file).open("rb") as opened:
            raw = opened.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            manifest.complain(origin, f"is larger than {BYTES_MAX} bytes")
        else:
            manifest.read(raw.decode("utf-8"), origin=origin)
    except OSError as error:
        manifest.complain(origin, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        manifest.complain(origin, f"is not UTF-8 text (byte {error.start})")


def declare(
    invocation: Invocation,
    question: Callable[[declarations.Declared], str | None],
    show: Callable[[declarations.Declared], None],
    **asked: Any,
) -> None:
    """Make declarations, as `Invocation.do_confirmed` makes them, and show what came of it.

    Raises when some of them could not be made, naming each.
    """
    with invocation.progress("changes"):
        found = invocation.do_confirmed(declarations.declare, question, **asked)
    for text in wording.first_few(found.warnings, "and {:,} more warnings", most=WARNINGS_MAX):
        warn(text)
    answer(invocation, found, lambda: show(found))
    fail_if_not_made(found)


def write_changes(found: Sequence[declarations.ChangeDocument]) -> None:
    for change in found:
        say(f"{SIGNS[change.action]} {'' if change.kind == 'feed' else f'{change.kind} '}{change.name}")
        if change.note is not None:
            say(f"    {change.note}")
        write_difference(change.options)


def _removals(found: declarations.Declared) -> str | None:
    removals = Counter(change.kind for change in found.changes if change.action == "remove")
    what = " and ".join(wording.counted(count, noun) for noun, count in removals.items())
    return f"Remove {what} that the manifests do not declare?" if removals else None


def fail_if_not_made(found: declarations.Declared) -> None:
    """Raises when some of the changes could not be made, naming each."""
    failed = [change for change in found.changes if change.error is not None]
    if not failed:
        return
    lines = wording.first_few([f"{one.kind} {one.name!r}: {one.detail}" for one in failed], "and {:,} more")
    total = len(found.changes)
    lines.append(f"{total - len(failed)} of {total} changes were made; applying again makes the rest")
    raise error_of(str(failed[0].error), "\n".join(lines))


# -- catalogs ------------------------------------------------------------------------------------------


@options.command(short_help="Make feeds match their catalogs.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dry-run", is_flag=True, help="Show what would change without changing it.")
@click.option(
    "--remove-up-to",
    type=click.IntRange(min=0),
    metavar="COUNT",
    help="Allow the removal of up to this many feeds; for a single catalog.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Also take over feeds of the same names that people or other catalogs declared.",
)
def sync(invocation: Invocation, *, names: Sequence[str], remove_up_to: int | None, **how: bool) -> None:
    """Make feeds match their catalogs: the ones named, or all that are set up.

    A catalog is a list of feeds kept elsewhere, set up with FEEDQ_CATALOGS__<NAME>__KIND and the options of
    that kind. Only feeds created from a catalog are changed or removed with it. Nothing changes if a
    catalog cannot be read or has lost unusually many feeds.

    \b
    Example:
      FEEDQ_CATALOGS__CRM__KIND=directory FEEDQ_CATALOGS__CRM__PATH=feeds feedq sync crm --dry-run
      feedq sync
    """
    chosen = [name.lower() for name in names] or invocation.do(syncing.list_catalogs).items
    if not chosen:
        raise InvalidInput("no catalog is set up here: set FEEDQ_CATALOGS__<NAME>__KIND and its options")
    if remove_up_to is not None and len(chosen) != 1:
        raise click.UsageError("--remove-up-to is for one catalog; name it")
    made: list[syncing.Synced] = []
    wrong: list[FeedqError] = []
    for name in chosen:
        try:
            with invocation.progress("changes"):
                found = invocation.do(syncing.sync_catalog, name=name, remove_up_to=remove_up_to, **how)
        except FeedqError as error:
            # What is wrong with one catalog does not keep the others from being synced.
            wrong.append(error)
            continue
        made.append(found)
        if (complaint := found.complaint()) is not None:
            wrong.append(FeedqError(complaint))
        if not invocation.json:
            _show_synced(found)
    if invocation.json:
        answer(invocation, made)
    if wrong:
        raise type(wrong[0])("\n".join(map(str, wrong)))


def _show_synced(found: syncing.Synced) -> None:
    feeds = found.feeds
    shown = feeds.changes if feeds.dry_run else feeds.changes[:CHANGES_SHOWN_MAX]
    write_changes(shown)
    if len(shown) < len(feeds.changes):
        click.echo(f"... and {len(feeds.changes) - len(shown):,} more")
    for line in wording.first_few(list(map(str, found.left_out)), "and {:,} more"):
        warn(line)
    if found.kept:
        warn(
            f"{found.kept:,} feeds are no longer in {found.name!r}; they stay while some entry has no name, "
            "because it may be one of them"
        )
    done = f"{feeds.added:,} added, {feeds.changed:,} changed, {feeds.removed:,} removed"
    click.echo(
        f"{found.name}: {done}, = {feeds.unchanged:,} unchanged" + (" (dry run)" if feeds.dry_run else "")
    )
