"""Claims runs: what a worker with free slots asks for, and what it is given (`feedq/control/sql/runs.sql`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from feedq.control.store.database import Connection
from feedq.control.store.jobs.rows import job_from
from feedq.control.store.protocol import call
from feedq.core.schedule.model import ClaimedRun, Finish, Granted, Offer, RunKind, RunState
from feedq.errors import InvalidInput


class _Taken(msgspec.Struct):
    """A run that was claimed, with its job as it is stored."""

    id: int
    fence: int
    attempt: int
    schedule: str
    key: str
    kind: RunKind
    tick_at: datetime
    due_at: datetime
    job: str
    remaining_s: float | None
    waited_s: float
    losses: int

    def read(self) -> ClaimedRun:
        """Raises `InvalidInput` when this release cannot read the job."""
        return ClaimedRun(**msgspec.structs.asdict(self) | {"job": job_from(self.job)})


class _Answer(msgspec.Struct):
    runs: list[_Taken]
    missed: list[int]
    next_in_s: float | None


@dataclass(frozen=True, slots=True)
class ClaimedRuns:
    """The runs that a claim took."""

    granted: Granted
    unreadable: Sequence[Finish]
    """How those end whose job this release cannot read: they would hold their schedule's place for ever. Later:
    the row of their schedule comes before theirs."""
    missed: Sequence[int]
    """The runs that missed their start deadline, and were ended."""


def claim(c: Connection, offer: Offer) -> ClaimedRuns:
    """Take at most ``offer.limit`` runs."""
    answer = call(
        c,
        "claim_runs",
        _Answer,
        session=offer.worker_id,
        free=offer.limit,
        slots=offer.slots,
        fleet_slots=offer.fleet_slots,
    )
    runs: list[ClaimedRun] = []
    unreadable: list[Finish] = []
    for taken in answer.runs:
        try:
            runs.append(taken.read())
        except InvalidInput as error:
            reason = f"its stored job cannot be read: {error}"
            unreadable.append(Finish(taken.id, taken.fence, RunState.FAILED, reason))
    return ClaimedRuns(Granted(runs, answer.next_in_s), unreadable, answer.missed)
