"""What a simulation has seen: gaps, moves, connects, and how things stood over time."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

COLUMNS: Final = 240
"""Points in time that a chart shows."""
BIN_MS: Final = 100
"""Connects are counted by tenths of a second, so that a second may begin at any of them."""


@dataclass(slots=True, eq=False)
class FeedRecord:
    """Holds what has been seen of a feed."""

    id: int
    host: str
    down_since: int
    down_phase: int
    connected: bool = False
    removed: bool = False
    home: str = ""
    """Name of the worker that it was given to last."""
    moves: int = 0


@dataclass(slots=True)
class PhaseRecord:
    """Holds what happened from one event to the next."""

    began_at: int
    text: str
    before: list[int]
    """Feeds on each serving worker just before."""
    gaps_ms: array[int] = field(default_factory=lambda: array("q"))
    """Of feeds that stopped streaming in this phase, whenever they streamed again."""
    first: int = 0
    moved: int = 0
    restarted: int = 0
    times_moved: Counter[int] = field(default_factory=Counter)
    down_ms: int = 0
    unplaced_ms: int = 0
    after: list[int] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    """Feeds without a place at its end, by reason."""


@dataclass(slots=True)
class Series:
    """Holds how things stood, column by column."""

    column_ms: int
    feeds: dict[str, list[int]] = field(default_factory=dict)
    """Feeds of each worker at the end of each column; by name."""
    down: list[int] = field(default_factory=list)
    """Most feeds that did not stream at one time of the column."""
    unplaced: list[int] = field(default_factory=list)


class Recorder:
    """Hears of everything as it happens."""

    def __init__(self, duration_ms: int) -> None:
        self.feeds: dict[int, FeedRecord] = {}
        self.phases: list[PhaseRecord] = []
        self.series = Series(max(1, -(-duration_ms // COLUMNS)))
        self.connects: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        """Dials by host and bin."""
        self.down = 0
        self._at = 0
        self._down_max = 0
        self._unplaced_max = 0

    # -- time ----------------------------------------------------------------------------------------

    def advance(self, to: int, *, unplaced: int, feeds: Callable[[], Mapping[str, int]]) -> None:
        """Goes on to the time ``to``; everything stays as it is until then."""
        if self.phases:
            self.phases[-1].down_ms += (to - self._at) * self.down
            self.phases[-1].unplaced_ms += (to - self._at) * unplaced
        series = self.series
        while to >= (len(series.down) + 1) * series.column_ms:
            self._peak(unplaced)
            for name, count in feeds().items():
                # A worker that joined has been nowhere before.
                series.feeds.setdefault(name, [0] * len(series.down)).append(count)
            series.down.append(self._down_max)
            series.unplaced.append(self._unplaced_max)
            for counts in series.feeds.values():
                counts += [0] * (len(series.down) - len(counts))
            self._down_max = self._unplaced_max = 0
        if to > len(series.down) * series.column_ms:
            self._peak(unplaced)
        self._at = to

    def _peak(self, unplaced: int) -> None:
        self._down_max = max(self._down_max, self.down)
        self._unplaced_max = max(self._unplaced_max, unplaced)

    # -- feeds ---------------------------------------------------------------------------------------

    def feed_declared(self, feed_id: int, host: str, now: int) -> None:
        self.feeds[feed_id] = FeedRecord(feed_id, host, now, len(self.phases) - 1)
        self.down += 1

    def feed_removed(self, feed: FeedRecord) -> None:
        """Notes that from now on nobody minds whether a feed streams."""
        feed.removed = True
        if not feed.connected:
            self.down -= 1

    def feed_down(self, feed: FeedRecord, now: int) -> None:
        feed.connected = False
        if not feed.removed:
            self.down += 1
            feed.down_since, feed.down_phase = now, len(self.phases) - 1

    def feed_up(self, feed: FeedRecord, now: int) -> None:
        feed.connected = True
        if not feed.removed:
            self.down -= 1
            self.phases[feed.down_phase].gaps_ms.append(now - feed.down_since)

    def finish(self, now: int) -> None:
        """Ends the record: whoever does not stream has a gap that lasts until then at least."""
        for feed in self.feeds.values():
            if not feed.connected and not feed.removed:
                self.phases[feed.down_phase].gaps_ms.append(now - feed.down_since)

    def given(self, feed: FeedRecord, name: str) -> None:
        """Notes that a feed was assigned to the worker of this name."""
        phase = self.phases[-1]
        if not feed.home:
            phase.first += 1
        elif feed.home == name:
            phase.restarted += 1
        else:
            phase.moved += 1
            phase.times_moved[feed.id] += 1
            feed.moves += 1
        feed.home = name

    def dialled(self, host: str, now: int) -> None:
        self.connects[host][now // BIN_MS] += 1
