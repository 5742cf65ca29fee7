"""Roles of PostgreSQL for each kind of process, each with as few rights as it needs.

::

    migration   owns the schema `feedq` and changes it: `feedq db upgrade`
    worker      runs feeds and jobs, and passes when no beat does; declares nothing
    beat        what workers may, the election, and entries of beat_schedule.py
    flower      reads, and presses the buttons of schedules and runs
    operator    declares feeds, schedules and queues: the command line
    reader      reads: `feedq status`, `list`, `show`, `top`
    sink_<name> owns feedq's tables in a sink and writes into those that feeds name

`CHANGES` says what each may change; all of them may read everything, for a declaration holds no secret. A table or
a column that is added gets its rights with the migration: `renew` is the end of every `feedq db upgrade`.

Roles belong to the whole server, rights to one database; so several installations on one server share their roles
unless ``FEEDQ_ROLE_PREFIX`` keeps them apart. Everything here can be run again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection as Connection  # noqa: N812 -- a class, named as the others are
from psycopg2.extensions import encrypt_password

from feedq.errors import FeedqError
from feedq.store.engine import INSUFFICIENT_PRIVILEGE, driver_options, psycopg2_dsn
from feedq.store.tables import SCHEMA, metadata
from feedq.store.worker_session import unavailable
from feedq.telemetry import mask_url

PREFIX: Final = "feedq_"
"""Of the names of roles, unless ``FEEDQ_ROLE_PREFIX`` says otherwise."""
VERSION_TABLE: Final = "alembic_version"


class Role(StrEnum):
    """What a process is; with the prefix, the name of its role."""

    MIGRATION = "migration"
    WORKER = "worker"
    BEAT = "beat"
    FLOWER = "flower"
    OPERATOR = "operator"
    READER = "reader"


class Right(StrEnum):
    """What may be done to the rows of a table, besides reading them."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    UPDATE_STATE = "UPDATE of what is not declared"
    """All columns but those of `DECLARED`."""


ALL: Final = (Right.INSERT, Right.UPDATE, Right.DELETE)

CHANGES: Final[Mapping[str, Mapping[Role, Collection[Right]]]] = {
    "feed": {Role.WORKER: (Right.UPDATE_STATE, Right.DELETE), Role.OPERATOR: ALL},
    "task_set": {Role.WORKER: ALL},
    "worker": {Role.WORKER: ALL, Role.OPERATOR: (Right.UPDATE,)},
    "lease": {Role.WORKER: ALL, Role.OPERATOR: (Right.INSERT, Right.UPDATE)},
    # Written by triggers of `lease`, on behalf of whoever changes that.
    "held_change": {Role.WORKER: ALL, Role.OPERATOR: (Right.INSERT,)},
    "worker_held": {Role.WORKER: ALL},
    # Its trigger makes one event of several, on behalf of whoever adds one.
    "event": {Role.WORKER: ALL, Role.FLOWER: ALL, Role.OPERATOR: ALL},
    "fleet": {Role.WORKER: (Right.UPDATE,)},
    "leader": {Role.BEAT: (Right.INSERT, Right.UPDATE)},
    "schedule": {
        Role.WORKER: (Right.UPDATE_STATE, Right.DELETE),
        Role.BEAT: (Right.INSERT, Right.UPDATE),
        # To resume one that was declared as paused changes its declaration.
        Role.FLOWER: (Right.UPDATE,),
        Role.OPERATOR: ALL,
    },
    "calendar": {Role.OPERATOR: ALL},
    # Made by the migration, and never changed.
    "installation": {},
    "run": {Role.WORKER: ALL, Role.FLOWER: (Right.INSERT, Right.UPDATE), Role.OPERATOR: ALL},
    "job_queue": {Role.WORKER: (Right.UPDATE,), Role.OPERATOR: ALL},
}
"""By table. A beat has the rights of a worker too; the role of migrations owns all of them."""

DECLARED: Final[Mapping[str, Collection[str]]] = {
    "feed": (
        *("name", "tenant", "connector", "source", "sink", "labels", "selector", "weight", "target_state"),
        *("generation", "uuid"),
    ),
    "schedule": ("name", "job", "timing", "policy", "excluded", "generation"),
}
"""Columns that say what should run: whoever may write them may have a worker do anything."""

SEQUENCES: Final[Mapping[str, Collection[Role]]] = {
    "run_fence": (Role.WORKER,),
    "schedule_id_seq": (Role.OPERATOR,),
}
"""Those that are asked by name, and by whom. Identity columns need no right."""

