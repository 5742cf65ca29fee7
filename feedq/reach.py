"""How many feeds may be on their way to one worker at a time, so that each is connected there soon. Pure.

A feed that moves has no connection from when its owner lets go until its turn to connect comes at the new
worker. Connections begin at a pace; so a worker is sent no more than its pace lets through in a moment, and
more as these arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from feedq.placement.base import Transfer

MOVE_WAIT_S: Final = 0.5
"""How long the last of the feeds that move at once waits for its turn to connect."""
MOVES_AT_LEAST: Final = 10
"""In a large fleet a worker's part of the pace to one host is small. Its feeds have many hosts, as a rule, and a
newcomer must not wait for its part for hours."""


def connected_in_time(
    connects_per_s: float, host_connects_per_s: Mapping[str, float], workers: int
) -> int | None:
    """How many feeds a worker connects within `MOVE_WAIT_S` if all have the same source; None: any number.

    The limits are settings: 0 is none, and that of a host, ``*`` for any, is shared by all ``workers``.
    """
    rates = [connects_per_s, host_connects_per_s.get("*", 0.0) / max(1, workers)]
    limits = [rate for rate in rates if rate > 0]
    return max(MOVES_AT_LEAST, int(MOVE_WAIT_S * min(limits))) if limits else None


def within_reach(transfers: Iterable[Transfer], under_way: Mapping[UUID, int], reach: int | None) -> int:
    """How many of these, from the first, until one leads to a worker that has ``reach`` under way."""
    if reach is None:
        return len(tuple(transfers))
    counts, length = Counter(under_way), 0
    for transfer in transfers:
        counts[transfer.target] += 1
        if counts[transfer.target] > reach:
            break
        length += 1
    return length
