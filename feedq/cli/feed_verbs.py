"""`feedq feed pause`, `resume`, `restart`, `move` and `remove`: of feeds by name, or of all that are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.choosing import (
    described,
    fail_if_any,
    feeds_named,
    require_some,
    selection_of,
    selection_options,
)
from feedq.cli.invocation import Invocation, changes, decorated, wait_options, yes_option
from feedq.cli.output import answer

if TYPE_CHECKING:
    from feedq.core.model import Status
    from feedq.core.selection import Selection
    from feedq.verbs.feeds import Acted, Done, FeedAction

_of_many = decorated(click.argument("names", nargs=-1), selection_options, yes_option, wait_options, changes)


@click.command()
@_of_many
def pause(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds, and keep them stopped until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
      feedq feed pause --tenant acme --yes
    """
    from feedq.core.model import Status
    from feedq.verbs.feeds import FeedAction

    _do(invocation, FeedAction.PAUSE, "paused", Status.PAUSED, **asked)


@click.command()
@_of_many
def resume(invocation: Invocation, **asked: Any) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
      feedq feed resume --label region=eu --status paused --yes
    """
    from feedq.core.model import Status
    from feedq.verbs.feeds import FeedAction

    _do(invocation, FeedAction.RESUME, "resumed", Status.STREAMING, **asked)


@click.command()
@_of_many
def restart(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
      feedq feed restart --failing --yes
    """
    from feedq.core.model import Status
    from feedq.verbs.feeds import FeedAction

    _do(invocation, FeedAction.RESTART, "restarted", Status.STREAMING, **asked)


@click.command()
@_of_many
def remove(
    invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float, **chosen: Any
) -> None:
    """Stop feeds and forget them. What they imported stays, and so does their checkpoint in the sink.

    A feed that is declared again under its name is another one, and begins where its source begins. To go on where
    this one ends, declare it with `feedq apply --adopt`.

    \b
    Example:
      feedq feed remove acme/orders --yes --wait
      feedq feed remove --tenant acme
    """
    from feedq.verbs.feeds import FeedAction

    selection = selection_of(names, **chosen)
    tried = _tried(invocation, FeedAction.REMOVE, selection)
    invocation.confirm(
        f"Remove {described(selection, tried)}? Declared again, they begin where their sources begin, unless they "
        "adopt what is left in the sink (`feedq apply --adopt`).",
        yes=yes,
    )
    acted = _act(invocation, FeedAction.REMOVE, selection, tried.count, "removed")
    if wait:
        gone = [one.name for one in acted.done]

        def are_gone() -> bool:
            return not any(view.feed.removed_at for view in feeds_named(invocation, gone, removing=True))

        invocation.wait_until(are_gone, timeout_s=timeout_s, what="removal")
    _answer(invocation, acted, "removed", lambda one: f"{one.name} removed")


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--to", "target", metavar="WORKER", help="The worker that gets them. [default: those with room]"
)
@selection_options
@yes_option
@wait_options
@changes
def move(
    invocation: Invocation,
    *,
    names: Sequence[str],
    target: str | None,
    yes: bool,
    wait: bool,
    timeout_s: float,
    **chosen: Any,
) -> None:
    """Move feeds to other workers, where they go on from where they left off.

    Not for good: when workers join or leave, the load is evened out anew. To tie a feed to workers, give these a
    label and let the feed require it.

    \b
    Example:
      feedq feed move acme/orders --to celery@host --wait
      feedq feed move --worker celery@host --tenant acme --yes
    """
    from feedq.verbs.feeds import FeedAction

    selection = selection_of(names, **chosen)
    count = _counted(invocation, FeedAction.MOVE, selection, yes=yes)
    acted = _act(invocation, FeedAction.MOVE, selection, count, "asked to move", worker=target)
    if wait:
        arrivals = {one.name: str(one.worker) for one in acted.done}
        _await_arrival(invocation, arrivals, timeout_s=timeout_s)
    verb = "moved" if wait else "moving"
    _answer(invocation, acted, "moved", lambda one: f"{one.name} {verb} to {one.worker}")


def _await_arrival(invocation: Invocation, arrivals: Mapping[str, str], *, timeout_s: float) -> None:
    from feedq.core.model import Status
    from feedq.verbs.feeds import show_feed
    from feedq.verbs.wording import counted

    left = list(arrivals)

    def have_arrived() -> bool:
        arrived = {
            view.feed.name
            for view in feeds_named(invocation, left)
            if view.worker == arrivals[view.feed.name] and view.status is Status.STREAMING
        }
        left[:] = [name for name in left if name not in arrived]
        return not left

    invocation.wait_until(
        have_arrived,
        timeout_s=timeout_s,
        what=f"{counted(len(arrivals), 'feed')} on other workers",
        why=lambda: invocation.do(show_feed, name=left[0]).explanation,
    )


def _do(
    invocation: Invocation,
    action: FeedAction,
    done: str,
    wanted: Status,
    *,
    names: Sequence[str],
    yes: bool,
    wait: bool,
    timeout_s: float,
    **chosen: Any,
) -> None:
    """Does it to all that are chosen, and waits until they are as ``wanted``; those that stream anew, with the
    declarations that they have now or later ones."""
    from feedq.core.model import Status
    from feedq.verbs.wording import counted

    selection = selection_of(names, **chosen)
    count = _counted(invocation, action, selection, yes=yes)
    acted = _act(invocation, action, selection, count, done)
    made = {one.name: one.generation or 0 if wanted is Status.STREAMING else 0 for one in acted.done}

    def have_come() -> bool:
        views = list(feeds_named(invocation, list(made)))
        return len(views) == len(made) and all(
            view.status is wanted and view.lease.generation >= made[view.feed.name] for view in views
        )

    if wait:
        who = ", ".join(made) if len(made) <= 5 else counted(len(made), "feed")
        invocation.wait_until(have_come, timeout_s=timeout_s, what=f"{who} {wanted}")
    _answer(invocation, acted, done, lambda one: f"{one.name} {done}")


def _counted(invocation: Invocation, action: FeedAction, selection: Selection, *, yes: bool) -> int | None:
    """How many feeds the selection chooses, which was asked about. Whoever names feeds has said so already."""
    if selection.names:
        return None
    tried = _tried(invocation, action, selection)
    invocation.confirm(f"{action.capitalize()} {described(selection, tried)}?", yes=yes)
    return tried.count


def _tried(invocation: Invocation, action: FeedAction, selection: Selection) -> Acted:
    """Raises `NotFound` when nothing is chosen."""
    from feedq.verbs.feeds import act_on_feeds

    tried = invocation.do(act_on_feeds, action=action, select=selection, dry_run=True)
    require_some(invocation, tried)
    return tried


def _act(
    invocation: Invocation,
    action: FeedAction,
    selection: Selection,
    count: int | None,
    what: str,
    *,
    worker: str | None = None,
) -> Acted:
    """Raises `NotFound` when nothing is chosen."""
    from feedq.verbs.feeds import act_on_feeds

    with invocation.progress(f"feeds {what}"):
        acted = invocation.do(act_on_feeds, action=action, select=selection, worker=worker, count=count)
    require_some(invocation, acted)
    return acted


def _answer(invocation: Invocation, acted: Acted, what: str, line: Callable[[Done], str]) -> None:
    """Shows to which feeds it was done. Raises when it could not be done to some."""
    if acted.done or invocation.json:
        answer(invocation, acted, "\n".join(map(line, acted.done)))
    fail_if_any(acted.failed, what, done=len(acted.done))
