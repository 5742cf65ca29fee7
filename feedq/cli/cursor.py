"""`feedq feed cursor`: where a feed stands in its source, and how to have it go on from elsewhere."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import (
    Invocation,
    decorated,
    pass_invocation,
    reason_option,
    wait_options,
    yes_option,
)
from feedq.cli.options import moment
from feedq.cli.output import answer, write_lines

if TYPE_CHECKING:
    from feedq.core.model import JSON, ChangedCursor
    from feedq.verbs.cursors import CursorVerb

TWICE = "its sink has no key, so records that the source sends again will be there twice"

_change_options = decorated(
    click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing."),
    reason_option,
    yes_option,
    wait_options,
)


@click.group(short_help="Where a feed stands in its source: show, set, rewind.")
def cursor() -> None:
    """Where a feed stands in its source, and how to have it go on from elsewhere, while it runs.

    \b
    Example:
      feedq feed cursor show acme/orders
      feedq feed cursor rewind acme/orders --records 1000
    """


@cursor.command()
@click.argument("name")
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """The cursor in the sink, which the feed goes on from.

    \b
    Example:
      feedq feed cursor show acme/orders
    """
    from feedq.verbs.cursors import show_cursor
    from feedq.verbs.report.details import detail_lines
    from feedq.verbs.wording import as_json, stamp

    found = invocation.do(show_cursor, name=name)
    at = found.updated_at
    lines = detail_lines(
        [
            ("name", name),
            ("cursor", as_json(found.cursor) if at else "none: it has not begun"),
            ("records", f"{found.records:,}"),
            ("updated", stamp(at) if at else "-"),
        ]
    )
    answer(invocation, found, lambda: write_lines(lines))


@cursor.command("set")
@click.argument("name")
@click.argument("value", metavar="CURSOR")
@_change_options
@pass_invocation
def set_(invocation: Invocation, *, name: str, value: str, **given: Any) -> None:
    """Go on after this cursor: JSON, or else a text.

    \b
    Example:
      feedq feed cursor set acme/orders 4711
      feedq feed cursor set acme/ticks '{"ticks": "1764064800000-0"}'
    """
    from feedq.verbs.cursors import CursorVerb

    wanted: JSON = value
    with suppress(ValueError, RecursionError):
        wanted = json.loads(value)
    _change(invocation, name, CursorVerb.SET, {"cursor": wanted}, **given)


@cursor.command()
@click.argument("name")
@click.option("--records", type=click.IntRange(min=1), metavar="NUMBER", help="So many records back.")
@click.option("--to", metavar="TIME", help="To this time, such as 2026-12-01T08:00Z, or so long ago: 90m.")
@click.option("--to-start", is_flag=True, help="To where the feed began.")
@_change_options
@pass_invocation
def rewind(
    invocation: Invocation, *, name: str, records: int | None, to: str | None, to_start: bool, **given: Any
) -> None:
    """Go back: to where the feed began or, if the connector's cursors allow it, by records or to a time.

    Records that the source sends again land a second time, unless the sink has a `key`.

    \b
    Example:
      feedq feed cursor rewind acme/orders --records 1000
      feedq feed cursor rewind acme/ticks --to 90m
      feedq feed cursor rewind acme/orders --to-start
    """
    from feedq.core.values import parse_duration
    from feedq.verbs.cursors import CursorVerb

    if (records is not None) + (to is not None) + to_start != 1:
        raise click.UsageError("say one of --records, --to and --to-start")
    if to_start:
        _change(invocation, name, CursorVerb.RESET, {}, **given)
        return
    at = None
    if to is not None:
        try:
            at = invocation.clock.now() - timedelta(seconds=parse_duration(to))
        except ValueError:
            at = moment(to, "UTC", option="--to")
    _change(invocation, name, CursorVerb.REWIND, {"records": records, "to": at}, **given)


def _change(
    invocation: Invocation,
    name: str,
    verb: CursorVerb,
    asked: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    wait: bool,
    timeout_s: float,
) -> None:
    from feedq.core.model import Status
    from feedq.verbs.cursors import change_cursor
    from feedq.verbs.feeds import show_feed

    if dry_run or not yes:
        tried = invocation.do(change_cursor, name=name, change=verb, **asked, dry_run=True)
        if dry_run:
            answer(invocation, tried, _said(name, tried.change, "would go"))
            return
        invocation.confirm(f"{_said(name, tried.change, 'goes on')}. Do it?", yes=yes)
    done = invocation.do(change_cursor, name=name, change=verb, **asked)
    if wait:
        generation = invocation.do(show_feed, name=name).view.feed.generation

        def has_come() -> bool:
            view = invocation.do(show_feed, name=name).view
            return view.status is Status.STREAMING and view.lease.generation >= generation

        invocation.wait_until(has_come, timeout_s=timeout_s, what=f"{name} streaming from its new cursor")
    answer(invocation, done, _said(name, done.change, "goes on"))


def _said(name: str, change: ChangedCursor, goes: str) -> str:
    from feedq.connectors.base import show_cursor

    after = "where it began" if change.after is None else f"after cursor {show_cursor(change.after)}"
    before = "none" if change.before is None else show_cursor(change.before)
    said = f"{name} {goes} {after} (before: {before})"
    return f"{said}; {TWICE}" if change.duplicates else said
