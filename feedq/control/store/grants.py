"""Roles of PostgreSQL for each kind of process, each with as few rights as it needs.

::

    migration   owns tables and functions, and changes them: `feedq db upgrade`
    worker      runs feeds and jobs, and passes when no beat does; declares nothing
    beat        what workers may, the election, and entries of beat_schedule.py
    flower      reads, and presses the buttons of schedules and runs
    operator    what Flower may, and declares feeds, schedules and queues: the command line
    reader      reads: `feedq status`, `list`, `show`, `top`
    sink_<name> owns feedq's tables in a sink and writes into those that feeds name

Nobody but the first writes to a table: the others call functions, which run with its rights. Which of them each
may call stands in `feedq/control/sql/roles.sql`. All may read everything, for a declaration holds no secret. What
is added gets its rights with the migration: `renew` is the end of every `feedq db upgrade`.

Roles belong to the whole server, rights to one database; so several installations on one server share their roles
unless ``FEEDQ_ROLE_PREFIX`` keeps them apart. Everything here can be run again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege
from psycopg2.extensions import encrypt_password

from feedq.control.store.database import SCHEMA, Connection
from feedq.control.store.protocol import MARK
from feedq.control.store.protocol import SCHEMA as PROTOCOL
from feedq.core.passwords import mask_url
from feedq.errors import FeedqError

PREFIX: Final = "feedq_"
"""The prefix of the names of roles, unless ``FEEDQ_ROLE_PREFIX`` says otherwise."""


class Role(StrEnum):
    """The kind of a process; with the prefix, the name of its role."""

    MIGRATION = "migration"
    WORKER = "worker"
    BEAT = "beat"
    FLOWER = "flower"
    OPERATOR = "operator"
    READER = "reader"


INHERITS: Final[Mapping[Role, Role]] = {
    Role.WORKER: Role.READER,
    Role.BEAT: Role.WORKER,
    Role.FLOWER: Role.READER,
    Role.OPERATOR: Role.FLOWER,
    # Functions run as their owner, and two end sessions: a frozen beat's, and those of jobs of lost workers.
    Role.MIGRATION: Role.BEAT,
}
"""The roles that have the rights of another too, and may end its sessions."""


@dataclass(frozen=True, slots=True)
class SinkTables:
    """A sink in a database of PostgreSQL."""

    name: str
    tables: tuple[str, ...] = ()
    """The tables that declared feeds name, as ``table`` or ``schema.table``."""
    with_control: bool = False
    """Whether it is in the control database."""


@dataclass(frozen=True, slots=True)
class GrantStatement:
    """A statement, and what it is for; the first of several alike says it."""

    text: sql.Composable
    about: str = ""


def role_name(prefix: str, role: str) -> str:
    return f"{prefix}{role}"


def sink_role(sink: str) -> str:
    return f"sink_{sink.lower()}"


# -- what is said --------------------------------------------------------------------------------------


def _sql(statement: str, *names: str | tuple[str, ...] | sql.Composable) -> sql.Composable:
    """The statement with these names, quoted; of several parts when it is a tuple."""
    parts = [(name,) if isinstance(name, str) else name for name in names]
    return sql.SQL(statement).format(*(sql.Identifier(*p) if isinstance(p, tuple) else p for p in parts))


def _statements(about: str, *texts: sql.Composable) -> list[GrantStatement]:
    return [GrantStatement(text, "" if n else about) for n, text in enumerate(texts)]


def _unless(errors: str, statement: sql.Composable) -> sql.Composable:
    """The statement, which does nothing when one of these errors comes of it."""
    done = sql.SQL("DO $$ BEGIN {}; EXCEPTION WHEN {} THEN NULL; END $$")
    return done.format(statement, sql.SQL(errors))


def roles(prefix: str, names: Iterable[str]) -> list[GrantStatement]:
    """Make roles that are not there. They may log in; how is for the server to say."""
    made = (
        _unless("duplicate_object", _sql("CREATE ROLE {} LOGIN", role_name(prefix, name))) for name in names
    )
    return _statements("Roles; give each a password, or let pg_hba.conf say how they log in", *made)


def owning(prefix: str, existing: Existing) -> list[GrantStatement]:
    """The role of migrations owns the tables, the functions, and their schemas."""
    owner = role_name(prefix, Role.MIGRATION)
    return _statements(
        "Tables and functions belong to the role of migrations",
        _sql("GRANT CREATE ON DATABASE {} TO {}", existing.database, owner),
        _sql("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}", SCHEMA, owner),
        sql.SQL(_OWN).format(sql.Literal(owner)),
    )


# Whoever owns a table owns the sequences of its columns.
_OWN = f"""DO $$ DECLARE owned text; BEGIN
    FOR owned IN WITH ours AS (
        SELECT oid FROM pg_namespace
        WHERE nspname = '{SCHEMA}' OR obj_description(oid, 'pg_namespace') = '{MARK}'
    )
    SELECT 'SCHEMA ' || oid::regnamespace FROM ours
    UNION ALL SELECT 'FUNCTION ' || oid::regprocedure FROM pg_proc WHERE pronamespace IN (SELECT oid FROM ours)
    UNION ALL SELECT 'TABLE ' || oid::regclass FROM pg_class c
        WHERE relnamespace IN (SELECT oid FROM ours) AND relkind IN ('r', 'p', 'v', 'S') AND NOT EXISTS (
            SELECT FROM pg_depend
            WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype IN ('a', 'i') AND relkind = 'S')
    LOOP EXECUTE format('ALTER %s OWNER TO %I', owned, {{}}); END LOOP;
