"""Where `feedq up` speaks: lines, JSON lines, or with --demo live tables with the news below them."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from feedq.cli.output import Styled, TableColumn, number, rich_table, state, write_json_line
from feedq.core.model import FeedView, Status, WorkerState, WorkerView
from feedq.local.demo import FeedTally, Observer, Snapshot
from feedq.verbs.wording import duration, printable, said, size

REFRESH_S = 0.25
SUMMARY_S = 5.0
"""Between two lines of the demo where there is no terminal."""
NEWS_KEPT = 4
WELL = {Status.STREAMING, Status.STARTING, Status.WAITING, Status.STOPPING, Status.PAUSED, Status.REMOVING}


class Screen:
    """Shows what the stack reports: lines, JSON lines, or a live view with the news below it."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False)
        self._news: deque[str] = deque(maxlen=NEWS_KEPT)
        self._is_live = False

    def ready(self, what: str, address: str = "", *, note: str = "") -> None:
        if self._as_json:
            self._write({"event": "ready", "what": what, "address": address, "note": note})
        else:
            self._write(f"{what:<12}{address}{'  ' if address else ''}{f'({note})' if note else ''}".rstrip())

    def say(self, text: str) -> None:
        if self._is_live:
            self._news.append(f"{time.strftime('%H:%M:%S')} {text}")
        elif self._as_json:
            self._write({"event": "said", "text": text})
        else:
            self._write(text)

    @contextmanager
    def live(self, observer: Observer, *, flower_url: Callable[[], str]) -> Iterator[Callable[[], None]]:
        """Show the demo until the block ends; yields what is to be called again and again."""
        if self._as_json or not self._console.is_terminal:
            yield _periodic(lambda: self.say(summarize(observer.latest)), interval_s=SUMMARY_S)
            return
        self._is_live = True
        with Live(console=self._console, auto_refresh=False, transient=False) as live:

            def refresh() -> None:
                view = render(observer.latest, flower_url=flower_url(), news=list(self._news))
                live.update(view, refresh=True)

            try:
                yield _periodic(refresh, interval_s=REFRESH_S)
            finally:
                self._is_live = False

    def _write(self, line: str | dict[str, str]) -> None:
        try:
            if isinstance(line, dict):
                write_json_line(line)
            else:
                click.echo(line)
                sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read us has gone; the stack goes on, and Python must not trip over it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _periodic(action: Callable[[], None], *, interval_s: float) -> Callable[[], None]:
    """Makes of ``action`` what may be called more often than it should happen."""
    due_at = time.monotonic() + interval_s

    def act_if_due() -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            due_at = time.monotonic() + interval_s
            action()

    return act_if_due


def render(snapshot: Snapshot, *, flower_url: str, news: Sequence[str]) -> RenderableType:
    """Renders the whole view."""
    workers = rich_table(snapshot.workers, WORKER_COLUMNS)
    parts: list[RenderableType] = [_feeds(snapshot), Text(), workers, Text()]
    parts.append(Text.assemble(("Check  ", "bold"), _verdict(snapshot)))
    parts += [Text(line, style="yellow") for line in _complaints(snapshot)]
    if snapshot.trouble:
        parts.append(Text(printable(snapshot.trouble), style="yellow"))
    parts += [Text(printable(line), style="yellow") for line in news]
    victim = _victim(snapshot.workers)
    if victim is not None:
        parts.append(
            Text.assemble(
                ("Try    ", "bold"),
                "in another terminal: ",
                (f"kill -9 {victim.worker.pid}", "bold cyan"),
                f"  and watch the feeds of {_short(victim.worker.name)} go on elsewhere",
            )
        )
    parts.append(
        Text.assemble(("Web    ", "bold"), f"{flower_url}/feeds", "    ", ("Ctrl-C", "bold"), " stops it all")
    )
    return Group(*parts)


def summarize(snapshot: Snapshot) -> str:
    """Says what the view shows in one line, for a log."""
    statuses = Counter(v.status for v in snapshot.feeds)
    others = ", ".join(f"{n} {s.value}" for s, n in statuses.items() if s is not Status.STREAMING)
    active = sum(v.worker.state is WorkerState.ACTIVE for v in snapshot.workers)
    rows = sum(tally.rows for tally in snapshot.tallies.values())
    rate = sum(snapshot.rates.values())
    line = (
        f"{statuses[Status.STREAMING]} of {len(snapshot.feeds)} feeds streaming"
        f"{f' ({others})' if others else ''} on {active} workers, "
        f"{rows:,} rows ({rate:.0f}/s), {_verdict(snapshot).plain}"
    )
    complaints = [*_complaints(snapshot), *([snapshot.trouble] if snapshot.trouble else [])]
    return "; ".join([line, *complaints])


def _feeds(snapshot: Snapshot) -> RenderableType:
    rates, tallies = snapshot.rates, snapshot.tallies

    def tally(view: FeedView) -> FeedTally:
        return tallies.get(view.feed.name, FeedTally())

    def rate(view: FeedView) -> str | None:
        return f"{rates[view.feed.name]:.1f}" if view.feed.name in rates else None

    columns: list[TableColumn[FeedView]] = [
        TableColumn("Feed", lambda view: view.feed.name),
        TableColumn("Worker", lambda view: view.worker and _short(view.worker)),
        state("Status", lambda view: view.status),
        number("Epoch", lambda view: str(view.lease.epoch)),
        number("Rows", lambda view: f"{tally(view).rows:,}"),
        number("Rows/s", rate),
        TableColumn("Check", lambda view: _check(tally(view))),
    ]
    return rich_table(snapshot.feeds, columns)


WORKER_COLUMNS: list[TableColumn[WorkerView]] = [
    TableColumn("Worker", lambda view: _short(view.worker.name)),
    state("State", lambda view: view.worker.state),
    number("Feeds", lambda view: str(view.leases)),
    number("Capacity", lambda view: str(view.worker.capacity)),
    number("Heartbeat", lambda view: f"{duration(view.heartbeat_age_s)} ago"),
    number("CPU", lambda view: f"{100 * view.worker.load.cpu:.0f} %"),
    number("Memory", lambda view: size(view.worker.load.rss)),
    number("PID", lambda view: str(view.worker.pid)),
]


def _check(tally: FeedTally) -> Styled:
    if not tally.rows:
        return Styled("-", "dim")
    if tally.is_exact:
        return Styled(f"1…{tally.last_seq:,} each once", "green")
    return Styled(f"{tally.lost:,} lost, {tally.doubled:,} doubled of {tally.last_seq:,}", "bold red")


def _complaints(snapshot: Snapshot) -> list[str]:
    """Quotes the first feed in trouble; the others mostly say the same."""
    troubled = (v for v in snapshot.feeds if v.status not in WELL and v.because)
    return [f"{v.feed.name}: {said(v.because or '')}" for v in troubled][:1]


def _verdict(snapshot: Snapshot) -> Text:
    tallies = snapshot.tallies.values()
    lost, doubled = sum(t.lost for t in tallies), sum(t.doubled for t in tallies)
    style = "green" if not lost and not doubled else "bold red"
    return Text(f"{lost:,} lost, {doubled:,} doubled", style=style)


def _victim(workers: Sequence[WorkerView]) -> WorkerView | None:
    """Picks the worker whose end would show most."""
    active = [v for v in workers if v.worker.state is WorkerState.ACTIVE and v.leases]
    return max(active, key=lambda v: v.leases, default=None)


def _short(name: str) -> str:
    """Cuts the host off a worker's name: all of them are on this machine."""
    return name.partition("@")[0]
