"""The sink for PostgreSQL: rows land by COPY, thousands of checkpoints move in one statement."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import psycopg2
from sqlalchemy.exc import ProgrammingError

from feedq.core.passwords import mask_url
from feedq.errors import SinkUnavailable
from feedq.sinks.groupcommit import GroupCommitSink
from feedq.sinks.postgresql_catalog import PostgresCatalog
from feedq.sinks.postgresql_session import PostgresSinkSession, open_engine
from feedq.sinks.session import application_name
from feedq.sinks.sqlstate import cause_of

MAKE_TABLES: Final = (
    "feedq's own tables could not be made; until this role has connected once, it needs CREATE on the schema"
)


class PostgresSink(GroupCommitSink):
    """A session with a PostgreSQL database, on behalf of one worker. Belongs to one thread."""

    session_type = PostgresSinkSession

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        super().__init__(url, environment=environment, worker_id=worker_id, role=role)
        self._engine = open_engine(url, application_name(role, worker_id))

    def _open(self) -> tuple[PostgresSinkSession, PostgresCatalog]:
        try:
            session = PostgresSinkSession(
                self._engine, environment=self._environment, worker_id=self._worker_id, role=self._role
            )
        except (psycopg2.ProgrammingError, ProgrammingError) as error:
            if cause_of(error).pgcode is not None:
                raise
            # From None: what libpq says of a URL that it cannot read may quote the password.
            raise SinkUnavailable(
                f"sink {mask_url(self._url)}: libpq cannot read this URL; special characters in user name and "
                "password must be percent-encoded"
            ) from None
        catalog = PostgresCatalog(session)
        try:
            catalog.ensure_bookkeeping()
        except psycopg2.ProgrammingError as error:
            self._connected = session, catalog
            raise self._unavailable(error, MAKE_TABLES) from error
        except BaseException:
            session.close()
            raise
        return session, catalog
