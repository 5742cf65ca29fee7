"""What `feedq up --demo` shows: live tables in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from rich.console import Group, RenderableType
from rich.text import Text

from feedq.cli.output import rich_table, styled
from feedq.embedded.demo import FeedTally
from feedq.embedded.observer import Snapshot
from feedq.model import FeedView, Status, WorkerState, WorkerView
from feedq.telemetry import mask_url
from feedq.wording import duration, printable, size

WELL = {Status.STREAMING, Status.STARTING, Status.WAITING, Status.STOPPING, Status.PAUSED, Status.REMOVING}


def render(snapshot: Snapshot, *, flower_url: str, news: Sequence[str]) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [_feeds(snapshot), Text(), _workers(snapshot), Text()]
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
    """The same in one line, for a log."""
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
    titles = ("Feed", "Worker", "Status", "Epoch", "Rows", "Rows/s", "Check")
    rows = [_feed_row(view, snapshot) for view in snapshot.feeds]
    return rich_table(titles, rows, right={"Epoch", "Rows", "Rows/s"})


def _feed_row(view: FeedView, snapshot: Snapshot) -> list[str | Text]:
    name = view.feed.name
    tally = snapshot.tallies.get(name, FeedTally())
    rate = snapshot.rates.get(name)
    return [
        name,
        _short(view.worker or "-"),
        styled(view.status.value),
        str(view.lease.epoch),
        f"{tally.rows:,}",
        "-" if rate is None else f"{rate:.1f}",
        _check(tally),
    ]


def _workers(snapshot: Snapshot) -> RenderableType:
    titles = ("Worker", "State", "Feeds", "Capacity", "Heartbeat", "CPU", "Memory", "PID")
    rows: list[list[str | Text]] = [
        [
            _short(view.worker.name),
            styled(view.worker.state.value),
            str(view.leases),
            str(view.worker.capacity),
            f"{duration(view.heartbeat_age_s)} ago",
            f"{100 * view.worker.load.cpu:.0f} %",
            size(view.worker.load.rss),
            str(view.worker.pid),
        ]
        for view in snapshot.workers
    ]
    return rich_table(titles, rows, right={"Feeds", "Capacity", "Heartbeat", "CPU", "Memory", "PID"})


def _check(tally: FeedTally) -> Text:
    if not tally.rows:
        return Text("-", style="dim")
    if tally.is_exact:
        return Text(f"1…{tally.last_seq:,} each once", style="green")
    return Text(f"{tally.lost:,} lost, {tally.doubled:,} doubled of {tally.last_seq:,}", style="bold red")


def _complaints(snapshot: Snapshot) -> list[str]:
    """What the first feed in trouble says; the others mostly say the same."""
    troubled = (v for v in snapshot.feeds if v.status not in WELL and v.because)
    return [f"{v.feed.name}: {printable(mask_url(v.because or ''))}" for v in islice(troubled, 1)]


def _verdict(snapshot: Snapshot) -> Text:
    tallies = snapshot.tallies.values()
    lost, doubled = sum(t.lost for t in tallies), sum(t.doubled for t in tallies)
    style = "green" if not lost and not doubled else "bold red"
    return Text(f"{lost:,} lost, {doubled:,} doubled", style=style)


def _victim(workers: Sequence[WorkerView]) -> WorkerView | None:
    """The worker whose end would show most."""
    active = [v for v in workers if v.worker.state is WorkerState.ACTIVE and v.leases]
    return max(active, key=lambda v: v.leases, default=None)


def _short(name: str) -> str:
    """All of them are on this machine: the host says nothing."""
    return name.partition("@")[0]
