"""What the first records of a feed say: how they could be read and landed, and what is odd about them. Pure.

`proposed` makes a declaration. Each value that is not a mapping becomes a column of its own, with the type that
all of its values have. A list becomes records, where the connector can cut one up; lines with the same delimiter
become CSV, with the names of their header. What is proposed is a declaration like any other, to be read and
changed before it is applied.

`hints` finds what is right and yet not what was meant. A column whose pointer no record has lands as NULL, a
list without `source.records` as one row, a header with other names than `csv.fields` as a record; and where no
record has its cursor, all land again after a restart. None of them is an error, so nothing else says so. A trial
tells all of it; a running feed tells what its connector sees by itself, and what `FirstRecords` finds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from feedq.connectors.base import ConnectorOptions, load_connector
from feedq.connectors.reading import CursorOptions
from feedq.core.json_texts import read_json
from feedq.core.model import FeedSpec
from feedq.core.values import did_you_mean
from feedq.errors import InvalidInput
from feedq.records.batch import Batch
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.pointer import MISSING, parse_pointer, walk
from feedq.sinks.base import Target
from feedq.sinks.mapping import ColumnType, Origin, Otherwise, pointer_to, type_of

DELIMITERS = (",", ";", "\t", "|")
DEPTH_MAX = 3
"""Levels of a record that become columns; what is below is one column of JSON."""
COLUMNS_MAX = 100
KEY_NAMES = ("id", "seq", "sequence", "offset", "uuid")
"""What sources call what numbers their records."""
CURSOR_OPTION = "source.cursor"
_NAME = re.compile(r"\W+")
_HEADER = re.compile(r"([^\W\d]|[%#$€(]).{0,62}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(?!-0(\.0+)?$)-?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""As a numeric column gives it back. One with an exponent or leading zeros stays a text: nothing is lost."""


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
    return spec.model_copy(update={"source": source, "sink": sink})


def as_lines_of_text(spec: FeedSpec) -> FeedSpec:
    """The declaration by which to read the first records: CSV is text until its fields have names."""
    if spec.source.get("format") != "csv" or "fields" in (spec.source.get("csv") or {}):
        return spec
    source = {key: value for key, value in spec.source.items() if key != "csv"} | {"format": "text"}
    return spec.model_copy(update={"source": source})


def json_documents(records: Iterable[bytes]) -> Iterator[Any]:
    for record in records:
        with suppress(ValueError):
            yield read_json(record)


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
    for fields_min in (2, 1) if spec.source.get("format") == "csv" else (2,):
        for delimiter in delimiters:
            cut = list(csv.reader(lines, delimiter=delimiter)) if len(delimiter) == 1 else []
            if cut and len(cut[0]) >= fields_min and len({len(cells) for cells in cut}) == 1:
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


POINTERS_SHOWN_MAX = 12
SOUGHT_IN = 20
"""Records of a running feed without a value that is pointed at, after which that is told."""
SOUGHT_BYTES_MAX = 64 * 1024
"""Larger records are not searched while a feed runs."""


