"""What tells declarations from what is there, and what is to be done about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from feedq.core.model import JSON, Feed, FeedSpec
from feedq.core.schedule.model import Schedule
from feedq.core.schedule.spec import Queue, ScheduleSpec
from feedq.core.values import Entry
from feedq.verbs.manifest.feed_entry import plain_feed

ABSENT = "(unset)"
UNREADABLE = "cannot be read by this release"

AnySpec = FeedSpec | ScheduleSpec | Queue


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

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)


def plan(
    declared: Iterable[FeedSpec],
    existing: Sequence[Feed],
    *,
    keep_target: Collection[str] = (),
    prune: bool = False,
    tenant: str | None = None,
) -> DeclarationChanges:
    """What to do so that the feeds are as declared.

    The feeds named in ``keep_target`` do not say whether they should run: one that a person paused stays
    paused. ``prune`` removes what is not declared, of one ``tenant`` only if that is given, and leaves alone what
    was made from a catalog: its next sync would only make it again.
    """
    there = {feed.name: feed.spec for feed in existing if feed.removed_at is None}
    kept = [
        replace(spec, target_state=there[spec.name].target_state)
        if spec.name in keep_target and spec.name in there
        else spec
        for spec in declared
    ]
    of_catalogs = {feed.name for feed in existing if feed.catalog is not None}
    may_go = [name for name, spec in there.items() if tenant in (None, spec.tenant)] if prune else []
    surplus = [name for name in may_go if name not in of_catalogs]
    return _plan("feed", kept, there, difference, surplus)


def plan_schedules(
    declared: Sequence[ScheduleSpec], existing: Sequence[Schedule], *, prune: bool
) -> DeclarationChanges:
    """What does not say ``paused`` keeps what it has. One that cannot be read is declared anew, as nobody can say
    what differs."""
    there = {schedule.spec.name: schedule.spec for schedule in existing}
    unreadable = {schedule.spec.name for schedule in existing if schedule.unreadable is not None}
    kept = [spec.model_copy(update={"paused": _paused(spec, there.get(spec.name))}) for spec in declared]
    return _plan("schedule", kept, there, plain_difference, there if prune else (), unreadable)


def _paused(spec: ScheduleSpec, before: ScheduleSpec | None) -> bool | None:
    found = spec.paused if spec.paused is not None or before is None else before.paused
    return found or None


def plan_queues(declared: Sequence[Queue], existing: Sequence[Queue], *, prune: bool) -> DeclarationChanges:
    there = {queue.name: queue for queue in existing}
    return _plan("queue", declared, there, plain_difference, there if prune else ())


def _plan(
    noun: str,
    declared: Sequence[Any],
    there: Mapping[str, Any],
    difference: Callable[[Any, Any], tuple[OptionChange, ...]],
    may_go: Iterable[str],
    unreadable: Collection[str] = (),
) -> DeclarationChanges:
    changes: list[Change] = []
    for spec in declared:
        before = there.get(spec.name)
        if before is None:
            changes.append(Change(Action.ADD, noun, spec.name, spec))
        elif spec.name in unreadable:
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, note=f"{UNREADABLE}; declared anew"))
        elif options := difference(before, spec):
            changes.append(Change(Action.CHANGE, noun, spec.name, spec, options))
    unchanged = len(declared) - len(changes)
    for name in sorted({*may_go} - {spec.name for spec in declared}):
        note = UNREADABLE if name in unreadable else None
        changes.append(Change(Action.REMOVE, noun, name, note=note))
    return DeclarationChanges(tuple(changes), unchanged)


# -- differences -----------------------------------------------------------------------------------------


def difference(before: FeedSpec, after: FeedSpec) -> tuple[OptionChange, ...]:
    """The options of a feed that differ, by dotted name such as ``source.url``; a list counts as one value, and an
    empty mapping is like none."""
    usual = {"tenant": "", "weight": 1.0}
    old, new = (_leaves(usual | plain_feed(spec), keeps_empty=False) for spec in (before, after))
    return _compared(dict(old), dict(new))


def plain_difference(before: Entry, after: Entry) -> tuple[OptionChange, ...]:
    """What differs between two schedules or queues as they stand in a manifest. An empty mapping among the
    arguments of a job is a value like any other."""
    if before == after:
        return ()  # as most are
    old, new = (dict(_leaves(spec.plain(), keeps_empty=True)) for spec in (before, after))
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
