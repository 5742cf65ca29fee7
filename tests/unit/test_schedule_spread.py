"""Segments of runs: even by slots, the same for who knows the same workers, and steady when one comes or goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from feedq.core.schedule.spread import SEGMENTS, segment_of, segments_of

fleets = st.dictionaries(st.uuids(), st.integers(0, 64), max_size=20)


def owners(workers: Mapping[UUID, int]) -> dict[int, UUID]:
    return {segment: worker for worker, own in segments_of(workers).items() for segment in own}


@given(fleets)
def test_every_segment_has_one_owner_and_every_worker_its_share(workers: dict[UUID, int]) -> None:
    found = segments_of(workers)
    total = sum(workers.values())
    assert found.keys() == workers.keys()
    everything = sorted(segment for own in found.values() for segment in own)
    assert everything == (list(range(SEGMENTS)) if total else [])
    for worker, slots in workers.items():
        share = SEGMENTS * slots / total if total else 0
        assert abs(len(found[worker]) - share) < 1
        assert list(found[worker]) == sorted(found[worker])


@given(st.lists(st.uuids(), min_size=3, max_size=3, unique=True))
def test_a_share_that_is_whole_is_kept_exactly(ids: list[UUID]) -> None:
    found = segments_of(dict(zip(ids, (3, 2, 1), strict=True)))
    assert len(found[ids[0]]) == SEGMENTS // 2


def test_segments_are_the_same_in_every_release() -> None:
    found = segments_of({UUID(int=1): 1, UUID(int=2): 1})
    assert found[UUID(int=1)][:5] == (1, 2, 6, 9, 10)
    assert [segment_of(1, "2026-01-01T00:00:00Z"), segment_of(2, "2026-01-01T00:00:00Z")] == [13, 26]


@settings(deadline=None)
@given(
    st.dictionaries(st.uuids(), st.integers(1, 16), min_size=1, max_size=20), st.uuids(), st.integers(1, 16)
)
def test_few_segments_change_hands_when_a_worker_comes_or_goes(
    workers: dict[UUID, int], newcomer: UUID, slots: int
) -> None:
    workers.pop(newcomer, None)
    without, with_it = owners(workers), owners({**workers, newcomer: slots})
    own = sum(owner == newcomer for owner in with_it.values())
    changed = sum(without.get(segment) != owner for segment, owner in with_it.items())
    assert changed <= own + SEGMENTS // 8


def test_workers_of_different_sizes_keep_nearly_all_that_the_newcomer_does_not_get() -> None:
    changed = own = 0
    for fleet in range(40):
        workers = {UUID(int=fleet * 10 + n): slots for n, slots in enumerate((1, 2, 4, 8, 16), 1)}
        newcomer = UUID(int=fleet * 10 + 9)
        without, with_it = owners(workers), owners({**workers, newcomer: 8})
        own += sum(owner == newcomer for owner in with_it.values())
        changed += sum(without[segment] != owner for segment, owner in with_it.items())
    assert own <= changed <= 1.2 * own


def test_ten_thousand_runs_are_within_five_percent_of_even_over_four_workers() -> None:
    owner_of = owners({UUID(int=n): 8 for n in range(1, 5)})
    counts = Counter(owner_of[segment_of(n % 500, f"2026-01-01T{n // 500:02}:00:00Z")] for n in range(10_000))
    assert all(abs(count - 2500) <= 125 for count in counts.values())


def test_more_workers_than_segments_share_them_by_their_slots() -> None:
    found = segments_of({UUID(int=n): 1 for n in range(1, 400)})
    assert Counter(len(own) for own in found.values()) == {1: SEGMENTS, 0: 399 - SEGMENTS}
