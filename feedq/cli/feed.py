"""`feedq feed`: one feed at a time, or a few by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import click

from feedq import adoption, verbs
from feedq.cli.cursor import cursor
from feedq.cli.dead_letters import dead_letters
from feedq.cli.feed_declare import add, edit, export
from feedq.cli.feed_test import feed_test
from feedq.cli.invocation import Invocation, limit_option, pass_invocation, wait_options, yes_option
from feedq.cli.output import answer, answer_done, answer_list, write_lines
from feedq.cli.tables import NO_FEEDS, event_columns, feed_columns
from feedq.diagnosis.waiting_checks import explain
from feedq.model import Feed, Status, TargetState
from feedq.report.details import declaration_lines, detail_lines, lease_lines
from feedq.report.rows import event_row, feed_document, feed_row
from feedq.sinks.base import parse_sink
from feedq.sinks.identity import owner_of


@click.group(
    short_help="Add, test, list, show, edit, pause, resume, restart, move, adopt, remove; cursors, dead letters."
)
def feed() -> None:
    """One feed, or a few by name.

    \b
    Example:
      feedq feed list --tenant acme
      feedq feed show acme/orders
    """


for _command in (add, edit, export, feed_test, dead_letters, cursor):
    feed.add_command(_command)


@feed.command("list")
@click.option("--tenant", help="Only this tenant's feeds.")
@click.option("--worker", help="Only the feeds that this worker holds.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in Status]),
    help="Only feeds of this status; may be repeated.",
)
@pass_invocation
def list_(invocation: Invocation, *, tenant: str | None, worker: str | None, statuses: Sequence[str]) -> None:
    """All feeds by name, with their status and progress.

    \b
    Example:
      feedq feed list --status failed --status stalled
    """
    views = invocation.store.feeds.views(tenant=tenant, worker=worker)
    shown = [view for view in views if not statuses or view.status.value in statuses]
    answer_list(invocation, shown, feed_row, feed_columns(invocation.clock.now()), empty=NO_FEEDS)


@feed.command()
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one feed: status, why it does not stream, progress, last error, declaration.

    \b
    Example:
      feedq feed show acme/orders
    """
    view = invocation.store.feeds.view(name)
    now = invocation.clock.now()
    workers = invocation.store.workers.views()
    why = explain(view, workers, now=now, rules=invocation.settings.rules)
    lines = [
        *detail_lines([("name", name), ("status", view.status), ("why", why)]),
        *lease_lines(view, now=now, workers=verbs.worker_names(workers)),
        *declaration_lines(view, now=now),
    ]
    answer(invocation, feed_document(view, explanation=why), lambda: write_lines(lines))


@feed.command()
@click.argument("name")
@limit_option(50)
@pass_invocation
def events(invocation: Invocation, *, name: str, limit: int) -> None:
    """The history of one feed, newest first.

    \b
    Example:
      feedq feed events acme/orders --limit 10
    """
    found = invocation.store.feeds.events(name, limit=limit)
    workers = {} if invocation.json else verbs.worker_names(invocation.store.workers.views(gone=True))
    answer_list(invocation, found, event_row, event_columns(workers), empty="no events")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@pass_invocation
