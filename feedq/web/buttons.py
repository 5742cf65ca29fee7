"""Buttons that change something through ``/api/v1``: what each asks for, and why somebody may not press it.

``static/feedq_actions.js`` opens a dialog for each, which says what will happen, takes a reason and asks the API;
that judges by itself who may do what. Here a button is only shown as it will be judged. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from feedq.api.changing import etag_of
from feedq.control.store.feed_listing import Query
from feedq.core.lease import stillness_of
from feedq.core.model import FeedView, TargetState, WorkerTarget, WorkerView
from feedq.core.roles import AccessRole, Caller
from feedq.errors import Forbidden
from feedq.verbs.documents import dump
from feedq.verbs.manifest.feed_entry import plain_feed
from feedq.verbs.report.fleet_data import FleetData
from feedq.verbs.wording import as_json


@dataclass(frozen=True, slots=True)
class PageActionField:
    """Something that has to be typed before: a key of the body."""

    name: str
    label: str
    is_required: bool = True
    text: str | None = None
    """What it begins as, of a field of several lines: the whole body, as a manifest."""


@dataclass(frozen=True, slots=True)
class PageAction:
    """A button."""

    id: str
    """Unique on the page, and the same when the page is rendered anew: focus returns to it."""
    title: str
    path: str
    """Below ``/api/v1/``, percent-encoded."""
    says: str
    """What will happen, in a sentence."""
    method: str = "POST"
    etag: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[PageActionField, ...] = ()
    tone: str = "outline-secondary"
    has_dry_run: bool = True
    needs_everything: bool = False
    """Whether it belongs to no tenant."""
    tenant: str | None = None
    """Whose it is; None: whatever the caller may choose."""
    refused: str = ""
    """Why nobody can do it as things stand."""

    @property
    def attributes(self) -> dict[str, str]:
        """What the script reads."""
        fields = [
            {"name": f.name, "label": f.label, "required": f.is_required, "text": f.text} for f in self.fields
        ]
        return {
            "action": self.path,
            "method": self.method,
            "says": self.says,
            "etag": self.etag,
            "body": as_json(self.body),
            "fields": as_json(fields),
            "dry-run": "yes" if self.has_dry_run else "no",
        }

    def why_refused(self, caller: Caller) -> str:
        """Say why this caller may not; empty when they may."""
        if self.refused:
            return self.refused
        try:
            caller.require(AccessRole.OPERATOR)
            if self.needs_everything:
                caller.require_everything()
            if self.tenant is not None:
                caller.require_tenant(self.tenant, "this")
        except Forbidden as error:
            return str(error)
        return ""


MOVE_TO = PageActionField("worker", "To which worker (its name, or the part before the @)")
RECORDS = PageActionField("records", "How many records")
FROM = PageActionField("from", "After which cursor")
TO = PageActionField("to", "Up to which (where the feed stands, if left empty)", is_required=False)
RED = "outline-danger"


def _of_feed(view: FeedView, below: str, title: str, says: str, *, id_: str = "", **more: Any) -> PageAction:
    """A button of one feed; ``below`` is what it asks for, below the feed's address."""
    where = f"feedq-{id_ or below.replace('/', '-')}-{view.feed.id}"
    path = "/".join(filter(None, ("feeds", quote(view.feed.name, safe=""), below)))
    return PageAction(where, title, path, says, tenant=view.feed.spec.tenant, **more)


def feed_actions(view: FeedView) -> list[PageAction]:
    """The buttons of one feed."""
    name, etag = view.feed.name, etag_of(view.feed.version)
    act = partial(_of_feed, view, etag=etag)
    again = act("resume", "Resume", f"{name} runs again from where it left off.")
    stop = act("pause", "Pause", f"{name} stops, keeps its place, and runs again when it is resumed.")
    gone = f"{name} stops and is forgotten; what it has landed stays."
    return [
        again if view.feed.spec.target_state is TargetState.PAUSED else stop,
        act("restart", "Restart", f"{name} is stopped and started anew from its last checkpoint."),
        act("move", "Move", f"Another worker gets {name}; it stands still for a moment.", fields=(MOVE_TO,)),
        act("", "Remove", gone, id_="remove", method="DELETE", tone=RED),
    ]


def edit_action(view: FeedView) -> PageAction:
    """The button that changes a feed's declaration."""
    manifest = dump({"feeds": [plain_feed(view.feed.spec)]})
    says = f"{view.feed.name} becomes what you write, and goes on with it from its last checkpoint."
    typed = (PageActionField("manifest", "Its declaration, as in a manifest", text=manifest),)
    etag = etag_of(view.feed.version)
    return _of_feed(view, "", "Edit", says, id_="edit", method="PUT", etag=etag, fields=typed)


def cursor_actions(view: FeedView) -> list[PageAction]:
    """The buttons of a feed's cursor."""
    name = view.feed.name
    back = f"{name} goes back by so many records while it runs."
    begin = f"{name} goes back to where it began at first."
    return [
        _of_feed(view, "cursor/rewind", "Rewind cursor", back, fields=(RECORDS,)),
        _of_feed(view, "cursor/reset", "Reset cursor", begin, tone=RED),
    ]


def backfill_actions(view: FeedView, *, is_running: bool) -> list[PageAction]:
    """The button for a feed's backfill: to begin one, or to end the one that is under way."""
    name = view.feed.name
    if is_running:
        says = f"The backfill of {name} ends. What it has landed stays; {name} goes on."
        return [_of_feed(view, "backfill/cancel", "Cancel backfill", says)]
    says = (
        f"What lies between two cursors lands again by key, beside the live stream of {name}, which goes on."
    )
    return [_of_feed(view, "backfill", "Backfill", says, fields=(FROM, TO))]


