"""PostgreSQL: rows land by COPY, thousands of checkpoints move in one statement.

A session is opened with bounds on every wait, on our side and on the server's, so that a writer whose host
vanished does not hold its rows for hours. `psycopg2` runs what is frequent, each one statement for thousands of
feeds: see `feedq.sinks.statements`. SQLAlchemy's connection over it runs the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg2
from psycopg2 import extensions, extras, sql
from sqlalchemy import BigInteger, ColumnElement, Engine, NullPool, and_, any_, cast, create_engine, literal
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from feedq.core.model import FeedKey
from feedq.core.passwords import mask_url
from feedq.errors import InvalidInput, SinkUnavailable
from feedq.records.cursor import cursor_of, cursor_text
from feedq.sinks import statements
from feedq.sinks.base import SYSTEM, DeadRecord, FeedWrite, Fenced, FenceRequest, Target
from feedq.sinks.copyplan import CopyPlan, KeyedCopyPlan
from feedq.sinks.copytext import row_of
from feedq.sinks.mapping import Origin
from feedq.sinks.session import (
    ROLES,
    ErrorScope,
    SinkSession,
    TargetPlan,
    application_name,
    c,
    cause_of,
    number_after,
    one_line,
)
from feedq.sinks.table_definitions import made_table
from feedq.sinks.target_table import NAME_BYTES_MAX, Column, TableName, TableShape, Types, quoted
from feedq.sinks.transactional import TransactionalSink

Statement = str | sql.Composable

CONNECT_TIMEOUT_S: Final = 5
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 30_000
"""Backstop for a session frozen inside a transaction that nobody could terminate."""
STATEMENT_TIMEOUT_MS: Final = 300_000
"""For whoever sets no other."""
# By SQLSTATE. Unknown codes are `ErrorScope.DATA`: the record that raises one again when it is written by itself
# goes to the dead letters, with the code, and its neighbours land.
_BY_CODE: Final = {
    "55P03": ErrorScope.LOCKED,
    "55000": ErrorScope.TARGET,  # a view, a rule: not in the prerequisite state
    "55006": ErrorScope.LATER,  # object in use
    "57014": ErrorScope.LATER,  # a statement that took too long, or that an operator has cancelled
    "XX001": ErrorScope.LATER,  # a damaged table
    "XX002": ErrorScope.LATER,  # a damaged index
}
_BY_CLASS: Final = {
    "08": ErrorScope.LATER,  # of a foreign table's server: when our own connection breaks, there is no code
    "0A": ErrorScope.TARGET,  # not supported, e.g. COPY into this kind of relation
    "25": ErrorScope.LATER,  # read-only, for now
    "28": ErrorScope.TARGET,
    "3F": ErrorScope.TARGET,
    "40": ErrorScope.CONFLICT,
    "42": ErrorScope.TARGET,
    "53": ErrorScope.LATER,  # no room on the disk, out of memory
    "58": ErrorScope.LATER,  # errors of the file system
}
ENDS_SESSION: Final = ("FATAL", "PANIC")
# libpq's side of a dead network: silence is noticed after 5 + 3 × 2 seconds, unsent data after 10.
_LIBPQ: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "client_encoding": "UTF8",
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# And the server's side, so that a host that vanished does not hold rows for hours.
_SETTINGS: Final[Mapping[str, str]] = {
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "default_transaction_isolation": "read committed",
    "TimeZone": "UTC",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_SET_WHAT_IS_KNOWN: Final = """
SELECT set_config(s.name, wanted.value, false)
FROM unnest(%(names)s::text[], %(values)s::text[]) AS wanted (name, value) JOIN pg_settings AS s USING (name)
"""
_KEEP_OUT_OF_CONTROL: Final = """
SELECT set_config('search_path', 'public', false) WHERE current_schema() = 'feedq'
"""
# PostgreSQL's default path begins with the schema named like the user. For a user called feedq, in the control
# database, that is where the control tables are, and no target belongs among them.


BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET CONSTRAINTS ALL IMMEDIATE"
"""A constraint that is deferred to the commit would let each record pass, and then refuse all of them."""
ACCESS_CHECKS: Final = frozenset({"aclcheck_error", "nextval_internal", "InitTempTableNamespace"})
"""Functions of the server that refuse for want of a right. Policies of rows and triggers that raise have the same
SQLSTATE, and no GRANT would help."""
RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""Those to a table."""
WRITABLE_KINDS: Final = ("r", "p", "f")
"""Tables, partitioned and foreign ones."""

