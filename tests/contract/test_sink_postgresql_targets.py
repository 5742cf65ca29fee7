"""Tables that are there, are not there, or are not as they must be: made, used, or complained about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg2
import pytest
from pydantic import SecretStr

from feedq.control.store import migrate
from feedq.control.store.feed_listing import SinkUse
from feedq.core.model import Feed, FeedSpec, Identity
from feedq.errors import InvalidInput, SinkUnavailable
from feedq.settings import Settings
from feedq.sinks.base import Fenced, FenceRequest, OnConflict, Target, Unusable, Written
from feedq.sinks.mapping import ColumnType, sources_of
from feedq.sinks.postgresql import PostgresSink
from feedq.sinks.sql import SqlSink
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.server_checks import check_sinks
from tests.contract.sink_harness import PostgresSinkHarness, SqliteHarness
from tests.contract.sink_stage import PATIENCE_S, RAW, batch, fence, fenced, request, write
from tests.fakes.sink import IDENTITY

TYPED = Target("orders", "json", sources_of({"seq": "/seq", "note": "/note"}))


@pytest.fixture
def harness(postgresql_sink: PostgresSinkHarness) -> PostgresSinkHarness:
    return postgresql_sink


@pytest.fixture
def lowly(harness: PostgresSinkHarness) -> Iterator[PostgresSink]:
    """A sink whose role may use the schema and nothing else; feedq's own tables are there."""
    fence(harness.sink(), 99, 1, Target("other", "json"))
    name = f"Lowly-{uuid4().hex[:8]}"
    role = f'"{name}"'
    harness.query(
        f"CREATE ROLE {role} LOGIN PASSWORD 'lowly'; GRANT USAGE ON SCHEMA public TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON feedq_checkpoint, feedq_dead_letter TO {role}"
    )
    parts = urlsplit(harness.url)
    url = urlunsplit(parts._replace(netloc=f"{name}:lowly@{parts.hostname}:{parts.port}"))
    sink = harness.sink(url=url)
    sink.role = role  # type: ignore[attr-defined] # quoted, for the statements of the tests
    yield sink
    sink.close()
    harness.query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def unusable(sink: PostgresSink, target: Target) -> str:
    """The complaint of a fence, which `check` must share."""
    (outcome,) = sink.fence([request(1, 1, target)], lock_timeout_s=PATIENCE_S)
    assert isinstance(outcome, Unusable), outcome
    assert sink.check(target) is not None
    return outcome.error


# -- making them -------------------------------------------------------------------------------------


def test_the_default_table_is_made_in_its_schema_and_quoted(harness: PostgresSinkHarness) -> None:
    target = Target('Sch"ema.we"ird; drop', "json")
    sink = harness.sink()
    assert sink.check(target) is None
    fence(sink, 1, 1, target)
    assert sink.check(target) is None
    sink.write([write(1, 1, batch(b"1"), target=target)])
    assert harness.query('SELECT feed, payload FROM "Sch""ema"."we""ird; drop"') == [("feed/1", 1)]


def test_a_partitioned_table_is_as_good_as_any(harness: PostgresSinkHarness) -> None:
    harness.query(
        "CREATE TABLE orders (seq bigint, note text) PARTITION BY RANGE (seq);"
        "CREATE TABLE orders_low PARTITION OF orders FOR VALUES FROM (0) TO (10)"
    )
    sink = fenced(harness, TYPED)
    written = sink.write([write(1, 1, batch(b'{"seq": 1}', b'{"seq": 99}'), target=TYPED)])
    assert (written.landed, written.dead) == ({(1, 1): 1}, {(1, 1): 1})
    assert "no partition" in harness.sink().dead_letters()[0].error


