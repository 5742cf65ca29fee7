"""Fences: raises the epochs of checkpoints, so that no predecessor commits any more, and reads their cursors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from sqlalchemy import and_, select

from feedq.sinks.base import (
    Blocked,
    Checkpoint,
    Fenced,
    FenceOutcome,
    FenceRequest,
    Superseded,
    Unusable,
    parts,
)
from feedq.sinks.checkpoints import cursor_of, strangers
from feedq.sinks.refusals import FailedAttempt, bisect
from feedq.sinks.session import ErrorScope, SinkSession, c, uuid_of

FENCED_AT_ONCE: Final = 1_000
"""Bounds how long one fence holds the rows that it has already raised."""
LOCK_POLL_S: Final = 0.02
"""How often to look again at locks that the database does not wait for."""
LOCKS_TRIED_MAX: Final = 40
"""Attempts in vain at feeds that are locked one after another: enough to find one among a thousand, and no fence
waits without end."""


class Fencing:
    """One call to `Sink.fence` on one session: raises the epoch of many checkpoints, and reads the cursors that
    the predecessors left. Methods raise the session's errors.

    Many feeds are fenced together, which waits for a predecessor's commit that is in flight. When that runs into a
    lock for too long, the feeds that are not locked are fenced all the same, and of the others it is told whose
    session is in the way. Locks are waited for once in a call, however many there are: hundreds of feeds that a
    frozen worker left must not add up.
    """

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
            time.sleep(min(LOCK_POLL_S, left_s))
            locked = [
                request
                for part in parts(locked, FENCED_AT_ONCE)
                for request in self._fence_around_locks(part)
            ]
        return self._outcomes + self._blocked(locked)

    def _without_strangers(self, requests: Sequence[FenceRequest]) -> Sequence[FenceRequest]:
        """Leaves the feeds that may have the checkpoint that is there."""
        known = self._possible_strangers(requests)
        wrong = strangers(requests, known) if known else {}
        self._outcomes += [
            Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in requests if r.feed_id in wrong
        ]
        return [request for request in requests if request.feed_id not in wrong] if wrong else requests

    def _possible_strangers(self, requests: Sequence[FenceRequest]) -> list[Checkpoint]:
        """The checkpoints that may be somebody else's, for `strangers` to judge."""
        session = self._session
        found: list[Checkpoint] = []
        session.set_lock_timeout(session.lock_timeout_s)
        for part in parts(requests):
            ids = [request.feed_id for request in part]
            rows = session.execute(select(c.feed_id, c.feed_uuid).where(session.of(ids)))
            there = {row.feed_id: str(row.feed_uuid) for row in rows}
            if wrong := [r.feed_id for r in part if there.get(r.feed_id) not in (None, str(r.identity.feed))]:
                found += session.find_checkpoints(c.feed_id.in_(wrong))
            if new := [request.feed for request in part if request.feed_id not in there]:
                found += session.find_checkpoints(c.feed.in_(new))
        return found

    def _fence_together(self, requests: Sequence[FenceRequest], lock_timeout_s: float) -> bool:
        """Fence them all; False when one of them stayed locked, and then none is fenced."""
        if not requests:
            return True
        raised = self._raise_epochs(requests, lock_timeout_s=lock_timeout_s)
        if raised is None:
            return False
        self._outcomes += raised.values()
        self._refused([request for request in requests if request.feed_id not in raised])
        return True

    def _raise_epochs(
        self, requests: Sequence[FenceRequest], *, lock_timeout_s: float
    ) -> dict[int, Fenced] | None:
        """Raise the epochs of all feeds that have a smaller one, or the same by this worker. Returns what these
        are answered, by feed id; None when one of them stayed locked, and then none is raised."""
        session, commit_id = self._session, str(self._commit_id)
        rows = [
            {
                "environment": session.environment,
                "feed_id": request.feed_id,
                "feed": request.feed,
                "epoch": request.epoch,
                "owner": str(session.worker_id),
                "commit_id": commit_id,
                "records": 0,
                "feed_uuid": str(request.identity.feed),
                "installation": str(request.identity.installation),
            }
            for request in requests
        ]
        try:
            session.set_lock_timeout(lock_timeout_s)
            session.fence(rows, lock_timeout_s=lock_timeout_s)
        except session.errors as error:
            if session.scope(error) is not ErrorScope.LOCKED:
                raise
            return None
        # Read after the epoch was raised: from then on no predecessor can commit, and the cursor is the last.
        session.set_lock_timeout(session.lock_timeout_s)
        # By owner and epoch: a person may have given it another cursor since, and with it another commit_id.
        columns = (c.feed_id, c.epoch, c.cursor, c.records, c.commit_id, c.is_given)
        asked = {request.feed_id: request.epoch for request in requests}
        ours = and_(session.of(list(asked)), c.owner == str(session.worker_id))
        return {
            row.feed_id: Fenced(
                row.feed_id,
                row.epoch,
                cursor_of(row.cursor),
                row.records,
                uuid_of(row.commit_id),
                is_given=row.is_given,
            )
            for row in session.execute(select(*columns).where(ours))
            if row.epoch == asked[row.feed_id]
        }

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

        locked, left = bisect(free, attempt, failures_max=LOCKS_TRIED_MAX)
        held |= {request.feed_id for request in (*(request for request, _ in locked), *left)}
        return [request for request in requests if request.feed_id in held]

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Says whose session is in the way."""
        if not requests:
            return []
        owners = self._session.owners([request.feed_id for request in requests])
        return [Blocked(request.feed_id, request.epoch, owners.get(request.feed_id)) for request in requests]
