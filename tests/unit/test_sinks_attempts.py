"""How a sink finds bad records, settles a commit of unknown outcome, and takes detours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import FeedKey
from feedq.records.batch import Records
from feedq.sinks.base import Checkpoint, FeedWrite, Target, Written
from feedq.sinks.copyplan import DETOUR_FIRST, DETOUR_MAX, Detour
from feedq.sinks.refusals import FailedAttempt, bisect
from feedq.sinks.transactional import UnknownCommit


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
    refused, left = bisect(range(size), table.attempt)
    assert not left
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


def test_beyond_the_failures_that_are_allowed_the_rest_is_left() -> None:
    table = Table({10, 20, 30}, HINTS["right"])
    refused, left = bisect(range(100), table.attempt, failures_max=4)
    assert [unit for unit, _ in refused] == [10, 20]
    assert sorted([*table.taken, 10, 20, *left]) == list(range(100))


def test_a_first_attempt_that_was_made_already_is_not_repeated() -> None:
    table = Table({3}, HINTS["right"])
    bisect(range(10), table.attempt, failed=FailedAttempt("bad 3", 3))
    assert (table.taken, table.attempts) == ([0, 1, 2, 4, 5, 6, 7, 8, 9], 3)


LOST, OTHER, LEFT = uuid4(), uuid4(), uuid4()

TARGET = Target("t", "json")


def unknown(*keys: FeedKey, **changes: object) -> UnknownCommit:
    batch = Records(b"1\n").batch(cursor=1, received_at=datetime.now(UTC))
    writes = [FeedWrite(feed_id, f"f{feed_id}", epoch, TARGET, (batch,), LEFT) for feed_id, epoch in keys]
    facts: dict[str, Any] = {"landed": dict.fromkeys(keys, 1), "dead": {}, "lost": (), "unusable": {}}
    return UnknownCommit(writes, Written(**{**facts, **changes}, commit_id=LOST))


def at(epoch: int, commit_id: UUID | None) -> Checkpoint:
    anybody = uuid4()
    return Checkpoint(1, "f1", epoch, 0, 0, datetime.now(UTC), commit_id, anybody, anybody, anybody, False)


SETTLED: dict[str, tuple[dict[int, Checkpoint], Written | None]] = {
    "our commit is in them: it happened": (
        {1: at(5, LOST), 2: at(6, LOST)},
        Written({(1, 5): 1, (2, 6): 1}, {}, (), {}),
    ),
    "as they were left: it did not happen": ({1: at(5, LEFT), 2: at(6, LEFT)}, None),
    "one is still ours, and overtaken is the other": ({1: at(9, OTHER), 2: at(6, LEFT)}, None),
    "another commit under our epoch tells nothing": (
        {1: at(5, OTHER), 2: at(4, LEFT)},
        Written({}, {}, ((1, 5), (2, 6)), {}),
    ),
    "one was put back, and the other says that it happened": (
        {1: at(5, LEFT), 2: at(6, LOST)},
        Written({(2, 6): 1}, {}, ((1, 5),), {}),
    ),
    "one is overtaken, and nothing is known of the other": (
        {1: at(9, OTHER)},
        Written({}, {}, ((1, 5), (2, 6)), {}),
    ),
    "all are overtaken": ({1: at(9, OTHER), 2: at(9, None)}, Written({}, {}, ((1, 5), (2, 6)), {})),
}


@pytest.mark.parametrize(("checkpoints", "settled"), SETTLED.values(), ids=SETTLED)
def test_checkpoints_tell_what_became_of_a_commit(
    checkpoints: dict[int, Checkpoint], settled: Written | None
) -> None:
    assert unknown((1, 5), (2, 6)).decide(checkpoints) == settled


def test_a_feed_that_a_successor_has_committed_since_is_lost_and_the_rest_decides() -> None:
    lost = unknown((1, 5), (2, 6), dead={(1, 5): 2, (2, 6): 3}, lost=((3, 7),), unusable={(4, 8): "gone"})
    settled = lost.decide({1: at(9, OTHER), 2: at(6, LOST)})
    assert settled == Written(
        landed={(2, 6): 1}, dead={(2, 6): 3}, lost=((3, 7), (1, 5)), unusable={(4, 8): "gone"}
    )


KEY_IS_THERE: Any = SimpleNamespace(pgcode="23505")


def run(meets_key: list[bool]) -> tuple[int, int]:
    """Groups that tried the table itself, and how many of them in vain."""
    detour = Detour(KEY_IS_THERE.pgcode)
    tried = failed = 0
    for there in meets_key:
        tried += detour.is_over
        if there and detour.begins(KEY_IS_THERE):
            failed += 1
        detour.count()
    return tried, failed


def test_a_source_that_repeats_itself_is_tried_ever_less() -> None:
    assert run([True] * 20_000)[0] < 15


@given(meets_key=st.lists(st.booleans(), max_size=400))
def test_few_groups_are_copied_in_vain(meets_key: list[bool]) -> None:
    assert run(meets_key)[1] <= len(meets_key) // (DETOUR_FIRST + 1) + 1


def test_a_detour_has_an_end() -> None:
    detour = Detour(KEY_IS_THERE.pgcode)
    for _ in range(40):
        detour.begins(KEY_IS_THERE)
        while not detour.is_over:
            detour.count()
    assert detour.begins(KEY_IS_THERE)
    for _ in range(DETOUR_MAX):
        detour.count()
    assert detour.is_over
