"""Rows of a landing with ``columns``, in the text format of COPY: a text for each column's input function.

A value of a JSON record goes to its column as the record has it: strings as what they say, everything else as
its JSON text; what is missing or null is NULL unless the column's rule says otherwise. Into a json or jsonb
column strings go as JSON, too. A field of a CSV record goes there as it is, whatever the column.

`ColumnRows.record` is the plain reference, one record and one column at a time. `ColumnRows.chunks` gives the
same bytes by way of `feedq.sinks.copycolumns` where it can, and where it cannot by the reference. A record
lands the same whatever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from feedq.connectors.records.csvtext import CsvReader, MalformedLine
from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.cells import Cell, Kind, copied
from feedq.sinks.copybinary import cut_lines, cut_records
from feedq.sinks.copycolumns import QuickRows
from feedq.sinks.jsontext import JsonRecord, UnreadableRecord, decode, encode, read
from feedq.sinks.landing import Column, column_sources
from feedq.sinks.mapping import Origin

FEW: Final = 4
"""Records for which the fast path is none: it begins to pay with about so many."""

Lookup = Callable[[Cell], str | None]
"""What a column gets from a record that was read. Raises `UnreadableRecord`."""


class ColumnRows:
    """Encodes batches for one landing with ``columns``."""

    header = b""
    trailer = b""

    def __init__(self, landing: Landing, columns: Mapping[str, Column]) -> None:
        self._format = landing.format
        self._csv = CsvReader(landing.csv) if landing.csv is not None else None
        self._cells = tuple(
            Cell(source, Kind.of(columns[source.column])) for source in column_sources(landing, columns)
        )
        self._quick = QuickRows(self._cells, landing.format, csv=self._csv)

    def fields(self, write: FeedWrite, batch: Batch, record: bytes) -> list[str | None]:
        """What each column gets, unescaped. Raises `UnreadableRecord`."""
        look_up = self._read(record)
        return [self._text(cell, look_up, write, batch, record) for cell in self._cells]

    def record(self, write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        """One row. Raises `UnreadableRecord`."""
        return encode("\t".join(map(copied, self.fields(write, batch, record)))) + b"\n"

    def chunks(self, write: FeedWrite, batch: Batch) -> Iterator[bytes]:
        """All rows of a batch, some at a time. Raises `UnreadableRecord`."""
        for chunk in _split(batch):
            if isinstance(chunk, bytes):
                yield from self._rows(write, batch, chunk)
            else:
                yield self._rows_singly(write, batch, chunk)

    def _rows(self, write: FeedWrite, batch: Batch, lines: bytes) -> Iterator[bytes]:
        """Rows of lines, in halves where they are not alike: one odd record should not slow down the others."""
        records = lines[:-1].split(b"\n")
        if len(records) >= FEW:
            rows = self._quick.rows(write, batch, lines=lines, records=records)
            if rows is not None:
                yield rows
                return
        if len(records) < 2 * FEW:
            yield self._rows_singly(write, batch, records)
        else:
            middle = lines.find(b"\n", len(lines) // 2, -1) + 1 or lines.rfind(b"\n", 0, -1) + 1
            yield from self._rows(write, batch, lines[:middle])
            yield from self._rows(write, batch, lines[middle:])

    def _rows_singly(self, write: FeedWrite, batch: Batch, records: Iterable[bytes]) -> bytes:
        return b"".join([self.record(write, batch, record) for record in records])

    def _text(self, cell: Cell, look_up: Lookup, write: FeedWrite, batch: Batch, record: bytes) -> str | None:
        if cell.source.origin is Origin.POINTER:
            return look_up(cell)
        if cell.source.origin is Origin.RECORD:
            return cell.text_of_record(record)
        return cell.text_of_batch(write, batch)

    def _read(self, record: bytes) -> Lookup:
        """Raises `UnreadableRecord` for a record that is not of its format."""
        if self._format == "json":
            return _look_up_json(read(record))
        if self._csv is not None:
            return _look_up_csv(self._csv, record)
        return _look_up_nothing


def _look_up_json(document: JsonRecord) -> Lookup:
    def look_up(cell: Cell) -> str | None:
        for path in cell.paths:
            found = document.find(path)
            if found is not None:
                return cell.instead_of_null() if found == b"null" else cell.text_of_json(found)
        return cell.instead_of_nothing()

    return look_up


def _look_up_csv(reader: CsvReader, record: bytes) -> Lookup:
    try:
        fields = reader.read(record)
    except MalformedLine as error:
        raise UnreadableRecord(str(error)) from None

    def look_up(cell: Cell) -> str | None:
        field = fields[cell.place_in(reader)]
        return cell.instead_of_null() if field is None else decode(field)

    return look_up


def _look_up_nothing(cell: Cell) -> str | None:
    raise AssertionError(f"column {cell.source.column!r} points into records that have no parts")


def _split(batch: Batch) -> Iterator[bytes | Sequence[bytes]]:
    """The records of a batch, some at a time and never none; as lines, each ended by a newline, if possible."""
    if batch.records is None:
        yield from cut_lines(batch.lines or b"")
        return
    for records in cut_records(batch.records):
        lines = b"\n".join([*records, b""])
        yield lines if lines.count(b"\n") == len(records) else records
