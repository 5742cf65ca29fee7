"""Sessions with the control database, pooled and single, and where the driver's errors become ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from math import ceil
from time import monotonic
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
import psycopg2
from psycopg2.extensions import connection as Session  # noqa: N812 -- a class, named as the others are
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text, with_remedy
from feedq.core.values import storable
from feedq.errors import Conflict, InvalidInput, PermissionMissing, SchemaBehind, Unavailable
from feedq.settings import settings

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
USED_AT = "feedq_used_at"
POOL_SIZE = 2
"""Connections kept open a process: one for the leases, one for jobs; more are opened only when many are used at
once."""
POOL_OVERFLOW = 3
POOL_TIMEOUT_S = 15
ADMIN = "feedq-admin"
"""What sessions of commands are called in ``pg_stat_activity``."""
READ_ONLY = "25006"
"""Said by a standby, for as long as it is not promoted."""
NUL_REFUSED = "NUL (0x00)"
"""What psycopg2 says of a text that PostgreSQL cannot hold."""
INSUFFICIENT_PRIVILEGE = "42501"
UNIQUE_VIOLATION = "23505"
DATA_EXCEPTION = "22"
"""How the codes of errors begin that a value is to blame for: too large, or no text of its encoding."""
UNDEFINED_TABLE = "42P01"
UNDEFINED_COLUMN = "42703"
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)\b")


class Database:
    """Transactions on the control database, from the pool of a process. Thread-safe."""

    def __init__(self, url: str, *, application_name: str) -> None:
        self.url = url
        self._engine = _pooled_engine(url, application_name=application_name)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits at the end of the block, rolls back on any exception. Raises `Unavailable`."""
        with translate_errors(self.url), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """Lends a connection for one statement, which is a transaction by itself: one round trip instead of three.

        A thread of a busy worker waits for the interpreter after each. Raises `Unavailable`.
        """
        with translate_errors(self.url), self._engine.connect() as connection, _committing(connection):
            yield connection

    def close(self) -> None:
        self._engine.dispose()


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


def _pooled_engine(url: str, *, application_name: str) -> Engine:
    """An engine with a small pool. Does not connect yet. Raises `InvalidInput` on a URL of another kind."""
    options = driver_options(application_name)
    added = _options(idle_in_transaction_session_timeout=IDLE_IN_TRANSACTION_TIMEOUT_MS, **PLANNER)
    options["options"] += f" {added}"
    engine = _engine(
        url, options, pool_size=POOL_SIZE, max_overflow=POOL_OVERFLOW, pool_timeout=POOL_TIMEOUT_S
    )
    _ping_what_has_rested(engine)
    return engine


def make_lone_engine(url: str, *, application_name: str) -> Engine:
    """An engine without a pool, for transactions whose length and statements are those of somebody else's code."""
    return _engine(url, driver_options(application_name), poolclass=NullPool)


def _engine(url: str, options: dict[str, Any], **pool: Any) -> Engine:
    return create_engine(
        _psycopg2_url(url),
        connect_args=options,
        json_serializer=lambda value: msgspec.json.encode(value).decode(),
        json_deserializer=msgspec.json.decode,
        **pool,
    )


def _ping_what_has_rested(engine: Engine) -> None:
    """A session that was lost while it lay in the pool is replaced before it is used. One that has just been used
    is not asked: as likely as not it would be lost between the answer and the statement."""

    @event.listens_for(engine, "checkin")
    def rest(_: object, record: ConnectionPoolEntry) -> None:
        record.info[USED_AT] = monotonic()

    @event.listens_for(engine, "checkout")
    def ping(session: Any, record: ConnectionPoolEntry, _: object) -> None:
        if monotonic() - record.info.get(USED_AT, float("inf")) < RESTED_S:
            return
        try:
            engine.dialect.do_ping(session)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


@contextmanager
def _committing(connection: Connection) -> Iterator[None]:
    """Makes each statement of this connection a transaction by itself, for the length of the block.

    Not by SQLAlchemy's ``AUTOCOMMIT``: that goes back to an isolation level by its name, and from then on the
    driver tells the server at the end of each block what its default is, which is a round trip more.
    """
    session: Any = connection.connection.driver_connection
    session.autocommit = True
    try:
        yield
    finally:
        if not session.closed:
            session.autocommit = False


def psycopg2_dsn(url: str) -> str:
    """The URL in the form that psycopg2 takes."""
    return str(_psycopg2_url(url).set(drivername="postgresql").render_as_string(hide_password=False))


def connect(url: str, *, application_name: str, cursor_factory: Any = None) -> Session:
    """A session of the driver's own, which commits each statement. Raises `Unavailable`."""
    options = driver_options(application_name)
    with translate_driver_errors(url):
        session: Session = psycopg2.connect(psycopg2_dsn(url), cursor_factory=cursor_factory, **options)
    session.autocommit = True
    return session


@contextmanager
def connect_once(url: str) -> Iterator[Connection]:
    """Makes the block one transaction on a connection of its own. Raises `Unavailable`."""
    engine = make_lone_engine(url, application_name=ADMIN)
    with translate_errors(url), engine.begin() as connection:
        yield connection


