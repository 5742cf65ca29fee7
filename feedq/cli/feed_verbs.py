"""`feedq feed pause`, `resume`, `restart`, `move` and `remove`: of feeds by name, or of all that are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import click

from feedq import bulk, verbs
from feedq.cli.choosing import act, choose, confirm_chosen, fail_if_any, selection_of, selection_options
from feedq.cli.invocation import (
    Invocation,
    pass_invocation,
    reason_option,
    wait_options,
    yes_option,
)
from feedq.cli.output import answer, answer_done
from feedq.cli.progress import ProgressBar
from feedq.diagnosis.waiting_checks import explain
from feedq.model import Feed, FeedView, Status, TargetState
from feedq.selection import Selection
from feedq.store.base import Feeds
from feedq.wording import counted, some

NOTHING: Mapping[str, int] = MappingProxyType({})
names_argument = click.argument("names", nargs=-1)


@click.command()
@names_argument
@selection_options
@yes_option
@wait_options
@reason_option
@pass_invocation
def pause(
    invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float, **chosen: Any
) -> None:
    """Stop feeds, and keep them stopped until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
      feedq feed pause --tenant acme --yes
    """
    selection = selection_of(names, **chosen)
    done = _done(
        invocation, selection, "Pause", "paused", lambda fs, n: fs.set_target(n, TargetState.PAUSED), yes
    )
    if wait:
        _wait_for(invocation, list(done), Status.PAUSED, timeout_s)
    answer_done(invocation, done, "paused")


@click.command()
@names_argument
@selection_options
@yes_option
@wait_options
@reason_option
@pass_invocation
def resume(
    invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float, **chosen: Any
) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
      feedq feed resume --label region=eu --status paused --yes
    """
    selection = selection_of(names, **chosen)
    done = _done(
        invocation, selection, "Resume", "resumed", lambda fs, n: fs.set_target(n, TargetState.RUNNING), yes
    )
    if wait:
        _wait_for(invocation, list(done), Status.STREAMING, timeout_s)
    answer_done(invocation, done, "resumed")


