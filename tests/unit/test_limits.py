"""How many go together, and how long the others wait; rates have a test of their own."""

from __future__ import annotations

import pytest

from feedq.core.limits import MOVES_AT_LEAST, moves_together


@pytest.mark.parametrize(
    ("connects_per_s", "hosts", "workers", "together"),
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
    connects_per_s: float, hosts: dict[str, float], workers: int, together: int | None
) -> None:
    assert moves_together(connects_per_s, hosts, workers) == together
