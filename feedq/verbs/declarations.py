"""Declarations of feeds, schedules and queues: to make everything as declared, and to print what is declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from msgspec import Meta

from feedq.core.model import Feed, Version, require_version
from feedq.core.roles import AccessRole
from feedq.core.schedule.entries import QueueEntry, ScheduleEntry, plain_schedule
from feedq.core.schedule.model import Beat, Queue, ScheduleSpec
from feedq.core.selection import Selection
from feedq.errors import FeedqError, InvalidInput, Outdated
from feedq.verbs import bulk, declaring
from feedq.verbs.adoption import resumes_of
from feedq.verbs.declaring import begun
from feedq.verbs.manifest.changes import (
    Action,
    Change,
    DeclarationChanges,
    OptionChange,
    plan,
    plan_queues,
    plan_schedules,
)
from feedq.verbs.manifest.feed_entry import FeedEntry, plain_feed, validate
from feedq.verbs.registry import At, Cursor, Expected, Limit, NameArgument, Page, page_of, page_place, verb, version_of
from feedq.verbs.report.masking import masked

DECLARED_MAX: Final = 20_000
"""Declarations of one call."""
PAGE_MAX: Final = 1_000
"""Feeds that are read together."""

Many = Meta(max_length=DECLARED_MAX)


@dataclass(frozen=True, slots=True)
class ChangeDocument:
    """A feed, schedule or queue that is not as declared."""

    kind: str
    name: str
    action: Action
    options: Sequence[OptionChange] = ()
    """What differs; secrets are masked."""
    note: str | None = None
    """What else to know about it."""
    error: str | None = None
    """Why it could not be changed: the class of the error, and what it says."""
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What was changed so that everything is as declared, or would be."""

    changes: Sequence[ChangeDocument]
    unchanged: int
    unasked: Sequence[str] = ()
    """Why sinks could not be asked whether they know the new feeds."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Removals:
    """What to remove, by name."""

    feeds: Annotated[tuple[NameArgument, ...], Many] = ()
    schedules: Annotated[tuple[NameArgument, ...], Many] = ()
    queues: Annotated[tuple[NameArgument, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class _Planned:
    """What each kind of declaration asks for."""

    feeds: DeclarationChanges = DeclarationChanges()
    schedules: DeclarationChanges = DeclarationChanges()
    queues: DeclarationChanges = DeclarationChanges()

    @property
    def unchanged(self) -> int:
        return self.feeds.unchanged + self.schedules.unchanged + self.queues.unchanged


NOTHING: Final = Removals()


@verb("POST /declarations", role=AccessRole.OPERATOR)
def declare(
    at: At,
    *,
    feeds: Annotated[tuple[FeedEntry, ...], Many] | None = None,
    schedules: Annotated[tuple[ScheduleEntry, ...], Many] | None = None,
    queues: Annotated[tuple[QueueEntry, ...], Many] | None = None,
    remove: Removals = NOTHING,
    prune: bool = False,
    tenant: NameArgument | None = None,
    adopt: bool = False,
    expected: Expected = None,
    dry_run: bool = False,
) -> Declared:
    """Make feeds, schedules and queues as they are declared.

    What is there already is changed, what is not is added, and what is as declared is left alone. All declarations
    are checked first; if one is wrong, nothing is changed. ``prune`` also removes what is not declared, of each kind
    that is given, or only feeds of one ``tenant``. With ``adopt``, new feeds go on from the checkpoints that feeds of
    their names have left in their sinks. ``expected`` is for a single declaration of something that is there.
    """
    if tenant is not None and not prune:
        raise InvalidInput("tenant: limits prune, and means nothing without it")
    if schedules is not None or queues is not None or remove.schedules or remove.queues:
        at.caller.require_everything()
    planned = _Planned(
        _feeds_planned(at, feeds, remove.feeds, prune=prune, tenant=tenant),
        _schedules_planned(at, schedules, remove.schedules, prune=prune and tenant is None),
        _queues_planned(at, queues, remove.queues, prune=prune and tenant is None),
    )
    if expected is not None:
        _require_expected(at, planned, version_of(expected))
    resumes = {entry.name: entry.resume for entry in feeds or () if entry.resume is not None}
    found = begun(planned.feeds.changes, resumes, at.open_sink, adopt=adopt)
    planned = replace(planned, feeds=replace(planned.feeds, changes=tuple(found.changes)))
    if dry_run:
        changes = [*planned.feeds.changes, *planned.queues.changes, *planned.schedules.changes]
        return Declared(list(map(_document, changes)), planned.unchanged, found.unasked, dry_run=True)
    return Declared(_carried_out(at, planned, found), planned.unchanged, found.unasked)
