"""Records into PostgreSQL: formats, columns, keys, bad ones among good, and dead letters tried again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from feedq.connectors.base import ConnectorOptions
from feedq.core.model import JSON
from feedq.errors import SinkUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.csvtext import CsvFormat
from feedq.records.framing import RecordFormat
from feedq.sinks.base import OnConflict, Target, parse_sink, target_of
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import PostgresSinkHarness
from tests.contract.sink_stage import PATIENCE_S, batch, fence, fenced, lines, write
from tests.contract.sink_tables import TYPED, order
from tests.proxy import Fault

ORDERS = "CREATE TABLE orders (seq bigint, at timestamptz, sku varchar(5), payload jsonb)"


@pytest.fixture
def harness(postgresql_sink: PostgresSinkHarness) -> PostgresSinkHarness:
    return postgresql_sink


# -- formats -----------------------------------------------------------------------------------------

NASTY = [
    b"",
    b"\\N",
    b"\\.",
    b"a\tb",
    b"a\\tb\\",
    b"\x01\x7f\x1f",
    "ö😀\u2028".encode(),
    b"'; DROP TABLE raw; --",
    b'"quoted", "csv"',
    b"cr\rlf\n",
    b" spaces ",
]

INVALID = [b"nul\x00nul", b"\xff\xfe", b"\xed\xa0\x80", b"cut \xf0\x9f\x98"]


@pytest.mark.parametrize("record_format", ["text", "bytes"])
def test_any_bytes_land_as_they_are_or_go_to_the_dead_letters(
    harness: PostgresSinkHarness, record_format: RecordFormat
) -> None:
    target = Target("raw", record_format)
    sink = fenced(harness, target)
    written = sink.write([write(1, 1, batch(*NASTY, *INVALID), target=target)])
    shown = harness.query("SELECT payload FROM raw")
    if record_format == "text":
        assert [text.encode() for (text,) in shown] == NASTY
        assert [record for _, _, record, _ in harness.dead()] == INVALID
        assert written.dead == {(1, 1): len(INVALID)}
    else:
        assert [bytes(payload) for (payload,) in shown] == NASTY + INVALID
        assert written.dead == {}


# -- columns -----------------------------------------------------------------------------------------


def test_a_source_gone_wrong_does_not_cost_an_attempt_for_each_record(harness: PostgresSinkHarness) -> None:
    harness.query(ORDERS)
    sink = fenced(harness, TYPED, url=harness.proxy.url)
    wrong = [order("x"), order(1, "too long"), order(1, "\0"), b"garbage", b"\xff"]
    written = sink.write([write(1, 1, batch(*wrong * 2_000, order(1)), target=TYPED)])
    assert (written.landed, written.dead) == ({(1, 1): 1}, {(1, 1): 10_000})
    assert harness.proxy.seen["COPY"] < 60


# -- keys --------------------------------------------------------------------------------------------


def test_many_keyed_landings_share_a_session(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.copyplan.STAGING_TABLES_MAX", 3)
    sink = harness.sink()
    targets = [Target(f"dedup_{n}", "text", (), ("payload",)) for n in range(7)]
    for n, target in enumerate(targets):
        fence(sink, n, 1, target)
    for groups in ([targets], [[target] for target in targets], [targets[:2], targets[4:6]] * 2):
        for group in groups:
            sink.write([write(targets.index(x), 1, batch(b"x"), target=x) for x in group])
    assert all(harness.landed(target).total() == 1 for target in targets)
    staging = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'feedq_stage_%'"
    assert harness.query(staging) == [(3,)]


AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)


def received(*records: bytes, cursor: JSON = None) -> Batch:
    return Records(b"".join(r + b"\n" for r in records)).batch(cursor=cursor, received_at=AT)


# -- mapping -----------------------------------------------------------------------------------------


def test_csv_without_columns_lands_as_text(harness: PostgresSinkHarness) -> None:
    target = Target("plain", "csv", csv=CsvFormat(fields=("a", "b", "c")))
    sink = fenced(harness, target)
    sink.write([write(1, 1, received(b'a,"b",', b"not even three fields"), target=target)])
    assert harness.query("SELECT payload FROM plain ORDER BY 1") == [('a,"b",',), ("not even three fields",)]


def test_a_field_of_csv_lands_with_its_line_ends(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE notes (id int, note text)")
    csv = CsvFormat(fields=("id", "note"))
    target = Target("notes", "csv", sources_of({"id": "/id", "note": "/note"}), csv=csv)
    sink = fenced(harness, target)
    sink.write([write(1, 1, batch(b'1,"a\n\\. b""\r\n"', b"2,\xc3\xa9", b'3,a"b'), target=target)])
    assert harness.query("SELECT * FROM notes ORDER BY id") == [(1, 'a\n\\. b"\r\n'), (2, "é")]
    (refused,) = sink.dead_letters()
    assert (refused.record, "a quote within a field" in refused.error) == (b'3,a"b', True)


def test_bytes_land_in_a_column_of_bytes(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE blobs (at timestamptz, blob bytea)")
    target = Target("blobs", "bytes", sources_of({"at": "$received_at", "blob": ""}))
    sink = fenced(harness, target)
    records = [b"\x00\xff\\", b"plain", b""]
    sink.write([write(1, 1, batch(*records), target=target)])
    assert [bytes(blob) for (blob,) in harness.query("SELECT blob FROM blobs")] == records


# -- keys --------------------------------------------------------------------------------------------

ROWS = "CREATE TABLE rows (k int, j text, v text, UNIQUE (k, j))"

IGNORE = Target("rows", "json", sources_of({"k": "/k", "j": "/j", "v": "/v"}), ("k", "j"))

UPDATE = Target("rows", "json", IGNORE.columns, ("k", "j"), on_conflict=OnConflict.UPDATE)


def row(k: int | None, v: str, j: str | None = "j") -> bytes:
    return json.dumps({"k": k, "j": j, "v": v}).encode()


@pytest.mark.parametrize("target", [IGNORE, UPDATE], ids=["ignore", "update"])
def test_the_order_of_arrival_decides_whatever_the_sizes_of_the_rows(
    harness: PostgresSinkHarness, target: Target
) -> None:
    harness.query(ROWS)
    sink = fenced(harness, target)
    random = Random(3)
    for _ in range(2):  # the second time every key is there already
        harness.query("DELETE FROM rows WHERE k >= 1000; INSERT INTO rows VALUES (0, 'j', 'there')")
        rows = [
            (random.randrange(1000, 1400), f"{n} " + "x" * random.choice([5, 5, 5, 900, 1900]))
            for n in range(3_000)
        ]
        records = [row(0, "there"), *(row(k, v) for k, v in rows)]
        assert sink.write([write(1, 1, received(*records), target=target)]).landed == {(1, 1): 3_001}
        expected: dict[int, str] = {}
        for k, v in rows:
            if target is UPDATE or k not in expected:
                expected[k] = v
        assert dict(harness.query("SELECT k, v FROM rows WHERE k >= 1000")) == expected
        harness.query("DELETE FROM rows WHERE k = 0")


def test_rows_without_a_key_land_once_when_a_record_among_them_is_refused(
    harness: PostgresSinkHarness,
) -> None:
    """What one attempt of a transaction has staged is not inserted again by the next."""
    harness.query("CREATE TABLE typed (n bigint UNIQUE)")
    target = typed(key=["n"])
    sink = harness.sink()
    fence(sink, 1, 1, target)
    nulls, there, refused = [b'{"n": null}'] * 2, b'{"n": 1}', b'{"n": 9223372036854775808}'
    sink.write([write(1, 1, batch(there), target=target)])
    written = sink.write([write(1, 1, batch(there, *nulls, refused, *nulls), target=target)])
    assert (written.landed, written.dead) == ({(1, 1): 5}, {(1, 1): 1})
    assert harness.query("SELECT count(*), count(n) FROM typed") == [(5, 1)]


def test_another_unique_index_refuses_its_record_only(harness: PostgresSinkHarness) -> None:
    harness.query(ROWS + "; CREATE UNIQUE INDEX ON rows (v)")
    sink = fenced(harness, UPDATE)
    records = [row(1, "a"), row(2, "b"), row(3, "a"), row(1, "a")]
    written = sink.write([write(1, 1, received(*records), target=UPDATE)])
    assert (written.landed, written.dead) == ({(1, 1): 3}, {(1, 1): 1})
    assert harness.query("SELECT k, v FROM rows ORDER BY k") == [(1, "a"), (2, "b")]


def test_a_key_may_be_in_a_table_with_row_security(harness: PostgresSinkHarness) -> None:
    harness.query(ROWS + "; CREATE POLICY small ON rows USING (true) WITH CHECK (k < 10)")
    harness.query(
        "ALTER TABLE rows ENABLE ROW LEVEL SECURITY; ALTER TABLE rows FORCE ROW LEVEL SECURITY;"
        "DROP ROLE IF EXISTS secured; CREATE ROLE secured"
    )
    fenced(harness, IGNORE)
    harness.query(
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO secured; GRANT ALL ON SCHEMA public TO secured"
    )
    limited = harness.sink(url=harness.url + "?options=-crole%3Dsecured")
    fence(limited, 1, 2, IGNORE)
    for _ in range(2):
        limited.write([write(1, 2, received(row(1, "a"), row(2, "b")), target=IGNORE)])
    assert harness.query("SELECT k FROM rows ORDER BY k") == [(1,), (2,)]
    harness.query("DROP OWNED BY secured; DROP ROLE secured")


BAD = (
    *(b"", b"{", b"[1,2", b"3]", b"1 2", b"01", b"NaN"),
    *(b'"\\u0000"', b'"\\ud800"', b'"\\q"', b'"\xff"', b'"a\0b"'),
)

"""Bad for somebody at least: text takes most, and json some."""

ODD = (
    *(b'"\\\\u0000"', b'"\\ud83d\\ude00"', '"\u20ac"'.encode()),
    *(b"[" * 3_000 + b"]" * 3_000, b"1e400", b' "x" '),
)

"""Good ones that a quick look may take for bad."""

GOOD = (b"1", b'{"a": 1}', b"[1, 2]", b'"text"', b"null")


@contextmanager
def judge(harness: PostgresSinkHarness) -> Iterator[Any]:
    """Asks the database about a payload, by itself and without any code of feedq's."""
    with harness.session() as cursor:

        def takes(record: bytes, kind: str) -> bool:
            try:
                cursor.execute(f"SELECT convert_from(%s, 'UTF8')::{kind}", (record,))
            except psycopg2.Error:
                return False
            return True

        yield takes


