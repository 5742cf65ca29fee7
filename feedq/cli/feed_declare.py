"""`feedq feed add`, `edit` and `export`: one feed as it is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from feedq import manifest, verbs
from feedq.cli import options
from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import write_json
from feedq.cli.views import write_difference, write_done
from feedq.declaration import difference
from feedq.errors import NotFound
from feedq.model import FeedSpec, TargetState

Command = TypeVar("Command", bound=Callable[..., Any])


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
            click.option(
                "--require",
                multiple=True,
                metavar="KEY=VALUE",
                help="A label that a worker must have to get the feed; may be repeated.",
            ),
            click.option(
                "--prefer",
                multiple=True,
                metavar="KEY=VALUE",
                help="A label of the workers that should get it, as long as one has room; may be repeated.",
            ),
            click.option("--weight", type=float, help="Load of the feed beside others (1 unless given)."),
        ]
    ):
        command = option(command)
    return command


@click.command()
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
    verbs.add_feed(invocation.store, spec)
    write_done(invocation, [name], "added")


def _changed(
    spec: FeedSpec,
    *,
    source: str | None,
    source_options: Sequence[str],
    sink_options: Sequence[str],
    tenant: str | None,
    labels: Sequence[str],
    require: Sequence[str],
    prefer: Sequence[str],
    weight: float | None,
) -> FeedSpec:
    base = spec.source if source is None else options.parse_object(source, option="--source")
    return replace(
        spec,
        source=options.merge_source(base, spec.connector, source_options),
        sink=options.merge_sink(spec.sink, sink_options),
        tenant=spec.tenant if tenant is None else tenant,
        labels=options.merge_labels(spec.labels, labels),
        selector=options.merge_selector(spec.selector, require=require, prefer=prefer),
        weight=spec.weight if weight is None else weight,
    )


@click.command()
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
    before = invocation.live_feed(name).spec
    after = before if connector is None else replace(before, connector=connector)
    after = options.set_options(_changed(after, **given), settings)
    after = options.unset_options(after, unsettings)
    verbs.edit_feed(invocation.store, after)
    if not invocation.json:
        write_difference(difference(before, after))
    write_done(invocation, [name], "edited" if before != after else "unchanged")


@click.command()
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
