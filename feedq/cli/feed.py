"""`feedq feed`: feeds as they are, and what is done to them, by name or to all that are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from feedq.cli.choosing import (
    await_feeds,
    chooses_feeds,
    described,
    fail_if_any,
    none_match,
    require_some,
)
from feedq.cli.cursor import backfill, cursor
from feedq.cli.dead_letters import dead_letters
from feedq.cli.declare import edit_feed, set_feeds
from feedq.cli.feed_test import feed_test
from feedq.cli.invocation import (
    Group,
    Invocation,
    OneOf,
    changes,
    decorated,
    limit_option,
    pass_invocation,
    wait_options,
    yes_option,
)
from feedq.cli.lazily import lazily
from feedq.cli.output import answer, answer_list, fact_lines, first, write_json_line

with lazily():
    from feedq.cli import tables
    from feedq.core import model, selection
    from feedq.verbs import cursors, details, feeds, wording
    from feedq.verbs import drift as drifts
    from feedq.verbs import tap as taps

TIME_WIDTH = len("2026-12-01T08:00:00.123")
TAP_S, TAPPED_MAX = 600, 1_000_000
"""Seconds and records; the API takes no more."""


@click.group(
    cls=Group,
    short_help="List, show, test, set, edit, pause, resume, restart, move, adopt, remove; cursors, dead letters.",
)
def feed() -> None:
    """Feeds, by name or by what they have in common.

    \b
    Example:
      feedq feed list --tenant acme
      feedq feed show acme/orders
    """


for _command in (set_feeds, edit_feed, feed_test, dead_letters, cursor, backfill):
    feed.add_command(_command)


# -- looking -----------------------------------------------------------------------------------------


@feed.command("list")
@chooses_feeds
@click.option(
    "--sort",
    "order",
    type=OneOf("feedq.core.selection:SelectionOrder"),
    default="name",
    show_default=True,
    help="What the first of them have most of; age is that of the last record.",
)
@limit_option(None, "Only the first so many.")
@pass_invocation
def list_(
    invocation: Invocation, *, select: selection.Selection, order: selection.SelectionOrder, limit: int | None
) -> None:
    """Feeds by name, with their status and progress: all, or those that are chosen.

    \b
    Example:
      feedq feed list --status failed --status stalled
      feedq feed list --tenant acme --sort bytes --limit 10
    """
    select = replace(select, removing=True)
    found = invocation.pages(feeds.list_feeds, select=select, order=order)
    views = first(found, limit, of="first")
    empty = "" if views else none_match(invocation)
    now = invocation.clock.now()
    answer_list(invocation, views, tables.feed_columns(now), empty=empty, wide=tables.wide_feed_columns(now))


@feed.command()
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """Everything about one feed: status, why it does not stream, progress, last error, declaration.

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


@feed.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, TAPPED_MAX),
    default=TAPPED_MAX,
    show_default=True,
    help="End after so many records.",
)
@changes
def tap(invocation: Invocation, *, name: str, limit: int) -> None:
    """Records of a running feed as they land, without another connection to its source, for ten minutes or until
    Ctrl-C.

    At most twenty a second are shown, each of at most 2,048 bytes, with secrets masked; it says how many were left
    out. The feed does not wait for whoever looks, and history says who did. With --json, one document a line.

    \b
    Example:
      feedq feed tap acme/orders --limit 10
    """
    show = write_json_line if invocation.json else _show_tapped
    with suppress(KeyboardInterrupt):
        for row in invocation.do(taps.tap_feed, name=name, seconds=TAP_S, limit=limit):
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

_acts = decorated(chooses_feeds, yes_option, wait_options(), changes)


