"""Fences: raises the epochs of checkpoints, so that no predecessor commits any more, and reads their cursors.

Whose a checkpoint is, is asked by the fence only: from then on every write names the commit that the fence left,
which nobody else has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from sqlalchemy import select

from feedq.core.remedies import command
from feedq.sinks.base import (
    Blocked,
    Checkpoint,
    FenceOutcome,
    FenceRequest,
    Superseded,
    Unusable,
    parts,
)
from feedq.sinks.refusals import FailedAttempt, bisect
from feedq.sinks.session import ErrorScope, SinkSession, c

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

    Many feeds are fenced together. When that runs into a lock, the feeds that are not locked are fenced all the
    same, and the others are tried again and again, for a predecessor's commit may be in flight. Of those that stay
    locked it is told whose session is in the way. All locks are waited for together: hundreds of feeds that a
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
            if not self._fence_together(part):
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
        session = self._session
        wrong: dict[int, str] = {}
        session.set_lock_timeout(session.lock_timeout_s)
        for part in parts(requests):
            ids = [request.feed_id for request in part]
            rows = session.execute(select(c.feed_id, c.feed_uuid).where(session.of(ids)))
            there = {row.feed_id: str(row.feed_uuid) for row in rows}
            suspects: list[Checkpoint] = []
            if others := [
                r.feed_id for r in part if there.get(r.feed_id) not in (None, str(r.identity.feed))
            ]:
                suspects += session.find_checkpoints(c.feed_id.in_(others))
            if new := [request.feed for request in part if request.feed_id not in there]:
                suspects += session.find_checkpoints(c.feed.in_(new))
            if suspects:
                wrong |= strangers(part, suspects)
        self._outcomes += [
            Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in requests if r.feed_id in wrong
        ]
        return [request for request in requests if request.feed_id not in wrong] if wrong else requests

    def _fence_together(self, requests: Sequence[FenceRequest]) -> bool:
        """Fence them all; False when one of them is locked, and then none is fenced."""
        if not requests:
            return True
        session = self._session
        try:
            session.set_lock_timeout(session.brief_lock_timeout_s)
            fenced = session.fence(requests, self._commit_id)
        except session.errors as error:
            if session.scope(error) is not ErrorScope.LOCKED:
                raise
            return False
        self._outcomes += fenced
        raised = {one.feed_id for one in fenced}
        self._refused([request for request in requests if request.feed_id not in raised])
        return True

    def _refused(self, requests: Sequence[FenceRequest]) -> None:
        """Say why the sink refused these epochs."""
        if not requests:
            return
        self._session.set_lock_timeout(self._session.lock_timeout_s)
        known = self._session.checkpoints_of(request.feed_id for request in requests)
        for request in requests:
            there = known.get(request.feed_id)
            self._outcomes.append(
                # Also when the epochs are equal: the control database has forgotten one, and gave it out twice.
                Superseded(request.feed_id, request.epoch, there.epoch)
                if there is not None and there.epoch >= request.epoch
                # Somebody removed the checkpoint by hand just now: the next try makes a new one.
                else Blocked(request.feed_id, request.epoch, None)
            )

    def _fence_around_locks(self, requests: Sequence[FenceRequest]) -> list[FenceRequest]:
        """Fence those that nobody has locked; returns the others."""
        held = set(self._session.find_locked([request.feed_id for request in requests]))
        free = [request for request in requests if request.feed_id not in held]

        def attempt(part: Sequence[FenceRequest]) -> FailedAttempt | None:
            # Since they were looked at some were locked, or are being inserted at this moment.
            return None if self._fence_together(part) else FailedAttempt("locked")

        locked, left = bisect(free, attempt, failures_max=LOCKS_TRIED_MAX)
        held |= {request.feed_id for request in (*(request for request, _ in locked), *left)}
        return [request for request in requests if request.feed_id in held]

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """Says whose session is in the way."""
        if not requests:
            return []
        self._session.set_lock_timeout(self._session.lock_timeout_s)
        known = self._session.checkpoints_of(request.feed_id for request in requests)
        owners = {feed_id: one.owner for feed_id, one in known.items()}
        return [Blocked(request.feed_id, request.epoch, owners.get(request.feed_id)) for request in requests]


def strangers(requests: Sequence[FenceRequest], known: Iterable[Checkpoint]) -> dict[int, str]:
    """Why some of these feeds may not be fenced, by id; ``known`` are the checkpoints of their ids and names."""
    by_id: dict[int, Checkpoint] = {}
    by_name: dict[str, list[Checkpoint]] = {}
    for checkpoint in known:
        by_id[checkpoint.feed_id] = checkpoint
        by_name.setdefault(checkpoint.feed, []).append(checkpoint)
    found: dict[int, str] = {}
    for request in requests:
        if (why := _stranger(request, by_id, by_name)) is not None:
            found[request.feed_id] = why
    return found


def _stranger(
    request: FenceRequest, by_id: Mapping[int, Checkpoint], by_name: Mapping[str, Sequence[Checkpoint]]
) -> str | None:
    identity = request.identity
    if (there := by_id.get(request.feed_id)) is not None:
        if there.feed_uuid == identity.feed:
            return None
        return (
            f"the sink has the checkpoint of another feed under the number {request.feed_id}: {there.whose}. "
            "Was the control database restored from a backup? Remove this feed and declare it again, and it "
            "will get another number"
        )
    for namesake in by_name.get(request.feed, ()):
        if namesake.installation != identity.installation:
            return (
                f"the sink has a checkpoint of {namesake.whose}, but this installation is "
                f"{identity.installation}. If the other one is gone, `{command('feed', 'adopt', request.feed)}` "
                "continues from its cursor; if it is in use, set FEEDQ_ENVIRONMENT to another name here, or "
                "land in another database"
            )
    return None