END $$"""


def memberships(prefix: str, database: str, sinks: Collection[SinkTables]) -> list[GrantStatement]:
    # Transactional jobs write into a sink's tables as they go; and whoever declares feeds may look at them.
    of_sinks = [(role, sink_role(sink.name)) for sink in sinks for role in (Role.WORKER, Role.OPERATOR)]
    whose = [*INHERITS.items(), *of_sinks]
    return _statements(
        "Who may connect, and which role has the rights of another as well",
        *(_sql("GRANT CONNECT ON DATABASE {} TO {}", database, role_name(prefix, role)) for role in Role),
        *(_sql("GRANT {} TO {}", role_name(prefix, other), role_name(prefix, role)) for role, other in whose),
    )


def rights(prefix: str, existing: Existing) -> list[GrantStatement]:
    """Return what each role may call and read, and nothing else. For the owner of all that, or a superuser."""
    there = [r for r in Role if r is not Role.MIGRATION and role_name(prefix, r) in existing.roles]
    return [step for role in there for step in _rights_of(role, role_name(prefix, role), existing)]


def _rights_of(role: Role, name: str, existing: Existing) -> list[GrantStatement]:
    names = [SCHEMA, PROTOCOL] if existing.allowed else [SCHEMA]
    schemas = sql.SQL(", ").join(map(sql.Identifier, names))
    functions = [sql.Identifier(PROTOCOL, function) for function in existing.allowed.get(role, ())]
    steps = [
        _sql(f"REVOKE ALL ON ALL {kind} IN SCHEMA {{}} FROM {{}}", schemas, name)
        for kind in ("TABLES", "SEQUENCES", "FUNCTIONS")
    ]
    if role is Role.READER:
        steps.append(_sql("GRANT USAGE ON SCHEMA {} TO {}", schemas, name))
        steps.append(_sql("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}", schemas, name))
    if functions:
        steps.append(_sql("GRANT EXECUTE ON FUNCTION {} TO {}", sql.SQL(", ").join(functions), name))
    return _statements(f"What {role.value} may do", *steps)


def sink_rights(prefix: str, database: str, sink: SinkTables) -> list[GrantStatement]:
    """Return what the role of a sink may do in its database. For the owner of the tables there, or
    a superuser."""
    role = role_name(prefix, sink_role(sink.name))
    steps = [
        _sql("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}", database, role),
        _sql("GRANT USAGE, CREATE ON SCHEMA public TO {}", role),
        _sql("ALTER TABLE IF EXISTS public.feedq_checkpoint OWNER TO {}", role),
        _sql("ALTER TABLE IF EXISTS public.feedq_dead_letter OWNER TO {}", role),
    ]
    if sink.with_control:
        steps += _defaults("public", prefix, role)
    missing = "undefined_table OR invalid_schema_name OR undefined_object"
    for schema in sorted({table.rpartition(".")[0] for table in sink.tables} - {""}):
        in_schema = [_sql("GRANT USAGE ON SCHEMA {} TO {}", schema, role)]
        if sink.with_control:
            in_schema += _defaults(schema, prefix, role)
        steps += [_unless(missing, step) for step in in_schema]
    for table in sink.tables:
        written = _sql("GRANT SELECT, INSERT, UPDATE ON TABLE {} TO {}", tuple(table.split(".")), role)
        steps.append(_unless(missing, written))
        steps.append(_sequences_of(table, role))
    about = (
        f"What the sink {sink.name} may do: it owns feedq's tables, and writes to the tables that feeds name"
    )
    return _statements(about, *steps)


def _defaults(schema: str, prefix: str, role: str) -> list[sql.Composable]:
    """What a role may do with whatever the operator makes from now on: tables, and sequences of serial columns."""
    defaults = "ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA {} GRANT"
    return [
        _sql(f"{defaults} {granted} TO {{}}", role_name(prefix, Role.OPERATOR), schema, role)
        for granted in ("SELECT, INSERT, UPDATE ON TABLES", "USAGE ON SEQUENCES")
    ]


def _sequences_of(table: str, role: str) -> sql.Composable:
    """A statement that lets a role take numbers from the sequences of a table's defaults, in whatever schema.

    Whoever inserts needs no right on the sequence of an identity column.
    """
    name = ".".join('"{}"'.format(part.replace('"', '""')) for part in table.split("."))
    return sql.SQL(
        """DO $$ DECLARE found regclass; BEGIN
    FOR found IN SELECT DISTINCT s.oid FROM pg_attrdef d
        JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
            AND p.refclassid = 'pg_class'::regclass
        JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
        WHERE d.adrelid = to_regclass({})
    LOOP EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', found, {}); END LOOP;
