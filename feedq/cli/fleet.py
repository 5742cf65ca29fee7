"""`feedq status`, `top`, `doctor`, `events`, `worker` and `connectors`: the fleet at a glance and live, what is
wrong and how to mend it, what has happened, its workers, and what feeds can be made of.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count as counting
from itertools import takewhile
from typing import Any

import click

from feedq.cli import options
from feedq.cli.choosing import chooses_feeds
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import (
    ProgressLine,
    TableColumn,
    answer,
    answer_list,
    fact_lines,
    first,
    styled,
    table_lines,
    write_json_line,
)

with lazily():
    from feedq.cli import tables
    from feedq.control.store import history
    from feedq.core import model, selection
    from feedq.verbs import details, feeds, fleet, json_schema, wording
    from feedq.verbs.diagnosis import checks, fleet_checks

LEVEL_WIDTH = 13
NAME_WIDTH = 20
LOOK_S = 1.0
"""How often ``--follow`` looks for more."""
SINCE_S = 300.0
"""How far back everything is shown; one feed's history is shown whole."""
FEEDS_SEEN = 100
"""Of the feeds, `feedq top` shows the first; `feedq feed list` has them all."""


# -- status ------------------------------------------------------------------------------------------


@options.command(short_help="The fleet at a glance, and what is wrong with it.")
@click.option("--problems", is_flag=True, help="Show everything that needs attention, worst first.")
def status(invocation: Invocation, *, problems: bool) -> None:
    """The fleet at a glance: feeds by status, workers and their load, schedules, beats and warnings.

    With --problems: everything that needs attention, with the reason, since when, and what to do.

    \b
    Example:
      feedq status
      feedq status --problems
    """
    if problems:
        listed = invocation.do(fleet.list_problems).items
        lines = [line for one in listed for line in _problem_lines(one)] or ["nothing needs attention"]
        answer(invocation, listed, "\n".join(lines))
        return
    found = invocation.do(fleet.show_status)

    columns = tables.worker_columns(invocation.clock.now())
    warnings = [f"{one.level}: {one.name}: {one.detail}\n      -> {one.advice}" for one in found.warnings]
    answer(
        invocation,
        found,
        fact_lines(_numbers(found)),
        table_lines(found.workers, columns),
        "\n".join(warnings),
    )


def _problem_lines(one: checks.Check) -> list[str]:
    whose = ""
    if one.feeds:
        of = f" of {one.tenant}" if one.tenant else ""
        whose = f" {one.feed or wording.counted(one.feeds, 'feed') + of}"
    since = "" if one.since is None else f", since {wording.stamp(one.since)}"
    return [f"{one.level}: {one.name}{whose}{since}: {one.detail}", f"      -> {one.advice}"]


def _numbers(found: fleet.FleetData) -> list[details.Fact]:
    numbers, state, jobs, leader = found.numbers, found.state, found.jobs, found.state.leader
    spread = "" if numbers.spread is None else f", {numbers.spread[0]} to {numbers.spread[1]} each"
    waiting = ", ".join(f"{count} {reason}" for reason, count in sorted(numbers.waiting.items()))
    landing = f"{numbers.rows_per_s:,.0f} rows/s, {wording.size(numbers.bytes_per_s)}/s"
    used = wording.percent(numbers.held, numbers.capacity)
    facts: list[details.Fact] = [
        ("feeds", f"{numbers.feeds}: {by_status(numbers)}" if numbers.feeds else "0"),
        ("waiting", waiting or None),
        ("moving", f"{numbers.moving} on their way to another worker" if numbers.moving else None),
        ("records", f"{numbers.records_total:,} ({landing})"),
        ("workers", fleet_checks.described(numbers)),
        ("load", f"{numbers.held} of {numbers.capacity} places taken ({used}){spread}"),
        ("beat", f"{leader.host}:{leader.pid}" if leader is not None and leader.leads else "nobody leads"),
        ("reconcile", "never" if state.pass_age_s is None else f"{wording.duration(state.pass_age_s)} ago"),
    ]
    if jobs.are_used:
        facts += [
            ("schedules", fleet_checks.described_schedules(jobs)),
            ("runs", fleet_checks.described_runs(jobs)),
            ("job slots", f"{jobs.slots} on {wording.counted(jobs.workers, 'worker')}"),
        ]
    return facts


def by_status(numbers: fleet_checks.Overview) -> str:
    counts = numbers.by_status
    return ", ".join(f"{counts[status]} {status}" for status in model.Status if counts.get(status))


# -- live --------------------------------------------------------------------------------------------


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
    is_live = sys.stdout.isatty() and not invocation.json
    with (
        suppress(KeyboardInterrupt),
        screen() if is_live else nullcontext(partial(_write, invocation)) as show,
    ):
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


def _write(invocation: Invocation, frame: Frame) -> None:
    if invocation.json:
        write_json_line(frame)
    else:
        click.echo(f"{frame.at:%H:%M:%S} {summary(frame.fleet)}")
        sys.stdout.flush()


