"""The encoder of targets with ``columns``: records become rows in the text format of COPY, many at a time.

A value of a JSON record goes to its column as the record has it: strings as what they say, everything else as
its JSON text; what is missing or null is NULL unless the column's rule says otherwise. Into a json or jsonb
column strings go as JSON, too. A field of a CSV record goes there as it is, whatever the column.

All batches of a target, of however many feeds, are cut into *chunks* of some 64 kB. A chunk becomes *columns*:
what every record has for one column of the table. Each column becomes COPY's text by a few searches over the
whole of it, and the rows are put together by `zip` and `join`, without a step of Python for each record::

    {"a": "x", "b": {"c": 1}}        /a     /b/c          x ⇥ 1
    {"a": "y", "b": {"c": 2}}   →    "x"    1       →     y ⇥ 2
                                     "y"    2

A chunk with a record that cannot be encoded is cut up until that record is alone, and set aside (`encoded`): a
record lands the same whatever its neighbours are. Sinks without COPY read the texts of a row back: `texts_of_row`.

msgspec decides what is JSON, and is as strict as the standard library: invalid UTF-8, ``NaN`` and control
characters in strings are refused wherever they stand. It refuses two things that others may take, `BeyondUs`:
nesting deeper than the stack of this interpreter, and half of a surrogate pair, which no UTF-8 can say.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import chain, pairwise, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from feedq.core.model import JSON
from feedq.records.batch import Batch
from feedq.records.csvtext import CsvReader, MalformedLine
from feedq.records.cursor import cursor_text
from feedq.records.pointer import NOTHING, Row, TextPointers, parse_pointer
from feedq.sinks.base import FeedWrite, SuspectRecord, Target, parts
from feedq.sinks.mapping import ColumnSource, Origin, Otherwise
from feedq.sinks.target_table import Column, column_sources

CHUNK_BYTES: Final = 64 * 1024
"""Encoded at a time, so that the server parses one chunk while we make the next."""
CHUNK_RECORDS: Final = 512
"""Of a batch that is not lines."""
TRY_AGAIN_AFTER: Final = 15
"""Chunks: a source that sends nulls or escapes is not tried in vain all the time."""

LF: Final = b"\n"
NUL: Final = b"\0"
NULL: Final = b"null"
NO_TEXT: Final = r"\N"
"""NULL as COPY's text format has it."""
NUL_ERROR: Final = 'invalid byte sequence for encoding "UTF8": 0x00 (22021)'
"""As PostgreSQL says it."""
_ESCAPED: Final = re.compile(r"\\(.)")
_SAID: Final = {"t": "\t", "n": "\n", "r": "\r"}

_elements: Final = msgspec.json.Decoder(list[Raw]).decode
parsed: Final = msgspec.json.Decoder(Raw).decode
"""Takes what is JSON, and makes nothing of it. Raises `msgspec.DecodeError`, `RecursionError`."""


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why.

    Of several records, ``position`` is the index of the one, where that is known. It is only a hint.
    """

    def __init__(self, why: str, *, position: int | None = None) -> None:
        super().__init__(why)
        self.position = position


class BeyondUs(UnreadableRecord):
    """JSON that the parsers here do not take, though perhaps PostgreSQL's do."""


# -- texts -------------------------------------------------------------------------------------------


def check(record: bytes) -> None:
    """Raises `UnreadableRecord` for a record that is not JSON."""
    try:
        parsed(record)
        if not record.isascii():
            decode(record)
    except RecursionError:
        decode(record)
        raise BeyondUs("invalid JSON: nested too deeply") from None
    except msgspec.DecodeError:
        raise _unreadable(decode(record)) from None


def decode(record: bytes) -> str:
    """Raises `UnreadableRecord`."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        why = f"invalid UTF-8: {error.reason} at byte {error.start}"
        raise UnreadableRecord(why, position=record.count(LF, 0, error.start)) from None


def encode(text: str) -> bytes:
    """Raises `UnreadableRecord` for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableRecord(f"invalid text: {error.reason}") from None


