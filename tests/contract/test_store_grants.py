"""Roles on a real server: what they may, what they may not, and that they keep up with migrations."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import psycopg2
import pytest
from psycopg2 import errors

from feedq.control.store import grants, migrate, protocol
from feedq.control.store.database import connect_once
from feedq.control.store.election import Election
from feedq.control.store.grants import Role
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import FeedSpec, NewWorker, TargetState
from feedq.core.schedule.spec import ScheduleSpec
from feedq.errors import Conflict, FeedqError, PermissionMissing, SchemaBehind, Unavailable
from feedq.local.postgres import Postgres
from feedq.verbs.diagnosis.checks import Check, Level
from feedq.verbs.diagnosis.server_checks import check_database
from tests.cluster import FEEDQ, ROLE_PASSWORD, SINK_ROLE, make_roles, url_of
from tests.contract.api_stage import query
from tests.waiting import until

SPEC = FeedSpec(
    name="acme/orders", connector="tcp", source={"url": "tcp://127.0.0.1:1"}, sink={"table": "acme.landed"}
)

JOB = ScheduleSpec.of({"name": "nightly", "task": "jobs.nightly", "every": 3600})


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> Iterator[str]:
    """A control database with roles, migrated by the role that is for it, with a feed."""
    made = postgres.create_database("grants")
    make_roles(made)
    migrate.upgrade(url_of(made, Role.MIGRATION))
    store = PostgresStore(url_of(made, Role.OPERATOR))
    store.feeds.add(SPEC)
    store.close()
    yield made
    postgres.drop_database("grants")


def apply_again(url: str) -> None:
    with connect_once(url) as connection:
        found = grants.sink_tables(connection, "default", with_control=True)
        grants.apply(url, grants.script(connection, grants.PREFIX, [found], {}), connection)


def test_no_role_is_a_superuser_or_may_make_others(url: str) -> None:
    assert (
        query(
            url,
            "SELECT rolname FROM pg_roles WHERE rolname LIKE 'feedq\\_%' "
            "AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)",
        )
        == []
    )


def test_a_migration_that_nobody_but_its_role_made_belongs_to_it(url: str) -> None:
    owned = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'feedq'"
    assert query(url, owned) == [("feedq_migration",)]


def allowed_to(url: str, role: str) -> set[object]:
    """What `roles.sql` lists for a role, and for those whose rights it has too."""
    listed = query(url, f"SELECT function FROM feedq_1.allowed WHERE role = '{role}'")
    found = {function for (function,) in listed}
    return found | allowed_to(url, grants.INHERITS[Role(role)]) if role in grants.INHERITS else found


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.MIGRATION])
def test_a_role_reads_every_table_and_may_change_none(url: str, role: Role) -> None:
    """By the server's own word, of every table, view and sequence."""
    name = grants.role_name(grants.PREFIX, role)
    writes = "'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'"
    found = query(
        url,
        f"SELECT c.relname, has_table_privilege('{name}', c.oid, 'SELECT'), "
        f"has_table_privilege('{name}', c.oid, {writes}) "
        f"OR has_any_column_privilege('{name}', c.oid, 'INSERT, UPDATE, REFERENCES') "
        "FROM pg_class c WHERE relnamespace IN ('feedq'::regnamespace, 'feedq_1'::regnamespace) "
        "AND relkind IN ('r', 'v')",
    )
    assert len(found) > len(columns_of(url))
    assert [entry for entry in found if entry[1:] != (True, False)] == []
    taken = (
        "SELECT sequencename FROM pg_sequences WHERE schemaname = 'feedq' "
        f"AND has_sequence_privilege('{name}', format('feedq.%I', sequencename), 'USAGE, UPDATE')"
    )
    assert query(url, taken) == []


