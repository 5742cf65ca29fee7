"""`feedq top`: the fleet, live.

In a terminal a view that fills it, until Ctrl-C; elsewhere a plain line, or with --json one JSON document a line,
every interval.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count as counting

import click

from feedq.cli import options
from feedq.cli.choosing import chooses_feeds
from feedq.cli.fleet import by_status
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import TableColumn, table_lines, write_json_line

with lazily():
    from feedq.cli import tables
    from feedq.core import model, selection
    from feedq.verbs import feeds, fleet
    from feedq.verbs.diagnosis import checks, fleet_checks

FEEDS_SEEN = 100
"""The first of them; `feedq feed list` has them all."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Holds one look at the fleet."""

    at: datetime
    fleet: fleet.FleetData
    feeds: Sequence[model.FeedView]
    """Those in trouble, the worst first, and then those that land most."""


@options.command(short_help="The fleet, live; Ctrl-C to leave.")
@chooses_feeds
@click.option(
    "--interval",
    "interval_s",
    type=options.Duration(least_s=0.1, most_s=3_600),
    default="1s",
    help="Time between updates.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many updates.")
def top(invocation: Invocation, *, select: selection.Selection, interval_s: float, count: int | None) -> None:
    """Live rates of feeds, load of workers, and waiting and running jobs.

    Feeds in trouble come first, then the busiest. Without a terminal it prints one line per interval.

    \b
    Example:
      feedq top --interval 2
    """
    with screen() if sys.stdout.isatty() and not invocation.json else _lines(invocation) as show:
        for number in counting(1):
            show(look(invocation, select))
            if number == count:
                return
            time.sleep(interval_s)


def look(invocation: Invocation, select: selection.Selection) -> Frame:
    """Raises `Unavailable`; the next look may succeed."""
    seen = invocation.do(fleet.show_status)
    found: dict[int, model.FeedView] = {}
    for more in (replace(select, failing=True), replace(select, removing=True)):
        by_rate = selection.SelectionOrder.RATE
        for view in invocation.do(feeds.list_feeds, select=more, order=by_rate, limit=FEEDS_SEEN).items:
            found.setdefault(view.feed.id, view)
    ranks = {status: rank for rank, status in enumerate(checks.TROUBLED)}
    ranked = sorted(found.values(), key=lambda view: ranks.get(view.status, len(ranks)))
    return Frame(invocation.clock.now(), seen, ranked[:FEEDS_SEEN])


def summary(found: fleet.FleetData) -> str:
    numbers, jobs = found.numbers, found.jobs
    moving = f", {numbers.moving} moving" if numbers.moving else ""
    return (
        f"{numbers.feeds} feeds ({by_status(numbers) or 'none'}{moving}), workers: "
        f"{fleet_checks.described(numbers)} ({numbers.held}/{numbers.capacity}), {numbers.rows_per_s:,.0f} rows/s"
        + (f", runs: {fleet_checks.described_runs(jobs)}" if jobs.are_used else "")
    )


@contextmanager
def _lines(invocation: Invocation) -> Iterator[Callable[[Frame], None]]:
    def show(frame: Frame) -> None:
        if invocation.json:
            write_json_line(frame)
        else:
            click.echo(f"{frame.at:%H:%M:%S} {summary(frame.fleet)}")
            sys.stdout.flush()

    try:
        yield show
    except KeyboardInterrupt:
        return


# -- in a terminal -----------------------------------------------------------------------------------


@contextmanager
def screen(
    extra: Sequence[TableColumn[model.FeedView]] = (), last: str = "Ctrl-C leaves"
) -> Iterator[Callable[[Frame], None]]:
    """A screen of its own, which shows the frames that it is called with until Ctrl-C; the terminal is given back
    as it was. ``extra`` are further columns of the feeds, ``last`` is what the last line says."""

    def show(frame: Frame) -> None:
        width, height = shutil.get_terminal_size()
        lines = rendered(frame, width=width, height=height, extra=extra, last=last)
        click.echo(
            "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[J", nl=False
        )
        sys.stdout.flush()

    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        yield show
    except KeyboardInterrupt:
        return
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)


def rendered(
    frame: Frame,
    *,
    width: int,
    height: int,
    extra: Sequence[TableColumn[model.FeedView]] = (),
    last: str = "",
) -> list[str]:
    """The lines of the whole view: a summary, the workers, and as many feeds as fit."""
    title = f"{frame.at:%H:%M:%S}  {summary(frame.fleet)}"[:width]
    workers = frame.fleet.workers[: max(height // 3, 1)]
    above = [click.style(title, bold=True), "", *table_lines(workers, tables.WORKER_COLUMNS, width=width), ""]
    room = max(height - len(above) - 2, 1)
    columns = [*tables.feed_columns(frame.at, tables.ROWS_PER_S), *extra]
    more = frame.fleet.numbers.feeds - room
    last = (f"… {more:,} more feeds; " if more > 0 else "") + last
    rows = table_lines(frame.feeds[:room], columns, width=width)
    return [*above, *rows, click.style(last[:width], dim=True)]
