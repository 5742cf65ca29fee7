"""Backoff: full jitter, bounded, and nothing waits for a person."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.backoff import (
    FIRST_RECHECKS,
    BackoffPolicy,
    attempts_after,
    next_recheck_s,
    next_try,
)

POLICY = BackoffPolicy(base_s=0.2, max_s=30.0, attempts_in_place=5, healthy_s=60.0)
DAY_S = 86_400.0

durations = st.one_of(st.just(0.0), st.just(DAY_S), st.floats(0, DAY_S))
looks_apart = st.one_of(st.just(1.0), st.just(DAY_S), st.floats(1, DAY_S))
policies = st.builds(
    BackoffPolicy,
    base_s=durations,
    max_s=durations,
    attempts_in_place=st.integers(1, 1000),
    healthy_s=durations,
    elsewhere_s=durations,
    failed_s=looks_apart,
    failed_max_s=looks_apart,
)


def bound_s(attempts: int, policy: BackoffPolicy) -> float:
    """The plain reference: doubling from the base, by repeated addition, up to the maximum."""
    bound = policy.base_s
    for _ in range(min(attempts - 1, 1000)):
        if bound >= policy.max_s or bound == 0:
            break
        bound += bound
    return min(bound, policy.max_s)


class Edge(Random):
    """Draws the end of every range."""

    def __init__(self, position: float) -> None:
        super().__init__(0)
        self._position = position

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._position


@given(st.integers(1, 10**9), policies, st.integers())
def test_a_delay_is_never_negative_nor_beyond_the_bound(
    attempts: int, policy: BackoffPolicy, seed: int
) -> None:
    delay_s = next_try(attempts, rng=Random(seed), policy=policy).delay_s
    assert 0 <= delay_s <= bound_s(attempts, policy)
    assert delay_s <= policy.max_s


@given(st.integers(1, 10**9), policies, st.floats(0, 3600), st.integers())
def test_a_source_that_is_busy_is_left_alone_until_then_and_not_by_all_at_once(
    attempts: int, policy: BackoffPolicy, busy_s: float, seed: int
) -> None:
    jitter_s = next_try(attempts, rng=Random(seed), policy=policy).delay_s
    busy = next_try(attempts, rng=Random(seed), policy=policy, not_before_s=busy_s)
    assert busy.delay_s == busy_s + jitter_s


def test_a_connection_that_held_long_enough_clears_the_count() -> None:
    assert attempts_after(7, connected_s=60.0, policy=POLICY) == 1
    assert attempts_after(7, connected_s=59.9, policy=POLICY) == 8
    assert attempts_after(0, connected_s=0.0, policy=POLICY) == 1


# -- elsewhere ---------------------------------------------------------------------------------------


@given(st.integers(1, 10**9), policies, st.floats(0, DAY_S), st.booleans(), st.integers())
def test_where_it_is_tried_again_does_not_change_when(
    attempts: int, policy: BackoffPolicy, failing_s: float, is_new_here: bool, seed: int
) -> None:
    plain = next_try(attempts, rng=Random(seed), policy=policy)
    hurried = next_try(
        attempts, rng=Random(seed), policy=policy, is_new_here=is_new_here, failing_s=failing_s
    )
    assert hurried.delay_s == plain.delay_s
    assert hurried.is_elsewhere or not plain.is_elsewhere, "nobody stays who would have gone"


@pytest.mark.parametrize(
    ("attempts", "failing_s", "is_new_here", "goes"),
    [
        (1, 0.0, True, False),
        (1, 4.9, True, False),
        (1, 5.0, True, True),  # one connect time-out
        (1, 5.0, False, False),  # it has been everywhere: the source is away
        (4, 0.0, True, False),
        (5, 0.0, True, True),
        (5, 0.0, False, True),
        (6, 0.0, True, True),  # let go by another worker already: one failure here tells enough
        (6, 60.0, False, False),
        (10, 60.0, False, True),
    ],
)
def test_a_feed_goes_elsewhere_soon_from_a_worker_that_is_new_to_it(
    attempts: int, failing_s: float, is_new_here: bool, goes: bool
) -> None:
    decision = next_try(attempts, rng=Random(1), policy=POLICY, failing_s=failing_s, is_new_here=is_new_here)
    assert decision.is_elsewhere is goes


def test_a_source_that_asked_to_be_left_alone_has_answered() -> None:
    """Another worker would be told the same."""
    decision = next_try(1, rng=Random(1), policy=POLICY, not_before_s=30, failing_s=60, is_new_here=True)
    assert not decision.is_elsewhere


# -- what cannot run as declared ---------------------------------------------------------------------


def test_looks_are_frequent_for_a_minute_and_then_ever_rarer() -> None:
    longest = [next_recheck_s(n, rng=Edge(1.0), policy=POLICY) for n in range(1, 30)]
    shortest = [next_recheck_s(n, rng=Edge(0.0), policy=POLICY) for n in range(1, 30)]
    assert longest[:FIRST_RECHECKS] == [POLICY.failed_s] * FIRST_RECHECKS
    # However the jitter falls, what is mended a minute after the first failure is looked at 15 s later at most.
    for delays in (longest, shortest):
        at = [sum(delays[:n]) for n in range(len(delays))]
        assert all(after - before <= 15.0 for before, after in pairwise(at) if before < 60.0)
    assert longest == sorted(longest)
    assert longest[-1] == POLICY.failed_max_s == 600.0
    assert sum(longest[:16]) < 3600.0
