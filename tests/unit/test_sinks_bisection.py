"""Isolation: whatever is refused by itself is refused, all else is taken, once and in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from feedq.sinks.refusals import FailedAttempt, bisect


class Table:
    """Takes a batch whole or not at all, as a COPY does."""

    def __init__(self, bad: set[int], hint: Callable[[int], int | None]) -> None:
        self.bad = bad
        self.hint = hint
        self.taken: list[int] = []
        self.attempts = 0
        self.attempted = 0

    def attempt(self, part: Sequence[int]) -> FailedAttempt | None:
        assert part, "an empty attempt is a wasted round trip"
        self.attempts += 1
        self.attempted += len(part)
        for position, unit in enumerate(part):
            if unit in self.bad:
                return FailedAttempt(f"bad {unit}", self.hint(position))
        self.taken += part
        return None


HINTS: dict[str, Callable[[int], int | None]] = {
    "none": lambda position: None,
    "right": lambda position: position,
    "too early": lambda position: position - 1,
    "too late": lambda position: position + 1,
    "absurd": lambda position: 10**9,
}


@given(
    size=st.integers(0, 60),
    bad=st.sets(st.integers(0, 59)),
    hint=st.sampled_from(sorted(HINTS)),
)
def test_everything_but_the_bad_is_taken_once_and_in_order(size: int, bad: set[int], hint: str) -> None:
    table = Table(bad, HINTS[hint])
    refused = bisect(range(size), table.attempt)
    assert table.taken == [unit for unit in range(size) if unit not in bad]
    assert refused == [(unit, f"bad {unit}") for unit in range(size) if unit in bad]


def test_one_bad_record_among_many_costs_few_attempts() -> None:
    with_hint = Table({7_000}, HINTS["right"])
    bisect(range(10_000), with_hint.attempt)
    assert with_hint.attempts == 4

    without = Table({7_000}, HINTS["none"])
    bisect(range(10_000), without.attempt)
    assert without.attempts <= 2 * 14 + 1


def test_units_are_attempted_few_times_however_many_are_bad() -> None:
    table = Table(set(range(0, 100_000, 1_000)), HINTS["right"])
    bisect(range(100_000), table.attempt)
    assert len(table.taken) == 100_000 - 100
    assert table.attempted < 5 * 100_000


def test_nothing_to_take_is_no_attempt() -> None:
    table = Table(set(), HINTS["none"])
    assert bisect([], table.attempt) == []
    assert table.attempts == 0
