"""`feedq feed add`, `edit` and `export`: one feed as it is declared.

What is given becomes the keys of a manifest and is read as one, so that both mean the same.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from feedq.cli import options
from feedq.cli.choosing import choose, confirm_chosen, declare_all, fail_if_any, selection_of
from feedq.cli.invocation import (
    FORM_OPTIONS,
    Command,
    Invocation,
    decorated,
    pass_invocation,
    reason_option,
    yes_option,
)
from feedq.cli.output import ProgressBar, answer_done, write_difference, write_json
from feedq.core.model import Feed, FeedSpec, StartCursor, TargetState
from feedq.errors import NotFound
from feedq.verbs import actions, documents
from feedq.verbs.manifest import feed_entry
from feedq.verbs.manifest.changes import Action, Change, difference

_declaration_options = decorated(
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
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated."),
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
)
"""The options that `add` and `edit` share."""


def _changes(command: Command) -> Command:
    """As `changes`, for commands that have another ``-o``."""
    taking: Any = click.make_pass_decorator(Invocation, ensure=True)(command)
    taking.__dict__.setdefault("__click_params__", []).append(FORM_OPTIONS[0])
    return reason_option(taking)  # type: ignore[no-any-return]


@click.command()
@click.argument("name")
@click.option("--connector", required=True, help="Kind of source; `feedq connectors` lists them.")
@_declaration_options
@click.option("--paused", is_flag=True, help="Declare it, but do not run it yet.")
@_changes
def add(
    invocation: Invocation, /, *, name: str, connector: str, source: str | None, paused: bool, **given: Any
) -> None:
    """Declare a new feed.

    \b
    Example:
      feedq feed add acme/orders --connector tcp -o url=tcp://127.0.0.1:7001 -o cursor=/seq \\
          --sink table=orders
    """
    keys = {"name": name, "connector": connector, "sink": {}} | ({"target_state": "paused"} if paused else {})
    spec = feed_entry.FeedEntry.valid(_changed(keys, source=source, **given)).spec
    actions.add_feed(invocation.store, spec)
    answer_done(invocation, [name], "added")


def _changed(
    keys: Mapping[str, Any],
    *,
    source: str | None,
    source_options: Sequence[str],
    sink_options: Sequence[str],
    labels: Sequence[str],
    require: Sequence[str],
    prefer: Sequence[str],
    **plain: Any,
) -> dict[str, Any]:
    """Puts what was given on the command line into a feed as it stands in a manifest."""
    changed = dict(keys) | {key: value for key, value in plain.items() if value is not None}
    if source is not None:
        changed["source"] = options.parse_object(source, option="--source")
    changed = options.set_options(changed, source_options, option="-o", below="source.")
    for text in sink_options:
        if text.lstrip().startswith("{"):
            changed["sink"] = options.parse_object(text, option="--sink")
        else:
            changed = options.set_options(changed, [text], option="--sink", below="sink.")
    changed = options.set_options(changed, labels, option="--label", below="labels.")
    changed = options.set_options(changed, require, option="--require", below="selector.required.")
    return options.set_options(changed, prefer, option="--prefer", below="selector.preferred.")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--of-tenant", "of_tenant", help="Edit all feeds of this tenant.")
@click.option(
    "--of-label",
    "of_labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Edit all feeds with this label; may be repeated.",
)
@click.option("--of-connector", "of_connector", help="Edit all feeds with this connector.")
@click.option("--match", metavar="GLOB", help="Edit all feeds whose name is like this, such as 'acme/*'.")
@yes_option
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
@_changes
def edit(
    invocation: Invocation,
    /,
    *,
    names: Sequence[str],
    of_tenant: str | None,
    of_labels: Sequence[str],
    of_connector: str | None,
    match: str | None,
    yes: bool,
    connector: str | None,
    settings: Sequence[str],
    unsettings: Sequence[str],
    **given: Any,
) -> None:
    """Change what is given and keep the rest; feeds start anew with it, where they left off.

    All are checked first: if one would be wrong, none is changed. --tenant and --label change the feeds;
    --of-tenant and --of-label choose them.

    \b
    Example:
      feedq feed edit acme/orders --set source.url=tcp://10.0.0.7:7001 --unset source.hello
      feedq feed edit --of-tenant acme --set source.idle_timeout_s=60
    """
    if not (connector or settings or unsettings or any(given.values())):
        raise click.UsageError("nothing to change; give --set source.url=… or another option")
    selection = selection_of(
        names, tenant=of_tenant, labels=of_labels, connector=of_connector, match=match, statuses=()
    )
    chosen = choose(invocation, selection)
    if invocation.api is not None:
        chosen = invocation.api.feeds.whole(chosen)

    def edited(spec: FeedSpec) -> FeedSpec:
        keys = _changed(feed_entry.plain_feed(spec), connector=connector, **given)
        keys = options.unset_options(options.set_options(keys, settings), unsettings)
        after = feed_entry.FeedEntry.valid(keys).spec
        feed_entry.validate(after)
        return after

    specs = {view.feed.name: (view.feed.spec, edited(view.feed.spec)) for view in chosen}
    changed = [view for view in chosen if view.feed.spec != specs[view.feed.name][1]]
    if changed:
        confirm_chosen(invocation, selection, changed, "Edit", yes=yes)
    edits = [Change(Action.CHANGE, "feed", view.feed.name, specs[view.feed.name][1]) for view in changed]
    result = declare_all(invocation, edits, {}, what="feeds edited")
    _answer_edited(invocation, specs, {change.name for change, _ in result.done})
    fail_if_any(result, "edited")


def _answer_edited(
    invocation: Invocation, specs: Mapping[str, tuple[FeedSpec, FeedSpec]], edited: Collection[str]
) -> None:
    results = {name: "edited" if name in edited else "unchanged" for name in specs}
    if invocation.json:
        write_json([{"name": name, "result": result} for name, result in results.items()])
        return
    for name, result in results.items():
        if name in edited:
            write_difference(difference(*specs[name]))
        answer_done(invocation, [name], result)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--tenant", help="Only this tenant's feeds.")
@click.option(
    "--with-cursors",
    is_flag=True,
    help="Also where each stands in its sink, so that it goes on from there where it is applied as new.",
)
@pass_invocation
def export(invocation: Invocation, *, names: Sequence[str], tenant: str | None, with_cursors: bool) -> None:
    """Print feeds as a manifest that `feedq apply` takes; all of them unless named.

    With cursors, pause the feeds before: what they land afterwards would land elsewhere again.

    \b
    Example:
      feedq feed export > feeds.yaml
      feedq feed export acme/orders --with-cursors > moved.yaml
    """
    pages = _named(invocation, names, tenant) if names else _pages(invocation, tenant)
    with ProgressBar("feeds", None) as bar:
        bar.may_show &= not sys.stdout.isatty()  # there the feeds themselves go by
        entries = _entries(invocation, pages, bar, with_cursors=with_cursors)
        if invocation.json:
            write_json({"feeds": list(entries)})
        else:
            for part in documents.dump_lists({"feeds": entries}):
                click.echo(part, nl=False)


def _pages(invocation: Invocation, tenant: str | None) -> Iterator[list[Feed]]:
    """Reads feeds a page at a time: all declarations of a hundred thousand do not fit into a small container."""
    after = ""
    while page := invocation.store.feeds.declared(tenant=tenant, after=after):
        yield page
        after = page[-1].name


def _named(invocation: Invocation, names: Sequence[str], tenant: str | None) -> list[list[Feed]]:
    found: list[Feed] = []
    for name in sorted(set(names)):
        with suppress(NotFound):
            found.append(invocation.live_feed(name))
    found = [feed for feed in found if tenant in (None, feed.spec.tenant)]
    if missing := sorted(set(names) - {feed.name for feed in found}):
        raise NotFound(f"no feed named {', '.join(map(repr, missing))}; `feedq feed list` shows them all")
    return [found]


def _entries(
    invocation: Invocation, pages: Iterable[list[Feed]], bar: ProgressBar, *, with_cursors: bool
) -> Iterator[dict[str, Any]]:
    done = 0
    for feeds in pages:
        resumes = invocation.sink_verbs.resumes(feeds) if with_cursors else {}
        yield from (_entry(feed, resumes.get(feed.name)) for feed in feeds)
        done += len(feeds)
        bar(done)


def _entry(feed: Feed, resume: StartCursor | None) -> dict[str, Any]:
    """A feed that runs does not say so: applied again later, it would undo a pause that came between."""
    entry = feed_entry.plain_feed(feed.spec, resume)
    if feed.spec.target_state is TargetState.RUNNING:
        del entry["target_state"]
    return entry
