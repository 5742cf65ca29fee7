"""Framing cuts a byte stream into records, without a loop per record.

A framer is fed whatever arrived and gives back the records that are complete; the beginning of an
incomplete one stays inside. Invariants, whatever the stream and however it was cut into pieces:

* the records are those of the whole stream cut at once;
* a record holds at most ``max_record_bytes`` bytes, its end mark or length not counted;
* empty records are left out: sources send them to show that they are alive;
* memory is bounded by one record and one piece.

A record over the limit ends the stream: everything before it is given back, `Framer.refusal` says why, and the
framer takes nothing more. It cannot be skipped, for skipping it would lose it silently. A length that cannot be
one ends the stream likewise: what follows it is anybody's guess.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from struct import Struct
from typing import Literal, Protocol

from feedq.records.batch import Records, as_lines
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine, as_object, field_names
from feedq.records.template import unescape

RecordFormat = Literal["json", "csv", "text", "bytes"]
"""What a record is."""

LF = b"\n"
CR = b"\r"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EMPTY_LINE = re.compile(rb"\n\n")
"""Searched for in everything that arrives: in lines of 160 bytes `bytes.find` takes three times as long, and
`bytes.rfind` a quarter more."""
RECORD_BYTES_MAX = 32 * 2**20
"""To look through one that is larger would hold up all feeds of a worker for more than a tenth of a second."""


class Refusal(Enum):
    """The reason why a stream cannot continue."""

    OVERSIZE = auto()
    """The next record is larger than the limit."""
    CORRUPT = auto()
    """What should be the length of the next record cannot be one."""
    HEADER = auto()
    """The first line cannot name the fields of CSV."""


class Framer(Protocol):
    """Cuts up one stream."""

    @property
    def pending(self) -> int:
        """Bytes of the stream after the last record that was given back: those of one that is not complete
        yet, or that the stream ended at."""

    @property
    def refusal(self) -> Refusal | None:
        """Why the stream cannot go on after the records that were given back; None: it can."""

    def push(self, data: bytes | bytearray) -> Records:
        """The records completed by ``data``. ``data`` is the framer's from now on."""

    def end(self, mark: bytes) -> Records:
        """The record that the end of the stream ends in the place of ``mark``, if there is one."""


