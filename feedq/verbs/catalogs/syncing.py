"""One sync of a catalog: read, compare, refuse what is unusual, change, and report.

- An entry that is wrong costs that one feed: the others are synced, and a feed that is there already stays as it
  is. Where not even the name of a wrong entry can be read, nothing is removed: it may be the entry of any feed.
- Only feeds that were made from the catalog are changed or removed; others that have a name of it are left alone.
- A catalog that came back nearly empty is more often broken than meant: unusually many removals are refused.
- A catalog that has not changed since it was last synced, of which nobody has changed a feed either, is not even
  read as feeds. A sync that breaks off half way is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq import __version__
from feedq.control.store.feeds import of_others
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedSpec
from feedq.core.remedies import command
from feedq.core.roles import AccessRole
from feedq.core.values import read
from feedq.errors import SyncRefused
from feedq.verbs.catalogs.base import CatalogEntry, CatalogReading, OpenCatalog, digest, open_catalog
from feedq.verbs.declarations import ChangeDocument, change_document, change_feeds
from feedq.verbs.manifest.changes import ABSENT, Action, Change, OptionChange, plan
from feedq.verbs.manifest.options import option_problems
from feedq.verbs.registry import At, NameArgument, Page, Told, verb

REMOVED_FREELY: Final = 10
"""Removals of one sync that need no leave: of three feeds one is a third, and nothing unusual."""


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
class Synced:
    """What a sync of a catalog did, or would do."""

    name: str
    added: int
    changed: int
    removed: int
    unchanged: int
    kept: int
    """Feeds that the catalog has no more, and that stay because an entry without a readable name may be theirs."""
    is_same: bool
    """Whether neither the catalog nor one of its feeds has changed since the last sync."""
    left_out: Sequence[SkippedEntry]
    complaint: str
    """What people should look at, in one line; empty if all is as the catalog says."""
    changes: Sequence[ChangeDocument]
    dry_run: bool


@dataclass(slots=True)
class _Differences:
    """What a sync has to change, and what it has left out so far."""

    unchanged: int = 0
    changes: list[Change] = field(default_factory=list)
    left_out: list[SkippedEntry] = field(default_factory=list)
    kept: int = 0

    def of(self, action: Action) -> list[Change]:
        return [change for change in self.changes if change.action is action]


@verb("GET /catalogs", of_fleet=True)
def list_catalogs(at: At) -> Page[str]:
    """Catalogs that are set up where the verb is done, by name."""
    return Page(sorted(at.settings.catalogs))


@verb("POST /catalogs/{name}/sync", role=AccessRole.ADMIN, of_fleet=True)
def sync_catalog(
    at: At,
    *,
    name: NameArgument,
    remove_up_to: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None,
    take_over: bool = False,
    dry_run: bool = False,
) -> Synced:
    """Make feeds as a catalog says.

    ``remove_up_to`` lets so many feeds be removed, however many that is of all that it has. ``take_over`` also
    takes feeds that others declared under names that it has.
    """
    return sync(
        at.store,
        open_catalog(name, at.settings),
        dry_run=dry_run,
        remove_up_to=remove_up_to,
        take_over=take_over,
        told=at.told,
    )


def sync(
    store: PostgresStore,
    opened: OpenCatalog,
    *,
    dry_run: bool = False,
    remove_up_to: int | None = None,
    take_over: bool = False,
    told: Told = lambda done, total: None,
) -> Synced:
    """Make the feeds of a catalog as it says; with ``take_over`` also those that others declared under its names.

    Raises:
        CatalogUnavailable: it cannot be read; nothing was changed.
        SyncRefused: it would remove unusually many feeds; nothing was changed.
        Conflict: it is being synced elsewhere.
    """
    name = opened.name
    with nullcontext() if dry_run else store.catalogs.exclusively(name):
        setup = digest(opened.setup.encode(), __version__.encode())
        reading = opened.read(None if take_over else _known(store, name, setup))
        if reading is None:
            as_before = _Differences(int(store.catalogs.owned_state(name).partition("/")[0]))
            return _synced(name, as_before, is_same=True, dry_run=dry_run)
        contents = _contents(reading, opened.options.defaults)
        owned = store.feeds.declared(catalog=name)
        others = [one for one in store.feeds.declared(names=contents.declared) if one.catalog != name]
        taken = others if take_over else []
        found = _compared(contents, owned, taken, name)
        removals, share_max = len(found.of(Action.REMOVE)), opened.options.removals_max
        check_removals(name, removals, len(owned), share_max=share_max, remove_up_to=remove_up_to)
        if not take_over:
            _leave_out(found, contents, others)
        if not dry_run:
            made = change_feeds(
                store.feeds,
                found.changes,
                catalog=name,
                taken_over={feed.name for feed in taken},
                told=lambda done: told(done, len(found.changes)),
            )
            found.changes = [change for change, _ in made.done]
            found.left_out += [SkippedEntry("control database", c.name, str(e)) for c, e in made.failed]
            is_whole = not found.left_out and not found.kept
            version = f"{setup}:{reading.version}" if is_whole else None
            store.catalogs.note(name, version, _state_after([*owned, *taken], made.done))
        return _synced(name, found, dry_run=dry_run)


def _synced(name: str, found: _Differences, *, is_same: bool = False, dry_run: bool) -> Synced:
    left_out = found.left_out
    return Synced(
        name=name,
        added=len(found.of(Action.ADD)),
        changed=len(found.of(Action.CHANGE)),
        removed=len(found.of(Action.REMOVE)),
        unchanged=found.unchanged,
        kept=found.kept,
        is_same=is_same,
        left_out=left_out,
        complaint=f"catalog {name!r}: {len(left_out):,} left out, such as {left_out[0]}" if left_out else "",
        changes=list(map(change_document, found.changes)),
        dry_run=dry_run,
    )


def _known(store: PostgresStore, name: str, setup: str) -> str | None:
    """The version of the catalog that its feeds are as, unless somebody has changed one, or how it is set up."""
    version, owned = store.catalogs.last(name)
    if version is None or owned != store.catalogs.owned_state(name):
        return None
    before, _, known = version.partition(":")
    return known if before == setup else None


def _state_after(owned: Sequence[Feed], changed: Sequence[tuple[Change, Feed]]) -> str:
    """The state of the feeds that a sync left, as `CatalogStore.owned_state` would tell it if nobody else had
    changed one meanwhile: if somebody has, the next sync finds another, and compares."""
    generations = {feed.name: feed.generation for feed in (*owned, *(feed for _, feed in changed))}
    for change, _ in changed:
        if change.action is Action.REMOVE:
            del generations[change.name]
    return f"{len(generations)}/{sum(generations.values())}"


# -- comparing -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Contents:
    """The feeds that a catalog declares, by name, with their places."""

    declared: dict[str, FeedSpec] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    left_out: list[SkippedEntry] = field(default_factory=list)


def _contents(reading: CatalogReading, defaults: Mapping[str, Any]) -> _Contents:
    """Read all entries. One name twice is wrong both times: which is meant, nobody can tell."""
    found = _Contents(left_out=[SkippedEntry(one.where, None, one.what) for one in reading.problems])
    for entry in reading.entries:
        one = _read(entry, defaults)
        if isinstance(one, FeedSpec) and one.name in found.where:
            one = SkippedEntry(entry.where, one.name, f"is also declared at {found.where[one.name]}")
        if isinstance(one, FeedSpec):
            found.declared[one.name], found.where[one.name] = one, entry.where
        else:
            found.left_out.append(one)
    for skipped in found.left_out:
        found.declared.pop(skipped.name or "", None)
    return found


def _read(entry: CatalogEntry, defaults: Mapping[str, Any]) -> FeedSpec | SkippedEntry:
    if not isinstance(entry.value, Mapping):
        return SkippedEntry(entry.where, None, "a feed must be a mapping with name, connector and sink")
    given = _merged(defaults, entry.value)
    name = given.get("name") if isinstance(given.get("name"), str) else None
    if given.get("resume") is not None:
        instead = "resume: is not for catalogs; `feedq feed cursor set` gives a feed a cursor"
        return SkippedEntry(entry.where, name, instead)
    found = read(FeedSpec, given)
    if isinstance(found, list):
        return SkippedEntry(entry.where, name, "; ".join(what for _, what in found))
    return found


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and where it says nothing, the defaults."""
    result = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            result[key] = _merged(defaults[key], given[key])
    return result


