"""Taps: who listens to the records of which feed, and what they are shown (`feedq.core.tap`).

A row a listener, so that a tap ends with the last one who leaves, or with the time of those who were killed. What
is shown is kept for a minute, in a table that is not logged: no archive of changes has records of customers.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import msgspec

from feedq.control.store.database import Aggregate, Connection, in_statement, in_transaction
from feedq.control.store.history import record
from feedq.control.store.protocol import call, document, read
from feedq.core.tap import (
    LISTENERS_MAX,
    LOOK_S,
    PARTS_KEPT,
    SIGN_S,
    TapPart,
    TappedRecord,
    tap_rows,
)
from feedq.errors import Conflict, NotFound
from feedq.telemetry.event_names import EventKind


class TapStore(Aggregate):
    """What listeners are shown of running feeds, and what listeners do. Thread-safe."""

    @in_statement
    def put(self, c: Connection, worker_id: UUID, parts: Sequence[TapPart]) -> None:
        """Show what this worker has landed; what nobody listens to is dropped."""
        rows = [
            {
                "feed_id": part.feed_id,
                "epoch": part.epoch,
                "records": msgspec.json.encode(part.records).decode(),
                "left_out": part.left_out,
                "refused": part.refused,
            }
            for part in parts
        ]
        call(c, "show_landed", bool, session=worker_id, parts=document(rows), kept=PARTS_KEPT)

    @in_transaction
    def open(self, c: Connection, feed_id: int, listener: UUID) -> int:
        """Begin to listen; returns the last part that is there already. Raises `Conflict`, `NotFound`."""
        found = call(c, "open_tap", dict[str, Any], to_feed=feed_id, listener=listener, most=LISTENERS_MAX)
        if found.get("refusal") == "full":
            raise Conflict(f"{LISTENERS_MAX} taps are open already: end another `feedq feed tap` first")
        if found.get("refusal") == "gone":
            raise NotFound(f"feed {feed_id} is gone, or being removed")
        record(c, EventKind.FEED_TAPPED, feed_id)
        last: int = found["last"]
        return last

    @in_statement
    def sign(self, c: Connection, feed_id: int, listener: UUID) -> bool:
        """Say that it still listens. False when the feed is gone, or being removed."""
        return call(c, "listen", bool, to_feed=feed_id, listener=listener)

    @in_statement
    def after(self, c: Connection, feed_id: int, last: int) -> list[tuple[int, TapPart]]:
        """What came after this part, each with its number."""
        sql = f"""
            SELECT id, feed_id, epoch, records, left_out, refused, worker FROM feedq.tap_part
            WHERE feed_id = %(feed_id)s AND id > %(last)s ORDER BY id LIMIT {PARTS_KEPT}
        """
        return [_part_from(row) for row in c.execute(sql, {"feed_id": feed_id, "last": last})]

    @in_transaction
    def close(self, c: Connection, listener: UUID) -> None:
        """End to listen."""
        call(c, "close_tap", bool, listener=listener)


def listen(
    taps: TapStore, feed_id: int, *, seconds: float, limit: int
) -> Generator[dict[str, Any] | None, None, None]:
    """Listen to a feed: until ``seconds`` are over, ``limit`` records were shown, or the feed is gone. Close it.

    It yields what comes, None when nothing has for a while, so that both sides know that the other one is there,
    and at the end a row that says why it ends. Raises as `TapStore.open`, at once.
    """
    listener = uuid4()
    return _rows(taps, feed_id, listener, taps.open(feed_id, listener), seconds=seconds, limit=limit)


def _rows(
    taps: TapStore, feed_id: int, listener: UUID, last: int, *, seconds: float, limit: int
) -> Generator[dict[str, Any] | None, None, None]:
    signed_at = began = monotonic()
    shown = 0
    try:
        while True:
            now = monotonic()
            if now >= signed_at + SIGN_S:
                signed_at = now
                if not taps.sign(feed_id, listener):
                    yield _end("the feed was removed")
                    return
            parts = taps.after(feed_id, last)
            for row in (row for _, part in parts for row in tap_rows(part)):
                yield row
                shown += row["event"] == "record"
                if shown == limit:
                    yield _end("the requested number of records was shown")
                    return
            if now >= began + seconds:
                yield _end("the time limit was reached")
                return
            last = parts[-1][0] if parts else last
            if not parts:
                yield None
            time.sleep(LOOK_S)
    finally:
        taps.close(listener)


def _end(why: str) -> dict[str, Any]:
    return {"event": "end", "why": why}


def _part_from(row: Any) -> tuple[int, TapPart]:
    records = read(row.records, tuple[TappedRecord, ...])
    return row.id, TapPart(row.feed_id, row.epoch, records, row.left_out, row.refused, row.worker)
