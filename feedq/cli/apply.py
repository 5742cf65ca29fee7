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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.choosing import declare_all, first_few
from feedq.cli.invocation import Invocation, changes, pass_invocation
from feedq.cli.output import answer, write_difference, write_json
from feedq.errors import FeedqError, InvalidInput

if TYPE_CHECKING:
    from feedq.control.store.postgresql import JobStore
    from feedq.core.model import Feed
    from feedq.core.schedule.model import Schedule
    from feedq.verbs.declaring import Begun
    from feedq.verbs.manifest.changes import Change, DeclarationChanges
    from feedq.verbs.manifest.reader import Manifest, ManifestProblem

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
"""Names of files that are manifests, in directories, end so."""
BYTES_MAX = 64 * 2**20
"""A larger file is no manifest; it is refused before it is read."""
SIGNS = {"add": "+", "change": "~", "remove": "-"}
DONE = {"add": "added", "change": "changed", "remove": "removed"}
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
    from feedq.verbs.manifest.changes import Action
    from feedq.verbs.wording import counted

    declared, planned = _planned(invocation, files, prune=prune, tenant=tenant)
    found = _begun(invocation, declared, planned.changes, adopt=adopt)
    changes = found.changes
    if not invocation.json:
        show_changes(changes)
    removals = Counter(change.noun for change in changes if change.action is Action.REMOVE)
    if removals and not dry_run:
        what = " and ".join(counted(count, noun) for noun, count in removals.items())
        invocation.confirm(f"Remove {what} that the manifests do not declare?", yes=yes)
    _carry_out_or_warn(invocation, found, dry_run=dry_run, adopt=adopt)
    done = ", ".join(f"{planned.count(action)} {DONE[action]}" for action in Action)
    text = f"{done}, = {planned.unchanged} unchanged" + (" (dry run)" if dry_run else "")
    answer(invocation, {"dry_run": dry_run} | _document(planned, changes), text)


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
    try:
        _, planned = _planned(invocation, files, prune=prune, tenant=tenant)
    except FeedqError as error:
        # All that goes wrong has one exit status here: 1 says that something differs.
        raise InvalidInput(invocation.explain(error)) from error
    answer(invocation, _document(planned, planned.changes), lambda: show_changes(planned.changes))
    if planned.changes:
        raise SystemExit(1)


def _document(planned: DeclarationChanges, changes: Sequence[Change]) -> dict[str, Any]:
    from feedq.verbs.manifest.changes import Action
    from feedq.verbs.report.rows import change_row

    counts = {DONE[action]: planned.count(action) for action in Action}
    return counts | {"unchanged": planned.unchanged, "changes": list(map(change_row, changes))}


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
    from feedq.verbs.manifest.json_schema import manifest_schema

    write_json(manifest_schema() if invocation.api is None else invocation.api.schema())


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


def _planned(
    invocation: Invocation, files: Sequence[str], *, prune: bool, tenant: str | None
) -> tuple[Manifest, DeclarationChanges]:
    """What the files declare, and what that would change."""
    if tenant is not None and not prune:
        raise click.UsageError("--tenant limits --prune, and means nothing without it")
    with collector_paused():
        declared = checked(list(_manifests(files)))
        return declared, _plan(invocation, declared, prune=prune, tenant=tenant)


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
            found.append(ManifestProblem(feed.where, f"feed {feed.spec.name!r}: {what}"))
    _refuse(found)
    return joined


def _refuse(found: Sequence[ManifestProblem]) -> None:
    from feedq.verbs.wording import counted, printable

    if found:
        mistakes = counted(len(found), "mistake")
        lines = "\n".join(f"  {printable(str(problem))}" for problem in found)
        raise InvalidInput(f"{mistakes}; nothing was applied\n{lines}")


def _plan(
    invocation: Invocation, declared: Manifest, *, prune: bool, tenant: str | None
) -> DeclarationChanges:
    """Lists the changes in the order in which they are made."""
    from feedq.verbs.manifest.changes import Action, DeclarationChanges, plan, plan_queues, plan_schedules

    # Kinds that the manifests say nothing about are left alone: who keeps schedules in a file of their own does
    # not mean to lose all feeds with --prune.
    kinds = declared.keys or {"feeds"}
    feeds = schedules = queues = DeclarationChanges()
    # Of schedules and queues none belongs to a tenant.
    prune_jobs = prune and tenant is None
    if "feeds" in kinds:
        feeds = plan(
            [declaration.spec for declaration in declared.feeds],
            [feed for page in declared_feeds(invocation) for feed in page],
            keep_target={d.spec.name for d in declared.feeds if not d.says_target},
            prune=prune,
            tenant=tenant,
        )
    if "schedules" in kinds:
        schedules = plan_schedules(
            [declaration.spec for declaration in declared.schedules],
            invocation.jobs.schedules.specs(),
            keep_paused={d.spec.name for d in declared.schedules if not d.says_target},
            prune=prune_jobs,
        )
    if "queues" in kinds:
        limits = [declaration.spec for declaration in declared.queues]
        queues = plan_queues(limits, invocation.jobs.queues.all(), prune=prune_jobs)
    # Limits are there before the schedules that they are for, and go after them.
    removed = [change for change in queues.changes if change.action is Action.REMOVE]
    kept = [change for change in queues.changes if change.action is not Action.REMOVE]
    changes = (*feeds.changes, *kept, *schedules.changes, *removed)
    unchanged = sum(kind.unchanged for kind in (feeds, schedules, queues))
    return DeclarationChanges(changes, unchanged)


