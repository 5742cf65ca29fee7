"""Fleets for the tests of placement: some drawn, and how they stand once an answer was carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import strategies as st

from feedq.core.model import ANYWHERE, Selector
from feedq.core.placement.base import EligibleWorker, FeedToPlace, Rules, Strategy, Transfer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0
SETTLE_S = 2.0

whole_weights = st.integers(1, 50).map(float)
weights = st.one_of(whole_weights, st.floats(1e-6, 1e6))

LABELS: tuple[dict[str, str], ...] = (
    {},
    {"zone": "a"},
    {"zone": "b"},
    {"disk": "fast"},
    {"zone": "a", "disk": "fast"},
)
TENANTS = ("", "", "acme", "beta", "core")
selectors = st.one_of(
    st.just(ANYWHERE),
    st.builds(Selector, required=st.sampled_from(LABELS), preferred=st.sampled_from(LABELS)),
)
caps = st.sampled_from(({}, {"acme": 2}, {"*": 3}, {"acme": 1, "*": 4}, {"beta": 0}))


def candidate(
    number: int,
    *,
    capacity: int = 100,
    feeds: int = 0,
    load: float | None = None,
    up_s: float = DAY_S,
    labels: Mapping[str, str] | None = None,
    tenants: Mapping[str, int] | None = None,
) -> EligibleWorker:
    return EligibleWorker(
        UUID(int=number),
        f"w{number}",
        f"node.{number}",
        capacity,
        feeds,
        float(feeds) if load is None else load,
        NOW - timedelta(seconds=up_s),
        labels=labels or {},
        tenants=tenants or {},
    )


def matches(worker: EligibleWorker, labels: Mapping[str, str]) -> bool:
    return labels.items() <= worker.labels.items()


@st.composite
def choosy_feeds(draw: st.DrawFn) -> list[FeedToPlace]:
    """Feeds of tenants, with selectors, of few different weights."""
    ids = draw(st.lists(st.integers(1, 10_000), unique=True, max_size=60))
    weight = st.sampled_from(draw(st.sampled_from(((1.0,), (1.0, 2.0), (1.0, 3.0, 7.0)))))
    return [
        FeedToPlace(n, draw(weight), tenant=draw(st.sampled_from(TENANTS)), selector=draw(selectors))
        for n in ids
    ]


@st.composite
def fleets(draw: st.DrawFn, *, labelled: bool = False) -> list[EligibleWorker]:
    """Workers of any fill, some above their capacity; with labels they are often alike, so that there are ties."""
    fleet = []
    alike = labelled and draw(st.booleans())
    for number in range(draw(st.integers(0, 8))):
        capacity = 20 if alike else draw(st.integers(0, 30))
        feeds = draw(st.integers(0, 2 if alike else capacity + 3))
        load = feeds * (1.0 if alike else draw(whole_weights if labelled else weights))
        labels = draw(st.sampled_from(LABELS)) if labelled else {}
        tenants = {"acme": draw(st.integers(0, min(feeds, 3)))} if labelled else {}
        fleet.append(
            candidate(number + 1, capacity=capacity, feeds=feeds, load=load, labels=labels, tenants=tenants)
        )
    return fleet


@dataclass(frozen=True)
class Running:
    """A fleet and what runs on it, of which some on workers that are to have none."""

    workers: list[EligibleWorker]
    held: list[FeedToPlace]
    rules: Rules

    def after(self, transfers: Iterable[Transfer]) -> Running:
        """When every transfer was carried out."""
        target = {t.feed_id: t.target for t in transfers}
        held = [replace(h, worker_id=target.get(h.feed_id, h.worker_id)) for h in self.held]
        return running(self.workers, held, self.rules)

    @property
    def stranded(self) -> list[FeedToPlace]:
        known = {w.worker_id for w in self.workers}
        return [h for h in self.held if h.worker_id not in known]

    def feeds(self) -> list[int]:
        return [w.feeds for w in self.workers]


def running(
    workers: Sequence[EligibleWorker], held: Sequence[FeedToPlace], rules: Rules | None = None
) -> Running:
    """The workers' counters are made to say what they hold."""
    counted = []
    for worker in workers:
        own = [h for h in held if h.worker_id == worker.worker_id]
        tenants = Counter(h.tenant for h in own if h.tenant)
        load = sum(sorted(h.weight for h in own))
        counted.append(replace(worker, feeds=len(own), load=load, tenants=tenants))
    return Running(counted, list(held), rules or Rules(settle_s=SETTLE_S))


def uniform(feeds: Sequence[int], *, capacity: int = 1000, weight: float = 1.0) -> Running:
    """Equal workers, each with so many equal feeds."""
    workers = [candidate(n + 1, capacity=capacity) for n in range(len(feeds))]
    held = [
        FeedToPlace(1000 * n + i, weight, worker_id=w.worker_id)
        for n, (w, count) in enumerate(zip(workers, feeds, strict=True))
        for i in range(count)
    ]
    return running(workers, held)


@st.composite
def running_fleets(draw: st.DrawFn, *, strategy: Strategy = Strategy.BALANCED) -> Running:
    """Any fleet: labels, caps, weights, young workers, overfull ones, and some that are to be left."""
    weight = draw(st.sampled_from((st.just(1.0), st.just(0.3), st.sampled_from((1.0, 2.0, 5.0)), weights)))
    capacity = draw(st.sampled_from((st.just(12), st.integers(0, 20))))
    workers = []
    held: list[FeedToPlace] = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        room = draw(capacity)
        labels = draw(st.sampled_from(LABELS))
        up_s = draw(st.sampled_from((DAY_S, DAY_S, DAY_S, 0.0)))
        workers.append(candidate(number, capacity=room, labels=labels, up_s=up_s))
        for _ in range(draw(st.integers(0, room + 1))):
            tenant, selector = draw(st.sampled_from(TENANTS)), draw(selectors)
            held.append(FeedToPlace(len(held) + 1, draw(weight), tenant, selector, UUID(int=number)))
    for _ in range(draw(st.sampled_from((0, 0, 4)))):
        tenant, selector = draw(st.sampled_from(TENANTS)), draw(selectors)
        held.append(FeedToPlace(len(held) + 1, draw(weight), tenant, selector, UUID(int=99)))
    rules = Rules(
        strategy=strategy,
        settle_s=SETTLE_S,
        tenant_caps=draw(caps),
        band=draw(st.sampled_from((0.0, 0.1, 0.5))),
    )
    return running(workers, draw(st.permutations(held)), rules)