records = st.lists(st.sampled_from([*BAD, *ODD, *GOOD, *GOOD, *GOOD]), min_size=1, max_size=60)


@pytest.mark.parametrize(("format_", "kind"), [("json", "jsonb"), ("json", "json"), ("text", "text")])
def test_a_spoiled_feed_lands_what_the_database_takes_and_nothing_else(
    harness: PostgresSinkHarness, format_: Any, kind: str
) -> None:
    harness.query(f"CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload {kind})")
    target = Target("raw", format_)
    sink = fenced(harness, target)

    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
    @given(records=records, as_lines=st.booleans())
    @example(records=[*BAD, *ODD, *GOOD], as_lines=True)
    def check(records: list[bytes], as_lines: bool) -> None:
        if as_lines:
            records = [r for r in records if r] or [b"1"]
        group: Batch = lines(*records, cursor=1) if as_lines else batch(*records, cursor=1)
        harness.query("TRUNCATE raw, feedq_dead_letter")
        written = sink.write([write(1, 1, group, target=target)])
        with judge(harness) as takes:
            good = [r for r in records if takes(r, kind)]
            bad = [r for r in records if not takes(r, kind)]
        assert written.landed == {(1, 1): len(good)}
        assert written.dead.get((1, 1), 0) == len(bad)
        expected = Counter(
            harness.query(
                f"SELECT x::{kind}::text FROM unnest(%s::text[]) AS x", ([r.decode() for r in good],)
            )
        )
        assert Counter(harness.query("SELECT payload::text FROM raw")) == expected
        dead = [bytes(r) for (r,) in harness.query("SELECT record FROM feedq_dead_letter")]
        assert sorted(dead) == sorted(bad)

    check()


