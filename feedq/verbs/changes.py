"""What tells declarations from what is there, and what is to be done about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from feedq.core.differences import AnySpec, OptionChange, difference
from feedq.core.model import FeedSpec, Version
from feedq.core.schedule.spec import Queue, ScheduleSpec

UNREADABLE = "cannot be read by this release"

Spec = TypeVar("Spec", FeedSpec, ScheduleSpec, Queue)


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
