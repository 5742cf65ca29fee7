"""`feedq feed`: feeds as they are, and what is done to them, by name or to all that are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from feedq.cli import choosing, options
from feedq.cli.apply import read_manifests
from feedq.cli.cursor import backfill, cursor, dead_letters
from feedq.cli.declare import edit_feed, set_feeds
from feedq.cli.invocation import Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import answer, answer_list, fact_lines, first, styled, write_json_line
from feedq.core.tap import LIMIT_MAX
from feedq.errors import FeedqError, NotFound

with lazily():
    from feedq.cli import tables
    from feedq.core import model, selection
    from feedq.sinks import base as sinks_base
    from feedq.verbs import cursors, details, documents, feeds, landing, proposing, trial, wording

TIME_WIDTH = len("2026-12-01T08:00:00.123")
VALUE_WIDTH = 100
"""Characters of a value on a terminal; --json has all of it."""


@options.group(
    short_help="List, show, test, set, edit, pause, resume, restart, move, adopt, remove; cursors, dead letters.",
)
def feed() -> None:
    """Feeds, by name or by what they have in common.

    \b
    Example:
      feedq feed list --tenant acme
      feedq feed show acme/orders
    """


for _command in (set_feeds, edit_feed, dead_letters, cursor, backfill):
    feed.add_command(_command)


# -- looking -----------------------------------------------------------------------------------------


@feed.command("list")
@choosing.chooses_feeds
@click.option(
    "--sort",
    "order",
    type=options.OneOf("feedq.core.selection:SelectionOrder"),
    default="name",
    help="Order; age is that of the last record.",
)
@options.limit(None, "Show only this many.")
def list_(
    invocation: Invocation, *, select: selection.Selection, order: selection.SelectionOrder, limit: int | None
) -> None:
    """Feeds with their status and progress: all, or those chosen.

    \b
    Example:
      feedq feed list --status failed --status stalled
      feedq feed list --tenant acme --sort bytes --limit 10
    """
    select = replace(select, removing=True)
    found = invocation.pages(feeds.list_feeds, select=select, order=order)
    views = first(found, limit, of="first")
    empty = "" if views else choosing.none_match(invocation)
    now = invocation.clock.now()
    answer_list(invocation, views, tables.feed_columns(now), empty=empty, wide=tables.wide_feed_columns(now))


@feed.command(short_help="Everything about one feed.")
@click.argument("name")
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one feed: status and reason, progress, last error, declaration.

    \b
    Example:
      feedq feed show acme/orders
    """
    found = invocation.do(feeds.show_feed, name=name)
    of = model.known_as(name) if name.endswith(model.BACKFILL_SUFFIX) else None
    facts: list[details.Fact] = [
        *(("name", name), ("backfill of", of), ("status", found.view.status), ("why", found.explanation)),
        *details.feed_lines(found, now=invocation.clock.now()),
    ]
    answer(invocation, found, fact_lines(facts, found.declaration))


@feed.command(short_help="Show records as they land.")
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT_MAX,
    help="Stop after this many records.",
)
@options.changes
def tap(invocation: Invocation, *, name: str, limit: int) -> None:
    """Show a running feed's records as they land, for ten minutes or until Ctrl-C.

    There is no second connection to the source, and the feed does not wait for you. It shows at most twenty
    records a second, 2,048 bytes each, with secrets masked. History records who looked.

    \b
    Example:
      feedq feed tap acme/orders --limit 10
    """
    show = write_json_line if invocation.json else _show_tapped
    with suppress(KeyboardInterrupt):
        for row in invocation.do(landing.tap_feed, name=name, limit=limit):
            if row is not None:
                show(row)


def _show_tapped(row: Mapping[str, Any]) -> None:
    match row["event"]:
        case "record":
            cut = f" … (cut: {row['bytes']:,} bytes)" if row["cut"] else ""
            click.echo(f"{row['at'][:TIME_WIDTH]}  {wording.printable(row['record'])}{cut}")
        case "left_out":
            refused = f"; {row['refused']:,} of all were refused" if row["refused"] else ""
            click.echo(f"… {row['records']:,} more landed{refused}", err=True)
        case "end":
            click.echo(f"(ended: {wording.printable(row['why'])})", err=True)


# -- acting ------------------------------------------------------------------------------------------

_acts = options.decorated(choosing.chooses_feeds, options.yes, options.waits(), options.changes)


