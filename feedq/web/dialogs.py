"""What the dialog of a button says, decided out of the verb's dry run and, at the end, its answer.

::

    opened ──► rehearsed, whenever something was typed ──► sent ──► done
                    ▲                                       │
                    └── what went wrong; what was typed stays ◄┘

Roles and tenants are the verb's: `Verb.call` judges a dry run as it judges the deed. Nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any, Final

from feedq.api.endpoint import Problem, arguments_in, problem_of
from feedq.core.differences import ABSENT
from feedq.core.model import WorkerView
from feedq.core.schedule.model import Run
from feedq.errors import Forbidden, InvalidInput, NotFound
from feedq.verbs import backfills, cursors, declarations, documents, feeds, landing, schedules
from feedq.verbs.registry import At, etag_of
from feedq.verbs.wording import as_json, counted, some, stamp
from feedq.web.buttons import Ask

DRY_RUN: Final = "dry_run"
MANIFEST: Final = "manifest"
KEPT: Final = ("key", "expected", "count")
"""Arguments that a dialog keeps from one answer to the next, unseen."""
OUTDATED: Final = 412


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
