"""`feedq apply`: make feeds, schedules and queues as the manifests declare them.

Everything is read and checked before anything is changed: one mistake in one of them, and nothing is applied.
Then changes go one by one; if the database goes away half way, applying again does the rest.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from feedq import manifest, verbs
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.views import write_difference
from feedq.declaration import Action, Change, Plan, plan, problems
from feedq.diagnosis.checks import counted
from feedq.errors import FeedqError, InvalidInput
from feedq.manifest import JobChange, JobPlan, Manifest, Problem
from feedq.report import masked
from feedq.schedule.model import Queue, ScheduleSpec
from feedq.store.jobs.base import JobStore
from feedq.wording import printable

STDIN = "-"
BYTES_MAX = 64 * 2**20
"""A larger file is no manifest; it is refused before it is read."""
SIGNS = {Action.ADD: "+", Action.CHANGE: "~", Action.REMOVE: "-"}
AnyChange = Change | JobChange
DONE = {Action.ADD: "added", Action.CHANGE: "changed", Action.REMOVE: "removed"}


@click.command(short_help="Declare feeds and schedules from YAML or JSON; shows what changes.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A manifest, YAML or JSON, of one document or several; - is standard input. May be repeated.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what is not declared: feeds, schedules, queues, each if a manifest has its key.",
)
@click.option("--tenant", help="With --prune: remove only feeds, and only this tenant's.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing anything.")
@json_option
@pass_invocation
def apply(
    invocation: Invocation,
    *,
    files: Sequence[str],
    prune: bool,
    tenant: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make feeds, schedules and queues as the manifests declare them.

    All are checked first; if one is wrong, every mistake is listed and nothing is applied. A feed that does not
    say target_state keeps the one it has: what a person paused stays paused. So does every schedule.

    \b
    Example:
      feedq apply -f feeds.yaml --dry-run
      cat feeds/*.yaml | feedq apply -f - --prune --yes
    """
    if tenant is not None and not prune:
        raise click.UsageError("--tenant limits --prune, and means nothing without it")
    with _collector_paused():
        declared = _checked([_read(file) for file in files])
        changes, unchanged = _plan(invocation, declared, prune=prune, tenant=tenant)
    if not invocation.json:
        _show(changes)
    removals = Counter(_noun(change) for change in changes if change.action is Action.REMOVE)
    if removals and not (dry_run or yes):
        what = " and ".join(counted(count, noun) for noun, count in removals.items())
        invocation.confirm(f"Remove {what} that the manifests do not declare?")
    if not dry_run:
        _carry_out(invocation, changes)
    if invocation.json:
        write_json(_document(changes, unchanged, dry_run=dry_run))
    else:
        _summarise(changes, unchanged, dry_run=dry_run)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the search for cycles among objects: of a large manifest hundreds of thousands come into being, all
    of them in use, and to look through them again and again takes longer than to read it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(file: str) -> Manifest:
    origin = "standard input" if file == STDIN else os.fsdecode(file)
    try:
        if file == STDIN:
            raw = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            return Manifest(problems=(Problem(origin, f"is larger than {BYTES_MAX} bytes"),))
        return manifest.parse(raw.decode("utf-8"), origin=origin)
    except OSError as error:
        return Manifest(problems=(Problem(origin, f"cannot be read: {error.strerror}"),))
    except UnicodeDecodeError as error:
        return Manifest(problems=(Problem(origin, f"is not UTF-8 text (byte {error.start})"),))


def _checked(manifests: Sequence[Manifest]) -> Manifest:
    """All of them as one, if all are right. Raises `InvalidInput` with every mistake of every file."""
    joined = manifest.join(manifests)
    found = [*joined.problems]
    for feed in joined.declarations:
        found += [Problem(feed.where, f"feed {feed.spec.name!r}: {what}") for what in problems(feed.spec)]
    for schedule in joined.schedules:
        name, wrong = schedule.spec.name, manifest.schedule_problems(schedule.spec)
        found += [Problem(schedule.where, f"schedule {name!r}: {what}") for what in wrong]
    if found:
        mistakes = "1 mistake" if len(found) == 1 else f"{len(found)} mistakes"
        lines = "\n".join(f"  {printable(str(problem))}" for problem in found)
        raise InvalidInput(f"{mistakes}; nothing was applied\n{lines}")
    return joined


