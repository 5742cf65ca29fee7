"""Workers: to list, show, cordon, drain and let serve again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedView, WorkerState, WorkerTarget, WorkerView
from feedq.core.roles import AccessRole
from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.verbs.details import masked_view
from feedq.verbs.registry import At, NameArgument, Page, verb
from feedq.verbs.wording import ID_SHOWN


class WorkerAction(StrEnum):
    """Actions on a worker."""

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


@verb("GET /workers", of_fleet=True)
def list_workers(at: At, *, gone: bool = False) -> Page[WorkerView]:
    """List workers by name; with ``gone``, also those whose sessions have ended."""
    return Page(at.store.workers.views(gone=gone))


@verb("GET /workers/{name}", of_fleet=True)
def show_worker(at: At, *, name: NameArgument) -> WorkerDocument:
    """Show one worker, by its name, the part of the name before the ``@``, its id, or the first characters of the
    id.
    """
    view = find_worker(at.store, name)
    return WorkerDocument(view, list(map(masked_view, at.store.feeds.views(worker=view.worker.name))))


@verb("POST /workers/{name}/act", role=AccessRole.OPERATOR, of_fleet=True)
def act_on_worker(at: At, *, name: NameArgument, action: WorkerAction, dry_run: bool = False) -> WorkerView:
    """Cordon or drain a worker, or let it take feeds again."""
    found, target = find_worker(at.store, name), _TARGETS[action]
    if dry_run:
        return found
    is_active = found.worker.state is WorkerState.ACTIVE
    if not (is_active and at.store.workers.set_target(found.worker.id, target)):
        raise Conflict(f"worker {found.worker.name!r} is stopping: it releases its feeds and takes no more")
    return replace(found, worker=replace(found.worker, target_state=target))


def find_worker(store: PostgresStore, name: str) -> WorkerView:
    """A live worker by its name, the part of it before the ``@``, its id, or the first eight or more characters of
    its id, as lists show them.

    Raises `NotFound`, `InvalidInput`.
    """
    live = store.workers.views()
    found = [v for v in live if v.worker.name == name] or [
        v for v in live if v.worker.name.partition("@")[0] == name
    ]
    if not found and len(name) >= ID_SHOWN:
        found = [v for v in live if str(v.worker.id).startswith(name.lower())]
    if not found:
        names = ", ".join(sorted(v.worker.name for v in live)) or "none"
        raise NotFound(f"no worker {name!r}; running are: {names}")
    if len(found) > 1:
        meant = ", ".join(f"{v.worker.name} ({v.worker.id})" for v in found)
        raise InvalidInput(f"{name!r} matches {len(found)} workers; give the whole name or the id: {meant}")
    return found[0]