def test_a_partition_whose_trigger_fills_a_column_refuses_the_bad_record_only(
    harness: PostgresSinkHarness,
) -> None:
    harness.query(
        """
        CREATE TABLE parted (n int, filled text NOT NULL) PARTITION BY RANGE (n);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
        CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            NEW.filled = COALESCE(NEW.filled, 'by trigger'); RETURN NEW; END $$;
        CREATE TRIGGER fill BEFORE INSERT ON parted_1 FOR EACH ROW EXECUTE FUNCTION fill();
        """
    )
    target = Target("parted", "json", sources_of({"n": "/n", "filled": "/filled"}))
    sink = fenced(harness, target)
    records = [b'{"n": %d}' % n for n in range(9)]
    written = sink.write([write(1, 1, batch(*records, b'{"n": "x"}'), target=target)])
    assert (written.landed, written.dead) == ({(1, 1): 9}, {(1, 1): 1})


@pytest.mark.parametrize("briefly", [False, True])
def test_after_a_bad_record_all_are_looked_at_before_they_are_sent(
    harness: PostgresSinkHarness, briefly: bool
) -> None:
    sink = fenced(harness, url=harness.proxy.url)
    for copies in (3, 2):
        harness.proxy.seen.clear()
        written = sink.write([write(1, 1, lines(b"2", *[b"bad"] * 100, b"3", cursor=2))], briefly=briefly)
        assert (written.landed, written.dead) == ({(1, 1): 2}, {(1, 1): 100})
        assert harness.proxy.seen["COPY"] == copies, "one in vain, one for the rows, one for the dead letters"
        assert harness.proxy.seen["BEGIN"] == 1


