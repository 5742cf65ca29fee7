"""Records that could not land: kept in ``feedq_dead_letter`` with why, and in the same commit as the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from feedq.model import FeedKey
from feedq.sinks.copybinary import HEADER, JSONB_VERSION, TRAILER, int8, row
from feedq.sinks.cursors import cursor_text
from feedq.sinks.plan import SuspectRecord
from feedq.sinks.session import SinkSession
from feedq.sinks.statements import COPY_DEAD_LETTERS

DeadRecord = tuple[SuspectRecord, str]
"""A record that was refused, and the error."""


def bury(session: SinkSession, environment: str, dead: Iterable[DeadRecord]) -> None:
    """Write dead letters, in the transaction that is open. Raises `psycopg2.Error`."""
    session.copy(COPY_DEAD_LETTERS, _rows(environment, dead))


def count_by_feed(dead: Iterable[DeadRecord]) -> dict[FeedKey, int]:
    counts: dict[FeedKey, int] = {}
    for suspect, _ in dead:
        counts[suspect.write.key] = counts.get(suspect.write.key, 0) + 1
    return counts


def last_errors(dead: Iterable[DeadRecord]) -> dict[FeedKey, str]:
    """Why the last record of each feed was refused."""
    return {suspect.write.key: error for suspect, error in dead}


def _rows(environment: str, dead: Iterable[DeadRecord]) -> Iterator[bytes]:
    yield HEADER
    for (write, batch, record), error in dead:
        cursor = cursor_text(batch.cursor)
        yield row(
            (
                environment.encode(),
                int8(write.feed_id),
                write.feed.encode(),
                int8(write.epoch),
                record,
                error.encode(errors="replace"),
                None if cursor is None else JSONB_VERSION + cursor.encode(),
            )
        )
    yield TRAILER