INHERITS: Final[Mapping[Role, Collection[Role]]] = {Role.BEAT: (Role.WORKER,)}
"""Who has the rights of others too, and may end their sessions."""


@dataclass(frozen=True, slots=True)
class SinkTables:
    """A sink in a database of PostgreSQL."""

    name: str
    tables: tuple[str, ...] = ()
    """Those that declared feeds name, as ``table`` or ``schema.table``."""
    with_control: bool = False
    """Whether it is in the control database."""


@dataclass(frozen=True, slots=True)
class GrantStatement:
    """One step, and what it is for; the first of several alike says it."""

    text: sql.Composable
    about: str = ""


def role_name(prefix: str, role: str) -> str:
    return f"{prefix}{role}"


def sink_role(sink: str) -> str:
    return f"sink_{sink.lower()}"


# -- what is said --------------------------------------------------------------------------------------


def roles(prefix: str, names: Iterable[str]) -> Iterator[GrantStatement]:
    """Make roles that are not there. They may log in; how is for the server to say."""
    about = "Roles; give each a password, or let pg_hba.conf say how they log in"
    for name in names:
        yield GrantStatement(
            sql.SQL(
                "DO $$ BEGIN CREATE ROLE {} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
            ).format(sql.Identifier(role_name(prefix, name))),
            about,
        )
        about = ""


def owning(prefix: str, database: str, *, existing: Existing) -> Iterator[GrantStatement]:
    """The role of migrations owns the schema and all that is in it."""
    owner = sql.Identifier(role_name(prefix, Role.MIGRATION))
    schema = sql.Identifier(SCHEMA)
    yield GrantStatement(
        sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), owner),
        "The schema belongs to the role of migrations",
    )
    yield GrantStatement(sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(schema, owner))
    yield GrantStatement(sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(schema, owner))
    for kind, names in (("TABLE", existing.tables), ("SEQUENCE", existing.sequences)):
        for name in names:
            yield GrantStatement(
                sql.SQL("ALTER {} {} OWNER TO {}").format(sql.SQL(kind), sql.Identifier(SCHEMA, name), owner)
            )
    for function in existing.functions:
        yield GrantStatement(sql.SQL("ALTER FUNCTION {} OWNER TO {}").format(sql.SQL(function), owner))


def memberships(prefix: str, database: str, sinks: Collection[SinkTables]) -> Iterator[GrantStatement]:
    about = "Who may connect, and whose rights come on top"
    for role in Role:
        yield GrantStatement(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                sql.Identifier(database), sql.Identifier(role_name(prefix, role))
            ),
            about,
        )
        about = ""
    for role, others in INHERITS.items():
        for other in others:
            yield GrantStatement(_membership(prefix, other, role))
    for sink in sinks:
        # Transactional jobs write into its tables as they go; and whoever declares feeds may look at them.
        for role in (Role.WORKER, Role.OPERATOR):
            yield GrantStatement(_membership(prefix, sink_role(sink.name), role))


def rights(prefix: str, *, existing: Existing) -> Iterator[GrantStatement]:
    """What each role may do in the schema, and nothing else. For the owner of its tables, or a superuser."""
    for role in Role:
        if role is Role.MIGRATION or role_name(prefix, role) not in existing.roles:
            continue
        yield from _rights_of(prefix, role, existing)


def _rights_of(prefix: str, role: Role, existing: Existing) -> Iterator[GrantStatement]:
    grantee, schema = sql.Identifier(role_name(prefix, role)), sql.Identifier(SCHEMA)
    yield GrantStatement(
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, grantee), f"What {role.value} may do"
    )
    for kind in ("TABLES", "SEQUENCES"):
        yield GrantStatement(
            sql.SQL("REVOKE ALL ON ALL {} IN SCHEMA {} FROM {}").format(sql.SQL(kind), schema, grantee)
        )
    yield GrantStatement(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(schema, grantee))
    for table, changes in CHANGES.items():
        if table in existing.tables and (granted := _granted(table, changes.get(role, ()))):
            yield GrantStatement(
                sql.SQL("GRANT {} ON {} TO {}").format(granted, sql.Identifier(SCHEMA, table), grantee)
            )
    for sequence, users in SEQUENCES.items():
        if role in users and VERSION_TABLE in existing.tables:
            yield GrantStatement(
                sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sql.Identifier(SCHEMA, sequence), grantee)
            )


