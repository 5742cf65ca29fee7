"""Finding the few that are refused among many that are fine.

`isolate` knows neither databases nor records: it is given an attempt that takes all of what it is given, or
none of it. Each unit is taken at most once, in order, and every unit is either taken or refused. The
attempt may hint at the unit that was in the way; a wrong hint costs time and nothing else. One bad unit
costs about three attempts with a hint, and a logarithm without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an attempt took nothing."""

    error: str
    position: int | None = None
    """Index, within what was attempted, of the unit that was in the way."""


def isolate(units: Sequence[T], attempt: Callable[[Sequence[T]], Refusal | None]) -> list[tuple[T, str]]:
    """Have every unit taken but those that are refused by themselves; returns these with their errors."""
    refused: list[tuple[T, str]] = []
    waiting = [units] if units else []
    while waiting:
        part = waiting.pop()
        refusal = attempt(part)
        if refusal is None:
            continue
        if len(part) == 1:
            refused.append((part[0], refusal.error))
        else:
            waiting += reversed(_pieces(part, refusal.position))
    return refused


def _pieces(part: Sequence[T], position: int | None) -> list[Sequence[T]]:
    """What to try instead: around the unit that was in the way, the unknown rest in halves."""
    if position is None or not 0 <= position < len(part):
        return _halves(part)
    pieces = [part[:position], part[position : position + 1], *_halves(part[position + 1 :])]
    return [piece for piece in pieces if piece]


def _halves(part: Sequence[T]) -> list[Sequence[T]]:
    middle = len(part) // 2
    return [half for half in (part[:middle], part[middle:]) if half]
