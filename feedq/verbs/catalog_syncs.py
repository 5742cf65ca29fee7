"""Catalogs of feeds that live elsewhere: to list them, and to make feeds as they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from feedq.core.roles import AccessRole
from feedq.verbs.catalogs.base import open_catalog
from feedq.verbs.catalogs.syncing import SkippedEntry, sync
from feedq.verbs.declarations import ChangeDocument, change_document
from feedq.verbs.manifest.changes import Action
from feedq.verbs.registry import At, NameArgument, Page, verb


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
    taken_over: int
    """Feeds that others had declared."""
    is_same: bool
    """Whether neither the catalog nor one of its feeds has changed since the last sync."""
    left_out: Sequence[SkippedEntry]
    complaint: str
    """What people should look at, in one line; empty if all is as the catalog says."""
    changes: Sequence[ChangeDocument]
    dry_run: bool


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

    @contextmanager
    def progress(total: int) -> Iterator[Callable[[int], object]]:
        yield lambda done: at.told(done, total)

    made = sync(
        at.store.catalogs,
        open_catalog(name, at.settings),
        dry_run=dry_run,
        remove_up_to=remove_up_to,
        take_over=take_over,
        progress=progress,
    )
    return Synced(
        name=made.catalog,
        added=len(made.of(Action.ADD)),
        changed=len(made.of(Action.CHANGE)),
        removed=len(made.of(Action.REMOVE)),
        unchanged=made.unchanged,
        kept=made.kept,
        taken_over=made.taken_over,
        is_same=made.is_same,
        left_out=made.left_out,
        complaint=made.complaint,
        changes=list(map(change_document, made.changes)),
        dry_run=dry_run,
    )
