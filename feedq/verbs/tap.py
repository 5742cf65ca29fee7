"""A tap: records of a running feed as they land."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from feedq.control.store.taps import TapListener
from feedq.core.roles import AccessRole
from feedq.core.tap import LIMIT_MAX, LOOK_S, SECONDS_MAX
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
    return _found(TapListener(at.store.taps, feed.id, seconds=seconds, limit=limit))


def _found(listener: TapListener) -> Iterator[dict[str, Any] | None]:
    """What lands; None when nothing has for a while, so that both sides know that the other one is there."""
    try:
        while not listener.is_over:
            yield from list(listener.look()) or (None,)
            if not listener.is_over:
                time.sleep(LOOK_S)
    finally:
        listener.close()
