"""`feedq export`: feeds, schedules and queues as a manifest."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from feedq.cli.choosing import NAMES_AT_ONCE
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import ProgressBar, write_json
from feedq.errors import Forbidden, NotFound, Unreadable


@click.command(short_help="Print feeds, schedules and queues as a manifest.")
@click.argument("names", nargs=-1)
@click.option("--tenant", help="Only this tenant's feeds, and no schedules.")
@click.option(
    "--with-cursors",
    is_flag=True,
    help="Also where each feed stands in its sink, so that it goes on from there where it is applied as new.",
)
@pass_invocation
def export(invocation: Invocation, *, names: Sequence[str], tenant: str | None, with_cursors: bool) -> None:
    """Print what is declared as a manifest that `feedq apply` takes: everything, or what has one of these names.

    With cursors, pause the feeds before: what they land afterwards would land elsewhere again.

    \b
    Example:
      feedq export > feeds.yaml
      feedq export acme/orders --with-cursors > moved.yaml
    """
    from feedq.verbs import documents

    if names and tenant is not None:
        raise click.UsageError("--tenant chooses feeds; give names or --tenant")
    with ProgressBar("feeds") as bar:
        bar.may_show &= not sys.stdout.isatty()  # there the feeds themselves go by
        feeds = _feeds(invocation, names, bar, tenant=tenant, with_cursors=with_cursors)
        if names:
            feeds = list(feeds)
        named = [entry["name"] for entry in feeds] if isinstance(feeds, list) else []
        lists: dict[str, Iterable[Any]] = {} if names and not named else {"feeds": feeds}
        if tenant is None:
            lists |= _jobs(invocation, names, named)
        if invocation.json:
            write_json({key: list(found) for key, found in lists.items()})
            return
        for part in documents.dump_lists(lists):
            click.echo(part, nl=False)


def _feeds(
    invocation: Invocation, names: Sequence[str], bar: ProgressBar, *, tenant: str | None, with_cursors: bool
) -> Iterable[dict[str, Any]]:
    from feedq.verbs.declarations import list_declared_feeds

    once = tuple(dict.fromkeys(names))
    parts = [once[start : start + NAMES_AT_ONCE] for start in range(0, len(once), NAMES_AT_ONCE)] or [()]
    done = 0
    for part in parts:
        for one in invocation.pages(
            None, list_declared_feeds, names=part, tenant=tenant, with_cursors=with_cursors
        ):
            yield one.declaration.plain()
            bar(done := done + 1)


def _jobs(invocation: Invocation, names: Sequence[str], feeds: Collection[str]) -> dict[str, Iterable[Any]]:
    """The lists of schedules and queues that are not empty. Raises `NotFound` for a name that neither a feed nor a
    schedule has."""
    from feedq.verbs.declarations import list_declared_queues, list_declared_schedules

    missing = sorted({*names} - {*feeds})
    try:
        found = [
            one for one in invocation.pages(None, list_declared_schedules) if not names or one.name in names
        ]
    except Forbidden:
        if not names or missing:
            raise
        return {}  # schedules are for those who may see everything
    there = {one.name for one in found}
    if unknown := [name for name in missing if name not in there]:
        raise NotFound(f"no feed and no schedule named {', '.join(map(repr, unknown))}")
    if unreadable := [one.unreadable for one in found if one.unreadable is not None]:
        raise Unreadable("\n".join(unreadable))
    queues = [] if names else invocation.do(list_declared_queues).items
    lists: dict[str, Iterable[Any]] = {}
    if found:
        lists["schedules"] = (one.declaration.plain() for one in found if one.declaration is not None)
    if queues:
        lists["queues"] = [queue.plain() for queue in queues]
    return lists