def _unreadable(text: str) -> UnreadableRecord:
    """Why msgspec does not take it, in the words of the standard library, which says where and what."""
    try:
        json.loads(text, parse_int=_ignore, parse_float=_ignore, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return UnreadableRecord(f"invalid JSON: {error}")
    except RecursionError:
        return BeyondUs("invalid JSON: nested too deeply")
    return BeyondUs("invalid JSON: half of a surrogate pair; surrogates not allowed")


def _ignore(_number: str) -> None:
    """Numbers of thousands of digits are fine here, and slow to make."""


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


def copied(text: str | None) -> bytes:
    """A text as COPY's text format has it. Raises `UnreadableRecord` for half of a surrogate pair."""
    return NO_TEXT.encode() if text is None else escaped(encode(text))


def escaped(text: bytes) -> bytes:
    return escaped_line(text).replace(LF, rb"\n")


def escaped_line(text: bytes) -> bytes:
    return text.replace(b"\\", rb"\\").replace(b"\t", rb"\t").replace(b"\r", rb"\r")


def row_of(fields: Iterable[str | None]) -> bytes:
    """A row as COPY's text format has it. Raises `UnreadableRecord` for a NUL and for half of a surrogate pair."""
    row = b"\t".join(map(copied, fields)) + LF
    if NUL in row:
        raise UnreadableRecord(NUL_ERROR)
    return row


def texts_of_row(row: str) -> list[str | None]:
    """The texts that a row was made of, without the newline at its end."""
    return [
        None if cell == NO_TEXT else _ESCAPED.sub(_said, cell) if "\\" in cell else cell
        for cell in row.split("\t")
    ]


def _said(escape: re.Match[str]) -> str:
    return _SAID.get(escape[1], escape[1])


# -- chunks ------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Records of one batch, in order: all of them, or some."""

    write: FeedWrite
    batch: Batch
    part: bytes | Sequence[bytes]
    """Lines, each ended by a newline, or records that may hold one."""

    @property
    def records(self) -> Sequence[bytes]:
        return self.part[:-1].split(LF) if isinstance(self.part, bytes) else self.part

    @property
    def text(self) -> bytes:
        """All of the records, one after the other."""
        return self.part if isinstance(self.part, bytes) else LF.join(self.part)


Chunk = Sequence[Span]
"""Spans of a target, in order, of one record at least."""
Encode = Callable[[Chunk], bytes]
"""Raises `UnreadableRecord` if one of the records cannot be encoded."""
SetAside = Callable[[SuspectRecord, str], None]
"""Takes a record that cannot be encoded, and why. What it raises ends the landing."""


def chunks(writes: Iterable[FeedWrite]) -> Iterator[Chunk]:
    """All records of these writes."""
    chunk: list[Span] = []
    size = 0
    for write in writes:
        for batch in write.batches:
            for part in _cut(batch):
                part_size = len(part) if isinstance(part, bytes) else sum(map(len, part))
                if chunk and size + part_size > CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
                chunk.append(Span(write, batch, part))
                size += part_size
    if chunk:
        yield chunk


def encoded(chunk: Chunk, encode: Encode, set_aside: SetAside) -> Iterator[tuple[Chunk, bytes]]:
    """Rows of a chunk, with what they were made of, but for the records that are ``set_aside``."""
    try:
        rows = encode(chunk)
    except UnreadableRecord as unreadable:
        pieces = _pieces(chunk, unreadable.position)
        if not pieces:
            write, batch, (record,) = chunk[0].write, chunk[0].batch, chunk[0].records
            set_aside(SuspectRecord(write, batch, record), str(unreadable))
    else:
        yield chunk, rows
        return
    for piece in pieces:
        yield from encoded(piece, encode, set_aside)


def _cut(batch: Batch) -> Iterable[bytes | Sequence[bytes]]:
    """Cuts a batch into parts, none of them empty."""
    lines = batch.lines
    if lines is None:
        return parts(batch.records or (), CHUNK_RECORDS)
    return (lines,) if 0 < len(lines) <= CHUNK_BYTES else _cut_lines(lines)


def _cut_lines(lines: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(lines):
        end = lines.rfind(LF, start, start + CHUNK_BYTES) + 1 or lines.index(LF, start) + 1
        yield lines[start:end]
        start = end


def _pieces(chunk: Chunk, position: int | None) -> Sequence[Chunk]:
    """Halves of the spans, or of the only span; nothing if it is a single record. With a position, what is before
    and at it comes first, and the rest in halves: others there may be bad, too."""
    if len(chunk) > 1:
        middle = len(chunk) // 2
        return chunk[:middle], chunk[middle:]
    records = chunk[0].records
    if len(records) == 1:
        return ()
    first = (0, position) if position is not None and position < len(records) else ()
    rest = first[-1] + 1 if first else 0
    cuts = (*first, rest, (rest + len(records)) // 2, len(records))
    return [[chunk[0]._replace(part=records[begin:end])] for begin, end in pairwise(cuts) if begin < end]


# -- columns -----------------------------------------------------------------------------------------


class Kind(Enum):
    """The kind of text that a column's input function takes."""

    TEXT = auto()
    JSON = auto()
    BYTES = auto()
    INTEGER = auto()
    """A number that ends with ``.0`` goes there without it."""
    ARRAY = auto()
    """Of PostgreSQL: an array of JSON goes there in its notation."""

    @classmethod
    def of(cls, column: Column) -> Kind:
        return cls.ARRAY if column.type.endswith("[]") else _KINDS.get(column.type, cls.TEXT)


_KINDS: Final = {
    **dict.fromkeys(("json", "jsonb"), Kind.JSON),
    **dict.fromkeys(("bytea", "bytes"), Kind.BYTES),
    **dict.fromkeys(("smallint", "integer", "bigint"), Kind.INTEGER),
}
DIMENSIONS_MAX: Final = 6
"""Of an array of PostgreSQL."""


class Cell:
    """A cell of a row: how one column gets its texts, as COPY has them."""

    def __init__(self, source: ColumnSource, kind: Kind) -> None:
        self.source = source
        self.pointers = (source.pointer, *source.alternatives) if source.origin is Origin.POINTER else ()
        self.kind = kind
        self._instead: dict[bytes, bytes] = {}
        self._refused: dict[bytes, str] = {}
        """For JSON that is not a value: what the column gets instead, or why it refuses it."""
        for value, rule, found in ((bytes(NOTHING), source.missing, "nothing"), (NULL, source.null, "null")):
            if rule is Otherwise.REFUSE:
                self._refused[value] = (
                    f"column {source.column!r}: the record has {found} at {source.pointer}, "
                    "which sink.columns refuses"
                )
            else:
                given = source.default if rule is Otherwise.DEFAULT else "null"
                self._instead[value] = self._text_of_json(given.encode())

    def of_batch(self, write: FeedWrite, batch: Batch) -> bytes:
        """What is the same for all records of a batch. Raises `UnreadableRecord`."""
        match self.source.origin:
            case Origin.FEED:
                return self._text_of_value(write.feed)
            case Origin.EPOCH:
                return b"%d" % write.epoch
            case Origin.RECEIVED_AT:
                return self._text_of_value(batch.received_at.isoformat())
            case Origin.CURSOR:
                return self._text_of_cursor(batch.cursor)
            case _:
                return self._text_of_json(self.source.constant.encode())

    def of_records(self, records: Sequence[bytes]) -> Sequence[bytes]:
        """The records themselves. Raises `UnreadableRecord`."""
        if self.kind is Kind.BYTES:
            return [rb"\\x" + record.hex().encode() for record in records]
        return self._texts_of(records)

    def _texts_of(self, values: Sequence[Any]) -> Sequence[bytes]:
        """The texts of str, or of bytes as they are. Raises `UnreadableRecord`."""
        text = "\n".join(values).encode() if isinstance(values[0], str) else LF.join(values)
        if not text.isascii():
            decode(text)
        texts = escaped_line(text).split(LF)
        return texts if len(texts) == len(values) else list(map(escaped, values))

    def of_fields(self, fields: Sequence[Any], null: bytes | str | None) -> Sequence[bytes]:
        """Fields of CSV, some of which may be ``null``. Raises `UnreadableRecord`."""
        texts = self._texts_of(fields if null is not None else [field or b"" for field in fields])
        if self.kind is Kind.INTEGER:
            texts = list(map(_whole, texts))
        if null not in fields:
            return texts
        instead = self._text_of(NULL)
        return [instead if field == null else text for field, text in zip(fields, texts, strict=True)]

    def of_json(self, values: Sequence[bytes | Raw]) -> Iterable[bytes]:
        """Values of JSON. Raises `UnreadableRecord`."""
        text = LF.join(values)
        if (self.kind is Kind.INTEGER and b".0" in text) or (self.kind is Kind.ARRAY and b"[" in text):
            return list(map(self._text_of, map(bytes, values)))
        has_strings = self.kind is not Kind.JSON and b'"' in text
        if has_strings and text.startswith(b'"') and b"\\" not in text:
            strings = text[1:-1].split(b'"\n"')
            if len(strings) == len(values):
                # There are quotes around every line break, and a value that begins with one is a string.
                return strings
        found = (text if has_strings else escaped_line(text)).split(LF)
        if len(found) > len(values) or (has_strings and (b"\\" in text or b"\t" in text or b"\r" in text)):
            return list(map(self._text_of, map(bytes, values)))
        if not has_strings and not _has_nothing_or_null(text):
            return found
        for value, why in self._refused.items():
            if value in found:
                raise UnreadableRecord(why)
        instead = self._instead
        if not has_strings:
            return map(instead.get, found, found)
        return [
            instead[value] if value in instead else value[1:-1] if value[:1] == b'"' else value
            for value in found
        ]

    def _text_of(self, value: bytes) -> bytes:
        if value in self._refused:
            raise UnreadableRecord(self._refused[value])
        instead = self._instead.get(value)
        return self._text_of_json(value) if instead is None else instead

    def _text_of_json(self, value: bytes) -> bytes:
        """What the column gets for a JSON text."""
        if value == NULL:
            return copied(None)
        if self.kind is Kind.ARRAY and value.startswith(b"["):
            return escaped(array_literal(value))
        if self.kind is Kind.JSON or not value.startswith(b'"'):
            return _whole(value) if self.kind is Kind.INTEGER else escaped(value)
        text = escaped(msgspec.json.decode(value).encode()) if b"\\" in value else value[1:-1]
        return _whole(text) if self.kind is Kind.INTEGER else text

    def _text_of_value(self, value: str) -> bytes:
        return copied(msgspec.json.encode(value).decode() if self.kind is Kind.JSON else value)

    def _text_of_cursor(self, cursor: JSON) -> bytes:
        try:
            text = cursor_text(cursor)
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None
        return copied(cursor if isinstance(cursor, str) and self.kind is not Kind.JSON else text)


class ColumnRows:
    """Encodes records for one target, as rows of the columns that are written."""

    def __init__(self, target: Target, columns: Mapping[str, Column]) -> None:
        sources = column_sources(target, columns)
        self._cells = [Cell(source, Kind.of(columns[source.column])) for source in sources]
        pointers = [pointer for cell in self._cells for pointer in cell.pointers]
        self._csv = CsvReader(target.csv) if target.csv is not None and target.is_mapped else None
        self._fields = [] if self._csv is None else [_field(self._csv, pointer) for pointer in pointers]
        self._pointers = TextPointers(pointers if self._csv is None else ())
        self._is_json = target.format == "json"
        self._has_pointers = bool(pointers)
        self._takes_scalars = self._is_json and _are_members(self._cells)
        self._integers = [itemgetter(n) for n, cell in enumerate(self._cells) if cell.kind is Kind.INTEGER]
        """Of a row of scalars, what columns of integers get."""
        self.skips_checks = self._takes_scalars and bool(self._integers)
        """Whether `encode_quickly` does."""
        self._try_scalars_in = 0
        """Chunks until it is worth another try."""

    def texts(self, write: FeedWrite, batch: Batch, record: bytes) -> list[str | None]:
        """What each column gets. Raises `UnreadableRecord`."""
        return texts_of_row(self.rows([Span(write, batch, [record])])[:-1].decode())

    def encode(self, chunk: Chunk) -> bytes:
        """Rows of a chunk, each ended by a newline, for COPY. Raises `UnreadableRecord`."""
        return _without_nul(self.rows(chunk))

    def encode_quickly(self, chunk: Chunk) -> bytes:
        """The same without a look for numbers with a point in columns of integers, for which the server refuses
        all rows."""
        return _without_nul(self.rows(chunk, quickly=True))

    def rows(self, chunk: Chunk, *, quickly: bool = False) -> bytes:
        """The same for databases that keep a NUL. Raises `UnreadableRecord`."""
        spans = [span.records for span in chunk]
        records = spans[0] if len(spans) == 1 else list(chain.from_iterable(spans))
        found: Sequence[Sequence[Any]] = ()
        null = None
        if self._is_json:
            rows = self._read(chunk, records)
            if (encoded := self._rows_of_scalars(rows, quickly=quickly)) is not None:
                return encoded
            found = self._pointers.columns(rows)
        elif self._csv is not None:
            try:
                found, null = self._csv.columns(records, self._fields)
            except MalformedLine as error:
                raise UnreadableRecord(str(error)) from None
        columns: list[Iterable[bytes]] = []
        values = iter(found)
        for cell in self._cells:
            match cell.source.origin:
                case Origin.POINTER if self._csv is not None:
                    columns.append(cell.of_fields(next(values), null))
                case Origin.POINTER:
                    columns.append(cell.of_json(_first_there([next(values) for _ in cell.pointers])))
                case Origin.RECORD:
                    columns.append(cell.of_records(records))
                case _:
                    texts = [cell.of_batch(span.write, span.batch) for span in chunk]
                    columns.append(chain.from_iterable(map(repeat, texts, map(len, spans))))
        return _joined(zip(*columns, strict=True))

    def _read(self, chunk: Chunk, records: Sequence[bytes]) -> list[Row]:
        """What the records have at the first level. Raises `UnreadableRecord` for what is not JSON."""
        for span in chunk:
            if not span.text.isascii():
                decode(span.text)
        try:
            if self._has_pointers:
                return self._pointers.rows(records)
            deque(map(parsed, records), maxlen=0)
        except (msgspec.DecodeError, RecursionError):
            check(records[0])
            raise BeyondUs("invalid JSON: nested too deeply") from None
        return []

    def _rows_of_scalars(self, rows: Sequence[Row], *, quickly: bool) -> bytes | None:
        """Rows of strings without escapes, numbers, true and false, quicker than column by column; None if there
        is anything else."""
        if not self._takes_scalars:
            return None
        if self._try_scalars_in:
            self._try_scalars_in -= 1
            return None
        text = _joined(rows)
        if b"\\" in text or b"{" in text or b"[" in text or _has_nothing_or_null(text):
            self._try_scalars_in = TRY_AGAIN_AFTER
            return None
        if not quickly and any(b"." in LF.join(map(integer, rows)) for integer in self._integers):
            return None
        # No string holds a quote without a backslash: these are the quotes around strings.
        return text.replace(b'"', b"")


def _without_nul(rows: bytes) -> bytes:
    if NUL in rows:
        raise UnreadableRecord(NUL_ERROR)
    return rows


def _whole(text: bytes) -> bytes:
    return text.removesuffix(b".0")


def array_literal(value: bytes, *, dimensions: int = 1) -> bytes:
    """An array of JSON in PostgreSQL's notation."""
    texts = []
    for element in map(bytes, _elements(value)):
        if element == NULL:
            texts.append(b"NULL")
        elif element.startswith(b"[") and dimensions < DIMENSIONS_MAX:
            texts.append(array_literal(element, dimensions=dimensions + 1))
        elif element.startswith((b'"', b"{", b"[")):
            said = msgspec.json.decode(element).encode() if element.startswith(b'"') else element
            texts.append(b'"%b"' % said.replace(b"\\", rb"\\").replace(b'"', rb"\""))
        else:
            texts.append(element)
    return b"{%b}" % b",".join(texts)


def _field(reader: CsvReader, pointer: str) -> int:
    """Which field of a CSV record it is."""
    place = reader.place(parse_pointer(pointer)[0])
    assert place is not None, f"{pointer} was not checked against the fields"
    return place


def _first_there(columns: Sequence[Sequence[Raw]]) -> Sequence[Raw]:
    """For each record the first of its values that is there."""
    first, *others = columns
    for other in others:
        if any(value is not NOTHING for value in other):
            first = [two if one is NOTHING else one for one, two in zip(first, other, strict=True)]
    return first


def _are_members(cells: Sequence[Cell]) -> bool:
    """Whether every column is another member of the record, and strings in it go as what they say."""
    paths = [parse_pointer(pointer) for cell in cells for pointer in cell.pointers]
    return (
        len(set(paths)) == len(cells)
        and all(len(path) == 1 for path in paths)
        and all(cell.kind is not Kind.JSON and len(cell.pointers) == 1 for cell in cells)
    )


def _joined(rows: Iterable[Iterable[bytes | Raw]]) -> bytes:
    """Rows of texts as COPY has them, each ended by a newline."""
    joined = list(map(b"\t".join, rows))
    joined.append(b"")
    return LF.join(joined)


def _has_nothing_or_null(values: bytes) -> bool:
    """Whether some of these values of JSON may be none; one byte is found ten times as quickly as several."""
    return NUL in values or (b"n" in values and NULL in values)
