"""What a shell completes: commands and options by `feedq completion`, and by one quick query the names of feeds,
workers, schedules and tenants.

Somebody waits for it while typing: without SQLAlchemy and settings, and nothing is said when there is no database,
or it takes too long.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from feedq.cli import options
from feedq.cli.invocation import STACK_DIR, Invocation, stack_settings
from feedq.cli.output import answer

NAMES_MAX: Final = 200
"""More than anybody reads through."""
CONNECT_TIMEOUT_S: Final = 1
STATEMENT_TIMEOUT_MS: Final = 500
QUERIES: Final = {
    "feed": "SELECT name FROM feedq.feed WHERE removed_at IS NULL AND parent IS NULL",
    "worker": "SELECT DISTINCT name FROM feedq.worker WHERE state <> 'gone'",
    "schedule": "SELECT name FROM feedq.schedule WHERE removed_at IS NULL",
    "tenant": "SELECT DISTINCT tenant AS name FROM feedq.feed WHERE removed_at IS NULL AND tenant <> ''",
}
_BEGINNING: Final = "SELECT name FROM ({}) found WHERE starts_with(name, %s) ORDER BY 1 LIMIT %s"
OPTIONS: Final = {
    "feed": "feed",
    "tenant": "tenant",
    "worker": "worker",
    "target": "worker",
}
"""Options that are a name, by the names of their parameters."""
SHELLS: Final = ("bash", "zsh", "fish")


class KnownName(click.types.StringParamType):
    """A name, which the control database knows when a shell asks for it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names(self._kind, incomplete)]


def complete_names(command: click.Command, group: str) -> None:
    """Have a shell complete names for this command of a group, and for all below it."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            complete_names(inner, group)
    arguments = {"name": group, "names": group}
    for param in command.params:
        kinds = OPTIONS if isinstance(param, click.Option) else arguments
        if (kind := kinds.get(str(param.name))) in QUERIES:
            param.type = KnownName(kind)


@options.command(short_help="Shell completion for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(invocation: Invocation, *, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Example:
      source <(feedq completion bash)
      feedq completion fish > ~/.config/fish/completions/feedq.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root().command
    script = made(root, {}, "feedq", "_FEEDQ_COMPLETE").source()
    answer(invocation, {"shell": shell, "script": script}, lambda: click.echo(script))


def names(kind: str, beginning: str) -> list[str]:
    """Those that begin so; none when they cannot be asked for at once."""
    # Whatever goes wrong, a shell is not the place to tell it.
    with suppress(Exception):
        url = _database_url()
        import psycopg2

        bounded = f"-c statement_timeout={STATEMENT_TIMEOUT_MS}"
        connection = psycopg2.connect(url, connect_timeout=CONNECT_TIMEOUT_S, options=bounded)
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(_BEGINNING.format(QUERIES[kind]), (beginning, NAMES_MAX))
            return [str(name) for (name,) in cursor.fetchall()]
    return []


def _database_url() -> str:
    """That of the environment, or of the `feedq up` that runs in this directory. Raises `KeyError` without one."""
    if "FEEDQ_SERVER" in os.environ:
        raise KeyError("a server is not asked for names")
    return os.environ.get("FEEDQ_DATABASE_URL") or stack_settings(STACK_DIR)["FEEDQ_DATABASE_URL"]