@feed.command()
@_acts
def pause(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
      feedq feed pause --tenant acme --yes
    """
    _act(invocation, feeds.FeedAction.PAUSE, "paused", **asked)


@feed.command()
@_acts
def resume(invocation: Invocation, **asked: Any) -> None:
    """Let paused feeds continue where they left off.

    \b
    Example:
      feedq feed resume acme/orders
      feedq feed resume --label region=eu --status paused --yes
    """
    _act(invocation, feeds.FeedAction.RESUME, "resumed", **asked)


@feed.command(short_help="Restart feeds where they left off.")
@_acts
def restart(invocation: Invocation, **asked: Any) -> None:
    """Restart feeds where they left off, and forget their failures.

    \b
    Example:
      feedq feed restart acme/orders --wait
      feedq feed restart --failing --yes
    """
    _act(invocation, feeds.FeedAction.RESTART, "restarted", **asked)


@feed.command(short_help="Move feeds to other workers.")
@click.option("--to", "target", metavar="WORKER", help="Target worker. [default: any with room]")
@_acts
def move(invocation: Invocation, **asked: Any) -> None:
    """Move feeds to other workers, where they continue where they left off.

    Later rebalancing may move them again. To tie a feed to certain workers, let it require a label that
    they have.

    \b
    Example:
      feedq feed move acme/orders --to celery@host --wait
      feedq feed move --worker celery@host --tenant acme --yes
    """
    _act(invocation, feeds.FeedAction.MOVE, "moved", **asked)


@feed.command()
@_acts
def remove(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds and delete their declarations. Imported rows and the checkpoint in the sink stay.

    A feed declared again under the same name starts where its source starts; `feedq apply --adopt`
    continues from the checkpoint instead.

    \b
    Example:
      feedq feed remove acme/orders --yes --wait
      feedq feed remove --tenant acme
    """
    _act(invocation, feeds.FeedAction.REMOVE, "removed", **asked)


def _act(
    invocation: Invocation,
    action: feeds.FeedAction,
    what: str,
    *,
    select: selection.Selection,
    yes: bool,
    wait: bool,
    timeout_s: float,
    target: str | None = None,
) -> None:
    """Does it to all that are chosen, and waits for it if need be. Raises when it could not be done to some, and
    `NotFound` when nothing is chosen."""
    count = None
    # Whoever names feeds has said so already; what is removed is asked about all the same.
    if not select.names or action is feeds.FeedAction.REMOVE:
        tried = invocation.do(feeds.act_on_feeds, action=action, select=select, dry_run=True)
        choosing.require_some(invocation, tried)
        invocation.confirm(
            f"{action.capitalize()} {choosing.described(select, tried)}?{_warning(action)}", yes=yes
        )
        count = tried.count
    with invocation.progress(f"feeds {what}"):
        acted = invocation.do(feeds.act_on_feeds, action=action, select=select, worker=target, count=count)
    choosing.require_some(invocation, acted)
    if wait and (begun := [one for one in acted.done if not one.already]):
        choosing.await_feeds(invocation, action, begun, timeout_s=timeout_s)
    if acted.done or invocation.json:
        said = "moving" if action is feeds.FeedAction.MOVE and not wait else what
        answer(invocation, acted, "\n".join(_done(one, said) for one in acted.done))
    choosing.fail_if_any(acted.failed, what, done=len(acted.done))


def _done(one: feeds.Done, said: str) -> str:
    if one.already:
        return f"{one.name} is already on {one.worker}"
    return f"{one.name} {said}" + ("" if one.worker is None else f" to {one.worker}")


def _warning(action: feeds.FeedAction) -> str:
    if action is not feeds.FeedAction.REMOVE:
        return ""
    return (
        " If you declare them again, they begin where their sources begin, unless they adopt what is left in "
        "the sink "
        "(`feedq apply --adopt`)."
    )


@feed.command(short_help="Continue from a checkpoint left in the sink.")
@click.argument("name")
@click.option("--number", type=click.IntRange(min=1), help="Which checkpoint, if several have this name.")
@click.option("--force", is_flag=True, help="Even if the feed has already landed records of its own.")
@options.yes
@options.changes
def adopt(invocation: Invocation, *, name: str, yes: bool, **which: Any) -> None:
    """Continue from the checkpoint that another feed of this name left in its sink.

    For a feed that was removed and declared again, or declared again after the control database was lost.
    The feed restarts, and the previous owner of the checkpoint can no longer write to it.

    \b
    Example:
      feedq feed adopt acme/orders
    """

    def question(tried: cursors.Adopted) -> str:
        return f"Take the checkpoint of {tried.owner}?"

    adopted = invocation.do_confirmed(cursors.adopt_checkpoint, question, yes=yes, name=name, **which)
    answer(invocation, adopted, f"{name} adopted")


@feed.command(short_help="Show fields without a column, or add columns.")
@click.argument("name")
@click.option("--apply", "must_apply", is_flag=True, help="Add the columns; requires `drift: add`.")
@options.yes
@options.changes
def drift(invocation: Invocation, *, name: str, must_apply: bool, yes: bool) -> None:
    """Show fields of the records that no column takes, and the statements that would add columns.

    Workers look for such fields unless the feed's `sink.drift` is `ignore`. New columns fill within ten
    seconds.

    \b
    Example:
      feedq feed drift acme/orders
      feedq feed drift acme/orders --apply
    """
    if must_apply:
        found = invocation.do_confirmed(
            landing.add_columns,
            lambda tried: f"{'; '.join(tried.statements)}. Do it?" if tried.statements else None,
            yes=yes,
            name=name,
        )
    else:
        found = invocation.do(landing.show_drift, name=name)
    lines = [*(f"{field}  {type_}" for field, type_ in sorted(found.fields.items())), *found.statements]
    empty = f"no worker has found a field of {name} without a column"
    answer(invocation, found, "\n".join(lines) or empty)


# -- trying --------------------------------------------------------------------------------------------


@feed.command("test", short_help="Try a feed without importing anything.")
@click.argument("name")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the feed from this manifest, not from the control database.",
)
@click.option(
    "--records",
    type=click.IntRange(1, 1_000),
    help="How many to show. [default: 5; with --infer up to 100, until the source is quiet]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Duration(most_s=3_600),
    default="10s",
    help="How long to wait for the records.",
)
@click.option(
    "--cursor",
    type=options.read_cursor,
    metavar="TEXT",
    help="Start after this cursor.",
)
@click.option(
    "--infer",
    is_flag=True,
    help="Propose columns, types and framing from the first records, as a manifest.",
)
def feed_test(
    invocation: Invocation, *, name: str, path: Path | None, records: int | None, infer: bool, **asked: Any
) -> None:
    """Connect to the source and show how its first records would land. Nothing is imported.

    It runs on this machine, with its secrets, network and connectors. The feed may be running, or not
    declared yet (-f).

    \b
    Example:
      feedq feed test acme/orders --records 3
      feedq feed test acme/orders -f feeds.yaml
      feedq feed test acme/orders -f feeds.yaml --infer > typed.yaml
    """
    invocation.keep_log_quiet()
    spec = invocation.store.feeds.get(name).spec if path is None else _from_file(path, name)
    made = trial.try_feed(
        proposing.as_lines_of_text(spec) if infer else spec,
        invocation.settings,
        invocation.clock,
        records=records or (100 if infer else 5),
        quiet_s=trial.QUIET_S if infer and records is None else None,
        on_waiting=lambda why: click.echo(f"{wording.printable(why)} …", err=True),
        **asked,
    )
    if infer:
        _propose(invocation, spec, made)
        return
    document = {
        "name": name,
        "ok": made.ok,
        "steps": made.steps,
        "records": [_document(preview) for preview in made.records],
        "cursor": made.cursor,
    }
    answer(invocation, document, lambda: _write(made))
    if not made.ok:
        click.get_current_context().exit(1)


