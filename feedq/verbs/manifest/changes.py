"""What tells declarations from what is there, and what is to be done about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from feedq.core.model import JSON, FeedSpec
from feedq.core.schedule.spec import Queue, ScheduleSpec

ABSENT = "(unset)"
UNREADABLE = "cannot be read by this release"

AnySpec = FeedSpec | ScheduleSpec | Queue
Spec = TypeVar("Spec", FeedSpec, ScheduleSpec, Queue)


class Action(StrEnum):
    """What `feedq apply` does with one feed, schedule or queue."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class OptionChange:
    """One option before and after; `ABSENT` stands for an option that is not given."""

    option: str
    before: JSON
    after: JSON


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
    note: str | None = None
    """What people should know of it besides."""


@dataclass(frozen=True, slots=True)
class DeclarationChanges:
    """What makes all as declared: additions and changes as they are declared, then removals by name."""

    changes: tuple[Change, ...] = ()
    unchanged: int = 0


def plan(
    noun: str,
    declared: Sequence[Spec],
    there: Mapping[str, Spec],
    *,
    remove: Collection[str] = (),
    unreadable: Collection[str] = (),
) -> DeclarationChanges:
    """What to do so that everything is as declared; ``remove`` may name what is declared, which stays.

    What a declaration does not say (whether a feed runs, or a schedule is paused) is as it is there. What is
    ``unreadable`` is declared anew, as nobody can say what differs.
    """
    changes: list[Change] = []
    for one in declared:
        before = there.get(one.name)
        spec = one.completed(before)
        if before is None:
            changes.append(Change(Action.ADD, noun, spec.name, spec))
        elif spec.name in unreadable:
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, note=f"{UNREADABLE}; declared anew"))
        elif options := difference(before, spec):
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, options))
    unchanged = len(declared) - len(changes)
    for name in sorted({*remove} - {spec.name for spec in declared}):
        changes.append(Change(Action.REMOVE, noun, name, note=UNREADABLE if name in unreadable else None))
    return DeclarationChanges(tuple(changes), unchanged)


# -- differences -----------------------------------------------------------------------------------------


def difference(before: AnySpec, after: AnySpec) -> tuple[OptionChange, ...]:
    """The keys that differ, by dotted name such as ``source.url``; a list counts as one value.

    Of a feed an empty mapping is like none. Among the arguments of a job it is a value like any other.
    """
    is_feed = isinstance(after, FeedSpec)
    usual = {"tenant": "", "weight": 1.0} if is_feed else {}
    old, new = (dict(_leaves(usual | spec.plain(), keeps_empty=not is_feed)) for spec in (before, after))
    return _compared(old, new)


_Path = tuple[str, ...]


def _compared(old: Mapping[_Path, JSON], new: Mapping[_Path, JSON]) -> tuple[OptionChange, ...]:
    return tuple(
        OptionChange(".".join(path), old.get(path, ABSENT), new.get(path, ABSENT))
        for path in sorted(old.keys() | new.keys())
        if path not in old or path not in new or not _same(old[path], new[path])
    )


def _leaves(value: Any, path: _Path = (), *, keeps_empty: bool) -> Iterator[tuple[_Path, JSON]]:
    if isinstance(value, Mapping) and (value or not keeps_empty):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key), keeps_empty=keeps_empty)
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _same(one: JSON, other: JSON) -> bool:
    # 1 == True in Python, yet they are different options.
    return one == other and isinstance(one, bool) == isinstance(other, bool)
