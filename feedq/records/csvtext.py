"""Lines of CSV taken apart: the fields of a record, whatever stands between them.

* The delimiter is one character or several; the quote, if there is one, stands at both ends of a field and
  is doubled inside it, as in RFC 4180. A line end within quotes is part of the field.
* An unquoted empty field is null, a quoted one is an empty text, as in PostgreSQL's own CSV.
* A record has as many fields as there are names. Any other number, a quote that is not closed, one within an
  unquoted field, and text after a closing quote make it a `MalformedLine`.

`CsvReader.columns` takes many records apart at once, by the standard library where there are quotes, and one by
one where that could differ from `CsvReader.read`.

Fields are bytes here: nothing is decoded that nobody asks for.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Annotated, Any

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq.core.values import StrictModel
from feedq.records.pointer import MISSING, Missing, parse_pointer
from feedq.records.template import unescape

LF = b"\n"
NAME_CHARACTERS_MAX = 64
"""Of a name in a header line, which each record repeats; no table has a column with a longer one."""
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,17}")
"""As JSON writes one, and surely within 64 bits: nothing of the text is lost."""


class CsvFormat(StrictModel):
    """How the fields of a record are told apart."""

    fields: tuple[str, ...] = ()
    """Names of the fields, in order, for pointers such as `/price`. With `header: true`, a file or stream may
    leave them to its first line; its records then become JSON objects."""
    delimiter: str = ","
    r"""Separates fields; takes escapes such as `\t`."""
    quote: Annotated[str, Field(max_length=1)] = '"'
    """Encloses a field that holds the delimiter, a line end or the quote itself (doubled). Empty turns quoting
    off. An empty field is an empty string if quoted, else null."""
    header: Annotated[bool, Field(validate_default=True)] = False
    """Skips lines that are just the names of the fields."""

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in fields if fields.count(name) > 1})
        if twice:
            raise ValueError(
                f"{', '.join(map(repr, twice))} is given twice; each field needs a name of its own"
            )
        return fields

    @field_validator("header")
    @classmethod
    def _check_header(cls, header: bool, info: ValidationInfo) -> bool:
        if not header and info.data.get("fields") == ():
            raise ValueError("must be true unless source.csv.fields names at least one field")
        return header

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str) -> str:
        between = unescape(delimiter)
        if not between or any(character in between for character in b"\r\n"):
            raise ValueError("must be at least one character and no line break")
        return delimiter

    @field_validator("quote")
    @classmethod
    def _check_quote(cls, quote: str, info: ValidationInfo) -> str:
        if quote in ("\r", "\n"):
            raise ValueError("must not be a line break")
        if quote and quote.encode() in unescape(info.data.get("delimiter", ",")):
            raise ValueError("must not be part of source.csv.delimiter")
        return quote


def field_names(header: bytes, csv: CsvFormat) -> tuple[str, ...] | None:
    """The names in a header line; None if it cannot name fields: a name is there twice, or too long."""
    try:
        fields = CsvReader(csv).split(header)
        names = tuple((field or b"").decode() for field in fields)
    except ValueError:
        return None
    is_fit = len(set(names)) == len(names) and max(map(len, names)) <= NAME_CHARACTERS_MAX
    return names if is_fit else None


def as_object(names: Sequence[str], fields: Sequence[bytes | None]) -> bytes:
    """Fields as a JSON object: a number if it is written as JSON writes an integer, else a string, null for null.

    Raises `UnicodeDecodeError`.
    """
    return msgspec.json.encode(
        {name: None if field is None else _as_json(field) for name, field in zip(names, fields, strict=True)}
    )


def _as_json(field: bytes) -> msgspec.Raw | str:
    return msgspec.Raw(field) if _INTEGER.fullmatch(field) else field.decode()


class MalformedLine(ValueError):
    """A record that is not as the format says; the message says why."""


class CsvReader:
    """Reads records of one format."""

    def __init__(self, csv_format: CsvFormat) -> None:
        self.names = csv_format.fields
        self._places = {name: place for place, name in enumerate(csv_format.fields)}
        self._delimiter = unescape(csv_format.delimiter)
        self._quote = csv_format.quote.encode()

    def place(self, name: str) -> int | None:
        """Which field has that name."""
        return self._places.get(name)

    def split(self, record: bytes) -> list[bytes | None]:
        """The fields, however many there are. Raises `MalformedLine`."""
        if self._quote and self._quote in record:
            return self._read_quoted(record)
        return [field or None for field in record.split(self._delimiter)]

    def read(self, record: bytes) -> list[bytes | None]:
        """The fields in their order, None for null. Raises `MalformedLine`."""
        fields = self.split(record)
        if len(fields) != len(self.names):
            raise MalformedLine(
                f"invalid CSV: {_counted(len(fields))}, and source.csv.fields names {len(self.names)}"
            )
        return fields

    def columns(self, records: Sequence[bytes], places: Sequence[int]) -> tuple[list[Sequence[Any]], Any]:
        """Those fields of many records, all of them as bytes or all as str, and what stands for null among them.

        Raises `MalformedLine` if one of the records is.
        """
        text = LF.join(records)
        rows: Sequence[Sequence[Any]] | None
        null: bytes | str | None
        if self._quote and self._quote in text:
            rows, null = self._split_quoted(text, len(records)), ""
        else:
            rows, null = list(map(bytes.split, records, repeat(self._delimiter))), b""
        if rows is None or set(map(len, rows)) != {len(self.names)}:
            rows, null = list(map(self.read, records)), None
        columns = list(zip(*rows, strict=True))
        return [columns[place] for place in places], null

    def _read_quoted(self, record: bytes) -> list[bytes | None]:
        fields: list[bytes | None] = []
        at = 0
        while True:
            field, at = self._field_at(record, at)
            fields.append(field)
            if at == len(record):
                return fields
            if not record.startswith(self._delimiter, at):
                raise MalformedLine(f"invalid CSV: text after the closing quote of field {len(fields)}")
            at += len(self._delimiter)

    def _field_at(self, record: bytes, at: int) -> tuple[bytes | None, int]:
        """A field and where it ends."""
        quote = self._quote
        if not record.startswith(quote, at):
            end = record.find(self._delimiter, at)
            end = len(record) if end < 0 else end
            if quote in (field := record[at:end]):
                raise MalformedLine(
                    "invalid CSV: a quote within a field that does not begin with one; quote the whole field and "
                    "double the quote, or set source.csv.quote to ''"
                )
            return field or None, end
        begin = end = at + len(quote)
        while (end := record.find(quote, end)) >= 0 and record.startswith(quote, end + len(quote)):
            end += 2 * len(quote)
        if end < 0:
            raise MalformedLine("invalid CSV: a quote is not closed")
        return record[begin:end].replace(quote * 2, quote), end + len(quote)

    def _split_quoted(self, lines: bytes, count: int) -> list[list[str]] | None:
        """Splits by the standard library: one character delimits, and a quoted empty field is like a null."""
        try:
            text, delimiter, quote = lines.decode(), self._delimiter.decode(), self._quote.decode()
        except UnicodeDecodeError:
            return None
        if len(delimiter) > 1 or quote * 2 in text or "\r" in text or text.count("\n") != count - 1:
            return None
        # Strict: text after a closing quote is an error there, too.
        reader = csv.reader(text.split("\n"), delimiter=delimiter, quotechar=quote, strict=True)
        try:
            rows = list(reader)
        except csv.Error:
            return None
        # An open quote swallows lines that follow. None is doubled, so one that is left is in an unquoted field.
        is_plain = len(rows) == count and quote not in "".join(chain.from_iterable(rows))
        return rows if is_plain else None


def _counted(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"


def field_finder(pointer: str, csv_format: CsvFormat) -> Callable[[bytes], bytes | Missing]:
    """Returns what finds a field in a record, as JSON text: a number if it is written as JSON writes an integer,
    so that it is repeated as the source sent it; any other is a string.

    Raises `ValueError` for a pointer that names no field; what it returns does so for a record that is none.
    """
    reader = CsvReader(csv_format)
    names = parse_pointer(pointer)
    place = reader.place(names[0]) if len(names) == 1 else None
    if place is None:
        known = ", ".join(map(repr, csv_format.fields))
        raise ValueError(f"{pointer!r} is not a field of the records; source.csv.fields has {known}")

    def find(record: bytes) -> bytes | Missing:
        field = reader.read(record)[place]
        if field is None:
            return MISSING
        return field if _INTEGER.fullmatch(field) else msgspec.json.encode(field.decode())

    return find
