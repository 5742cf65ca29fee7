"""`feedq simulate`: what a fleet would do, on paper."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.options import split_assignment
from feedq.cli.output import TableColumn, answer, number, warn, write_table
from feedq.errors import FeedqError, InvalidInput
from feedq.placement.base import Strategy
from feedq.settings import Settings, settings
from feedq.wording import counted

if TYPE_CHECKING:
    from feedq.simulate import Phase, Scenario, SimulationReport

# The simulation is imported where it is used: `feedq --help` need not wait for it.

PLACES = {
    "feeds": "feeds.count",
    "tenants": "feeds.tenants",
    "hosts": "feeds.hosts",
    "weights": "feeds.weights",
    "workers": "workers.count",
    "capacity": "workers.capacity",
    "duration": "for",
}
"""Where a scenario has what an option says, unless it is called the same."""
EXPLAINED = (
    "Gap (median) and Longest: seconds without streaming. Down, Waiting: feed-seconds without streaming, and "
    "without a place.\nConnects, Host: most begun within a second, by all and to one host."
)


@click.command(short_help="Placement, failover, deploys and joins on paper.")
@click.option(
    "-f", "--file", "file", type=click.File("r"), help="A scenario, YAML or JSON; - is standard input."
)
@click.option("--feeds", type=click.IntRange(0, 2_000_000), help="How many feeds. [default: 1000]")
@click.option("--workers", type=click.IntRange(0, 10_000), help="How many workers. [default: 3]")
@click.option("--capacity", type=click.IntRange(1), help="Feeds that each may hold. [default: 500]")
@click.option("--tenants", type=click.IntRange(0), help="Tenants that the feeds belong to by turns.")
@click.option(
    "--hosts", type=click.IntRange(1), help="Remote hosts that the feeds connect to by turns. [default: 1]"
)
@click.option(
    "--weights", type=click.Choice(["equal", "mixed"]), help="`mixed`: 1 to 10, drawn. [default: equal]"
)
@click.option(
    "--event", "events", multiple=True, metavar="EVENT", help="TIME WHAT, such as '60s kill 1'; repeatable."
)
@click.option("--for", "duration", metavar="TIME", help="How long. [default: a minute after the last event]")
@click.option("--seed", type=int, help="Another one draws otherwise. [default: 0]")
@click.option("--strategy", type=click.Choice([s.value for s in Strategy]), help="As FEEDQ_PLACEMENT.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any FEEDQ_ setting; repeatable."
)
@click.option(
    "--start-time", type=click.FloatRange(0, 60), metavar="SECONDS", help="From assignment to claim."
)
@click.option(
    "--connect-time", type=click.FloatRange(0, 60), metavar="SECONDS", help="From dialling to streaming."
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Also draw it over time. Needs feedq[charts].",
)
@click.option(
    "--max-moves", type=click.IntRange(0), help="Exit status 1 if feeds moved more often than this."
)
@click.option(
    "--max-gap",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="The same for a longer gap after the start.",
)
@click.option("--max-unplaced", type=click.IntRange(0), help="The same for more feeds left without a place.")
@pass_invocation
def simulate(
    invocation: Invocation,
    /,
    *,
    file: IO[str] | None,
    strategy: str | None,
    assignments: Sequence[str],
    start_time: float | None,
    connect_time: float | None,
    chart: Path | None,
    max_moves: int | None,
    max_gap: float | None,
    max_unplaced: int | None,
    **described: Any,
) -> None:
    """Placement, failover, deploys and joins of many feeds on many workers, in seconds and without servers.

    It decides as a real fleet would, by the same code and the same FEEDQ_ settings. Without events there are
    a crash, a join and a deploy. An event is a time and what happens then: kill N, freeze N, stop N, join N
    [capacity=C], deploy [by=N] [restart=TIME] [pause=TIME], drain N, cordon N, uncordon N (N workers, or names:
    worker1 worker2), add N, remove N (feeds), away HOST, back HOST.

    \b
    Example:
      feedq simulate --feeds 1000 --workers 3 --capacity 500
      feedq simulate --workers 4 --event '60s kill 1' --event '2m join 1' --chart fleet.svg
      feedq simulate --event '60s deploy' --set restart_hold_s=20 --max-moves 0
    """
    from feedq.simulate import Timing
    from feedq.simulate import simulate as run

    scenario = _scenario(file, described)
    chosen = _settings(assignments, strategy)
    if chart is not None:
        _check_chart(chart)
    times = {"start_s": start_time, "connect_s": connect_time}
    timing = Timing(**{name: value for name, value in times.items() if value is not None})
    report = run(scenario, chosen, timing)
    if chart is not None:
        _draw(report, chart)
    answer(invocation, report.as_document(), lambda: _write(report))
    if broken := list(_broken(report, max_moves=max_moves, max_gap_s=max_gap, max_unplaced=max_unplaced)):
        raise FeedqError("; ".join(broken))


# -- what was asked for ------------------------------------------------------------------------------


def _scenario(file: IO[str] | None, described: Mapping[str, Any]) -> Scenario:
    from feedq.simulate import build_scenario, parse_scenario

    given = {name: value for name, value in described.items() if value not in (None, ())}
    if file is not None:
        if others := [name for name in given if name != "seed"]:
            names = ", ".join("--" + {"events": "event", "duration": "for"}.get(n, n) for n in others)
            raise InvalidInput(f"{names}: the scenario in {file.name} says that; leave out one of the two")
        scenario = parse_scenario(file.read(), origin=file.name)
        return scenario.model_copy(update=given)
    document: dict[str, Any] = {"feeds": {}, "workers": {}}
    for name, value in given.items():
        *outer, key = PLACES.get(name, name).split(".")
        (document[outer[0]] if outer else document)[key] = value
    return build_scenario(document, origin="scenario")


def _settings(assignments: Sequence[str], strategy: str | None) -> Settings:
    """Makes the settings of the environment with some replaced. Raises `InvalidInput`."""
    changed: dict[str, Any] = {} if strategy is None else {"placement": strategy}
    for text in assignments:
        name, value = split_assignment(text, option="--set")
        name = name.lower().removeprefix("feedq_")
        if name not in Settings.model_fields:
            raise InvalidInput(
                f"--set {name}: there is no such setting; `docs/reference/settings.md` has all of them"
            )
        changed[name] = value
        with suppress(ValueError):
            changed[name] = json.loads(value)
    if not changed:
        return settings()
    settings()  # what is wrong in the environment is told as everywhere
    try:
        return Settings(**changed)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
        said = [(".".join(map(str, p["loc"])), p["msg"].removeprefix("Value error, ")) for p in problems]
        what = "; ".join(f"--set {name}: {what}" if name else what for name, what in said)
        raise InvalidInput(what) from None


# -- what came of it ---------------------------------------------------------------------------------


def _check_chart(path: Path) -> None:
    """Raises what would fail after the simulation, which takes its time."""
    from feedq.simulate.chart import import_pygal

    if path.suffix.lower() != ".svg":
        raise InvalidInput(f"--chart {path}: only SVG can be drawn; name it {path.with_suffix('.svg').name}")
    import_pygal()


def _draw(report: SimulationReport, path: Path) -> None:
    from feedq.simulate.chart import draw_chart

    try:
        path.write_text(draw_chart(report), encoding="utf-8")
    except OSError as error:
        raise FeedqError(f"--chart {path}: cannot be written: {error.strerror}") from None


def _write(report: SimulationReport) -> None:
    fleet = f"{counted(report.feeds, 'feed')} on {counted(report.workers, 'worker')}"
    click.echo(f"{fleet} at the end, {report.duration_s:g} s")
    click.echo()
    write_table([*report.phases, report.total], COLUMNS)
    click.echo()
    click.echo(EXPLAINED)
    for phase in report.phases:
        if phase.unplaced:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in phase.unplaced.items())
            warn(f"at {phase.until_s:g} s, after {phase.event!r}, feeds had no place: {counts}")


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]}" if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _spread(phase: Phase) -> str:
    return " -> ".join(_range(ends) for ends in (phase.spread_before, phase.spread_after) if ends is not None)


def _used(phase: Phase) -> str:
    used = phase.utilisation
    return "" if used is None else f"{_range((round(100 * used[0]), round(100 * used[1])))} %"


COLUMNS: list[TableColumn[Phase]] = [
    number("At", lambda phase: "" if phase.event == "total" else f"{phase.at_s:g}s"),
    TableColumn("Event", lambda phase: phase.event),
    number("Moved", lambda phase: f"{phase.moved:,}"),
    number("Again", lambda phase: f"{phase.moved_again:,}"),
    number("Restarted", lambda phase: f"{phase.restarted:,}"),
    number("Gap", lambda phase: f"{phase.gap_median_s:.2f}"),
    number("Longest", lambda phase: f"{phase.gap_max_s:.2f}"),
    number("Down", lambda phase: f"{phase.down_feed_s:,.0f}"),
    number("Waiting", lambda phase: f"{phase.unplaced_feed_s:,.0f}"),
    TableColumn("Spread", _spread),
    TableColumn("Used", _used),
    number("Connects", lambda phase: f"{phase.connects_per_s:,}"),
    number("Host", lambda phase: f"{phase.host_connects_per_s:,}"),
]


def _broken(
    report: SimulationReport, *, max_moves: int | None, max_gap_s: float | None, max_unplaced: int | None
) -> Iterator[str]:
    """Lists what was to hold and does not."""
    if max_moves is not None and report.total.moved > max_moves:
        yield f"feeds moved {report.total.moved:,} times, more than --max-moves {max_moves}"
    for phase in report.phases:
        unplaced = sum(phase.unplaced.values())
        if max_gap_s is not None and phase.event != "start" and phase.gap_max_s > max_gap_s:
            yield f"{phase.event!r}: a gap of {phase.gap_max_s:.2f} s, longer than --max-gap {max_gap_s:g}"
        if max_unplaced is not None and unplaced > max_unplaced:
            yield f"{phase.event!r}: {unplaced:,} feeds had no place, more than --max-unplaced {max_unplaced}"
