"""Records that could not land, and why: kept in ``feedq_dead_letter``, in the same commit as the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from feedq.model import Batch, FeedKey
from feedq.sinks.base import DeadLetter, FeedWrite, Landing


class SuspectRecord(NamedTuple):
    """A record on its own, with where it came from."""

    write: FeedWrite
    batch: Batch
    record: bytes

    @classmethod
    def of_letter(cls, letter: DeadLetter, landing: Landing) -> SuspectRecord:
        """A dead letter, to be tried again."""
        batch = Batch.of_records([letter.record], cursor=letter.cursor, received_at=letter.at)
        write = FeedWrite(letter.feed_id, letter.feed, letter.epoch, landing, (batch,))
        return cls(write, batch, letter.record)


DeadRecord = tuple[SuspectRecord, str]
"""A record that was refused, and the error."""


def count_by_feed(dead: Iterable[DeadRecord]) -> dict[FeedKey, int]:
    return dict(Counter(suspect.write.key for suspect, _ in dead))


def last_errors(dead: Iterable[DeadRecord]) -> dict[FeedKey, str]:
    """Why the last record of each feed was refused."""
    return {suspect.write.key: error for suspect, error in dead}
