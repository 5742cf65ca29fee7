"""The buttons of the pages: which verb each asks for, with which arguments, and what is to be typed besides.

A button opens a dialog (`feedq.web.dialogs`), which says what will happen and takes a reason. Who may press it,
the verb judges (`feedq.verbs.registry.Verb.require`); pages show it beforehand. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec

from feedq.core.model import Concern, FeedView, TargetState, WorkerTarget, WorkerView
from feedq.core.schedule.model import ScheduleState
from feedq.core.selection import Selection
from feedq.verbs import backfills, cursors, declarations, feeds, landing, schedules, workers
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.diagnosis.feed_checks import MORE_LISTED
from feedq.verbs.registry import OF, Verb, query_of

RED: Final = "danger"


@dataclass(frozen=True, slots=True)
class Field:
    """An argument of the verb that a person types."""

    name: str
    label: str
    is_required: bool = True
    is_manifest: bool = False
    """Whether it is typed as YAML, in several lines."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The request that buttons of one kind make."""

    function: Callable[..., Any]
    title: str
    says: str
    """What will happen, in a sentence."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are the same for all of them."""
    fields: tuple[Field, ...] = ()
    tone: str = "secondary"

    @property
    def verb(self) -> Verb:
        return OF[self.function]


@dataclass(frozen=True, slots=True)
class Button:
    """A button: one of `ASKS` for something of its own."""

    kind: str
    of: str
    """What it is for. Unique among the buttons of this kind on a page, and the same when the page is rendered
    anew: focus returns to it."""
    arguments: Mapping[str, Any]
    """As a query string has them (`feedq.api.endpoint.arguments_in`)."""
    refused: str = ""
    """Why nobody can do it as things stand."""

    @property
    def ask(self) -> Ask:
        return ASKS[self.kind]

    @property
    def id(self) -> str:
        return f"feedq-{self.kind}-{quote(self.of, safe='')}"


def _feeds(action: str, says: str, **more: Any) -> Ask:
    return Ask(feeds.act_on_feeds, action.capitalize(), says, {"action": action}, **more)


def _worker(action: str, title: str, says: str) -> Ask:
    return Ask(workers.act_on_worker, title, says, {"action": action})


MOVE_TO: Final = Field("worker", "Target worker (if empty, placement chooses)", is_required=False)
UNTIL: Final = Field(
    "until", "Until (such as 2026-11-01T00:00:00Z; if empty, until it is resumed)", is_required=False
)
AFTER: Final = Field("begin", "Start after this cursor or time")
UP_TO: Final = Field("end", "Stop after this cursor (if empty, where the feed stands)", is_required=False)
BEGIN: Final = Field("begin", "From (such as 2026-11-01T00:00:00Z)")
END: Final = Field("end", "To (exclusive)")
ASKS: Final[Mapping[str, Ask]] = {
    "pause": _feeds("pause", "A paused feed keeps its cursor, and runs again when it is resumed."),
    "resume": _feeds("resume", "A resumed feed continues where it left off."),
    "restart": _feeds("restart", "Each feed restarts from its last checkpoint."),
    "move": _feeds(
        "move",
        "Each feed continues on another worker, after a short pause.",
        fields=(MOVE_TO,),
    ),
    "remove": _feeds("remove", "A removed feed stops and is forgotten; what it has landed stays.", tone=RED),
    "edit": Ask(
        declarations.declare,
        "Edit",
        "The feed restarts with this declaration, from its last checkpoint.",
        fields=(Field("manifest", "Its declaration, as in a manifest", is_manifest=True),),
    ),
    "rewind": Ask(
        cursors.change_cursor,
        "Rewind cursor",
        "The feed goes back by this many records and continues from there; it need not be paused.",
        {"change": "rewind"},
        (Field("records", "How many records"),),
    ),
    "reset": Ask(
        cursors.change_cursor,
        "Reset cursor",
        "The feed starts over from where it first began.",
        {"change": "reset"},
        tone=RED,
    ),
    "backfill": Ask(
        backfills.begin_backfill,
        "Backfill",
        "The records between two cursors land again, by key, while the feed keeps running.",
        fields=(AFTER, UP_TO),
    ),
    "cancel-backfill": Ask(
        backfills.cancel_backfill,
        "Cancel backfill",
        "The backfill ends. What it has landed stays; the feed keeps running.",
    ),
    "replay": Ask(
        landing.replay_dead_letters,
        "Replay refused records",
        "Each of them lands once; what is refused again stays.",
        {"all": "true"},
    ),
    "drop": Ask(
        landing.drop_dead_letters,
        "Drop refused records",
        "They are deleted for good.",
        {"all": "true"},
        tone=RED,
    ),
    "uncordon": _worker("uncordon", "Let it serve", "The worker takes feeds again."),
    "cordon": _worker("cordon", "Cordon", "The worker keeps its feeds and takes no others."),
    "drain": _worker(
        "drain", "Drain", "The worker hands its feeds over to other workers, and takes no new ones."
    ),
    "trigger": Ask(
        schedules.trigger_schedule, "Trigger", "The schedule runs once now, regardless of its timing."
    ),
    "pause-schedule": Ask(
        schedules.act_on_schedule,
        "Pause",
        "The schedule fires no more ticks until it is resumed.",
        {"action": "pause"},
        (UNTIL,),
    ),
    "resume-schedule": Ask(
        schedules.act_on_schedule, "Resume", "The schedule fires its ticks again.", {"action": "resume"}
    ),
    "backfill-schedule": Ask(
        schedules.backfill_schedule,
        "Backfill",
        "The schedule runs for each tick of this period that has no run yet.",
        fields=(BEGIN, END),
    ),
    "cancel-run": Ask(
        schedules.cancel_run,
        "Cancel run",
        "A waiting run is not started; a running one is asked to stop.",
        tone=RED,
    ),
}
"""What can be asked for, by the name that stands in the address of its dialog."""


