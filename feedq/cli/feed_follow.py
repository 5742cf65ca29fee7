"""`feedq feed tap` and `logs`: records of a feed as they land, and what its workers write of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from feedq.cli.invocation import STACK_DIR, Invocation, changes, output_option, pass_invocation
from feedq.cli.output import answer, follow, write_json_line
from feedq.errors import NotFound
from feedq.tap import LIMIT_MAX, SECONDS_MAX
from feedq.wording import printable

LOOK_S = 0.5
"""How often ``--follow`` looks for more."""
LINE_BYTES_MAX = 64 * 1024
TIME_WIDTH = len("2026-12-01T08:00:00.123")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@click.command()
@click.argument("name")
@click.option(
    "--lines", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The latest so many."
)
@click.option("--follow", "follow_on", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=STACK_DIR,
    show_default=True,
    help="That of the `feedq up`.",
)
@pass_invocation
def logs(invocation: Invocation, *, name: str, lines: int, follow_on: bool, data_dir: Path) -> None:
    """Lines about one feed in the logs of the processes that `feedq up` runs here.

    Elsewhere a worker writes its log to standard error, for whoever runs it to collect.

    \b
    Example:
      feedq feed logs acme/orders --follow
    """
    view = invocation.store.feeds.view(name)
    files = sorted((data_dir / "logs").glob("*.log"))
    if not files:
        owner = f"the worker {view.worker}" if view.worker else "whichever worker gets it"
        raise NotFound(f"no feedq up keeps logs in {data_dir}: {owner} writes its log to standard error")
    is_about = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])").search
    tails = [LogTail(file) for file in files]
    found = deque(sorted(line for tail in tails for line in tail.new() if is_about(line)), maxlen=lines)
    if not follow_on:
        answer(invocation, list(found), "\n".join(found) or f"nothing was written of {name}")
        return

    def more() -> list[str]:
        return [line for tail in tails for line in tail.new() if is_about(line)]

    follow(invocation, found, more, document=str, text=printable, every_s=LOOK_S)


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
@changes
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


class LogTail:
    """Reads whole lines of a log, on from where it was."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0

    def new(self) -> Iterator[str]:
        """Yields the lines that were added, without their colours."""
        try:
            with self._path.open("rb") as log:
                if self._path.stat().st_size < self._place:
                    self._place = 0  # another log by now
                log.seek(self._place)
                while (line := log.readline(LINE_BYTES_MAX)).endswith(b"\n") or len(line) == LINE_BYTES_MAX:
                    self._place = log.tell()
                    yield _COLOURS.sub("", line.decode("utf-8", "replace")).rstrip("\n")
        except FileNotFoundError:
            return