def _plan(
    invocation: Invocation, declared: Manifest, *, prune: bool, tenant: str | None
) -> tuple[list[AnyChange], int]:
    """The changes in the order in which they are made, and how much is as declared already."""
    # Kinds that the manifests say nothing about are left alone: who keeps schedules in a file of their own does
    # not mean to lose all feeds with --prune.
    kinds = declared.keys or {"feeds"}
    feeds, schedules, queues = Plan((), 0), JobPlan(), JobPlan()
    # Of schedules and queues none belongs to a tenant.
    prune_jobs = prune and tenant is None
    if "feeds" in kinds:
        feeds = plan(
            [declaration.spec for declaration in declared.declarations],
            [view.feed for view in invocation.store.feeds.views()],
            keep_target={d.spec.name for d in declared.declarations if not d.says_target},
            prune=prune,
            tenant=tenant,
        )
    if "schedules" in kinds:
        schedules = manifest.plan_schedules(
            [declaration.spec for declaration in declared.schedules],
            invocation.jobs.schedules.specs(),
            keep_paused={d.spec.name for d in declared.schedules if not d.says_target},
            prune=prune_jobs,
        )
    if "queues" in kinds:
        limits = [declaration.spec for declaration in declared.queues]
        queues = manifest.plan_queues(limits, invocation.jobs.queues.all(), prune=prune_jobs)
    # A limit is there before the schedules that it is for, and goes after them.
    removed = [change for change in queues.changes if change.action is Action.REMOVE]
    kept = [change for change in queues.changes if change.action is not Action.REMOVE]
    changes: list[AnyChange] = [*feeds.changes, *kept, *schedules.changes, *removed]
    return changes, feeds.unchanged + schedules.unchanged + queues.unchanged


def _noun(change: AnyChange) -> str:
    return change.noun if isinstance(change, JobChange) else "feed"


def _note(change: AnyChange) -> str | None:
    return change.note if isinstance(change, JobChange) else None


def _show(changes: Sequence[AnyChange]) -> None:
    for change in changes:
        noun = f"{change.noun} " if isinstance(change, JobChange) else ""
        click.echo(f"{SIGNS[change.action]} {noun}{printable(change.name)}")
        if (note := _note(change)) is not None:
            click.echo(f"    {note}")
        write_difference(change.options)


def _carry_out(invocation: Invocation, changes: Sequence[AnyChange]) -> None:
    for done, change in enumerate(changes):
        try:
            if isinstance(change, JobChange):
                _carry_out_job(invocation.jobs, change)
            else:
                verbs.carry_out(invocation.store, change)
        except FeedqError as error:
            raise type(error)(
                f"{_noun(change)} {change.name!r}: {error}\n{done} of {len(changes)} changes were made before; "
                "applying again makes the rest"
            ) from error


def _carry_out_job(jobs: JobStore, change: JobChange) -> None:
    match change.spec, change.action:
        case Queue() as queue, _:
            jobs.queues.set(queue)
        case ScheduleSpec() as spec, Action.ADD:
            jobs.schedules.add(spec)
        case ScheduleSpec() as spec, _:
            jobs.schedules.edit(change.name, spec)
        case None, _ if change.noun == "queue":
            jobs.queues.remove(change.name)
        case None, _:
            jobs.schedules.remove(change.name)


def _count(changes: Sequence[AnyChange], action: Action) -> int:
    return sum(change.action is action for change in changes)


def _summarise(changes: Sequence[AnyChange], unchanged: int, *, dry_run: bool) -> None:
    counts = [f"{_count(changes, action)} {DONE[action]}" for action in Action]
    click.echo(f"{', '.join(counts)}, = {unchanged} unchanged" + (" (dry run)" if dry_run else ""))


def _document(changes: Sequence[AnyChange], unchanged: int, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        **{DONE[action]: _count(changes, action) for action in Action},
        "unchanged": unchanged,
        "changes": [
            {
                "kind": _noun(change),
                "name": change.name,
                "action": change.action.value,
                "options": [
                    {"option": o.option, "before": masked(o.before), "after": masked(o.after)}
                    for o in change.options
                ],
                **({} if (note := _note(change)) is None else {"note": note}),
            }
            for change in changes
        ],
    }
