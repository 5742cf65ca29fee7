"""The buttons of the pages: which verb each asks for, with which arguments, and what is to be typed besides; and
the dialog that each opens, which says what will happen and takes a reason.

What a dialog says is decided out of the verb's dry run and, at the end, its answer::

    opened ──► rehearsed, whenever something was typed ──► sent ──► done
                    ▲                                       │
                    └── what went wrong; what was typed stays ◄┘

Roles and tenants are the verb's: `Verb.call` judges a dry run as it judges the deed, and pages show beforehand who
may press a button (`feedq.verbs.registry.Verb.require`). Nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import quote

import msgspec

from feedq.api.endpoint import arguments_in, problem_of
from feedq.core.differences import ABSENT
from feedq.core.model import Concern, FeedView, TargetState, WorkerTarget, WorkerView
from feedq.core.schedule.model import Run, ScheduleState
from feedq.core.selection import Selection
from feedq.errors import Forbidden, InvalidInput, NotFound
from feedq.verbs import backfills, cursors, declarations, documents, feeds, fleet, landing, schedules
from feedq.verbs.diagnosis.checks import Check
from feedq.verbs.diagnosis.feed_checks import MORE_LISTED
from feedq.verbs.registry import OF, At, Problem, Verb, etag_of, query_of
from feedq.verbs.wording import as_json, counted, some, stamp

RED: Final = "danger"
DRY_RUN: Final = "dry_run"
MANIFEST: Final = "manifest"
KEPT: Final = ("key", "expected", "count")
"""Arguments that a dialog keeps from one answer to the next, unseen."""
OUTDATED: Final = 412


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
    return Ask(fleet.act_on_worker, title, says, {"action": action})


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
        refused = (
            "A text search is not precise enough for a change; filter by status, label, match or another key "
            "instead."
        )
    elif select.is_empty:
        refused = "This would be all feeds; set a filter first."
    elif not count:
        refused = "No feed matches."
    kinds = ("pause", "resume", "restart", "move", "remove")
    return [Button(kind, "all", arguments, refused) for kind in kinds]


# -- dialogs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dialog:
    """What is shown."""

    ask: Ask
    typed: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[str] = ()
    """What would happen, or what could not be done."""
    problem: Problem | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    """Values of hidden fields, see `KEPT`."""
    go: str = ""
    """What the button that does it says; empty when there is nothing more to do."""
    can_go: bool = True
    done: str = ""
    """What was done, once it is."""


def refused(ask: Ask, why: Exception) -> Dialog:
    """With why it is not done; whoever may do it at all may try again."""
    return Dialog(ask, problem=problem_of(why), go="" if isinstance(why, Forbidden | NotFound) else ask.title)


def opened(at: At, ask: Ask, query: str) -> Dialog:
    """As a press of the button shows it."""
    typed = {"key": token_urlsafe(12)} if "key" in ask.verb.arguments.__struct_fields__ else {}
    if not any(one.is_manifest for one in ask.fields):
        return rehearsed(at, ask, query, typed)
    try:
        feed = at.own_feed(_name_in(ask, query))
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is shown, and a bug is logged
        return refused(ask, error)
    manifest = documents.dump({"feeds": [feed.spec.plain()]})
    return rehearsed(at, ask, query, {MANIFEST: manifest, "expected": etag_of(feed.version)})


def rehearsed(at: At, ask: Ask, query: str, typed: Mapping[str, str], said: Problem | None = None) -> Dialog:
    """With what would happen; ``said`` is what went wrong before."""
    kept = {name: value for name, value in typed.items() if name in ("key", "expected")}
    if DRY_RUN not in ask.verb.arguments.__struct_fields__ or _missing(ask, typed):
        named = [str(name)] if (name := arguments_in(ask.verb, query).get("name")) else []
        return Dialog(ask, typed, named, said, kept, ask.title)
    try:
        # What it would do to what is there now, whatever has changed meanwhile.
        fresh = {name: value for name, value in typed.items() if name not in KEPT}
        found = _called(at, ask, query, {**fresh, DRY_RUN: "true"})
    except Exception as error:  # noqa: BLE001 -- as above
        # What somebody types into a field may mend it.
        return Dialog(ask, typed, problem=problem_of(error), kept=kept, go=ask.title, can_go=bool(ask.fields))
    go = ask.title
    if isinstance(found, feeds.Acted):
        kept["count"] = str(found.count)
        go = f"{ask.title} {found.count:,}"
    return Dialog(ask, typed, would(found), said, kept, go)


def sent(at: At, ask: Ask, query: str, typed: Mapping[str, str]) -> Dialog:
    """Done, or with what went wrong."""
    try:
        if missing := _missing(ask, typed):
            raise InvalidInput(f"fill in first: {missing[0]}")
        found = _called(at, ask, query, typed)
    except Exception as error:  # noqa: BLE001 -- as above
        problem = problem_of(error)
        if problem.status == OUTDATED:
            return rehearsed(at, ask, query, _up_to_date(at, ask, query, typed), problem)
        kept = {name: value for name, value in typed.items() if name in KEPT}
        return Dialog(ask, typed, problem=problem, kept=kept, go=ask.title)
    failed = failures(found)
    done = f"{ask.title}: done"
    if isinstance(found, feeds.Acted):
        done += f" to {len(found.done):,}"
    if failed:
        done += f", failed for {len(failed):,}"
    return Dialog(ask, typed, failed, done=done)


def _up_to_date(at: At, ask: Ask, query: str, typed: Mapping[str, str]) -> dict[str, str]:
    """The same for what is there now: the next try says first what would happen to it."""
    fresh = {name: value for name, value in typed.items() if name not in ("expected", "count")}
    if "expected" in typed:
        fresh["expected"] = etag_of(at.own_feed(_name_in(ask, query)).version)
    return fresh


def _name_in(ask: Ask, query: str) -> str:
    return str(arguments_in(ask.verb, query).get("name"))


def _missing(ask: Ask, typed: Mapping[str, str]) -> list[str]:
    return [one.label for one in ask.fields if one.is_required and not typed.get(one.name, "").strip()]


def _called(at: At, ask: Ask, query: str, typed: Mapping[str, str]) -> Any:
    """Raises what the verb raises, and `InvalidInput`."""
    verb = ask.verb
    known = {*(one.name for one in ask.fields), *KEPT, DRY_RUN}
    given: dict[str, Any] = {
        name: value.strip() for name, value in typed.items() if name in known and value.strip()
    }
    given |= arguments_in(verb, query) | dict(ask.given)
    if MANIFEST in given:
        given["feeds"] = [declared_in(given.pop(MANIFEST), str(given.pop("name")))]
    return verb.call(at, verb.parse(given))


def declared_in(manifest: str, name: str) -> Mapping[str, Any]:
    """Return the one feed of a manifest that somebody has typed. Raises `InvalidInput`, naming the line."""
    try:
        found = [document.value for document in documents.read(manifest)]
    except documents.DocumentError as error:
        where = "" if error.line is None else f"line {error.line}: "
        raise InvalidInput(f"{where}{error}") from None
    lists = [one.get("feeds") for one in found if isinstance(one, dict)]
    entries = [entry for one in lists if isinstance(one, list) for entry in one]
    if len(entries) != 1 or not isinstance(entries[0], Mapping):
        raise InvalidInput("this must be one feed: leave `feeds:` and the dash before `name:` as they are")
    if entries[0].get("name") != name:
        raise InvalidInput(f"name: must stay {name!r}; declare a feed of another name with `feedq apply`")
    return entries[0]


# -- words -----------------------------------------------------------------------------------------------


def would(found: Any) -> list[str]:
    """What a dry run says, in sentences."""
    match found:
        case feeds.Acted():
            names = some([one.name for one in found.done], of=found.count)
            return [f"{counted(found.count, 'feed')}: {names}"] if found.count else ["No feed matches."]
        case WorkerView():
            return [f"{found.worker.name} has {counted(found.leases, 'feed')}."]
        case Run():
            return [f"{found.schedule}, {stamp(found.tick_at)}, is {found.state}."]
        case schedules.PastTicks():
            return [f"{counted(found.made, 'run')} for {counted(found.ticks, 'tick')}."]
        case cursors.CursorChange():
            change = found.change
            twice = "Its sink has no key, so records that the source sends again will be duplicated."
            to = "the beginning" if change.after is None else as_json(change.after)
            said = [f"From {as_json(change.before)} to {to}."]
            return [*said, twice] if change.duplicates else said
        case backfills.BackfillDocument():
            return [f"After {as_json(found.begins_after)} up to {as_json(found.ends_at)}."]
        case landing.Replayed():
            return [f"{counted(found.landed, 'record')}."]
        case landing.Dropped():
            return [f"{counted(found.dropped, 'record')}."]
        case declarations.Declared():
            options = [option for change in found.changes for option in change.options]
            said = [f"{one.option}: {_value(one.before)} → {_value(one.after)}" for one in options]
            notes = [change.note for change in found.changes if change.note]
            return [*said, *notes] or ["It is unchanged."]
    return []


def _value(value: Any) -> str:
    """Numbers as they are typed, and what is not given by a word."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ABSENT if value == ABSENT else as_json(value)


def failures(found: Any) -> list[str]:
    """What could not be done, one sentence each."""
    match found:
        case feeds.Acted():
            return [f"{one.name}: {one.detail}" for one in found.failed]
        case declarations.Declared():
            return [f"{change.name}: {change.detail}" for change in found.changes if change.error]
        case landing.Replayed():
            return [f"{number}: {why}" for number, why in found.refused.items()]
    return []