def pause(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Stop feeds, and keep them stopped until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
    """
    _each(invocation, names, lambda name: invocation.store.feeds.set_target(name, TargetState.PAUSED))
    if wait:
        _wait_for(invocation, names, Status.PAUSED, timeout_s)
    answer_done(invocation, names, "paused")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@pass_invocation
def resume(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
    """
    _each(invocation, names, lambda name: invocation.store.feeds.set_target(name, TargetState.RUNNING))
    if wait:
        _wait_for(invocation, names, Status.STREAMING, timeout_s)
    answer_done(invocation, names, "resumed")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@pass_invocation
def restart(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
    """
    restarted = _each(invocation, names, invocation.store.feeds.restart)
    if wait:
        generations = {feed.name: feed.generation for feed in restarted}
        _wait_for(invocation, names, Status.STREAMING, timeout_s, generations)
    answer_done(invocation, names, "restarted")


@feed.command()
@click.argument("name")
@click.argument("worker")
@wait_options
@pass_invocation
def move(invocation: Invocation, *, name: str, worker: str, wait: bool, timeout_s: float) -> None:
    """Let another worker have a feed, which goes on there where it left off.

    For a moment, not for good: when workers join or leave, the load is evened out anew. To tie a feed to workers,
    give them a label and let the feed require it.

    \b
    Example:
      feedq feed move acme/orders celery@host --wait
    """
    store, settings = invocation.store, invocation.settings
    invocation.live_feed(name)
    target = verbs.move_feed(store, name, worker, settings).worker

    def has_arrived() -> bool:
        view = store.feeds.view(name)
        return view.lease.worker_id == target.id and view.status is Status.STREAMING

    def obstacle() -> str | None:
        view, workers = store.feeds.view(name), store.workers.views()
        return explain(view, workers, now=invocation.clock.now(), rules=settings.rules)

    if wait:
        what = f"{name} streams on {target.name}"
        invocation.wait_until(has_arrived, timeout_s=timeout_s, what=what, why=obstacle)
    result = "moved" if wait else "moving"
    document = {"name": name, "worker": target.name, "result": result}
    answer(invocation, document, f"{name} {result} to {target.name}")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@wait_options
@pass_invocation
def remove(invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float) -> None:
    """Stop feeds and forget them. What they imported stays, and so does their checkpoint in the sink.

    A feed that is declared again under its name is another one, and begins where its source begins. To go on where
    this one ends, declare it with `feedq apply --adopt`.

    \b
    Example:
      feedq feed remove acme/orders --yes --wait
    """
    live = [invocation.live_feed(name) for name in names]
    invocation.confirm(
        f"Remove {', '.join(names)}? Declared again, they begin where their sources begin, unless they adopt "
        "what is left in the sink (`feedq apply --adopt`).",
        yes=yes,
    )
    _each(invocation, names, invocation.store.feeds.remove)
    if wait:
        ids = {feed.id for feed in live}

        def are_gone() -> bool:
            return not any(view.feed.id in ids for view in invocation.store.feeds.views())

        invocation.wait_until(are_gone, timeout_s=timeout_s, what="removal")
    answer_done(invocation, names, "removed")


@feed.command()
@click.argument("name")
@click.option(
    "--number", type=click.IntRange(min=1), help="Which checkpoint, if there are several of that name."
)
@click.option("--force", is_flag=True, help="Also if the feed has landed records of its own already.")
@yes_option
@pass_invocation
def adopt(invocation: Invocation, *, name: str, number: int | None, force: bool, yes: bool) -> None:
    """Go on from the checkpoint that another feed of this name has left in its sink.

    For a feed that was removed and declared again, and for feeds declared anew after the control database was
    lost: nothing is taken over by itself. Whoever had the checkpoint has it no more, and cannot write to it. The
    feed starts anew.

    \b
    Example:
      feedq feed adopt acme/orders
    """
    live = invocation.live_feed(name)
    with invocation.open_sink(parse_sink(live.spec.sink).name) as sink:
        old = adoption.choose(sink, live, number=number, force=force)
        invocation.confirm(f"Take the checkpoint of {owner_of(old)}?", yes=yes)
        adoption.adopt(sink, live, old)
    invocation.store.feeds.restart(name)
    answer_done(invocation, [name], "adopted")


def _each(invocation: Invocation, names: Sequence[str], act: Callable[[str], Feed]) -> list[Feed]:
    """Does something to all feeds or, if one of them does not exist, to none."""
    live = [invocation.live_feed(name).name for name in names]
    return [act(name) for name in dict.fromkeys(live)]


def _wait_for(
    invocation: Invocation,
    names: Sequence[str],
    wanted: Status,
    timeout_s: float,
    generations: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Waits until all have this status, with these generations of their declarations or later ones."""

    def has_come(name: str) -> bool:
        view = invocation.store.feeds.view(name)
        return view.status is wanted and view.lease.generation >= generations.get(name, 0)

    what = f"{', '.join(names)} {wanted}"
    invocation.wait_until(lambda: all(map(has_come, names)), timeout_s=timeout_s, what=what)