END $$"""
    ).format(sql.Literal(name), sql.Literal(role))


# -- what is done --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Existing:
    """The roles, tables and rights that exist in a database."""

    database: str
    user: str
    is_superuser: bool
    owner: str | None
    """The owner of the schema `feedq`, if there is one."""
    roles: Collection[str]
    allowed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The functions of the protocol that each role may call; none as long as nothing was migrated."""


def inspect(c: Connection) -> Existing:
    asked = """
        SELECT current_database()::text AS database, current_user::text AS user,
            (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
            (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = %(schema)s) AS owner,
            ARRAY(SELECT rolname::text FROM pg_roles) AS roles, to_regclass(%(allowed)s) AS listed
    """
    found = c.execute(asked, {"schema": SCHEMA, "allowed": f"{PROTOCOL}.allowed"}).one()._asdict()
    if listed := found.pop("listed"):
        rows = c.execute(
            f"SELECT role, array_agg(function::text ORDER BY function) FROM {listed} GROUP BY role"
        )
        found["allowed"] = dict(rows)
    return Existing(**found)


def sink_tables(c: Connection, sink: str, *, with_control: bool) -> SinkTables:
    """A sink with the tables that its feeds name. The connection is to the control database, which may hold
    nothing yet."""
    if not c.execute("SELECT to_regclass('feedq.feed') IS NOT NULL").scalar_one():
        return SinkTables(sink, with_control=with_control)
    named = """
        SELECT DISTINCT sink->>'table' FROM feedq.feed
        WHERE lower(coalesce(sink->>'name', 'default')) = %(sink)s AND sink->>'table' IS NOT NULL ORDER BY 1
    """
    found = c.execute(named, {"sink": sink.lower()})
    return SinkTables(sink, tuple(table for (table,) in found if table.count(".") <= 1), with_control)


