"""Options of connectors that cut a stream into records, and the framings other than lines."""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, CsvFormat, show_cursor
from feedq.connectors.records.csvtext import CsvReader, MalformedLine
from feedq.connectors.records.framing import (
    BYTE_ORDER_MARK,
    LF,
    RECORD_BYTES_MAX,
    Framed,
    Framer,
    LineFramer,
    TailFramer,
)
from feedq.connectors.records.turns import at_once
from feedq.connectors.wire.template import unescape
from feedq.errors import FeedMisconfigured
from feedq.model import JSON


class FramingOptions(ConnectorOptions):
    """How a stream of bytes is cut into records."""

    framing: Literal["lines", "delimiter", "length"] = "lines"
    """How records are told apart: `lines` end with LF or CRLF, `delimiter` is whatever ends them instead,
    with `length` each comes after its length. Empty records are keep-alives and are skipped."""
    delimiter: Annotated[str | None, Field(validate_default=True)] = None
    r"""With `framing: delimiter`: what ends a record; any bytes. Escapes: `\n \r \t \0 \\ \xNN`."""
    length_bytes: Literal[1, 2, 4] = 4
    """With `framing: length`: size of the number before each record."""
    length_order: Literal["big", "little"] = "big"
    """With `framing: length`: order of the bytes of that number; `big` is network order."""
    length_counts_itself: bool = False
    """With `framing: length`: the number counts its own bytes too."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger record fails the feed, with everything before it landed, until this is raised."""

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None, info: ValidationInfo) -> str | None:
        wanted = info.data.get("framing") == "delimiter"
        if wanted and not delimiter:
            raise ValueError("must not be empty with source.framing delimiter")
        if delimiter is not None:
            if not wanted:
                raise ValueError("needs source.framing delimiter")
            unescape(delimiter)
        return delimiter

    @field_validator("length_bytes", "length_order", "length_counts_itself")
    @classmethod
    def _check_length(cls, value: int | str | bool, info: ValidationInfo) -> int | str | bool:
        # Defaults are not validated: it was given.
        if info.data.get("framing", "length") != "length":
            raise ValueError("needs source.framing length")
        return value

    @property
    def end_mark(self) -> bytes:
        """What ends a record; nothing if its length does."""
        if self.framing == "length":
            return b""
        return LF if self.delimiter is None else unescape(self.delimiter)

    def framer(self) -> Framer:
        """Makes the framer of one stream from its beginning; each needs its own."""
        framer: Framer = LineFramer(self.max_record_bytes)
        if self.framing == "length":
            framer = LengthFramer(
                self.length_bytes,
                self.max_record_bytes,
                byte_order=self.length_order,
                counts_itself=self.length_counts_itself,
            )
        elif self.framing == "delimiter":
            framer = DelimiterFramer(self.end_mark, self.max_record_bytes)
        if self.csv is not None and self.csv.header:
            return HeaderlessFramer(framer, self.csv)
        return framer

    def refusal(self, framed: Framed, *, where: object, cursor: JSON) -> FeedMisconfigured:
        """Why the stream cannot go on after ``framed``, for when it `is_last`."""
        after = f"after cursor {show_cursor(cursor)}"
        if framed.corrupt:
            return FeedMisconfigured(
                f"{where}: what should be the length of a record {after} is less than its own size; "
                "check source.framing and its source.length_… options"
            )
        return FeedMisconfigured(
            f"{where}: record of more than {self.max_record_bytes} bytes {after}; "
            "raise source.max_record_bytes, or check source.framing"
        )


class DelimiterFramer(TailFramer):
    """Records end with a fixed string of bytes."""

    def __init__(self, delimiter: bytes, max_record_bytes: int) -> None:
        super().__init__(max_record_bytes)
        assert delimiter
        self._delimiter = delimiter

    def push(self, data: bytes | bytearray) -> Framed:
        overlap = len(self._delimiter) - 1
        searched = max(0, len(self._tail) - overlap)
        stream = self._joined(data)
        if stream.find(self._delimiter, searched) < 0:
            self._tail = stream
            # Up to `overlap` bytes at the end may be the beginning of the delimiter.
            return Framed(oversize=len(stream) - overlap > self._max)
        *complete, tail = bytes(stream).split(self._delimiter)
        self._tail = bytearray(tail)
        records = tuple(filter(None, complete))
        if max(map(len, records), default=0) > self._max:
            end = next(i for i, record in enumerate(complete) if len(record) > self._max)
            self._tail = bytearray(self._delimiter.join([*complete[end:], tail]))
            return Framed(records=tuple(filter(None, complete[:end])), oversize=True)
        return Framed(records=records, oversize=len(tail) - overlap > self._max)


class LengthFramer(TailFramer):
    """Each record comes after its length, an unsigned number."""

    def __init__(
        self,
        length_bytes: Literal[1, 2, 4],
        max_record_bytes: int,
        *,
        byte_order: Literal["big", "little"],
        counts_itself: bool,
    ) -> None:
        super().__init__(max_record_bytes)
        self._prefix = Struct((">" if byte_order == "big" else "<") + {1: "B", 2: "H", 4: "I"}[length_bytes])
        self._counted = length_bytes if counts_itself else 0
        self._wanted: int = length_bytes
        """Bytes of the stream without which nothing more can be told: those of the record's end, if known."""

    def push(self, data: bytes | bytearray) -> Framed:
        stream = self._joined(data)
        self._tail = stream
        if len(stream) < self._wanted:
            return Framed()
        records: list[bytes] = []
        read, prefix, counted, total = self._prefix.unpack_from, self._prefix.size, self._counted, len(stream)
        start, oversize, corrupt = 0, False, False
        with memoryview(stream) as view:
            while (begin := start + prefix) <= total:
                size = read(stream, start)[0] - counted
                if size < 0 or size > self._max:
                    oversize, corrupt = size > self._max, size < 0
                    break
                if begin + size > total:
                    break
                if size:
                    records.append(bytes(view[begin : begin + size]))
                start = begin + size
        if start:
            self._tail = stream[start:]
        self._wanted = prefix if begin > total else prefix + size
        return Framed(records=tuple(records), oversize=oversize, corrupt=corrupt)


class HeaderlessFramer:
    """A framer that leaves out the header lines of CSV among the records of another.

    A header is a record that is just the names of the fields in their order, each quoted or not; wherever it
    stands, since files that were joined have one in their middle. A byte order mark before it belongs to it.
    """

    def __init__(self, framer: Framer, csv: CsvFormat) -> None:
        self._framer = framer
        self._read = CsvReader(csv).read
        self._names = [name.encode() for name in csv.fields]
        between = len(unescape(csv.delimiter)) + 2 * len(csv.quote)
        # All quoted, and each character of a name a quote that is doubled.
        self._size_max = len(BYTE_ORDER_MARK) + sum(2 * len(name) + between for name in self._names)
        self._mark = max((name.encode() for name in csv.fields), key=len)
        """Where it does not occur there is no header: one search instead of a look at each record."""

    @property
    def pending(self) -> int:
        return self._framer.pending

    def push(self, data: bytes | bytearray) -> Framed:
        framed = self._framer.push(data)
        if framed.records or self._mark in framed.lines:
            return at_once(framed.without(self._is_header))
        return framed

    def _is_header(self, record: bytes) -> bool:
        if len(record) > self._size_max:
            return False
        try:
            fields = self._read(record.removeprefix(BYTE_ORDER_MARK))
        except MalformedLine:
            return False
        return [field or b"" for field in fields] == self._names