class TailFramer(ABC):
    """A framer that keeps of the stream what no record is complete of."""

    __slots__ = ("_max", "_tail", "refusal")

    def __init__(self, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        self._tail = bytearray()
        self.refusal: Refusal | None = None

    @property
    def pending(self) -> int:
        return len(self._tail)

    @abstractmethod
    def push(self, data: bytes | bytearray) -> Records: ...

    def end(self, mark: bytes) -> Records:
        return self.push(mark)

    def _check(self, size: int) -> None:
        """Refuse to go on with a record of which there are so many bytes, if that is too much."""
        if size > self._max:
            self.refusal = Refusal.OVERSIZE

    def _joined(self, data: bytes | bytearray) -> bytearray:
        # Growing in place is what keeps a large record that arrives in crumbs from costing its square.
        if self._tail:
            self._tail += data
            _release_memory(data)
            return self._tail
        return data if isinstance(data, bytearray) else bytearray(data)


class LineFramer(TailFramer):
    """Records end with LF or CRLF."""

    __slots__ = ()

    def push(self, data: bytes | bytearray) -> Records:
        if not self._tail and 0 < data.find(LF) == len(data) - 1 <= self._max and CR not in data:
            # Just one record, as slow sources send it: the steps below would take four times as long.
            lines = bytes(data)
            _release_memory(data)
            return Records(lines)
        searched = len(self._tail)
        stream = self._joined(data)
        cut = stream.rfind(LF, searched) + 1
        complete, self._tail = _divide(stream, cut)
        lines = complete.replace(b"\r\n", LF) if CR in complete else complete
        end = _first_oversize(lines, self._max)
        if end is not None:
            # Counted in lines, since carriage returns were taken out.
            self._tail[:0] = complete.split(LF, lines.count(LF, 0, end))[-1]
            self.refusal = Refusal.OVERSIZE
            return _records_of(lines[:end])
        # The CR of a CRLF is no part of the record, and its LF may still be on the way.
        self._check(len(self._tail) - self._tail.endswith(CR))
        return _records_of(lines)


class CsvFramer(LineFramer):
    """Records end with LF or CRLF outside quotes (RFC 4180). A quote counts where a field begins; elsewhere
    the field is malformed, and the record ends with its line, whatever quotes follow.

    Lines with an even number of quotes each are whole. Only where one has an odd number, each quote is looked at.
    """

    def __init__(self, csv: CsvFormat, max_record_bytes: int) -> None:
        super().__init__(max_record_bytes)
        assert csv.quote
        self._quote = csv.quote.encode()
        self._delimiter = unescape(csv.delimiter)
        self._all_others = bytes(set(range(256)) - set(self._quote + LF))
        """What is left out to count the quotes of each line."""
        self._searched = 0
        """How much of the tail was looked through, up to somewhere within quotes; 0 outside of them."""

    def push(self, data: bytes | bytearray) -> Records:
        if self._searched:
            return self._cut(self._joined(data))
        if LF not in data:
            return super().push(data)
        stream, self._tail = self._joined(data), bytearray()
        return super().push(stream) if self._are_whole(stream) else self._cut(stream)

    def end(self, mark: bytes) -> Records:
        records = super().end(mark)
        if not self._tail:
            return records
        # Its quote is not closed, which whoever reads it says.
        rest = bytes(self._tail).removesuffix(mark)
        self._tail, self._searched = bytearray(), 0
        self._check(len(rest))
        return Records(records=(*records.split(), rest))

    def _are_whole(self, stream: bytearray) -> bool:
        if self._quote not in stream:
            return True
        if len(self._quote) > 1:
            return False  # which takes longer to count than to cut
        quotes = stream[: stream.rfind(LF)].translate(None, self._all_others)
        return not any(count & 1 for count in set(map(len, quotes.split(LF))))

    def _cut(self, stream: bytearray) -> Records:
        """Cut up what may have line ends within quotes."""
        records: list[bytes] = []
        start, at, is_quoted = 0, self._searched, self._searched > 0
        while True:
            if is_quoted:
                at, is_quoted = self._after_quoted(stream, at)
                if is_quoted:
                    break
            line_end = stream.find(LF, at)
            opening = stream.find(self._quote, at, len(stream) if line_end < 0 else line_end)
            if opening >= 0 and (opening == start or stream.endswith(self._delimiter, start, opening)):
                at, is_quoted = opening + len(self._quote), True
                continue
            record = bytes(stream[start:line_end]).removesuffix(CR)
            if line_end < 0 or len(record) > self._max:
                break
            if record:
                records.append(record)
            start = at = line_end + 1
        self._tail = stream[start:] if start else stream
        self._searched = at - start if is_quoted else 0
        self._check(len(self._tail) - self._tail.endswith(CR))
        return Records.of(records)

    def _after_quoted(self, stream: bytearray, at: int) -> tuple[int, bool]:
        """From somewhere within quotes: where they are closed; or where to search on for that, and True."""
        quote, size = self._quote, len(self._quote)
        while (closing := stream.find(quote, at)) >= 0:
            after = closing + size
            if not stream.startswith(quote, after):
                # At the very end, what comes next says whether it is doubled.
                may_be_doubled = quote.startswith(bytes(stream[after : after + size]))
                return (closing, True) if may_be_doubled else (after, False)
            at = after + size
        return max(at, len(stream) - size + 1), True


def _divide(stream: bytearray, cut: int) -> tuple[bytes, bytearray]:
    if not cut:
        return b"", stream
    if cut == len(stream):
        whole = bytes(stream)
        stream.clear()
        return whole, stream
    with memoryview(stream) as view:
        parts = bytes(view[:cut]), bytearray(view[cut:])
    _release_memory(stream)
    return parts


def _release_memory(data: bytes | bytearray) -> None:
    """Free what was copied: a connector may hold on to it for as long as its feed has to wait."""
    if isinstance(data, bytearray):
        data.clear()


def _first_oversize(lines: bytes, max_record_bytes: int) -> int | None:
    """Where the first line of more than ``max_record_bytes`` begins, in steps of that many bytes."""
    start = 0
    while len(lines) - start > max_record_bytes:
        newline = lines.rfind(LF, start, start + max_record_bytes + 1)
        if newline < 0:
            return start
        start = newline + 1
    return None


def _records_of(lines: bytes) -> Records:
    if CR in lines:
        # `Records.lines` holds no carriage return, since COPY takes one for the end of a line.
        return Records(records=tuple(filter(None, lines.split(LF))))
    if lines.startswith(LF) or _EMPTY_LINE.search(lines):
        lines = as_lines([line for line in lines.split(LF) if line])
    return Records(lines)


class DelimiterFramer(TailFramer):
    """Records end with a fixed string of bytes."""

    def __init__(self, delimiter: bytes, max_record_bytes: int) -> None:
        super().__init__(max_record_bytes)
        assert delimiter
        self._delimiter = delimiter

    def push(self, data: bytes | bytearray) -> Records:
        overlap = len(self._delimiter) - 1
        searched = max(0, len(self._tail) - overlap)
        stream = self._joined(data)
        if stream.find(self._delimiter, searched) < 0:
            self._tail = stream
            # Up to `overlap` bytes at the end may be the beginning of the delimiter.
            self._check(len(stream) - overlap)
            return Records()
        *complete, tail = bytes(stream).split(self._delimiter)
        self._tail = bytearray(tail)
        records = tuple(filter(None, complete))
        if max(map(len, records), default=0) > self._max:
            end = next(i for i, record in enumerate(complete) if len(record) > self._max)
            self._tail = bytearray(self._delimiter.join([*complete[end:], tail]))
            self.refusal = Refusal.OVERSIZE
            return Records(records=tuple(filter(None, complete[:end])))
        self._check(len(tail) - overlap)
        return Records(records=records)


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

    def push(self, data: bytes | bytearray) -> Records:
        stream = self._joined(data)
        self._tail = stream
        if len(stream) < self._wanted:
            return Records()
        records: list[bytes] = []
        read, prefix, counted, total = self._prefix.unpack_from, self._prefix.size, self._counted, len(stream)
        start = 0
        with memoryview(stream) as view:
            while (begin := start + prefix) <= total:
                size = read(stream, start)[0] - counted
                if size < 0 or size > self._max:
                    self.refusal = Refusal.OVERSIZE if size > self._max else Refusal.CORRUPT
                    break
                if begin + size > total:
                    break
                if size:
                    records.append(bytes(view[begin : begin + size]))
                start = begin + size
        if start:
            self._tail = stream[start:]
        self._wanted = prefix if begin > total else prefix + size
        return Records(records=tuple(records))


class OuterFramer:
    """A framer around another one, for what may stand at the beginning of a stream or among its records."""

    def __init__(self, framer: Framer) -> None:
        self._inner = framer

    @property
    def pending(self) -> int:
        return self._inner.pending

    @property
    def refusal(self) -> Refusal | None:
        return self._inner.refusal

    def push(self, data: bytes | bytearray) -> Records:
        return self._sifted(self._inner.push(data))

    def end(self, mark: bytes) -> Records:
        return self._sifted(self._inner.end(mark))

    def _sifted(self, records: Records) -> Records:
        return records


class UnmarkedFramer(OuterFramer):
    """A framer that leaves out a byte order mark at the beginning of the stream of another."""

    _first: bytes | None = b""
    """What came so far, while it may be part of a mark."""

    @property
    def pending(self) -> int:
        return self._inner.pending + len(self._first or b"")

    def push(self, data: bytes | bytearray) -> Records:
        if self._first is None:
            return self._inner.push(data)
        first = self._first + data
        _release_memory(data)
        if len(first) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(first):
            self._first = first
            return Records()
        self._first = None
        return self._inner.push(bytearray(first.removeprefix(BYTE_ORDER_MARK)))

    def end(self, mark: bytes) -> Records:
        first, self._first = self._first, None
        if first:
            self._inner.push(bytearray(first))
        return self._inner.end(mark)


class HeaderlessFramer(OuterFramer):
    """A framer that leaves out the header lines of CSV among the records of another.

    A header is a record that is just the names of the fields in their order, each quoted or not; wherever it
    stands, since files that were joined have one in their middle. A byte order mark before it belongs to it.
    """

    def __init__(self, framer: Framer, csv: CsvFormat) -> None:
        super().__init__(framer)
        self._read = CsvReader(csv).read
        self._names = [name.encode() for name in csv.fields]
        between = len(unescape(csv.delimiter)) + 2 * len(csv.quote)
        # All quoted, and each character of a name a quote that is doubled.
        self._size_max = len(BYTE_ORDER_MARK) + sum(2 * len(name) + between for name in self._names)
        # In a name that has one, a quote is doubled.
        self._mark = max(csv.fields, key=len).replace(csv.quote, 2 * csv.quote).encode()
        """Where it does not occur there is no header: one search instead of a look at each record."""

    def _sifted(self, records: Records) -> Records:
        if records.lines is not None and self._mark not in records.lines:
            return records
        return records.leaving_out(self._is_header)

    def _is_header(self, record: bytes) -> bool:
        if len(record) > self._size_max:
            return False
        try:
            fields = self._read(record.removeprefix(BYTE_ORDER_MARK))
        except MalformedLine:
            return False
        return [field or b"" for field in fields] == self._names


class NamingFramer(OuterFramer):
    """A framer that makes JSON objects of the records of CSV, whose fields the first of them names.

    Lines that repeat the first are left out, as files that were joined have them. A record that is not valid CSV
    is passed on unchanged: it is not JSON, so it becomes a dead letter.
    """

    def __init__(self, framer: Framer, csv: CsvFormat, *, header: bytes | None = None) -> None:
        """``header`` is the first record of the stream, where the framer is to go on behind it."""
        super().__init__(framer)
        self._split = CsvReader(csv).split
        self._csv = csv
        self._header = header
        self._names = None if header is None else field_names(header, csv)

    @property
    def refusal(self) -> Refusal | None:
        is_unnamed = self._header is not None and self._names is None
        return Refusal.HEADER if is_unnamed else self._inner.refusal

    def _sifted(self, records: Records) -> Records:
        if not records:
            return records
        if self._header is None:
            self._header = records.first(1)[0]
            self._names = field_names(self._header, self._csv)
        if self._names is None:
            return Records()
        names = self._names
        return Records.of([self._object(names, one) for one in records.split() if one != self._header])

    def _object(self, names: Sequence[str], record: bytes) -> bytes:
        try:
            fields = self._split(record)
            return as_object(names, fields) if len(fields) == len(names) else record
        except ValueError:
            return record