# -- complaining about them --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "target", "words"),
    [
        ("SELECT 1", TYPED, ["table 'orders' does not exist"]),
        ("CREATE TABLE orders (seq bigint)", TYPED, ["no column 'note'", "has 'seq'"]),
        ("CREATE VIEW orders AS SELECT 1 AS seq, '' AS note", TYPED, ["'orders' is not a table"]),
        (
            "CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload text)",
            RAW,
            ["'payload' is text, and must be jsonb for source.format json"],
        ),
        (
            "CREATE TABLE orders (seq bigint, note text, at timestamptz NOT NULL)",
            TYPED,
            ["'at' is NOT NULL without a default"],
        ),
        (
            "CREATE TABLE orders (seq bigint, note text); CREATE UNIQUE INDEX ON orders (seq) WHERE seq > 1",
            Target("orders", "json", TYPED.columns, ("seq",)),
            ["no unique index on exactly (seq)", "CREATE UNIQUE INDEX ON public.orders (seq)"],
        ),
        (
            "CREATE TABLE orders (note text, seq bigint UNIQUE DEFERRABLE)",
            Target("orders", "json", TYPED.columns, ("seq",)),
            ["no unique index on exactly (seq)"],
        ),
        ("SELECT 1", Target("feedq_checkpoint", "json"), ["feedq's own"]),
        (
            "SELECT 1",
            Target("pg_description", "json", sources_of({"description": "/d"})),
            ["leads to pg_catalog.pg_description", "belongs to the database itself"],
        ),
        (
            "CREATE SCHEMA feedq; CREATE TABLE feedq.feed (name text); DO $$ BEGIN EXECUTE format("
            "'ALTER DATABASE %I SET search_path = public, feedq', current_database()); END $$",
            Target("feed", "json", sources_of({"name": "/n"})),
            ["leads to feedq.feed", "one of feedq's own"],
        ),
    ],
)
def test_a_landing_that_cannot_work_says_what_and_where(
    harness: PostgresSinkHarness, ddl: str, target: Target, words: list[str]
) -> None:
    harness.query(ddl)
    error = unusable(harness.sink(), target)
    for word in words:
        assert word in error


def test_a_problem_that_was_mended_is_seen_by_the_next_fence(harness: PostgresSinkHarness) -> None:
    sink = harness.sink()
    unusable(sink, TYPED)
    harness.query("CREATE TABLE orders (seq bigint)")
    assert "no column 'note'" in unusable(sink, TYPED)
    harness.query("ALTER TABLE orders ADD note text")
    fence(sink, 1, 1, TYPED)


