"""`feedq feed tap`: records of a running feed as they land."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click

from feedq.cli.invocation import Invocation, output_option, pass_invocation, reason_option
from feedq.cli.output import write_json_line
from feedq.tap import LIMIT_MAX, SECONDS_MAX
from feedq.wording import printable

TIME_WIDTH = len("2026-12-01T08:00:00.123")


@click.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT_MAX,
    show_default=True,
    help="End after so many records.",
)
@click.option(
    "--seconds", type=click.IntRange(1, SECONDS_MAX), default=600, show_default=True, help="End after this."
)
@output_option
@reason_option
@pass_invocation
def tap(invocation: Invocation, *, name: str, limit: int, seconds: int) -> None:
    """Records of a running feed as they land, without another connection to its source, until Ctrl-C.

    At most twenty a second are shown, each of at most 2,048 bytes, with secrets masked; it says how many were left
    out. The feed does not wait for whoever looks, and history says who did. With --json, one document a line.

    \b
    Example:
      feedq feed tap acme/orders --limit 10
    """
    try:
        with closing(invocation.tapped(name, seconds=seconds, limit=limit)) as rows:
            for row in rows:
                if invocation.json:
                    write_json_line(row)
                else:
                    _say(row)
    except KeyboardInterrupt:
        return


def _say(row: Mapping[str, Any]) -> None:
    match row["event"]:
        case "record":
            cut = f" … (cut: {row['bytes']:,} bytes)" if row["cut"] else ""
            click.echo(f"{row['at'][:TIME_WIDTH]}  {printable(row['record'])}{cut}")
        case "left_out":
            refused = f"; {row['refused']:,} of all were refused" if row["refused"] else ""
            click.echo(f"… {row['records']:,} more landed{refused}", err=True)
        case "end":
            click.echo(f"(ended: {printable(row['why'])})", err=True)