def hints(source: ConnectorOptions, target: Target, records: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Yields what is odd about records, as pairs of what it is about and a sentence."""
    if source.record_csv is not None:
        yield from _header_hints(source.record_csv, records)
        return
    documents = list(json_documents(records))
    if not documents or source.record_format != "json":
        return
    lists = [document for document in documents if isinstance(document, list)]
    if lists:
        said = f"a record is a list of {len(lists[0])}, which lands as one row"
        yield "records", f"{said}; let the source send its elements one by one"
        return
    for taker, pointers in _sought(source, target).items():
        if not any(_has_any(document, pointers) for document in documents):
            yield "cursor" if taker == CURSOR_OPTION else "columns", _not_there(taker, pointers, documents)


class FirstRecords:
    """Looks at the first records of a connection, and reports what is odd about them while the feed runs.

    A value that is pointed at and occurred in none of `SOUGHT_IN` records is told, and sought on in one record of
    each batch: when it comes, it is told no longer. Nothing is looked at any more when all have been found.
    """

    def __init__(self, source: ConnectorOptions, target: Target, *, from_beginning: bool) -> None:
        csv = source.record_csv
        self._csv = csv if csv is not None and csv.header and from_beginning else None
        self._head: list[bytes] = []
        self._sought = dict(_sought(source, target)) if source.record_format == "json" else {}
        self._searched: list[Any] = []
        self._is_told = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to look for."""
        return self._csv is None and not self._sought

    def look(self, batch: Batch, tell: Callable[[str, str | None], object]) -> None:
        """Look at a batch; ``tell`` takes what it is about, and a sentence, or None for what is so no longer."""
        if self._csv is not None:
            self._head += batch.first(2)
            if len(self._head) > 1:
                for about, said in _header_hints(self._csv, self._head[:2]):
                    tell(about, said)
                self._csv = None
        if self._sought:
            self._seek(batch, tell)

    def _seek(self, batch: Batch, tell: Callable[[str, str | None], object]) -> None:
        records = batch.first(1 if self._is_told else SOUGHT_IN - len(self._searched))
        for document in json_documents(record for record in records if len(record) <= SOUGHT_BYTES_MAX):
            for taker in [name for name, pointers in self._sought.items() if _has_any(document, pointers)]:
                del self._sought[taker]
                if self._is_told:
                    tell(taker, None)
            if not self._is_told:
                self._searched.append(document)
        if len(self._searched) >= SOUGHT_IN:
            for taker, pointers in self._sought.items():
                tell(taker, _not_there(taker, pointers, self._searched))
            self._is_told, self._searched = True, []


def _sought(source: ConnectorOptions, target: Target) -> dict[str, tuple[str, ...]]:
    """Pointers into the records of a feed, of which one should find something, by what takes it."""
    takers: dict[str, tuple[str, ...]] = {
        f"column {column.column}": (column.pointer, *column.alternatives)
        for column in target.columns
        if column.origin is Origin.POINTER and column.pointer and column.missing is Otherwise.NULL
    }
    cursor = source.cursor if isinstance(source, CursorOptions) else None
    return ({CURSOR_OPTION: (cursor,)} if cursor else {}) | takers


def _not_there(taker: str, pointers: Sequence[str], documents: Sequence[Any]) -> str:
    there = list(dict.fromkeys(pointer for document in documents for pointer, _ in leaves(document)))
    shown = ", ".join(there[:POINTERS_SHOWN_MAX]) + (", …" if len(there) > POINTERS_SHOWN_MAX else "")
    lacks = " or ".join(pointers)
    said = f"{taker}: no record has {lacks}; they have {shown}{did_you_mean(pointers[0], there)}"
    return (
        f"{said}. Without a cursor, the source is read from its beginning after each restart"
        if taker == CURSOR_OPTION
        else said
    )


def _has_any(document: Any, pointers: Sequence[str]) -> bool:
    return any(walk(document, parse_pointer(pointer)) is not MISSING for pointer in pointers)


def _header_hints(csv: CsvFormat, records: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """A first record of names only, where the values of others are numbers or times."""
    found, *others = (_fields(csv, record) for record in records)
    same = set(found) & set(csv.fields)
    if tuple(found) != csv.fields and _are_names(found):
        if not same and (not csv.header or (others and all(map(_are_names, others)))):
            return
        yield (
            "header",
            f"the first line, {', '.join(found)}, lands as a record: it looks like a header with other names than "
            f"csv.fields, {', '.join(csv.fields)}; name the fields as it does, in its order",
        )
    elif tuple(found) == csv.fields and not csv.header:
        yield "header", "the first line is a header and lands as a record; csv.header: true leaves it out"


def _fields(csv: CsvFormat, record: bytes) -> list[str]:
    """None of a record that is malformed."""
    try:
        return [(field or b"").decode("utf-8", "replace") for field in CsvReader(csv).read(record)]
    except MalformedLine:
        return []


def _are_names(fields: Sequence[str]) -> bool:
    return bool(fields) and all(field.replace("_", "a").isidentifier() for field in fields)
