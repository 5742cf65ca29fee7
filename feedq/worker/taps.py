"""Takes a few of the records that tapped feeds land, and sends them to the control database once a second.

A `RecordTap` hangs on the progress of a feed while somebody listens; without one a commit costs nothing more.
Writer threads put records in, as many as there is room for, and never wait. Secrets are masked and the database is
asked on another thread; while that one is stuck, records are left out and counted.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from feedq.core.model import FeedKey
from feedq.core.tap import RECORD_BYTES_MAX, RECORDS_PER_S, SEND_S, TapPart, TappedRecord
from feedq.errors import Unavailable
from feedq.records.batch import Batch

if TYPE_CHECKING:
    from feedq.worker.progress_reporter import FeedProgress

MASKED_BYTES: Final = 2 * RECORD_BYTES_MAX
"""So much of a record is looked through for secrets: of one that lies across the cut no half is shown."""


class RecordTap:
    """Holds records of one feed until they are sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken: list[tuple[datetime, bytes, int]] = []
        self._left_out = self._refused = 0

    def take(self, batches: Sequence[Batch], *, refused: int) -> None:
        """Take from batches that were committed, of whose records so many were ``refused``."""
        with self._lock:
            self._refused += refused
            for batch in batches:
                room = RECORDS_PER_S - len(self._taken)
                shown = [(batch.received_at, *record) for record in islice(_beginnings(batch), room)]
                self._taken += shown
                self._left_out += batch.count - len(shown)

    def drain(self, key: FeedKey, masked: Callable[[str], str]) -> TapPart | None:
        """Return what was taken since the last call; None when that is nothing."""
        with self._lock:
            taken, self._taken = self._taken, []
            left_out, self._left_out = self._left_out, 0
            refused, self._refused = self._refused, 0
        if not (taken or left_out or refused):
            return None
        return TapPart(*key, tuple(_shown(*one, masked) for one in taken), left_out, refused)

    def miss(self, part: TapPart) -> None:
        """Count a part that could not be sent."""
        with self._lock:
            self._left_out += len(part.records) + part.left_out
            self._refused += part.refused


class TapWriter:
    """Sends the collected records of one loop's tapped feeds. Used on that loop, but for what says otherwise."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        *,
        elsewhere: Callable[[Callable[[], None]], object],
        send: Callable[[Sequence[TapPart]], None],
    ) -> None:
        """``elsewhere`` has something done on a thread that may block, where ``send`` is called."""
        self._loop, self._elsewhere, self._send = loop, elsewhere, send
        self._tapped: list[FeedProgress] = []
        self._timer: TimerHandle | None = None
        self._is_sending = False

    def follow(self, feed_ids: Collection[int], feeds: Iterable[FeedProgress]) -> None:
        """Tap these feeds and no others, of those that run here."""
        if not feed_ids and not self._tapped:
            return
        for gone in self._tapped:
            if gone.key[0] not in feed_ids:
                gone.tap = None
        self._tapped = [feed for feed in feeds if feed.key[0] in feed_ids]
        for feed in self._tapped:
            feed.tap = feed.tap or RecordTap()
        if self._tapped and self._timer is None:
            self._timer = self._loop.call_later(SEND_S, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        if not self._tapped:
            return
        self._timer = self._loop.call_later(SEND_S, self._send_all)
        if not self._is_sending:
            self._is_sending = True
            taps = [(feed.tap, feed.key, feed.masked) for feed in self._tapped if feed.tap]
            self._elsewhere(partial(self._drain, taps))

    def _drain(self, taps: Sequence[tuple[RecordTap, FeedKey, Callable[[str], str]]]) -> None:
        """On a thread that may block."""
        try:
            found = [(tap, part) for tap, key, masked in taps if (part := tap.drain(key, masked))]
            try:
                if found:
                    self._send([part for _, part in found])
            except Unavailable:
                for tap, part in found:
                    tap.miss(part)
        finally:
            self._is_sending = False


def _beginnings(batch: Batch) -> Iterator[tuple[bytes, int]]:
    """The records one by one, each cut, with its size. The batch is not split: it may have a million of them."""
    if batch.lines is None:
        yield from ((record[:MASKED_BYTES], len(record)) for record in batch.records or ())
        return
    start = 0
    while (end := batch.lines.find(b"\n", start)) >= 0:
        yield batch.lines[start : min(end, start + MASKED_BYTES)], end - start
        start = end + 1


def _shown(at: datetime, record: bytes, size: int, masked: Callable[[str], str]) -> TappedRecord:
    # Bytes that are no text, and the half of a character at the cut, are shown as escapes.
    text = masked(record.decode("utf-8", "backslashreplace")).encode()
    shown = text[:RECORD_BYTES_MAX].decode("utf-8", "ignore")
    is_cut = size > len(record) or len(text) > RECORD_BYTES_MAX
    return TappedRecord(at.isoformat(), shown, size, is_cut)
