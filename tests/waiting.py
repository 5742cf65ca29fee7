"""How tests wait for what others do: for a condition, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

PATIENCE_S = 30.0
"""Ten times what anything here takes on a machine that is busy with other tests."""


ROUNDS_MIN = 2


def rounds_for(seconds: float) -> Iterator[int]:
    """Rounds of some work for so long; a few also where the machine stands still for longer than that."""
    deadline, count = time.monotonic() + seconds, 0
    while count < ROUNDS_MIN or time.monotonic() < deadline:
        yield count
        count += 1


def until(condition: Callable[[], object], what: str, *, limit_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; ``what`` says of what it is the sign."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
