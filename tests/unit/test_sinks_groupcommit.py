"""Which feeds of a group share a COPY."""

from __future__ import annotations

from datetime import UTC, datetime

from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.groupcommit import by_landing

AT = datetime(2026, 11, 20, tzinfo=UTC)


def write(feed_id: int, landing: Landing) -> FeedWrite:
    return FeedWrite(feed_id, f"f/{feed_id}", 1, landing, (Batch.of_lines(b"x\n", cursor=1, received_at=AT),))


def test_feeds_with_equal_landings_share_a_copy_whether_or_not_they_share_the_object() -> None:
    shared, equal, other = Landing("t", "text"), Landing("t", "text"), Landing("u", "text")
    writes = [write(n, landing) for n, landing in enumerate([shared, other, equal, shared, other, equal])]
    groups = by_landing(writes)
    assert {landing.table: [w.feed_id for w in ws] for landing, ws in groups.items()} == {
        "t": [0, 2, 3, 5],
        "u": [1, 4],
    }
