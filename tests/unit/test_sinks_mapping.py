"""What a sink's declaration says of tables and columns, and whether the table fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.base import ConnectorOptions, parse_options
from feedq.errors import InvalidInput
from feedq.records.csvtext import CsvFormat
from feedq.records.framing import RecordFormat
from feedq.records.pointer import parse_pointer
from feedq.sinks.base import OnConflict, Target, parse_sink, target_of, why_nowhere
from feedq.sinks.field_watch import _decoder
from feedq.sinks.mapping import SEPARATORS_MAX, ColumnSource, Origin, Otherwise, flattened, sources_of
from feedq.sinks.postgresql import PostgresSession, why_unfit
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.target_table import (
    Column,
    TableName,
    TableShape,
    column_sources,
    written_columns,
)

problem = PostgresSession.judge

JSON = ConnectorOptions()

CSV = ConnectorOptions.model_validate({"format": "csv", "csv": {"fields": ["seq", "price/eur"]}})

TEXT = ConnectorOptions(format="text")


def sink(**options: Any) -> dict[str, Any]:
    return {"table": "t", **options}


def test_a_column_is_a_pointer_a_rule_a_constant_or_something_known() -> None:
    options = parse_sink(
        sink(
            columns={
                "a": "/a/b",
                "whole": "",
                "feed": "$feed",
                "one": {"value": 1},
                "nothing": {"value": None},
                "p": {"pointer": "/p", "missing": "refuse", "null": "default", "default": {"x": 1}},
            }
        )
    )
    assert sources_of(options.columns) == (
        ColumnSource("a", Origin.POINTER, "/a/b"),
        ColumnSource("whole", Origin.RECORD),
        ColumnSource("feed", Origin.FEED),
        ColumnSource("one", Origin.CONSTANT, constant="1"),
        ColumnSource("nothing", Origin.CONSTANT, constant="null"),
        ColumnSource(
            "p",
            Origin.POINTER,
            "/p",
            missing=Otherwise.REFUSE,
            null=Otherwise.DEFAULT,
            default='{"x":1}',
        ),
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": {"a": "b"}}, "sink.columns: column 'a': 'b' is not a JSON pointer"),
        ({"columns": {"a": "$fed"}}, r"'\$fed' is not known; feedq knows \$feed, \$epoch, \$cursor"),
        ({"columns": {"a": {"pointer": "/a", "value": 1}}}, "needs either pointer or value"),
        ({"columns": {"a": {"pointer": "/a", "missing": "default"}}}, "there is no default"),
        ({"columns": {"a": {"pointer": "/a", "default": 1}}}, "default needs missing: default or null"),
        ({"flatten": ""}, "sink.flatten: .*at least 1 character"),
        ({"on_conflict": "update"}, "sink.on_conflict: update needs sink.key"),
        ({"create": True, "columns": {"a": "/a"}, "flatten": "_"}, "does not work with flatten"),
        ({"columns": {"a": "/a"}, "types": {"a": "text"}}, "set create: true"),
        ({"columns": {"a": "/a"}, "create": True, "types": {"b": "text"}}, "types: 'b' is not among columns"),
        ({"columns": {"a": "/a"}, "create": True, "types": {"a": "int"}}, "sink.types.a: "),
        ({"drift": "event"}, "drift needs columns, or flatten"),
        ({"columns": {"a": "/a"}, "drift": "refuse"}, "drift"),
    ],
)
def test_a_sink_that_is_declared_wrong_says_what(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_sink(sink(**options))


@pytest.mark.parametrize(
    ("options", "source", "words"),
    [
        ({"columns": {"a": "/a"}}, TEXT, "which needs source.format json or csv, not text"),
        ({"flatten": "_"}, TEXT, "which needs source.format json or csv, not text"),
        ({"columns": {"a": "/a"}, "key": ["b"]}, JSON, "sink.key: 'b' is not among sink.columns"),
        (
            {"key": ["seq"]},
            JSON,
            "sink.key: 'seq' is not among the columns written: feed, epoch, received_at",
        ),
        (
            {"columns": {"a": "/sequence"}},
            CSV,
            "column 'a' points at /sequence, which is not a field .* has 'seq', 'price/eur'",
        ),
        ({"columns": {"a": "/seq/0"}}, CSV, "column 'a' points at /seq/0, which is not a field"),
    ],
)
def test_a_sink_that_does_not_fit_its_source_says_why(
    options: dict[str, Any], source: ConnectorOptions, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        target_of(parse_sink(sink(**options)), source)


def test_a_landing_has_all_that_was_declared() -> None:
    options = parse_sink(
        sink(columns={"p": "/price~1eur", "w": ""}, flatten="_", key=["seq"], on_conflict="update")
    )
    target = target_of(options, CSV)
    assert [source.pointer for source in target.columns] == ["/price~1eur", ""]
    assert (target.flatten, target.key, target.on_conflict) == ("_", ("seq",), OnConflict.UPDATE)
    assert target.csv == CSV.csv
    assert target.is_mapped


def test_csv_whose_fields_its_first_line_names_lands_as_json() -> None:
    source = parse_options("file", {"path": "/x.csv", "format": "csv", "csv": {"header": True}})
    target = target_of(parse_sink(sink(columns={"p": "/price"}, drift="event")), source)
    assert (target.format, target.csv) == ("json", None)


# -- flatten -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "separator", "pointers"),
    [
        ("a", "_", ["/a"]),
        ("a_b", "_", ["/a_b", "/a/b"]),
        ("a_b_c", "_", ["/a_b_c", "/a_b/c", "/a/b_c", "/a/b/c"]),
        ("a.b", "_", ["/a.b"]),
        ("a__b_c", "__", ["/a__b_c", "/a/b_c"]),
        ("_id", "_", ["/_id", "//id"]),
        ("a/b.c~d", ".", ["/a~1b.c~0d", "/a~1b/c~0d"]),
    ],
)
def test_a_name_is_taken_apart_the_shorter_paths_first(
    column: str, separator: str, pointers: list[str]
) -> None:
    source = flattened(column, separator)
    assert [source.pointer, *source.alternatives] == pointers


@given(
    column=st.text("ab_~/", min_size=1, max_size=8).filter(lambda c: c.count("_") <= SEPARATORS_MAX),
    separator=st.sampled_from(["_", "__", "/"]),
)
def test_every_path_of_a_name_spells_it_and_none_is_there_twice(column: str, separator: str) -> None:
    source = flattened(column, separator)
    paths = [parse_pointer(pointer) for pointer in (source.pointer, *source.alternatives)]
    assert {separator.join(path) for path in paths} == {column}
    assert len(set(paths)) == len(paths) == 2 ** column.count(separator)
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)


DEFAULT = Target("raw", "json")

CSV_OF_TABLE = CsvFormat(fields=("seq", "extra"))

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
        ("pg_catalog", "r", None, "'raw' leads to pg_catalog.raw, which belongs to the database"),
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
            Target("raw", "csv", flatten="_", csv=CSV_OF_TABLE),
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
        (Target("ä" * 32, "json"), "longer than 63 bytes"),
        (Target("feedq.feed", "json"), "feedq's own"),
    ],
)
def test_a_declaration_can_be_wrong_by_itself(target: Target, words: str) -> None:
    why = PostgresSession.misdeclared(target)
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
    target = Target("raw", "csv", flatten="_", csv=CSV_OF_TABLE)
    assert written_columns(target, typed_table().columns) == ("seq",)
    assert problem(target, typed_table()) is None


@pytest.mark.parametrize(
    "table",
    [
        "feedq.feed",
        "FEEDQ.lease",
        '"feedq"."feed"',
        "feedq_checkpoint",
        "acme.Feedq_Dead_Letter",
        "pg_catalog.pg_authid",
        "pg_toast.pg_toast_2619",
        "PG_CATALOG.pg_proc",
        "information_schema.sql_features",
        "INFORMATION_SCHEMA.USER_PRIVILEGES",
    ],
)
def test_a_declaration_names_neither_tables_of_feedq_nor_a_catalog(table: str) -> None:
    assert why_nowhere(table) is not None
    with pytest.raises(InvalidInput, match=r"name (another table|a table of your own)"):
        parse_sink({"table": table})


def test_postgresql_keeps_every_schema_whose_name_begins_as_its_own_do() -> None:
    for schema in ("pg_catalog", "pg_toast", "pg_temp_7", "pg_toast_temp_7", "information_schema"):
        assert "belongs to the database" in str(PostgresSession.why_reserved(TableName(schema, "landed")))
    for name in (TableName(None, "pg_things"), TableName("PG_UPPER", "landed")):
        assert PostgresSession.why_reserved(name) is None


@pytest.mark.parametrize(
    ("session", "kept", "free"),
    [
        (
            MySqlSession,
            ["mysql.user", "SYS.sys_config", "performance_schema.setup_actors"],
            ["shop.sys", "pg_x"],
        ),
        (SqliteSession, ["sqlite_sequence", "main.SQLITE_master"], ["mysql.user", "main.landed"]),
    ],
)
def test_each_kind_of_database_keeps_tables_of_its_own(
    session: type[SqlSession], kept: list[str], free: list[str]
) -> None:
    for table in kept:
        assert session.is_system(TableName.parse(table), "public"), table
    for table in free:
        assert not session.is_system(TableName.parse(table), "public"), table


def test_records_without_a_new_field_cost_one_call() -> None:
    decoder = _decoder(frozenset(("a", "b")))
    assert decoder is not None
    decoder.decode_lines(b'{"a": 1}\n{"b": {"c": 2}}\n{}\n')
    assert _decoder(frozenset(('q"',))) is None
