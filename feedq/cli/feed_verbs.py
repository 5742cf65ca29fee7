"""`feedq feed pause`, `resume`, `restart`, `move` and `remove`: of feeds by name, or of all that are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.choosing import (
    act,
    choose,
    confirm_chosen,
    explained,
    fail_if_any,
    selection_of,
    selection_options,
)
from feedq.cli.invocation import Invocation, changes, decorated, wait_options, yes_option
from feedq.cli.output import ProgressBar, answer, answer_done

if TYPE_CHECKING:
    from feedq.core.model import FeedView
    from feedq.verbs import bulk

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
    _do(invocation, "pause", **asked)


@click.command()
@_of_many
def resume(invocation: Invocation, **asked: Any) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
      feedq feed resume --label region=eu --status paused --yes
    """
    _do(invocation, "resume", **asked)


@click.command()
@_of_many
def restart(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
      feedq feed restart --failing --yes
    """
    _do(invocation, "restart", **asked)


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
    from feedq.verbs.wording import counted, some

    live = choose(invocation, selection_of(names, **chosen))
    what = ", ".join(names) or f"{counted(len(live), 'feed')} ({some(live, lambda view: view.feed.name)})"
    invocation.confirm(
        f"Remove {what}? Declared again, they begin where their sources begin, unless they adopt "
        "what is left in the sink (`feedq apply --adopt`).",
        yes=yes,
    )
    result = act(invocation, live, "remove")
    if wait:
        ids = {view.feed.id for view in live}

        def are_gone() -> bool:
            return not any(view.feed.id in ids for view in invocation.store.feeds.views())

        invocation.wait_until(are_gone, timeout_s=timeout_s, what="removal")
    answer_done(invocation, [name for name, _ in result.done], "removed")
    fail_if_any(result, "removed")


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
    selection = selection_of(names, **chosen)
    live = choose(invocation, selection)
    confirm_chosen(invocation, selection, live, "Move", yes=yes)
    result = _moved(invocation, live, target)
    arrivals = {view.feed.name: to for view, to in result.done}
    if wait:
        _await_arrival(invocation, arrivals, timeout_s=timeout_s)
    verb = "moved" if wait else "moving"
    documents = [{"name": name, "worker": to, "result": verb} for name, to in arrivals.items()]
    lines = [f"{one['name']} {verb} to {one['worker']}" for one in documents]
    if documents:
        answer(invocation, documents, "\n".join(lines))
    fail_if_any(result, "moved")


def _moved(
    invocation: Invocation, live: Sequence[FeedView], target: str | None
) -> bulk.BulkResult[FeedView, str]:
    """Each with the name of the worker that gets it."""
    from feedq.verbs import actions, bulk

    if invocation.api is not None:
        of = {view.feed.name: view for view in live}
        moved = invocation.api.feeds.act_on(list(of), "move", worker=target)
        done = [(of[name], to) for name, to in moved.done]
        return bulk.BulkResult(done, [(of[name], error) for name, error in moved.failed])
    store, settings = invocation.store, invocation.settings
    with ProgressBar("feeds asked to move", len(live)) as bar:
        if target is None:
            result = bulk.move_elsewhere(store, live, settings, told=bar)
        else:
            result = bulk.one_by_one(
                live, lambda v: actions.move_feed(store, v.feed.name, target, settings), told=bar
            )
    return bulk.BulkResult([(view, to.worker.name) for view, to in result.done], result.failed)


def _await_arrival(invocation: Invocation, arrivals: Mapping[str, str], *, timeout_s: float) -> None:
    from feedq.core.model import Status
    from feedq.core.selection import Selection
    from feedq.verbs.wording import counted

    left = list(arrivals)

    def have_arrived() -> bool:
        views = invocation.store.feeds.selected(Selection(names=tuple(arrivals)))
        arrived = {
            v.feed.name for v in views if v.worker == arrivals[v.feed.name] and v.status is Status.STREAMING
        }
        left[:] = [name for name in arrivals if name not in arrived]
        return not left

    what = f"{counted(len(arrivals), 'feed')} on other workers"
    invocation.wait_until(
        have_arrived, timeout_s=timeout_s, what=what, why=lambda: explained(invocation, left[0])[2]
    )


def _do(
    invocation: Invocation,
    verb: str,
    *,
    names: Sequence[str],
    yes: bool,
    wait: bool,
    timeout_s: float,
    **chosen: Any,
) -> None:
    """Does it to all that are chosen, and waits until they are paused, or stream with the declarations that they
    have now or later ones. Raises when it could not be done to some."""
    from feedq.core.model import Status
    from feedq.core.selection import Selection
    from feedq.verbs.actions import DONE
    from feedq.verbs.wording import counted

    wanted, done = Status.PAUSED if verb == "pause" else Status.STREAMING, DONE[verb]
    selection = selection_of(names, **chosen)
    live = choose(invocation, selection)
    confirm_chosen(invocation, selection, live, verb.capitalize(), yes=yes)
    result = act(invocation, live, verb)
    fail_if_any(result, done)
    made = {name: feed.generation if wanted is Status.STREAMING else 0 for name, feed in result.done}

    def have_come() -> bool:
        views = invocation.store.feeds.selected(Selection(names=tuple(made)))
        return len(views) == len(made) and all(
            view.status is wanted and view.lease.generation >= made[view.feed.name] for view in views
        )

    if wait:
        who = ", ".join(made) if len(made) <= 5 else counted(len(made), "feed")
        invocation.wait_until(have_come, timeout_s=timeout_s, what=f"{who} {wanted}")
    answer_done(invocation, made, done)
