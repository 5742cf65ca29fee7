"""How many feeds move to one worker at a time."""

from __future__ import annotations

from uuid import UUID

import pytest

from feedq.placement.base import Transfer
from feedq.reach import MOVES_AT_LEAST, connected_in_time, within_reach

A, B, C = (UUID(int=n) for n in range(1, 4))


@pytest.mark.parametrize(
    ("connects_per_s", "hosts", "workers", "reach"),
    [
        (500.0, {"*": 200.0}, 3, 33),
        (500.0, {"*": 200.0}, 1, 100),
        (40.0, {"*": 200.0}, 2, 20),
        (500.0, {}, 3, 250),
        (0.0, {"*": 200.0}, 2, 50),
        (500.0, {"*": 200.0}, 1_000, MOVES_AT_LEAST),
        (500.0, {"slow.example.com": 1.0}, 3, 250),
        (0.0, {"*": 0.0}, 3, None),
        (0.0, {}, 0, None),
    ],
)
def test_a_worker_is_sent_what_it_connects_in_half_a_second(
    connects_per_s: float, hosts: dict[str, float], workers: int, reach: int | None
) -> None:
    assert connected_in_time(connects_per_s, hosts, workers) == reach


def test_moves_end_where_one_leads_to_a_worker_that_has_enough_under_way() -> None:
    transfers = [Transfer(1, A, B), Transfer(2, A, C), Transfer(3, A, B), Transfer(4, A, C)]
    assert within_reach(transfers, {}, None) == 4
    assert within_reach(transfers, {}, 2) == 4
    assert within_reach(transfers, {}, 1) == 2
    assert within_reach(transfers, {B: 1}, 2) == 2
    assert within_reach(transfers, {B: 2}, 2) == 0
    assert within_reach([], {B: 2}, 2) == 0
