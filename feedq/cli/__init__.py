"""The `feedq` command. Its root finds commands, and turns a `FeedqError` into one line on standard error, with no
traceback, and an exit status.

Commands are thin: they read options, have a verb of `feedq.verbs` done, at the database or by a server, and show
its answer, as tables for people or as one JSON document. They are imported when they are used, and import what is
heavy when they are run, so that `feedq --version`, help and completion answer at once, and a missing optional
dependency takes only its own command away.
"""

from __future__ import annotations

import gc
import os
import socket
from importlib import import_module
from typing import Any, ClassVar, Final

import click

import feedq
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.options import Group
from feedq.core.authorship import Author, acting
from feedq.errors import FeedqError, InvalidInput

with lazily():
    from feedq.verbs import wording

EMBEDDED: Final = ("up", "env")
"""Commands that need the extra ``embedded``."""
COLLECT_AFTER: Final = 100_000
"""Objects; usually 700."""


class CommandFailed(click.ClickException):
    """Ends the command with a message."""

    def __init__(self, message: str) -> None:
        # It may quote what somebody else sent, which must not steer the terminal.
        super().__init__(wording.printable_lines(message))


class Refused(CommandFailed):
    """Ends the command with a message about what was asked wrongly."""

    exit_code = 2


class Root(Group):
    """Finds commands by the place of their code; see the module's docstring."""

    places: ClassVar[dict[str, str]] = {
        "up": "feedq.cli.up:up",
        "env": "feedq.cli.up:env",
        "db": "feedq.cli.db:db",
        "apply": "feedq.cli.apply:apply",
        "lint": "feedq.cli.apply:lint",
        "schema": "feedq.cli.apply:schema",
        "export": "feedq.cli.declare:export",
        "sync": "feedq.cli.apply:sync",
        "feed": "feedq.cli.feed:feed",
        "schedule": "feedq.cli.schedule:schedule",
        "worker": "feedq.cli.fleet:worker",
        "status": "feedq.cli.fleet:status",
        "token": "feedq.cli.api:token",
        "api": "feedq.cli.api:serve",
        "top": "feedq.cli.fleet:top",
        "events": "feedq.cli.fleet:events",
        "doctor": "feedq.cli.fleet:doctor",
        "do": "feedq.cli.api:do_verb",
        "connectors": "feedq.cli.fleet:connectors",
        "completion": "feedq.cli.completing:completion",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, _, attribute = self.places[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        if ctx.resilient_parsing:  # somebody completes a line
            from feedq.cli.completing import complete_names

            complete_names(command, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        # Nearly all that a command loads stays: to look through it again and again takes a tenth longer.
        gc.set_threshold(COLLECT_AFTER)
        # On the root, so that all commands below share it.
        ctx.ensure_object(Invocation)
        try:
            with acting(_author()):
                return super().invoke(ctx)
        except ImportError as error:
            name = ctx.invoked_subcommand
            if name not in EMBEDDED:
                raise
            why = f"`feedq {name}` needs the embedded servers: pip install 'feedq[embedded]' ({error})"
            raise CommandFailed(why) from None
        except FeedqError as error:
            raise (Refused if isinstance(error, InvalidInput) else CommandFailed)(str(error)) from error


def _author() -> Author:
    """Who runs the command, as this machine knows them."""
    import getpass

    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        who = f"uid {os.getuid()}"
    return Author(who, socket.gethostname())


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(feedq.__version__, prog_name="feedq")
def main() -> None:
    """Keep every feed running on exactly one worker, and land its data exactly once.

    Settings are FEEDQ_* environment variables, above all FEEDQ_DATABASE_URL. Exit status: 0 done, 1 failed,
    2 wrong usage or input.

    \b
    Example:
      feedq up --demo                  everything on this machine, with a demo source
      feedq apply -f feeds.yaml        declare feeds
      feedq feed list                  see how they are doing
    """