def declared_feeds(invocation: Invocation, *, tenant: str | None = None) -> Iterator[list[Feed]]:
    """All feeds, a page at a time: the declarations of a hundred thousand do not fit into a small container."""
    after = ""
    while page := invocation.store.feeds.declared(tenant=tenant, after=after):
        yield page
        after = page[-1].name


def _begun(invocation: Invocation, declared: Manifest, changes: Sequence[Change], *, adopt: bool) -> Begun:
    """Notes in the changes which new feeds their sinks know, and where they begin."""
    from feedq.verbs.declaring import begun
    from feedq.verbs.wording import printable

    resumes = {d.spec.name: d.resume for d in declared.feeds if d.resume is not None}
    if invocation.api is None:
        found = begun(changes, resumes, invocation.open_sink, adopt=adopt)
    else:
        found = invocation.api.feeds.begun(changes, resumes, adopt=adopt)
    for note in found.unasked if not invocation.json else ():
        click.echo(printable(note), err=True)
    return found


def show_changes(changes: Sequence[Change]) -> None:
    from feedq.verbs.wording import printable

    for change in changes:
        noun = "" if change.noun == "feed" else f"{change.noun} "
        click.echo(f"{SIGNS[change.action]} {noun}{printable(change.name)}")
        if change.note is not None:
            click.echo(f"    {printable(change.note)}")
        write_difference(change.options)


def _carry_out_or_warn(invocation: Invocation, found: Begun, *, dry_run: bool, adopt: bool) -> None:
    """Make the changes unless it is a dry run, and warn of schedules that never tick or that nobody can run."""
    from feedq.cli.tables import never_ticks, warn_ended, warn_never, warn_unserved
    from feedq.core.schedule.model import ScheduleSpec

    now, specs = invocation.clock.now(), [c.spec for c in found.changes if isinstance(c.spec, ScheduleSpec)]
    if dry_run:
        warn_never([spec for spec in specs if never_ticks(spec, now)], now=now)
    else:
        warn_ended(_carry_out(invocation, found, adopt=adopt), now=now)
        warn_unserved(invocation.jobs, [spec.name for spec in specs])


def _carry_out(invocation: Invocation, found: Begun, *, adopt: bool) -> list[Schedule]:
    """Returns the schedules as they are now that were added or changed."""
    from feedq.verbs import bulk

    of_feeds = [change for change in found.changes if change.noun == "feed"]
    others = [change for change in found.changes if change.noun != "feed"]
    feeds = declare_all(invocation, of_feeds, found.starts, adopt=adopt)
    rest = bulk.one_by_one(others, partial(_carry_out_job, invocation.jobs)) if others else bulk.BulkResult()
    failed = [*feeds.failed, *rest.failed]
    if failed:
        raise _not_made(failed, len(found.changes))
    return [schedule for _, schedule in rest.done if schedule is not None]


def _not_made(failed: Sequence[tuple[Change, FeedqError]], total: int) -> FeedqError:
    lines = [f"{change.noun} {change.name!r}: {error}" for change, error in failed]
    lines = first_few(lines, "and {:,} more")
    lines.append(f"{total - len(failed)} of {total} changes were made; applying again makes the rest")
    return type(failed[0][1])("\n".join(lines))


def _carry_out_job(jobs: JobStore, change: Change) -> Schedule | None:
    from feedq.core.schedule.model import Queue, ScheduleSpec
    from feedq.verbs.manifest.changes import Action

    match change.spec, change.action:
        case Queue() as queue, _:
            jobs.queues.set(queue)
        case ScheduleSpec() as spec, Action.ADD:
            return jobs.schedules.add(spec)
        case ScheduleSpec() as spec, _:
            return jobs.schedules.edit(change.name, spec)
        case None, _ if change.noun == "queue":
            jobs.queues.remove(change.name)
        case None, _:
            jobs.schedules.remove(change.name)
    return None
