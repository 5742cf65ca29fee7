"""`feedq top`: the fleet, live.

In a terminal a view that fills it, until q or Ctrl-C; elsewhere a plain line, or with --json one JSON
document a line, every interval.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

import click

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import TableColumn, rich_table, write_json_line
from feedq.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from feedq.control.store.fleet_state import JobState
    from feedq.core.model import FeedView, WorkerView
    from feedq.verbs.schedules import ScheduleRow

RATE_WINDOW_S = 5.0
"""Rates are over this long: workers report their progress every heartbeat, and not between."""
LINES_BESIDE_FEEDS = 4
"""Titles of the feeds, two blank lines and the last one of the live view."""
SCHEDULES_SHOWN = 5
"""Those to look at first; `feedq schedule list` has them all."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Holds one look at the fleet, with rates over the last seconds."""

    at: datetime
    feeds: Sequence[FeedView]
    workers: Sequence[WorkerView]
    rates: dict[int, float]
    """Records a second, by feed id; none in the first frame."""
    jobs: JobState
    schedules: Sequence[ScheduleRow] = ()
    """Those to look at first, a few of all."""

    @property
    def rate(self) -> float:
        return sum(self.rates.values())


@click.command(short_help="The fleet, live; q or Ctrl-C to leave.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many looks.")
@click.option("--tenant", help="Only this tenant's feeds.")
@pass_invocation
def top(invocation: Invocation, *, interval_s: float, count: int | None, tenant: str | None) -> None:
    """Feeds with their rates, workers with their load, and the schedules to look at first, live.

    Troubled feeds come first, then the busiest. Schedules that fail come first, then those that failures have
    paused, that are late, that run, and that fire next. Without a terminal it prints a line every interval.

    \b
    Example:
      feedq top --interval 2
    """
    watch = FleetWatch(invocation, tenant=tenant)
    frames = (watch.look() for _ in (repeat(None) if count is None else repeat(None, count)))
    if invocation.json:
        show: Callable[[Frame], None] = _write_document
    elif not sys.stdout.isatty():
        show = _write_line
    else:
        _live(frames, interval_s)
        return
    try:
        for position, frame in enumerate(frames):
            show(frame)
            if count is None or position + 1 < count:
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return


class FleetWatch:
    """Looks at the fleet again and again, for rates over the last seconds."""

    def __init__(self, invocation: Invocation, *, tenant: str | None = None) -> None:
        self._invocation, self._tenant = invocation, tenant
        self._past: deque[tuple[float, dict[int, int]]] = deque()

    def look(self) -> Frame:
        """Raises `Unavailable`; the next look may succeed."""
        from feedq.core.selection import Selection
        from feedq.verbs.feeds import list_feeds
        from feedq.verbs.fleet import show_status
        from feedq.verbs.schedules import list_schedules

        invocation, past = self._invocation, self._past
        select = Selection(tenant=self._tenant, removing=True)
        feeds = list(invocation.pages(None, list_feeds, select=select))
        fleet = invocation.do(show_status)
        now = invocation.clock.monotonic()
        totals = {view.feed.id: view.lease.records_total for view in feeds}
        while len(past) > 1 and now - past[1][0] >= RATE_WINDOW_S:
            past.popleft()
        then, before = past[0] if past else (now, {})
        passed_s = max(now - then, 0.001)
        rates = {i: (total - before[i]) / passed_s for i, total in totals.items() if i in before}
        past.append((now, totals))
        urgent: Sequence[ScheduleRow] = ()
        if fleet.jobs.schedules:
            urgent = invocation.do(list_schedules, urgent=True, limit=SCHEDULES_SHOWN).items
        return Frame(invocation.clock.now(), feeds, fleet.workers, rates, fleet.jobs, urgent)


# -- without a terminal ------------------------------------------------------------------------------


def _write_line(frame: Frame) -> None:
    click.echo(f"{frame.at:%H:%M:%S} {summary(frame)}")
    sys.stdout.flush()


def _write_document(frame: Frame) -> None:
    write_json_line(replace(frame, rates={key: round(rate, 3) for key, rate in frame.rates.items()}))