def _propose(invocation: Invocation, spec: model.FeedSpec, made: trial.Trial) -> None:
    """Prints a manifest; the steps of the trial go to standard error. A table that is not there is no trouble."""
    _write_steps(made, err=True)
    if not made.records:
        raise FeedqError(f"feed {spec.name!r}: nothing can be proposed without a record")
    found = proposing.proposed(spec, [preview.record for preview in made.records])
    if (found.source.get("csv") or {}).get("header"):
        names = ", ".join(found.source["csv"]["fields"])
        said = f"the first line is read as names: {names}; if it is a record, remove csv.header"
        click.echo(wording.printable(said), err=True)
    if found.target_state is model.TargetState.RUNNING:
        found = found.model_copy(update={"target_state": None})
    manifest = {"feeds": [found.plain()]}
    answer(invocation, manifest, lambda: click.echo(documents.dump(manifest), nl=False))


def _from_file(path: Path, name: str) -> model.FeedSpec:
    specs: dict[str, model.FeedSpec] = {
        feed.spec.name: feed.spec for feed in read_manifests([str(path)]).feeds
    }
    if name not in specs:
        raise NotFound(f"{path}: declares no feed {name!r}; it has {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def _document(preview: sinks_base.Preview) -> dict[str, Any]:
    return {
        "record": preview.record.decode("utf-8", "replace"),
        "columns": dict(preview.columns),
        "error": preview.error,
    }


def _write_steps(made: trial.Trial, *, err: bool = False) -> None:
    for step in made.steps:
        shown = styled(step.outcome.ljust(7), step.outcome)
        click.echo(f"{shown}  {step.step.ljust(11)}  {wording.printable(step.detail)}".rstrip(), err=err)


def _write(made: trial.Trial) -> None:
    _write_steps(made)
    for number, preview in enumerate(made.records, 1):
        _write_record(number, preview)
    if made.records:
        cursor = f" Cursor after these: {wording.printable(wording.as_json(made.cursor))}"
        click.echo("\nNothing was imported." + ("" if made.cursor is None else cursor))


def _write_record(number: int, preview: sinks_base.Preview) -> None:
    click.echo(f"\n{number}. {_short(preview.record.decode('utf-8', 'backslashreplace'))}")
    width = max(map(len, preview.columns), default=0)
    for column, text in preview.columns.items():
        click.echo(f"   {wording.printable(column).ljust(width)}  {'NULL' if text is None else _short(text)}")
    if preview.error is not None:
        click.echo(f"   would go to the dead letters: {wording.printable(preview.error)}")


def _short(text: str) -> str:
    return wording.cut(wording.printable(text), VALUE_WIDTH)
