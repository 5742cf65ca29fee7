"""What the first records say about a declaration that is right and yet not what was meant. Pure.

A column whose pointer no record has lands as NULL, a list without `source.records` as one row, a header with other
names than `csv.fields` as a record. None of them is an error, so nothing else says so.

A trial tells all of it. A running feed tells what its connector sees by itself, and what `watch_header` finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from feedq.connectors.base import ConnectorOptions
from feedq.core.model import Batch
from feedq.core.values import did_you_mean
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.pointer import array_index, parse_pointer
from feedq.sinks.base import SinkOptions
from feedq.worker.record_columns import json_documents, leaves

POINTERS_SHOWN_MAX = 12


def hints(source: ConnectorOptions, sink: SinkOptions, records: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Yields what is odd, as pairs of what it is about and a sentence."""
    if source.csv is not None:
        yield from _header_hints(source.csv, records)
        return
    documents = list(json_documents(records))
    if not documents or source.format != "json":
        return
    lists = [document for document in documents if isinstance(document, list)]
    if lists:
        said = f"a record is a list of {len(lists[0])}, which lands as one row"
        yield "records", f"{said}; let the source send its elements one by one"
        return
    yield from _pointer_hints(sink, documents)


def _pointer_hints(sink: SinkOptions, documents: Sequence[Any]) -> Iterator[tuple[str, str]]:
    there = list(dict.fromkeys(pointer for document in documents for pointer, _ in leaves(document)))
    for column, source in sink.columns.items():
        pointer = source if isinstance(source, str) else source.pointer
        if not pointer or not pointer.startswith("/"):
            continue
        if not any(_has(document, parse_pointer(pointer)) for document in documents):
            shown = ", ".join(there[:POINTERS_SHOWN_MAX]) + (", …" if len(there) > POINTERS_SHOWN_MAX else "")
            near = did_you_mean(pointer, there)
            yield "columns", f"column {column}: no record has {pointer}; they have {shown}{near}"


def _has(value: Any, tokens: Sequence[str]) -> bool:
    for token in tokens:
        if isinstance(value, Mapping) and token in value:
            value = value[token]
        elif isinstance(value, list) and (index := array_index(token)) is not None and index < len(value):
            value = value[index]
        else:
            return False
    return True


async def watch_header(
    batches: AsyncGenerator[Batch, None], csv: CsvFormat, tell: Callable[[str, str], object]
) -> AsyncGenerator[Batch, None]:
    """Yields what a connection yields, and tells by the first two records of a header that is another one."""
    records: list[bytes] = []
    async with contextlib.aclosing(batches):
        async for batch in batches:
            if len(records) < 2:
                records += batch.first(2)
                if len(records) > 1 and (odd := next(_header_hints(csv, records), None)) is not None:
                    tell(*odd)
            yield batch
            del batch  # or it would stay in memory until the next one comes


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
