"""Who changes something, from where, and why: what history writes down beside what was changed.

A command or a request says it once, for all that it does; the store adds it to each event. It is kept in a
context variable, because a dozen verbs and their statements in between have no use for it. What no person asked
for, such as what a pass does, has no author.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from feedq.errors import Forbidden, InvalidInput

REASON_MAX: Final = 1_000
"""Characters: it is shown in lists."""
BY: Final = "by"
"""The key of an event's detail that holds the author."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks for a change."""

    who: str
    origin: str
    """The machine, address or program that it was asked from."""
    reason: str | None = None
    tenant: str | None = None
    """They may change this tenant's feeds alone; None: any."""

    def plain(self) -> dict[str, Any]:
        """Write it as it stands in an event."""
        said = {} if self.reason is None else {"why": self.reason}
        return {"who": self.who, "from": self.origin, **said}


_current: ContextVar[Author | None] = ContextVar("author", default=None)


def checked_reason(reason: str | None) -> str | None:
    """Raises `InvalidInput` unless it can be shown; an empty one is none."""
    if not reason:
        return None
    if len(reason) > REASON_MAX or not reason.isprintable():
        raise InvalidInput(f"reason: must be printable, and at most {REASON_MAX} characters")
    return reason


@contextmanager
def acting(author: Author) -> Iterator[None]:
    """Everything that is changed within the block was asked for by this author."""
    token = _current.set(author)
    try:
        yield
    finally:
        _current.reset(token)


def set_author(author: Author) -> None:
    """The same for the rest of this context, which is that of a request or command."""
    _current.set(author)


def give_reason(reason: str | None) -> None:
    """Why the author of this context asks. Raises `InvalidInput`."""
    author, said = _current.get(), checked_reason(reason)
    if author is not None and said is not None:
        _current.set(replace(author, reason=said))


def own_tenant() -> str | None:
    """The only tenant whose feeds the author of this context may change; None where there is no such limit.

    It is compared within the transaction that makes the change: whose something is may have changed since it was
    looked at.
    """
    author = _current.get()
    return None if author is None else author.tenant


def not_own(what: str) -> Forbidden:
    """Says that ``what`` is not of the author's tenant."""
    author = _current.get()
    assert author is not None, "only an author has a tenant"
    return Forbidden(
        f"{author.who} has a role of tenant {author.tenant!r}, and {what} does not belong to that tenant"
    )


def given_reason() -> str | None:
    """Why the author of this context asks, if that was said."""
    author = _current.get()
    return None if author is None else author.reason


def signed(detail: dict[str, Any]) -> dict[str, Any]:
    """The detail of an event, with its author if it has one."""
    author = _current.get()
    return detail if author is None else detail | {BY: author.plain()}
