"""What a simulation has seen: gaps, moves, connects, and how things stood over time."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from feedq.simulate.simulated_fleet import SimulatedFeed

COLUMNS: Final = 240
"""Points in time that a chart shows."""
BIN_MS: Final = 100
"""Connects are counted by tenths of a second, so that a second may begin at any of them."""


@dataclass(slots=True)
class PhaseRecord:
    """What happened from one event to the next."""

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
    """How things stood, column by column."""

    column_ms: int
    feeds: dict[str, list[int]] = field(default_factory=dict)
    """Feeds of each worker at the end of each column; by name."""
    down: list[int] = field(default_factory=list)
    """Most feeds that did not stream at one time of the column."""
    unplaced: list[int] = field(default_factory=list)


class Recorder:
    """Hears of everything as it happens."""

    def __init__(self, duration_ms: int) -> None:
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
        """Everything stays as it is until ``to``."""
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

    def feeds_declared(self, count: int) -> None:
        self.down += count

    def feed_forgotten(self, feed: SimulatedFeed, now: int) -> None:
        if not feed.connected:
            self.down -= 1

    def feed_down(self, feed: SimulatedFeed, now: int) -> None:
        self.down += 1
        feed.down_since, feed.down_phase = now, len(self.phases) - 1

    def feed_up(self, feed: SimulatedFeed, now: int) -> None:
        self.down -= 1
        self.phases[feed.down_phase].gaps_ms.append(now - feed.down_since)

    def given(self, feed: SimulatedFeed, name: str) -> None:
        """A feed was assigned to the worker of this name."""
        phase = self.phases[-1]
        if not feed.home:
            phase.first += 1
        elif feed.home == name:
            phase.restarted += 1
        else:
            phase.moved += 1
            phase.times_moved[feed.id] += 1
            feed.moves += 1

    def dialled(self, host: str, now: int) -> None:
        self.connects[host][now // BIN_MS] += 1
