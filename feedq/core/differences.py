"""What tells declarations of feeds, schedules and queues from what is there, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from feedq.core.model import JSON, FeedSpec, Version
from feedq.core.schedule.spec import Queue, ScheduleSpec

ABSENT = "(unset)"
UNREADABLE = "cannot be read by this release"

AnySpec = FeedSpec | ScheduleSpec | Queue
Spec = TypeVar("Spec", FeedSpec, ScheduleSpec, Queue)


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


class Action(StrEnum):
    """What `feedq apply` does with one feed, schedule or queue."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One feed, schedule or queue that is not as declared."""

    action: Action
    noun: str
    """``feed``, ``schedule`` or ``queue``."""
    name: str
    spec: AnySpec | None = None
    """What to declare; None for a removal."""
    options: tuple[OptionChange, ...] = ()
    version: Version | None = None
    """Of what is there, by which this was decided: it is changed as it was then, or not at all."""
    note: str | None = None
    """What people should know of it besides."""


def plan(
    noun: str,
    declared: Sequence[Spec],
    there: Mapping[str, tuple[Spec, Version | None]],
    *,
    remove: Collection[str] = (),
    unreadable: Collection[str] = (),
) -> list[Change]:
    """What to do so that everything is as declared; ``remove`` may name what is declared, which stays.

    Additions and changes come in their order, then removals by name. What a declaration does not say (whether
    a feed runs, or a schedule is paused) is as it is there. What is ``unreadable`` is declared anew.
    """
    changes: list[Change] = []
    for one in declared:
        before, version = there.get(one.name, (None, None))
        if one is before:
            continue
        spec = one.completed(before)
        if before is None:
            changes.append(Change(Action.ADD, noun, spec.name, spec))
        elif spec.name in unreadable:
            anew = f"{UNREADABLE}; declared anew"
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, (), version, anew))
        elif options := difference(before, spec):
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, options, version))
    for name in sorted({*remove} - {spec.name for spec in declared}):
        note = UNREADABLE if name in unreadable else None
        changes.append(Change(Action.REMOVE, noun, name, version=there[name][1], note=note))
    return changes


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
