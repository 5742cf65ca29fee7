"""A tap: records of a running feed as they land."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from feedq.control.store.taps import listen
from feedq.core.roles import AccessRole
from feedq.core.tap import LIMIT_MAX, SECONDS_MAX
from feedq.verbs.registry import At, NameArgument, verb

Seconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX, description="It ends after this.")]
Records = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="It ends after so many records.")]


@verb("GET /feeds/{name}/tap", role=AccessRole.OPERATOR)
def tap_feed(
    at: At, *, name: NameArgument, seconds: Seconds = 600, limit: Records = LIMIT_MAX
) -> Iterator[dict[str, Any] | None]:
    """Show records of a running feed as they land.

    Each ``event`` is a ``record``, ``left_out`` (records that are not shown, as there are too many) or ``end``. It
    shows data of customers, so it needs the role of an operator, and history says who listened.
    """
    feed = at.own_feed(name)
    return listen(at.store.taps, feed.id, seconds=seconds, limit=limit)
