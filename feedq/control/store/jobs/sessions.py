"""Sessions of `transactional` jobs: what a job writes and that its run succeeded are one transaction.

::

    BEGIN ── the job's own statements, as long as it takes ── UPDATE run … WHERE its fence ── COMMIT

The completing update comes last, so the run's row is locked for the moment of the commit only: until then the run
can be cancelled, or taken away when its worker is declared gone. It matches the fence. If no row matches, somebody
else has the run, or nobody may have it any more: everything is rolled back, and unless the run was cancelled on
purpose, that is written down in a transaction of its own, as `feedq.control.store.jobs.finishing` does. If it
matches, the row is locked, nobody can take the run away before the commit, and the database commits both or
none.

A commit whose answer is lost may have happened. The run says so: it is read on a new connection, locked, so that a
commit that is under way is waited for. Has it succeeded under our fence, all is well; else nothing was kept.

A session that is cut off (the server restarts, the network breaks) is no failure of the job: nothing was kept,
so the run is tried again. `JobSessionLost` says so. If it cannot even be asked whether a commit has happened, it
says so all the same: an end of this kind has an effect only on a run that is still running.

Each session has a connection of its own, outside the pool: a job may keep it for hours, and heartbeats and claims
must not wait for one. The server ends a transaction whose job has been silent for as long as its run may take; one
whose run was taken away is ended at once (`feedq.control.store.jobs.finishing.end_sessions`), so that a frozen
worker does not hold up its successor with what it has locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from feedq.control.store.database import make_lone_engine, translate_errors
from feedq.control.store.jobs import finishing
from feedq.core.schedule.model import ClaimedRun, Finish, RunState
from feedq.errors import JobSessionLost, RunCancelled, RunTakenAway, Unavailable

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

MARGIN_S = 5.0
"""The time beyond the time-out of the run: who overruns it is ended by its worker, and by the server only if
that fails."""
TIMEOUT_MS_MAX = 2**31 - 1
"""What the server's settings hold."""

# A statement, a wait for a lock, and a silence: each may take as long as the run.
_PREPARE = text("""
    SELECT set_config('application_name', :name, true), set_config('statement_timeout', :ms, true),
        set_config('lock_timeout', :ms, true), set_config('idle_in_transaction_session_timeout', :ms, true)
""")
_NO_FAILURES = text("""
    UPDATE feedq.schedule SET failures = 0
    WHERE failures > 0 AND id = (SELECT schedule_id FROM feedq.run WHERE id = :id)
""")
# The fence is of one claim. If the session that made it is gone, the run was taken over by its process's next one
# (`feedq.control.store.jobs.finishing`), or would not be running under this fence any more.
COMPLETE = """
    UPDATE feedq.run r SET state = 'succeeded', reason = NULL, ended_at = clock_timestamp()
    WHERE r.id = :id AND r.fence = :fence AND r.state = 'running' AND (r.worker_id = :worker_id
        OR EXISTS (SELECT FROM feedq.worker w WHERE w.id = :worker_id AND w.state = 'gone' OFFSET 0))
"""
_OUTCOME = "SELECT state = 'succeeded' AND fence = :fence FROM feedq.run WHERE id = :id FOR UPDATE"
_FOUND = """
    SELECT s.name AS schedule, r.key, r.state, r.fence
    FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id WHERE r.id = :id
"""


class JobSessions:
    """Sessions of `transactional` jobs, each on a connection of its own. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine = make_lone_engine(url, application_name="feedq-job")

    @contextmanager
    def transact(self, worker_id: UUID, run: ClaimedRun) -> Iterator[Session]:
        from sqlalchemy.orm import Session  # 5 MB, for these jobs only

        # Closed without a commit, it rolls back. What goes wrong within the job's block is the job's own.
        with self._connect(run) as connection:
            try:
                # What the job commits or rolls back by itself are savepoints: the end is ours.
                with Session(connection, join_transaction_mode="create_savepoint") as session:
                    yield session
                    session.commit()
                with translate_errors(self._url):
                    self._complete(connection, worker_id, run)
                    self._commit(connection, run)
            except (RunTakenAway, RunCancelled):
                raise
            except Exception as error:
                # Whatever the job made of it: without its session it could end in no other way.
                if _is_cut(connection):
                    raise _lost(run, error) from error
                raise

    def _connect(self, run: ClaimedRun) -> Connection:
        try:
            with translate_errors(self._url):
                connection = self._engine.connect()
                try:
                    connection.execute(
                        _PREPARE, {"name": finishing.session_name(run.id, run.fence), "ms": _timeout_ms(run)}
                    )
                except BaseException:
                    connection.close()
                    raise
        except Unavailable as error:
            raise _lost(run, error) from error
        return connection

    def _complete(self, connection: Connection, worker_id: UUID, run: ClaimedRun) -> None:
        try:
            complete(connection, worker_id, run)
        except RunTakenAway:
            # First it releases what it has locked. If the rest fails, the worker finishes the run as failed, and
            # that is rejected in turn.
            connection.rollback()
            with self._engine.begin() as c:
                record_rejected(c, worker_id, run)
            raise

    def _commit(self, connection: Connection, run: ClaimedRun) -> None:
        try:
            connection.commit()
        except DBAPIError:
            if not self._has_succeeded(run):
                raise

    def _has_succeeded(self, run: ClaimedRun) -> bool:
        with self._engine.begin() as connection:
            found = connection.execute(text(_OUTCOME), {"id": run.id, "fence": run.fence})
            return bool(found.scalar_one_or_none())

    def close(self) -> None:
        self._engine.dispose()


def _is_cut(connection: Connection) -> bool:
    """Return whether the server is known to have dropped this session, or cannot be reached through it any
    more."""
    try:
        session: Any = connection.connection.driver_connection
    except SQLAlchemyError:
        return True  # invalidated: a statement of the job found it gone
    return bool(session is None or session.closed)


def _lost(run: ClaimedRun, error: Exception) -> JobSessionLost:
    said = " ".join(str(error).split()) or type(error).__name__
    return JobSessionLost(
        f"run {run.id} ({run.correlation_id}): the database session of its transaction was cut off, so nothing "
        f"that it wrote was kept ({said})"
    )


def complete(c: Connection, worker_id: UUID, run: ClaimedRun) -> None:
    """The run has succeeded, with the commit that follows at once. Raises `RunTakenAway`."""
    c.execute(_NO_FAILURES, {"id": run.id})
    parameters = {"id": run.id, "fence": run.fence, "worker_id": worker_id}
    if c.execute(text(COMPLETE), parameters).rowcount != 1:
        raise RunTakenAway(
            f"run {run.id} ({run.correlation_id}): fence {run.fence} has passed; what it wrote was rolled back"
        )


def record_rejected(c: Connection, worker_id: UUID, run: ClaimedRun) -> None:
    """Write down that the success of a run was not kept."""
    found = c.execute(text(_FOUND), {"id": run.id}).one_or_none()
    end = Finish(run.id, run.fence, RunState.SUCCEEDED)
    finishing.record_rejected(c, found, worker_id, end, schedule=run.schedule, key=run.key)


def _timeout_ms(run: ClaimedRun) -> str:
    """Return a time-out in milliseconds; 0 is none."""
    if run.remaining_s is None:
        return "0"
    return str(min(ceil(1000 * (max(run.remaining_s, 0.0) + MARGIN_S)), TIMEOUT_MS_MAX))
