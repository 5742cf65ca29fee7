"""Rows of a target with ``columns``, in the text format of COPY: a text for each column's input function.

A value of a JSON record goes to its column as the record has it: strings as what they say, everything else as
its JSON text; what is missing or null is NULL unless the column's rule says otherwise. Into a json or jsonb
column strings go as JSON, too. A field of a CSV record goes there as it is, whatever the column.

`ColumnRows.record` is the plain reference, one record and one column at a time. `ColumnRows.encode` gives the
same bytes by way of `QuickRows` where it can, and where it cannot by the reference. A record lands the same
whatever its neighbours are, and one that cannot be encoded is set aside.

msgspec decides what is JSON, and is as strict as the standard library: invalid UTF-8, ``NaN`` and control
characters in strings are refused wherever they stand. It refuses two things that others may take, `BeyondUs`:
nesting deeper than the stack of this interpreter, and half of a surrogate pair, which no UTF-8 can say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import repeat
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from feedq.core.model import JSON, Batch
from feedq.records.csvtext import CsvReader, MalformedLine
from feedq.records.framing import RecordFormat
from feedq.records.pointer import MISSING, Missing, TextPointers, array_index, parse_pointer
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord, Target
from feedq.sinks.checkpoints import cursor_text
from feedq.sinks.mapping import ColumnSource, Origin, Otherwise
from feedq.sinks.target_table import Column, column_sources

parsed: Final = msgspec.json.Decoder(Raw).decode
"""Takes what is JSON, and makes nothing of it. Raises `msgspec.DecodeError`, `RecursionError`."""
items: Final = msgspec.json.Decoder(list[Raw]).decode
"""The elements of an array that is part of a record."""
LF: Final = b"\n"
NUL: Final = b"\0"
NULL: Final = r"\N"
"""As COPY's text format has it."""
Part = bytes | Sequence[bytes]
"""Of a batch: whole lines, each ended by a newline, or records that may hold one."""
_ESCAPED: Final = re.compile(r"[\\\t\n\r]")
_ESCAPES: Final = {ord("\\"): r"\\", ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r"}


NUL_ERROR: Final = 'invalid byte sequence for encoding "UTF8": 0x00 (22021)'
"""As PostgreSQL says it."""


class UnreadableRecord(Exception):
    """A record that cannot even be sent to the database; the message says why."""


class BeyondUs(UnreadableRecord):
    """JSON that the parsers here do not take, though perhaps PostgreSQL's do."""


def check(record: bytes) -> None:
    """Raises `UnreadableRecord` for a record that is no JSON."""
    try:
        parsed(record)
        if not record.isascii():
            decode(record)
    except RecursionError:
        decode(record)
        raise BeyondUs("invalid JSON: nested too deeply") from None
    except msgspec.DecodeError:
        raise _unreadable(decode(record)) from None


def unquote(string: bytes) -> str:
    """What a JSON string says."""
    said: str = msgspec.json.decode(string)
    return said


def decode(record: bytes) -> str:
    """Raises `UnreadableRecord`."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord(f"invalid UTF-8: {error.reason} at byte {error.start}") from None


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


def copied(text: str | None) -> str:
    """A text as COPY's text format has it."""
    if text is None:
        return NULL
    return text.translate(_ESCAPES) if _ESCAPED.search(text) else text


def row_of(fields: Iterable[str | None]) -> bytes:
    """A row as COPY's text format has it. Raises `UnreadableRecord` for a NUL and for half of a surrogate pair."""
    row = encode("\t".join(map(copied, fields))) + LF
    if NUL in row:
        raise UnreadableRecord(NUL_ERROR)
    return row


class Kind(Enum):
    """The kind of text that a column's input function takes."""

    TEXT = auto()
    JSON = auto()
    BYTES = auto()

    @classmethod
    def of(cls, column: Column) -> Kind:
        kinds = {"json": cls.JSON, "jsonb": cls.JSON, "bytea": cls.BYTES, "bytes": cls.BYTES}
        return kinds.get(column.type, cls.TEXT)


class Cell:
    """A cell of a row: how one column gets its text."""

    def __init__(self, source: ColumnSource, kind: Kind) -> None:
        self.source = source
        self.kind = kind
        self.pointers = (source.pointer, *source.alternatives)
        self.paths = tuple(map(parse_pointer, self.pointers))
        self.default = self.text_of_json(source.default.encode())

    def text_of_json(self, value: bytes) -> str | None:
        """What the column gets for a JSON text."""
        if value == b"null":
            return None
        if self.kind is not Kind.JSON and value.startswith(b'"'):
            return unquote(value)
        return value.decode()

    def place_in(self, reader: CsvReader) -> int:
        """Which field of a CSV record it is."""
        place = reader.place(self.paths[0][0])
        assert place is not None, f"{self.source.pointer} was not checked against the fields"
        return place

    def instead_of_nothing(self) -> str | None:
        """What the column gets where the record has nothing. Raises `UnreadableRecord`."""
        return self._otherwise(self.source.missing, "nothing")

    def instead_of_null(self) -> str | None:
        """What the column gets where the record has a null. Raises `UnreadableRecord`."""
        return self._otherwise(self.source.null, "null")

    def text_of_record(self, record: bytes) -> str:
        """Raises `UnreadableRecord`."""
        return "\\x" + record.hex() if self.kind is Kind.BYTES else decode(record)

    def text_of_batch(self, write: FeedWrite, batch: Batch) -> str | None:
        """What is the same for all records of a batch. Raises `UnreadableRecord`."""
        match self.source.origin:
            case Origin.FEED:
                return self._text_of_value(write.feed)
            case Origin.EPOCH:
                return str(write.epoch)
            case Origin.RECEIVED_AT:
                return self._text_of_value(batch.received_at.isoformat())
            case Origin.CURSOR:
                return self._text_of_cursor(batch.cursor)
            case _:
                return self.text_of_json(self.source.constant.encode())

    def _otherwise(self, rule: Otherwise, found: str) -> str | None:
        if rule is Otherwise.REFUSE:
            raise UnreadableRecord(
                f"column {self.source.column!r}: the record has {found} at {self.source.pointer}, "
                "which sink.columns refuses"
            )
        return self.default if rule is Otherwise.DEFAULT else None

    def _text_of_value(self, value: str) -> str:
        return msgspec.json.encode(value).decode() if self.kind is Kind.JSON else value

    def _text_of_cursor(self, cursor: JSON) -> str | None:
        try:
            text = cursor_text(cursor)
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None
        return cursor if isinstance(cursor, str) and self.kind is not Kind.JSON else text


FEW: Final = 4
"""Records for which the fast path is none: it begins to pay with about so many."""

Value = bytes | Missing | None
"""What a record has at a path: in JSON a text, or nothing; in CSV a field, or a null."""


class ColumnRows:
    """Encodes batches for one target with ``columns``."""

    header = b""
    trailer = b""

    def __init__(self, target: Target, columns: Mapping[str, Column]) -> None:
        self._format = target.format
        self._csv = CsvReader(target.csv) if target.csv is not None else None
        self._cells = tuple(
            Cell(source, Kind.of(columns[source.column])) for source in column_sources(target, columns)
        )
        self._pointers: list[str] = []
        self._places: list[int] = []
        """Where in what `_read` gives each cell's value is; of one with several pointers, that of the first."""
        for cell in self._cells:
            points = cell.source.origin is Origin.POINTER
            self._places.append(
                cell.place_in(self._csv) if points and self._csv is not None else len(self._pointers)
            )
            self._pointers += cell.pointers if points else ()
        self._find = TextPointers(self._pointers).find
        self._quick = QuickRows(self._cells, target.format, csv=self._csv)

    def fields(self, write: FeedWrite, batch: Batch, record: bytes) -> list[str | None]:
        """What each column gets, unescaped. Raises `UnreadableRecord`."""
        found = self._read(record)
        return [
            self._text_of(cell, found, place)
            if cell.source.origin is Origin.POINTER
            else cell.text_of_record(record)
            if cell.source.origin is Origin.RECORD
            else cell.text_of_batch(write, batch)
            for cell, place in zip(self._cells, self._places, strict=True)
        ]

    def record(self, write: FeedWrite, batch: Batch, record: bytes) -> bytes:
        """Encodes one row. Raises `UnreadableRecord`."""
        return row_of(self.fields(write, batch, record))

    def encode(
        self,
        write: FeedWrite,
        batch: Batch,
        parts: Iterable[Part],
        dead: list[DeadRecord],
        *,
        strict: bool,
    ) -> Iterable[bytes]:
        """Encodes a batch, part by part; records that cannot be encoded go to ``dead``, ``strict`` or not."""
        return (self._encode_part(write, batch, part, dead) for part in parts)

    def _encode_part(self, write: FeedWrite, batch: Batch, part: Part, dead: list[DeadRecord]) -> bytes:
        if isinstance(part, bytes):
            return self._rows(write, batch, part, dead)
        lines = LF.join([*part, b""])
        if lines.count(LF) != len(part):
            return self._rows_singly(write, batch, part, dead)
        return self._rows(write, batch, lines, dead)

    def _rows(self, write: FeedWrite, batch: Batch, lines: bytes, dead: list[DeadRecord]) -> bytes:
        """Rows of lines, in halves where they are not alike: one odd record should not slow down the others."""
        records = lines[:-1].split(LF)
        if len(records) >= FEW:
            rows = self._quick.rows(write, batch, lines=lines, records=records)
            if rows is not None and NUL not in rows:
                return rows
        if len(records) < 2 * FEW:
            return self._rows_singly(write, batch, records, dead)
        middle = lines.find(LF, len(lines) // 2, -1) + 1 or lines.rfind(LF, 0, -1) + 1
        first, second = lines[:middle], lines[middle:]
        return self._rows(write, batch, first, dead) + self._rows(write, batch, second, dead)

    def _rows_singly(
        self, write: FeedWrite, batch: Batch, records: Iterable[bytes], dead: list[DeadRecord]
    ) -> bytes:
        rows = []
        for record in records:
            try:
                rows.append(self.record(write, batch, record))
            except UnreadableRecord as unreadable:
                dead.append((SuspectRecord(write, batch, record), str(unreadable)))
        return b"".join(rows)

    def _text_of(self, cell: Cell, found: Sequence[Value], place: int) -> str | None:
        value = found[place]
        if value is MISSING:
            others = found[place + 1 : place + len(cell.pointers)]
            value = next((other for other in others if other is not MISSING), MISSING)
        if value is MISSING:
            return cell.instead_of_nothing()
        if value is None or (value == b"null" and self._csv is None):
            return cell.instead_of_null()
        return cell.text_of_json(value) if self._csv is None else decode(value)

    def _read(self, record: bytes) -> Sequence[Value]:
        """What a record has: in CSV its fields, in JSON what the pointers of all columns point at.

        Raises `UnreadableRecord` for one that is not of its format.
        """
        if self._csv is not None:
            try:
                return self._csv.read(record)
            except MalformedLine as error:
                raise UnreadableRecord(str(error)) from None
        if self._format != "json":
            return ()
        if not self._pointers:
            check(record)
            return ()
        try:
            found = self._find(record)
        except ValueError:
            check(record)
            raise BeyondUs("invalid JSON: nested too deeply") from None
        if not record.isascii():
            decode(record)
        return found


NOTHING: Final = b"\0"
"""Stands in a column where a record of JSON has nothing: no JSON text holds it."""
NULL_IN_CSV: Final = b""
TRY_AGAIN_AFTER: Final = 15
"""Chunks: a source that sends nulls or escapes is not tried in vain all the time."""
Path = tuple[str, ...]
Row = tuple[Raw, ...]


class NotAlike(Exception):
    """Says that records are not all as they must be to be taken together."""


class QuickRows:
    r"""Encodes a whole chunk of records at once, without a step of Python for each.

    A chunk becomes *columns*, one `bytes` each: what every record has at one pointer, as the record has it, on
    lines of its own. Each column becomes COPY's text by a few searches over the whole of it, and the rows are put
    together by `zip` and `join`::

        {"a": "x", "b": {"c": 1}}        /a     /b             /b/c          x ⇥ 1
        {"a": "y", "b": {"c": 2}}   →    "x"    {"c": 1}   →   1       →     y ⇥ 2
                                         "y"    {"c": 2}       2

    msgspec decodes a record into a struct that has just the members asked for, as views of the record; what a
    pointer goes on into is decoded again as lines, level by level. Where all that is asked for are members that
    are numbers, strings without escapes, and the like, it is quicker still the other way round: rows are joined
    out of the structs, and quotes taken out of the whole of it.

    It changes no row: whatever could come out otherwise than by `ColumnRows.record` is left to that, and `rows`
    is None. Those are chunks with a record that is no JSON object or no UTF-8, with lines of CSV that are not all
    alike, and with anything that a column refuses.
    """

    def __init__(self, cells: Sequence[Cell], record_format: RecordFormat, *, csv: CsvReader | None) -> None:
        self._texts = [ColumnText(cell, is_csv=csv is not None) for cell in cells]
        self._csv = csv
        self._takes_scalars = _are_members(cells)
        self._try_scalars_in = 0
        """Chunks until it is worth another try."""
        pointing = [cell for cell in cells if cell.source.origin is Origin.POINTER]
        self._places = {} if csv is None else {cell.paths[0]: cell.place_in(csv) for cell in pointing}
        try:
            paths = [path for cell in pointing for path in cell.paths]
            self._members = Members(paths) if record_format == "json" else None
            self._is_possible = True
        except ValueError:
            # msgspec has no structs with quotes or backslashes in the names of members.
            self._is_possible = False

    def rows(self, write: FeedWrite, batch: Batch, *, lines: bytes, records: Sequence[bytes]) -> bytes | None:
        """Rows of records of the batch, each ended by a newline; None: take them one by one.

        ``lines`` is the records, each ended by a newline, too.
        """
        if not self._is_possible:
            return None
        try:
            if not lines.isascii():
                lines.decode()
            if self._members is None:
                found = self._find_in_csv(lines)
            else:
                structs = self._members.read(records)
                rows = self._rows_of_scalars(structs)
                if rows is not None:
                    return rows
                found = self._members.find(structs)
            columns = [text.of(found, write, batch, records) for text in self._texts]
        except (NotAlike, UnreadableRecord, UnicodeDecodeError):
            return None
        return _joined(zip(*columns, strict=True))

    def _rows_of_scalars(self, structs: Sequence[Row]) -> bytes | None:
        """Rows of strings without escapes, numbers, true and false; None if there is anything else."""
        if not self._takes_scalars:
            return None
        if self._try_scalars_in:
            self._try_scalars_in -= 1
            return None
        rows = _joined(structs)
        if b"\\" in rows or b"{" in rows or b"[" in rows or _has_nothing_or_null(rows):
            self._try_scalars_in = TRY_AGAIN_AFTER
            return None
        # No string holds a quote without a backslash: these are the quotes around strings.
        return rows.replace(b'"', b"")

    def _find_in_csv(self, lines: bytes) -> Mapping[Path, bytes]:
        """What the records have at each path. Raises `NotAlike`."""
        if self._csv is None:
            return {}
        columns = self._csv.columns(lines, list(self._places.values()))
        if columns is None:
            raise NotAlike
        return dict(zip(self._places, columns, strict=True))


class Members:
    """What is asked for of a JSON object: some of its members, and of some of them members again."""

    def __init__(self, paths: Collection[Path], *, at: Path = ()) -> None:
        """``paths`` from ``at`` on. Raises `ValueError` for names that msgspec does not know."""
        deeper: dict[str, list[Path]] = {}
        for path in dict.fromkeys(paths):
            deeper.setdefault(path[len(at)], []).append(path)
        self._places = [place for token in deeper if (place := array_index(token)) is not None]
        self._paths = [(*at, token) for token in deeper]
        self._all_paths = {*self._paths, *paths}
        self._inner: list[tuple[int, Members]] = []
        for number, (path, below) in enumerate(zip(self._paths, deeper.values(), strict=True)):
            further = [longer for longer in below if len(longer) > len(path)]
            if further:
                self._inner.append((number, Members(further, at=path)))
        names = {f"member_{number}": token for number, token in enumerate(deeper)}
        # Unknown to the cycle collector: they refer to bytes only, and live for a moment.
        kind = msgspec.defstruct(
            "Members", [(name, Raw, Raw(NOTHING)) for name in names], rename=names, gc=False
        )
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, records: Iterable[bytes]) -> list[Row]:
        """What whole records have there. Raises `NotAlike`."""
        try:
            # Each by itself, and not all at once as lines: lines might be more or fewer values than they are.
            return list(map(astuple, map(self._decoder.decode, records)))
        except (msgspec.DecodeError, RecursionError):
            raise NotAlike from None

    def find(self, rows: Iterable[Row]) -> dict[Path, bytes]:
        """What there is at each path, and further on."""
        # Member by member, each on lines of its own.
        columns = list(map(LF.join, zip(*rows, strict=True)))
        found = dict(zip(self._paths, columns, strict=False))
        for number, members in self._inner:
            found |= members.find_in_values(columns[number])
        return found

    def find_in_values(self, values: bytes) -> dict[Path, bytes]:
        """What there is in values of any kind, on lines of their own."""
        if not values.strip(NOTHING + LF):
            return dict.fromkeys(self._all_paths, values)
        if not (values.startswith(b"{") and values.count(b"\n{") == values.count(LF)):
            values = LF.join(map(self._object, values.split(LF)))
        return self.find(map(astuple, self._decoder.decode_lines(values)))

    def _object(self, value: bytes) -> bytes:
        """An object with what the pointers find in a value."""
        if value.startswith(b"{"):
            return value
        if value.startswith(b"[") and self._places:
            elements = items(value)
            members = [b'"%d":%b' % (n, elements[n]) for n in self._places if n < len(elements)]
            return b"{%b}" % b",".join(members)
        return b"{}"


class ColumnText:
    """Turns what records have for one column into COPY's text, all of a chunk at once."""

    def __init__(self, cell: Cell, *, is_csv: bool) -> None:
        self._cell = cell
        self._unquotes = not is_csv and cell.kind is not Kind.JSON
        """Strings go as what they say."""
        self._has_gaps = _has_null_in_csv if is_csv else _has_nothing_or_null
        self._instead: dict[bytes, bytes] = {}
        self._refused: list[bytes] = []
        """Texts that are no values, and what the column gets instead of each, if it does not refuse it."""
        nothing, null = cell.instead_of_nothing, cell.instead_of_null
        for text, instead in ((NULL_IN_CSV, null),) if is_csv else ((NOTHING, nothing), (b"null", null)):
            try:
                self._instead[text] = copied(instead()).encode()
            except UnreadableRecord:
                self._refused.append(text)

    def of(
        self, found: Mapping[Path, bytes], write: FeedWrite, batch: Batch, records: Sequence[bytes]
    ) -> Iterable[bytes]:
        """The column's text of each record. Raises `NotAlike`, `UnreadableRecord`."""
        match self._cell.source.origin:
            case Origin.POINTER:
                return self._texts(self._values(found), len(records))
            case Origin.RECORD if self._cell.kind is Kind.BYTES:
                return [copied(self._cell.text_of_record(record)).encode() for record in records]
            case Origin.RECORD:
                return _escaped(LF.join(records)).split(LF)
            case _:
                return repeat(copied(self._cell.text_of_batch(write, batch)).encode(), len(records))

    def _values(self, found: Mapping[Path, bytes]) -> bytes:
        """What there is at the first of the cell's paths that has anything."""
        first, *others = [found[path] for path in self._cell.paths]
        for other in others:
            if other.strip(NOTHING + LF):
                pairs = zip(first.split(LF), other.split(LF), strict=True)
                first = LF.join([instead if value == NOTHING else value for value, instead in pairs])
        return first

    def _texts(self, values: bytes, count: int) -> Iterable[bytes]:
        if self._unquotes and b'"' in values:
            return self._texts_of_strings(values, count)
        texts = _escaped(values).split(LF)
        return map(self._instead.get, texts, self._none_refused(texts)) if self._has_gaps(values) else texts

    def _texts_of_strings(self, values: bytes, count: int) -> Iterable[bytes]:
        """The texts of values some of which are strings, or look like it."""
        if values.startswith(b'"') and b"\\" not in values:
            strings = values[1:-1].split(b'"\n"')
            if len(strings) == count:
                # There are quotes around every line break, and a value that begins with one is a string.
                return strings
        found = self._none_refused(values.split(LF))
        if b"\\" in values or b"\t" in values or b"\r" in values:
            return map(self._text, found)
        instead = self._instead
        return [
            instead[value] if value in instead else value[1:-1] if value[:1] == b'"' else value
            for value in found
        ]

    def _text(self, value: bytes) -> bytes:
        instead = self._instead.get(value)
        return copied(self._cell.text_of_json(value)).encode() if instead is None else instead

    def _none_refused(self, values: list[bytes]) -> list[bytes]:
        """Returns the values, if the column refuses none of them. Raises `NotAlike`."""
        if any(map(values.__contains__, self._refused)):
            raise NotAlike
        return values


def _are_members(cells: Sequence[Cell]) -> bool:
    """Whether every column is another member of the record, and strings in it go as what they say."""
    paths = [path for cell in cells if cell.source.origin is Origin.POINTER for path in cell.paths]
    return (
        len(set(paths)) == len(cells)
        and all(len(path) == 1 for path in paths)
        and all(cell.kind is not Kind.JSON for cell in cells)
    )


def _joined(rows: Iterable[Iterable[bytes | Raw]]) -> bytes:
    """Rows of texts as COPY has them, each ended by a newline."""
    joined = list(map(b"\t".join, rows))
    joined.append(b"")
    return LF.join(joined)


def _has_nothing_or_null(values: bytes) -> bool:
    """Whether some of these values of JSON may be none; one byte is found ten times as quickly as several."""
    return NOTHING in values or (b"n" in values and b"null" in values)


def _has_null_in_csv(values: bytes) -> bool:
    return not values or values.startswith(LF) or values.endswith(LF) or b"\n\n" in values


def _escaped(values: bytes) -> bytes:
    """Values on lines of their own, as COPY's text format has them."""
    return values.replace(b"\\", rb"\\").replace(b"\t", rb"\t").replace(b"\r", rb"\r")
