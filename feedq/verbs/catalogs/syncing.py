"""One sync of a catalog: its feeds are declared as it says, for its own feeds only.

- An entry that is wrong costs that one feed: the others are synced, and a feed that is there already stays as it
  is. Where not even the name of a wrong entry can be read, nothing is removed: it may be the entry of any feed.
- Only feeds that were made from the catalog are changed or removed; others that have a name of it are left alone.
- A catalog that came back nearly empty is more often broken than meant: unusually many removals are refused.
- A catalog that has not changed since it was last synced, of which nobody has changed a feed either, is not even
  read as feeds. A sync that breaks off half way is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.control.store.feeds import of_others
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed, FeedSpec
from feedq.core.remedies import command
from feedq.core.roles import AccessRole
from feedq.errors import SyncRefused
from feedq.verbs.bulk import BulkResult
from feedq.verbs.catalogs.base import OpenCatalog, open_catalog
from feedq.verbs.declarations import Declared, change_feeds, declared_answer
from feedq.verbs.manifest.changes import ABSENT, Action, Change, OptionChange, plan
from feedq.verbs.manifest.options import option_problems
from feedq.verbs.manifest.reader import Manifest, ManifestProblem
from feedq.verbs.registry import At, NameArgument, Page, Told, verb

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
    is_same: bool = False
    """Whether neither the catalog nor one of its feeds has changed since the last sync."""

    def complaint(self) -> str | None:
        """What people should look at, in one line; None if all is as the catalog says."""
        refused = [f"{one.name}: {one.detail}" for one in self.feeds.changes if one.error is not None]
        found = [*map(str, self.left_out), *refused]
        return f"catalog {self.name!r}: {len(found):,} left out, such as {found[0]}" if found else None


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
        version, state = store.catalogs.last(name)
        state_now = store.catalogs.owned_state(name)
        # A feed that somebody has changed is to be as the catalog says.
        read = opened.read(version if state == state_now and not take_over else None)
        if read is None:
            count = int(state_now.partition("/")[0])
            return Synced(name, declared_answer(BulkResult(), count, dry_run=dry_run), is_same=True)
        manifest, version = read
        owned = {feed.name: feed for feed in store.feeds.declared(catalog=name)}
        names = [one.spec.name for one in manifest.feeds]
        others = {one.name: one for one in store.feeds.declared(names=names) if one.catalog != name}
        taken = others if take_over else {}
        feeds, left_out = _accepted(manifest, owned | taken, {} if take_over else others)
        surplus = owned.keys() - {*names, *(one.name for one in left_out)}
        kept = len(surplus) if any(one.name is None for one in left_out) else 0
        removed = () if kept else surplus
        share_max = opened.catalog.removals_max
        check_removals(name, len(removed), len(owned), share_max=share_max, remove_up_to=remove_up_to)
        there = {feed.name: feed.spec for feed in (owned | taken).values()}
        planned = plan("feed", feeds, there, remove=removed)
        changes = _with_marks(planned.changes, [taken[one.name] for one in feeds if one.name in taken], name)
        unchanged = len(feeds) + len(removed) - len(changes)
        result: BulkResult[Change, Any] = BulkResult([(change, None) for change in changes])
        if not dry_run:
            result = change_feeds(
                store.feeds,
                changes,
                catalog=name,
                taken_over=taken,
                told=lambda done: told(done, len(changes)),
            )
            is_whole = not (left_out or kept or result.failed)
            after = _state_after([*owned.values(), *taken.values()], result.done)
            store.catalogs.note(name, version if is_whole else None, after)
        return Synced(name, declared_answer(result, unchanged, dry_run=dry_run), left_out, kept)


def _accepted(
    manifest: Manifest, before: dict[str, Feed], others: dict[str, Feed]
) -> tuple[list[FeedSpec], list[ManifestProblem]]:
    """The entries that can be declared, and why the others cannot.

    Of entries with the same name none can: which is meant, nobody can tell.
    """
    left_out = list(manifest.problems)
    wrong = {one.name for one in left_out}
    accepted = []
    for one in manifest.feeds:
        name = one.spec.name
        what = _objection(one.spec, before.get(name), others.get(name))
        if what is not None:
            left_out.append(ManifestProblem(one.where, f"feed {name!r}: {what}", name))
        elif name not in wrong:
            accepted.append(one.spec)
    return accepted, left_out


def _objection(spec: FeedSpec, before: Feed | None, other: Feed | None) -> str | None:
    if spec.resume is not None:
        return "resume: is not for catalogs; `feedq feed cursor set` gives a feed a cursor"
    if other is not None:
        return of_others(other)
    # What is stored has been checked before.
    if before is not None and spec.completed(before.spec) == before.spec:
        return None
    return "; ".join(option_problems(spec)) or None


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


def _with_marks(changes: Sequence[Change], taken: Sequence[Feed], catalog: str) -> list[Change]:
    """The changes, with that of the catalog for each feed that is taken over."""
    found = {change.name: change for change in changes}
    for feed in taken:
        change = found.get(feed.name, Change(Action.CHANGE, "feed", feed.name, feed.spec))
        mark = OptionChange("catalog", ABSENT if feed.catalog is None else feed.catalog, catalog)
        found[feed.name] = replace(change, options=(*change.options, mark))
    return list(found.values())


def _state_after(before: Sequence[Feed], changed: Sequence[tuple[Change, Feed]]) -> str:
    """The state of the feeds that a sync left, as `CatalogStore.owned_state` would tell it if nobody else had
    changed one meanwhile: if somebody has, the next sync finds another, and compares."""
    generations = {feed.name: feed.generation for feed in (*before, *(feed for _, feed in changed))}
    for change, _ in changed:
        if change.action is Action.REMOVE:
            del generations[change.name]
    return f"{len(generations)}/{sum(generations.values())}"
