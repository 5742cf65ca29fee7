"""Where columns come from: what may be declared, how names are taken apart, and what fits the source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.base import ConnectorOptions
from feedq.errors import InvalidInput
from feedq.records.pointer import parse_pointer
from feedq.sinks.base import OnConflict, parse_sink, target_of
from feedq.sinks.mapping import SEPARATORS_MAX, ColumnSource, Origin, Otherwise, flattened, sources_of

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
        ({"columns": {"a": "b"}}, "sink.columns: column 'a': 'b' is no JSON pointer"),
        ({"columns": {"a": "$fed"}}, r"'\$fed' is not known; feedq knows \$feed, \$epoch, \$cursor"),
        ({"columns": {"a": {"pointer": "/a", "value": 1}}}, "needs either pointer or value"),
        ({"columns": {"a": {"value": 1, "null": "refuse"}}}, "go with a pointer into the record"),
        ({"columns": {"a": {"pointer": "/a", "missing": "default"}}}, "there is no default"),
        ({"columns": {"a": {"pointer": "/a", "default": 1}}}, "default needs missing: default or null"),
        ({"columns": {"a": {"pointer": "/a", "missing": "drop"}}}, "'null', 'default' or 'refuse'"),
        ({"flatten": ""}, "sink.flatten: .*at least 1 character"),
        ({"on_conflict": "update"}, "sink.on_conflict: update needs sink.key"),
        ({"on_conflict": "replace", "key": ["a"]}, "'ignore' or 'update'"),
        ({"create": True, "columns": {"a": "/a"}, "flatten": "_"}, "create needs columns, and no flatten"),
        ({"columns": {"a": "/a"}, "types": {"a": "text"}}, "set create: true"),
        ({"columns": {"a": "/a"}, "create": True, "types": {"b": "text"}}, "types: 'b' is not among columns"),
        ({"columns": {"a": "/a"}, "create": True, "types": {"a": "int"}}, "sink.types.a: "),
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
            {"columns": {"a": "/sequence"}},
            CSV,
            "column 'a' points at /sequence, which is no field .* has 'seq', 'price/eur'",
        ),
        ({"columns": {"a": "/seq/0"}}, CSV, "column 'a' points at /seq/0, which is no field"),
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
