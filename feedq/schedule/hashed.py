"""``H`` in cron expressions: a value hashed from the schedule's name, so that many schedules do not fire at once.

======================  =====================================================================
``H``                   one value of the field
``H(a-b)``              one value from a to b
``H/n``                 every n-th value, the first of them hashed
``H(a-b)/n``            the same, from a to b
======================  =====================================================================

Of days of the month ``H`` means 1 to 28, which every month has. The hash depends on the name and the field and on
nothing else: the same on every node and in every release. In a list each item stands for itself, and all of one
field have the same hash: ``H(0-29),H(30-59)`` is every half hour.
"""

from __future__ import annotations

import re
from hashlib import blake2b

RANGES = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day of the month": (1, 28),
    "month": (1, 12),
    "day of the week": (0, 6),
}
"""What ``H`` stands for, by field, in the order of the fields."""

LAST_VALUES = {"day of the month": 31, "day of the week": 7}
"""What may be given as the end of a range, where that is more than `RANGES` says."""

_HASHED = re.compile(r"H(?:\((?P<first>\d{1,4})-(?P<last>\d{1,4})\))?(?:/(?P<step>\d{1,4}))?", re.ASCII)


def replaced(text: str, *, field: str, name: str) -> str:
    """The field with values in place of each ``H``. Raises ValueError when one is not as above."""
    return ",".join(_replaced(item, field, name) if "H" in item else item for item in text.split(","))


def _replaced(item: str, field: str, name: str) -> str:
    if not item.startswith("H"):
        # THU and MAR have no business here, but other words do.
        return item
    match = _HASHED.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is none of H, H(a-b), H/n and H(a-b)/n")
    low, high = _bounds(match, item, field)
    size = high - low + 1
    if match["step"] is None:
        return str(low + _hash(field, name) % size)
    step = int(match["step"])
    if not 1 <= step <= size:
        raise ValueError(f"the step of {item!r} must be from 1 to {size}")
    return ",".join(str(value) for value in range(low + _hash(field, name) % step, high + 1, step))


def _bounds(match: re.Match[str], item: str, field: str) -> tuple[int, int]:
    low, high = RANGES[field]
    if match["first"] is None:
        return low, high
    first, last = int(match["first"]), int(match["last"])
    high = LAST_VALUES.get(field, high)
    if not low <= first <= last <= high:
        raise ValueError(f"the range of {item!r} must rise and lie within {low} to {high}")
    return first, last


def _hash(field: str, name: str) -> int:
    return int.from_bytes(blake2b(f"{field}\0{name}".encode(), digest_size=8).digest(), "big")
