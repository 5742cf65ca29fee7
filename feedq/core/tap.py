"""A tap shows records of a running feed as they land, without a second connection to its source.

::

    listener ── listens ──► feedq.tap ── with a heartbeat ──► worker: a few records of each commit
        ▲                                                        │ once a second
        └──── looks twice a second ◄── feedq.tap_part ◄──────────┘

Nobody waits for a tap: what is more than its bounds allow is left out and counted. It belongs to the feed and to
no worker, so it goes on when the feed moves. Values only: `feedq.worker.taps` makes them,
`feedq.control.store.taps` keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

RECORDS_PER_S: Final = 20
"""Records of one feed that are shown in a second: as many as somebody can read, and not a burden to anybody."""
RECORD_BYTES_MAX: Final = 2_048
"""Of a longer record only the beginning is shown."""
PARTS_KEPT: Final = 60
"""Parts of one feed in the database: a listener that is away for a minute misses nothing, and a megabyte a feed
is the most that there can be."""
LISTENERS_MAX: Final = 20
"""In the whole installation: so what taps cost it has a bound."""
SEND_S: Final = 1.0
"""How often a worker sends what it has taken."""
LOOK_S: Final = 0.5
SIGN_S: Final = 5.0
"""How often a listener says that it is still there."""
SECONDS_MAX: Final = 86_400
LIMIT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TappedRecord:
    """A record as far as it is shown, with secrets masked."""

    at: str
    """When it was received, as ISO 8601."""
    text: str
    size: int
    """Bytes of the whole record."""
    is_cut: bool


@dataclass(frozen=True, slots=True)
class TapPart:
    """The records shown of those that a feed landed within about a second under one epoch."""

    feed_id: int
    epoch: int
    records: tuple[TappedRecord, ...] = ()
    left_out: int = 0
    """Records that landed besides."""
    refused: int = 0
    """Records among all of these that went to the dead letters."""
    worker: str = ""
    """The name of the owner, once the part is in the database."""


def tap_rows(part: TapPart) -> Iterator[dict[str, Any]]:
    """The documents of a part: one for each record, and one for what is not shown."""
    for one in part.records:
        yield {
            "event": "record",
            "at": one.at,
            "worker": part.worker,
            "epoch": part.epoch,
            "record": one.text,
            "bytes": one.size,
            "cut": one.is_cut,
        }
    if part.left_out or part.refused:
        yield {"event": "left_out", "records": part.left_out, "refused": part.refused}
