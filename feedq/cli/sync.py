"""`feedq sync`: make feeds of catalogs as these say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from feedq.cli.apply import collector_paused, show_changes
from feedq.cli.choosing import first_few
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import answer, warn
from feedq.errors import FeedqError, InvalidInput

if TYPE_CHECKING:
    from feedq.verbs.catalog_syncs import Synced

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
    from feedq.verbs.catalog_syncs import list_catalogs, sync_catalog

    chosen = [name.lower() for name in names] or invocation.do(list_catalogs).items
    if not chosen:
        raise InvalidInput("no catalog is set up here: set FEEDQ_CATALOGS__<NAME>__KIND and its options")
    if remove_up_to is not None and len(chosen) != 1:
        raise click.UsageError("--remove-up-to is for one catalog; name it")
    made: list[Synced] = []
    failed: list[FeedqError] = []
    for name in chosen:
        try:
            with collector_paused(), invocation.progress("changes"):
                made.append(
                    invocation.do(
                        sync_catalog,
                        name=name,
                        remove_up_to=remove_up_to,
                        take_over=take_over,
                        dry_run=dry_run,
                    )
                )
        except FeedqError as error:
            # What is wrong with one catalog does not keep the others from being synced.
            failed.append(error)
            continue
        if not invocation.json:
            _show(made[-1])
    if invocation.json:
        answer(invocation, made, "")
    _raise(failed, made)


def _show(found: Synced) -> None:
    shown = found.changes if found.dry_run else found.changes[:CHANGES_SHOWN_MAX]
    show_changes(shown)
    if len(shown) < len(found.changes):
        click.echo(f"... and {len(found.changes) - len(shown):,} more")
    for line in first_few(list(map(str, found.left_out)), "and {:,} more"):
        warn(line)
    if found.kept:
        warn(
            f"{found.kept:,} feeds are in {found.name!r} no more; they stay while an entry has no name, "
            "as it may be theirs"
        )
    done = f"{found.added:,} added, {found.changed:,} changed, {found.removed:,} removed"
    if found.taken_over:
        done += f", {found.taken_over:,} taken over"
    same = "; as at the last sync" if found.is_same else " (dry run)" if found.dry_run else ""
    click.echo(f"{found.name}: {done}, = {found.unchanged:,} unchanged{same}")


def _raise(failed: Sequence[FeedqError], made: Sequence[Synced]) -> None:
    """Raises what went wrong, of all catalogs together."""
    said = [*map(str, failed), *(found.complaint for found in made if found.left_out)]
    if said:
        kind = type(failed[0]) if failed else FeedqError
        raise kind("\n".join(said))
