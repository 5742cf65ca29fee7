"""Fencing: raise the epoch of many checkpoints, and read the cursors that the predecessors left.

::

    those that nobody has locked, at once ─ the others, waiting for their predecessors ─ what is locked still

A predecessor's commit that is in flight is waited for, all feeds together and as long as asked for, so that
hundreds of feeds that a frozen worker left locked do not add up. What became of each feed is read after its
epoch was raised: from then on no predecessor can commit, and the cursor is the last.

Whose session is in the way is told by who fenced the feed last: only the owner of a checkpoint writes to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.exc import SQLAlchemyError

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
from feedq.sinks.isolate import FailedAttempt, isolate
from feedq.sinks.sql.checkpoints import checkpoint_of, checkpoints_where
from feedq.sinks.sql.flavor import FEEDS_AT_ONCE
from feedq.sinks.sql.letters import cursor_of
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.table_definitions import checkpoint
from feedq.sinks.sqlstate import ErrorScope

POLL_S: Final = 0.02
"""How often to look again, where there is no waiting for a lock."""
LOCKED_MAX: Final = 10
"""Refusals in one round after which the rest is taken for locked: each costs an attempt."""


class SqlFencing:
    """The fences of one owner in one environment. Methods raise `SQLAlchemyError`."""

    def __init__(self, session: SqlSession, environment: str, owner: UUID) -> None:
        self._session = session
        self._environment = environment
        self._owner = owner
        self._commit_id = uuid4()
        """By which a checkpoint says that it was fenced here and now."""

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        deadline = time.monotonic() + lock_timeout_s
        wrong = self._strangers(requests)
        outcomes: list[FenceOutcome] = [
            Unusable(r.feed_id, r.epoch, wrong[r.feed_id]) for r in requests if r.feed_id in wrong
        ]
        locked = sorted((r for r in requests if r.feed_id not in wrong), key=lambda request: request.feed_id)
        fenced, locked = self._fence_free(locked)
        outcomes += fenced
        if self._session.flavor.waits_for_locks:
            fenced, locked = self._fence_waiting(locked, deadline)
            outcomes += fenced
            # Of those waited for together some may be free by now.
            fenced, locked = self._fence_free(locked)
            outcomes += fenced
        while locked and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
            fenced, locked = self._fence_free(locked)
            outcomes += fenced
        return outcomes + self._blocked(locked)

    def _strangers(self, requests: Sequence[FenceRequest]) -> dict[int, str]:
        """Why some of these feeds may not have the checkpoint that is there."""
        found: dict[int, str] = {}
        for part in _parts([request for request in requests if request.identity is not None]):
            known = self._known(checkpoint.c.feed_id.in_([request.feed_id for request in part]))
            there = {one.feed_id for one in known}
            if new := [request.feed for request in part if request.feed_id not in there]:
                known += self._known(checkpoint.c.feed.in_(new))
            found |= strangers(part, known)
        return found

    def _known(self, wanted: ColumnElement[bool]) -> list[Checkpoint]:
        self._session.set_lock_wait(self._session.flavor.lock_timeout_s)
        statement = checkpoints_where(checkpoint.c.environment == self._environment, wanted)
        known = [checkpoint_of(row) for row in self._session.execute(statement)]
        self._session.rollback()
        return known

    def _fence_free(self, requests: Sequence[FenceRequest]) -> tuple[list[FenceOutcome], list[FenceRequest]]:
        """Fence those that nobody has locked; returns what became of them, and the others."""
        outcomes: list[FenceOutcome] = []
        locked: list[FenceRequest] = []
        for part in _parts(requests):
            ids = [request.feed_id for request in part]
            free = set(self._session.flavor.free(self._session.connection, self._environment, ids))
            free -= self._raise([request for request in part if request.feed_id in free])
            outcomes += self._read_back([request for request in part if request.feed_id in free])
            locked += [request for request in part if request.feed_id not in free]
        return outcomes, locked

    def _fence_waiting(
        self, requests: Sequence[FenceRequest], deadline: float
    ) -> tuple[list[FenceOutcome], list[FenceRequest]]:
        """Fence all of them as soon as nobody has any of them locked, or none."""
        outcomes: list[FenceOutcome] = []
        locked: list[FenceRequest] = []
        for part in _parts(requests):
            left_s = deadline - time.monotonic()
            if left_s > 0 and self._attempt(part, wait_s=left_s) is None:
                outcomes += self._read_back(part)
            else:
                locked += part
        return outcomes, locked

    def _raise(self, requests: Sequence[FenceRequest]) -> set[int]:
        """Raise the epochs of all that can be without waiting; returns the feeds that were locked since."""
        refusals = 0

        def attempt(part: Sequence[FenceRequest]) -> FailedAttempt | None:
            nonlocal refusals
            if refusals >= LOCKED_MAX:
                return FailedAttempt("locked")
            refusal = self._attempt(part, wait_s=0)
            refusals += refusal is not None
            return refusal

        return {request.feed_id for request, _ in isolate(requests, attempt)}

    def _attempt(self, requests: Sequence[FenceRequest], *, wait_s: float) -> FailedAttempt | None:
        rows = [
            {
                "environment": self._environment,
                "feed_id": request.feed_id,
                "feed": request.feed,
                "epoch": request.epoch,
                "owner": str(self._owner),
                "commit_id": str(self._commit_id),
                "feed_uuid": request.identity and str(request.identity.feed),
                "installation": request.identity and str(request.identity.installation),
            }
            for request in requests
        ]
        flavor = self._session.flavor
        self._session.forget_lock_wait()
        try:
            flavor.fence(self._session.connection, rows, wait_s=wait_s)
        except SQLAlchemyError as error:
            # Trouble with the data is a checkpoint that somebody else makes at this very moment.
            if flavor.trouble(error) not in (ErrorScope.LOCKED, ErrorScope.DATA):
                raise
            self._session.rollback()
            return FailedAttempt("locked")
        return None

    def _read_back(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        """What became of feeds whose epochs were raised."""
        self._session.set_lock_wait(self._session.flavor.lock_timeout_s)
        rows = self._checkpoints(requests)
        return [self._outcome(request, rows.get(request.feed_id)) for request in requests]

    def _outcome(
        self, request: FenceRequest, row: Row[tuple[int, int, str, str | None, str | None, int]] | None
    ) -> FenceOutcome:
        feed_id, epoch = request.feed_id, request.epoch
        if row is None or row.epoch < epoch:
            # Somebody removed the checkpoint by hand just now: the next try makes a new one.
            return Blocked(feed_id, epoch, None)
        if row.epoch == epoch and row.commit_id == str(self._commit_id):
            return Fenced(feed_id, epoch, cursor_of(row.cursor), row.records, self._commit_id)
        # Also when the epochs are equal: the control database has forgotten one, and gave it out twice.
        return Superseded(feed_id, epoch, row.epoch)

    def _blocked(self, requests: Sequence[FenceRequest]) -> list[FenceOutcome]:
        owners: dict[int, UUID] = {}
        self._session.set_lock_wait(POLL_S)
        for part in _parts(requests):
            try:
                owners |= {feed_id: UUID(row.owner) for feed_id, row in self._checkpoints(part).items()}
            except SQLAlchemyError as error:
                # Where a commit locks out readers, too, the owner is told next time.
                if self._session.flavor.trouble(error) is not ErrorScope.LOCKED:
                    raise
        return [Blocked(request.feed_id, request.epoch, owners.get(request.feed_id)) for request in requests]

    def _checkpoints(
        self, requests: Sequence[FenceRequest]
    ) -> dict[int, Row[tuple[int, int, str, str | None, str | None, int]]]:
        if not requests:
            return {}
        c = checkpoint.c
        statement = select(c.feed_id, c.epoch, c.owner, c.commit_id, c.cursor, c.records).where(
            c.environment == self._environment, c.feed_id.in_([request.feed_id for request in requests])
        )
        rows = {row.feed_id: row for row in self._session.execute(statement)}
        self._session.rollback()
        return rows


def _parts(requests: Sequence[FenceRequest]) -> Iterator[Sequence[FenceRequest]]:
    for start in range(0, len(requests), FEEDS_AT_ONCE):
        yield requests[start : start + FEEDS_AT_ONCE]
