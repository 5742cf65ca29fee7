"""Which feeds a command is about: by name, or by what they have in common.

The options make a `Selection`; what they choose is counted and shown before anything is done to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from feedq.cli.invocation import Invocation, OneOf, decorated
from feedq.errors import NotFound, error_of

if TYPE_CHECKING:
    from feedq.core.model import FeedView
    from feedq.core.selection import Selection
    from feedq.verbs.feeds import Acted, Failed

ERRORS_SHOWN_MAX: Final = 20
NAMES_AT_ONCE: Final = 100
"""Names that are asked for together: an address holds no more."""

selection_options = decorated(
    click.option("--tenant", help="Only this tenant's feeds."),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only feeds with this label; may be repeated.",
    ),
    click.option("--worker", help="Only the feeds that this worker holds."),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=OneOf("feedq.core.model:Status"),
        help="Only feeds of this status; may be repeated.",
    ),
    click.option("--connector", help="Only feeds with this connector."),
    click.option("--match", metavar="GLOB", help="Only feeds whose name is like this, such as 'acme/*'."),
    click.option("--failing", is_flag=True, help="Only feeds in trouble, which somebody has to look at."),
    click.option("--unmet", is_flag=True, help="Only feeds that are not as expected."),
    click.option("--dead-letters", is_flag=True, help="Only feeds that have dead letters."),
)
"""The options of a selection; hand them to `selection_of`."""


def selection_of(names: Sequence[str] = (), **given: Any) -> Selection:
    """The selection that the options ask for. Raises `InvalidInput`."""
    from feedq.cli.options import split_assignment
    from feedq.core.selection import Selection

    labels = dict(split_assignment(text, option="--label") for text in given.pop("labels"))
    return Selection(names=tuple(dict.fromkeys(names)), labels=labels, **given)


def feeds_named(
    invocation: Invocation, names: Sequence[str], *, removing: bool = False
) -> Iterator[FeedView]:
    """The feeds of these names that there are, some at a time."""
    from feedq.core.selection import Selection
    from feedq.verbs.feeds import list_feeds

    for start in range(0, len(names), NAMES_AT_ONCE):
        part = Selection(names=tuple(names[start : start + NAMES_AT_ONCE]), removing=removing)
        yield from invocation.pages(None, list_feeds, select=part)


def none_match(invocation: Invocation, then: str = "") -> str:
    """What to say when no feed is chosen; that there is none at all is another matter."""
    from feedq.cli.tables import NO_FEEDS
    from feedq.verbs.feeds import list_feeds

    if not invocation.do(list_feeds, limit=1).items:
        return NO_FEEDS
    return "no feed matches" + (f"; {then}" if then else "")


def require_some(invocation: Invocation, tried: Acted) -> None:
    """Raises `NotFound` when nothing is chosen."""
    if not tried.count:
        raise NotFound(none_match(invocation, "nothing is done"))


def described(selection: Selection, tried: Acted) -> str:
    """The feeds that are chosen: ``2 feeds (acme/a, acme/b)``; those that are named, by their names."""
    from feedq.verbs.wording import counted, some

    if selection.names:
        return ", ".join(selection.names)
    return f"{counted(tried.count, 'feed')} ({some(tried.done, lambda one: one.name)})"


def fail_if_any(failed: Sequence[Failed], what: str, *, done: int) -> None:
    """Raises when it could not be done to some feeds, naming each."""
    if not failed:
        return
    kind = failed[0].error
    if len(failed) == 1 and not done:
        raise error_of(kind, failed[0].detail)
    lines = first_few([f"  {one.detail}" for one in failed], "  and {:,} more")
    raise error_of(kind, f"{len(failed)} not {what}, {done} {what}\n" + "\n".join(lines))


def first_few(lines: Sequence[str], of_others: str, *, most: int = ERRORS_SHOWN_MAX) -> list[str]:
    """The first lines, and how many others there are."""
    more = len(lines) - most
    return [*lines[:most], *([of_others.format(more)] if more > 0 else [])]
