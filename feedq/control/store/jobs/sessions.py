"""Sessions of `transactional` jobs: what a job writes and that its run succeeded are one transaction.

::

    BEGIN ── the job's own statements, as long as it takes ── UPDATE run … WHERE its fence ── COMMIT

The completing update comes last, so the run's row is locked for the moment of the commit only: until then the run
can be cancelled, or taken away when its worker is declared gone. It matches the fence. If no row matches, somebody
else has the run, or nobody may have it any more: everything is rolled back, and unless the run was cancelled on
purpose, that is written down in a transaction of its own (`feedq_1.reject`). If it
matches, the row is locked, nobody can take the run away before the commit, and the database commits both or
none.

A commit whose answer is lost may have happened. The run says so: it is read on a new connection, locked, so that a
commit that is under way is waited for. Has it succeeded under our fence, all is well; else nothing was kept.

A session that is cut off (the server restarts, the network breaks) is not a failure of the job: nothing was kept,
so the run is tried again. `JobSessionLost` says so. If it cannot even be asked whether a commit has happened, it
says so all the same: an end of this kind has an effect only on a run that is still running.

Each session has a connection of its own, outside the pool: a job may keep it for hours, and heartbeats and claims
must not wait for one. The server ends a transaction whose job has been silent for as long as its run may take; one
whose run was taken away is ended at once (`feedq_1.expire_runs`), so that a frozen
worker does not hold up its successor with what it has locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg2

from feedq.control.store.database import Connection, connect_once, make_engine, translate_errors
from feedq.control.store.protocol import call
from feedq.core.schedule.model import ClaimedRun, RunState
from feedq.errors import JobSessionLost, RunCancelled, RunTakenAway, Unavailable

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import Session

MARGIN_S = 5.0
"""The time beyond the time-out of the run: who overruns it is ended by its worker, and by the server only if
that fails."""
TIMEOUT_MS_MAX = 2**31 - 1
"""What the server's settings hold."""

# A statement, a wait for a lock, and a silence: each may take as long as the run.
_PREPARE = """
    SELECT set_config('application_name', feedq_1.job_session(%(run)s, %(fence)s), true),
        set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true),
        set_config('idle_in_transaction_session_timeout', %(ms)s, true)
"""


class JobSessions:
    """Sessions of `transactional` jobs, each on a connection of its own. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url

    @cached_property
    def _engine(self) -> sqlalchemy.Engine:
        # SQLAlchemy is imported for these jobs only: 16 MB.
        return make_engine(self._url, application_name="feedq-job")

    @contextmanager
    def transact(self, worker_id: UUID, run: ClaimedRun) -> Iterator[Session]:
        from sqlalchemy.orm import Session

        # Closed without a commit, it rolls back. What goes wrong within the job's block is the job's own.
        with self._connect(run) as for_job:
            driver: Any = for_job.connection.driver_connection
            try:
                # What the job commits or rolls back by itself are savepoints: the end is ours.
                with Session(for_job, join_transaction_mode="create_savepoint") as session:
                    yield session
                    session.commit()
                with translate_errors(self._url):
                    self._complete(for_job, worker_id, run)
                    self._commit(for_job, run)
            except Exception as error:
                if _answers(driver):
                    raise
                for_job.invalidate()  # which SQLAlchemy cannot know, and would roll back
                if isinstance(error, RunTakenAway | RunCancelled):
                    raise
                # Whatever the job made of it: without its session it could end in no other way.
                raise _lost(run, error) from error

    def _connect(self, run: ClaimedRun) -> sqlalchemy.Connection:
        from sqlalchemy.exc import DBAPIError

        try:
            with translate_errors(self._url):
                for_job = self._engine.connect()
                try:
                    for_job.begin()  # so that the session's own is a savepoint
                    _within(for_job).execute(
                        _PREPARE, {"run": run.id, "fence": run.fence, "ms": _timeout_ms(run)}
                    )
                except BaseException:
                    for_job.close()
                    raise
        except (Unavailable, DBAPIError) as error:
            raise _lost(run, error) from error
        return for_job

    def _complete(self, for_job: sqlalchemy.Connection, worker_id: UUID, run: ClaimedRun) -> None:
        try:
            complete(_within(for_job), worker_id, run)
        except RunTakenAway:
            # First it releases what it has locked. If the rest fails, the worker finishes the run as failed, and
            # that is rejected in turn.
            for_job.rollback()
            with connect_once(self._url) as c:
                told = {"run": run.id, "run_fence": run.fence, "schedule": run.schedule, "key": run.key}
                call(c, "reject", bool, session=worker_id, ended=RunState.SUCCEEDED.value, **told)
            raise

    def _commit(self, for_job: sqlalchemy.Connection, run: ClaimedRun) -> None:
        from sqlalchemy.exc import DBAPIError

        try:
            for_job.commit()
        except DBAPIError:
            if not self._has_succeeded(run):
                raise

    def _has_succeeded(self, run: ClaimedRun) -> bool:
        with connect_once(self._url) as connection:
            return call(connection, "has_succeeded", bool, run=run.id, run_fence=run.fence)


def _answers(driver: Any) -> bool:
    """Whether the server has not dropped this session. What went wrong in it does not tell: the driver knows of
    the end of a connection only when it comes to read it."""
    try:
        driver.rollback()
    except psycopg2.Error:
        return False
    return not driver.closed


def _within(for_job: sqlalchemy.Connection) -> Connection:
    """A connection for our own statements, in the session and the transaction of the job."""
    session: Any = for_job.connection.driver_connection
    return Connection(session)


def _lost(run: ClaimedRun, error: Exception) -> JobSessionLost:
    said = " ".join(str(error).split()) or type(error).__name__
    return JobSessionLost(
        f"run {run.id} ({run.correlation_id}): the database session of its transaction was cut off, so nothing "
        f"that it wrote was kept ({said})"
    )


def complete(c: Connection, worker_id: UUID, run: ClaimedRun) -> None:
    """The run has succeeded, with the commit that follows at once. Raises `RunTakenAway`."""
    if not call(c, "succeed_within", bool, session=worker_id, run=run.id, run_fence=run.fence):
        raise RunTakenAway(
            f"run {run.id} ({run.correlation_id}): fence {run.fence} was superseded; what it wrote was rolled back"
        )


def _timeout_ms(run: ClaimedRun) -> str:
    """Return a time-out in milliseconds; 0 is none."""
    if run.remaining_s is None:
        return "0"
    return str(min(ceil(1000 * (max(run.remaining_s, 0.0) + MARGIN_S)), TIMEOUT_MS_MAX))
