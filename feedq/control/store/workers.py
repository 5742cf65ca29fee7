"""Worker sessions: register, heartbeat, cordon, drain, leave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

from feedq.control.store.database import Aggregate, Connection, in_statement, in_transaction, storable_json
from feedq.control.store.feed_rows import read_documents
from feedq.control.store.history import told_of
from feedq.control.store.protocol import ask, call, document, read
from feedq.control.store.worker_session import wake_reconcile
from feedq.core.loss import Loss
from feedq.core.model import (
    FeedKey,
    LeaseState,
    NewWorker,
    Reason,
    Worker,
    WorkerTarget,
    WorkerView,
)
from feedq.core.placement.base import EligibleWorker
from feedq.core.values import storable
from feedq.errors import LeaseLost

STACK_CALLS_MAX = 30
"""The most calls of the process that was lost that its event keeps."""


class Workers(Aggregate):
    """Worker sessions."""

    @in_statement
    def register(self, c: Connection, new: NewWorker, *, ttl_s: float) -> Worker:
        tasks = None if new.tasks is None else sorted(set(new.tasks))
        return call(c, "register", Worker, new=document(replace(new, tasks=tasks)), ttl_s=ttl_s)

    @in_statement
    def hand_over(self, c: Connection, new: NewWorker, *, owner: UUID, key: FeedKey, ttl_s: float) -> Worker:
        """Register the process that a worker has begun for one feed, and hand it the feed's lease, which it has
        to claim. Raises `LeaseLost` when the worker does not hold it any more."""
        given = {"owner": owner, "feed": key[0], "epoch": key[1], "ttl_s": ttl_s}
        answer = ask(c, "hand_over", new=document(new), **given)
        if answer is None:
            raise LeaseLost(f"feed {key[0]}: its worker does not hold epoch {key[1]} any more")
        return read(answer, Worker)

    def drain(self, worker_id: UUID) -> bool:
        """The process is ending: it takes no more feeds, and releases those it has by itself. What it has
        not claimed yet is free at once. False when it is gone."""
        with self._database.statement() as c:
            is_there = call(c, "drain", bool, session=worker_id)
        if is_there:
            self._free_unclaimed(worker_id, reason=Reason.DRAINED)
        return is_there

    def set_target(self, worker_id: UUID, target: WorkerTarget) -> bool:
        """Set what a person wants of a worker. Unless it is to serve, what it has not claimed yet is free at
        once; what it runs is handed over by passes. Wakes reconcile. False when it is gone."""
        with self._database.statement() as c:
            given = {"session": worker_id, "target": target.value, "detail": told_of({})}
            is_there = call(c, "set_target", bool, **given)
        if is_there and target is not WorkerTarget.SERVING:
            drained = target is WorkerTarget.DRAINED
            self._free_unclaimed(worker_id, reason=Reason.DRAINED if drained else Reason.RELEASED)
        return is_there

    @in_transaction
    def _free_unclaimed(self, c: Connection, worker_id: UUID, *, reason: Reason) -> None:
        """Free what the worker has not claimed: nobody streams it yet, so it may go elsewhere at once; a claim
        that races waits for the row and finds it idle."""
        unclaimed = [LeaseState.ASSIGNED.value]
        call(c, "free", int, owners=[worker_id], states=unclaimed, because=reason.value)
        wake_reconcile(c)

    @in_statement
    def leave(self, c: Connection, worker_id: UUID) -> None:
        """Say goodbye: free what is left and end the session."""
        call(c, "leave", bool, session=worker_id)

    @in_statement
    def views(self, c: Connection, *, gone: bool = False) -> list[WorkerView]:
        """All workers by name; ``gone`` includes ended sessions."""
        sql = """
            SELECT CAST(row_to_json(found) AS text) FROM (SELECT feedq_1.worker_json(w) AS worker,
                extract(epoch FROM feedq.clock() - w.heartbeat_at)::float8 AS heartbeat_age_s,
                c.held AS leases, c.promised, c.held_weight AS load
            FROM feedq.worker w JOIN feedq_1.counted c ON c.worker_id = w.id
            -- What has no queue of its own runs one feed for the worker of its name.
            WHERE %(gone)s OR w.state <> 'gone' AND w.queue <> '' ORDER BY w.name, w.started_at) found
        """
        return read_documents(c.execute(sql, {"gone": gone}), WorkerView)

    @in_statement
    def eligible(self, c: Connection, tenants: Collection[str]) -> list[EligibleWorker]:
        """Workers that may be given feeds, as placement sees them; with their feeds of these tenants."""
        return call(c, "eligible_workers", list[EligibleWorker], of_tenants=list(tenants))

    @in_statement
    def report_loss(self, c: Connection, worker_id: UUID, loss: Loss, *, has_ended: bool = False) -> bool:
        """Write down how the process of a worker session was lost, and hold it against the feed that is to
        blame. Once a session: False when it is known already. Wakes reconcile. With ``has_ended`` its leases are
        freed first: nobody has to find out that it is gone."""
        said = storable(f"{loss.cause}: {loss.said}")
        detail = {"cause": loss.cause, "why": said, "stack": list(loss.stack[:STACK_CALLS_MAX])}
        given: dict[str, Any] = {
            "session": worker_id,
            "said": said,
            "detail": storable_json(detail),
            "culprit": loss.feed_id,
            "is_certain": loss.is_certain,
            "has_ended": has_ended,
        }
        return call(c, "report_loss", bool, **given)

    @in_transaction
    def gone_among(self, c: Connection, worker_ids: Collection[UUID]) -> set[UUID]:
        """Return which of these workers are declared gone, or unknown by now."""
        sql = "SELECT id FROM feedq.worker WHERE id = ANY(%(ids)s) AND state <> 'gone'"
        alive = {row.id for row in c.execute(sql, {"ids": list(worker_ids)})}
        return set(worker_ids) - alive
