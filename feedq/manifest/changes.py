"""What tells declared schedules and queues from those that are there, and what is to be done about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedq.declaration import ABSENT, Action, OptionChange
from feedq.manifest.jobs import plain_calendar, plain_queue, plain_schedule
from feedq.model import JSON
from feedq.schedule.model import Calendar, Queue, ScheduleSpec, UnreadableSpec

UNREADABLE = "cannot be read by this release"


@dataclass(frozen=True, slots=True)
class JobChange:
    """One schedule or queue that is not as declared."""

    action: Action
    noun: str
    """``schedule``, ``queue`` or ``calendar``."""
    name: str
    spec: ScheduleSpec | Queue | Calendar | None = None
    """What to declare; None for a removal."""
    options: tuple[OptionChange, ...] = ()
    note: str | None = None
    """What people should know of it besides."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What makes the schedules or queues as declared: additions and changes as declared, then removals by name."""

    changes: tuple[JobChange, ...] = ()
    unchanged: int = 0


def plan_schedules(
    declared: Sequence[ScheduleSpec],
    existing: Mapping[str, ScheduleSpec | UnreadableSpec],
    *,
    keep_paused: Collection[str],
    prune: bool,
) -> JobPlan:
    """The schedules named in ``keep_paused`` do not say ``paused``, and keep what they have. One that cannot be
    read is declared anew, as nobody can say what differs."""
    kept = [
        replace(spec, paused=existing[spec.name].paused)
        if spec.name in keep_paused and spec.name in existing
        else spec
        for spec in declared
    ]
    return _plan("schedule", {spec.name: spec for spec in kept}, existing, plain_schedule, prune=prune)


def plan_queues(declared: Sequence[Queue], existing: Sequence[Queue], *, prune: bool) -> JobPlan:
    there = {queue.name: queue for queue in existing}
    return _plan("queue", {queue.name: queue for queue in declared}, there, plain_queue, prune=prune)


def plan_calendars(declared: Sequence[Calendar], existing: Sequence[Calendar], *, prune: bool) -> JobPlan:
    there = {calendar.name: calendar for calendar in existing}
    return _plan("calendar", {one.name: one for one in declared}, there, plain_calendar, prune=prune)


def _plan(
    noun: str, declared: Mapping[str, Any], there: Mapping[str, Any], plain: Any, *, prune: bool
) -> JobPlan:
    changes: list[JobChange] = []
    for name, spec in declared.items():
        before = there.get(name)
        if before is None:
            changes.append(JobChange(Action.ADD, noun, name, spec))
        elif isinstance(before, UnreadableSpec):
            changes.append(JobChange(Action.CHANGE, noun, name, spec, note=f"{UNREADABLE}; declared anew"))
        elif before != spec and (options := difference(plain(before), plain(spec))):
            changes.append(JobChange(Action.CHANGE, noun, name, spec, options))
    unchanged = len(declared) - len(changes)
    if prune:
        for name in sorted(there.keys() - declared.keys()):
            note = UNREADABLE if isinstance(there[name], UnreadableSpec) else None
            changes.append(JobChange(Action.REMOVE, noun, name, note=note))
    return JobPlan(tuple(changes), unchanged)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[OptionChange, ...]:
    """What differs between two schedules or queues as they stand in a manifest, by dotted name such as
    ``kwargs.days``; a list counts as one value."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return tuple(
        OptionChange(".".join(path), old.get(path, ABSENT), new.get(path, ABSENT))
        for path in sorted(old.keys() | new.keys())
        if path not in old or path not in new or not _same(old[path], new[path])
    )


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JSON]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        # An empty mapping among the arguments of a job is a value like any other.
        yield path, value


def _same(one: JSON, other: JSON) -> bool:
    # 1 == True in Python, yet they are different arguments.
    return one == other and isinstance(one, bool) == isinstance(other, bool)
