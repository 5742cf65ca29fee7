"""What feeds declare: their options, where they land, and where a backfill ends.

Options are parsed and kept once for all feeds of a worker that declare the same. Thousands of feeds of one
provider differ in their name only, which stands in for itself in their templates. To keep and to check the same
options for each of them would be a good part of what a feed costs.

The end of a backfill is judged batch by batch, before anything is handed to the writer: nothing beyond it ever
lands, and the checkpoint that is committed with the last batch says by itself that it was the last. So whoever
takes over after a kill, at whichever step, comes to the same end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import msgspec

from feedq.connectors.base import ConnectorOptions, parse_options, show_cursor
from feedq.core.model import JSON, Feed, FeedSpec
from feedq.errors import EndReached, FeedMisconfigured
from feedq.records.batch import Batch
from feedq.sinks.base import Target, parse_sink, target_of

DECLARATIONS_MAX = 1_024
"""Different ones kept; beyond it they are parsed anew, which only costs time and memory."""


@dataclass(frozen=True, slots=True)
class ParsedFeed:
    """A feed's options, and where it lands."""

    options: ConnectorOptions
    sink: str
    target: Target


def declared(spec: FeedSpec) -> ParsedFeed:
    """Raises `InvalidInput`."""
    return _parse(spec.connector, msgspec.json.encode(spec.source), msgspec.json.encode(spec.sink))


@lru_cache(DECLARATIONS_MAX)
def _parse(connector: str, source: bytes, sink: bytes) -> ParsedFeed:
    options = parse_options(connector, msgspec.json.decode(source))
    sink_options = parse_sink(msgspec.json.decode(sink))
    return ParsedFeed(options, sink_options.name, target_of(sink_options, options))


@dataclass(frozen=True, slots=True)
class BackfillEnd:
    """Where a backfill ends in its source."""

    options: ConnectorOptions
    ends_at: int
    """The place of the last cursor that is wanted."""

    @classmethod
    def of(cls, feed: Feed, options: ConnectorOptions) -> Self | None:
        """None: all of it. Raises `FeedMisconfigured`."""
        return None if feed.backfill is None else cls(options, _place(options, feed.backfill.ends_at))

    def is_reached(self, cursor: JSON) -> bool:
        """Whether all is there that is wanted, once the sink has this cursor. Raises `FeedMisconfigured`."""
        return cursor is not None and _place(self.options, cursor) >= self.ends_at

    async def within(self, batches: AsyncGenerator[Batch, None], cursor: JSON) -> AsyncGenerator[Batch, None]:
        """The batches after ``cursor`` up to the end. Raises `EndReached` there."""
        async with aclosing(batches):
            async for batch in batches:
                place = _place(self.options, batch.cursor)
                kept: Batch | None = batch
                if place > self.ends_at:
                    try:
                        kept = self.options.cut(batch, self.ends_at, cursor)
                    except ValueError as error:
                        raise FeedMisconfigured(f"the backfill cannot end: {error}") from None
                if kept is not None:
                    yield kept
                if place >= self.ends_at:
                    raise EndReached(f"everything up to {show_cursor(batch.cursor)} was read")
                cursor = batch.cursor


def _place(options: ConnectorOptions, cursor: JSON) -> int:
    try:
        return options.cursor_place(cursor)
    except ValueError as error:
        raise FeedMisconfigured(
            f"it is unknown where the backfill ends: its cursor {show_cursor(cursor)}: {error}; cancel it, and "
            "begin another one"
        ) from None
