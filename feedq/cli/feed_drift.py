"""`feedq feed drift`: fields of a feed's records that no column takes, and columns for them."""

from __future__ import annotations

import click

from feedq import new_columns
from feedq.cli.invocation import Invocation, output_option, pass_invocation, reason_option, yes_option
from feedq.cli.output import answer
from feedq.notices import new_fields
from feedq.report.rows import drift_document
from feedq.sinks.base import parse_sink
from feedq.wording import printable


@click.command()
@click.argument("name")
@click.option("--apply", "must_apply", is_flag=True, help="Add the columns; needs `drift: add`.")
@output_option
@yes_option
@reason_option
@pass_invocation
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
    invocation.live_feed(name)
    view = invocation.store.feeds.view(name)
    with invocation.open_sink(parse_sink(view.feed.spec.sink).name) as sink:
        statements = new_columns.proposed(sink, view)
        if must_apply and statements:
            listed = "; ".join(statements)
            invocation.confirm(f"{printable(listed)}. Do it?", yes=yes)
            statements = new_columns.add_columns(invocation.store, sink, view)
    fields = new_fields(view.lease.noticed)
    lines = [*(f"{field}  {type_}" for field, type_ in sorted(fields.items())), *statements]
    answer(
        invocation,
        drift_document(view, statements, applied=must_apply),
        printable_lines(lines) or f"no worker has told of a field of {name} that no column takes",
    )


def printable_lines(lines: list[str]) -> str:
    return "\n".join(map(printable, lines))
