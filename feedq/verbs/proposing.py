"""Proposes how a feed could be read and landed, by its first records. Pure.

Each value that is not a mapping becomes a column of its own, with the type that all of its values have. A list
becomes records, where the connector can cut one up; lines with the same delimiter become CSV, with the names of
their header. What is proposed is a declaration like any other, to be read and changed before it is applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from feedq.connectors.base import load_connector
from feedq.core.model import FeedSpec
from feedq.errors import InvalidInput
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.pointer import parse_pointer, walk
from feedq.sinks.mapping import ColumnType, pointer_to, type_of
from feedq.worker.first_records import json_documents, leaves

DELIMITERS = (",", ";", "\t", "|")
COLUMNS_MAX = 100
KEY_NAMES = ("id", "seq", "sequence", "offset", "uuid")
"""What sources call what numbers their records."""
_NAME = re.compile(r"\W+")
_HEADER = re.compile(r"([^\W\d]|[%#$€(]).{0,62}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(?!-0(\.0+)?$)-?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""As a numeric column gives it back. One with an exponent or leading zeros stays a text: nothing is lost."""


def as_lines_of_text(spec: FeedSpec) -> FeedSpec:
    """The declaration by which to read the first records: CSV is text until its fields have names."""
    if spec.source.get("format") != "csv" or "fields" in (spec.source.get("csv") or {}):
        return spec
    source = {key: value for key, value in spec.source.items() if key != "csv"} | {"format": "text"}
    return spec.model_copy(update={"source": source})


def proposed(spec: FeedSpec, records: Sequence[bytes]) -> FeedSpec:
    """The declaration with columns and types, and a table that is made of them. Raises `InvalidInput`."""
    documents = [found for found in json_documents(records) if isinstance(found, list | dict)]
    source, rows = _cut_up(spec, documents) if documents else _lines(spec, records)
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
    return spec.model_copy(update={"source": source, "sink": sink})


# -- rows ----------------------------------------------------------------------------------------------


def _cut_up(spec: FeedSpec, documents: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
    """The source with the pointer to a list of records, where there is one; and its records."""
    source, first = dict(spec.source), documents[0]
    can_cut = "records" in load_connector(spec.connector).Options.model_fields
    if not can_cut or source.get("mode") != "poll" or source.get("records") is not None:
        return source, documents
    pointer = ""
    if isinstance(first, dict):
        filled = {key: value for key, value in first.items() if isinstance(value, list) and value}
        lists = [key for key, value in filled.items() if isinstance(value[0], dict)]
        if len(lists) != 1:
            return source, documents
        pointer = pointer_to(lists[0])
    found = (walk(document, parse_pointer(pointer)) for document in documents)
    return source | {"records": pointer}, [one for part in found if isinstance(part, list) for one in part]


def _lines(spec: FeedSpec, records: Sequence[bytes]) -> tuple[dict[str, Any], Sequence[Any]]:
    """The source as CSV, and its lines by the names of their fields."""
    known = dict(spec.source.get("csv") or {})
    delimiters = [known["delimiter"]] if "delimiter" in known else DELIMITERS
    cuts = [(one, cut) for one in delimiters if (cut := _cut(records, known | {"delimiter": one}))]
    # The first that makes several fields of a line, if one does.
    delimiter, cut = max(cuts, key=lambda one: len(one[1][0]) > 1, default=("", [list[str]()]))
    if len(cut[0]) < (1 if spec.source.get("format") == "csv" else 2):
        raise InvalidInput(f"feed {spec.name!r}: its first records are neither JSON nor lines of CSV")
    first, *others = cut
    if "fields" in known:
        fields = list(known["fields"])
    elif _is_header(first, others):
        fields, cut, known["header"] = first, others, True
    else:
        fields = [f"field_{number}" for number in range(1, len(first) + 1)]
    known |= {"fields": fields} | ({} if delimiter == "," else {"delimiter": delimiter})
    rows = [dict(zip(fields, map(_typed, cells), strict=False)) for cells in cut]
    return dict(spec.source) | {"format": "csv", "csv": known}, rows


def _cut(records: Sequence[bytes], csv: Mapping[str, Any]) -> list[list[str]]:
    """The fields of lines, as a feed would read them; none unless all have the same number of fields."""
    reader = CsvReader(CsvFormat.model_validate({**csv, "header": True}))
    try:
        cut = [[(field or b"").decode("utf-8", "replace") for field in reader.split(one)] for one in records]
    except MalformedLine:
        return []
    return cut if len({len(fields) for fields in cut}) == 1 else []


def _is_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Names, each once, above something that is none; or above texts, none of which is the name of its column."""
    if not all(map(_HEADER.fullmatch, first)) or len(set(first)) != len(first):
        return False
    if not others or any(not _HEADER.fullmatch(cell) for cells in others for cell in cells):
        return True
    return not any(name in column for name, column in zip(first, zip(*others, strict=True), strict=True))


def _typed(cell: str) -> Any:
    """A field of CSV as the JSON value that it looks like."""
    if not cell:
        return None
    if cell in ("true", "false"):
        return cell == "true"
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) else cell


# -- columns -------------------------------------------------------------------------------------------


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