def sink_rights(prefix: str, database: str, sink: SinkTables) -> Iterator[GrantStatement]:
    """What the role of a sink may do in its database. For the owner of the tables there, or a superuser."""
    name = role_name(prefix, sink_role(sink.name))
    role = sql.Identifier(name)
    yield GrantStatement(
        sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(sql.Identifier(database), role),
        f"What the sink {sink.name} may do: feedq's tables are its own, those that feeds name it writes",
    )
    yield GrantStatement(sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(role))
    for own in ("feedq_checkpoint", "feedq_dead_letter"):
        yield GrantStatement(
            sql.SQL("ALTER TABLE IF EXISTS public.{} OWNER TO {}").format(sql.Identifier(own), role)
        )
    if sink.with_control:
        yield GrantStatement(
            sql.SQL(
                "ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA public "
                "GRANT SELECT, INSERT, UPDATE ON TABLES TO {}"
            ).format(sql.Identifier(role_name(prefix, Role.OPERATOR)), role)
        )
    for table in sink.tables:
        schema, _, _ = table.rpartition(".")
        named = sql.Identifier(*table.split("."))
        if schema:
            yield GrantStatement(
                _if_there(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}"), sql.Identifier(schema), role)
            )
        yield GrantStatement(
            _if_there(sql.SQL("GRANT SELECT, INSERT, UPDATE ON TABLE {} TO {}"), named, role)
        )


def _membership(prefix: str, of: str, to: str) -> sql.Composable:
    return sql.SQL("GRANT {} TO {}").format(
        sql.Identifier(role_name(prefix, of)), sql.Identifier(role_name(prefix, to))
    )


def _if_there(statement: sql.SQL, *names: sql.Composable) -> sql.Composable:
    missing = "undefined_table OR invalid_schema_name OR undefined_object"
    return sql.SQL("DO $$ BEGIN {}; EXCEPTION WHEN {} THEN NULL; END $$").format(
        statement.format(*names), sql.SQL(missing)
    )


def _granted(table: str, changes: Collection[Right]) -> sql.Composable | None:
    parts: list[sql.Composable] = [
        sql.SQL(right.value) for right in changes if right is not Right.UPDATE_STATE
    ]
    if Right.UPDATE_STATE in changes:
        columns = metadata.tables[f"{SCHEMA}.{table}"].columns.keys()
        state = [sql.Identifier(column) for column in columns if column not in DECLARED[table]]
        parts.append(sql.SQL("UPDATE ({})").format(sql.SQL(", ").join(state)))
    return sql.SQL(", ").join(parts) if parts else None


# -- what is done --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Existing:
    """What there is in a database."""

    database: str
    user: str
    is_superuser: bool
    owner: str | None
    """Of the schema `feedq`, if there is one."""
    roles: frozenset[str]
    tables: tuple[str, ...]
    """Of the schema `feedq`; without any, nothing was migrated yet."""
    sequences: tuple[str, ...]
    """Those that belong to no column."""
    functions: tuple[str, ...]
    """With their arguments, quoted."""


def look(connection: Connection) -> Existing:
    """Raises `psycopg2.Error`."""
    database, user, is_superuser = _rows(
        connection,
        "SELECT current_database(), current_user::text, rolsuper FROM pg_roles WHERE rolname = current_user",
    )[0]
    owners = _rows(
        connection, "SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = %s", (SCHEMA,)
    )
    relations = _rows(
        connection,
        "SELECT c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND (c.relkind IN ('r', 'p') OR c.relkind = 'S' AND NOT EXISTS ("
        "SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid "
        "AND d.deptype IN ('a', 'i'))) ORDER BY c.relname",
        (SCHEMA,),
    )
    functions = _rows(
        connection,
        "SELECT format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)) "
        "FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = %s ORDER BY 1",
        (SCHEMA,),
    )
    return Existing(
        database,
        user,
        is_superuser,
        owners[0][0] if owners else None,
        frozenset(name for (name,) in _rows(connection, "SELECT rolname FROM pg_roles")),
        tuple(name for name, kind in relations if kind != "S"),
        tuple(name for name, kind in relations if kind == "S"),
        tuple(name for (name,) in functions),
    )


def sink_tables(connection: Connection, sink: str, *, with_control: bool) -> SinkTables:
    """A sink with the tables that its feeds name. ``connection`` is to the control database, which may hold
    nothing yet. Raises `psycopg2.Error`."""
    if not _rows(connection, "SELECT 1 WHERE to_regclass('feedq.feed') IS NOT NULL"):
        return SinkTables(sink, with_control=with_control)
    found = _rows(
        connection,
        "SELECT DISTINCT sink->>'table' FROM feedq.feed WHERE lower(coalesce(sink->>'name', 'default')) = %s "
        "AND sink->>'table' IS NOT NULL ORDER BY 1",
        (sink.lower(),),
    )
    return SinkTables(sink, tuple(table for (table,) in found if table.count(".") <= 1), with_control)


