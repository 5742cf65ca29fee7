"""A report as SVG, drawn by pygal: feeds by worker, feeds that do not stream, and connects, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any, Final
from xml.etree import ElementTree

from feedq.errors import FeedqError
from feedq.simulate.record import BIN_MS
from feedq.simulate.report import BINS_PER_S, SimulationReport

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#000000")
"""Of Okabe and Ito, which people with any kind of colour vision tell apart (https://jfly.uni-koeln.de/color/)."""
WIDTH: Final = 960
HEIGHT: Final = 280
"""Of each of the three."""
LABELS: Final = 12
"""Places below the axis at which events are told."""
NAME_CHARACTERS: Final = 16


def import_pygal() -> Any:
    """Raises `FeedqError` without it."""
    try:
        import pygal
    except ImportError as error:
        raise FeedqError(f"--chart needs pygal: pip install 'feedq[charts]' ({error})") from None
    return pygal


def draw_chart(report: SimulationReport) -> str:
    """Draws the text of an SVG file. Raises `FeedqError` without pygal."""
    pygal = import_pygal()
    series = report.series
    few = len(series.feeds) <= len(COLOURS)
    feeds = series.feeds if few else _band(series.feeds)
    connects = _connects(report.connects, series.column_ms, len(series.down))
    down = {"all of them": series.down, "wait for a place": series.unplaced}
    parts = [
        _part(pygal.StackedLine if few else pygal.Line, "Feeds on each worker", feeds, report, fill=few),
        _part(pygal.Line, "Feeds that do not stream", down, report, fill=True),
        _part(pygal.Line, "Connects a second", {"begun": connects}, report, fill=True),
    ]
    size = {"width": f"{WIDTH}", "height": f"{HEIGHT * len(parts)}"}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    for place, part in enumerate(parts):
        part.attrib |= {"y": f"{HEIGHT * place}", "width": f"{WIDTH}", "height": f"{HEIGHT}"}
        root.append(part)
    return ElementTree.tostring(root, encoding="unicode")


def _part(
    kind: type[Any], title: str, lines: Mapping[str, Sequence[float]], report: SimulationReport, *, fill: bool
) -> ElementTree.Element:
    from pygal.style import DefaultStyle

    labels = _labels(report)
    chart = kind(
        style=DefaultStyle(background="white", plot_background="white", colors=COLOURS, font_family="sans-serif"),
        title=title, width=WIDTH, height=HEIGHT, fill=fill, dots_size=0, include_x_axis=True, js=(),
        truncate_legend=NAME_CHARACTERS, truncate_label=80, x_label_rotation=15,
        x_labels_major=[label for label in labels if label], show_minor_x_labels=False, no_data_text="nothing",
        value_formatter=lambda value: f"{value:,.0f}".rjust(NAME_CHARACTERS // 2, "\u00a0"),
    )  # fmt: skip
    chart.x_labels = labels
    for name, values in lines.items():
        # pygal gives a legend the room that its text has: the three time axes are to stand below one another.
        chart.add(name.ljust(NAME_CHARACTERS, "\u00a0"), list(values))
    drawn: ElementTree.Element = chart.render_tree()
    return drawn


def _labels(report: SimulationReport) -> list[str]:
    """What happens at each column; events too close to one another share the place of the first of them."""
    columns = max(1, len(report.series.down))
    apart, at = columns // LABELS, 0
    labels = ["0s start", *[""] * (columns - 1)]
    for phase in report.phases[1:]:
        column = min(columns - 1, int(phase.at_s * 1000) // report.series.column_ms)
        said = f"{phase.at_s:g}s {phase.event}"
        at = at if column - at < apart else column
        labels[at] = f"{labels[at]}, {said}".removeprefix(", ")
    return labels


def _band(feeds: Mapping[str, Sequence[int]]) -> dict[str, Sequence[float]]:
    """Of workers that are too many to be told apart: most, median and fewest of those that have any."""
    columns = [
        [count for count in column if count] or [0] for column in zip_longest(*feeds.values(), fillvalue=0)
    ]
    return {
        name: [of(column) for column in columns]
        for name, of in (("most", max), ("median", median), ("fewest", min))
    }


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
