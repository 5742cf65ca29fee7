"""Workers: to list, show, cordon, drain and let serve again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from feedq.core.model import FeedView, WorkerTarget, WorkerView
from feedq.core.roles import AccessRole
from feedq.verbs import actions
from feedq.verbs.diagnosis.waiting_checks import explain_staying
from feedq.verbs.registry import At, NameArgument, Page, verb
from feedq.verbs.report.masking import masked_view


class WorkerAction(StrEnum):
    """What can be done to a worker."""

    CORDON = "cordon"
    """It keeps its feeds and is given no more."""
    DRAIN = "drain"
    """It hands its feeds over to other workers and is given no more."""
    UNCORDON = "uncordon"
    """It is given feeds again."""


_TARGETS = {
    WorkerAction.CORDON: WorkerTarget.CORDONED,
    WorkerAction.DRAIN: WorkerTarget.DRAINED,
    WorkerAction.UNCORDON: WorkerTarget.SERVING,
}


@dataclass(frozen=True, slots=True)
class WorkerDocument:
    """Everything about a worker."""

    view: WorkerView
    held: Sequence[FeedView]
    """Its feeds and backfills."""
    obstacle: str | None
    """Why its feeds cannot go elsewhere, if something is in the way."""


@verb("GET /workers", of_fleet=True)
def list_workers(at: At, *, gone: bool = False) -> Page[WorkerView]:
    """Workers by name; with ``gone`` also those whose sessions have ended."""
    return Page(at.store.workers.views(gone=gone))


@verb("GET /workers/{name}", of_fleet=True)
def show_worker(at: At, *, name: NameArgument) -> WorkerDocument:
    """One worker, by its name, the part of it before the ``@``, its id, or the beginning of that."""
    view = actions.find_worker(at.store, name)
    theirs = at.store.feeds.views(worker=view.worker.name)
    held = [masked_view(feed) for feed in theirs if feed.lease.worker_id == view.worker.id]
    others = [one for one in at.store.workers.views() if one.worker.id != view.worker.id]
    return WorkerDocument(view, held, explain_staying(held, others, rules=at.settings.rules))


@verb("POST /workers/{name}/act", role=AccessRole.OPERATOR, of_fleet=True)
def act_on_worker(at: At, *, name: NameArgument, action: WorkerAction, dry_run: bool = False) -> WorkerView:
    """Cordon or drain a worker, or let it serve again."""
    if dry_run:
        return actions.find_worker(at.store, name)
    return actions.set_worker_target(at.store, name, _TARGETS[action])
