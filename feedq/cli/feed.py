"""`feedq feed`: one feed at a time, or a few by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from feedq import control, manifest
from feedq.cli import options
from feedq.cli.dead_letters import dead_letters
from feedq.cli.feed_test import feed_test
from feedq.cli.invocation import Invocation, json_option, pass_invocation, wait_options
from feedq.cli.output import write_json
from feedq.cli.views import write_difference, write_events, write_feed, write_feeds
from feedq.declaration import difference
from feedq.errors import NotFound
from feedq.model import Feed, FeedSpec, FeedView, Status, TargetState
from feedq.report import event_row, feed_document, feed_row

Command = TypeVar("Command", bound=Callable[..., Any])

EVENTS_SHOWN = 50


@click.group(short_help="Add, test, list, show, edit, pause, resume, restart, remove feeds; dead letters.")
def feed() -> None:
    """One feed, or a few by name.

    \b
    Example:
      feedq feed list --tenant acme
      feedq feed show acme/orders
    """


feed.add_command(feed_test)
feed.add_command(dead_letters)


def _declaration_options(command: Command) -> Command:
    """The options that `add` and `edit` share."""
    for option in reversed(
        [
            click.option("--source", metavar="JSON", help="All options of the connector, as a JSON object."),
            click.option(
                "-o",
                "--option",
                "source_options",
                multiple=True,
                metavar="KEY=VALUE",
                help="One option of the connector, such as url=tcp://host:7001; may be repeated.",
            ),
            click.option(
                "--sink",
                "sink_options",
                multiple=True,
                metavar="KEY=VALUE",
                help="One option of the sink, such as table=orders; may be repeated, or a JSON object.",
            ),
            click.option("--tenant", help="Whom the feed belongs to."),
            click.option(
                "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated."
            ),
            click.option("--weight", type=float, help="Load of the feed beside others (1 unless given)."),
        ]
    ):
        command = option(command)
    return command


@feed.command()
@click.argument("name")
@click.option("--connector", required=True, help="Kind of source; `feedq connectors` lists them.")
@_declaration_options
@click.option("--paused", is_flag=True, help="Declare it, but do not run it yet.")
@json_option
@pass_invocation
def add(
    invocation: Invocation, /, *, name: str, connector: str, source: str | None, paused: bool, **given: Any
) -> None:
    """Declare a new feed.

    \b
    Example:
      feedq feed add acme/orders --connector tcp -o url=tcp://127.0.0.1:7001 -o cursor=/seq \\
          --sink table=orders
    """
    empty = FeedSpec(name=name, connector=connector, source={}, sink={})
    target = TargetState.PAUSED if paused else TargetState.RUNNING
    spec = _changed(replace(empty, target_state=target), source=source, **given)
    control.add_feed(invocation.store, spec)
    _confirm_done(invocation, [name], "added")


def _changed(
    spec: FeedSpec,
    *,
    source: str | None,
    source_options: Sequence[str],
    sink_options: Sequence[str],
    tenant: str | None,
    labels: Sequence[str],
    weight: float | None,
) -> FeedSpec:
    base = spec.source if source is None else options.parse_object(source, option="--source")
    return replace(
        spec,
        source=options.merge_source(base, spec.connector, source_options),
        sink=options.merge_sink(spec.sink, sink_options),
        tenant=spec.tenant if tenant is None else tenant,
        labels=options.merge_labels(spec.labels, labels),
        weight=spec.weight if weight is None else weight,
    )


@feed.command()
@click.argument("name")
@click.option("--connector", help="Another kind of source.")
@_declaration_options
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set one option, such as source.url=… or weight=2; may be repeated.",
)
@click.option(
    "--unset",
    "unsettings",
    multiple=True,
    metavar="PATH",
    help="Take an option away, such as source.hello; may be repeated.",
)
@json_option
@pass_invocation
def edit(
    invocation: Invocation,
    /,
    *,
    name: str,
    connector: str | None,
    settings: Sequence[str],
    unsettings: Sequence[str],
    **given: Any,
) -> None:
    """Change what is given and keep the rest; the feed starts anew with it, where it left off.

    \b
    Example:
      feedq feed edit acme/orders --set source.url=tcp://10.0.0.7:7001 --unset source.hello
    """
    if not (connector or settings or unsettings or any(given.values())):
        raise click.UsageError("nothing to change; give --set source.url=… or another option")
    before = _live(invocation, name).spec
    after = before if connector is None else replace(before, connector=connector)
    after = options.set_options(_changed(after, **given), settings)
    after = options.unset_options(after, unsettings)
    control.edit_feed(invocation.store, after)
    if not invocation.json:
        write_difference(difference(before, after))
    _confirm_done(invocation, [name], "edited" if before != after else "unchanged")


def _live(invocation: Invocation, name: str) -> Feed:
    found = invocation.store.feeds.get(name)
    if found.removed_at is not None:
        raise NotFound(f"feed {name!r} is being removed")
    return found


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
@json_option
@pass_invocation
def list_(invocation: Invocation, *, tenant: str | None, worker: str | None, statuses: Sequence[str]) -> None:
    """All feeds by name, with their status and progress.

    \b
    Example:
      feedq feed list --status failed --status stalled
    """
    views = invocation.store.feeds.views(tenant=tenant, worker=worker)
    shown = [view for view in views if not statuses or view.status.value in statuses]
    if invocation.json:
        write_json([feed_row(view) for view in shown])
    else:
        write_feeds(shown, now=invocation.clock.now())


@feed.command()
@click.argument("name")
@json_option
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one feed: status, progress, last error, declaration.

    \b
    Example:
      feedq feed show acme/orders
    """
    view = invocation.store.feeds.view(name)
    if invocation.json:
        write_json(feed_document(view))
    else:
        write_feed(view, now=invocation.clock.now())


