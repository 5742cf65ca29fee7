"""Columns in PostgreSQL: mapped, flattened, from CSV, and with a key; by the fast path and the plain one alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random

import pytest

from feedq.core.model import JSON, Batch
from feedq.local.postgres import Postgres
from feedq.records.csvtext import CsvFormat
from feedq.sinks.base import OnConflict, Target
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import (
    PostgresSinkHarness,
    batch,
    empty_database,
    fence,
    write,
)

AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


def received(*records: bytes, cursor: JSON = None) -> Batch:
    return Batch.of_lines(b"".join(r + b"\n" for r in records), cursor=cursor, received_at=AT)


# -- mapping -----------------------------------------------------------------------------------------


def test_csv_without_columns_lands_as_text(harness: PostgresSinkHarness) -> None:
    target = Target("plain", "csv", csv=CsvFormat(fields=("a", "b", "c")))
    sink = harness.sink()
    fence(sink, 1, 1, target)
    sink.write([write(1, 1, received(b'a,"b",', b"not even three fields"), target=target)])
    assert harness.query("SELECT payload FROM plain ORDER BY 1") == [('a,"b",',), ("not even three fields",)]


def test_bytes_land_in_a_column_of_bytes(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE blobs (at timestamptz, blob bytea)")
    target = Target("blobs", "bytes", sources_of({"at": "$received_at", "blob": ""}))
    sink = harness.sink()
    fence(sink, 1, 1, target)
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
    sink = harness.sink()
    fence(sink, 1, 1, target)
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


def test_another_unique_index_refuses_its_record_only(harness: PostgresSinkHarness) -> None:
    harness.query(ROWS + "; CREATE UNIQUE INDEX ON rows (v)")
    sink = harness.sink()
    fence(sink, 1, 1, UPDATE)
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
    sink = harness.sink()
    fence(sink, 1, 1, IGNORE)
    harness.query(
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO secured; GRANT ALL ON SCHEMA public TO secured"
    )
    limited = harness.sink(url=harness.url + "?options=-crole%3Dsecured")
    fence(limited, 1, 2, IGNORE)
    for _ in range(2):
        limited.write([write(1, 2, received(row(1, "a"), row(2, "b")), target=IGNORE)])
    assert harness.query("SELECT k FROM rows ORDER BY k") == [(1,), (2,)]
    harness.query("DROP OWNED BY secured; DROP ROLE secured")
