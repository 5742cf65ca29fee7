"""Placement and rebalance of up to a million feeds on a thousand workers: the pure functions, no server.

*Mixed* feeds have weights from 1 to 10, a tenant for every hundred of them, two of which have a cap, and four
selectors, of which two leave a third of the workers. The join is that of one worker to an even fleet: every feed
of every worker is offered, which is more than a pass of the control plane reads.

The figures are seconds of CPU, which one core takes when nothing else runs on it.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TypeVar
from uuid import UUID

from bench.report import Figure, at_most, say
from feedq.core.model import ANYWHERE, Selector
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Placement, Rules, Strategy
from feedq.core.placement.placing import place
from feedq.core.placement.rebalancing import rebalance

CASES = ((10_000, 10), (100_000, 100), (1_000_000, 1_000))
PLACE_MUST_S = 5.0
HASHES_MAX = 10_000_000
"""Rendezvous hashing asks every worker for every feed: a million on a thousand workers would take minutes."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ("a", "b", "c")
SELECTORS = (
    ANYWHERE,
    Selector(required={"zone": "a"}),
    Selector(preferred={"disk": "fast"}),
    Selector(required={"zone": "b"}, preferred={"disk": "fast"}),
)
WEIGHTS = (1.0, 1.0, 2.0, 5.0, 10.0)

T = TypeVar("T")


def measure(directory: Path, *, cases: Sequence[tuple[int, int]] = CASES) -> Iterator[Figure]:
    """``directory`` is not used: nothing is written."""
    for feeds, workers in cases:
        yield from _measure(feeds, workers)


def _measure(feeds: int, workers: int) -> Iterator[Figure]:
    size = f"{feeds:,} feeds on {workers:,} workers"
    must_s = PLACE_MUST_S if feeds == CASES[-1][0] else None
    fleet = _fleet(workers, capacity=2 * feeds // workers)
    rules = Rules(tenant_caps={"t1": 5, "t2": 5})

    waiting = _equal(feeds)
    took_s, decision = _timed(lambda: place(waiting, fleet, now=NOW, rules=rules))
    spread = Counter(worker for _, worker in decision.assignments)
    assert len(decision.assignments) == feeds, "a feed has no place, and there is room for twice as many"
    assert max(spread.values()) - min(spread.values()) <= 1
    yield _figure(f"place {size}, equal", must_s, took_s)
    yield _join(size, fleet, decision)

    waiting = _mixed(feeds)
    took_s, _ = _timed(lambda: place(waiting, fleet, now=NOW, rules=rules))
    yield _figure(f"place {size}, mixed", None, took_s)

    if feeds * workers <= HASHES_MAX:
        waiting, rules = _equal(feeds), replace(rules, strategy=Strategy.RENDEZVOUS)
        took_s, _ = _timed(lambda: place(waiting, fleet, now=NOW, rules=rules))
        yield _figure(f"place {size}, equal, by rendezvous", None, took_s)


def _join(size: str, fleet: Sequence[EligibleWorker], decision: Placement) -> Figure:
    spread = Counter(worker for _, worker in decision.assignments)
    held = [FeedToPlace(feed_id, worker_id=worker_id) for feed_id, worker_id in decision.assignments]
    full = [replace(w, feeds=spread[w.worker_id], load=float(spread[w.worker_id])) for w in fleet]
    joined = [*full, replace(fleet[0], worker_id=UUID(int=1), name="newcomer")]
    took_s, moves = _timed(
        lambda: rebalance(held, joined, now=NOW, rules=Rules(), moves=len(held)).transfers()
    )
    return _figure(f"rebalance {size}, one more joins: {len(moves):,} moves", None, took_s)


def _figure(case: str, must_s: float | None, took_s: float) -> Figure:
    say(f"placement: {case}: {took_s:.2f} s")
    if must_s is not None:
        return at_most(case, must_s, took_s, "s")
    return Figure(case, "-", f"{took_s:.3g} s", None)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _fleet(workers: int, *, capacity: int) -> list[EligibleWorker]:
    rng = Random(1)
    return [
        EligibleWorker(
            UUID(int=rng.getrandbits(128)),
            f"w{n}",
            f"node.{n}",
            capacity,
            feeds=0,
            load=0.0,
            started_at=NOW - timedelta(days=1),
            labels={"zone": ZONES[n % 3], "disk": "fast" if n % 4 == 0 else "slow"},
        )
        for n in range(workers)
    ]


def _equal(feeds: int) -> list[FeedToPlace]:
    waiting = [FeedToPlace(n) for n in range(feeds)]
    Random(2).shuffle(waiting)
    return waiting


def _mixed(feeds: int) -> list[FeedToPlace]:
    rng = Random(3)
    return [
        FeedToPlace(
            n,
            rng.choice(WEIGHTS),
            tenant=f"t{rng.randrange(max(feeds // 100, 1))}",
            selector=rng.choice(SELECTORS),
        )
        for n in range(feeds)
    ]
