"""Bisection: finds the few that are refused among many that are fine.

`bisect` knows neither databases nor records: it is given an attempt that takes all of what it is given, or
none of it. Each unit is taken at most once, in order, and every unit is either taken or refused. The
attempt may hint at the unit that was in the way; a wrong hint costs time and nothing else. One bad unit
costs three attempts with a hint, and a logarithm without. What is attempted at once is about as much as lay
between the last two that were refused: most of it would be in vain otherwise, over and over. Whoever has no time
for all of it bounds the attempts that may be in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

STRIDE_MIN = 64
"""Even where every other unit is refused, some luck is worth a try."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Why an attempt took nothing."""

    error: str
    position: int | None = None
    """Index, within what was attempted, of the unit that was in the way."""


def bisect(
    units: Sequence[T],
    attempt: Callable[[Sequence[T]], FailedAttempt | None],
    *,
    refusals_max: int | None = None,
) -> list[tuple[T, str]]:
    """Have every unit taken but those that are refused by themselves; returns these with their errors.

    After ``refusals_max`` attempts in vain all that are left are refused, with the last error.
    """
    refused: list[tuple[T, str]] = []
    refusals = 0
    start, stride = 0, len(units)
    sizes: list[int] = []
    """Of the next pieces, the last of them first; behind them, `stride`."""
    while start < len(units):
        is_open = not sizes
        part = units[start : start + (stride if is_open else sizes.pop())]
        refusal = attempt(part)
        if refusal is None:
            start += len(part)
            stride *= 2 if is_open else 1
            continue
        refusals += 1
        if refusals == refusals_max:
            return refused + [(unit, refusal.error) for unit in units[start:]]
        if len(part) == 1:
            refused.append((part[0], refusal.error))
            start += 1
        elif refusal.position is not None and 0 <= refusal.position < len(part):
            sizes += [size for size in (1, refusal.position) if size]
            stride = max(STRIDE_MIN, 2 * refusal.position)
        else:
            sizes += [len(part) - len(part) // 2, len(part) // 2]
    return refused
