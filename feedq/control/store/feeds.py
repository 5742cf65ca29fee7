"""Desired state: the verbs people use on feeds and their backfills, each one transaction that also writes history.

A backfill is a feed of its own, with a lease, a place and a checkpoint of its own, so that whatever is proven of
feeds is proven of it. It begins with the declaration of its parent; from then on the trigger
``feedq.follow_parent`` carries over what becomes of that. It ends in one of three ways, each one transaction
that also tells its parent's history: a pass finds it released as finished, a person cancels it, or its parent is
removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from feedq.control.store.database import (
    Aggregate,
    Connection,
    in_statement,
    in_transaction,
    storable_json,
)
from feedq.control.store.feed_rows import (
    STATUS_VIEW,
    declared_columns,
    read_feeds,
    read_views,
)
from feedq.control.store.history import told_of
from feedq.control.store.leases import brief_cursor
from feedq.control.store.protocol import call, document
from feedq.core.authorship import not_own, own_tenant
from feedq.core.differences import OptionChange, difference
from feedq.core.model import (
    ChangedCursor,
    Feed,
    FeedBackfill,
    FeedSpec,
    FeedView,
    TargetState,
    Version,
    known_as,
    outdated,
)
from feedq.core.remedies import command
from feedq.errors import Conflict, FeedqError, NotFound
from feedq.telemetry.event_names import EventKind

CHANGES_KEPT = 20
"""Options of one edit that history keeps: a declaration has fewer, unless somebody makes all of them anew."""


@dataclass(frozen=True, slots=True)
class FeedChange:
    """The change requested for one feed."""

    kind: EventKind
    """What history calls it: a feed is added, edited, paused, resumed, restarted or removed."""
    name: str
    spec: FeedSpec | None = None
    """The declaration of a feed that is added or edited, complete."""
    expected: Version | None = None
    """The version that the change was decided for; None for any."""
    catalog: str | None = None
    """The catalog that wants it, and that may change nothing but its own feeds."""
    takes_over: bool = False
    """Whether an edit makes the feed one of the catalog's, whoever has declared it."""
    options: Sequence[OptionChange] = ()
    """What an edit changes, for history."""

    def declared(self) -> dict[str, Any]:
        """Write a feed that is added or edited as the database is given it."""
        assert self.spec is not None
        id_, generation = self.expected or (None, None)
        keys = {"id": id_, "generation": generation, "takes_over": self.takes_over, "detail": self.told()}
        return declared_columns(self.spec) | keys

    def told(self) -> dict[str, Any]:
        """What history keeps of an edit."""
        if self.kind is not EventKind.FEED_EDITED:
            return {}
        changes = {
            one.option: [brief_cursor(one.before), brief_cursor(one.after)]
            for one in self.options[:CHANGES_KEPT]
        }
        return {
            "changed": list(dict.fromkeys(one.option.partition(".")[0] for one in self.options)),
            "changes": changes,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a change of one feed."""

    name: str
    id: int | None = None
    generation: int | None = None
    """As it is after the change."""
    refusal: str | None = None
    """Why it was left as it was, in one word."""
    catalog: str | None = None
    """The catalog that it was made from until then."""
    reason: str | None = None
    """The reason of its lease, if that is what stands against it."""

    def version(self) -> Version:
        assert self.id is not None
        assert self.generation is not None
        return self.id, self.generation

    def check(self, expected: Version | None = None) -> None:
        """Raises what `error` says."""
        if (error := self.error(expected)) is not None:
            raise error

    def error(self, expected: Version | None = None) -> FeedqError | None:
        """Why the feed was left as it was: `NotFound`, `Conflict`, `Outdated`, or `Forbidden` when it is not the
        author's to change. None if it was not."""
        what = f"feed {self.name!r}"
        match self.refusal:
            case None:
                return None
            case "missing":
                return no_feed(self.name)
            case "foreign":
                return not_own(what)
            case "outdated":
                return outdated(what, (self.id or 0, self.generation or 0), expected or (0, 0))
            case "backfill":
                of = known_as(self.name)
                return Conflict(
                    f"{self.name!r} is the backfill of feed {of!r} and follows it; "
                    f"`{command('feed', 'backfill', 'cancel', of)}` ends it"
                )
            case "taken":
                return Conflict(f"{what} exists already; `feedq feed set` changes it")
            case "catalog":
                return Conflict(f"{what} {of_others(self.catalog)}")
            case refusal:
                return Conflict(f"{what} {_REFUSALS[refusal].format(self.reason)}")


_REFUSALS = {
    "unleased": "has no lease at the moment; the next sweep makes one",
    "paused": "is paused: resume it, then move it",
    "failed": "has failed: edit or restart it, then move it",
    "stopping": "is being stopped ({}): try again in a moment",
}
"""Why a feed cannot be moved as it is."""


class Feeds(Aggregate):
    """Desired state. What each change promises stands in `feedq/control/sql/feeds.sql`."""

    @in_transaction
    def change(self, c: Connection, changes: Sequence[FeedChange]) -> list[Version | FeedqError]:
        """Change some hundred feeds, each once, in one transaction; their rows stay locked until it ends.

        Answers each change with the version of the feed as it is then, or with why it was left as it was, as
        `Outcome.error` says: one feed keeps no other from being changed.
        """
        outcomes = {
            (kind, one.name): one
            for (kind, catalog), some in _alike(changes).items()
            for one in _change(c, kind, catalog, some)
        }
        found = [(outcomes[one.kind, one.name], one.expected) for one in changes]
        return [outcome.error(expected) or outcome.version() for outcome, expected in found]

    def _one(self, change: FeedChange) -> Feed:
        made(self.change([change])[0])
        return self.get(change.name)

    def add(self, spec: FeedSpec) -> Feed:
        """Declare a feed. Raises `Conflict` when a feed of that name exists."""
        return self._one(FeedChange(EventKind.FEED_ADDED, spec.name, spec.completed(None)))

    def edit(self, spec: FeedSpec) -> Feed:
        """Replace the declaration. One that is as it was keeps its generation. Raises as `Outcome.error`, and so
        do the methods below."""
        before = self.get(spec.name)
        after = spec.completed(before.spec)
        options = difference(before.spec, after)
        edit = FeedChange(EventKind.FEED_EDITED, spec.name, after, before.version, options=options)
        return self._one(edit)

    def set_target(self, name: str, target: TargetState) -> Feed:
        is_paused = target is TargetState.PAUSED
        return self._one(FeedChange(EventKind.FEED_PAUSED if is_paused else EventKind.FEED_RESUMED, name))

    def restart(self, name: str) -> Feed:
        """Bump the generation without a change: the stream stops and starts anew, failures are forgotten."""
        return self._one(FeedChange(EventKind.FEED_RESTARTED, name))

    def remove(self, name: str) -> Feed:
        """Mark as removed; the feed's rows go once nobody streams it."""
        return self._one(FeedChange(EventKind.FEED_REMOVED, name))

    @in_statement
    def cursor_changed(self, c: Connection, name: str, change: ChangedCursor) -> None:
        """Record that a person changes the cursor in the sink, and restart the feed; called right before the sink
        commits."""
        # Whole, and as texts: jsonb would change some, and a person may set the old one again.
        cursors = {"before": storable_json(change.before), "after": storable_json(change.after)}
        told, cursor = told_of({"verb": change.verb, **cursors}), storable_json(change.after)
        answer = call(
            c, "change_cursor", list[Outcome], named=name, cursor=cursor, of_tenant=own_tenant(), told=told
        )
        answer[0].check()

    @in_statement
    def move(
        self, c: Connection, targets: Sequence[tuple[str, UUID]], *, stop_within_s: float
    ) -> list[FeedqError | None]:
        """Promise each of some hundred feeds to its worker, and ask their owners to release them within this time.

        Answers each with why it cannot be moved as it is, if it cannot. One that is there already stays as it is.
        """
        outcomes = call(
            c,
            "move_feeds",
            list[Outcome],
            names=[name for name, _ in targets],
            targets=[target for _, target in targets],
            of_tenant=own_tenant(),
            stop_within_s=stop_within_s,
            told=told_of({}),
        )
        errors = {one.name: None if one.refusal == "there" else one.error() for one in outcomes}
        return [errors[name] for name, _ in targets]

    @in_statement
    def tell(
        self, c: Connection, name: str, kind: EventKind, detail: Mapping[str, Any], *, before: Version
    ) -> None:
        """Write down what somebody is about to do to the feed elsewhere, in its sink say, which has to be of this
        version, and theirs to change."""
        (outcome,) = _act(c, kind, None, [FeedChange(kind, name, expected=before)], detail)
        outcome.check(before)

    @in_statement
    def dead_letters_gone(
        self,
        c: Connection,
        name: str,
        kind: EventKind,
        detail: Mapping[str, int],
        *,
        gone: int,
        are_left: bool,
    ) -> None:
        """Write down that so many dead letters of a feed were replayed or dropped, and whether there are
        others. Raises `NotFound`."""
        told = told_of(detail) if any(detail.values()) else None
        asked = {"named": name, "what": kind.value, "gone": gone, "are_left": are_left, "told": told}
        if not call(c, "dead_letters_gone", bool, **asked):
            raise no_feed(name)

    def get(self, name: str) -> Feed:
        return self.view(name).feed

    @in_statement
    def view(self, c: Connection, name: str) -> FeedView:
        which = "WHERE name = %(name)s ORDER BY removed_at DESC NULLS FIRST LIMIT 1"
        found = read_views(c, STATUS_VIEW, which, {"name": name})
        if not found:
            raise no_feed(name)
        return found[0]

    # No transaction: to read a hundred thousand of them takes longer than one may rest.
    @in_statement
    def views(self, c: Connection, *, worker: str | None = None) -> list[FeedView]:
        """Return all feeds by name, the ones being removed included."""
        which = """
            -- What a worker has is all that it has; elsewhere a backfill is shown with its feed.
            WHERE CASE WHEN CAST(%(worker)s AS text) IS NULL THEN parent IS NULL ELSE worker = %(worker)s END
            ORDER BY name, id
        """
        return read_views(c, STATUS_VIEW, which, {"worker": worker})

    @in_statement
    def declared(
        self,
        c: Connection,
        *,
        names: Collection[str] | None = None,
        tenant: str | None = None,
        catalog: str | None = None,
    ) -> list[Feed]:
        """Feeds by name, without backfills and those being removed: all of them, or those of these names, of a
        tenant, or of a catalog."""
        which = """
            WHERE removed_at IS NULL AND parent IS NULL
                AND (CAST(%(names)s AS text[]) IS NULL OR name = ANY(CAST(%(names)s AS text[])))
                AND (CAST(%(tenant)s AS text) IS NULL OR tenant = %(tenant)s)
                AND (CAST(%(catalog)s AS text) IS NULL OR catalog = %(catalog)s)
            ORDER BY name
        """
        given = {"names": None if names is None else list(names), "tenant": tenant, "catalog": catalog}
        return read_feeds(c, which, given)


def made(outcome: Version | FeedqError) -> None:
    """Raise the error, if it is one."""
    if isinstance(outcome, FeedqError):
        raise outcome


def _alike(changes: Sequence[FeedChange]) -> dict[tuple[EventKind, str | None], list[FeedChange]]:
    """Changes of one kind for one catalog, together; additions first."""
    found: dict[tuple[EventKind, str | None], list[FeedChange]] = {}
    for one in sorted(changes, key=lambda one: one.kind is not EventKind.FEED_ADDED):
        found.setdefault((one.kind, one.catalog), []).append(one)
    return found


def _change(
    c: Connection, kind: EventKind, catalog: str | None, changes: Sequence[FeedChange]
) -> list[Outcome]:
    if kind not in (EventKind.FEED_ADDED, EventKind.FEED_EDITED):
        return _act(c, kind, catalog, changes, {} if catalog is None else {"catalog": catalog})
    told = told_of({} if catalog is None else {"catalog": catalog})
    declared = document(one.declared() for one in changes)
    if kind is EventKind.FEED_ADDED:
        return call(c, "add_feeds", list[Outcome], declared=declared, of_catalog=catalog, told=told)
    asked = {"declared": declared, "of_catalog": catalog, "of_tenant": own_tenant(), "told": told}
    return call(c, "edit_feeds", list[Outcome], **asked)


def _act(
    c: Connection,
    kind: EventKind,
    catalog: str | None,
    changes: Sequence[FeedChange],
    detail: Mapping[str, Any],
) -> list[Outcome]:
    return call(
        c,
        "act_on_feeds",
        list[Outcome],
        what=kind.value,
        names=[one.name for one in changes],
        ids=[None if one.expected is None else one.expected[0] for one in changes],
        generations=[None if one.expected is None else one.expected[1] for one in changes],
        of_catalog=catalog,
        of_tenant=own_tenant(),
        told=told_of(detail),
    )


def of_others(catalog: str | None) -> str:
    whose = "declared by hand" if catalog is None else f"made from catalog {catalog!r}"
    return f"was {whose}, and is left unchanged"


def no_feed(name: str) -> NotFound:
    return NotFound(f"no feed named {name!r}; `feedq feed list` shows them all")


class Backfills(Aggregate):
    """The backfills of the control database. Every method may raise `Unavailable`."""

    @in_statement
    def begin(self, c: Connection, parent: Feed, spec: FeedSpec, backfill: FeedBackfill) -> bool:
        """Begin one of a feed as it was looked at. False: there was one with the same key already.

        Raises `NotFound`, `Outdated`, `Forbidden`, and `Conflict` when one runs, or the feed is paused.
        """
        wanted = {name: value for name, value in asdict(backfill).items() if name != "parent"}
        child = {**declared_columns(spec), "parent": parent.id, "backfill": wanted}
        bounds = {name: brief_cursor(wanted[name]) for name in ("begins_after", "ends_at")}
        outcome = call(
            c,
            "begin_backfill",
            Outcome,
            of_feed=parent.name,
            id=parent.id,
            generation=parent.generation,
            key=backfill.key,
            declared=document([child]),
            of_tenant=own_tenant(),
            told=told_of({**bounds, "key": backfill.key}),
        )
        match outcome.refusal:
            case "known":
                return False
            case "paused":
                raise Conflict(
                    f"feed {parent.name!r} is paused, and its backfill would be too: resume it first"
                )
            case "taken":
                show = command("feed", "backfill", "show", parent.name)
                raise Conflict(f"feed {parent.name!r} has a backfill already: `{show}`")
        outcome.check(parent.version)
        return True

    @in_transaction
    def cancel(self, c: Connection, parent: Feed) -> FeedView:
        """End the backfill of a feed, which has landed what it has. Raises `NotFound`, `Forbidden`."""
        found = _of(c, parent)
        outcome = call(
            c, "cancel_backfill", Outcome, of_feed=parent.name, of_tenant=own_tenant(), told=told_of({})
        )
        if found is None or outcome.refusal == "none":
            raise no_backfill(parent.name)
        outcome.check()
        return found

    @in_statement
    def running(self, c: Connection, *, tenant: str | None = None) -> list[FeedView]:
        """All there are, by name."""
        which = """
            WHERE parent IS NOT NULL AND removed_at IS NULL
                AND (CAST(%(tenant)s AS text) IS NULL OR tenant = %(tenant)s)
            ORDER BY name
        """
        return read_views(c, STATUS_VIEW, which, {"tenant": tenant})

    @in_statement
    def of(self, c: Connection, parent: Feed) -> FeedView | None:
        """The one of a feed, if there is one."""
        return _of(c, parent)


def no_backfill(name: str) -> NotFound:
    return NotFound(f"feed {name!r} has no backfill; `feedq feed backfill show` shows them all")


def _of(c: Connection, parent: Feed) -> FeedView | None:
    which = "WHERE parent = %(id)s ORDER BY removed_at DESC NULLS FIRST LIMIT 1"
    return next(iter(read_views(c, STATUS_VIEW, which, {"id": parent.id})), None)
