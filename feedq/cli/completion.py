"""`feedq completion`: what a shell has to run so that it completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import answer

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="What completes commands and options in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
@pass_invocation
def completion(invocation: Invocation, *, shell: str) -> None:
    """Print the script that lets a shell complete commands and options.

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
