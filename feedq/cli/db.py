"""`feedq db`: migrations of the control database."""

from __future__ import annotations

import click

from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_facts, write_json
from feedq.store import migrate
from feedq.telemetry import mask_url


@click.group(short_help="Migrate the control database, or see how far it is.")
def db() -> None:
    """The control database (FEEDQ_DATABASE_URL).

    \b
    Example:
      feedq db upgrade
    """


@db.command()
@json_option
@pass_invocation
def upgrade(invocation: Invocation) -> None:
    """Bring the database to this release. Safe to run again, and from several places at once.

    \b
    Example:
      FEEDQ_DATABASE_URL=postgresql://feedq@db/feedq feedq db upgrade
    """
    applied = migrate.upgrade(invocation.settings.database_url.get_secret_value())
    if invocation.json:
        write_json({"applied": applied})
    elif applied:
        click.echo(f"applied {', '.join(applied)}")
    else:
        click.echo("already up to date")


@db.command()
@json_option
@pass_invocation
def status(invocation: Invocation) -> None:
    """Which revision the database is at. Exit status 1 when migrations are pending.

    \b
    Example:
      feedq db status --json
    """
    url = invocation.settings.database_url.get_secret_value()
    found = migrate.status(url)
    if invocation.json:
        write_json(
            {
                "database": mask_url(url),
                "current": found.current,
                "head": found.head,
                "pending": found.pending,
            }
        )
    else:
        write_facts(
            [
                ("database", mask_url(url)),
                ("current", found.current or "(none)"),
                ("head", found.head),
                ("pending", f"{found.pending}: run `feedq db upgrade`" if found.pending else "0"),
            ]
        )
    if found.pending:
        raise SystemExit(1)
