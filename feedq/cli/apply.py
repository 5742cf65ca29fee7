"""`feedq apply`: make the feeds as the manifests declare them.

Everything is read and checked before anything is changed: one mistake in one feed, and nothing is applied.
Then changes go one by one; if the database goes away half way, applying again does the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from feedq import manifest, verbs
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.views import write_difference
from feedq.declaration import Action, Plan, plan, problems
from feedq.errors import FeedqError, InvalidInput
from feedq.manifest import Declaration, Manifest, Problem
from feedq.report import masked
from feedq.wording import printable

STDIN = "-"
BYTES_MAX = 64 * 2**20
"""A larger file is no manifest; it is refused before it is read."""
SIGNS = {Action.ADD: "+", Action.CHANGE: "~", Action.REMOVE: "-"}
DONE = {Action.ADD: "added", Action.CHANGE: "changed", Action.REMOVE: "removed"}


@click.command(short_help="Declare feeds from YAML or JSON; shows what changes.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A manifest, YAML or JSON, of one document or several; - is standard input. May be repeated.",
)
@click.option("--prune", is_flag=True, help="Also remove the feeds that are not declared.")
@click.option("--tenant", help="With --prune: remove only this tenant's feeds.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing feeds.")
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
    """Make the feeds as the manifests declare them.

    All feeds are checked first; if one is wrong, every mistake is listed and nothing is applied. A feed that
    does not say target_state keeps the one it has: what a person paused stays paused.

    \b
    Example:
      feedq apply -f feeds.yaml --dry-run
      cat feeds/*.yaml | feedq apply -f - --prune --yes
    """
    if tenant is not None and not prune:
        raise click.UsageError("--tenant limits --prune, and means nothing without it")
    declared = _checked([_read(file) for file in files])
    the_plan = plan(
        [declaration.spec for declaration in declared],
        [view.feed for view in invocation.store.feeds.views()],
        keep_target={d.spec.name for d in declared if not d.says_target},
        prune=prune,
        tenant=tenant,
    )
    if not invocation.json:
        _show(the_plan)
    removals = the_plan.count(Action.REMOVE)
    if removals and not (dry_run or yes):
        invocation.confirm(f"Remove {removals} feeds that are not declared?")
    if not dry_run:
        _carry_out(invocation, the_plan)
    if invocation.json:
        write_json(_document(the_plan, dry_run=dry_run))
    else:
        _summarise(the_plan, dry_run=dry_run)


def _read(file: str) -> Manifest:
    origin = "standard input" if file == STDIN else os.fsdecode(file)
    try:
        if file == STDIN:
            raw = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            return Manifest((), (Problem(origin, f"is larger than {BYTES_MAX} bytes"),))
        return manifest.parse(raw.decode("utf-8"), origin=origin)
    except OSError as error:
        return Manifest((), (Problem(origin, f"cannot be read: {error.strerror}"),))
    except UnicodeDecodeError as error:
        return Manifest((), (Problem(origin, f"is not UTF-8 text (byte {error.start})"),))


def _checked(manifests: Sequence[Manifest]) -> tuple[Declaration, ...]:
    """The declarations, if all are right. Raises `InvalidInput` with every mistake of every file."""
    joined = manifest.join(manifests)
    found = [*joined.problems]
    for declaration in joined.declarations:
        name = declaration.spec.name
        found += [Problem(declaration.where, f"feed {name!r}: {what}") for what in problems(declaration.spec)]
    if found:
        mistakes = "1 mistake" if len(found) == 1 else f"{len(found)} mistakes"
        lines = "\n".join(f"  {printable(str(problem))}" for problem in found)
        raise InvalidInput(f"{mistakes}; nothing was applied\n{lines}")
    return joined.declarations


def _show(the_plan: Plan) -> None:
    for change in the_plan.changes:
        click.echo(f"{SIGNS[change.action]} {printable(change.name)}")
        write_difference(change.options)


def _carry_out(invocation: Invocation, the_plan: Plan) -> None:
    for done, change in enumerate(the_plan.changes):
        try:
            verbs.carry_out(invocation.store, change)
        except FeedqError as error:
            raise type(error)(
                f"feed {change.name!r}: {error}\n{done} of {len(the_plan.changes)} changes were made before; "
                "applying again makes the rest"
            ) from error


def _summarise(the_plan: Plan, *, dry_run: bool) -> None:
    counts = [f"{the_plan.count(action)} {DONE[action]}" for action in Action]
    click.echo(f"{', '.join(counts)}, = {the_plan.unchanged} unchanged" + (" (dry run)" if dry_run else ""))


def _document(the_plan: Plan, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        **{DONE[action]: the_plan.count(action) for action in Action},
        "unchanged": the_plan.unchanged,
        "changes": [
            {
                "name": change.name,
                "action": change.action.value,
                "options": [
                    {"option": o.option, "before": masked(o.before), "after": masked(o.after)}
                    for o in change.options
                ],
            }
            for change in the_plan.changes
        ],
    }