@pytest.mark.parametrize("role", [*Role, SINK_ROLE])
def test_a_role_may_call_what_is_listed_for_it_and_nothing_else(url: str, role: str) -> None:
    name = grants.role_name(grants.PREFIX, role)
    functions = "FROM pg_proc WHERE pronamespace = 'feedq_1'::regnamespace"
    may = query(url, f"SELECT proname {functions} AND has_function_privilege('{name}', oid, 'EXECUTE')")
    every = query(url, f"SELECT proname {functions}")
    expected = {one for (one,) in every} if role == Role.MIGRATION else allowed_to(url, role)
    assert {one for (one,) in may} == expected
    assert bool(expected) == (role != SINK_ROLE)


def test_each_function_is_called_by_a_role_or_by_another_function(url: str) -> None:
    found = query(
        url,
        "SELECT proname, prosrc, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'feedq_1'::regnamespace",
    )
    listed = {function: set[object]() for (function,) in query(url, "SELECT function FROM feedq_1.allowed")}
    for function, role in query(url, "SELECT function, role FROM feedq_1.allowed"):
        listed[function].add(role)
    assert listed.keys() <= {name for name, *_ in found}
    for name, _, runs_as_owner, settings in found:
        roles = listed.get(name, set())
        called = [other for other, text, *_ in found if other != name and f"feedq_1.{name}(" in str(text)]
        assert roles or called, f"nobody may call {name}"
        # Who reads does so with its own rights; who writes, with the owner's, whatever its search path.
        assert runs_as_owner == bool(roles - {"reader"}), name
        assert runs_as_owner == ("search_path=pg_catalog, pg_temp" in str(settings)), name


def test_what_the_store_calls_is_listed_for_some_role(url: str) -> None:
    called = re.compile(r"\b(?:call|ask)\(\s*(?:\w+(?:\.\w+)?,\s*)?\"(\w+)\"|\b(?:feedq_1|SCHEMA\})\.(\w+)\(")
    store = Path(grants.__file__).parent
    found = {a or b for path in store.rglob("*.py") for a, b in called.findall(path.read_text())}
    listed = {function for (function,) in query(url, "SELECT function FROM feedq_1.allowed")}
    assert found == listed


