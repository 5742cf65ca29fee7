"""What is odd about the first records of a feed. Pure.

`hints` finds what is right and yet not what was meant. A column whose pointer no record has lands as NULL, a
list without `source.records` as one row, a header with other names than `csv.fields` as a record; and where no
record has its cursor, all land again after a restart. None of them is an error, so nothing else says so. A trial
tells all of it; a running feed tells what its connector sees by itself, and what `FirstRecords` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from feedq.connectors.base import ConnectorOptions
from feedq.connectors.reading import CursorOptions
from feedq.core.json_texts import read_json
from feedq.core.values import did_you_mean
from feedq.records.batch import Batch
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.pointer import MISSING, parse_pointer, walk
from feedq.sinks.base import Target
from feedq.sinks.mapping import Origin, Otherwise, pointer_to

DEPTH_MAX = 3
"""Levels of a record that are looked at one by one."""
CURSOR_OPTION = "source.cursor"
POINTERS_SHOWN_MAX = 12
SOUGHT_IN = 20
"""Records of a running feed without a value that is pointed at, after which that is told."""
SOUGHT_BYTES_MAX = 64 * 1024
"""Larger records are not searched while a feed runs."""


def json_documents(records: Iterable[bytes]) -> Iterator[Any]:
    for record in records:
        with suppress(ValueError):
            yield read_json(record)


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What can be pointed at in a document, down to some depth, with the pointers to it."""
    if isinstance(value, Mapping) and value and depth < DEPTH_MAX:
        for key, inner in value.items():
            yield from leaves(inner, path + pointer_to(str(key)), depth + 1)
    elif path:
        yield path, value


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
