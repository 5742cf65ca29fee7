"""A report as a picture: feeds by worker, feeds that do not stream, and connects, over time. SVG, by hand.

Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart
(https://jfly.uni-koeln.de/color/). What happened is numbered in the picture and told below it, so that events
close to one another stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from feedq.simulate.record import BIN_MS
from feedq.simulate.report import BINS_PER_S, SimulationReport
from feedq.simulate.svg import Panel, box, clock, line, text

WORKER_COLOURS: Final = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#999999", "#000000"),
)
"""Of workers, as many as are shown one by one."""
DOWN_COLOUR: Final = "#E69F00"
UNPLACED_COLOUR: Final = "#D55E00"
CONNECTS_COLOUR: Final = "#0072B2"
BAND_COLOUR: Final = "#56B4E9"
WIDTH: Final = 960
LEFT: Final = 70
RIGHT: Final = 150
"""For legends."""
TOP: Final = 60
HEIGHT: Final = 190
GAP: Final = 62
MARK_PX: Final = 16
MARK_ROWS: Final = 3
EVENT_ROW_PX: Final = 18
EVENTS_SHOWN: Final = 40
NAME_CHARACTERS: Final = 16


def draw_chart(report: SimulationReport) -> str:
    """Draws the text of an SVG file."""
    series = report.series
    down_max = max(series.down, default=0)
    connects = _connects(report.connects, series.column_ms, len(series.down))
    workers = _panel(report, 0, "Feeds on each worker", _worker_max(report))
    down = _panel(report, 1, "Feeds that do not stream", down_max)
    dials = _panel(report, 2, "Connects a second", max(connects, default=0))
    column_s = series.column_ms / 1000
    drawn = [*_workers(workers, report, column_s), *_down(down, report, column_s)]
    drawn += [*dials.axes(), dials.area([0.0] * len(connects), connects, column_s, colour=CONNECTS_COLOUR)]
    events = [(phase.at_s, phase.event) for phase in report.phases[1:]]
    drawn += _marks(events, [workers, down, dials])
    legend_top = dials.bottom + GAP - 14
    drawn += _told(events, legend_top)
    height = legend_top + EVENT_ROW_PX * (min(len(events), EVENTS_SHOWN + 1) + 1)
    return _document(drawn, height, f"{report.feeds:,} feeds on {report.workers:,} workers")


def _document(drawn: Sequence[str], height: float, title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">'
    )
    return "\n".join(
        [head, f"<title>{title}</title>", box(0, 0, WIDTH, height, colour="#ffffff"), *drawn, "</svg>\n"]
    )


def _panel(report: SimulationReport, place: int, title: str, value_max: float) -> Panel:
    top = TOP + place * (HEIGHT + GAP)
    return Panel(title, LEFT, top, WIDTH - LEFT - RIGHT, HEIGHT, report.duration_s, max(1.0, value_max))


def _are_few(report: SimulationReport) -> bool:
    return len(report.series.feeds) <= len(WORKER_COLOURS)


def _worker_max(report: SimulationReport) -> float:
    columns = list(zip(*report.series.feeds.values(), strict=True))
    if _are_few(report):
        return max(map(sum, columns), default=0)
    return max(map(max, columns), default=0)


def _workers(panel: Panel, report: SimulationReport, column_s: float) -> list[str]:
    if _are_few(report):
        return _stack(panel, report.series.feeds, column_s)
    return _band(panel, report.series.feeds, column_s)


def _stack(panel: Panel, feeds: Mapping[str, Sequence[int]], column_s: float) -> list[str]:
    """Draws each worker's feeds on top of those of the ones before."""
    drawn = panel.axes()
    low: list[float] = [0.0] * max(map(len, feeds.values()), default=0)
    for colour, counts in zip(WORKER_COLOURS, feeds.values(), strict=False):
        high = [below + count for below, count in zip(low, counts, strict=True)]
        drawn.append(panel.area(low, high, column_s, colour=colour))
        low = high
    names = [name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…" for name in feeds]
    # The one on top first, as in the picture.
    entries = list(zip(names, WORKER_COLOURS, strict=False))
    return drawn + _legend(panel, list(reversed(entries)))


def _band(panel: Panel, feeds: Mapping[str, Sequence[int]], column_s: float) -> list[str]:
    """Draws workers that are too many to be told apart: fewest, most and median of the workers that have any."""
    columns = [[count for count in column if count] or [0] for column in zip(*feeds.values(), strict=True)]
    low, high = [float(min(column)) for column in columns], [float(max(column)) for column in columns]
    middle = [float(median(column)) for column in columns]
    return [
        *panel.axes(),
        panel.area(low, high, column_s, colour=BAND_COLOUR),
        panel.steps(middle, column_s, colour="#000000"),
        *_legend(panel, [("most to fewest", BAND_COLOUR), ("median", "#000000")]),
    ]


def _down(panel: Panel, report: SimulationReport, column_s: float) -> list[str]:
    nothing = [0.0] * len(report.series.down)
    return [
        *panel.axes(),
        panel.area(nothing, report.series.down, column_s, colour=DOWN_COLOUR),
        panel.area(nothing, report.series.unplaced, column_s, colour=UNPLACED_COLOUR),
        *_legend(panel, [("all of them", DOWN_COLOUR), ("wait for a place", UNPLACED_COLOUR)]),
    ]


def _legend(panel: Panel, entries: Sequence[tuple[str, str]]) -> list[str]:
    x, drawn = panel.left + panel.width + 14, []
    for row, (name, colour) in enumerate(entries):
        y = panel.top + row * 20
        drawn += [box(x, y, 12, 12, colour=colour), text(x + 18, y + 10, name)]
    return drawn


def _marks(events: Sequence[tuple[float, str]], panels: Sequence[Panel]) -> list[str]:
    """Draws a numbered line for each event, the numbers in rows where they would touch.

    A number that finds no room in any row is left out: its line and its place in the list below remain.
    """
    drawn: list[str] = []
    taken = [float("-inf")] * MARK_ROWS
    for number, (at_s, _) in enumerate(events[:EVENTS_SHOWN], start=1):
        x = panels[0].x(at_s)
        drawn += [line(x, panel.top, x, panel.bottom, dash="3 3") for panel in panels]
        row = next((row for row, until in enumerate(taken) if x - until >= MARK_PX), None)
        if row is not None:
            taken[row] = x
            drawn.append(text(x, TOP - 24 - row * 13, str(number), anchor="middle", weight="bold"))
    return drawn


def _told(events: Sequence[tuple[float, str]], top: float) -> list[str]:
    rows = [f"{number}   {clock(at_s)}   {what}" for number, (at_s, what) in enumerate(events, start=1)]
    if len(rows) > EVENTS_SHOWN:
        rows = [*rows[:EVENTS_SHOWN], f"and {len(rows) - EVENTS_SHOWN} more"]
    return [text(LEFT, top + i * EVENT_ROW_PX, row) for i, row in enumerate(rows)]


def _connects(bins: Mapping[int, int], column_ms: int, columns: int) -> list[float]:
    """Finds the most connects within a second, by the column in which that second ends."""
    peaks = [0.0] * columns
    # A second after its last connect a bin is out of every second.
    for last in {at + later for at in bins for later in range(BINS_PER_S)}:
        column = last * BIN_MS // column_ms
        if column < columns:
            within = sum(bins.get(at, 0) for at in range(last - BINS_PER_S + 1, last + 1))
            peaks[column] = max(peaks[column], within)
    return peaks
