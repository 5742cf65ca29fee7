"""`feedq db`: migrations of the control database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from feedq.cli import options
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import answer
from feedq.core.passwords import mask_url
from feedq.errors import InvalidInput

with lazily():
    from feedq.control.store import database, migrate
    from feedq.control.store import grants as roles
    from feedq.verbs import wording

if TYPE_CHECKING:
    from sqlalchemy import URL

    from feedq.control.store.database import Connection
    from feedq.settings import Settings


@options.group(short_help="Migrate the control database and create its roles.")
def db() -> None:
    """The control database (FEEDQ_DATABASE_URL).

    \b
    Example:
      feedq db upgrade
    """


@db.command()
@click.option("--check", is_flag=True, help="Only list pending migrations; exit status 1 if there are any.")
def upgrade(invocation: Invocation, *, check: bool) -> None:
    """Migrate the control database to this release. It may be repeated, even concurrently.

    \b
    Example:
      FEEDQ_DATABASE_URL=postgresql://feedq@db/feedq feedq db upgrade
      feedq db upgrade --check
    """
    settings = invocation.settings
    url = settings.database_url.get_secret_value()
    if check:
        found = migrate.status(url)
        document = {"current": found.current, "head": migrate.HEAD, "pending": found.pending}
        answer(invocation, document, f"{mask_url(url)}: {found.summary}")
        if found.pending:
            raise SystemExit(1)
        return
    applied = migrate.upgrade(url, role_prefix=settings.role_prefix)
    text = f"applied {wording.counted(applied, 'migration')}" if applied else "already up to date"
    answer(invocation, {"applied": applied}, text)


@db.command()
@click.option(
    "--apply", "apply_", is_flag=True, help="Create the roles and grant their rights, in one transaction."
)
def grants(invocation: Invocation, *, apply_: bool) -> None:
    """Print the SQL that creates a database role with minimal rights for each kind of process.

    Connect as a superuser, or as the database's owner with CREATEROLE. Nothing changes without --apply, and
    running it again is safe. For sinks in other PostgreSQL databases it prints what their owner has to run.
    Passwords come from FEEDQ_ROLE_PASSWORDS__<ROLE>: migration, worker, beat, flower, operator, reader and
    sink_<name>.

    \b
    Example:
      feedq db grants > roles.sql
      FEEDQ_ROLE_PASSWORDS__WORKER=… feedq db grants --apply
    """
    settings = invocation.settings
    url = settings.database_url.get_secret_value()
    here, elsewhere = _sinks(settings)
    with database.connect_once(url) as c:
        passwords = _passwords(settings, [*here, *elsewhere])
        with_control = [roles.sink_tables(c, name, with_control=True) for name in here]
        steps = roles.script(c, settings.role_prefix, with_control, passwords)
        if apply_:
            roles.apply(url, steps, c)
        script = _written(steps, c)
        others = {}
        for name, called in elsewhere.items():
            sink = roles.sink_tables(c, name, with_control=False)
            apart = roles.sink_script(c, settings.role_prefix, sink, passwords, database=called)
            others[name] = _written(apart, c)

    def write() -> None:
        if apply_:
            click.echo(f"{len(script)} statements applied to {mask_url(url)}")
        else:
            _print(script, where=f"in the control database, {mask_url(url)}")
        for name, lines in others.items():
            where = f"in the database of sink {name}, {mask_url(settings.sink_url(name))}, as its owner"
            if apply_:
                click.echo(f"still to be run {where}: what `feedq db grants` prints for it")
            else:
                _print(lines, where=where)

    plain = {name: [text for _, text in lines] for name, lines in others.items()}
    document = {"applied": apply_, "statements": [text for _, text in script], "sinks": plain}
    answer(invocation, document, write)


def _sinks(settings: Settings) -> tuple[list[str], dict[str, str]]:
    """Finds the sinks in the control database, and those in others of PostgreSQL with the names of these."""
    from sqlalchemy import make_url

    control = make_url(settings.database_url.get_secret_value())
    here: list[str] = []
    elsewhere: dict[str, str] = {}
    for name in settings.sink_names:
        url = make_url(settings.sink_url(name))
        if url.get_backend_name() not in ("postgresql", "postgres"):
            continue
        if _place(url) == _place(control):
            here.append(name)
        else:
            elsewhere[name] = url.database or url.username or ""
    return here, elsewhere


def _place(url: URL) -> tuple[str | None, int, str | None]:
    return url.host, url.port or 5432, url.database


def _passwords(settings: Settings, sinks: Iterable[str]) -> dict[str, str]:
    known = [*map(str, roles.Role), *map(roles.sink_role, sinks)]
    given = {role.lower(): password.get_secret_value() for role, password in settings.role_passwords.items()}
    if unknown := sorted(given.keys() - set(known)):
        raise InvalidInput(
            f"FEEDQ_ROLE_PASSWORDS__{unknown[0].upper()}: there is no such role; known are: {', '.join(known)}"
        )
    return given


def _written(steps: Iterable[roles.GrantStatement], c: Connection) -> list[tuple[str, str]]:
    return [(step.about, step.text.as_string(c.session)) for step in steps]


def _print(lines: Iterable[tuple[str, str]], *, where: str) -> None:
    click.echo(f"-- To be run {where}\nBEGIN;")
    for about, text in lines:
        if about:
            click.echo(f"\n-- {about}")
        click.echo(f"{text};")
    click.echo("COMMIT;\n")