@pytest.mark.parametrize("columns", [{}, {"payload": ""}])
def test_a_flood_of_bad_records_is_written_apart(
    harness: PostgresSinkHarness, columns: dict[str, str]
) -> None:
    if columns:
        harness.query("CREATE TABLE raw (payload jsonb)")
    target = Target("raw", "json", sources_of(columns))
    sink = fenced(harness, target)
    fence(sink, 2, 1, target)
    group = [
        write(1, 1, lines(*[b"bad"] * 1_001, cursor=1), target=target),
        write(2, 1, lines(b"2", b"bad", cursor=1), target=target),
    ]
    written = sink.write(group[:1], briefly=True)
    assert (written.landed, list(written.postponed)) == ({}, [(1, 1)])
    written = sink.write(group[:1])
    assert (written.landed, written.dead) == ({(1, 1): 0}, {(1, 1): 1_001})
    written = sink.write(group[1:], briefly=True)
    assert (written.landed, written.dead) == ({(2, 1): 1}, {(2, 1): 1})


@pytest.mark.parametrize("after", [b"{}", b"bad"])
def test_records_that_only_the_table_refuses_are_found_behind_those_that_any_would(
    harness: PostgresSinkHarness, after: bytes
) -> None:
    harness.query("CREATE TABLE typed (n smallint CHECK (n <> 13))")
    target = Target("typed", "json", sources_of({"n": "/n"}))
    sink = fenced(harness, target)
    sink.write([write(1, 1, lines(b"bad", cursor=0), target=target)])
    group = [b'{"n": 1}', after, b'{"n": 13}', b'{"n": 70000}', b'{"n": 2}', b"worse"]
    written = sink.write([write(1, 1, lines(*group, cursor=1), target=target)])
    bad = [r for r in (after, *group[2:4], group[5]) if r != b"{}"]
    assert written.dead == {(1, 1): len(bad)}
    assert sorted(record for _, _, record, _ in harness.dead()) == sorted([b"bad", *bad])
    assert harness.query("SELECT n FROM typed WHERE n IS NOT NULL ORDER BY n") == [(1,), (2,)]


