"""A target that cannot work is told apart beforehand, in words that name table, column and remedy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from feedq.records.csvtext import CsvFormat
from feedq.records.framing import RecordFormat
from feedq.sinks.base import OnConflict, Target
from feedq.sinks.mapping import sources_of
from feedq.sinks.postgresql import problem, why_not_in_postgresql, why_unfit
from feedq.sinks.target_table import (
    Column,
    TableShape,
    column_sources,
    misdeclared,
    written_columns,
)

DEFAULT = Target("raw", "json")
CSV = CsvFormat(fields=("seq", "extra"))
FLAT = Target("raw", "json", flatten="_")
TYPED = Target("raw", "json", sources_of({"seq": "/seq", "payload": ""}), ("seq",))

UPDATING = replace(TYPED, on_conflict=OnConflict.UPDATE)


def column(type_name: str = "text", **changes: Any) -> Column:
    plain = Column(
        type=type_name,
        definition=type_name,
        not_null=False,
        has_default=False,
        generated=False,
        insertable=True,
        selectable=True,
    )
    return replace(plain, **changes)


def table(**changes: Any) -> TableShape:
    plain = TableShape(
        schema="public",
        name="raw",
        role="importer",
        owner="ann",
        columns={
            "feed": column("text"),
            "epoch": column("bigint"),
            "received_at": column("timestamp with time zone"),
            "payload": column("jsonb"),
        },
    )
    return replace(plain, **changes)


def typed_table(**columns: Column) -> TableShape:
    return table(
        columns={"seq": column("bigint"), "payload": column("text"), **columns},
        unique_keys=frozenset({frozenset({"seq"})}),
    )


def test_a_table_of_ours_and_a_typed_one_are_fine() -> None:
    assert problem(DEFAULT, table()) is None
    assert problem(TYPED, typed_table()) is None
    for kind in ("r", "p", "f"):
        assert why_unfit(DEFAULT, "public", "raw", kind=kind, role="importer", shut_by=None) is None


@pytest.mark.parametrize(
    ("schema", "kind", "shut_by", "words"),
    [
        ("public", "v", None, "'raw' is not a table"),
        ("public", "r", "ann", "have ann run GRANT USAGE ON SCHEMA public TO importer"),
        ("pg_catalog", "r", None, "'raw' leads to pg_catalog.raw, which is kept by the database"),
    ],
)
def test_what_no_record_can_land_in_is_no_table_of_ours(
    schema: str, kind: str, shut_by: str | None, words: str
) -> None:
    why = why_unfit(DEFAULT, schema, "raw", kind=kind, role="importer", shut_by=shut_by)
    assert why is not None
    assert words in why
    assert problem(DEFAULT, table(unfit=why)) == why


@pytest.mark.parametrize(
    ("record_format", "payload"),
    [("json", "json"), ("csv", "text"), ("text", "text"), ("text", "character varying"), ("bytes", "bytea")],
)
def test_the_payload_column_fits_the_format(record_format: RecordFormat, payload: str) -> None:
    shape = table(columns={**table().columns, "payload": column(payload)})
    assert problem(Target("raw", record_format), shape) is None


@pytest.mark.parametrize(
    ("target", "shape", "words"),
    [
        (
            DEFAULT,
            table(columns={**table().columns, "epoch": column("integer")}),
            "column 'epoch' is integer, and must be bigint",
        ),
        (
            TYPED,
            table(),
            r"has no column 'seq'.*correct sink.columns \(the table has 'feed', 'epoch', 'received_at',",
        ),
        (TYPED, typed_table(payload=column("bytea")), "column 'payload' is bytea, and the whole record"),
        (UPDATING, typed_table(payload=column(selectable=False)), "GRANT SELECT, UPDATE ON public.raw"),
        (FLAT, typed_table(note=column(insertable=False)), "GRANT INSERT ON public.raw"),
        (
            FLAT,
            table(columns={"id": column("bigint", has_default=True), "sum": column(generated=True)}),
            "no column that sink.flatten could fill .it has 'id', 'sum'.",
        ),
        (
            FLAT,
            typed_table(a_b_c_d_e_f_g_h_i_j=column()),
            "more than 8 times in the name of column 'a_b.*too often for sink.flatten: map it in sink.columns",
        ),
        (
            replace(FLAT, key=("id",)),
            typed_table(id=column("bigint", has_default=True)),
            "sink.key: 'id' is not among the columns written to table 'raw': 'seq', 'payload'",
        ),
        (
            Target("raw", "csv", flatten="_", csv=CSV),
            typed_table(note=column(not_null=True)),
            "column 'note' is NOT NULL without a default and nothing is written to it",
        ),
    ],
)
def test_a_problem_names_table_column_and_remedy(
    target: Target, shape: TableShape | None, words: str
) -> None:
    why = problem(target, shape)
    assert why is not None
    assert re.search(words, why), why


def test_what_the_database_fills_in_need_not_be_mapped() -> None:
    extra = {
        "id": column("bigint", not_null=True, has_default=True),
        "sum": column(generated=True, not_null=True),
    }
    assert problem(TYPED, typed_table(**extra)) is None


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target("a.b.c", "json"), "neither a table nor schema.table"),
        (Target(".b", "json"), "neither a table nor schema.table"),
        (Target("ä" * 32, "json"), "longer than 63 bytes"),
        (Target("feedq.feed", "json"), "feedq's own"),
        (
            Target("raw", "csv", sources_of({"seq": "/sequence"}), csv=CSV),
            "column 'seq' points at /sequence, which is no field of the records; source.csv.fields has 'seq'",
        ),
        (
            Target("raw", "json", key=("seq",)),
            "sink.key: 'seq' is not among the columns written: feed, epoch",
        ),
    ],
)
def test_a_declaration_can_be_wrong_by_itself(target: Target, words: str) -> None:
    why = misdeclared(target, lambda table: why_not_in_postgresql(table.schema, table.name))
    assert why is not None
    assert words in why


def test_flatten_fills_what_is_neither_mapped_nor_filled_by_the_database() -> None:
    columns = typed_table(
        id=column("bigint", has_default=True),
        sum=column(generated=True),
        mapped=column(),
        a_b=column(not_null=True),
    ).columns
    target = replace(FLAT, columns=sources_of({"mapped": "/m"}))
    assert [
        (source.column, source.pointer, source.alternatives) for source in column_sources(target, columns)
    ] == [
        ("mapped", "/m", ()),
        ("seq", "/seq", ()),
        ("payload", "/payload", ()),
        ("a_b", "/a_b", ("/a/b",)),
    ]
    assert problem(target, typed_table(**columns)) is None


def test_flatten_fills_the_columns_that_csv_has_a_field_for() -> None:
    target = Target("raw", "csv", flatten="_", csv=CSV)
    assert written_columns(target, typed_table().columns) == ("seq",)
    assert problem(target, typed_table()) is None
