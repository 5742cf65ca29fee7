"""What came of a scenario, in numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

from feedq.simulate.record import BIN_MS, PhaseRecord, Recorder, Series

BINS_PER_S = 1000 // BIN_MS


@dataclass(frozen=True, slots=True)
class Phase:
    """Sums up what came between one event and the next. Durations in seconds, feed-seconds likewise."""

    at_s: float
    event: str
    until_s: float
    placed: int
    """Feeds that were given to a worker for the first time."""
    moved: int
    """Times that a feed was given to another worker than the one it was with before."""
    restarted: int
    """Times that a feed was given back to the worker that it was with: to its successor of the same name."""
    moved_again: int
    """Feeds that moved more than once since the event."""
    gaps: int
    """Interruptions that began since the event; for new feeds, the time until they streamed."""
    gap_median_s: float
    gap_max_s: float
    down_feed_s: float
    """Feed-seconds without streaming."""
    unplaced_feed_s: float
    """Feed-seconds of waiting for a place."""
    unplaced: Mapping[str, int]
    """Feeds without a place at the end, by reason."""
    spread_before: tuple[int, int] | None
    """Fewest and most feeds on a worker that serves; None without any."""
    spread_after: tuple[int, int] | None
    utilisation: tuple[float, float] | None
    """Least and largest part of a worker's capacity that is taken, at the end."""
    connects_per_s: int
    """Most connections begun within a second."""
    host_connects_per_s: int
    """Most of them to one remote host."""
    host: str
    """The one."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Holds all phases, and the sum of them."""

    feeds: int
    workers: int
    """At the end."""
    duration_s: float
    phases: tuple[Phase, ...]
    total: Phase
    series: Series
    connects: Mapping[int, int]
    """Connections begun by each tenth of a second."""

    def as_document(self) -> dict[str, Any]:
        """Gives the report as plain values."""
        return {
            "feeds": self.feeds,
            "workers": self.workers,
            "duration_s": self.duration_s,
            "phases": [asdict(phase) for phase in self.phases],
            "total": asdict(self.total),
        }


def build_report(recorder: Recorder, *, workers: int, duration_ms: int) -> SimulationReport:
    ends = [phase.began_at for phase in recorder.phases[1:]] + [duration_ms]
    phases = tuple(_phase(p, until, recorder) for p, until in zip(recorder.phases, ends, strict=True))
    connects: Counter[int] = Counter()
    for bins in recorder.connects.values():
        connects.update(bins)
    return SimulationReport(
        feeds=sum(not feed.removed for feed in recorder.feeds.values()),
        workers=workers,
        duration_s=duration_ms / 1000,
        phases=phases,
        total=_total(phases, recorder),
        series=recorder.series,
        connects=connects,
    )


def _phase(phase: PhaseRecord, until: int, recorder: Recorder) -> Phase:
    fleet_peak, host_peak, host = _peaks(recorder.connects, phase.began_at // BIN_MS, ceil(until / BIN_MS))
    median_s, longest_s = _gaps(phase.gaps_ms)
    return Phase(
        at_s=phase.began_at / 1000,
        event=phase.text,
        until_s=until / 1000,
        placed=phase.first,
        moved=phase.moved,
        restarted=phase.restarted,
        moved_again=sum(times > 1 for times in phase.times_moved.values()),
        gaps=len(phase.gaps_ms),
        gap_median_s=median_s,
        gap_max_s=longest_s,
        down_feed_s=phase.down_ms / 1000,
        unplaced_feed_s=phase.unplaced_ms / 1000,
        unplaced=dict(sorted(phase.waiting.items())),
        spread_before=_ends(phase.before),
        spread_after=_ends(phase.after),
        utilisation=_ends(phase.utilisation),
        connects_per_s=fleet_peak,
        host_connects_per_s=host_peak,
        host=host,
    )


def _total(phases: Sequence[Phase], recorder: Recorder) -> Phase:
    first, last = phases[0], phases[-1]
    worst = max(phases, key=lambda phase: phase.host_connects_per_s)
    gaps: array[int] = array("q")
    for phase in recorder.phases:
        gaps.extend(phase.gaps_ms)
    median_s, longest_s = _gaps(gaps)
    return Phase(
        at_s=first.at_s,
        event="total",
        until_s=last.until_s,
        placed=sum(phase.placed for phase in phases),
        moved=sum(phase.moved for phase in phases),
        restarted=sum(phase.restarted for phase in phases),
        moved_again=sum(feed.moves > 1 for feed in recorder.feeds.values()),
        gaps=len(gaps),
        gap_median_s=median_s,
        gap_max_s=longest_s,
        down_feed_s=sum(phase.down_feed_s for phase in phases),
        unplaced_feed_s=sum(phase.unplaced_feed_s for phase in phases),
        unplaced=last.unplaced,
        spread_before=first.spread_before,
        spread_after=last.spread_after,
        utilisation=last.utilisation,
        connects_per_s=max(phase.connects_per_s for phase in phases),
        host_connects_per_s=worst.host_connects_per_s,
        host=worst.host,
    )


def _gaps(gaps_ms: array[int]) -> tuple[float, float]:
    """Computes the median and the longest gap, in seconds."""
    return (median(gaps_ms) / 1000, max(gaps_ms) / 1000) if gaps_ms else (0.0, 0.0)


def _ends(ordered: Sequence[Any]) -> tuple[Any, Any] | None:
    return (ordered[0], ordered[-1]) if ordered else None


def _peaks(hosts: Mapping[str, Mapping[int, int]], first: int, last: int) -> tuple[int, int, str]:
    """Finds the most in a second, from bin ``first`` up to ``last``, of all hosts and of one, and which."""
    together: Counter[int] = Counter()
    worst, worst_host = 0, ""
    for host, bins in hosts.items():
        mine = {at: count for at, count in bins.items() if first <= at < last}
        together.update(mine)
        if (peak := peak_per_s(mine)) > worst:
            worst, worst_host = peak, host
    return peak_per_s(together), worst, worst_host


def peak_per_s(bins: Mapping[int, int]) -> int:
    """Finds the most in any second, which may begin with any bin."""
    ordered = sorted(bins)
    peak = within = begin = 0
    for at in ordered:
        within += bins[at]
        while ordered[begin] <= at - BINS_PER_S:
            within -= bins[ordered[begin]]
            begin += 1
        peak = max(peak, within)
    return peak
