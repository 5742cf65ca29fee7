"""The values that placement decides about: feeds that wait, feeds that run, workers, and the rules.

The numbers of a worker are those of the control database: they count what it has been given, whether or not
it runs already, and what has been promised to it; what it has been asked to give away no longer counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from feedq.core.model import ANYWHERE, Reason, Selector
from feedq.core.values import EVERY_OTHER

Avoided: TypeAlias = tuple[tuple[str, datetime], ...]
"""Workers on which a feed failed, or others of its remote did, by name, each with the time when it last was so;
the latest last."""


class Strategy(StrEnum):
    """The way in which a worker is chosen among those that may have a feed."""

    BALANCED = "balanced"
    """The least utilised: as even as it gets."""
    RENDEZVOUS = "rendezvous"
    """The one that a hash of worker and feed favours, unless that is too full: a feed tends to come back to
    where it was."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of placement."""

    strategy: Strategy = Strategy.BALANCED
    settle_s: float = 0.0
    """The age of a settled worker: while every worker is younger nothing is placed; and none that is younger is
    moved anything."""
    tenant_caps: Mapping[str, int] = field(default_factory=dict)
    """Feeds of one tenant that one worker may have."""
    band: float = 0.1
    """The part of the mean utilisation by which workers may differ before feeds of different
    weights are moved."""
    moves: int = 50
    """Feeds that may be under way from one worker to another at a time."""
    avoid_s: float = 600.0
    """When no feed has failed on a worker for so long, one of those that did is moved there, to see."""

    def cap_of(self, tenant: str) -> int | None:
        """Return how many feeds of this tenant one worker may have; None for any number."""
        if not tenant or not self.tenant_caps:
            return None
        return self.tenant_caps.get(tenant, self.tenant_caps.get(EVERY_OTHER))


@dataclass(frozen=True, slots=True)
class FeedToPlace:
    """A feed that may start and has no owner; or one that runs and may be moved."""

    feed_id: int
    weight: float = 1.0
    tenant: str = ""
    selector: Selector = ANYWHERE
    worker_id: UUID | None = None
    """The worker that counts it already. A running feed is there. One that waits was moved there, or that is the
    successor of the one that held it: it goes there, unless that worker is no candidate any more or lacks a
    required label; then it is placed like any other."""
    avoid: Avoided = ()
    sink: str = ""
    reason: Reason | None = None
    """Why it waits, as last written to its lease."""
    reached: Collection[str] = ()
    """The workers, of those that it avoids, on which another feed of its remote has begun to land records
    since."""


@dataclass(frozen=True, slots=True)
class EligibleWorker:
    """A worker that may be given feeds: active, wanted to serve, heard from."""

    worker_id: UUID
    name: str
    queue: str
    capacity: int
    feeds: int
    """What it holds and what is promised to it, less what it was asked to hand over to another."""
    load: float
    """Sum of the weights of these."""
    started_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=dict)
    """The number of its feeds by tenant, as far as tenants with a cap are concerned that wait or
    may be moved."""
    sinks_down: frozenset[str] = frozenset()
    """Named sinks that it cannot write to just now."""
    lags: bool = False
    """Whether its loop runs late, or its heartbeat is: see ``lags`` in `feedq/control/sql/passes.sql`."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision: who gets what, and why the rest waits."""

    assignments: tuple[tuple[int, UUID], ...]
    """``(feed_id, worker_id)`` pairs."""
    unplaced: tuple[tuple[int, Reason], ...]
    """The feeds without a place, each with `SETTLING`, `NO_MATCH` (no worker has the labels) or `NO_CAPACITY`
    (those that have are full or at the tenant's cap, or there is no worker at all)."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A running feed should move to another worker."""

    feed_id: int
    source: UUID
    target: UUID


def is_settled(worker: EligibleWorker, *, now: datetime, settle_s: float) -> bool:
    return now - worker.started_at >= timedelta(seconds=settle_s)