@contextmanager
def screen(
    extra: Sequence[TableColumn[model.FeedView]] = (), last: str = "Ctrl-C leaves"
) -> Iterator[Callable[[Frame], None]]:
    """A screen of its own, which shows the frames that it is called with; the terminal is given back as it was.

    ``extra`` are further columns of the feeds, ``last`` is what the last line says.
    """

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


# -- doctor ------------------------------------------------------------------------------------------


@options.command(short_help="Check database, broker, sinks, workers and limits, and say what to fix.")
@click.option("--alerts", is_flag=True, help="Also send a test message to each alert target.")
def doctor(invocation: Invocation, *, alerts: bool) -> None:
    """Check everything feedq depends on, with the settings of this machine or of the server.

    Each check is ok, warn, FAIL or "not checked", followed by what to fix. The exit status is 1 if one
    fails.

    \b
    Example:
      feedq doctor
      FEEDQ_ALERT_URLS='mailto://…  slack://…' feedq doctor --alerts
    """
    if invocation.server is None:
        invocation.keep_log_quiet()
    with invocation.progress("checks"):
        found = invocation.do(fleet.diagnose_fleet)
    if alerts:
        tried = invocation.do(fleet.try_alerts)
        others = [check for check in found.checks if check.name != fleet.ALERTS]
        found = fleet.Diagnosis(found.healthy and tried.healthy, [*others, *tried.checks])
    counts = Counter(check.level for check in found.checks)
    level = checks.Level
    numbers = [counts[one] for one in (level.OK, level.WARN, level.FAIL, level.NOT_CHECKED)]

    lines = []
    for check in found.checks:
        shown = styled(check.level.ljust(LEVEL_WIDTH), check.level)
        lines.append(shown + check.name.ljust(NAME_WIDTH) + wording.printable(check.detail))
        if check.advice:
            lines.append(f"{' ' * (LEVEL_WIDTH + NAME_WIDTH)}-> {wording.printable(check.advice)}")
    answer(invocation, found, [*lines, "{} ok, {} warnings, {} failed, {} not checked".format(*numbers)])
    if not found.healthy:
        raise SystemExit(1)


# -- events ------------------------------------------------------------------------------------------


@options.command(short_help="History of feeds, workers and schedules.")
@click.option(
    "--since",
    "since_s",
    type=options.Duration(),
    help="How far back, such as 90s or 2h. [default: 5m; with --feed, everything]",
)
@click.option("--feed", metavar="NAME", help="Only events of this feed.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=options.OneOf("feedq.telemetry.event_names:EventKind"),
    help="Only events of this kind; may be repeated.",
)
@click.option("--tenant", help="Only events of this tenant's feeds.")
@options.limit(1_000, "At most this many, the newest.")
@click.option("--follow", "follow_on", is_flag=True, help="Keep printing new events until Ctrl-C.")
def events(
    invocation: Invocation, *, since_s: float | None, limit: int, follow_on: bool, **which: Any
) -> None:
    """History, oldest first: who got which feed, what failed, what people changed.

    \b
    Example:
      feedq events --since 5m
      feedq events --kind feed_paused --kind feed_edited --since 1d
      feedq events --feed acme/orders --follow
    """
    if which["feed"] is not None and which["tenant"] is not None:
        raise click.UsageError("--feed and --tenant cannot be combined")
    if since_s is None and which["feed"] is None:
        since_s = SINCE_S
    if since_s is not None:
        which["since"] = invocation.clock.now() - timedelta(seconds=since_s)
    found = first(invocation.pages(fleet.list_events, **which), limit)[::-1]
    if follow_on:
        _follow(invocation, which, found)
        return
    empty = (
        "no events" if since_s is None else f"nothing happened within the last {wording.duration(since_s)}"
    )
    answer_list(invocation, found, tables.EVENT_COLUMNS, empty=empty, wide=tables.EVENT_EPOCH)


def _follow(invocation: Invocation, which: dict[str, Any], found: list[history.ListedEvent]) -> None:
    """Shows what was found, one on a line, and then what there is more of, until Ctrl-C."""
    last = 0
    with suppress(KeyboardInterrupt):
        while True:
            for listed in found:
                if invocation.json:
                    write_json_line(listed)
                else:
                    click.echo("  ".join(column.show(listed) for column in tables.EVENT_COLUMNS))
                last = listed.id
            sys.stdout.flush()
            time.sleep(LOOK_S)
            found = _newer(invocation, which, last)


def _newer(invocation: Invocation, which: dict[str, Any], last: int) -> list[history.ListedEvent]:
    newest = invocation.pages(fleet.list_events, **which)
    return list(takewhile(lambda listed: listed.id > last, newest))[::-1]


# -- workers -------------------------------------------------------------------------------------------


@options.group(short_help="List, show, cordon, uncordon and drain workers.")
def worker() -> None:
    """Workers, their load, and whether they take feeds.

    \b
    Example:
      feedq worker list
      feedq worker drain celery@host --wait
    """


