"""How tests wait for what others do: for a condition, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""Ten times what anything here takes on a machine that is busy with other tests."""


def until(condition: Callable[[], object], what: str, *, limit_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; ``what`` says of what it is the sign."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
