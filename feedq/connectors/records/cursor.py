"""Cursors read out of records: where to resume after, as the records themselves say it.

Only the last record of a batch that has one is read: a cursor resumes *after* it, so earlier ones do not
matter. A record that is not of its format, or has nothing (or a null) there, is passed over: the sink decides
what becomes of it, and the cursor stays with the record before it. Nothing but the cursor is parsed of a
record, so that its cursor counts although something else in it is no UTF-8.

In CSV a cursor is a field. One that is written as an integer is written becomes a number, so that a hello or
a URL repeats it as the source sent it; any other is a string.

A cursor that could not be kept exactly would resume at the wrong place, so it stops the feed instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

import orjson
from pydantic import ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, CsvFormat, check_format
from feedq.connectors.records.csvtext import CsvReader, MalformedLine
from feedq.connectors.records.framing import LF, STEP_RECORDS, Framed
from feedq.connectors.records.pointer import MISSING, Found, TextPointers, array_index, parse_pointer
from feedq.connectors.records.turns import SLICE_BYTES, Steps, at_once, in_turns
from feedq.errors import FeedMisconfigured
from feedq.model import JSON

CURSOR_BYTES_MAX = 8 * 1024
"""The cursor is written with every commit and sent with every hello: it is a position, not a payload."""
_TEXT_BYTES_MAX = 8 * CURSOR_BYTES_MAX
"""A longer text is no cursor, however much of it may be blanks and escapes."""
SMALL_BYTES = 4 * 1024
"""What is parsed as a whole takes a hundredth of a millisecond at most."""
_EXACT_BELOW = 2.0**63
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON text escapes it: after an even number of backslashes."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""As JSON writes one, and surely within 64 bits: nothing of the text is lost."""


class CursorReader:
    """Reads the cursor of one feed."""

    def __init__(self, pointer: str, csv: CsvFormat | None = None, *, option: str = "cursor") -> None:
        """Raises `ValueError` for a pointer that is none, or names no field of CSV."""
        self._where = f"source.{option} {pointer}"
        self._find = _find_in_json(pointer) if csv is None else _find_in_csv(pointer, csv)
        self._tokens = parse_pointer(pointer) if csv is None else None

    def after(self, framed: Framed, previous: JSON) -> JSON:
        """The cursor to resume after these records; ``previous`` if none of them has one. For a thread: on a loop,
        `follow` does the same in turns with others.

        Raises:
            FeedMisconfigured: there is one, and it cannot be kept exactly.
        """
        return at_once(self._steps(framed, previous))

    async def follow(self, framed: Framed, previous: JSON) -> JSON:
        """`after`, for a loop."""
        found = self._in_last(framed)
        return found if found is not None else await in_turns(self._steps(framed, previous))

    def _in_last(self, framed: Framed) -> JSON:
        """The cursor in the last record, if that is small: then to parse all of it is what costs least (1 us, not
        6). None says nothing."""
        if self._tokens is None:
            return None
        lines = framed.lines
        record = framed.records[-1] if framed.records else lines[lines.rfind(LF, 0, len(lines) - 1) + 1 :]
        if len(record) > SMALL_BYTES:
            return None
        try:
            found: JSON = orjson.loads(record)
        except orjson.JSONDecodeError:
            return None
        for token in self._tokens:
            if type(found) is dict:
                found = found.get(token)
            elif type(found) is list and (index := array_index(token)) is not None and index < len(found):
                found = found[index]
            else:
                return None
        if type(found) is not int and found is not None:
            self._check(found)
        return found

    def _steps(self, framed: Framed, previous: JSON) -> Steps[JSON]:
        size = 0
        for number, record in enumerate(_backwards(framed), start=1):
            try:
                found = self._find(record)
            except _TooLarge as error:
                raise self._larger(error.size) from None
            if found is not MISSING and found is not None:
                if type(found) is not int:
                    self._check(found)
                return found
            size += len(record)
            if number % STEP_RECORDS == 0 or size >= SLICE_BYTES:
                size = 0
                yield
        return previous

    def _check(self, cursor: JSON) -> None:
        if isinstance(cursor, float) and abs(cursor) >= _EXACT_BELOW and cursor.is_integer():
            raise FeedMisconfigured(
                f"{self._where}: a number beyond 64 bits ({cursor!r}) cannot be kept exactly; "
                "have the source send it as a string"
            )
        try:
            text = orjson.dumps(cursor)
        except orjson.JSONEncodeError:
            raise FeedMisconfigured(
                f"{self._where}: nested deeper than can be kept; point it at a smaller part of the record"
            ) from None
        if len(text) > CURSOR_BYTES_MAX:
            raise self._larger(len(text))
        if _NUL.search(text):
            raise FeedMisconfigured(f"{self._where}: a NUL character in it cannot be kept in PostgreSQL")

    def _larger(self, size: int) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{self._where}: {size} bytes, at most {CURSOR_BYTES_MAX} are kept; "
            "point it at a smaller part of the record"
        )


class CursorOptions(ConnectorOptions):
    """Where in a record its cursor is."""

    cursor: str | None = None
    """JSON pointer to what to resume after in each record, such as `/seq`; needs `format` `json` or `csv`."""

    @field_validator("cursor")
    @classmethod
    def _check_cursor(cls, cursor: str | None, info: ValidationInfo) -> str | None:
        if cursor is not None:
            check_format(info, "json", "csv")
            CursorReader(cursor, csv=info.data.get("csv"))
        return cursor

    @cached_property
    def cursor_reader(self) -> CursorReader | None:
        """What reads cursors; None: records have none, and the cursor of the feed stays what it is."""
        # It keeps nothing of what it reads: one for all feeds that share these options.
        return None if self.cursor is None else CursorReader(self.cursor, csv=self.csv)

    async def cursor_after(self, framed: Framed, previous: JSON) -> JSON:
        """`CursorReader.follow`, if the records have a cursor."""
        reader = self.cursor_reader
        return previous if reader is None else await reader.follow(framed, previous)


class _TooLarge(Exception):
    """What is no position, as a text of JSON; not parsed to be told its exact size."""

    def __init__(self, size: int) -> None:
        self.size = size


def _find_in_json(pointer: str) -> Callable[[bytes], Found]:
    find = TextPointers([pointer]).find

    def find_in(record: bytes) -> Found:
        try:
            (text,) = find(record)
            if text is MISSING:
                return MISSING
            if len(text) > _TEXT_BYTES_MAX:
                raise _TooLarge(len(text))
            found: Found = orjson.loads(text)
        except ValueError:  # no JSON
            return MISSING
        return found

    return find_in


def _find_in_csv(pointer: str, csv: CsvFormat) -> Callable[[bytes], Found]:
    reader = CsvReader(csv)
    names = parse_pointer(pointer)
    place = reader.place(names[0]) if len(names) == 1 else None
    if place is None:
        known = ", ".join(map(repr, csv.fields))
        raise ValueError(f"{pointer!r} is no field of the records; source.csv.fields has {known}")

    def find_in(record: bytes) -> Found:
        try:
            field = reader.read(record)[place]
            text = None if field is None else field.decode()
        except (MalformedLine, UnicodeDecodeError):
            return MISSING
        return int(text) if text is not None and _INTEGER.fullmatch(text) else text

    return find_in


def _backwards(framed: Framed) -> Iterator[bytes]:
    """The records from the last to the first, none cut out before it is asked for."""
    if framed.records:
        yield from reversed(framed.records)
        return
    lines = framed.lines
    end = len(lines) - 1
    while end > 0:
        start = lines.rfind(LF, 0, end) + 1
        yield lines[start:end]
        end = start - 1
