"""`Figure`: one measured case beside what it must reach, and the table of all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

HEADINGS = ("case", "must reach", "measured", "ok")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``ok`` is None for a figure that nothing was promised of."""

    case: str
    must: str
    measured: str
    ok: bool | None

    def cells(self) -> tuple[str, str, str, str]:
        verdict = {True: "yes", False: "NO", None: "-"}[self.ok]
        return (self.case, self.must, self.measured, verdict)


def at_most(case: str, limit: float, value: float, unit: str, *, runs: str = "") -> Figure:
    measured = f"{value:.3g} {unit}{f' ({runs})' if runs else ''}"
    return Figure(case, f"<= {limit:g} {unit}", measured, value <= limit)


def at_least(case: str, limit: float, value: float, *, runs: str = "") -> Figure:
    return Figure(case, f">= {limit:g}", f"{value:.3g}{f' ({runs})' if runs else ''}", value >= limit)


def write_table(figures: Iterable[Figure]) -> bool:
    """Print the table; whether every promise was kept."""
    figures = list(figures)
    rows: list[tuple[str, ...]] = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        print(" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return all(figure.ok is not False for figure in figures)


def say(what: str) -> None:
    """Progress, apart from the table."""
    print(what, file=sys.stderr, flush=True)