REFUSED: dict[str, tuple[Role, Callable[[PostgresStore], object]]] = {
    "a worker declares a feed": (Role.WORKER, lambda store: store.feeds.add(SPEC)),
    "a beat changes a feed": (Role.BEAT, lambda store: store.feeds.set_target(SPEC.name, TargetState.PAUSED)),
    "Flower changes a feed": (
        Role.FLOWER,
        lambda store: store.feeds.set_target(SPEC.name, TargetState.PAUSED),
    ),
    "Flower declares a schedule": (Role.FLOWER, lambda store: store.jobs.schedules.add(JOB)),
    "a worker has a job run": (Role.WORKER, lambda store: store.jobs.schedules.trigger("nightly")),
    "a reader pauses a schedule": (Role.READER, lambda store: store.jobs.schedules.pause("nightly")),
    "the operator is a worker": (
        Role.OPERATOR,
        lambda store: store.workers.register(NewWorker(uuid4(), "w1", "node.w1", 1, "h", 1, "0"), ttl_s=5),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_process_with_the_role_of_another_is_told_what_it_may_not_and_what_to_do(
    url: str, what: str
) -> None:
    role, does = REFUSED[what]
    store = PostgresStore(url_of(url, role))
    try:
        with pytest.raises(PermissionMissing, match=r"permission denied for function.*feedq db grants"):
            does(store)
    finally:
        store.close()


def test_a_beat_ends_the_session_of_a_frozen_one(url: str) -> None:
    with ExitStack() as opened:
        frozen, other = (
            opened.enter_context(
                closing(
                    Election(url_of(url, Role.BEAT), holder=uuid4(), host="h", pid=1, ttl_s=0.1, settle_s=1.0)
                )
            )
            for _ in range(2)
        )
        assert frozen.campaign()
        until(other.end_frozen_leader, "the term is over, and the session ended")
        with pytest.raises(Unavailable):
            frozen.renew()


def test_a_worker_ends_the_transaction_of_a_job_whose_worker_is_gone(url: str) -> None:
    ((run,),) = query(
        url,
        """
        WITH gone AS (
            INSERT INTO feedq.worker (id, name, queue, capacity, host, pid, version, state, expires_at)
            VALUES (gen_random_uuid(), 'gone', 'q', 1, 'h', 1, '0', 'gone', feedq.clock()) RETURNING id
        ), job AS (
            INSERT INTO feedq.schedule (name, declaration) VALUES ('frozen', '{}') RETURNING id
        )
        INSERT INTO feedq.run (schedule_id, key, tick_at, due_at, rank_at, state, fence, job, worker_id)
        SELECT job.id, 'k', feedq.clock(), feedq.clock(), feedq.clock(), 'running', 7, '{}', gone.id FROM job, gone
        RETURNING id
        """,
    )
    store = PostgresStore(url_of(url, Role.WORKER))
    session = psycopg2.connect(url_of(url, Role.WORKER), application_name=f"feedq-job/{run}/7")
    with closing(store), closing(session), session.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert store.jobs.runs.expire(limit=10) == 1
        with pytest.raises(psycopg2.OperationalError):
            cursor.execute("SELECT 1")


def test_a_sink_makes_its_own_tables_and_knows_nothing_of_the_control_tables(url: str) -> None:
    sink = url_of(url, SINK_ROLE)
    query(sink, "CREATE TABLE public.landed (n int); INSERT INTO public.landed VALUES (1)")
    with pytest.raises(errors.InsufficientPrivilege):
        query(sink, "SELECT * FROM feedq.feed")


def test_a_sink_takes_numbers_from_the_sequences_of_the_tables_that_it_writes(url: str) -> None:
    query(
        url,
        "CREATE SCHEMA acme; CREATE SCHEMA numbers; CREATE SEQUENCE numbers.of_landed; "
        "CREATE TABLE acme.landed (a bigserial, b bigint DEFAULT nextval('numbers.of_landed'), "
        "c bigint GENERATED ALWAYS AS IDENTITY, n int) PARTITION BY LIST (n); "
        "CREATE TABLE acme.landed_1 PARTITION OF acme.landed FOR VALUES IN (1); CREATE SEQUENCE numbers.other; "
        "REVOKE ALL ON ALL TABLES IN SCHEMA acme FROM feedq_sink_default; "
        "REVOKE ALL ON ALL SEQUENCES IN SCHEMA acme, numbers FROM feedq_sink_default",
    )
    sink = url_of(url, SINK_ROLE)
    with pytest.raises(errors.InsufficientPrivilege):
        query(sink, "INSERT INTO acme.landed (n) VALUES (1)")
    apply_again(url)
    query(sink, "INSERT INTO acme.landed (n) VALUES (1)")
    with pytest.raises(errors.InsufficientPrivilege):
        query(sink, "SELECT nextval('numbers.other')")
    query(url, "DROP SCHEMA acme, numbers CASCADE")


@pytest.mark.parametrize("schema", ["public", "acme"])
def test_a_sink_writes_what_the_operator_makes_later_wherever_feeds_land(url: str, schema: str) -> None:
    query(url, "CREATE SCHEMA acme; GRANT USAGE, CREATE ON SCHEMA acme TO feedq_operator")
    apply_again(url)
    query(url_of(url, Role.OPERATOR), f"CREATE TABLE {schema}.made_later (id bigserial PRIMARY KEY, n int)")
    query(url_of(url, SINK_ROLE), f"INSERT INTO {schema}.made_later (n) VALUES (1)")
    query(url, "DROP SCHEMA acme CASCADE")


def test_tables_that_declared_feeds_name_may_be_written_by_their_sink(url: str) -> None:
    query(url, "CREATE SCHEMA acme; CREATE TABLE acme.landed (n int); CREATE TABLE acme.other (n int)")
    query(url, "REVOKE ALL ON acme.landed, acme.other FROM feedq_sink_default")
    apply_again(url)
    sink = url_of(url, SINK_ROLE)
    query(sink, "INSERT INTO acme.landed VALUES (1)")
    for statement in ("DELETE FROM acme.landed", "INSERT INTO acme.other VALUES (1)"):
        with pytest.raises(errors.InsufficientPrivilege):
            query(sink, statement)


def test_a_table_that_a_migration_adds_is_readable_and_its_owner_is_right_whoever_migrates(url: str) -> None:
    query(url, "CREATE TABLE feedq.added (n int)")  # as a superuser would, in the course of a migration
    with pytest.raises(errors.InsufficientPrivilege):
        query(url_of(url, Role.READER), "SELECT * FROM feedq.added")
    migrate.upgrade(url)
    assert query(url_of(url, Role.READER), "SELECT * FROM feedq.added") == []
    query(url_of(url, Role.MIGRATION), "DROP TABLE feedq.added")


def test_roles_of_another_installation_get_nothing_here(postgres: Postgres, url: str) -> None:
    """The server has such roles; this database was never given to them."""
    alone = postgres.create_database("alone")
    try:
        migrate.upgrade(alone)
        with pytest.raises(errors.InsufficientPrivilege):
            query(url_of(alone, Role.READER), "SELECT * FROM feedq.feed")
    finally:
        postgres.drop_database("alone")


def test_a_database_that_was_used_without_roles_is_handed_over_with_all_that_is_in_it(
    postgres: Postgres,
) -> None:
    old = postgres.create_database("old")
    try:
        migrate.upgrade(old)
        store = PostgresStore(old)
        store.feeds.add(SPEC)
        worker = NewWorker(uuid4(), "w1", "node.w1", capacity=1, host="h", pid=1, version="0", labels={})
        store.workers.register(worker, ttl_s=60)
        store.close()
        query(old, "CREATE TABLE feedq_checkpoint (n int); INSERT INTO feedq_checkpoint VALUES (1)")
        make_roles(old)
        assert query(url_of(old, Role.READER), "SELECT name FROM feedq.feed") == [("acme/orders",)]
        assert query(
            url_of(old, SINK_ROLE),
            "ALTER TABLE feedq_checkpoint ADD COLUMN m int; SELECT n FROM feedq_checkpoint",
        )
        assert migrate.upgrade(url_of(old, Role.MIGRATION)) == 0
        left = """
            WITH ours AS (SELECT oid FROM pg_namespace WHERE nspname IN ('feedq', 'feedq_1'))
            SELECT oid::regclass::text FROM pg_class
            WHERE relnamespace IN (TABLE ours) AND relowner <> 'feedq_migration'::regrole
            UNION ALL SELECT oid::regprocedure::text FROM pg_proc
            WHERE pronamespace IN (TABLE ours) AND proowner <> 'feedq_migration'::regrole
        """
        assert query(old, left) == []
    finally:
        postgres.drop_database("old")


def test_who_may_not_make_roles_is_told_so_and_changes_nothing(url: str) -> None:
    lowly = url_of(url, Role.OPERATOR)
    with connect_once(lowly) as connection:
        steps = grants.script(connection, "other_", [], {})
        with pytest.raises(FeedqError, match=r"may not do this .*: connect as a superuser"):
            grants.apply(lowly, steps, connection)
    assert query(url, "SELECT 1 FROM pg_roles WHERE rolname LIKE 'other\\_%'") == []


def test_a_role_that_owns_the_database_and_makes_roles_will_do(postgres: Postgres) -> None:
    """As administrators of hosted servers are: no superuser."""
    managed = postgres.create_database("managed")
    name = f"admin_{uuid4().hex[:8]}"
    try:
        query(
            managed,
            f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'as-a-role'; ALTER DATABASE managed OWNER TO {name}",
        )
        query(managed, f"ALTER SCHEMA public OWNER TO {name}")
        admin = url_of(managed, "x").replace("feedq_x", name)
        migrate.upgrade(admin)
        with connect_once(admin) as connection:
            sink = grants.sink_tables(connection, "default", with_control=True)
            grants.apply(
                admin, grants.script(connection, "managed_", [sink], {"reader": "as-a-role"}), connection
            )
        reader = url_of(managed, "reader").replace("feedq_reader", "managed_reader")
        assert query(reader, "SELECT count(*) FROM feedq.feed") == [(0,)]
    finally:
        postgres.drop_database("managed")
        roles = ", ".join(f"managed_{role}" for role in (*Role, SINK_ROLE))
        query(postgres.url(), f"DROP ROLE {roles}; DROP ROLE {name}")


def test_what_the_command_prints_makes_the_roles_and_shows_no_password(postgres: Postgres) -> None:
    printed = postgres.create_database("printed")
    variables = {
        "FEEDQ_DATABASE_URL": printed,
        "FEEDQ_ROLE_PREFIX": "printed_",
        "FEEDQ_ROLE_PASSWORDS__READER": ROLE_PASSWORD,
        "FEEDQ_SINKS__AWAY": "postgresql://feeds:secret@127.0.0.1:1/away",
        "FEEDQ_SINKS__FILES": "sqlite:////nowhere",
        "PATH": os.defpath,
    }
    try:
        migrate.upgrade(printed)
        command = [str(FEEDQ), "db", "grants"]
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
        here, away = ran.stdout.split("-- To be run in the database of sink away")
        assert 'GRANT CONNECT, TEMPORARY ON DATABASE "away" TO "printed_sink_away"' in away
        assert "printed_sink_files" not in ran.stdout
        assert [word for word in (ROLE_PASSWORD, "secret") if word in ran.stdout] == []
        query(printed, here)
        reader = url_of(printed, "reader").replace("feedq_reader", "printed_reader")
        assert query(reader, "SELECT count(*) FROM feedq.feed") == [(0,)]
    finally:
        postgres.drop_database("printed")
        query(postgres.url(), "DROP ROLE " + ", ".join(f"printed_{role}" for role in (*Role, SINK_ROLE)))


PAGE = Path(__file__).parents[2] / "docs/reference/control-tables.md"


def columns_of(url: str) -> dict[str, set[str]]:
    """The columns of every control table."""
    sql = """
        SELECT c.relname, array_agg(a.attname::text) FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relkind = 'r' AND c.relnamespace = 'feedq'::regnamespace AND c.relname <> 'alembic_version'
        GROUP BY c.relname
    """
    with connect_once(url) as connection:
        return {table: set(names) for table, names in connection.execute(sql)}


def test_every_control_column_is_documented_and_no_other(control_database_url: str) -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    documented = {}
    for tables, columns in re.findall(r"^\| (`.*`) \| (`.*?`) \|", sections.pop("Bookkeeping"), re.MULTILINE):
        for table in re.findall(r"`(\w+)`", tables):
            documented[table] = set(re.findall(r"`(\w+)`", columns))
    for table, section in sections.items():
        # The first table of a section; others explain states and reasons.
        rows = section.partition("| column | meaning |")[2].partition("\n\n")[0]
        cells = re.findall(r"^\| (`[^|]*`) +\|", rows, re.MULTILINE)
        documented[table] = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert documented == columns_of(control_database_url)


def test_indexes_and_constraints_are_valid(control_database_url: str) -> None:
    sql = """
        SELECT x.indexrelid::regclass::text FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
        WHERE c.relnamespace = 'feedq'::regnamespace AND NOT x.indisvalid
        UNION ALL
        SELECT conname FROM pg_constraint WHERE connamespace = 'feedq'::regnamespace AND NOT convalidated
    """
    with connect_once(control_database_url) as connection:
        assert connection.execute(sql) == []


def schema_of(protocol_: str) -> str:
    return f"CREATE SCHEMA {protocol_}; COMMENT ON SCHEMA {protocol_} IS '{protocol.MARK}'"


def migrations_check(url: str) -> Check:
    (check,) = (c for c in check_database(url, workers=0) if c.name == "migrations")
    return check


def test_a_database_that_was_not_migrated_is_said_to_be_behind(database_url: str) -> None:
    with pytest.raises(
        SchemaBehind, match=r"is at none, 1 pending up to 0001 with feedq_1: run `feedq db upgrade`"
    ):
        migrate.require_current(database_url)
    assert migrate.upgrade(database_url) == 1
    migrate.require_current(database_url)
    assert migrate.upgrade(database_url) == 0


@pytest.mark.parametrize(
    "newer",
    ["UPDATE feedq.alembic_version SET version_num = '0999'", schema_of("feedq_2")],
    ids=["tables", "protocol"],
)
def test_a_database_of_a_newer_release_stops_no_worker_and_is_left_alone(
    database_url: str, newer: str
) -> None:
    migrate.upgrade(database_url)
    with connect_once(database_url) as connection:
        connection.execute(newer)
    before = migrate.status(database_url)
    migrate.require_current(database_url)
    assert migrations_check(database_url).level is Level.WARN
    with pytest.raises(Conflict, match="made by a newer release of feedq than this one") as refused:
        migrate.upgrade(database_url)
    assert "nothing was changed" in str(refused.value)
    assert migrate.status(database_url) == before


def test_a_process_whose_protocol_a_newer_release_has_dropped_says_so(database_url: str) -> None:
    migrate.upgrade(database_url)
    with connect_once(database_url) as connection:
        connection.execute(f"DROP SCHEMA feedq_1 CASCADE; {schema_of('feedq_3')}")
    says = "with feedq_3, made by a newer release of feedq than this one, which knows 0001 and needs feedq_1"
    with pytest.raises(SchemaBehind, match=f"{says}: start the newer release here as well"):
        migrate.require_current(database_url)
    assert migrations_check(database_url).level is Level.FAIL


def test_the_protocol_before_stays_and_those_before_that_go(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(database_url)
    made = protocol.definition()
    for version in (2, 3):
        monkeypatch.setattr(protocol, "VERSION", version)
        monkeypatch.setattr(protocol, "definition", lambda to=f"feedq_{version}": made.replace("feedq_1", to))
        assert migrate.upgrade(database_url) == 1
        assert migrate.upgrade(database_url) == 0
        assert migrate.status(database_url).protocols == (version - 1, version)


def test_a_schema_of_somebody_else_is_no_protocol(database_url: str) -> None:
    with connect_once(database_url) as connection:
        connection.execute("CREATE SCHEMA feedq_2024")
    migrate.upgrade(database_url)
    assert migrate.status(database_url).protocols == (1,)
    assert migrate.upgrade(database_url) == 0


def test_triggers_belong_to_the_tables_and_call_no_version_of_the_protocol(control_database_url: str) -> None:
    sql = """
        SELECT tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid
        WHERE NOT tgisinternal AND (pronamespace <> 'feedq'::regnamespace OR prosrc ~ 'feedq_[0-9]')
    """
    with connect_once(control_database_url) as connection:
        assert connection.execute(sql) == []


def test_two_that_migrate_at_once_do_it_once(database_url: str) -> None:
    at_once = threading.Barrier(3)

    def upgrade() -> int:
        at_once.wait(10)
        return migrate.upgrade(database_url)

    with ThreadPoolExecutor(max_workers=3) as threads:
        done = [job.result(60) for job in [threads.submit(upgrade) for _ in range(3)]]
    assert sorted(done) == [0, 0, 1]


def test_whoever_waits_too_long_for_another_to_migrate_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_PATIENCE_S", 0.2)
    with connect_once(database_url) as other:
        other.execute("SELECT pg_advisory_lock(%(key)s)", {"key": migrate.MIGRATION_LOCK})
        with pytest.raises(Conflict, match=r"another process has been migrating it for 0\.2 s"):
            migrate.upgrade(database_url)
    assert migrate.upgrade(database_url) == 1