@pytest.fixture
def owner(harness: PostgresSinkHarness) -> Iterator[str]:
    """A role that makes the tables, quoted."""
    role = f'"Owner {uuid4().hex[:8]}"'
    harness.query(f"CREATE ROLE {role}; GRANT USAGE, CREATE ON SCHEMA public TO {role}")
    harness.query(
        f"DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
    )
    yield role
    harness.query(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def refused(sink: PostgresSink, target: Target, record: bytes = b'{"seq": 1}') -> str | None:
    """Why a feed cannot land, as its status and `feedq feed test` say alike; None once it has landed."""
    one = write(1, 1, batch(record), target=target)
    (outcome,) = sink.fence([request(1, 1, target)], lock_timeout_s=PATIENCE_S)
    if isinstance(outcome, Unusable):
        error = outcome.error
        assert sink.check(target) == error
    elif (written := sink.write([one])).landed:
        return None
    else:
        error = written.unusable[1, 1]
    with pytest.raises(InvalidInput) as tested:
        sink.preview(one)
    assert str(tested.value) == error
    return error


def permit(harness: PostgresSinkHarness, error: str) -> str:
    """Have whom an error names run the GRANT that it ends with; returns it."""
    found = re.search(r'have ("[^"]+"|\w+) run (GRANT .* TO "Lowly-\w+")$', error)
    assert found, error
    harness.query(f"SET ROLE {found[1]}; {found[2]}")
    return found[2].rpartition(" TO ")[0]


AUDITED = """
CREATE TABLE orders (seq bigint, note text); GRANT INSERT ON orders TO PUBLIC;
CREATE TABLE audit (id serial, seq bigint); CREATE TABLE tally (n bigint);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit (seq) VALUES (NEW.seq); UPDATE tally SET n = n + 1; RETURN NEW;
END $$;
CREATE TRIGGER audit BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION audit()
"""


@pytest.mark.parametrize(
    ("ddl", "target", "grants"),
    [
        (
            "CREATE TABLE orders (id bigserial, seq bigint, note text)",
            TYPED,
            ["GRANT INSERT ON public.orders", "GRANT USAGE ON SEQUENCE public.orders_id_seq"],
        ),
        (
            "CREATE TABLE orders (seq bigint UNIQUE, note text)",
            Target("orders", "json", TYPED.columns, ("seq",), on_conflict=OnConflict.UPDATE),
            [
                "GRANT INSERT ON public.orders",
                "GRANT SELECT (seq) ON public.orders",
                "GRANT SELECT, UPDATE ON public.orders",
            ],
        ),
        (
            'CREATE SCHEMA "Of ann"; CREATE SEQUENCE "Of ann"."order"; CREATE TABLE "Of ann"."table" '
            '(n bigint DEFAULT nextval(\'"Of ann"."order"\'), seq bigint, note text)',
            Target("Of ann.table", "json", TYPED.columns),
            [
                'GRANT USAGE ON SCHEMA "Of ann"',
                'GRANT INSERT ON "Of ann"."table"',
                'GRANT USAGE ON SEQUENCE "Of ann"."order"',
            ],
        ),
        (
            AUDITED,
            TYPED,
            [
                "GRANT INSERT ON public.audit",
                "GRANT USAGE ON SEQUENCE public.audit_id_seq",
                "GRANT SELECT, UPDATE ON public.tally",
            ],
        ),
        (
            "CREATE FUNCTION now_here() RETURNS text LANGUAGE sql AS 'SELECT now()::text'; REVOKE ALL ON FUNCTION "
            "now_here FROM PUBLIC; CREATE TABLE orders (seq bigint, note text, at text DEFAULT now_here()); "
            "GRANT INSERT ON orders TO PUBLIC",
            TYPED,
            ["GRANT EXECUTE ON FUNCTION public.now_here()"],
        ),
    ],
    ids=["serial", "update", "quoted", "trigger", "function"],
)
def test_each_right_that_is_missing_names_its_grant_and_owner_until_records_land(
    harness: PostgresSinkHarness, lowly: PostgresSink, owner: str, ddl: str, target: Target, grants: list[str]
) -> None:
    harness.query(f"SET ROLE {owner}; {ddl}")
    given: list[str] = []
    while (error := refused(lowly, target)) is not None and len(given) < 5:
        assert f"have {owner} run " in error
        given.append(permit(harness, error))
    assert given == grants


def test_doctor_says_the_same_before_the_feed_runs(
    harness: PostgresSinkHarness, lowly: PostgresSink, owner: str
) -> None:
    harness.query(f"SET ROLE {owner}; CREATE TABLE orders (id bigserial, seq bigint)")
    settings = Settings(database_url=harness.url, sinks={"default": SecretStr(lowly._url)})
    spec = FeedSpec(
        name="a/b",
        connector="tcp",
        source={"url": "tcp://127.0.0.1:1"},
        sink={"table": "orders", "columns": {"seq": "/seq"}},
    )
    now = datetime.now(UTC)
    feed = Feed(1, spec, 1, now, now, Identity(uuid4(), uuid4()))
    uses = [SinkUse("default", 1, [feed])]
    ours = feed.identity.installation, {str(feed.identity.feed)}

    harness.query("DROP TABLE feedq_checkpoint, feedq_dead_letter")
    (own,) = check_sinks(settings, uses, ours)
    assert (own.name, own.level) == ("sink default", Level.FAIL)
    assert permit(harness, own.detail) == "GRANT CREATE ON SCHEMA public"

    def tables() -> str | None:
        found = {check.name: check for check in check_sinks(settings, uses, ours)}
        assert found["sink default"].level is Level.OK
        return found["tables on default"].detail if "tables on default" in found else None

    given: list[str] = []
    while (detail := tables()) is not None and len(given) < 3:
        given.append(permit(harness, detail))
    assert given == ["GRANT INSERT ON public.orders", "GRANT USAGE ON SEQUENCE public.orders_id_seq"]


def test_columns_that_only_the_owner_may_add_are_for_the_owner_to_add(
    harness: PostgresSinkHarness, lowly: PostgresSink
) -> None:
    harness.query("CREATE TABLE orders (seq bigint)")
    with pytest.raises(InvalidInput, match=r"have its owner run ALTER TABLE public\.orders ADD COLUMN note"):
        lowly.add_columns(TYPED, {"note": ColumnType.TEXT})


def test_what_no_grant_mends_names_none(harness: PostgresSinkHarness, lowly: PostgresSink) -> None:
    harness.query('CREATE TABLE orders (seq bigint, note text); CREATE TABLE "row" (n int)')
    harness.query("ALTER TABLE orders ENABLE ROW LEVEL SECURITY; GRANT INSERT ON orders TO PUBLIC")
    error = refused(lowly, TYPED)
    assert error is not None
    assert ("row-level security" in error, "GRANT" in error) == (True, False)


def test_what_may_not_be_made_names_the_grant(harness: PostgresSinkHarness, lowly: PostgresSink) -> None:
    keyed = Target("mine", "json", key=("feed", "epoch"))
    for target, grant in (
        (Target("mine", "json"), "GRANT CREATE ON SCHEMA public"),
        (Target("nowhere.mine", "json"), "GRANT CREATE ON DATABASE contract_of_the_sinks"),
    ):
        error = unusable(lowly, target)
        assert "does not exist and cannot be created" in error
        assert permit(harness, error) == grant
        assert refused(lowly, target, b"1") is None
    database = "DATABASE contract_of_the_sinks"
    harness.query(f"CREATE UNIQUE INDEX ON mine (feed, epoch); REVOKE TEMPORARY ON {database} FROM PUBLIC")
    try:
        why = refused(lowly, keyed, b"1")
        assert why is not None
        assert permit(harness, why) == f"GRANT TEMPORARY ON {database}"
    finally:
        harness.query(f"GRANT TEMPORARY ON {database} TO PUBLIC")


def test_own_tables_that_may_not_be_made_or_written_make_the_sink_unavailable(
    harness: PostgresSinkHarness, lowly: PostgresSink
) -> None:
    def why() -> str:
        with pytest.raises(SinkUnavailable) as refused:
            lowly.fence([request(1, 1)], lock_timeout_s=1)
        return str(refused.value)

    harness.query("DROP TABLE feedq_checkpoint, feedq_dead_letter")
    assert permit(harness, why()) == "GRANT CREATE ON SCHEMA public"
    lowly.fence([request(1, 1)], lock_timeout_s=1)
    harness.query("ALTER TABLE feedq_checkpoint OWNER TO CURRENT_USER")
    assert permit(harness, why()) == "GRANT SELECT, INSERT, UPDATE, DELETE ON public.feedq_checkpoint"
    lowly.fence([request(1, 1)], lock_timeout_s=1)


# -- what changes under a running feed ---------------------------------------------------------------


def test_a_permission_taken_away_stops_the_feed(harness: PostgresSinkHarness, lowly: PostgresSink) -> None:
    role = lowly.role  # type: ignore[attr-defined]
    harness.query(f"CREATE TABLE orders (seq bigint, note text); GRANT INSERT ON orders TO {role}")
    fence(lowly, 1, 1, TYPED)
    harness.query(f"REVOKE INSERT ON orders FROM {role}")
    written = lowly.write([write(1, 1, batch(b'{"seq":1}'), target=TYPED)])
    assert f"GRANT INSERT ON public.orders TO {role}" in written.unusable[1, 1]


def test_a_trigger_that_fails_on_names_for_one_record_costs_that_record_only(
    harness: PostgresSinkHarness,
) -> None:
    harness.query(
        "CREATE TABLE orders (seq bigint, note text);"
        "CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.note = 'trip' THEN PERFORM no_such_function(); END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER trip BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION trip()"
    )
    sink = harness.sink()
    sink.fence([request(1, 1, TYPED), request(2, 1, TYPED), request(3, 1)], lock_timeout_s=PATIENCE_S)
    written = sink.write(
        [
            write(1, 1, batch(b'{"seq": 1}', b"bad"), target=TYPED),
            write(2, 1, batch(b'{"seq": 2, "note": "trip"}'), target=TYPED),
            write(3, 1, batch(b"1")),
        ]
    )
    assert written == Written({(1, 1): 1, (2, 1): 0, (3, 1): 1}, {(1, 1): 1, (2, 1): 1}, (), {})
    assert "no_such_function" in written.errors[2, 1]


@pytest.mark.parametrize(
    ("alter", "shown"),
    [
        ("ALTER COLUMN c TYPE text USING c #>> '{}'", [("x",), ("y",)]),
        ("ADD COLUMN d int", [('"x"',), ('"y"',)]),
        ("ADD COLUMN d int NOT NULL DEFAULT 1", [('"x"',), ('"y"',)]),
    ],
)
def test_a_table_that_changes_under_a_stream_gets_right_values(
    harness: PostgresSinkHarness, alter: str, shown: list[tuple[str]]
) -> None:
    harness.query("CREATE TABLE kinds (n int, c jsonb)")
    target = Target("kinds", "json", sources_of({"n": "/n", "c": "/c"}))
    sink = fenced(harness, target)
    assert sink.write([write(1, 1, batch(b'{"n": 1, "c": "x"}'), target=target)], briefly=True).landed
    harness.query(f"ALTER TABLE kinds {alter}")
    written = sink.write([write(1, 1, batch(b'{"n": 2, "c": "y"}'), target=target)], briefly=True)
    assert written.landed == {(1, 1): 1}
    assert harness.query("SELECT c::text FROM kinds ORDER BY n") == shown


@pytest.mark.parametrize(
    "change", ["DROP INDEX keyed", "DROP INDEX keyed; CREATE UNIQUE INDEX ON orders (sku)"]
)
def test_a_key_that_loses_its_index_under_a_stream_lands_nothing_twice(
    harness: PostgresSinkHarness, change: str
) -> None:
    """A straight COPY meets no violated constraint any more."""
    harness.query("CREATE TABLE orders (seq bigint, sku text); CREATE UNIQUE INDEX keyed ON orders (seq)")
    target = Target("orders", "json", sources_of({"seq": "/seq", "sku": "/sku"}), ("seq",))
    sink = fenced(harness, target)

    def land() -> Written:
        return sink.write([write(1, 1, batch(b'{"seq": 1, "sku": "a"}'), target=target)], briefly=True)

    assert land().landed == {(1, 1): 1}
    harness.query(change)
    for _ in range(2):
        assert "CREATE UNIQUE INDEX" in land().unusable[1, 1]
    assert harness.query("SELECT seq FROM orders") == [(1,)]
    harness.query("CREATE UNIQUE INDEX keyed ON orders (seq)")
    assert land().landed == {(1, 1): 1}
    assert harness.query("SELECT seq FROM orders") == [(1,)]


def test_a_default_table_whose_payload_changes_its_type_never_takes_the_old_form(
    harness: PostgresSinkHarness,
) -> None:
    sink = fenced(harness)
    sink.write([write(1, 1, batch(b'{"a": 1}'))], briefly=True)
    harness.query("ALTER TABLE raw ALTER COLUMN payload TYPE json USING payload::json")
    assert sink.write([write(1, 1, batch(b'{"a": 2}'))], briefly=True).landed == {(1, 1): 1}
    assert harness.query("SELECT payload::text FROM raw ORDER BY 1") == [('{"a": 1}',), ('{"a": 2}',)]
    harness.query("ALTER TABLE raw ALTER COLUMN payload TYPE text USING payload::text")
    written = sink.write([write(1, 1, batch(b'{"a": 3}'))], briefly=True)
    assert "must be jsonb" in written.unusable[1, 1]
    assert harness.query("SELECT count(*) FROM raw") == [(2,)]


def test_a_user_named_like_the_control_schema_lands_in_public(database_url: str) -> None:
    migrate.upgrade(database_url)
    default_path = database_url + "?options=-csearch_path%3D%22%24user%22%2Cpublic"
    with psycopg2.connect(default_path) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_user, current_schema()")
        assert cursor.fetchone() == ("feedq", "feedq"), (
            "the premise: this user's first schema is the control's"
        )
    sink = PostgresSink(default_path, environment="test", worker_id=uuid4(), role="fencer")
    request = FenceRequest(1, "a", 1, Target("landed", "json"), IDENTITY)
    (outcome,) = sink.fence([request], lock_timeout_s=1.0)
    sink.close()
    assert isinstance(outcome, Fenced)
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('landed', 'feedq_checkpoint')"
        )
        assert cursor.fetchall() == [("public",)]


