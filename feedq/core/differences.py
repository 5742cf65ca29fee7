"""What tells two declarations of the same feed, schedule or queue apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from feedq.core.model import JSON, FeedSpec
from feedq.core.schedule.spec import Queue, ScheduleSpec

ABSENT = "(unset)"

AnySpec = FeedSpec | ScheduleSpec | Queue


@dataclass(frozen=True, slots=True)
class OptionChange:
    """One option before and after; `ABSENT` stands for an option that is not given."""

    option: str
    before: JSON
    after: JSON

    @property
    def key(self) -> str:
        """The key of the declaration that it is below."""
        return self.option.partition(".")[0]


def difference(before: AnySpec, after: AnySpec) -> tuple[OptionChange, ...]:
    """The keys that differ, by dotted name such as ``source.url``; a list counts as one value.

    Of a feed an empty mapping is like none. Among the arguments of a job it is a value like any other.
    """
    is_feed = isinstance(after, FeedSpec)
    usual = {"tenant": "", "weight": 1.0} if is_feed else {}
    written = [usual | spec.plain() for spec in (before, after)]
    # Of most entries of a large catalog nothing differs, of the others little: only that is taken apart.
    shown = [{key: msgspec.json.encode(one[key], order="deterministic") for key in one} for one in written]
    keys = {key for key, _ in shown[0].items() ^ shown[1].items()}
    old, new = (
        dict(leaf for key in keys & one.keys() for leaf in _leaves(one[key], (key,), keeps_empty=not is_feed))
        for one in written
    )
    return tuple(
        OptionChange(".".join(path), old.get(path, ABSENT), new.get(path, ABSENT))
        for path in sorted(old.keys() | new.keys())
        if path not in old or path not in new or not _same(old[path], new[path])
    )


def _leaves(
    value: Any, path: tuple[str, ...], *, keeps_empty: bool
) -> Iterator[tuple[tuple[str, ...], JSON]]:
    if isinstance(value, Mapping) and (value or not keeps_empty):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key), keeps_empty=keeps_empty)
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _same(one: JSON, other: JSON) -> bool:
    # 1 == True in Python, yet they are different options.
    return one == other and isinstance(one, bool) == isinstance(other, bool)