@feed.command()
@_acts
def pause(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds, and keep them stopped until they are resumed.

    \b
    Example:
      feedq feed pause acme/orders --wait
      feedq feed pause --tenant acme --yes
    """
    _act(invocation, feeds.FeedAction.PAUSE, "paused", **asked)


@feed.command()
@_acts
def resume(invocation: Invocation, **asked: Any) -> None:
    """Let paused feeds run again, from where they left off.

    \b
    Example:
      feedq feed resume acme/orders
      feedq feed resume --label region=eu --status paused --yes
    """
    _act(invocation, feeds.FeedAction.RESUME, "resumed", **asked)


@feed.command()
@_acts
def restart(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds and start them anew, from where they left off; failures are forgotten.

    \b
    Example:
      feedq feed restart acme/orders --wait
      feedq feed restart --failing --yes
    """
    _act(invocation, feeds.FeedAction.RESTART, "restarted", **asked)


@feed.command()
@click.option(
    "--to", "target", metavar="WORKER", help="The worker that gets them. [default: those with room]"
)
@_acts
def move(invocation: Invocation, **asked: Any) -> None:
    """Move feeds to other workers, where they go on from where they left off.

    Not for good: when workers join or leave, the load is evened out anew. To tie a feed to workers, give these a
    label and let the feed require it.

    \b
    Example:
      feedq feed move acme/orders --to celery@host --wait
      feedq feed move --worker celery@host --tenant acme --yes
    """
    _act(invocation, feeds.FeedAction.MOVE, "moved", **asked)


@feed.command()
@_acts
def remove(invocation: Invocation, **asked: Any) -> None:
    """Stop feeds and forget them. What they imported stays, and so does their checkpoint in the sink.

    A feed that is declared again under its name is another one, and begins where its source begins. To go on where
    this one ends, declare it with `feedq apply --adopt`.

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
        require_some(invocation, tried)
        invocation.confirm(f"{action.capitalize()} {described(select, tried)}?{_warning(action)}", yes=yes)
        count = tried.count
    with invocation.progress(f"feeds {what}"):
        acted = invocation.do(feeds.act_on_feeds, action=action, select=select, worker=target, count=count)
    require_some(invocation, acted)
    if wait:
        await_feeds(invocation, action, acted.done, timeout_s=timeout_s)
    if acted.done or invocation.json:
        said = "moving" if action is feeds.FeedAction.MOVE and not wait else what
        to = {one.name: "" if one.worker is None else f" to {one.worker}" for one in acted.done}
        answer(invocation, acted, "\n".join(f"{name} {said}{where}" for name, where in to.items()))
    fail_if_any(acted.failed, what, done=len(acted.done))


def _warning(action: feeds.FeedAction) -> str:
    if action is not feeds.FeedAction.REMOVE:
        return ""
    return (
        " Declared again, they begin where their sources begin, unless they adopt what is left in the sink "
        "(`feedq apply --adopt`)."
    )


@feed.command()
@click.argument("name")
@click.option(
    "--number", type=click.IntRange(min=1), help="Which checkpoint, if there are several of that name."
)
@click.option("--force", is_flag=True, help="Also if the feed has landed records of its own already.")
@yes_option
@changes
def adopt(invocation: Invocation, *, name: str, number: int | None, force: bool, yes: bool) -> None:
    """Go on from the checkpoint that another feed of this name has left in its sink.

    For a feed that was removed and declared again, and for feeds declared anew after the control database was
    lost: nothing is taken over by itself. Whoever had the checkpoint has it no more, and cannot write to it. The
    feed starts anew.

    \b
    Example:
      feedq feed adopt acme/orders
    """
    adopted = invocation.do_confirmed(
        cursors.adopt_checkpoint,
        lambda tried: f"Take the checkpoint of {tried.owner}?",
        yes=yes,
        name=name,
        number=number,
        force=force,
    )
    answer(invocation, adopted, f"{name} adopted")


@feed.command()
@click.argument("name")
@click.option("--apply", "must_apply", is_flag=True, help="Add the columns; needs `drift: add`.")
@yes_option
@changes
def drift(invocation: Invocation, *, name: str, must_apply: bool, yes: bool) -> None:
    """Fields of the records that no column takes, as workers have found them, and the statements that add columns
    for them.

    Workers look for them when `sink.drift` of the feed is not `ignore`. A column that is there fills within ten
    seconds.

    \b
    Example:
      feedq feed drift acme/orders
      feedq feed drift acme/orders --apply
    """
    if must_apply:
        found = invocation.do_confirmed(
            drifts.add_columns,
            lambda tried: f"{'; '.join(tried.statements)}. Do it?" if tried.statements else None,
            yes=yes,
            name=name,
        )
    else:
        found = invocation.do(drifts.show_drift, name=name)
    lines = [*(f"{field}  {type_}" for field, type_ in sorted(found.fields.items())), *found.statements]
    empty = f"no worker has told of a field of {name} that no column takes"
    answer(invocation, found, "\n".join(lines) or empty)