def test_migrating_does_not_move_where_the_users_own_tables_go(database_url: str) -> None:
    migrate.upgrade(database_url)
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        assert cursor.fetchone() == ("public",)


# -- whose checkpoints a sink has --------------------------------------------------------------------

AT = datetime(2026, 1, 1, tzinfo=UTC)
OURS, THEIRS = uuid4(), uuid4()


def feed(number: int, installation: UUID = OURS) -> Feed:
    spec = FeedSpec(name=f"f/{number}", connector="tcp", source={}, sink={"name": "own", "table": "raw"})
    return Feed(number, spec, 1, AT, AT, Identity(uuid4(), installation))


def ours_of(*feeds: Feed) -> tuple[list[SinkUse], tuple[UUID, set[str]]]:
    """What `check_sinks` is told of the feeds of this installation."""
    return [SinkUse("own", len(feeds), feeds)], (OURS, {str(one.identity.feed) for one in feeds})


def land(url: str, *feeds: Feed) -> None:
    sink = SqlSink(url, environment="default", worker_id=uuid4(), role="fencer")
    requests = [FenceRequest(one.id, one.name, 1, RAW, one.identity) for one in feeds]
    sink.fence(requests, lock_timeout_s=PATIENCE_S)
    sink.close()


@pytest.mark.parametrize("lately", [True, False])
def test_doctor_finds_strangers_orphans_and_another_installation(
    sqlite_sink: SqliteHarness, lately: bool
) -> None:
    ours, gone, theirs = feed(1), feed(2), feed(3, THEIRS)
    land(sqlite_sink.url, ours, gone, theirs)
    if not lately:
        before = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
        sqlite_sink.query("UPDATE feedq_checkpoint SET updated_at = ?", [before])
    settings = Settings(sinks={"own": SecretStr(sqlite_sink.url)})
    found = {check.name: check for check in check_sinks(settings, *ours_of(ours)) if "own" in check.name}
    assert found["sink own"].level is Level.OK
    other = found["others on own" if lately else "strangers on own"]
    assert other.level is Level.WARN
    assert str(THEIRS) in other.detail
    assert "f/3" in other.detail
    assert ("FEEDQ_ENVIRONMENT" if lately else "feedq feed adopt") in other.advice
    assert "f/2" in found["orphans on own"].detail
    assert len(found) == 3


def test_doctor_says_nothing_of_a_sink_that_is_all_our_own(sqlite_sink: SqliteHarness) -> None:
    ours = feed(1)
    land(sqlite_sink.url, ours)
    settings = Settings(sinks={"own": SecretStr(sqlite_sink.url)})
    assert [c.name for c in check_sinks(settings, *ours_of(ours)) if "own" in c.name] == ["sink own"]
