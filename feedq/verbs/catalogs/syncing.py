"""One sync of a catalog: read, compare, refuse what is unusual, change, and report.

A catalog that has not changed since it was last synced, of which nobody has changed a feed either, is not even
read as feeds. A sync that breaks off half way is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from feedq import __version__
from feedq.control.store.catalog_feeds import FEEDS_AT_ONCE, CatalogStore
from feedq.core.model import Feed, FeedSpec
from feedq.verbs.catalogs.base import OpenCatalog, digest
from feedq.verbs.catalogs.comparing import (
    CatalogContents,
    SkippedEntry,
    SyncPlan,
    check_removals,
    compare,
    contents_of,
)
from feedq.verbs.manifest.changes import Action, Change

Item = TypeVar("Item")
Progress = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Given how many changes there are, what is told how many of them are made."""
TOLD_MAX = 20
"""Entries that were left out, as kept with the report in the control database."""


@dataclass(slots=True)
class SyncReport:
    """What a sync did, or in a dry run would do."""

    catalog: str
    unchanged: int = 0
    changes: list[Change] = field(default_factory=list)
    left_out: list[SkippedEntry] = field(default_factory=list)
    kept: int = 0
    """As in `SyncPlan`."""
    taken_over: int = 0
    """Feeds that others had declared."""
    is_same: bool = False
    """Whether neither the catalog nor one of its feeds has changed since the last sync."""

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)

    @property
    def complaint(self) -> str:
        """What people should look at, in one line; nothing if all is as the catalog says."""
        if not self.left_out:
            return ""
        return f"catalog {self.catalog!r}: {len(self.left_out):,} left out, such as {self.left_out[0]}"

    @property
    def counts(self) -> dict[str, int]:
        """The report in numbers, by the words of the command."""
        return {
            "added": self.count(Action.ADD),
            "changed": self.count(Action.CHANGE),
            "removed": self.count(Action.REMOVE),
            "unchanged": self.unchanged,
            "left_out": len(self.left_out),
            "kept": self.kept,
            "taken_over": self.taken_over,
        }


def sync(
    store: CatalogStore,
    opened: OpenCatalog,
    *,
    dry_run: bool = False,
    remove_up_to: int | None = None,
    take_over: bool = False,
    progress: Progress = lambda total: nullcontext(lambda done: None),
) -> SyncReport:
    """Make the feeds of a catalog as it says; with ``take_over`` also those that others declared under its names.

    Raises:
        CatalogUnavailable: it cannot be read; nothing was changed.
        SyncRefused: it would remove unusually many feeds; nothing was changed.
        Conflict: it is being synced elsewhere.
    """
    name = opened.name
    with nullcontext() if dry_run else store.exclusively(name):
        setup = digest(opened.setup.encode(), __version__.encode())
        reading = opened.catalog.read(None if take_over else _known(store, name, setup))
        if reading is None:
            return SyncReport(name, unchanged=int(store.owned_state(name).partition("/")[0]), is_same=True)
        contents = contents_of(reading, opened.options.defaults)
        owned = store.owned(name)
        others = _others(store, name, contents) if take_over else []
        plan = compare(contents, [*owned, *others])
        removals = len(plan.of(Action.REMOVE))
        share_max = opened.options.removals_max
        check_removals(name, removals, len(owned), share_max=share_max, remove_up_to=remove_up_to)
        report = _free_of_taken(store, name, contents, plan)
        report.taken_over = len(others)
        if dry_run:
            return report
        for part in _parts(others):
            store.take_over(name, [feed.name for feed in part])
        if report.changes:
            _carry_out(store, report, progress)
        is_whole = not report.left_out and not report.kept
        summary: dict[str, Any] = {**report.counts, "reasons": list(map(str, report.left_out[:TOLD_MAX]))}
        version = f"{setup}:{reading.version}" if is_whole else None
        state = _state_after([*owned, *others], report.changes)
        store.note(name, {"version": version, "owned": state, "report": summary})
        return report


def _known(store: CatalogStore, name: str, setup: str) -> str | None:
    """The version of the catalog that its feeds are as, unless somebody has changed one, or how it is set up."""
    last = store.last(name)
    if last is None or last.version is None or last.owned != store.owned_state(name):
        return None
    before, _, known = last.version.partition(":")
    return known if before == setup else None


def _state_after(owned: Sequence[Feed], changes: Sequence[Change]) -> str:
    """The state of the feeds that a sync left, as `CatalogStore.owned_state` would tell it if nobody else had
    changed one meanwhile: if somebody has, the next sync finds another, and compares."""
    generations = {feed.name: feed.generation for feed in owned}
    for change in changes:
        if change.action is Action.REMOVE:
            del generations[change.name]
        else:
            generations[change.name] = generations.get(change.name, 0) + 1
    return f"{len(generations)}/{sum(generations.values())}"


def _others(store: CatalogStore, name: str, contents: CatalogContents) -> list[Feed]:
    """The feeds that others declared under names of this catalog."""
    return [feed for part in _parts(list(contents.declared)) for feed in store.others(name, part)]


def _free_of_taken(store: CatalogStore, name: str, contents: CatalogContents, plan: SyncPlan) -> SyncReport:
    """Leave out what would be added under the name of a feed that is somebody else's."""
    taken: dict[str, str | None] = {}
    for part in _parts(plan.of(Action.ADD)):
        others = store.others(name, [change.name for change in part])
        taken |= {feed.name: feed.catalog for feed in others}
    left_out = [*plan.left_out]
    for feed, owner in taken.items():
        whose = "was declared by hand" if owner is None else f"was made from catalog {owner!r}"
        what = f"there is a feed of that name which {whose}, and is left alone"
        left_out.append(SkippedEntry(contents.where[feed], feed, what))
    changes = [change for change in plan.changes if change.name not in taken]
    return SyncReport(name, plan.unchanged, changes, left_out, plan.kept)


def _carry_out(store: CatalogStore, report: SyncReport, progress: Progress) -> None:
    """Make the changes. What somebody else was quicker with moves to what was left out."""
    made: set[str] = set()
    done = 0
    with progress(len(report.changes)) as told:
        for action in Action:
            for part in _parts([change for change in report.changes if change.action is action]):
                made |= _make(store, report.catalog, action, part)
                done += len(part)
                told(done)
    late = [change for change in report.changes if change.name not in made]
    report.changes = [change for change in report.changes if change.name in made]
    for change in late:
        what = "somebody else declared, changed or removed it meanwhile; the next sync looks again"
        report.left_out.append(SkippedEntry("control database", change.name, what))


def _make(store: CatalogStore, name: str, action: Action, part: Sequence[Change]) -> set[str]:
    if action is Action.REMOVE:
        return store.remove(name, [change.name for change in part])
    specs = [change.spec for change in part if isinstance(change.spec, FeedSpec)]
    if action is Action.ADD:
        return store.add(name, specs)
    columns = [{option.option.partition(".")[0] for option in change.options} for change in part]
    return store.change(name, [(spec, sorted(names)) for spec, names in zip(specs, columns, strict=True)])


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), FEEDS_AT_ONCE):
        yield items[start : start + FEEDS_AT_ONCE]
