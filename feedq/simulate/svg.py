"""Panels of an SVG drawing: axes, steps and areas over a common time axis. Text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

INK: Final = "#333333"
GRID: Final = "#dddddd"
TIME_STEPS_S: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 14_400, 21_600, 43_200, 86_400),
)
TICK_TEXT_PX: Final = 11


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = TICK_TEXT_PX, weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}"{bold}>'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, *, colour: str = INK, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1"{dashes}/>'


def box(x: float, y: float, width: float, height: float, *, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


@dataclass(frozen=True, slots=True)
class Panel:
    """Draws a part with a time axis from 0 and a value axis from 0. Sizes in pixels."""

    title: str
    left: float
    top: float
    width: float
    height: float
    duration_s: float
    value_max: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, seconds: float) -> float:
        return self.left + self.width * min(1.0, seconds / self.duration_s)

    def y(self, value: float) -> float:
        return self.bottom - self.height * value / self.scale_max

    @property
    def scale_max(self) -> float:
        """Finds the topmost tick."""
        step = value_step(self.value_max)
        return max(step, step * -(-self.value_max // step))

    def axes(self) -> list[str]:
        """Draws title, grid and labels."""
        drawn = [text(self.left, self.top - 8, self.title, size=13, weight="bold")]
        step = value_step(self.value_max)
        for i in range(round(self.scale_max / step) + 1):
            y = self.y(i * step)
            drawn.append(line(self.left, y, self.left + self.width, y, colour=GRID))
            drawn.append(text(self.left - 6, y + 4, f"{i * step:,.0f}", anchor="end"))
        step_s = time_step(self.duration_s)
        for i in range(int(self.duration_s / step_s + 1e-9) + 1):
            x = self.x(i * step_s)
            drawn.append(line(x, self.bottom, x, self.bottom + 4))
            drawn.append(text(x, self.bottom + 17, clock(i * step_s), anchor="middle"))
        drawn.append(line(self.left, self.bottom, self.left + self.width, self.bottom))
        return drawn

    def area(self, low: Sequence[float], high: Sequence[float], column_s: float, *, colour: str) -> str:
        """Draws the area between two rows of steps, one value a column."""
        there = self._steps(high, column_s)
        back = list(reversed(self._steps(low, column_s)))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*there, *back])
        return f'<polygon points="{points}" fill="{colour}"/>'

    def steps(self, values: Sequence[float], column_s: float, *, colour: str) -> str:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in self._steps(values, column_s))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    def _steps(self, values: Sequence[float], column_s: float) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for i, value in enumerate(values):
            y = self.y(value)
            # What goes on at the same height needs no corner.
            if len(points) > 1 and points[-1][1] == y:
                points[-1] = (self.x((i + 1) * column_s), y)
            else:
                points += [(self.x(i * column_s), y), (self.x((i + 1) * column_s), y)]
        return points


def value_step(value_max: float) -> float:
    """Chooses a step of 1, 2 or 5 times a power of ten, whole numbers only, for at most five ticks above 0."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if value_max <= 5 * step * factor:
                return step * factor
        step *= 10


def time_step(duration_s: float) -> float:
    """Chooses a step for at most ten ticks after 0."""
    return next((step for step in TIME_STEPS_S if duration_s <= 10 * step), TIME_STEPS_S[-1])


def clock(seconds: float) -> str:
    """Writes a time as ``45s``, ``1m30s``, ``2h``."""
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(seconds, 60)
    if seconds < 3600:
        return f"{minutes:.0f}m" + (f"{rest:g}s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours:.0f}h" + (f"{minutes:.0f}m" if minutes else "")