def script(
    connection: Connection, prefix: str, sinks: Collection[SinkTables], passwords: Mapping[str, str]
) -> list[GrantStatement]:
    """All that makes the roles of a control database, and of the sinks that are in it. Raises `psycopg2.Error`.

    ``passwords`` are by role, without the prefix; others keep theirs, or have none.
    """
    existing = look(connection)
    names = [*map(str, Role), *(sink_role(sink.name) for sink in sinks)]
    # Rights are for those that will be there by then.
    then = replace(existing, roles=existing.roles | {role_name(prefix, name) for name in names})
    return [
        *roles(prefix, names),
        *_passwords(connection, prefix, passwords, names),
        *([] if existing.is_superuser else _own_membership(prefix, names)),
        *memberships(prefix, existing.database, sinks),
        *_keep_the_users_tables_apart(existing),
        *owning(prefix, existing.database, existing=existing),
        *rights(prefix, existing=then),
        *(step for sink in sinks for step in sink_rights(prefix, existing.database, sink)),
    ]


def _keep_the_users_tables_apart(existing: Existing) -> Iterator[GrantStatement]:
    """As `feedq.store.migrate` does for a user called like the schema, who is not the one that makes it here."""
    if SCHEMA in existing.roles and (existing.is_superuser or existing.user == SCHEMA):
        yield GrantStatement(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = public").format(
                sql.Identifier(SCHEMA), sql.Identifier(existing.database)
            ),
            "Tables of a user called like the schema go on being made and found in public",
        )


def sink_script(
    connection: Connection, prefix: str, sink: SinkTables, passwords: Mapping[str, str], *, database: str
) -> list[GrantStatement]:
    """The same for a sink in another ``database``, which ``connection`` is not to."""
    name = sink_role(sink.name)
    return [
        *roles(prefix, [name]),
        *_passwords(connection, prefix, passwords, [name]),
        *sink_rights(prefix, database, sink),
    ]


def _passwords(
    connection: Connection, prefix: str, passwords: Mapping[str, str], names: Iterable[str]
) -> Iterator[GrantStatement]:
    for role in names:
        if role not in passwords:
            continue
        name = role_name(prefix, role)
        # As the server would store it: a log of statements must not hold the password itself.
        secret = encrypt_password(passwords[role], name, scope=connection, algorithm="scram-sha-256")
        yield GrantStatement(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), sql.Literal(secret))
        )


def _own_membership(prefix: str, names: Iterable[str]) -> Iterator[GrantStatement]:
    about = "Whoever is no superuser gives away only to roles that they belong to"
    for name in names:
        yield GrantStatement(
            sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(role_name(prefix, name))), about
        )
        about = ""


def apply(url: str, statements: Iterable[GrantStatement], connection: Connection) -> None:
    """Run them in one transaction. Raises `FeedqError` where the role of ``url`` may not."""
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.text)
        connection.commit()
    except psycopg2.Error as error:
        connection.rollback()
        if error.pgcode != INSUFFICIENT_PRIVILEGE:
            raise
        raise FeedqError(
            f"{mask_url(url)} may not do this ({str(error).strip().splitlines()[0]}): connect as a superuser, or "
            "as a role with CREATEROLE that owns the database and feedq's tables"
        ) from error


def renew(connection: Any, prefix: str) -> None:
    """Give the roles their rights on the tables as they are now: the end of each migration.

    ``connection`` is SQLAlchemy's, of whoever migrates. It does nothing unless the schema belongs to the role of
    migrations: that the server has such roles may be for the sake of another installation.
    """
    driver: Connection = connection.connection.driver_connection
    existing = look(driver)
    if existing.owner != role_name(prefix, Role.MIGRATION):
        return
    steps = list(rights(prefix, existing=existing))
    if existing.user != existing.owner:
        # What somebody else has migrated would be theirs, and no longer the owner's to migrate.
        steps = [*owning(prefix, existing.database, existing=existing), *steps]
    with driver.cursor() as cursor:
        for step in steps:
            cursor.execute(step.text)
    # SQLAlchemy does not know of what was done behind it.
    driver.commit()


@contextmanager
def opened(url: str) -> Iterator[Connection]:
    """A session to look and apply with. Raises `Unavailable`."""
    try:
        connection: Connection = psycopg2.connect(psycopg2_dsn(url), **driver_options("feedq-admin"))
    except psycopg2.Error as error:
        raise unavailable(url, error) from error
    try:
        yield connection
    except psycopg2.OperationalError as error:
        raise unavailable(url, error) from error
    finally:
        connection.close()


def _rows(connection: Connection, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())
