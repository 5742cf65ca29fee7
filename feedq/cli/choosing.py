"""Which feeds a command is about: by name, or by what they have in common; counted and shown before anything is
done to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import click

from feedq.cli import options
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.errors import NotFound, error_of

with lazily():
    from feedq.cli import tables
    from feedq.core import model, selection
    from feedq.verbs import feeds, wording

NAMES_AT_ONCE: Final = 100
"""Names that are asked for together: an address holds no more."""

_options = options.decorated(
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    click.option("--tenant", help="Only this tenant's feeds."),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only feeds with this label. May be repeated.",
    ),
    click.option("--worker", help="Only feeds on this worker."),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=options.OneOf("feedq.core.model:Status"),
        help="Only feeds with this status. May be repeated.",
    ),
    click.option("--connector", help="Only feeds with this connector."),
    click.option("--match", metavar="GLOB", help="Only feeds whose name matches, such as 'acme/*'."),
    click.option("--failing", is_flag=True, help="Only feeds that need attention."),
    click.option("--unmet", is_flag=True, help="Only feeds that fail an expectation."),
    click.option("--dead-letters", is_flag=True, help="Only feeds with dead letters."),
)


def chooses_feeds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a command take names of feeds and what feeds have in common, and hands it the selection, ``select``."""

    @wraps(command)
    def call(*args: Any, names: Sequence[str], labels: Sequence[str], **given: Any) -> Any:
        keys = ("tenant", "worker", "statuses", "connector", "match", "failing", "unmet", "dead_letters")
        select = selection.Selection(
            names=tuple(dict.fromkeys(names)),
            labels=dict(options.split_assignment(text, option="--label") for text in labels),
            **{key: given.pop(key) for key in keys},
        )
        return command(*args, select=select, **given)

    return _options(call)


def await_feeds(
    invocation: Invocation, action: feeds.FeedAction, acted: Sequence[feeds.Done], *, timeout_s: float
) -> None:
    """Waits until each feed is as it is to be. Raises `FeedqError`, with why the first one is not."""
    left = {one.name: one for one in acted}
    is_removal = action is feeds.FeedAction.REMOVE

    def has_come(view: model.FeedView, done: feeds.Done) -> bool:
        if is_removal:
            return view.feed.removed_at is None  # it is another one, of the same name
        if action is feeds.FeedAction.PAUSE:
            return view.status is model.Status.PAUSED
        # As it is declared by now, or later, and where it was to move to.
        is_current = view.lease.generation >= (done.generation or 0) and done.worker in (None, view.worker)
        return is_current and view.status is model.Status.STREAMING

    def still_left() -> list[str]:
        which = selection.Selection(names=tuple(left), removing=True)
        views = {view.feed.name: view for view in listed(invocation, feeds.list_feeds, which)}
        for name in list(left):
            if is_removal if name not in views else has_come(views[name], left[name]):
                del left[name]
        return list(left)

    def why(names: Sequence[str]) -> str | None:
        return None if is_removal else invocation.do(feeds.show_feed, name=names[0]).explanation

    who = ", ".join(left) if len(left) <= wording.NAMED_MAX else wording.counted(len(left), "feed")
    wanted = {
        feeds.FeedAction.PAUSE: "paused",
        feeds.FeedAction.REMOVE: "removed",
        feeds.FeedAction.MOVE: "on another worker",
    }.get(action, "streaming")
    invocation.wait_for(
        still_left, lambda names: not names, timeout_s=timeout_s, what=f"{who} {wanted}", why=why
    )


def listed(
    invocation: Invocation, function: Callable[..., Any], select: selection.Selection, **asked: Any
) -> Iterator[Any]:
    """The items that a verb lists of the feeds that are chosen, some names at a time."""
    for start in range(0, len(select.names) or 1, NAMES_AT_ONCE):
        part = replace(select, names=select.names[start : start + NAMES_AT_ONCE])
        yield from invocation.pages(function, select=part, **asked)


def none_match(invocation: Invocation, then: str = "") -> str:
    """What to say when no feed is chosen; that there is none at all is another matter."""
    if not invocation.do(feeds.list_feeds, limit=1).items:
        return tables.NO_FEEDS
    return "no feed matches" + (f"; {then}" if then else "")


def require_some(invocation: Invocation, tried: feeds.Acted) -> None:
    """Raises `NotFound` when nothing is chosen."""
    if not tried.count:
        raise NotFound(none_match(invocation, "nothing is done"))


def described(select: selection.Selection, tried: feeds.Acted) -> str:
    """The feeds that are chosen: ``2 feeds (acme/a, acme/b)``; those that are named, by their names."""
    if select.names:
        return ", ".join(select.names)
    return f"{wording.counted(tried.count, 'feed')} ({wording.some(tried.done, lambda one: one.name)})"


def fail_if_any(failed: Sequence[feeds.Failed], what: str, *, done: int) -> None:
    """Raises when it could not be done to some feeds, naming each."""
    if not failed:
        return
    kind = failed[0].error
    if len(failed) == 1 and not done:
        raise error_of(kind, failed[0].detail)
    lines = wording.first_few([f"  {one.detail}" for one in failed], "  and {:,} more")
    raise error_of(kind, f"{len(failed)} not {what}, {done} {what}\n" + "\n".join(lines))
