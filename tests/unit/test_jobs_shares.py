"""How many runs a worker takes at a time: even loads of idle workers, and no run that is left to nobody."""

from __future__ import annotations

from math import ceil
from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from feedq.control.store.jobs.claiming import share_of
from feedq.core.schedule.model import Offer

ME = UUID(int=1)
FLEETS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def take(slots: list[int], held: list[int], worker: int, due: int) -> int:
    offer = Offer(ME, slots[worker] - held[worker], slots[worker], sum(slots))
    return min(share_of(offer, due=due, left_over=0, running=sum(held)), due)


@given(FLEETS, st.integers(0, 300), st.integers(0, 2**32))
def test_idle_workers_take_all_that_is_due_in_proportion_to_their_slots_in_whatever_order_they_ask(
    slots: list[int], due: int, seed: int
) -> None:
    held, left, rng = [0] * len(slots), due, Random(seed)
    for worker in rng.choices(range(len(slots)), k=20) + rng.sample(range(len(slots)), len(slots)):
        taken = take(slots, held, worker, left)
        held[worker] += taken
        left -= taken
    assert left == max(due - sum(slots), 0)
    total = min(due, sum(slots))
    assert all(has <= ceil(total * its / sum(slots)) or left for has, its in zip(held, slots, strict=True))


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=12), st.integers(1, 50)
)
def test_the_least_busy_worker_may_always_take_one_if_it_has_room(
    fleet: list[tuple[int, int]], due: int
) -> None:
    """It is the one that is told of a run: nobody else has to come."""
    slots, held = [its for its, _ in fleet], [min(its, has) for its, has in fleet]
    least = min(range(len(fleet)), key=lambda n: held[n] / slots[n])
    if held[least] < slots[least]:
        assert take(slots, held, least, due) >= 1


def test_who_is_alone_takes_as_much_as_it_has_room_for() -> None:
    assert share_of(Offer(ME, 5, 8, 8), due=1, left_over=0, running=3) == 5
    assert share_of(Offer(ME, 5), due=0, left_over=0, running=0) == 5


@given(st.integers(0, 8), st.integers(0, 8))
def test_what_nobody_has_taken_for_a_second_is_beyond_the_share(free: int, left_over: int) -> None:
    offer = Offer(ME, free, 8, 80)
    assert share_of(offer, due=left_over, left_over=left_over, running=8 - free) >= min(free, left_over)