def _compared(
    contents: _Contents, owned: Sequence[Feed], taken: Sequence[Feed], catalog: str
) -> _Differences:
    """Find what differs. Options are checked where they do: what is stored has been checked before."""
    there = {feed.name: feed.spec for feed in (*owned, *taken)}
    left_out = list(contents.left_out)
    differing = []
    for name, entry in contents.declared.items():
        before = there.get(name)
        spec = entry.completed(before)  # a person may have paused it
        if before == spec:
            continue
        if wrong := option_problems(spec):
            left_out.append(SkippedEntry(contents.where[name], name, "; ".join(wrong)))
        else:
            differing.append(spec)
    planned = {change.name: change for change in plan("feed", differing, there).changes}
    for feed in taken:
        change = planned.get(feed.name, Change(Action.CHANGE, "feed", feed.name, feed.spec))
        mark = OptionChange("catalog", ABSENT if feed.catalog is None else feed.catalog, catalog)
        planned[feed.name] = replace(change, options=(*change.options, mark))
    changes = list(planned.values())
    surplus = there.keys() - contents.declared.keys() - {one.name for one in left_out}
    kept = len(surplus) if any(one.name is None for one in left_out) else 0
    removals = [] if kept else [Change(Action.REMOVE, "feed", name) for name in sorted(surplus)]
    unchanged = len(there) - sum(change.action is Action.CHANGE for change in changes) - len(surplus)
    return _Differences(unchanged, [*changes, *removals], left_out, kept)


def check_removals(
    name: str, removals: int, owned: int, *, share_max: float, remove_up_to: int | None
) -> None:
    """Raises `SyncRefused`, which says what to type if so many removals are meant."""
    is_usual = removals <= max(REMOVED_FREELY, share_max * owned) and removals < owned
    if not removals or is_usual or removals <= (remove_up_to or 0):
        return
    many = f"{removals:,} of the {owned:,} feeds" if removals < owned else f"any of the {owned:,} feeds"
    raise SyncRefused(
        f"catalog {name!r} does not have {many} any more that were made from it, and one sync removes at most "
        f"{share_max:.0%} of them; nothing was changed. If they are to go: "
        f"`{command('sync', name, '--remove-up-to', str(removals))}`"
    )


def _leave_out(found: _Differences, contents: _Contents, others: Sequence[Feed]) -> None:
    """Leave out what would be added under the name of a feed that is somebody else's."""
    added = {change.name for change in found.of(Action.ADD)}
    taken = {feed.name: feed for feed in others if feed.name in added}
    for name, feed in taken.items():
        found.left_out.append(SkippedEntry(contents.where[name], name, of_others(feed)))
    found.changes = [change for change in found.changes if change.name not in taken]