def script(
    c: Connection, prefix: str, sinks: Collection[SinkTables], passwords: Mapping[str, str]
) -> list[GrantStatement]:
    """Lists all that makes the roles of a control database, and of the sinks that are in it.

    ``passwords`` are by role, without the prefix; others keep theirs, or have none.
    """
    existing = inspect(c)
    names = [*map(str, Role), *(sink_role(sink.name) for sink in sinks)]
    # Rights are for those that will be there by then.
    then = replace(existing, roles={*existing.roles, *(role_name(prefix, name) for name in names)})
    return [
        *roles(prefix, names),
        *_passwords(c, prefix, passwords, names),
        *([] if existing.is_superuser else _own_membership(prefix, names)),
        *memberships(prefix, existing.database, sinks),
        *_keep_the_users_tables_apart(existing),
        *owning(prefix, existing),
        *rights(prefix, then),
        *(step for sink in sinks for step in sink_rights(prefix, existing.database, sink)),
    ]


def _keep_the_users_tables_apart(existing: Existing) -> list[GrantStatement]:
    """Keeps the tables of a user called like the schema in ``public``.

    PostgreSQL's default search path begins with the schema named like the user; by making a schema of that name we
    would silently move where this user's own tables go.
    """
    if SCHEMA not in existing.roles or not (existing.is_superuser or existing.user == SCHEMA):
        return []
    return _statements(
        "Tables of a user named like the schema are still created and found in public",
        _sql("ALTER ROLE {} IN DATABASE {} SET search_path = public", SCHEMA, existing.database),
    )


def sink_script(
    c: Connection, prefix: str, sink: SinkTables, passwords: Mapping[str, str], *, database: str
) -> list[GrantStatement]:
    """Lists all that makes the role of a sink in another ``database``, which the connection is not to."""
    name = sink_role(sink.name)
    return [
        *roles(prefix, [name]),
        *_passwords(c, prefix, passwords, [name]),
        *sink_rights(prefix, database, sink),
    ]


def _passwords(
    c: Connection, prefix: str, passwords: Mapping[str, str], names: Iterable[str]
) -> Iterator[GrantStatement]:
    for role in names:
        if role in passwords:
            name = role_name(prefix, role)
            # As the server would store it: a log of statements must not hold the password itself.
            secret = encrypt_password(passwords[role], name, scope=c.session, algorithm="scram-sha-256")
            yield GrantStatement(_sql("ALTER ROLE {} PASSWORD {}", name, sql.Literal(secret)))


def _own_membership(prefix: str, names: Iterable[str]) -> list[GrantStatement]:
    return _statements(
        "Without superuser rights, ownership can be given only to one's own roles",
        *(_sql("GRANT {} TO CURRENT_USER", role_name(prefix, name)) for name in names),
    )


def apply(url: str, statements: Iterable[GrantStatement], c: Connection) -> None:
    """Run them. Raises `FeedqError` where the role of ``url`` may not."""
    try:
        _run(c, statements)
    except InsufficientPrivilege as error:
        raise FeedqError(
            f"{mask_url(url)} may not do this ({str(error).strip().splitlines()[0]}): connect as a superuser, or "
            "as a role with CREATEROLE that owns the database, feedq's tables and those that feeds name"
        ) from error


def renew(c: Connection, prefix: str) -> None:
    """Give the roles their rights on what is there by now: the end of each migration.

    They get none unless the schema belongs to the role of migrations: that the server has such roles may be for
    the sake of another installation.
    """
    existing = inspect(c)
    _run(c, _keep_the_users_tables_apart(existing))
    if existing.owner != role_name(prefix, Role.MIGRATION):
        return
    if existing.user != existing.owner:
        # What somebody else has migrated would be theirs, and no longer the owner's to migrate.
        _run(c, owning(prefix, existing))
    _run(c, rights(prefix, existing))


def _run(c: Connection, statements: Iterable[GrantStatement]) -> None:
    with c.session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.text)
