"""Refused records of a feed, some at a time: which they are, and landing them after all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from feedq.core.model import FeedSpec
from feedq.errors import InvalidInput, NotFound, SinkUnavailable
from feedq.sinks.base import DeadLetter, Judge, Sink, target_of_feed

AT_ONCE = 100
FIRST_AT_ONCE = 10
BYTES_AT_ONCE = 16 * 2**20
"""These bound one transaction of a replay, and what is held of records in memory: so many at once, or fewer if
those before were large."""


@dataclass(slots=True)
class ReplayOutcome:
    """What became of records that were to land after all."""

    landed: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """Why they were refused again, by their ids."""
    passed_over: int = 0
    """Somebody else is at them, or has just dealt with them."""


def replay_parts(
    spec: FeedSpec,
    sink: Sink,
    parts_: Iterator[list[int]],
    judge: Judge,
    found: ReplayOutcome,
    *,
    on_progress: Callable[[int], None] = lambda tried: None,
) -> None:
    """Land these records as the feed is declared now. Raises `SinkUnavailable`, which says how many had landed.

    ``found`` has what became of them, up to the part that failed. ``on_progress`` is told after each part how
    many were tried.
    """
    target = target_of_feed(spec)
    for part in parts_:
        try:
            done = sink.replay(part, target, judge=judge)
        except SinkUnavailable as away:
            raise SinkUnavailable(f"{away}; {found.landed} had landed before") from away
        found.landed += done.landed
        found.refused |= done.refused
        found.passed_over += len(part) - done.landed - len(done.refused)
        on_progress(found.landed + len(found.refused) + found.passed_over)


def parts(sink: Sink, name: str, ids: Sequence[int], all_: bool) -> Iterator[list[int]]:
    """Ids of dead letters of this feed, oldest first, some at a time. Raises `InvalidInput` at once."""
    if bool(ids) == all_:
        raise InvalidInput("name the ids of dead letters, or say --all")
    if not all_:
        return iter(_named(sink, name, ids))
    # Up to this one: of a feed that goes on being refused, there would never be an end.
    newest = sink.dead_letters(name, limit=1)
    return _every(sink, name, up_to=newest[0].id) if newest else iter(())


def _every(sink: Sink, name: str, *, up_to: int) -> Iterator[list[int]]:
    last, at_once = 0, FIRST_AT_ONCE
    while letters := [x for x in sink.dead_letters(name, after=last, limit=at_once) if x.id <= up_to]:
        last, at_once = letters[-1].id, _at_once_after(letters)
        yield [letter.id for letter in letters]


def _named(sink: Sink, name: str, ids: Collection[int]) -> list[list[int]]:
    """Raises `NotFound` unless each of them is one of this feed, before anything is done with any."""
    left, at_once = sorted(set(ids)), FIRST_AT_ONCE
    parts: list[list[int]] = []
    missing: list[int] = []
    while left:
        asked, left = left[:at_once], left[at_once:]
        letters = sink.dead_letters(name, ids=asked, limit=len(asked))
        at_once = _at_once_after(letters)
        parts.append(sorted(letter.id for letter in letters))
        missing += sorted(set(asked).difference(parts[-1]))
    if missing:
        raise NotFound(f"{name} has no dead letter {', '.join(map(str, missing))}")
    return parts


def _at_once_after(letters: Sequence[DeadLetter]) -> int:
    """How many to take next, if they are as large as these; only twice as many, for they need not be."""
    size = sum(len(letter.record) for letter in letters)
    return max(1, min(AT_ONCE, 2 * len(letters), len(letters) * BYTES_AT_ONCE // max(1, size)))
