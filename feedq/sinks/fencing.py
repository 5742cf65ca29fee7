"""Fences feeds: raises the epoch of many checkpoints, and reads the cursors that the predecessors left.

Many feeds are fenced together, which waits for a predecessor's commit that is in flight. When that runs into a
lock for too long, the feeds that are not locked are fenced all the same, and of the others it is told whose
session is in the way. Locks are waited for once in a call, however many there are: hundreds of feeds that a frozen
worker left must not add up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from feedq.sinks.base import Blocked, Fenced, FenceOutcome, FenceRequest, Superseded, Unusable
from feedq.sinks.checkpoints import strangers
from feedq.sinks.refusals import FailedAttempt, bisect
from feedq.sinks.session import SinkSession, parts

FENCED_AT_ONCE: Final = 1_000
"""Bounds how long one fence holds the rows that it has already raised."""
POLL_S: Final = 0.02
"""How often to look again at locks that the database does not wait for."""
REFUSALS_MAX: Final = 40
"""Attempts in vain at feeds that are locked one after another: enough to find one among a thousand, and no fence
waits without end."""


class Fencing:
    """Does one call to `Sink.fence` on one session. Methods raise the session's errors."""

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self._commit_id = uuid4()
        """By which a checkpoint says that it was fenced here and now."""
        self._outcomes: list[FenceOutcome] = []

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        deadline = time.monotonic() + lock_timeout_s
        locked: list[FenceRequest] = []
        for asked in parts(sorted(requests, key=lambda request: request.feed_id), FENCED_AT_ONCE):
            part = self._without_strangers(asked)
            if locked or not self._fence_together(part, lock_timeout_s):
                locked += self._fence_around_locks(part)
        while locked and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
            locked = [
                request
                for part in parts(locked, FENCED_AT_ONCE)
                for request in self._fence_around_locks(part)
            ]
        return self._outcomes + self._blocked(locked)

    def _without_strangers(self, requests: Sequence[FenceRequest]) -> Sequence[FenceRequest]:
        """Leaves the feeds that may have the checkpoint that is there."""
        known = self._session.possible_strangers(requests)
        wrong = strangers(requests, known) if known else {}
        self._outcomes += [
            Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in requests if r.feed_id in wrong
        ]
        return [request for request in requests if request.feed_id not in wrong] if wrong else requests

    def _fence_together(self, requests: Sequence[FenceRequest], lock_timeout_s: float) -> bool:
        """Fence them all; False when one of them stayed locked, and then none is fenced."""
        if not requests:
            return True
        raised = self._session.raise_epochs(requests, self._commit_id, lock_timeout_s=lock_timeout_s)
        if raised is None:
            return False
        for request in requests:
            if request.feed_id in raised:
                cursor, records = raised[request.feed_id]
                fenced = Fenced(request.feed_id, request.epoch, cursor, records, self._commit_id)
                self._outcomes.append(fenced)
        self._refused([request for request in requests if request.feed_id not in raised])
        return True

    def _refused(self, requests: Sequence[FenceRequest]) -> None:
        """Say why the sink refused these epochs."""
        if not requests:
            return
        known = self._session.last_commits([request.feed_id for request in requests], lock=False)
        for request in requests:
            last = known.get(request.feed_id)
            self._outcomes.append(
                # Also when the epochs are equal: the control database has forgotten one, and gave it out twice.
                Superseded(request.feed_id, request.epoch, last.epoch)
                if last is not None and last.epoch >= request.epoch
                # Somebody removed the checkpoint by hand just now: the next try makes a new one.
                else Blocked(request.feed_id, request.epoch, None)
            )

    def _fence_around_locks(self, requests: Sequence[FenceRequest]) -> list[FenceRequest]:
        """Fence those that nobody has locked; returns the others."""
        held = set(self._session.find_locked([request.feed_id for request in requests]))
        free = [request for request in requests if request.feed_id not in held]

        def attempt(part: Sequence[FenceRequest]) -> FailedAttempt | None:
            # Since they were looked at some were locked, or are being inserted at this moment.
            done = self._fence_together(part, self._session.brief_lock_timeout_s)
            return None if done else FailedAttempt("locked")

        held |= {request.feed_id for request, _ in bisect(free, attempt, refusals_max=REFUSALS_MAX)}
        return [request for request in requests if request.feed_id in held]

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Says whose session is in the way."""
        if not requests:
            return []
        holders = self._session.holders([request.feed_id for request in requests])
        return [Blocked(request.feed_id, request.epoch, holders.get(request.feed_id)) for request in requests]
