"""`feedq sync`: make feeds of catalogs as these say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from feedq.cli.apply import collector_paused, show_changes
from feedq.cli.choosing import first_few
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import ProgressBar, answer, warn
from feedq.errors import FeedqError, InvalidInput

if TYPE_CHECKING:
    from feedq.verbs.catalogs.syncing import SyncReport

CHANGES_SHOWN_MAX = 100
"""Changes that are listed of a sync that makes them; a dry run and --json list all."""


@click.command(short_help="Make feeds of catalogs as these say; shows what changes.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--remove-up-to",
    type=click.IntRange(min=0),
    metavar="COUNT",
    help="Let one catalog have so many feeds removed, however many that is of all it has.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Also take feeds that others declared under names that the catalog has, from another catalog too.",
)
@pass_invocation
def sync(
    invocation: Invocation,
    *,
    names: Sequence[str],
    dry_run: bool,
    remove_up_to: int | None,
    take_over: bool,
) -> None:
    """Make the feeds of catalogs as these say: of those that are named, or of all that are set up here.

    A catalog is a list of feeds that lives elsewhere; FEEDQ_CATALOGS__<NAME>__KIND and the options of its kind
    set it up. Only feeds that were made from a catalog are changed or removed with it. A catalog that has lost
    unusually many of its feeds is refused. One that cannot be read changes nothing.

    \b
    Example:
      FEEDQ_CATALOGS__CRM__KIND=directory FEEDQ_CATALOGS__CRM__PATH=feeds feedq sync crm --dry-run
      feedq sync
    """
    from feedq.verbs.report.rows import sync_row

    chosen = [name.lower() for name in names] or _all_catalogs(invocation)
    if not chosen:
        raise InvalidInput("no catalog is set up here: set FEEDQ_CATALOGS__<NAME>__KIND and its options")
    if remove_up_to is not None and len(chosen) != 1:
        raise click.UsageError("--remove-up-to is for one catalog; name it")
    reports: list[SyncReport] = []
    failed: list[FeedqError] = []
    for make in _opened(invocation, chosen):
        try:
            with collector_paused():
                report = make(dry_run=dry_run, remove_up_to=remove_up_to, take_over=take_over)
        except FeedqError as error:
            # What is wrong with one catalog does not keep the others from being synced.
            failed.append(error)
            continue
        reports.append(report)
        if not invocation.json:
            _show(report, dry_run=dry_run)
    if invocation.json:
        answer(invocation, {"dry_run": dry_run, "catalogs": list(map(sync_row, reports))}, "")
    _raise(failed, reports)


def _all_catalogs(invocation: Invocation) -> list[str]:
    return sorted(invocation.settings.catalogs) if invocation.api is None else invocation.api.catalogs()


def _opened(invocation: Invocation, chosen: Sequence[str]) -> list[Callable[..., SyncReport]]:
    """What syncs each. Raises `InvalidInput` when one is not set up as it must be."""
    from feedq.verbs.catalogs.base import open_catalog
    from feedq.verbs.catalogs.syncing import sync as sync_catalog

    if invocation.api is not None:
        return [partial(invocation.api.sync, name) for name in chosen]
    catalogs = [open_catalog(name, invocation.settings) for name in chosen]
    bar = partial(ProgressBar, "changes")
    return [partial(sync_catalog, invocation.store.catalogs, one, progress=bar) for one in catalogs]


def _show(report: SyncReport, *, dry_run: bool) -> None:
    shown = report.changes if dry_run else report.changes[:CHANGES_SHOWN_MAX]
    show_changes(shown)
    if len(shown) < len(report.changes):
        click.echo(f"... and {len(report.changes) - len(shown):,} more")
    for line in first_few(list(map(str, report.left_out)), "and {:,} more"):
        warn(line)
    if report.kept:
        warn(
            f"{report.kept:,} feeds are in {report.catalog!r} no more; they stay while an entry has no name, "
            "as it may be theirs"
        )
    counts = report.counts
    done = ", ".join(f"{counts[word]:,} {word}" for word in ("added", "changed", "removed"))
    if report.taken_over:
        done += f", {report.taken_over:,} taken over"
    same = "; as at the last sync" if report.is_same else " (dry run)" if dry_run else ""
    click.echo(f"{report.catalog}: {done}, = {counts['unchanged']:,} unchanged{same}")


def _raise(failed: Sequence[FeedqError], reports: Sequence[SyncReport]) -> None:
    """Raises what went wrong, of all catalogs together."""
    said = [str(error) for error in failed]
    for report in reports:
        if report.left_out:
            said.append(report.complaint)
    if said:
        kind = type(failed[0]) if failed else FeedqError
        raise kind("\n".join(said))