TEXT: Final = ("text", "character varying")
PAYLOAD_TYPES: Final[Types] = {"json": ("jsonb", "json"), "csv": TEXT, "text": TEXT, "bytes": ("bytea",)}
"""By record format; the first one is what a table of ours gets."""


def driver_url(url: str) -> str:
    """A URL as libpq wants it: without the driver that SQLAlchemy's URLs may name."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}" if separator else url


GATHERED_BYTES: Final = 64 * 1024
"""Small chunks are put together up to this."""
READ_SIZE: Final = 1 << 20
"""Ignored by our readers, which hand over whole chunks; psycopg2's 8 kB would be a call per 50 records."""


class CopySource:
    """Feeds an iterator of chunks to psycopg2, and keeps the exception that ended it, if one did."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self.error: Exception | None = None

    def read(self, _size: int) -> bytes:
        gathered: list[bytes] = []
        size = 0
        try:
            # Each read is a call with the interpreter's lock let go of and waited for: not one for every record of
            # thousands of slow feeds. And an empty one would end the COPY, silently and too early.
            for chunk in self._chunks:
                gathered.append(chunk)
                size += len(chunk)
                if size >= GATHERED_BYTES:
                    break
            return b"".join(gathered)
        except Exception as error:
            # psycopg2 would replace it with "error in .read() call".
            self.error = error
            raise


class PostgresSession(SinkSession):
    """A session with PostgreSQL, for one worker in one environment."""

    head_types = (TEXT, ("bigint",), ("timestamp with time zone",))
    payload_types = PAYLOAD_TYPES
    errors = (psycopg2.Error, SQLAlchemyError)
    undoable = frozenset(ErrorScope) - {ErrorScope.UNAVAILABLE}
    lock_timeout_s = 0.25
    """All feeds wait that long, once, before those of a locked table are postponed; a lock held for less costs
    nobody a second transaction."""
    brief_lock_timeout_s = 0.02
    name_bytes_max = NAME_BYTES_MAX
    own_names = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
    cursor_text = staticmethod(cursor_text)
    _driver: Any = None
    """psycopg2's connection."""

    @classmethod
    def open(cls, url: str, name: str) -> Engine:
        def connect() -> Any:
            try:
                return psycopg2.connect(driver_url(url), application_name=name, **_LIBPQ)
            except psycopg2.ProgrammingError as error:
                if error.pgcode is not None:
                    raise
                # From None: what libpq says of a URL that it cannot read may quote the password.
                raise SinkUnavailable(
                    f"sink {mask_url(url)}: libpq cannot read this URL; special characters in user name and "
                    "password must be percent-encoded"
                ) from None

        return create_engine(
            "postgresql+psycopg2://",
            creator=connect,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            executemany_mode="values_plus_batch",
            hide_parameters=True,
        )

    def _set_up(self) -> int:
        self.staging_tables: dict[str, None] = {}
        """Their names, in the order of their last use."""
        self._driver = self.connection.connection.dbapi_connection
        # As other databases have them: SQLAlchemy's tables are the same for all.
        extras.register_default_json(conn_or_curs=self._driver, loads=str)
        self.query(_SET_WHAT_IS_KNOWN, {"names": list(_SETTINGS), "values": list(_SETTINGS.values())})
        self.query(_KEEP_OUT_OF_CONTROL)
        self._notice_a_dead_client()
        self._timeouts_ms = {"statement_timeout": STATEMENT_TIMEOUT_MS}
        ((pid,),) = self.query("SELECT pg_backend_pid()")
        return int(pid)

    @property
    def is_broken(self) -> bool:
        return super().is_broken or (self._driver is not None and bool(self._driver.closed))

    @property
    def server_version(self) -> int:
        return int(self._driver.info.server_version)

    def query(self, statement: Statement, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a statement; returns its rows, if it has any."""
        with self._driver.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def rendered(self, statement: sql.Composable) -> str:
        """A statement as it is sent: for one that is run often."""
        text: str = statement.as_string(self._driver)
        return text

    def change(self, statement: Statement, parameters: Mapping[str, Any]) -> int:
        """Run a statement that returns no rows; returns how many it changed."""
        with self._driver.cursor() as cursor:
            cursor.execute(statement, parameters)
            changed: int = cursor.rowcount
            return changed

    def set_statement_timeout(self, seconds: float) -> None:
        self._set_timeout("statement_timeout", seconds)

    def _bound_locks(self, seconds: float) -> None:
        self._set_timeout("lock_timeout", seconds)

    def _set_timeout(self, name: str, seconds: float) -> None:
        timeout_ms = max(1, round(1000 * seconds))
        if timeout_ms != self._timeouts_ms.get(name):
            parameters = {"name": name, "ms": str(timeout_ms)}
            self.query("SELECT set_config(%(name)s, %(ms)s, false)", parameters)
            self._timeouts_ms[name] = timeout_ms

    # -- transactions --------------------------------------------------------------------------------

    def begin(self) -> None:
        self._begin_with("")

    def _begin_with(self, first: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Begin and run the first statement, both in one round trip; returns its rows."""
        rows = self.query(f"{BEGIN}; {first}", parameters)
        self.has_begun = True
        return rows

    def _commit(self) -> None:
        with self._driver.cursor() as cursor:
            cursor.execute("COMMIT")
            # The server answers ROLLBACK to the commit of a transaction that had failed.
            assert cursor.statusmessage == "COMMIT", f"COMMIT was answered by {cursor.statusmessage}"

    def refused_commit(self, error: Exception) -> bool:
        # Even an error with a code is no answer on a connection that broke: a backend told to go may say so after
        # its commit is durable.
        return bool(self._driver.info.transaction_status == extensions.TRANSACTION_STATUS_IDLE)

    def _rollback(self) -> None:
        if self._driver.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE:
            # What was set in the transaction is undone as well.
            self._timeouts_ms.clear()
            self._lock_timeout_s = None
            self.run("ROLLBACK")

    def run(self, statement: str) -> None:
        self.query(statement)

    # -- errors --------------------------------------------------------------------------------------

    @classmethod
    def scope(cls, error: Any) -> ErrorScope:
        if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
            # A value that cannot even be sent.
            return ErrorScope.DATA
        cause = cause_of(error)
        code: str | None = cause.pgcode
        if code is None or cause.diag.severity_nonlocalized in ENDS_SESSION:
            return ErrorScope.UNAVAILABLE
        # A server that answers on a session that still works is not away, whatever a trigger calls its error.
        return _BY_CODE.get(code) or _BY_CLASS.get(code[:2], ErrorScope.DATA)

    @classmethod
    def explain(cls, error: Any) -> str:
        """The server's message with its detail and code, on one line."""
        error = cause_of(error)
        diag = error.diag
        message = diag.message_primary or str(error)
        if diag.message_detail:
            message = f"{message.rstrip('.')}: {diag.message_detail}"
        if error.pgcode:
            message = f"{message} ({error.pgcode})"
        return one_line(message)

    def row_of(self, error: Any) -> int | None:
        return number_after(", line ", cause_of(error).diag.context or "")

    def remedy(self, error: Exception) -> str:
        cause = cause_of(error) if isinstance(error, self.errors) else None
        if cause is None or cause.diag.source_function not in ACCESS_CHECKS or self.is_broken:
            return ""
        # What a trigger was about to do: behind that come the lines of a COPY, which quote records.
        doing = re.split(r"^COPY ", cause.diag.context or "", maxsplit=1, flags=re.MULTILINE)[0].upper()
        rights = [right for right in RIGHTS if re.search(rf"\b{right}\b", doing)] or RIGHTS
        if {"UPDATE", "DELETE"} & set(rights):
            # To find the rows, and what is in them.
            rights = [right for right in RIGHTS if right in {"SELECT", *rights}]
        is_temporary = cause.diag.source_function == "InitTempTableNamespace"
        asked = {"said": cause.diag.message_primary, "rights": list(rights)}
        found = self.query(
            statements.REMEDY, {**asked, "of_database": "TEMPORARY" if is_temporary else "CREATE"}
        )
        return found[0][0] if found else ""

    # -- records -------------------------------------------------------------------------------------

    def copy(self, statement: Statement, chunks: Iterable[bytes]) -> None:
        """COPY ... FROM STDIN. An exception raised by ``chunks`` comes through as itself."""
        source = CopySource(chunks)
        with self._driver.cursor() as cursor:
            try:
                cursor.copy_expert(statement, source, READ_SIZE)
            except psycopg2.Error:
                if source.error is not None:
                    raise source.error from None
                raise

    # -- checkpoints ---------------------------------------------------------------------------------

    def lock(self, writes: Sequence[FeedWrite]) -> set[FeedKey]:
        # Shared by most of a group: to send and read thousands of uuids would take a quarter longer.
        commits: dict[UUID | None, int] = {None: 0}
        continues = [commits.setdefault(write.continues, len(commits)) for write in writes]
        rows = self._begin_with(
            statements.LOCK_MINE,
            {
                "environment": self.environment,
                "feed_ids": statements.integers(write.feed_id for write in writes),
                "epochs": statements.integers(write.epoch for write in writes),
                "continues": statements.integers(continues),
                "commits": statements.texts(
                    [str(commit_id) for commit_id in commits if commit_id is not None]
                ),
            },
        )
        return set(rows)

    def advance(self, writes: Sequence[FeedWrite], landed: Mapping[FeedKey, int], commit_id: UUID) -> None:
        advanced = self.change(
            statements.ADVANCE,
            {
                "environment": self.environment,
                "commit_id": commit_id,
                "feed_ids": statements.integers(write.feed_id for write in writes),
                "epochs": statements.integers(write.epoch for write in writes),
                "cursors": statements.texts([cursor_text(write.cursor) for write in writes]),
                "records": statements.integers(landed[write.key] for write in writes),
            },
        )
        assert advanced == len(writes), "a locked checkpoint did not advance"

    def fence(self, requests: Sequence[FenceRequest], commit_id: UUID) -> list[Fenced]:
        raised = self.query(
            statements.FENCE,
            {
                "environment": self.environment,
                "owner": self.worker_id,
                "commit_id": commit_id,
                "feed_ids": statements.integers(request.feed_id for request in requests),
                "feeds": statements.texts([request.feed for request in requests]),
                "epochs": statements.integers(request.epoch for request in requests),
                "feed_uuids": statements.texts([str(request.identity.feed) for request in requests]),
                "installations": statements.texts(
                    [str(request.identity.installation) for request in requests]
                ),
            },
        )
        return [
            Fenced(feed_id, epoch, cursor_of(cursor), records, commit_id, is_given=is_given)
            for feed_id, epoch, cursor, records, is_given in raised
        ]

    def of(self, feed_ids: Collection[int]) -> ColumnElement[bool]:
        # As one parameter: to write hundreds of them into a statement costs more than to find their rows.
        ids = cast(literal(statements.integers(feed_ids)), ARRAY(BigInteger))
        return and_(c.environment == self.environment, c.feed_id == any_(ids))

    # -- sessions of others --------------------------------------------------------------------------

    def end_session(self, number: int) -> None:
        # By its name, too: the number may be a stranger's by now.
        name = application_name(self.role, self.worker_id)
        self.query(statements.END_SESSIONS, {"names": [name], "pid": number})

    def end_workers(self, worker_ids: Collection[UUID]) -> int:
        names = [application_name(role, worker_id) for worker_id in worker_ids for role in ROLES]
        return sum(done for (done,) in self.query(statements.END_SESSIONS, {"names": names, "pid": None}))

    # -- dead letters --------------------------------------------------------------------------------

    def write_dead_letters(self, dead: Iterable[DeadRecord]) -> None:
        # A source gone wrong sends nothing else: by INSERT it would cost more than twice as much.
        rows = (
            row_of(
                (
                    self.environment,
                    str(write.feed_id),
                    write.feed,
                    str(write.epoch),
                    "\\x" + record.hex(),
                    error.encode(errors="replace").decode(),
                    cursor_text(batch.cursor),
                )
            )
            for (write, batch, record), error in dead
        )
        self.copy(statements.COPY_DEAD_LETTERS, rows)

    # -- targets -------------------------------------------------------------------------------------

    @classmethod
    def why_reserved(cls, table: TableName) -> str | None:
        # It reserves all names of schemas that begin so for itself: also temporary ones.
        return SYSTEM if (table.schema or "").startswith("pg_") else super().why_reserved(table)

    @classmethod
    def plan_type(cls, target: Target) -> type[TargetPlan]:
        return KeyedCopyPlan if target.key else CopyPlan

    @classmethod
    def judge(cls, target: Target, shape: TableShape | None) -> str | None:
        if (why := super().judge(target, shape)) or shape is None:
            return why
        for source in target.columns if target.format != "bytes" else ():
            if source.origin is Origin.RECORD and shape.columns[source.column].type == "bytea":
                return (
                    f"table {target.table!r}: column {source.column!r} is bytea, and the whole record needs a "
                    "text, json or jsonb column, or source.format bytes"
                )
        return None

    def imagine(self, target: Target) -> tuple[TargetPlan, bool]:
        self.begin_for_person()
        try:
            self.make_schema_of(target)
            self.execute(CreateTable(made_table(target)))
        except self.errors as error:
            raise InvalidInput(self.why_uncreated(target, error)) from error
        return self.inspect(target), True

    def describe(self, targets: Collection[Target]) -> dict[Target, TableShape]:
        numbered = dict(enumerate(targets))
        if not numbered:
            return {}
        names = [TableName.parse(target.table) for target in targets]
        asked = {
            "numbers": list(numbered),
            "schemas": [name.schema for name in names],
            "names": [name.name for name in names],
        }
        rows = self.query(statements.DESCRIBE, asked)
        return {
            numbered[n]: TableShape(
                schema,
                name,
                dict(_column(**column) for column in columns or []),
                frozenset(frozenset(key) for key in unique_keys or [] if key),
                why_unfit(numbered[n], schema, name, kind=kind, role=role, shut_by=shut_by),
                role,
                owner,
                fingerprint=(oid, fingerprint),
            )
            for n, oid, fingerprint, schema, name, kind, shut_by, role, owner, columns, unique_keys in rows
        }

    def fingerprints(self, shapes: Sequence[TableShape]) -> Sequence[Any]:
        now = dict(
            self.query(
                statements.FINGERPRINTS, {"oids": statements.integers(s.fingerprint[0] for s in shapes)}
            )
        )
        return [(oid, now.get(oid)) for oid, _ in (shape.fingerprint for shape in shapes)]

    def make_schema_of(self, target: Target) -> None:
        schema = TableName.parse(target.table).schema
        if schema is None:
            return
        # Asked first: CREATE SCHEMA IF NOT EXISTS takes a right that nobody needs for one that is there.
        ((exists,),) = self.query(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)", {"schema": schema}
        )
        if not exists:
            made = sql.SQL(statements.CREATION_LOCK + "CREATE SCHEMA IF NOT EXISTS {}")
            self.query(made.format(sql.Identifier(schema)))

    # -- private -------------------------------------------------------------------------------------

    def _notice_a_dead_client(self) -> None:
        try:
            self.query("SELECT set_config('client_connection_check_interval', '100', false)")
        except psycopg2.Error:
            # PostgreSQL before 14, or a platform that cannot poll for it: then a long statement of a dead
            # client runs to its end, which delays its successor and does no other harm.
            if self.is_broken:
                raise


class PostgresSink(TransactionalSink):
    """The sink for PostgreSQL."""

    session_type = PostgresSession


def why_unfit(
    target: Target, schema: str, name: str, *, kind: str, role: str, shut_by: str | None
) -> str | None:
    """Why nothing can land in a table whatever its columns; None when something may. Pure.

    ``shut_by`` owns the schema, if this role may not use that.
    """
    # The search path may have led into a schema that was not named.
    if why := PostgresSession.why_reserved(TableName(schema, name)):
        return f"sink.table {target.table!r} leads to {quoted(schema)}.{quoted(name)}, which {why}"
    if kind not in WRITABLE_KINDS:
        return f"{target.table!r} is not a table that records can be copied into: name a table"
    if shut_by is not None:
        return (
            f"role {role!r} may not use schema {schema!r} of table {target.table!r}: "
            f"have {quoted(shut_by)} run GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
        )
    return None


def _column(name: str, **described: Any) -> tuple[str, Column]:
    """A column as `DESCRIBE` gives it."""
    return name, Column(**described)
