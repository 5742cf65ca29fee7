"""`feedq export`: feeds, schedules and queues as a manifest."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.apply import declared_feeds
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import ProgressBar, write_json
from feedq.errors import Forbidden, NotFound, Unreadable

if TYPE_CHECKING:
    from feedq.core.model import Feed, StartCursor


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
    named = _named(invocation, names)
    pages = [named] if names else declared_feeds(invocation, tenant=tenant)
    of_jobs = {} if tenant is not None else _jobs(invocation, names, [feed.name for feed in named])
    with ProgressBar("feeds", None) as bar:
        bar.may_show &= not sys.stdout.isatty()  # there the feeds themselves go by
        lists: dict[str, Iterable[Any]] = (
            {}
            if names and not named
            else {"feeds": _entries(invocation, pages, bar, with_cursors=with_cursors)}
        )
        lists |= of_jobs
        if invocation.json:
            write_json({key: list(found) for key, found in lists.items()})
            return
        for part in documents.dump_lists(lists):
            click.echo(part, nl=False)


def _named(invocation: Invocation, names: Sequence[str]) -> list[Feed]:
    found: list[Feed] = []
    for name in sorted(set(names)):
        with suppress(NotFound):
            invocation.live_feed(name)
            found.append(invocation.store.feeds.view(name).feed)
    return found


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
    from feedq.core.model import TargetState
    from feedq.verbs.manifest.feed_entry import plain_feed

    entry = plain_feed(feed.spec, resume)
    if feed.spec.target_state is TargetState.RUNNING:
        del entry["target_state"]
    return entry


def _jobs(invocation: Invocation, names: Sequence[str], feeds: Collection[str]) -> dict[str, Iterable[Any]]:
    """The lists of schedules and queues that are not empty. Raises `NotFound` for a name that neither a feed nor a
    schedule has."""
    from feedq.core.schedule.entries import plain_queue, plain_schedule
    from feedq.core.schedule.model import ScheduleSpec, UnreadableSpec

    missing = sorted({*names} - {*feeds})
    try:
        specs = invocation.jobs.schedules.specs()
    except Forbidden:
        if not names or missing:
            raise
        return {}  # schedules are for those who may see everything
    if unknown := [name for name in missing if name not in specs]:
        raise NotFound(f"no feed and no schedule named {', '.join(map(repr, unknown))}")
    found = [spec for name, spec in specs.items() if not names or name in names]
    if unreadable := [spec.why for spec in found if isinstance(spec, UnreadableSpec)]:
        raise Unreadable("\n".join(unreadable))
    chosen = [spec for spec in found if isinstance(spec, ScheduleSpec)]
    queues = [] if names else invocation.jobs.queues.all()
    lists: dict[str, Iterable[Any]] = {}
    if chosen:
        lists["schedules"] = map(plain_schedule, chosen)  # one by one: there may be a hundred thousand
    if queues:
        lists["queues"] = map(plain_queue, queues)
    return lists