def dead_letter_actions(view: FeedView) -> list[PageAction]:
    """The buttons for all refused records of a feed."""
    act = partial(_of_feed, view, body={"all": True})
    land = "They are landed after all, each once; what is refused again stays."
    return [
        act("dead-letters/replay", "Replay refused records", land, id_="replay"),
        act("dead-letters/drop", "Drop refused records", "They are deleted for good.", id_="drop", tone=RED),
    ]


def worker_actions(view: WorkerView) -> list[PageAction]:
    """The buttons of one worker."""
    worker, feeds = view.worker, f"{view.leases:,} feed{'' if view.leases == 1 else 's'}"

    def act(verb: str, title: str, says: str) -> PageAction:
        path = f"workers/{worker.id}/{verb}"
        return PageAction(f"feedq-{verb}-{worker.id}", title, path, says, needs_everything=True)

    uncordon = act("uncordon", "Let it serve", f"{worker.name} is given feeds again.")
    cordon = act("cordon", "Cordon", f"{worker.name} keeps its {feeds} and is given no others.")
    drain = act(
        "drain", "Drain", f"{worker.name} hands its {feeds} over to the other workers, and gets none."
    )
    return {
        WorkerTarget.SERVING: [cordon, drain],
        WorkerTarget.CORDONED: [uncordon, drain],
        WorkerTarget.DRAINED: [uncordon],
    }[worker.target_state]


UNTIL = PageActionField(
    "until", "Until when (such as 2026-11-01T00:00:00Z; for good, if left empty)", is_required=False
)


def schedule_actions(name: str, *, is_paused: bool) -> list[PageAction]:
    """The buttons of one schedule."""

    def act(verb: str, title: str, says: str, **more: Any) -> PageAction:
        path = f"schedules/{quote(name, safe='')}/{verb}"
        where = f"feedq-{verb}-{quote(name, safe='')}"
        return PageAction(where, title, path, says, needs_everything=True, **more)

    return [
        act("trigger", "Trigger", f"{name} runs once now, whatever its ticks.", has_dry_run=False),
        act("resume", "Resume", f"{name} fires its ticks again.")
        if is_paused
        else act("pause", "Pause", f"{name} fires no more ticks until it is resumed.", fields=(UNTIL,)),
        act(
            "backfill",
            "Backfill",
            f"{name} runs for each tick of a time in the past that has no run yet.",
            fields=(
                PageActionField("from", "From (such as 2026-11-01T00:00:00Z)"),
                PageActionField("to", "To, and not including"),
            ),
        ),
    ]


def cancel_action(run_id: int) -> PageAction:
    """The button that ends a run which waits or runs."""
    says = "A run that waits is not begun; one that runs is told to end."
    path = f"runs/{run_id}/cancel"
    return PageAction(
        f"feedq-cancel-{run_id}", "Cancel run", path, says, tone="outline-danger", needs_everything=True
    )


def remedies(problem: str, data: FleetData) -> list[PageAction]:
    """The buttons that help against what a check of the whole fleet has found."""
    workers = data.workers
    match problem:
        case "loops":
            found = [act for view in workers if stillness_of(view) for act in worker_actions(view)]
        case "sinks of workers":
            found = [act for view in workers if view.worker.load.sinks_down for act in worker_actions(view)]
        case "workers" | "capacity" | "schedules":
            aside = [v for v in workers if v.worker.target_state is not WorkerTarget.SERVING]
            found = [worker_actions(view)[0] for view in aside]
        case "paused":
            found = [act for name in data.jobs.tripped for act in schedule_actions(name, is_paused=True)[:2]]
        case _:
            found = []
    return found[:REMEDIES_MAX]


REMEDIES_MAX = 8
"""Buttons of one problem: whoever has more of a kind does it with a command."""
BULK = {
    "pause": ("Pause", "They stop, keep their places, and run again when they are resumed."),
    "resume": ("Resume", "They run again from where they left off."),
    "restart": ("Restart", "They are stopped and started anew, each from its last checkpoint."),
    "move": ("Move", "Others get them; each stands still for a moment. Left empty, placement chooses."),
    "remove": ("Remove", "They stop and are forgotten; what they have landed stays."),
}


def bulk_actions(query: Query, count: int) -> list[PageAction]:
    """The buttons for all feeds that a filter finds."""
    chosen = query.selection
    selection = {
        "tenant": chosen.tenant,
        "labels": dict(chosen.labels),
        "worker": chosen.worker,
        "statuses": [query.status] if query.status else [],
        "connector": chosen.connector,
        "match": chosen.match,
        "failing": chosen.failing,
    }
    refused = ""
    if query.search:
        refused = "A text may be found anywhere in a feed; choose by status, label, match or another filter."
    elif not any(selection.values()):
        refused = "This would be all feeds; choose some by a filter first."
    elif not count:
        refused = "No feed matches."
    return [
        PageAction(
            f"feedq-bulk-{verb}",
            title,
            "bulk/feeds",
            says,
            body={"verb": verb, "selection": selection},
            fields=(PageActionField("worker", MOVE_TO.label, is_required=False),) if verb == "move" else (),
            tone=RED if verb == "remove" else "outline-secondary",
            tenant=chosen.tenant,
            refused=refused,
        )
        for verb, (title, says) in BULK.items()
    ]