def summary(frame: Frame) -> str:
    from feedq.control.store.feed_listing import StatusCount
    from feedq.core.model import Status
    from feedq.verbs.diagnosis import fleet_checks
    from feedq.verbs.diagnosis.schedule_checks import described_runs

    counts_of_one = [StatusCount(view.status, view.lease.reason, 1, 0, 0) for view in frame.feeds]
    numbers, jobs = fleet_checks.summary(counts_of_one, frame.workers), frame.jobs
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(numbers.waiting.items()))
    counts = ", ".join(
        f"{numbers.by_status[s]} {s}" + (f": {reasons}" if s is Status.WAITING else "")
        for s in Status
        if numbers.by_status.get(s)
    )
    moving = f", {numbers.moving} moving" if numbers.moving else ""
    return (
        f"{numbers.feeds} feeds ({counts or 'none'}{moving}), workers: {fleet_checks.described(numbers)} "
        f"({numbers.held}/{numbers.capacity}), {frame.rate:,.0f} records/s"
        + (f", runs: {described_runs(jobs)}" if jobs.are_used else "")
    )


# -- in a terminal -----------------------------------------------------------------------------------


def _live(frames: Iterator[Frame], interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        for frame in _surviving(frames, live):
            live.update(render(frame, console), refresh=True)
            if pressed(interval_s):
                return


def _surviving(frames: Iterator[Frame], live: Live) -> Iterator[Frame]:
    """Raises the error of a database that went away only once the screen is given back."""
    try:
        yield from frames
    except Unavailable:
        live.stop()
        raise
    except KeyboardInterrupt:
        return


def render(
    frame: Frame, console: Console, *, extra: Sequence[TableColumn[FeedView]] = (), last: str = "q leaves"
) -> RenderableType:
    """Renders the whole view: a summary, the workers, as many feeds as fit, and the schedules to look at first.

    ``extra`` are further columns of the feeds, ``last`` is what the last line says.
    """
    from rich.console import Group
    from rich.text import Text

    from feedq.cli.tables import WORKER_WHY, feed_columns, urgent_columns, worker_columns
    from feedq.verbs.troubles import TROUBLES
    from feedq.verbs.wording import worker_trouble

    height = console.size.height
    title = Text(f"{frame.at:%H:%M:%S}  {summary(frame)}", style="bold")
    shown = frame.workers[: max(height // 3, 1)]
    # No column for what is empty: terminals are narrow.
    whys = [WORKER_WHY] if any(map(worker_trouble, shown)) else []
    workers = rich_table(shown, [*worker_columns(title="WORKER", heard="HEARD"), *whys])
    below: list[RenderableType] = []
    if frame.schedules:
        urgent = frame.schedules[: max(height // 6, 1)]
        below = [Text(), rich_table(urgent, urgent_columns(frame.at))]
    # As they will be drawn: where the terminal is narrow lines are folded.
    unlimited = console.options.update(height=None)
    taken = len(console.render_lines(Group(title, workers, *below), unlimited))
    room = max(height - LINES_BESIDE_FEEDS - taken, 1)
    worst = [*dict.fromkeys(str(trouble.cause) for trouble in TROUBLES), "connecting"]
    ranked = sorted(frame.feeds, key=lambda view: _rank(view, frame, worst))
    columns = [*feed_columns(frame.at, title="FEED", rates=frame.rates, width=60), *extra]
    feeds = rich_table(ranked[:room], columns)
    left_out = len(ranked) - room
    parts: list[RenderableType] = [
        title,
        Text(),
        workers,
        Text(),
        feeds,
        *below,
        Text((f"… {left_out} more feeds; " if left_out > 0 else "") + last, style="dim"),
    ]
    return Group(*parts)


def _rank(view: FeedView, frame: Frame, worst: Sequence[str]) -> tuple[int, float, str]:
    trouble = worst.index(view.status) if view.status in worst else len(worst)
    return (trouble, -frame.rates.get(view.feed.id, 0.0), view.feed.name)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yields a wait that returns True when q was pressed, or Ctrl-C; keys are not echoed meanwhile."""
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if descriptor is None else termios.tcgetattr(descriptor)
    if descriptor is not None:
        tty.setcbreak(descriptor)

    def pressed(timeout_s: float) -> bool:
        try:
            if descriptor is None:
                time.sleep(timeout_s)
                return False
            ready, _, _ = select.select([descriptor], [], [], timeout_s)
            return bool(ready) and os.read(descriptor, 1) in (b"q", b"Q", b"\x03", b"")
        except KeyboardInterrupt:
            return True

    try:
        yield pressed
    finally:
        if descriptor is not None and before is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
