"""Assignments: which feeds a pass places, what each weighs, and the statement that gives them to workers.

A million feeds may be without a place for long. So the ones about which something is new come first, and those
that were found to have no place take turns: each pass goes on where the one before it ended.

A feed weighs what is declared, blended with what was measured of it: one that lands as many rows and bytes a
second as the mean of the fleet measures 1; half of the measure is rows, half bytes. Progress holds the smoothed
rates, workers' heartbeats the fleet's sums.

What workers hold is counted, so that a pass reads a row a worker and none of their feeds. Triggers on `lease`
write what a statement changed to ``held_change``, and each pass folds that into ``worker_held``. A change and the
line that tells of it commit together, so the two tables always add up to the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from uuid import UUID

import msgspec

from feedq.control.store.database import Connection
from feedq.control.store.feed_rows import avoided_from, selector_from
from feedq.control.store.protocol import call, document
from feedq.core import limits
from feedq.core.model import Assignment, Reason
from feedq.core.placement.base import NO_EXPERIENCE, EligibleWorker, Experience, WaitingFeed, lags


def means(c: Connection, *, measured: float) -> dict[str, float]:
    """The parameters of ``effective_weight``: what the mean feed of the fleet lands, and how much that counts."""
    if not measured:
        return {"measured": 0.0, "mean_rows": 0.0, "mean_bytes": 0.0}
    sql = """
        SELECT CAST(%(measured)s AS float8) AS measured,
               coalesce(sum(w.rows_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_rows,
               coalesce(sum(w.bytes_per_s) / greatest(sum(h.feeds), 1), 0) AS mean_bytes
        FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id WHERE w.state <> 'gone'
    """
    means: dict[str, float] = c.execute(sql, {"measured": measured}).one()._asdict()
    return means


class FeedToPlace(msgspec.Struct, frozen=True):
    """What decides about the place of a feed, as the functions of the protocol answer it."""

    feed_id: int
    weight: float
    tenant: str
    selector: Mapping[str, Mapping[str, str]]
    avoid: Mapping[str, float]
    sink: str
    remote: str


class FeedThatWaits(FeedToPlace, frozen=True):
    """A feed without a place."""

    reason: Reason
    promised_to: UUID | None


class WaitingNow(msgspec.Struct, frozen=True):
    """Feeds to place now, and after which of those without a place the next pass goes on."""

    feeds: Sequence[FeedThatWaits]
    after: int
    known: Mapping[str, Experience]
    """On which workers feeds failed that have landed records elsewhere since, by remote."""


class Candidate(msgspec.Struct, frozen=True):
    """A worker that may be given feeds, and what its last heartbeat says of how well it serves them."""

    worker: EligibleWorker
    loop_lag_s: float
    silent_s: float
    ttl_s: float


class Because(msgspec.Struct, frozen=True):
    """Why a feed is idle."""

    feed_id: int
    reason: Reason


class PassAssignments:
    """The part of a reconcile pass that gives feeds their places."""

    _c: Connection
    _measured_load: float
    _waiting_after: int

    @cached_property
    def _means(self) -> dict[str, float]:
        return means(self._c, measured=self._measured_load)

    def waiting(self, *, limit: int) -> list[WaitingFeed]:
        """Feeds to place now. When there are more than ``limit`` the next pass begins where this one ends, so
        that feeds without a place keep no others from theirs."""
        found = call(self._c, "waiting", WaitingNow, most=limit, after=self._waiting_after, **self._means)
        self._waiting_after = found.after
        return [
            WaitingFeed(
                one.feed_id,
                one.weight,
                one.reason,
                one.tenant,
                selector_from(one.selector),
                one.promised_to,
                found.known.get(one.remote, NO_EXPERIENCE).avoided(avoided_from(one.avoid)),
                one.sink,
            )
            for one in found.feeds
        ]

    def candidates(self, tenants: Collection[str] = ()) -> list[EligibleWorker]:
        """Workers that may be given feeds; with their feeds of these tenants, counted from the leases."""
        return eligible(call(self._c, "candidates", list[Candidate], of_tenants=list(tenants)))

    def assign(self, pairs: Sequence[tuple[int, UUID]]) -> list[Assignment]:
        places = [{"feed_id": feed_id, "worker_id": worker_id} for feed_id, worker_id in pairs]
        within = limits.DISPATCH_TIMEOUT_S
        return call(
            self._c,
            "assign",
            list[Assignment],
            places=document(places),
            claim_within_s=within,
            **self._means,
        )

    def explain(self, reasons: Sequence[tuple[int, Reason]]) -> None:
        """Write why feeds are idle, where that changed."""
        if not reasons:
            return
        call(self._c, "explain", int, reasons=document([Because(*one) for one in reasons]))


def eligible(candidates: Iterable[Candidate]) -> list[EligibleWorker]:
    return [
        replace(one.worker, lags=lags(loop_lag_s=one.loop_lag_s, silent_s=one.silent_s, ttl_s=one.ttl_s))
        for one in candidates
    ]
