"""What a catalog says against the feeds that were made from it. Pure.

An entry that is wrong costs that one feed: the others are synced, and a feed that is there already stays as it is.
Where not even the name of a wrong entry can be read, nothing is removed, because it may be the entry of any feed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from feedq.core.model import Feed, FeedSpec
from feedq.core.remedies import command
from feedq.core.values import read
from feedq.errors import SyncRefused
from feedq.verbs.catalogs.base import CatalogEntry, CatalogReading, merged
from feedq.verbs.manifest.changes import Action, Change, plan
from feedq.verbs.manifest.feed_entry import FeedEntry, option_problems
from feedq.verbs.manifest.reader import ENTRIES_MAX

REMOVED_FREELY: Final = 10
"""Removals of one sync that need no leave: of three feeds one is a third, and nothing unusual."""
NO_RESUME: Final = "resume: is not for catalogs; `feedq feed cursor set` gives a feed a cursor"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """An entry that was not synced, and why; without a name if it has none."""

    where: str
    name: str | None
    what: str

    def __str__(self) -> str:
        who = "" if self.name is None else f"feed {self.name!r}: "
        return f"{self.where}: {who}{self.what}"


@dataclass(frozen=True, slots=True)
class CatalogContents:
    """The feeds that a catalog declares."""

    declared: Mapping[str, FeedSpec]
    where: Mapping[str, str]
    says_target: frozenset[str]
    """Those that say whether they should run; the others keep what a person chose."""
    left_out: tuple[SkippedEntry, ...]


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What makes the feeds of a catalog as it says."""

    changes: tuple[Change, ...]
    unchanged: int
    left_out: tuple[SkippedEntry, ...] = ()
    kept: int = 0
    """Feeds that are not in the catalog and stay, because an entry without a readable name may be theirs."""

    def of(self, action: Action) -> list[Change]:
        return [change for change in self.changes if change.action is action]


def contents_of(reading: CatalogReading, defaults: Mapping[str, Any]) -> CatalogContents:
    """Read all entries. One name twice is wrong both times: which is meant, nobody can tell."""
    declared: dict[str, FeedSpec] = {}
    where: dict[str, str] = {}
    says_target: set[str] = set()
    left_out = [SkippedEntry(problem.where, None, problem.what) for problem in reading.problems]
    twice: set[str] = set()
    for entry in reading.entries[:ENTRIES_MAX]:
        found = _read(entry, defaults)
        if isinstance(found, SkippedEntry):
            left_out.append(found)
            twice |= {found.name} - {None}  # type: ignore[arg-type]  # what is left are names
            continue
        if found.name in where:
            twice.add(found.name)
            left_out.append(SkippedEntry(entry.where, found.name, f"is also declared at {where[found.name]}"))
            continue
        where[found.name] = entry.where
        declared[found.name] = found.spec
        if found.target_state is not None:
            says_target.add(found.name)
    if len(reading.entries) > ENTRIES_MAX:
        left_out.append(
            SkippedEntry("catalog", None, f"has more than {ENTRIES_MAX} entries; the rest is left out")
        )
    for name in twice & declared.keys():
        del declared[name]
    return CatalogContents(declared, where, frozenset(says_target), tuple(left_out))


def _read(entry: CatalogEntry, defaults: Mapping[str, Any]) -> FeedEntry | SkippedEntry:
    if not isinstance(entry.value, Mapping):
        return SkippedEntry(entry.where, None, "a feed must be a mapping with name, connector and sink")
    given = merged(defaults, entry.value)
    name = given.get("name") if isinstance(given.get("name"), str) else None
    if given.get("resume") is not None:
        return SkippedEntry(entry.where, name, NO_RESUME)
    found = read(FeedEntry, given)
    if isinstance(found, list):
        return SkippedEntry(entry.where, name, "; ".join(what for _, what in found))
    return found


def compare(contents: CatalogContents, owned: Sequence[Feed]) -> SyncPlan:
    """Find what differs. Options are checked where they do: what is stored has been checked before."""
    there = {feed.name: feed.spec for feed in owned}
    wanted = {
        name: spec
        if name in contents.says_target or name not in there
        else replace(spec, target_state=there[name].target_state)
        for name, spec in contents.declared.items()
    }
    left_out = list(contents.left_out)
    differing = []
    for name, spec in wanted.items():
        if there.get(name) == spec:
            continue
        if wrong := option_problems(spec):
            left_out.append(SkippedEntry(contents.where[name], name, "; ".join(wrong)))
        else:
            differing.append(spec)
    changes = plan(differing, owned).changes
    surplus = there.keys() - wanted.keys() - {one.name for one in left_out}
    kept = len(surplus) if any(one.name is None for one in left_out) else 0
    removals = [] if kept else [Change(Action.REMOVE, "feed", name) for name in sorted(surplus)]
    unchanged = len(there) - sum(change.action is Action.CHANGE for change in changes) - len(surplus)
    return SyncPlan((*changes, *removals), unchanged, tuple(left_out), kept)


def check_removals(
    name: str, removals: int, owned: int, *, share_max: float, remove_up_to: int | None
) -> None:
    """Refuse to remove unusually many feeds: a catalog that came back empty is more often broken than meant.

    Raises `SyncRefused`, which says what to type if it is meant.
    """
    is_usual = removals <= max(REMOVED_FREELY, share_max * owned) and removals < owned
    if not removals or is_usual or removals <= (remove_up_to or 0):
        return
    many = f"{removals:,} of the {owned:,} feeds" if removals < owned else f"any of the {owned:,} feeds"
    raise SyncRefused(
        f"catalog {name!r} does not have {many} any more that were made from it, and one sync removes at most "
        f"{share_max:.0%} of them; nothing was changed. If they are to go: "
        f"`{command('sync', name, '--remove-up-to', str(removals))}`"
    )
