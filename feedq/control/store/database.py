"""Sessions with the control database, pooled and single, and where the driver's errors become ours."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache, wraps
from math import ceil
from threading import BoundedSemaphore
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
import psycopg2
from psycopg2.extensions import connection as Session  # noqa: N812 -- a class, named as the others are
from psycopg2.extensions import parse_dsn
from psycopg2.extras import (
    register_default_json,
    register_default_jsonb,
    register_uuid,
)

from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text, with_remedy
from feedq.core.values import storable
from feedq.errors import InvalidInput, PermissionMissing, SchemaBehind, Unavailable
from feedq.settings import settings
from feedq.telemetry.watched_threads import asking, asks

if TYPE_CHECKING:
    from sqlalchemy import Engine

POSTGRESQL_MIN = 15
"""The oldest major version of PostgreSQL that feedq is tested with; its statements use what 15 brought."""
SETTING = "FEEDQ_DATABASE_URL"
SCHEMA = "feedq"
"""The schema of the control tables."""
CONNECT_TIMEOUT_S = 5
PROBES = 3
"""The number of probes that the other end leaves unanswered before it counts as gone."""
STATEMENT_TIMEOUT_MS = 60_000
"""The statement time-out: nothing feedq asks of the control database takes this long; a lock that does is
better given up."""
LOCK_TIMEOUT_MS = 10_000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 3_000
"""A process that freezes in a transaction, a reconcile pass say, is thrown out after this. Longer than a pass
ever computes between two statements; and shorter than a ttl, because the rows it has locked are those that
heartbeats renew."""
PLANNER = {"enable_seqscan": "off", "jit": "off"}
"""Of a million leases a statement wants some thousand, by their keys. The planner does not know how many are idle
or dirty: a minute after all were, statistics still say so, and then it reads the whole table to join it with the
keys row by row, which takes minutes."""
RESTED_S = 1.0
"""A session that has not been used for so long is asked whether it is still there."""
POOL_SIZE = 2
"""Connections kept open by a process that is busy; more are opened only when many are used at once."""
IDLE_S = 10.0
"""One that was not needed for so long, because another one was there, is closed."""
POOL_MAX = 5
POOL_TIMEOUT_S = 15
ROW_CLASSES_MAX = 500
"""More than there are statements."""
ADMIN = "feedq-admin"
"""What sessions of commands are called in ``pg_stat_activity``."""
READ_ONLY = "25006"
"""Said by a standby, for as long as it is not promoted."""
NUL_REFUSED = "NUL (0x00)"
"""What psycopg2 says of a text that PostgreSQL cannot hold."""
INSUFFICIENT_PRIVILEGE = "42501"
DATA_EXCEPTION = "22"
"""How the codes of errors begin that a value is to blame for: too large, or no text of its encoding."""
BEHIND = ("3F000", "42P01", "42703", "42883")
"""Codes for a schema, table, column or function that there is not."""


class Rows(list[Any]):
    """The result of a statement. A row has its columns by name and by place."""

    def one(self) -> Any:
        (row,) = self
        return row

    def one_or_none(self) -> Any:
        return self[0] if self else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        return self[0][0] if self else None


class Connection(NamedTuple):
    """Runs statements with parameters such as ``%(id)s`` in a session."""

    session: Session

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        asks(self.session.get_backend_pid())
        with self.session.cursor() as cursor:
            # Given no parameters at all, the driver would leave a %% as it is.
            cursor.execute(sql, parameters or {})
            if cursor.description is None:
                return Rows()
            make = _row_class(tuple(column.name for column in cursor.description))._make
            return Rows(map(make, cursor.fetchall()))


@lru_cache(maxsize=ROW_CLASSES_MAX)
def _row_class(columns: tuple[str, ...]) -> Any:
    """The class of rows with these columns, which takes longer to make than most statements do."""
    return namedtuple("Row", columns, rename=True)


class Database:
    """Transactions on the control database, from the pool of a process. Connects when it is first used.
    Thread-safe."""

    def __init__(self, url: str, *, application_name: str) -> None:
        """Raises `InvalidInput` on a URL of another kind."""
        psycopg2_dsn(url)
        self.url = url
        self._application_name = application_name
        self._free = BoundedSemaphore(POOL_MAX)
        self._idle: deque[tuple[Session, float]] = deque()
        """Sessions that nobody uses, each with the moment since when; the latest last."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits at the end of the block, rolls back on any exception. Raises `Unavailable`."""
        with self._lend() as session:
            session.autocommit = False
            yield Connection(session)
            session.commit()

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """Lends a connection for one statement, which is a transaction by itself: one round trip instead of three.

        A thread of a busy worker waits for the interpreter after each. Raises `Unavailable`.
        """
        with self._lend() as session:
            yield Connection(session)

    @contextmanager
    def _lend(self) -> Iterator[Session]:
        with asking():
            is_free = self._free.acquire(timeout=POOL_TIMEOUT_S)
        if not is_free:
            raise Unavailable(
                f"control database {mask_url(self.url)}: this process has used all {POOL_MAX} of its connections "
                f"for {POOL_TIMEOUT_S} s"
            )
        try:
            with translate_errors(self.url):
                session = self._rested() or self._connect()
                try:
                    yield session
                finally:
                    self._take_back(session)
        finally:
            self._free.release()

    def _connect(self) -> Session:
        options = {"idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_MS, **PLANNER}
        return connect(self.url, application_name=self._application_name, **options)

    def _rested(self) -> Session | None:
        """Take a session from the pool, if one is there.

        One that was lost while it rested is replaced before it is used. One that has just been used is not asked:
        as likely as not it would be lost between the answer and the statement.
        """
        with suppress(IndexError):
            session, since = self._idle.pop()
            if monotonic() - since < RESTED_S:
                return session
            try:
                Connection(session).execute("SELECT 1")
                return session
            except psycopg2.Error:
                session.close()
                self.close()
        return None

    def _take_back(self, session: Session) -> None:
        try:
            session.rollback()  # nothing is sent after a commit
            session.autocommit = True
        except psycopg2.Error:
            session.close()
        if session.closed:
            # What has cut it off, a restart of the server say, has cut off the others.
            self.close()
        elif len(self._idle) < POOL_SIZE:
            self._idle.append((session, monotonic()))
            self._close_unneeded()
        else:
            session.close()

    def _close_unneeded(self) -> None:
        """Close a session that has been idle for long while another one did all the work."""
        if len(self._idle) > 1:
            with suppress(IndexError):
                oldest, since = self._idle.popleft()
                if monotonic() - since >= IDLE_S:
                    oldest.close()
                else:
                    self._idle.appendleft((oldest, since))

    def close(self) -> None:
        """Close the sessions that nobody uses."""
        with suppress(IndexError):
            while True:
                self._idle.pop()[0].close()


class Aggregate:
    """Base of classes that read and write a few tables which belong together. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database


A = TypeVar("A", bound=Aggregate)
P = ParamSpec("P")
R = TypeVar("R")


def in_transaction(method: Callable[Concatenate[A, Connection, P], R]) -> Callable[Concatenate[A, P], R]:
    """Makes each call of a method one transaction, whose connection the method is given first."""
    return _connected(method, lambda database: database.transaction())


def in_statement(method: Callable[Concatenate[A, Connection, P], R]) -> Callable[Concatenate[A, P], R]:
    """Makes each call of a method one statement, which is a transaction by itself, as `in_transaction` does: it
    costs one round trip instead of three."""
    return _connected(method, lambda database: database.statement())


def _connected(
    method: Callable[Concatenate[A, Connection, P], R],
    connect: Callable[[Database], AbstractContextManager[Connection]],
) -> Callable[Concatenate[A, P], R]:
    @wraps(method)
    def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with connect(self._database) as c:
            return method(self, c, *args, **kwargs)

    return call


def driver_options(application_name: str) -> dict[str, Any]:
    """libpq options of every session: a dead network is noticed in seconds on either side, a dead client in
    100 ms."""
    probes = _probes(settings().database_timeout_s)
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": application_name[:63],
        # libpq calls them like the server does, but for a prefix.
        **{name.replace("tcp_keepalives", "keepalives"): value for name, value in probes.items()},
        "options": _options(
            statement_timeout=STATEMENT_TIMEOUT_MS,
            lock_timeout=LOCK_TIMEOUT_MS,
            # A killed worker's backend must notice, even in a query, or its lock would outlive it.
            client_connection_check_interval=100,
            timezone="UTC",
            # A host that lost power closes nothing: its backends would keep their locks, that of a pass as well.
            **probes,
        ),
    }


def _probes(timeout_s: float) -> dict[str, int]:
    """The settings by which an end notices that the other one has been silent for about so long; none for 0, which
    leaves it to the system."""
    if not timeout_s:
        return {}
    idle_s = max(1, round(timeout_s / 2))
    return {
        "tcp_keepalives_idle": idle_s,
        "tcp_keepalives_interval": max(1, ceil((timeout_s - idle_s) / PROBES)),
        "tcp_keepalives_count": PROBES,
        "tcp_user_timeout": round(1000 * timeout_s),
    }


def _options(**values: object) -> str:
    return " ".join(f"-c {name}={value}" for name, value in values.items())


def psycopg2_dsn(url: str) -> str:
    """The URL in the form that psycopg2 takes. Raises `InvalidInput` where it cannot be one of PostgreSQL."""
    scheme, is_url, rest = url.partition("://")
    backend = scheme.partition("+")[0]
    if is_url and backend not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"the control database must be PostgreSQL, not {backend!r}: set FEEDQ_DATABASE_URL=postgresql://…"
        )
    dsn = f"postgresql://{rest}"
    try:
        parse_dsn(dsn if is_url else "://")
    except psycopg2.ProgrammingError:
        # Not quoted: what cannot be read as a URL may hold a password that cannot be told from the rest.
        raise InvalidInput(
            "the database's URL cannot be read; write postgresql://user@host:port/database, with special "
            "characters in user name and password percent-encoded"
        ) from None
    return dsn


def connect(url: str, *, application_name: str, **server_options: object) -> Session:
    """Open a session, which commits each statement by itself. Raises `Unavailable`."""
    options = driver_options(application_name)
    options["options"] += f" {_options(**server_options)}"
    with translate_driver_errors(url):
        session: Session = psycopg2.connect(psycopg2_dsn(url), **options)
    session.autocommit = True
    register_uuid(conn_or_curs=session)  # type: ignore[no-untyped-call]  # of the stubs
    for register in (register_default_json, register_default_jsonb):
        register(session, loads=msgspec.json.decode)
    return session


def make_engine(url: str, *, application_name: str) -> Engine:
    """An engine without a pool, for whoever wants SQLAlchemy's connections: transactional jobs and Alembic."""
    from sqlalchemy import NullPool, create_engine

    def open_() -> Session:
        session = connect(url, application_name=application_name)
        session.autocommit = False
        return session

    return create_engine(
        "postgresql+psycopg2://",
        creator=open_,
        poolclass=NullPool,
        json_serializer=lambda value: msgspec.json.encode(value).decode(),
        json_deserializer=msgspec.json.decode,
    )


@contextmanager
def connect_once(url: str) -> Iterator[Connection]:
    """Makes the block one transaction on a connection of its own. Raises `Unavailable`."""
    with translate_errors(url), closing(connect(url, application_name=ADMIN)) as session:
        session.autocommit = False
        yield Connection(session)
        session.commit()


def storable_json(value: object) -> str:
    """What nobody here chose, made fit for a jsonb column as `storable` does for texts, with nothing cut.

    What JSON does not know is shown as Python shows it.
    """
    with suppress(UnicodeEncodeError, TypeError, RecursionError):
        encoded = _written(value)
        return encoded if "\\u0000" not in encoded else _written(_replaced(value))
    try:
        return _written(_replaced(value))
    except (TypeError, RecursionError):  # a key that is not a text, nested deep
        return _written(storable(repr(value)))


def _written(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()


def _replaced(value: object) -> object:
    match value:
        case str():
            return storable(value, len(value))
        case Mapping():
            return {_replaced(key): _replaced(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_replaced(inner) for inner in value]
    return value


@contextmanager
def translate_driver_errors(url: str) -> Iterator[None]:
    """Translate errors of the driver: whatever it raises on a session of ours means that the session cannot go
    on."""
    try:
        with asking():
            yield
    except psycopg2.Error as error:
        raise unavailable(url, error) from error


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """The driver's errors as `Unavailable`, `SchemaBehind` or `InvalidInput`; anything else passes."""
    try:
        with asking():
            yield
    except ValueError as error:
        # The driver's own, before anything is sent: whoever asked wrote it into a name or an address.
        if NUL_REFUSED not in str(error):
            raise
        raise InvalidInput("names and texts must not contain a NUL character (U+0000)") from None
    except psycopg2.Error as error:
        code = error.pgcode
        is_cut = error.cursor is not None and error.cursor.connection.closed
        if (
            is_cut
            or code == READ_ONLY
            or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        ):
            raise unavailable(url, error) from error
        said = str(error).partition("\n")[0]
        if code == INSUFFICIENT_PRIVILEGE:
            raise PermissionMissing(
                f"{_explain(url, error)}; `feedq db grants` prints what each role may do, `feedq db upgrade` "
                "grants it"
            ) from error
        if code is not None and code.startswith(DATA_EXCEPTION):
            raise InvalidInput(f"the control database refuses a value: {said}") from error
        if code in BEHIND:
            raise SchemaBehind(
                f"the control database lacks something that this release needs ({said}): run `feedq db "
                "upgrade`; if that says that a newer release has migrated the database, start the newer release "
                "here"
            ) from error
        raise


def unavailable(url: str, error: Exception) -> Unavailable:
    return Unavailable(with_remedy(_explain(url, error), setting=SETTING))


def _explain(url: str, error: Exception) -> str:
    return f"control database {mask_url(url)}: {mask_url(driver_text(error))}"
