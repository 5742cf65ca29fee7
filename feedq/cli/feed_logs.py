"""`feedq feed logs`: what the workers of this machine's `feedq up` wrote of a feed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from feedq.cli.invocation import STACK_DIR, Invocation, pass_invocation
from feedq.cli.output import answer, write_json_line
from feedq.errors import NotFound
from feedq.wording import printable

LOOK_S = 0.5
"""How often ``--follow`` looks for more."""
LINE_BYTES_MAX = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@click.command()
@click.argument("name")
@click.option(
    "--lines", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The latest so many."
)
@click.option("--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=STACK_DIR,
    show_default=True,
    help="That of the `feedq up`.",
)
@pass_invocation
def logs(invocation: Invocation, *, name: str, lines: int, follow: bool, data_dir: Path) -> None:
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
    if not follow:
        answer(invocation, list(found), "\n".join(found) or f"nothing was written of {name}")
        return
    _follow(invocation, tails, found, is_about)


def _follow(
    invocation: Invocation, tails: list[LogTail], found: deque[str], is_about: Callable[[str], object]
) -> None:
    try:
        while True:
            for line in found:
                if invocation.json:
                    write_json_line(line)
                else:
                    click.echo(printable(line))
            time.sleep(LOOK_S)
            found = deque(line for tail in tails for line in tail.new() if is_about(line))
    except KeyboardInterrupt:
        return


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