def typed(**more: object) -> Target:
    sink = parse_sink({"table": "typed", "columns": {"n": "/n"}, **more})
    return target_of(sink, ConnectorOptions())


def refused(harness: PostgresSinkHarness, target: Target, *records: bytes) -> list[int]:
    """Ids of dead letters with these records, in that order: the table took none of them."""
    sink = harness.sink()
    harness.query("ALTER TABLE typed ADD CONSTRAINT none CHECK (false)")
    fence(sink, 1, 1, target)
    sink.write([write(1, 1, batch(*records), target=target)])
    harness.query("ALTER TABLE typed DROP CONSTRAINT none")
    letters = sink.dead_letters()
    return [letter.id for letter in sorted(letters, key=lambda x: (records.index(x.record), x.id))]


def numbers(harness: PostgresSinkHarness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM typed ORDER BY n")]


def test_a_constraint_that_is_deferred_keeps_back_only_the_records_that_violate_it(
    harness: PostgresSinkHarness,
) -> None:
    harness.query("CREATE TABLE known (n bigint PRIMARY KEY); INSERT INTO known VALUES (1), (3)")
    harness.query("CREATE TABLE typed (n bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
    target = typed()
    ids = refused(harness, target, b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    replayed = harness.sink().replay(ids, target)
    assert (replayed.landed, list(replayed.refused)) == (2, [ids[1]])
    assert "is not present in table" in replayed.refused[ids[1]]
    assert numbers(harness) == [1, 3]


def test_a_replay_into_a_table_with_a_key_lands_each_key_once(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE typed (n bigint UNIQUE)")
    target = typed(key=["n"])
    ids = refused(harness, target, b'{"n": 1}', b'{"n": 1}', b'{"n": 2}', b'{"n": "x"}')
    harness.query("INSERT INTO typed VALUES (2)")
    replayed = harness.sink().replay(ids, target)
    assert (replayed.landed, list(replayed.refused)) == (3, ids[-1:])
    assert numbers(harness) == [1, 2]
    assert [letter.id for letter in harness.sink().dead_letters()] == ids[-1:]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize(
    "statement",
    ["SELECT feedq_dead_letter.id", "SAVEPOINT", "COPY", "DELETE", "UPDATE feedq_dead_letter", "COMMIT"],
)
def test_broken_off_anywhere_a_replay_loses_nothing_and_lands_nothing_twice(
    harness: PostgresSinkHarness, fault: Fault, statement: str
) -> None:
    harness.query("CREATE TABLE typed (n bigint)")
    target = typed()
    ids = refused(harness, target, b'{"n": 1}', b'{"n": "x"}', b'{"n": 2}')
    sink = harness.sink(url=harness.proxy.url)
    trap = harness.proxy.arm(fault, statement)
    give_up_at = time.monotonic() + PATIENCE_S
    while not (trap.tripped.is_set() and len(harness.sink().dead_letters()) == 1):
        assert time.monotonic() < give_up_at
        # The session that was cut off may hold the letters for a moment still.
        with suppress(SinkUnavailable):
            sink.replay(ids, target)
    assert numbers(harness) == [1, 2]
    assert [letter.record for letter in harness.sink().dead_letters()] == [b'{"n": "x"}']


def test_a_letter_of_many_megabytes_is_replayed(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE typed (n text)")
    target = typed()
    record = b'{"n": "%s"}' % (b"x" * 2_500_000)
    ids = refused(harness, target, record)
    assert harness.sink().replay(ids, target).landed == 1
    assert harness.query("SELECT length(n) FROM typed") == [(2_500_000,)]
