"""Claims and successes on a session of their own, whose statements are planned once: the way of a busy worker.

To plan a claim takes the server several times as long as to execute it. A plan that is kept must be right however
many runs wait later, also if there was none when it was made. So the session allows no plan that would depend on
it: no sort, no bitmap, no hash and no merge. What is left for each part is the index that has its order, read row
by row until there are enough.

What is not of the common kind goes the other way, in transactions of several statements
(`feedq.control.store.jobs.claiming`, `feedq.control.store.jobs.finishing`): queues with limits, start deadlines
that have passed, ends that are no successes, and everything behind a pooler, where the next statement may meet
another backend.

Each statement is a transaction by itself. Killed before its commit, nothing has happened; after it, and before the
answer was heard, all has: as with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Session  # noqa: N812 -- a class, named as the others are
from psycopg2.extras import NamedTupleCursor

from feedq.control.store.database import PLANNER, PreparedStatement, connect, unavailable
from feedq.control.store.jobs.claiming import (
    BY_ID,
    CLAIM,
    DUE_SCAN,
    FIRST,
    ClaimedRuns,
    DueScan,
    due_scan_from,
    scan_parameters,
    taken_from,
)
from feedq.core.schedule.model import Finish, Granted, Offer, RunState

PLANS = {
    **PLANNER,
    "enable_sort": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
SCAN_EVERY = 50
"""The number of claims in a row that take from the lanes that the last scan found, as long as each finds all it
asked for."""
TYPES = {
    "worker_id": "uuid",
    "free": "integer",
    "counted": "integer",
    "looked_at": "integer",
    "ahead_max_s": "float8",
    "open": "text[]",
    "queues": "text[]",
    "tasks": "text[]",
    "selectors": "text[]",
    "limit": "integer",
    "ids": "bigint[]",
    "fences": "bigint[]",
}
# As `feedq.control.store.jobs.finishing` ends them; where failures in a row are to be forgotten, it does.
SUCCEED = f"""
    WITH found AS MATERIALIZED (
        SELECT r.at FROM unnest(CAST(:ids AS bigint[]), CAST(:fences AS bigint[])) AS given (id, fence)
        CROSS JOIN LATERAL (SELECT *, ctid AS at FROM feedq.run WHERE {BY_ID.format("given.id")} FOR UPDATE) r
        CROSS JOIN LATERAL (SELECT failures FROM feedq.schedule WHERE id = r.schedule_id OFFSET 0) s
        WHERE r.state = 'running' AND r.fence = given.fence AND r.worker_id = :worker_id AND s.failures = 0
    )
    UPDATE feedq.run r SET state = 'succeeded', reason = NULL, ended_at = clock_timestamp()
    FROM found WHERE r.ctid = found.at RETURNING r.id, r.schedule_id,
        (SELECT true FROM feedq.run b WHERE b.schedule_id = r.schedule_id AND b.state = 'buffered'
         ORDER BY b.tick_at LIMIT 1) AS is_followed
"""
_NOT_HERE = {errorcodes.INVALID_SQL_STATEMENT_NAME, errorcodes.DUPLICATE_PREPARED_STATEMENT}
"""What a pooler's other backend says."""


_FIRST = PreparedStatement.of("feedq_first", FIRST, TYPES)
_DUE_SCAN = PreparedStatement.of("feedq_due_scan", DUE_SCAN.replace("{lock}", ""), TYPES)
_CLAIM = PreparedStatement.of("feedq_claim", CLAIM, TYPES)
_SUCCEED = PreparedStatement.of("feedq_succeed", SUCCEED, TYPES)


class PreparedRuns:
    """Used by one thread at a time; who comes second goes the other way. Opened when there is first something to
    claim."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = Lock()
        self._session: Session | None = None
        self._is_off = False
        """Behind a pooler."""
        self._lanes: DueScan | None = None
        """What the last scan found, as long as it is good for another claim."""
        self._claims = 0

    def claim(self, offer: Offer, *, is_due: bool = False) -> ClaimedRuns | None:
        """Claim runs as `feedq.control.store.jobs.claiming.claim` does; None when it has to be done there.
        ``is_due`` says that there is something to claim: until then no session is opened. Raises `Unavailable`."""
        if self._is_off or (self._session is None and not is_due):
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._claim(offer)
        finally:
            self._lock.release()

    def succeed(self, worker_id: UUID, finishes: Collection[Finish]) -> Mapping[int, int | None]:
        """End these runs, if all are successes of the common kind: what else there is has its place among them, as
        failures in a row are counted. Returns the ids of those that it has ended, each with its schedule if others
        of that are buffered."""
        done = {f.run_id: f.fence for f in finishes if f.state is RunState.SUCCEEDED and f.reason is None}
        is_common = bool(done) and len(done) == len(finishes)
        if self._is_off or self._session is None or not is_common or not self._lock.acquire(blocking=False):
            return {}
        try:
            # By id, the order in which rows of runs are locked.
            ids = sorted(done)
            given = {"worker_id": str(worker_id), "ids": ids, "fences": [done[run_id] for run_id in ids]}
            rows = self._execute(_SUCCEED, given) or ()
            return {row.id: row.schedule_id if row.is_followed else None for row in rows}
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _claim(self, offer: Offer) -> ClaimedRuns | None:
        given = scan_parameters(offer)
        if self._lanes is None or self._claims >= SCAN_EVERY:
            self._claims = 0
            first = self._execute(_FIRST, {})
            if first is None:
                return None
            if not first or first[0].due_in_s > 0:
                return ClaimedRuns(Granted((), first[0].due_in_s if first else None))
            rows = self._execute(_DUE_SCAN, given)
            if rows is None or rows[0].open or rows[0].any_missed:
                return None
            seen = due_scan_from(rows[0], given, offer)
        else:
            # That many waited at the last scan that this worker may take all it has room for.
            seen = replace(self._lanes, parameters={**self._lanes.parameters, **given}, limit=offer.limit)
        self._lanes = None
        if seen.is_idle:
            return ClaimedRuns(Granted((), seen.next_in_s))
        rows = self._execute(_CLAIM, {**seen.parameters, "limit": seen.limit})
        if rows is None:
            return None
        taken = taken_from(rows, seen, free=offer.limit)
        if len(rows) == offer.limit and rows[0].id is not None:
            self._lanes, self._claims = seen, self._claims + 1
        return taken

    def _execute(self, statement: PreparedStatement, parameters: Mapping[str, Any]) -> Sequence[Any] | None:
        """Execute a statement and return its rows; None behind a pooler. Raises `Unavailable`."""
        try:
            session = self._open()
            with session.cursor() as cursor:
                cursor.execute(statement.execute, parameters)
                return cursor.fetchall()
        except psycopg2.Error as error:
            self._drop()
            if error.pgcode in _NOT_HERE:
                self._is_off = True
                return None
            if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError):
                raise unavailable(self._url, error) from error
            raise

    def _open(self) -> Session:
        if self._session is None:
            session = connect(self._url, application_name="feedq-runs", cursor_factory=NamedTupleCursor)
            try:
                with session.cursor() as cursor:
                    for name, value in PLANS.items():
                        cursor.execute(f"SET {name} = {value}")
                    for statement in (_FIRST, _DUE_SCAN, _CLAIM, _SUCCEED):
                        cursor.execute(statement.prepare)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _drop(self) -> None:
        session, self._session, self._lanes = self._session, None, None
        if session is not None:
            with suppress(psycopg2.Error):
                session.close()