@click.command()
@names_argument
@selection_options
@yes_option
@wait_options
@reason_option
@pass_invocation
def restart(
    invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float, **chosen: Any
) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
      feedq feed restart --failing --yes
    """
    selection = selection_of(names, **chosen)
    done = _done(invocation, selection, "Restart", "restarted", lambda fs, n: fs.restart(n), yes)
    if wait:
        generations = {name: feed.generation for name, feed in done.items()}
        _wait_for(invocation, list(done), Status.STREAMING, timeout_s, generations)
    answer_done(invocation, done, "restarted")


@click.command()
@names_argument
@selection_options
@yes_option
@wait_options
@reason_option
@pass_invocation
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
    live = choose(invocation, selection_of(names, **chosen))
    what = ", ".join(names) or f"{counted(len(live), 'feed')} ({some(live, lambda view: view.feed.name)})"
    invocation.confirm(
        f"Remove {what}? Declared again, they begin where their sources begin, unless they adopt "
        "what is left in the sink (`feedq apply --adopt`).",
        yes=yes,
    )
    result = act(invocation, live, "removed", lambda feeds, name: feeds.remove(name))
    if wait:
        ids = {view.feed.id for view in live}

        def are_gone() -> bool:
            return not any(view.feed.id in ids for view in invocation.store.feeds.views())

        invocation.wait_until(are_gone, timeout_s=timeout_s, what="removal")
    answer_done(invocation, [name for name, _ in result.done], "removed")
    fail_if_any(result, "removed")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--from", "source", metavar="WORKER", help="Only the feeds of this worker; as --worker.")
@click.option(
    "--to", "target", metavar="WORKER", help="The worker that gets them, instead of those with room."
)
@click.option("--count", type=click.IntRange(min=1), help="At most so many of them.")
@selection_options
@yes_option
@wait_options
@reason_option
@pass_invocation
def move(
    invocation: Invocation,
    *,
    names: Sequence[str],
    source: str | None,
    target: str | None,
    count: int | None,
    yes: bool,
    wait: bool,
    timeout_s: float,
    **chosen: Any,
) -> None:
    """Let other workers have feeds, which go on there where they left off.

    NAME WORKER moves one feed to one worker. Several go where there is room for them, or to the worker that --to
    names. For a moment, not for good: when workers join or leave, the load is evened out anew. To tie a feed to
    workers, give them a label and let the feed require it.

    \b
    Example:
      feedq feed move acme/orders celery@host --wait
      feedq feed move --from celery@host --count 10 --yes
    """
    selection = selection_of(names, **chosen)
    if source is not None:
        selection = replace(selection, worker=verbs.find_worker(invocation.store, source).worker.name)
    if len(names) == 2 and target is None and selection == Selection(names=selection.names):
        (name, target), selection = names, Selection(names=(names[0],))
        _move_one(invocation, name, target, wait=wait, timeout_s=timeout_s)
        return
    live = choose(invocation, selection)[:count]
    confirm_chosen(invocation, selection, live, "Move", yes=yes)
    result = _moved(invocation, live, target)
    arrivals = {view.feed.name: to for view, to in result.done}
    if wait:
        invocation.wait_until(
            lambda: all(
                v.worker == arrivals[v.feed.name] and v.status is Status.STREAMING
                for v in invocation.store.feeds.selected(Selection(names=tuple(arrivals)))
            ),
            timeout_s=timeout_s,
            what=f"{counted(len(arrivals), 'feed')} on other workers",
        )
    verb = "moved" if wait else "moving"
    documents = [{"name": name, "worker": to, "result": verb} for name, to in arrivals.items()]
    lines = [f"{one['name']} {verb} to {one['worker']}" for one in documents]
    answer(invocation, documents, "\n".join(lines) or "none moved")
    fail_if_any(result, "moved")


def _moved(
    invocation: Invocation, live: Sequence[FeedView], target: str | None
) -> bulk.BulkResult[FeedView, str]:
    """Each with the name of the worker that gets it."""
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
                live, lambda v: verbs.move_feed(store, v.feed.name, target, settings), told=bar
            )
    return bulk.BulkResult([(view, to.worker.name) for view, to in result.done], result.failed)


def _move_one(invocation: Invocation, name: str, worker: str, *, wait: bool, timeout_s: float) -> None:
    store, feeds = invocation.store, None if invocation.api is None else invocation.api.feeds
    invocation.live_feed(name)
    if feeds is not None:
        target = feeds.move_to(name, worker)
    else:
        target = verbs.move_feed(store, name, worker, invocation.settings).worker.name

    def has_arrived() -> bool:
        view = store.feeds.view(name)
        return view.worker == target and view.status is Status.STREAMING

    def obstacle() -> str | None:
        if feeds is not None:
            return feeds.explained(name)[1]
        view, workers = store.feeds.view(name), store.workers.views()
        return explain(view, workers, now=invocation.clock.now(), rules=invocation.settings.rules)

    if wait:
        what = f"{name} streams on {target}"
        invocation.wait_until(has_arrived, timeout_s=timeout_s, what=what, why=obstacle)
    result = "moved" if wait else "moving"
    document = {"name": name, "worker": target, "result": result}
    answer(invocation, document, f"{name} {result} to {target}")


def _done(
    invocation: Invocation,
    selection: Selection,
    verb: str,
    done: str,
    change: Callable[[Feeds, str], Feed],
    yes: bool,
) -> dict[str, Feed]:
    """Does it to all that are chosen, and returns them by name. Raises when it could not be done to some."""
    live = choose(invocation, selection)
    confirm_chosen(invocation, selection, live, verb, yes=yes)
    result = act(invocation, live, done, change)
    fail_if_any(result, done)
    return dict(result.done)


def _wait_for(
    invocation: Invocation,
    names: Sequence[str],
    wanted: Status,
    timeout_s: float,
    generations: Mapping[str, int] = NOTHING,
) -> None:
    """Waits until all have this status, with these generations of their declarations or later ones."""

    def have_come() -> bool:
        views = invocation.store.feeds.selected(Selection(names=tuple(names)))
        return len(views) == len(set(names)) and all(
            view.status is wanted and view.lease.generation >= generations.get(view.feed.name, 0)
            for view in views
        )

    what = f"{', '.join(names)} {wanted}" if len(names) <= 5 else f"{counted(len(names), 'feed')} {wanted}"
    invocation.wait_until(have_come, timeout_s=timeout_s, what=what)
