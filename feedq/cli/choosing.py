"""Which feeds a command is about: by name, or by what they have in common.

The options make a `Selection`; what they choose is counted and shown before anything is done to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import Invocation, OneOf, decorated
from feedq.errors import Forbidden, InvalidInput, NotFound

if TYPE_CHECKING:
    from feedq.core.model import Feed, FeedView, WorkerView
    from feedq.core.selection import Selection
    from feedq.verbs.bulk import BulkResult
    from feedq.verbs.declaring import Starts
    from feedq.verbs.manifest.changes import Change

ERRORS_SHOWN_MAX = 20

selection_options = decorated(
    click.option("--tenant", help="Only this tenant's feeds."),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only feeds with this label; may be repeated.",
    ),
    click.option("--worker", help="Only the feeds that this worker holds."),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=OneOf("feedq.core.model:Status"),
        help="Only feeds of this status; may be repeated.",
    ),
    click.option("--connector", help="Only feeds with this connector."),
    click.option("--match", metavar="GLOB", help="Only feeds whose name is like this, such as 'acme/*'."),
    click.option("--failing", is_flag=True, help="Only feeds in trouble, which somebody has to look at."),
)
"""The options of a selection; hand them to `selection_of`."""


def selection_of(names: Sequence[str] = (), **given: Any) -> Selection:
    """The selection that the options ask for. Raises `InvalidInput`."""
    from feedq.cli.options import split_assignment
    from feedq.core.selection import Selection

    labels = dict(split_assignment(text, option="--label") for text in given.pop("labels"))
    return Selection(names=tuple(dict.fromkeys(names)), labels=labels, **given)


def choose(invocation: Invocation, selection: Selection) -> list[FeedView]:
    """The feeds that are named or chosen. Raises `InvalidInput` when nothing says which, `NotFound` when one
    that is named does not exist or none is chosen."""
    if selection.is_empty:
        raise InvalidInput("which feeds? name them, or choose them with --tenant, --match or another option")
    for name in selection.names:
        invocation.live_feed(name)
    chosen = invocation.store.feeds.selected(selection)
    if not chosen:
        raise NotFound(none_match(invocation, "nothing is done"))
    return chosen


def explained(invocation: Invocation, name: str) -> tuple[FeedView, Sequence[WorkerView], str | None]:
    """The feed, the workers as far as whoever asks may see them, and why it does not stream."""
    if invocation.api is not None:
        view, why = invocation.api.feeds.explained(name)
        with suppress(Forbidden):
            return view, invocation.store.workers.views(), why
        return view, [], why
    from feedq.verbs.diagnosis.waiting_checks import explain

    view, workers = invocation.store.feeds.view(name), invocation.store.workers.views()
    return view, workers, explain(view, workers, now=invocation.clock.now(), rules=invocation.settings.rules)


def none_match(invocation: Invocation, then: str = "") -> str:
    """What to say when no feed is chosen; that there is none at all is another matter."""
    from feedq.cli.tables import NO_FEEDS

    total = invocation.store.feeds.count()
    if not total:
        return NO_FEEDS
    return f"none of {total:,} feeds match" + (f"; {then}" if then else "")


def confirm_chosen(
    invocation: Invocation, selection: Selection, chosen: Sequence[FeedView], verb: str, *, yes: bool
) -> None:
    """Shows how many were chosen, and asks. Whoever names feeds has said so already."""
    from feedq.verbs.wording import counted, some

    if selection.names:
        return
    named = some(chosen, lambda view: view.feed.name)
    invocation.confirm(f"{verb} {counted(len(chosen), 'feed')} ({named})?", yes=yes)


def act(invocation: Invocation, chosen: Sequence[FeedView], verb: str) -> BulkResult[str, Any]:
    """Do it to each, some hundred at a time, with a bar. Raises `FeedqError` that names each that it could not be
    done to, after the others."""
    from feedq.cli.output import ProgressBar
    from feedq.verbs import actions, bulk

    names = [view.feed.name for view in chosen]
    with ProgressBar(f"feeds {actions.DONE[verb]}", len(names)) as bar:
        if invocation.api is not None:
            return invocation.api.feeds.act_on(names, verb, told=bar)
        store = invocation.store
        return bulk.each(store.feeds, names, lambda feeds, name: actions.act(feeds, verb, name), told=bar)


def declare_all(
    invocation: Invocation,
    changes: Sequence[Change],
    starts: Starts,
    *,
    adopt: bool = False,
    what: str = "feeds",
) -> BulkResult[Change, Feed | None]:
    """Make these changes of feeds, with a bar."""
    from feedq.cli.output import ProgressBar
    from feedq.verbs.declaring import declare

    with ProgressBar(what, len(changes)) as bar:
        if invocation.api is not None:
            return invocation.api.feeds.declare(changes, starts, adopt=adopt, told=bar)
        return declare(invocation.store, invocation.open_sink, changes, starts, told=bar)


def fail_if_any(result: BulkResult[Any, Any], what: str) -> None:
    """Raises when it could not be done to some feeds, naming each."""
    if not result.failed:
        return
    if len(result.failed) == 1 and not result.done:
        raise result.failed[0][1]
    lines = first_few([f"  {error}" for _, error in result.failed], "  and {:,} more")
    error = type(result.failed[0][1])
    raise error(f"{len(result.failed)} not {what}, {len(result.done)} {what}\n" + "\n".join(lines))


def first_few(lines: Sequence[str], of_others: str, *, most: int = ERRORS_SHOWN_MAX) -> list[str]:
    """The first lines, and how many others there are."""
    more = len(lines) - most
    return [*lines[:most], *([of_others.format(more)] if more > 0 else [])]