def feed_buttons(view: FeedView) -> list[Button]:
    """The buttons of one feed."""
    is_paused = view.feed.spec.target_state is TargetState.PAUSED
    kinds = ("resume" if is_paused else "pause", "restart", "move", "remove")
    return [Button(kind, str(view.feed.id), {"names": view.feed.name}) for kind in kinds]


def page_buttons(view: FeedView, *, is_filling: bool) -> list[Button]:
    """All buttons of a feed's own page. A backfill has none: it follows its feed."""
    if view.feed.removed_at is not None or view.feed.backfill is not None:
        return []
    letters = ["replay", "drop"] if view.lease.dead_letters else []
    more = ["edit", "rewind", "reset", "cancel-backfill" if is_filling else "backfill", *letters]
    return feed_buttons(view) + [Button(kind, str(view.feed.id), {"name": view.feed.name}) for kind in more]


def worker_buttons(view: WorkerView) -> list[Button]:
    """The buttons of one worker."""
    kinds = {
        WorkerTarget.SERVING: ("cordon", "drain"),
        WorkerTarget.CORDONED: ("uncordon", "drain"),
        WorkerTarget.DRAINED: ("uncordon",),
    }[view.worker.target_state]
    of = str(view.worker.id)
    return [Button(kind, of, {"name": of}) for kind in kinds]


def schedule_buttons(row: schedules.ScheduleRow) -> list[Button]:
    """The buttons of one schedule."""
    turn = "resume-schedule" if row.state is ScheduleState.PAUSED else "pause-schedule"
    return [Button(kind, row.name, {"name": row.name}) for kind in ("trigger", turn, "backfill-schedule")]


def cancel_button(run_id: int) -> Button:
    """The button that ends a run which waits or runs."""
    return Button("cancel-run", str(run_id), {"id": run_id})


def problem_buttons(problem: Check) -> list[Button]:
    """The buttons that help against what is wrong with feeds."""
    kinds, arguments = ("restart", "pause"), chosen(problem.select) if problem.select else {}
    if problem.feed is not None:
        arguments = {"names": problem.feed}
        if problem.name == Concern.DEAD_LETTERS:
            kinds, arguments = ("replay", "drop"), {"name": problem.feed}
    elif problem.name in MORE_LISTED:
        return []
    of = f"{problem.name} {problem.feed or problem.tenant or ''}"
    return [Button(kind, of, arguments) for kind in kinds] if arguments else []


def chosen(select: Selection) -> dict[str, Any]:
    """A selection as arguments of a verb."""
    return query_of(msgspec.to_builtins(select))


def bulk_buttons(select: Selection, text: str, count: int) -> list[Button]:
    """The buttons for all feeds that a filter finds."""
    arguments = chosen(select)
    refused = ""
    if text:
        refused = "A text is found anywhere in a feed; filter by status, label, match or another key instead."
    elif select.is_empty:
        refused = "This would be all feeds; set a filter first."
    elif not count:
        refused = "No feed matches."
    kinds = ("pause", "resume", "restart", "move", "remove")
    return [Button(kind, "all", arguments, refused) for kind in kinds]
