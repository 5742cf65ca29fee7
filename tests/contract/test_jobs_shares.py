"""How many runs a worker takes at a time: even loads of idle workers, and no run that is left to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.jobs_harness import JobsHarness

FLEETS = st.lists(st.integers(1, 20), min_size=1, max_size=8)
on_one_database = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

Share = Callable[..., int]


@pytest.fixture
def share_of(jobs: JobsHarness) -> Iterator[Share]:
    with jobs.transaction() as c:

        def ask(free: int, slots: int, fleet_slots: int, *, due: int, left_over: int, running: int) -> int:
            c.execute(
                "SELECT feedq_1.share_of(%s, %s, %s, %s, %s, %s)",
                (free, slots, fleet_slots, due, left_over, running),
            )
            (share,) = c.fetchone() or (None,)
            return int(str(share))

        yield ask


def take(share_of: Share, slots: list[int], held: list[int], worker: int, due: int) -> int:
    free, its = slots[worker] - held[worker], slots[worker]
    return min(share_of(free, its, sum(slots), due=due, left_over=0, running=sum(held)), due)


@on_one_database
@given(slots=FLEETS, due=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_idle_workers_take_all_that_is_due_in_proportion_to_their_slots_in_whatever_order_they_ask(
    share_of: Share, slots: list[int], due: int, seed: int
) -> None:
    held, left, rng = [0] * len(slots), due, Random(seed)
    for worker in rng.choices(range(len(slots)), k=8) + rng.sample(range(len(slots)), len(slots)):
        taken = take(share_of, slots, held, worker, left)
        held[worker] += taken
        left -= taken
    assert left == max(due - sum(slots), 0)
    total = min(due, sum(slots))
    assert all(has <= ceil(total * its / sum(slots)) or left for has, its in zip(held, slots, strict=True))


@on_one_database
@given(
    fleet=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=8),
    due=st.integers(1, 50),
)
def test_the_least_busy_worker_may_always_take_one_if_it_has_room(
    share_of: Share, fleet: list[tuple[int, int]], due: int
) -> None:
    """It is the one that is told of a run: nobody else has to come."""
    slots, held = [its for its, _ in fleet], [min(its, has) for its, has in fleet]
    least = min(range(len(fleet)), key=lambda n: held[n] / slots[n])
    if held[least] < slots[least]:
        assert take(share_of, slots, held, least, due) >= 1


def test_who_is_alone_takes_as_much_as_it_has_room_for(share_of: Share) -> None:
    assert share_of(5, 8, 8, due=1, left_over=0, running=3) == 5
    assert share_of(5, 0, 0, due=0, left_over=0, running=0) == 5


@on_one_database
@given(free=st.integers(0, 8), left_over=st.integers(0, 8))
def test_what_nobody_has_taken_for_a_second_is_beyond_the_share(
    share_of: Share, free: int, left_over: int
) -> None:
    share = share_of(free, 8, 80, due=left_over, left_over=left_over, running=8 - free)
    assert share >= min(free, left_over)