class PreparedStatement(NamedTuple):
    """A statement that a session plans once: to plan it costs the server more than to execute it.

    Not behind a pooler, where the next statement may meet another backend.
    """

    prepare: str
    execute: str

    @classmethod
    def of(cls, name: str, sql: str, types: Mapping[str, str]) -> PreparedStatement:
        """``sql`` has parameters such as ``:ids``, of these types; it need not use all of them."""
        found_in_it = set(_PARAMETER.findall(sql))
        used = [parameter for parameter in types if parameter in found_in_it]
        numbered = _PARAMETER.sub(lambda found: f"${1 + used.index(found[1])}", sql)
        if not used:
            return cls(f"PREPARE {name} AS {numbered}", f"EXECUTE {name}")
        listed, values = ", ".join(types[p] for p in used), ", ".join(f"%({p})s" for p in used)
        return cls(f"PREPARE {name} ({listed}) AS {numbered}", f"EXECUTE {name} ({values})")


def for_driver(sql: str) -> str:
    """The statement with parameters as the driver writes them: ``%(ids)s`` for ``:ids``."""
    return _PARAMETER.sub(r"%(\1)s", sql)


class GivenRows:
    """Rows that a statement is given, called ``given`` in its ``FROM``: a list a column, each under its name."""

    def __init__(self, columns: str) -> None:
        """``columns`` are names and types, as in ``id bigint, reason text``."""
        types = dict(column.split() for column in columns.split(","))
        self.columns = tuple(types)
        self._lists = ", ".join(f"CAST(:{name} AS {type_}[])" for name, type_ in types.items())

    def __str__(self) -> str:
        return f"unnest({self._lists}) AS given ({', '.join(self.columns)})"

    @property
    def numbered(self) -> str:
        """The same, with the place of each row from 1 on as a last column, ``n``."""
        return f"unnest({self._lists}) WITH ORDINALITY AS given ({', '.join(self.columns)}, n)"

    def of(self, rows: Iterable[Sequence[object]]) -> dict[str, list[object]]:
        """The parameters for these rows, whose values are in the order of the columns."""
        found = list(rows)
        return {name: [row[place] for row in found] for place, name in enumerate(self.columns)}


def storable_json(value: object) -> str:
    """What nobody here chose, made fit for a jsonb column as `storable` does for texts, with nothing cut.

    What JSON does not know is shown as Python shows it.
    """
    with suppress(UnicodeEncodeError, TypeError, RecursionError):
        encoded = _written(value)
        return encoded if "\\u0000" not in encoded else _written(_replaced(value))
    try:
        return _written(_replaced(value))
    except (TypeError, RecursionError):  # a key that is no text, nested deep
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
        yield
    except psycopg2.Error as error:
        raise unavailable(url, error) from error


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """The driver's errors as `Unavailable`, `SchemaBehind` or `InvalidInput`; anything else passes."""
    try:
        yield
    except ValueError as error:
        # The driver's own, before anything is sent: whoever asked wrote it into a name or an address.
        if NUL_REFUSED not in str(error):
            raise
        raise InvalidInput(
            "no name and no text here may hold a NUL character (U+0000): leave it out"
        ) from None
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise unavailable(url, error) from error
    except DBAPIError as error:
        code = getattr(error.orig, "pgcode", None)
        if error.connection_invalidated or code == READ_ONLY:
            raise unavailable(url, error) from error
        if code == INSUFFICIENT_PRIVILEGE:
            raise PermissionMissing(
                f"{_explain(url, error)}; `feedq db grants` says what each role may, `feedq db upgrade` gives it"
            ) from error
        if code is not None and code.startswith(DATA_EXCEPTION):
            raise InvalidInput(
                f"the control database cannot work with a value that was given: {str(error.orig).splitlines()[0]}"
            ) from error
        if code in (UNDEFINED_TABLE, UNDEFINED_COLUMN):
            raise SchemaBehind(
                f"the control database lacks a table or column of this release "
                f"({str(error.orig).splitlines()[0]}): run `feedq db upgrade`"
            ) from error
        raise


@contextmanager
def refused_when_taken(refusal: str) -> Iterator[None]:
    """Raises `Conflict` with these words when a name that is to be written exists already."""
    try:
        yield
    except IntegrityError as error:
        if getattr(error.orig, "pgcode", None) != UNIQUE_VIOLATION:
            raise
        raise Conflict(refusal) from None


def unavailable(url: str, error: Exception) -> Unavailable:
    explained = _explain(url, error)
    # That the pool of this process is used up is no matter of the server's.
    is_of_server = not isinstance(error, PoolTimeout)
    return Unavailable(with_remedy(explained, setting=SETTING) if is_of_server else explained)


def _explain(url: str, error: Exception) -> str:
    return f"control database {mask_url(url)}: {mask_url(driver_text(error))}"


def _psycopg2_url(url: str) -> Any:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Not quoted: what cannot be read as a URL may hold a password that cannot be told from the rest.
        raise InvalidInput(
            "the database's URL cannot be read; write postgresql://user@host:port/database, with special "
            "characters in user name and password percent-encoded"
        ) from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"the control database must be PostgreSQL, not {parsed.get_backend_name()!r}: "
            "set FEEDQ_DATABASE_URL=postgresql://…"
        )
    return parsed.set(drivername="postgresql+psycopg2")
