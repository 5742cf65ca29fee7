"""Proposes how a feed's records could be read and landed, from the first of them. Pure.

Each value that is no mapping becomes a column of its own, with the type that all of its values have. A list
becomes records, where the connector can cut one up; lines with the same delimiter become CSV, with the names of
their header. What is proposed is a declaration like any other, to be read and changed before it is applied.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from feedq.connectors.base import load_connector
from feedq.core.model import FeedSpec
from feedq.errors import InvalidInput
from feedq.sinks.mapping import ColumnType, pointer_to, type_of

DELIMITERS = (",", ";", "\t", "|")
DEPTH_MAX = 3
"""Levels of a record that become columns; what is below is one column of JSON."""
COLUMNS_MAX = 100
KEY_NAMES = ("id", "seq", "sequence", "offset", "uuid")
"""What sources call what numbers their records."""
_NAME = re.compile(r"[^a-z0-9]+")
_HEADER = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def proposed(spec: FeedSpec, records: Sequence[bytes]) -> FeedSpec:
    """The declaration with columns and types, and a table that is made of them. Raises `InvalidInput`."""
    documents = [found for found in json_documents(records) if isinstance(found, list | dict)]
    source = dict(spec.source)
    if documents:
        source, rows = _cut_up(spec, documents)
    else:
        source, rows = _lines(spec, records)
    samples: dict[str, list[Any]] = {}
    for row in rows:
        for pointer, value in leaves(row):
            samples.setdefault(pointer, []).append(value)
    if not samples:
        raise InvalidInput(f"feed {spec.name!r}: its first records have no values that could be columns")
    names = _names(list(samples)[:COLUMNS_MAX])
    types = {name: type_of(samples[pointer]) for pointer, name in names.items()}
    sink = dict(spec.sink) | {
        "columns": {name: pointer for pointer, name in names.items()},
        "create": True,
        "types": {name: type_.value for name, type_ in types.items() if type_ is not ColumnType.TEXT},
    }
    if "key" not in sink and (key := _key(names, samples, len(rows))):
        sink["key"] = [key]
    return replace(spec, source=source, sink=sink)


def json_documents(records: Sequence[bytes]) -> Iterator[Any]:
    for record in records:
        with suppress(orjson.JSONDecodeError):
            yield orjson.loads(record)


def _cut_up(spec: FeedSpec, documents: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """The source with the pointer to a list of records, where there is one; and its records."""
    source = dict(spec.source)
    may_cut = (
        "records" in load_connector(spec.connector).Options.model_fields and source.get("mode") == "poll"
    )
    if not may_cut or source.get("records") is not None:
        return source, list(documents)
    first = documents[0]
    if isinstance(first, list):
        return source | {"records": ""}, [one for found in documents for one in found]
    lists = [
        key
        for key, value in first.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    if len(lists) != 1:
        return source, list(documents)
    return source | {"records": pointer_to(lists[0])}, [
        one for found in documents for one in found.get(lists[0], ())
    ]


def _lines(spec: FeedSpec, records: Sequence[bytes]) -> tuple[dict[str, Any], list[Any]]:
    """The source as CSV, and its lines by the names of their fields."""
    lines = [record.decode("utf-8", "replace") for record in records]
    given = spec.source.get("csv")
    known = dict(given) if isinstance(given, Mapping) else {}
    delimiters = [known["delimiter"]] if "delimiter" in known else DELIMITERS
    for delimiter in delimiters:
        cut = list(csv.reader(lines, delimiter=delimiter)) if len(delimiter) == 1 else []
        if cut and len(cut[0]) > 1 and len({len(cells) for cells in cut}) == 1:
            return _csv(spec, known, delimiter, cut)
    raise InvalidInput(f"feed {spec.name!r}: its first records are neither JSON nor lines of CSV")


def _csv(
    spec: FeedSpec, known: dict[str, Any], delimiter: str, cut: list[list[str]]
) -> tuple[dict[str, Any], list[Any]]:
    first, *others = cut
    if "fields" in known:
        fields = list(known["fields"])
    elif _is_header(first, others):
        fields, known = list(first), known | {"header": True}
        cut = others
    else:
        fields = [f"field_{number}" for number in range(1, len(first) + 1)]
    known |= {"fields": fields} | ({} if delimiter == "," else {"delimiter": delimiter})
    rows = [dict(zip(fields, map(_typed, cells), strict=False)) for cells in cut]
    return dict(spec.source) | {"format": "csv", "csv": known}, rows


def _is_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Names, each once, above something that is none."""
    are_names = all(map(_HEADER.fullmatch, first)) and len(set(first)) == len(first)
    return are_names and (
        not others or any(not _HEADER.fullmatch(cell) for cells in others for cell in cells)
    )


def _typed(cell: str) -> Any:
    """A field of CSV as the JSON value that it looks like."""
    if not cell:
        return None
    if cell in ("true", "false"):
        return cell == "true"
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) else cell


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What can be pointed at in a document, down to some depth, with the pointers to it."""
    if isinstance(value, Mapping) and value and depth < DEPTH_MAX:
        for key, inner in value.items():
            yield from leaves(inner, path + pointer_to(str(key)), depth + 1)
    elif path:
        yield path, value


def _names(pointers: Sequence[str]) -> dict[str, str]:
    """A name for each column, by its pointer."""
    names: dict[str, str] = {}
    for pointer in pointers:
        name = wanted = _NAME.sub("_", pointer.lower()).strip("_") or "value"
        number = 2
        while name in names.values():
            name, number = f"{wanted}_{number}", number + 1
        names[pointer] = name
    return names


def _key(names: Mapping[str, str], samples: Mapping[str, Sequence[Any]], rows: int) -> str | None:
    """A column that is called as a number of records is, and has another value in each."""
    for pointer, name in names.items():
        values = samples[pointer]
        is_plain = all(isinstance(value, int | str) and not isinstance(value, bool) for value in values)
        if name in KEY_NAMES and is_plain and len(set(values)) == rows:
            return name
    return None
