"""Fencing: raise the epoch of many checkpoints, and read the cursors that the predecessors left.

One statement for many feeds. It waits for a predecessor's commit that is in flight, and being a transaction
of the server's own it cannot be held open by a client that freezes. When it runs into a lock for too
long, the feeds that are not locked are fenced all the same, and of the others it is told whose session is in
the way. A feed is waited for once in a call, however many are locked: hundreds that a frozen worker left must
not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID, uuid4

import psycopg2

from feedq.sinks.base import (
    Blocked,
    Checkpoint,
    Fenced,
    FenceOutcome,
    FenceRequest,
    Superseded,
    Unusable,
)
from feedq.sinks.identity import strangers
from feedq.sinks.session import SinkSession, worker_of
from feedq.sinks.sqlstate import ErrorScope, classify
from feedq.sinks.statements import EPOCHS_IN_SINK, FENCE, LOCK_HOLDERS, LOCKED_BY_OTHERS, STRANGERS

FENCED_AT_ONCE: Final = 1_000
"""Bounds how long one fence holds the rows that it has already raised."""
BRIEF_LOCK_TIMEOUT_S: Final = 0.02
"""For feeds that looked free a moment ago."""
BRIEF_WAITS_MAX: Final = 10
"""So that feeds locked one after another cannot make a fence wait without end."""


class Fencing:
    """The fences of one owner in one environment. Methods raise `psycopg2.Error`."""

    def __init__(self, session: SinkSession, environment: str, owner: UUID) -> None:
        self._session = session
        self._environment = environment
        self._owner = owner

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        outcomes: list[FenceOutcome] = []
        may_wait = True
        for asked in _parts(sorted(requests, key=lambda request: request.feed_id)):
            wrong = self._strangers(asked)
            outcomes += [Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in asked if r.feed_id in wrong]
            part = [request for request in asked if request.feed_id not in wrong]
            done = self._fence_together(part, lock_timeout_s) if may_wait or not part else None
            if done is None:
                may_wait = False
                done = self._fence_around_locks(part, min(lock_timeout_s, BRIEF_LOCK_TIMEOUT_S))
            outcomes += done
        return outcomes

    def _strangers(self, requests: Sequence[FenceRequest]) -> dict[int, str]:
        """Why some of these feeds may not have the checkpoint that is there."""
        known = self._session.execute(STRANGERS, {**self._of(requests), **_identities(requests)})
        return strangers(requests, [Checkpoint(*row) for row in known]) if known else {}

    def _fence_together(
        self, requests: Sequence[FenceRequest], lock_timeout_s: float
    ) -> list[FenceOutcome] | None:
        """Fence them all in one statement; None when one of them stayed locked, and then none is fenced."""
        self._session.set_lock_timeout(lock_timeout_s)
        commit_id = uuid4()
        try:
            rows = self._session.execute(
                FENCE,
                {
                    "environment": self._environment,
                    "owner": self._owner,
                    "commit_id": commit_id,
                    "feed_ids": [request.feed_id for request in requests],
                    "epochs": [request.epoch for request in requests],
                    **_identities(requests),
                },
            )
        except psycopg2.Error as error:
            if classify(error) is ErrorScope.LOCKED:
                return None
            raise
        epochs = {request.feed_id: request.epoch for request in requests}
        fenced: list[FenceOutcome] = [
            Fenced(feed_id, epochs[feed_id], cursor, records, commit_id) for feed_id, cursor, records in rows
        ]
        done = {feed_id for feed_id, _, _ in rows}
        return fenced + self._superseded([request for request in requests if request.feed_id not in done])

    def _superseded(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Why the sink refused these epochs."""
        if not requests:
            return []
        epochs = dict(self._session.execute(EPOCHS_IN_SINK, self._of(requests)))
        return [
            Superseded(request.feed_id, request.epoch, epochs[request.feed_id])
            if epochs.get(request.feed_id, 0) >= request.epoch
            # Somebody removed the checkpoint by hand just now: the next try makes a new one.
            else Blocked(request.feed_id, request.epoch, None)
            for request in requests
        ]

    def _fence_around_locks(
        self, requests: Sequence[FenceRequest], lock_timeout_s: float
    ) -> list[FenceOutcome]:
        held = {feed_id for (feed_id,) in self._session.execute(LOCKED_BY_OTHERS, self._of(requests))}
        blocked = [request for request in requests if request.feed_id in held]
        free = [request for request in requests if request.feed_id not in held]
        done = self._fence_together(free, lock_timeout_s) if free else []
        if done is None:
            done, still_blocked = self._fence_one_by_one(free, lock_timeout_s)
            blocked += still_blocked
        return done + self._blocked(blocked)

    def _fence_one_by_one(
        self, requests: Sequence[FenceRequest], lock_timeout_s: float
    ) -> tuple[list[FenceOutcome], list[FenceRequest]]:
        """Between looking and fencing some were locked, or are being inserted at this moment."""
        outcomes: list[FenceOutcome] = []
        blocked: list[FenceRequest] = []
        for request in requests:
            done = None
            if len(blocked) < BRIEF_WAITS_MAX:
                done = self._fence_together([request], lock_timeout_s)
            if done is None:
                blocked.append(request)
            else:
                outcomes += done
        return outcomes, blocked

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Whose session is in the way: by the lock itself, else whoever fenced the feed last."""
        if not requests:
            return []
        holders = {
            feed_id: worker_of(application) or owner
            for feed_id, owner, application in self._session.execute(LOCK_HOLDERS, self._of(requests))
        }
        return [Blocked(request.feed_id, request.epoch, holders.get(request.feed_id)) for request in requests]

    def _of(self, requests: Sequence[FenceRequest]) -> dict[str, object]:
        return {
            "environment": self._environment,
            "feed_ids": [request.feed_id for request in requests],
        }


def _identities(requests: Sequence[FenceRequest]) -> dict[str, object]:
    identities = [request.identity for request in requests]
    return {
        "feeds": [request.feed for request in requests],
        "feed_uuids": [identity and identity.feed for identity in identities],
        "installations": [identity and identity.installation for identity in identities],
    }


def _parts(requests: Sequence[FenceRequest]) -> Iterator[Sequence[FenceRequest]]:
    for start in range(0, len(requests), FENCED_AT_ONCE):
        yield requests[start : start + FENCED_AT_ONCE]