@worker.command("list")
@click.option("--all", "gone", is_flag=True, help="Include sessions that have ended.")
def list_(invocation: Invocation, *, gone: bool) -> None:
    """All workers, with what they hold and whether they take feeds.

    \b
    Example:
      feedq worker list --json
    """
    views = invocation.do(fleet.list_workers, gone=gone).items
    answer_list(invocation, views, tables.worker_columns(invocation.clock.now()), empty=tables.NO_WORKERS)
    held = [view.leases for view in views if fleet_checks.serves(view)]
    if len(held) > 1 and not invocation.json:
        click.echo(f"spread: {min(held)} to {max(held)} feeds on each serving worker")


@worker.command()
@click.argument("name")
def show(invocation: Invocation, *, name: str) -> None:
    """One worker with its feeds. NAME may also be the part before the @, or the start of its id (eight
    characters).

    \b
    Example:
      feedq worker show celery@host
    """
    found, now = invocation.do(fleet.show_worker, name=name), invocation.clock.now()

    held = table_lines(found.held, tables.feed_columns(now))
    answer(invocation, found, fact_lines(details.worker_lines(found.view, now=now)), held)


@worker.command()
@click.argument("name")
@options.changes
def cordon(invocation: Invocation, *, name: str) -> None:
    """Give a worker no new feeds. It keeps its current feeds.

    \b
    Example:
      feedq worker cordon celery@host
    """
    view = invocation.do(fleet.act_on_worker, name=name, action=fleet.WorkerAction.CORDON)
    answer(invocation, view, f"{view.worker.name} cordoned")


@worker.command()
@click.argument("name")
@options.changes
def uncordon(invocation: Invocation, *, name: str) -> None:
    """Put a cordoned or drained worker back into service.

    \b
    Example:
      feedq worker uncordon celery@host
    """
    view = invocation.do(fleet.act_on_worker, name=name, action=fleet.WorkerAction.UNCORDON)
    answer(invocation, view, f"{view.worker.name} serving")


@worker.command(short_help="Move a worker's feeds to others.")
@click.argument("name")
@options.waits()
@options.changes
def drain(invocation: Invocation, *, name: str, wait: bool, timeout_s: float) -> None:
    """Move a worker's feeds to others as they have room, and give it no new ones.

    Feeds that have no place elsewhere keep running. The process itself keeps running, too; `uncordon` puts it back
    into service.

    \b
    Example:
      feedq worker drain celery@host --wait --timeout 120
    """
    view = invocation.do(fleet.act_on_worker, name=name, action=fleet.WorkerAction.DRAIN)
    if wait:
        with ProgressLine("feeds handed over") as line:

            def left() -> int:
                # A worker that has left holds nothing.
                views = invocation.do(fleet.list_workers).items
                return sum(one.leases for one in views if one.worker.id == view.worker.id)

            def is_over(left: int) -> bool:
                line(max(0, view.leases - left), view.leases)
                return left == 0

            invocation.wait_for(
                left,
                is_over,
                timeout_s=timeout_s,
                what=f"{view.worker.name} hands over its {wording.counted(view.leases, 'feed')}",
                why=lambda _: "`feedq status` says whether other workers serve and have room",
            )
    answer(invocation, view, f"{view.worker.name} {'drained' if wait else 'draining'}")


# -- connectors --------------------------------------------------------------------------------------


@options.command(short_help="The installed connectors and their options.")
@click.argument("name", required=False)
def connectors(invocation: Invocation, *, name: str | None) -> None:
    """The installed connectors and their options; with --json, their JSON Schema.

    \b
    Example:
      feedq connectors tcp
    """
    if name is None:
        schemas = invocation.do(json_schema.list_connectors)
    else:
        schemas = {name: invocation.do(json_schema.show_connector, name=name)}

    shown = []
    for kind, schema in schemas.items():
        options = table_lines(list(schema.get("properties", {}).items()), _option_columns(schema))
        shown.append([f"{kind}: {_first_sentence(schema.get('description', ''))}", *options])
    answer(invocation, schemas, *shown)


def _option_columns(schema: Mapping[str, Any]) -> list[TableColumn[tuple[str, Any]]]:
    required = set(schema.get("required", ()))
    return [
        TableColumn("  OPTION", lambda row: f"  {row[0]}"),
        TableColumn("TYPE", lambda row: _type(row[1], schema)),
        TableColumn("DEFAULT", lambda row: "required" if row[0] in required else _default(row[1])),
        TableColumn("MEANS", lambda row: _first_sentence(row[1].get("description", ""))),
    ]


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _type(about: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Names a type in a word or two."""
    if "$ref" in about:
        return _type(root["$defs"][about["$ref"].rpartition("/")[2]], root)
    if "anyOf" in about:
        return " or ".join(kind for one in about["anyOf"] if (kind := _type(one, root)) != "null")
    if "enum" in about:
        return "|".join(map(str, about["enum"]))
    if about.get("type") == "object":
        inner = about.get("additionalProperties")
        return f"mapping to {_type(inner, root)}" if isinstance(inner, Mapping) else "mapping"
    if about.get("type") == "array":
        return f"list of {_type(about.get('items', {}), root)}"
    return str(about.get("type", "any"))


def _default(about: Mapping[str, Any]) -> str:
    default = about.get("default")
    return "-" if default in (None, "", {}, []) else wording.as_json(default).strip('"')
