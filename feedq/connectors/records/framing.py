"""Framing: cutting a byte stream into records, incrementally and without a loop per record.

A framer is fed whatever arrived and gives back the records that are complete; the beginning of an
incomplete one stays inside. Invariants, whatever the stream and however it was cut into pieces:

* the records are those of the whole stream cut at once;
* a record holds at most ``max_record_bytes`` bytes, its end mark or length not counted;
* empty records are left out: sources send them to show that they are alive;
* memory is bounded by one record and one piece.

A record over the limit ends the stream: everything before it is given back together with ``oversize``, and
the framer takes nothing more. It cannot be skipped, for skipping it would lose it silently. A length that
cannot be one ends the stream likewise, with ``corrupt``: what follows it is anybody's guess.

Nothing here knows sockets, cursors or formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from struct import Struct
from typing import Literal, Protocol

from feedq.model import JSON, Batch

LF = b"\n"
CR = b"\r"


@dataclass(slots=True)
class Framed:
    """Complete records in one of `Batch`'s two forms: ``lines``, or ``records`` where that does not fit.

    As with `Batch`, it would take longer to make it frozen than to cut out the record.
    """

    lines: bytes = b""
    records: tuple[bytes, ...] = ()
    oversize: bool = False
    """The next record is larger than the limit; the stream cannot go on."""
    corrupt: bool = False
    """What should be the length of the next record cannot be one; the stream cannot go on."""

    def __bool__(self) -> bool:
        return bool(self.lines or self.records)

    @property
    def is_last(self) -> bool:
        """Whether the stream cannot go on after these records."""
        return self.oversize or self.corrupt

    def each(self) -> Sequence[bytes]:
        """The records one by one, whichever form they are in."""
        return self.records or (self.lines[:-1].split(LF) if self.lines else ())

    def batch(self, *, cursor: JSON, received_at: datetime) -> Batch:
        if self.records:
            return Batch.of_records(self.records, cursor=cursor, received_at=received_at)
        return Batch.of_lines(self.lines, cursor=cursor, received_at=received_at)


class Framer(Protocol):
    """One stream being cut up."""

    @property
    def pending(self) -> int:
        """Bytes of the stream after the last record that was given back: those of one that is not complete
        yet, or that the stream ended at."""

    def push(self, data: bytes | bytearray) -> Framed:
        """The records completed by ``data``. ``data`` is the framer's from now on."""


class LineFramer:
    """Records end with LF or CRLF."""

    __slots__ = ("_max", "_tail")

    def __init__(self, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        self._tail = bytearray()

    @property
    def pending(self) -> int:
        return len(self._tail)

    def push(self, data: bytes | bytearray) -> Framed:
        if not self._tail and 0 < data.find(LF) == len(data) - 1 <= self._max and CR not in data:
            # Just one record, as slow sources send it: the steps below would take four times as long.
            lines = bytes(data)
            _let_go(data)
            return Framed(lines)
        searched = len(self._tail)
        stream = _join(self._tail, data)
        cut = stream.rfind(LF, searched) + 1
        complete, self._tail = _divide(stream, cut)
        lines = complete.replace(b"\r\n", LF) if CR in complete else complete
        end = _first_oversize(lines, self._max)
        if end is not None:
            # Counted in lines, since carriage returns were taken out.
            self._tail[:0] = complete.split(LF, lines.count(LF, 0, end))[-1]
            return _framed_lines(lines[:end], oversize=True)
        # The CR of a CRLF is no part of the record, and its LF may still be on the way.
        pending = len(self._tail) - self._tail.endswith(CR)
        return _framed_lines(lines, oversize=pending > self._max)


class DelimiterFramer:
    """Records end with a fixed string of bytes."""

    __slots__ = ("_delimiter", "_max", "_tail")

    def __init__(self, delimiter: bytes, max_record_bytes: int) -> None:
        assert delimiter
        self._delimiter = delimiter
        self._max = max_record_bytes
        self._tail = bytearray()

    @property
    def pending(self) -> int:
        return len(self._tail)

    def push(self, data: bytes | bytearray) -> Framed:
        overlap = len(self._delimiter) - 1
        searched = max(0, len(self._tail) - overlap)
        stream = _join(self._tail, data)
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


class LengthFramer:
    """Each record comes after its length, an unsigned number."""

    __slots__ = ("_counted", "_max", "_prefix", "_tail", "_wanted")

    def __init__(
        self,
        length_bytes: Literal[1, 2, 4],
        max_record_bytes: int,
        *,
        byte_order: Literal["big", "little"],
        counts_itself: bool,
    ) -> None:
        self._prefix = Struct((">" if byte_order == "big" else "<") + {1: "B", 2: "H", 4: "I"}[length_bytes])
        self._counted = length_bytes if counts_itself else 0
        self._max = max_record_bytes
        self._tail = bytearray()
        self._wanted: int = length_bytes
        """Bytes of the stream without which nothing more can be told: those of the record's end, if known."""

    @property
    def pending(self) -> int:
        return len(self._tail)

    def push(self, data: bytes | bytearray) -> Framed:
        stream = _join(self._tail, data)
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


def make_framer(delimiter: bytes | None, *, max_record_bytes: int) -> Framer:
    """Lines, unless there is a delimiter."""
    if delimiter is None:
        return LineFramer(max_record_bytes)
    return DelimiterFramer(delimiter, max_record_bytes)


def _join(tail: bytearray, data: bytes | bytearray) -> bytearray:
    # Growing in place is what keeps a large record that arrives in crumbs from costing its square.
    if tail:
        tail += data
        _let_go(data)
        return tail
    return data if isinstance(data, bytearray) else bytearray(data)


def _divide(stream: bytearray, cut: int) -> tuple[bytes, bytearray]:
    if not cut:
        return b"", stream
    if cut == len(stream):
        whole = bytes(stream)
        stream.clear()
        return whole, stream
    with memoryview(stream) as view:
        parts = bytes(view[:cut]), bytearray(view[cut:])
    _let_go(stream)
    return parts


def _let_go(data: bytes | bytearray) -> None:
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


def _framed_lines(lines: bytes, *, oversize: bool) -> Framed:
    if CR in lines:
        # `Batch.lines` holds no carriage return, since COPY takes one for the end of a line.
        return Framed(records=tuple(filter(None, lines.split(LF))), oversize=oversize)
    # Backwards, because that search is four times as fast, for a reason known to CPython alone.
    if lines.startswith(LF) or lines.rfind(b"\n\n") >= 0:
        kept = [line for line in lines.split(LF) if line]
        lines = LF.join([*kept, b""])
    return Framed(lines=lines, oversize=oversize)
