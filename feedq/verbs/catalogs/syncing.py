"""One sync of a catalog: its feeds are declared as it says, for its own feeds only.

- An entry that is wrong costs that one feed: the others are synced, and a feed that is there already stays as it
  is. Where not even the name of a wrong entry can be read, nothing is removed: it may be the entry of any feed.
- Only feeds that were made from the catalog are changed or removed; others that have a name of it are left alone.
- A catalog that came back nearly empty is more often broken than meant: unusually many removals are refused.
- Each sync reads the whole catalog and compares it with its feeds: it undoes what people have changed in them, and
  finishes what an earlier one left half done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Final

from msgspec import Meta

from feedq.control.store.feeds import of_others
from feedq.core.differences import ABSENT, Action, Change, OptionChange, plan
from feedq.core.model import Feed, FeedSpec
from feedq.core.remedies import command
from feedq.core.roles import AccessRole
from feedq.errors import SyncRefused
from feedq.verbs.catalogs.base import open_catalog
from feedq.verbs.declarations import Declared, change_feeds, declared_answer
from feedq.verbs.manifests import Manifest, ManifestProblem, option_problems
from feedq.verbs.registry import At, NameArgument, Page, verb

REMOVED_FREELY: Final = 10
"""Removals of one sync that need no leave: of three feeds one is a third, and nothing unusual."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync of a catalog did, or would do."""

    name: str
    feeds: Declared
    left_out: Sequence[ManifestProblem] = ()
    """Entries that were not synced, and why."""
    kept: int = 0
    """Feeds that the catalog has no more, and that stay because an entry without a readable name may be theirs."""

    def complaint(self) -> str | None:
        """What people should look at, in one line; None if all is as the catalog says."""
        refused = [f"{one.name}: {one.detail}" for one in self.feeds.changes if one.error is not None]
        found = [*map(str, self.left_out), *refused]
        return f"catalog {self.name!r}: {len(found):,} left out, such as {found[0]}" if found else None


@verb("GET /catalogs", of_fleet=True)
def list_catalogs(at: At) -> Page[str]:
    """List the catalogs that are set up on this machine, by name."""
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
    """Make the feeds of a catalog match it.

    A sync that would remove unusually many feeds is refused, unless ``remove_up_to`` allows that many.
    ``take_over`` also takes feeds with names in the catalog that others declared.
    """
    feeds, catalog = at.store.feeds, open_catalog(name, at.settings)
    with nullcontext() if dry_run else at.store.syncing(name):
        owned = {feed.name: feed for feed in feeds.declared(catalog=name)}
        manifest = catalog.read(at.settings, {feed.name: feed.spec for feed in owned.values()})
        wanted = {one.spec.name for one in manifest.feeds}
        others = {one.name: one for one in feeds.declared(names=wanted - owned.keys())}
        taken = others if take_over else {}
        changes, planned = _planned(name, manifest, owned, others, taken)
        removals = planned.feeds.removed
        share_max = catalog.removals_max
        check_removals(name, removals, len(owned), share_max=share_max, remove_up_to=remove_up_to)
        if dry_run:
            return planned
        outcomes = change_feeds(feeds, changes, catalog=name, taken_over=taken, told=at.told)
        return replace(planned, feeds=declared_answer(outcomes, planned.feeds.unchanged))


def _planned(
    catalog: str,
    manifest: Manifest,
    owned: Mapping[str, Feed],
    others: Mapping[str, Feed],
    taken: Mapping[str, Feed],
) -> tuple[list[Change], Synced]:
    """What a sync has to change, and what it would answer in a dry run."""
    left_out = list(manifest.problems)
    # Of a name that is there twice, nobody can tell which entry is meant.
    wrong = {one.name for one in left_out}
    where = {one.spec.name: one.where for one in manifest.feeds}

    def leave_out(name: str, what: str) -> None:
        left_out.append(ManifestProblem(where[name], f"feed {name!r}: {what}", name))

    accepted = []
    for spec in (one.spec for one in manifest.feeds if one.spec.name not in wrong):
        if spec.resume is not None:
            leave_out(spec.name, "resume: is not for catalogs; `feedq feed cursor set` gives a feed a cursor")
        elif spec.name in others and spec.name not in taken:
            leave_out(spec.name, of_others(others[spec.name].catalog))
        else:
            accepted.append(spec)
    surplus = owned.keys() - where.keys() - wrong
    kept = len(surplus) if None in wrong else 0
    removed = () if kept else surplus
    there = {name: (feed.spec, feed.version) for name, feed in {**owned, **taken}.items()}
    found = {change.name: change for change in plan("feed", accepted, there, remove=removed)}
    for feed in taken.values():
        change = found.get(
            feed.name, Change(Action.CHANGE, "feed", feed.name, feed.spec, version=feed.version)
        )
        mark = OptionChange("catalog", ABSENT if feed.catalog is None else feed.catalog, catalog)
        found[feed.name] = replace(change, options=(*change.options, mark))
    changes = []
    for change in found.values():
        # What is stored has been checked before.
        problems = option_problems(change.spec) if isinstance(change.spec, FeedSpec) else []
        if problems:
            leave_out(change.name, "; ".join(problems))
        else:
            changes.append(change)
    unchanged = len(accepted) + len(removed) - len(found)
    answer = declared_answer([(change, None) for change in changes], unchanged, dry_run=True)
    return changes, Synced(catalog, answer, left_out, kept)


def check_removals(
    name: str, removals: int, owned: int, *, share_max: float, remove_up_to: int | None
) -> None:
    """Raises `SyncRefused`, which says what to type if so many removals are meant."""
    is_usual = removals <= max(REMOVED_FREELY, share_max * owned) and removals < owned
    if not removals or is_usual or removals <= (remove_up_to or 0):
        return
    many = f"{removals:,} of the {owned:,} feeds" if removals < owned else f"any of the {owned:,} feeds"
    raise SyncRefused(
        f"catalog {name!r} no longer has {many} that were made from it, and one sync removes at most "
        f"{share_max:.0%} of them, so nothing was changed. To remove them: "
        f"`{command('sync', name, '--remove-up-to', str(removals))}`"
    )
