"""The way by the staging table: when it is taken at once, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedq.sinks.stagedcopy import DETOUR_FIRST, DETOUR_MAX, Detour


def run(meets_key: list[bool]) -> tuple[int, int]:
    """Groups that tried the table itself, and how many of them in vain."""
    detour = Detour()
    tried = failed = 0
    for there in meets_key:
        if not detour.is_over:
            detour.pass_one()
            continue
        tried += 1
        if there:
            failed += 1
            detour.begin()
        else:
            detour.shorten()
    return tried, failed


def test_a_source_that_repeats_itself_is_tried_ever_less() -> None:
    assert run([True] * 20_000)[0] < 15


@given(meets_key=st.lists(st.booleans(), max_size=400))
def test_few_groups_are_copied_in_vain(meets_key: list[bool]) -> None:
    assert run(meets_key)[1] <= len(meets_key) // (DETOUR_FIRST + 1) + 1


def test_a_detour_has_an_end() -> None:
    detour = Detour()
    for _ in range(40):
        detour.begin()
    for _ in range(DETOUR_MAX):
        detour.pass_one()
    assert detour.is_over