@feed.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=EVENTS_SHOWN,
    show_default=True,
    help="How many, newest first.",
)
@json_option
@pass_invocation
def events(invocation: Invocation, *, name: str, limit: int) -> None:
    """The history of one feed, newest first.

    \b
    Example:
      feedq feed events acme/orders --limit 10
    """
    found = invocation.store.feeds.events(name, limit=limit)
    if invocation.json:
        write_json([event_row(event) for event in found])
    else:
        workers = control.worker_names(invocation.store.workers.views(gone=True))
        write_events(found, workers=workers)


@feed.command()
@click.argument("names", nargs=-1)
@click.option("--tenant", help="Only this tenant's feeds.")
@json_option
@pass_invocation
def export(invocation: Invocation, *, names: Sequence[str], tenant: str | None) -> None:
    """Print feeds as a manifest that `feedq apply` takes; all of them unless named.

    \b
    Example:
      feedq feed export > feeds.yaml
    """
    specs = {
        view.feed.name: view.feed.spec
        for view in invocation.store.feeds.views(tenant=tenant)
        if view.feed.removed_at is None
    }
    missing = [name for name in names if name not in specs]
    if missing:
        raise NotFound(f"no feed named {', '.join(map(repr, missing))}; `feedq feed list` shows them all")
    chosen = [spec for name, spec in specs.items() if not names or name in names]
    if invocation.json:
        write_json({"feeds": [manifest.plain(spec) for spec in chosen]})
    else:
        click.echo(manifest.dump(chosen), nl=False)


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@json_option
@pass_invocation
def pause(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Stop feeds, and keep them stopped until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
    """
    _each(invocation, names, lambda name: invocation.store.feeds.set_target(name, TargetState.PAUSED))
    if wait:
        _wait_for_status(invocation, names, {Status.PAUSED}, timeout_s=timeout_s)
    _confirm_done(invocation, names, "paused")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@json_option
@pass_invocation
def resume(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
    """
    _each(invocation, names, lambda name: invocation.store.feeds.set_target(name, TargetState.RUNNING))
    if wait:
        _wait_for_status(invocation, names, {Status.STREAMING}, timeout_s=timeout_s)
    _confirm_done(invocation, names, "resumed")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@wait_options
@json_option
@pass_invocation
def restart(invocation: Invocation, *, names: Sequence[str], wait: bool, timeout_s: float) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
    """
    restarted = _each(invocation, names, invocation.store.feeds.restart)
    if wait:
        wanted = {feed.name: feed.generation for feed in restarted}

        def is_back(view: FeedView) -> bool:
            return view.status is Status.STREAMING and view.lease.generation >= wanted[view.feed.name]

        _wait_for(invocation, names, is_back, what="restart", timeout_s=timeout_s)
    _confirm_done(invocation, names, "restarted")


@feed.command()
@click.argument("names", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@wait_options
@json_option
@pass_invocation
def remove(invocation: Invocation, *, names: Sequence[str], yes: bool, wait: bool, timeout_s: float) -> None:
    """Stop feeds and forget them. What they imported stays, and so does their checkpoint in the sink.

    \b
    Example:
      feedq feed remove acme/orders --yes --wait
    """
    live = [_live(invocation, name) for name in names]
    if not yes:
        invocation.confirm(f"Remove {', '.join(names)}?")
    _each(invocation, names, invocation.store.feeds.remove)
    if wait:
        ids = {feed.id for feed in live}
        invocation.wait_until(
            lambda: not any(view.feed.id in ids for view in invocation.store.feeds.views()),
            timeout_s=timeout_s,
            what="removal",
        )
    _confirm_done(invocation, names, "removed")


def _each(invocation: Invocation, names: Sequence[str], act: Callable[[str], Feed]) -> list[Feed]:
    """Do it to all or, if one of them does not exist, to none."""
    live = [_live(invocation, name).name for name in names]
    return [act(name) for name in dict.fromkeys(live)]


def _wait_for_status(
    invocation: Invocation, names: Sequence[str], wanted: set[Status], *, timeout_s: float
) -> None:
    what = f"{', '.join(names)} {'/'.join(sorted(wanted))}"
    _wait_for(invocation, names, lambda view: view.status in wanted, what=what, timeout_s=timeout_s)


def _wait_for(
    invocation: Invocation,
    names: Sequence[str],
    is_done: Callable[[FeedView], bool],
    *,
    what: str,
    timeout_s: float,
) -> None:
    feeds = invocation.store.feeds
    invocation.wait_until(
        lambda: all(is_done(feeds.view(name)) for name in names), timeout_s=timeout_s, what=what
    )


def _confirm_done(invocation: Invocation, names: Sequence[str], done: str) -> None:
    if invocation.json:
        write_json([{"name": name, "result": done} for name in dict.fromkeys(names)])
    else:
        for name in dict.fromkeys(names):
            click.echo(f"{name} {done}")
