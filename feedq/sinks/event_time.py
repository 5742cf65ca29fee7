"""Event times: when what a record tells of has happened, read from the newest records of each commit.

A record without a time that can be read never troubles its feed: the records before it are asked, a few of them,
and what was wrong with the newest is kept to be told. A time in the future is no time either, or one record of a
source with a wrong clock would hide every lag that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from feedq.core.json_texts import read_json
from feedq.records.batch import Batch
from feedq.records.csvtext import field_finder
from feedq.records.pointer import MISSING, Missing, TextPointers
from feedq.sinks.base import Target
from feedq.sinks.mapping import Origin, flattened

AHEAD_MAX_S: Final = 60.0
"""Clocks of sources may be this much ahead of ours; what is further ahead is no time."""
LOOKED_AT: Final = 8
"""Records of a commit, from its newest on, that are asked for a time."""
READERS_MAX: Final = 1_024
"""Different ones kept; beyond it they are made anew."""
TEXT_MAX: Final = 64
"""Bytes of a time at most."""
SAID_CHARS: Final = 40
_SECONDS_MAX: Final = 1e11
"""Larger numbers are milliseconds, microseconds or nanoseconds: as seconds they would be after the year 5000."""
_NUMBER_MAX: Final = 1e20
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?")

Find = Callable[[bytes], bytes | Missing]
"""Finds the JSON text of a record's time. Raises `ValueError`."""


class EventTime(NamedTuple):
    """The event time of the newest record that has one, in seconds since 1970; why the newest has none."""

    at: float | None = None
    fault: str | None = None

    def after(self, before: EventTime | None) -> EventTime:
        """This one of a later commit: times do not go back."""
        if before is None or before.at is None or (self.at is not None and self.at > before.at):
            return self
        return EventTime(before.at, self.fault)


class EventTimeReader:
    """Reads event times of one feed, or of all feeds with the same target."""

    def __init__(self, find: Find, at: str) -> None:
        self._find, self._at = find, at

    def read(self, batches: Sequence[Batch]) -> EventTime:
        """The event time of a commit."""
        fault = None
        for record, received_at in islice(_newest_first(batches), LOOKED_AT):
            try:
                return EventTime(self._time_of(record, received_at), fault)
            except ValueError as error:
                fault = fault or str(error)
        return EventTime(None, fault)

    def _time_of(self, record: bytes, received_at: datetime) -> float:
        found = self._find(record)
        if found is MISSING or found == b"null":
            raise ValueError(f"the last record has nothing at {self._at}")
        seconds = _seconds(read_json(found)) if len(found) <= TEXT_MAX else None
        if seconds is None or seconds < 0:
            raise ValueError(f"the last record has {_cut(found)} at {self._at}, which is not a time")
        if seconds > received_at.timestamp() + AHEAD_MAX_S:
            raise ValueError(f"the last record has {_cut(found)} at {self._at}, which is in the future")
        return seconds


@lru_cache(READERS_MAX)
def event_time_reader(at: str, target: Target) -> EventTimeReader:
    """The reader for ``at`` of what is expected; where that does not go with the records, it says so of each."""
    try:
        return EventTimeReader(event_time_finder(at, target), at)
    except ValueError as error:
        why = str(error)

    def find(_: bytes) -> bytes | Missing:
        raise ValueError(why)

    return EventTimeReader(find, at)


def event_time_finder(at: str, target: Target) -> Find:
    """What finds a record's time. ``at``: a JSON pointer, or a column. Raises `ValueError` with what is wrong."""
    if target.format not in ("json", "csv"):
        raise ValueError(f"max_event_lag needs source.format json or csv, not {target.format}")
    pointers = [at] if at.startswith("/") else _pointers_of_column(at, target)
    if target.csv is not None:
        return field_finder(pointers[0], target.csv)
    find_all = TextPointers(pointers).find

    def find(record: bytes) -> bytes | Missing:
        return next((found for found in find_all(record) if found is not MISSING), MISSING)

    return find


def _pointers_of_column(column: str, target: Target) -> list[str]:
    source = next((one for one in target.columns if one.column == column), None)
    if source is None and target.flatten is not None:
        source = flattened(column, target.flatten)
    if source is None or source.origin is not Origin.POINTER:
        raise ValueError(
            f"max_event_lag.at: {column!r} is neither a pointer nor a column that points into the records"
        )
    return [source.pointer, *source.alternatives]


def _newest_first(batches: Sequence[Batch]) -> Iterator[tuple[bytes, datetime]]:
    """The newest `LOOKED_AT` records and, behind them, perhaps more of a batch in one piece."""
    for batch in reversed(batches):
        # From the end, without taking all lines apart.
        newest = batch.records or (batch.lines or b"").rsplit(b"\n", LOOKED_AT + 1)[:-1]
        for record in reversed(newest):
            yield record, batch.received_at


def _seconds(value: Any) -> float | None:
    """A time in seconds since 1970: ISO 8601, in UTC unless it says otherwise, or a number of (milli)seconds."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return _seconds_of_iso(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = float(value)
    if seconds > _NUMBER_MAX:
        return None
    while seconds > _SECONDS_MAX:
        seconds /= 1_000
    return seconds


def _seconds_of_iso(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _cut(text: bytes) -> str:
    said = text.decode(errors="replace")
    return said if len(said) <= SAID_CHARS else f"{said[:SAID_CHARS]}…"
