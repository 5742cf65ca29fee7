"""Framing: cutting a byte stream into records, incrementally and without a loop per record.

A framer is fed whatever arrived and gives back the records that are complete; the beginning of an
incomplete one stays inside. Invariants, whatever the stream and however it was cut into pieces:

* the records are those of the whole stream cut at once;
* a record holds at most ``max_record_bytes`` bytes, its end mark not counted;
* empty records are left out: sources send them to show that they are alive;
* memory is bounded by one record and one piece.

A record over the limit ends the stream: everything before it is given back together with ``oversize``, and
the framer takes nothing more. It cannot be skipped, for skipping it would lose it silently.

Nothing here knows sockets, cursors or formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from feedq.model import JSON, Batch

LF = b"\n"
CR = b"\r"


@dataclass(frozen=True, slots=True)
class Framed:
    """Complete records in one of `Batch`'s two forms: ``lines``, or ``records`` where that does not fit."""

    lines: bytes = b""
    records: tuple[bytes, ...] = ()
    oversize: bool = False
    """The next record is larger than the limit; the stream cannot go on."""

    def __bool__(self) -> bool:
        return bool(self.lines or self.records)

    def batch(self, *, cursor: JSON, received_at: datetime) -> Batch:
        if self.records:
            return Batch.of_records(self.records, cursor=cursor, received_at=received_at)
        return Batch.of_lines(self.lines, cursor=cursor, received_at=received_at)


class Framer(Protocol):
    """One stream being cut up."""

    @property
    def pending(self) -> int:
        """Bytes of the record that is not complete yet."""

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
        searched = len(self._tail)
        stream = _join(self._tail, data)
        cut = stream.rfind(LF, searched) + 1
        complete, self._tail = _divide(stream, cut)
        lines = complete.replace(b"\r\n", LF) if CR in complete else complete
        end = _first_oversize(lines, self._max)
        if end is not None:
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
            end = next(i for i, record in enumerate(records) if len(record) > self._max)
            return Framed(records=records[:end], oversize=True)
        return Framed(records=records, oversize=len(tail) - overlap > self._max)


def make_framer(delimiter: bytes | None, *, max_record_bytes: int) -> Framer:
    """Lines, unless there is a delimiter."""
    if delimiter is None:
        return LineFramer(max_record_bytes)
    return DelimiterFramer(delimiter, max_record_bytes)


def _join(tail: bytearray, data: bytes | bytearray) -> bytearray:
    # Growing in place is what keeps a large record that arrives in crumbs from costing its square.
    if tail:
        tail += data
        return tail
    return data if isinstance(data, bytearray) else bytearray(data)


def _divide(stream: bytearray, cut: int) -> tuple[bytes, bytearray]:
    if not cut:
        return b"", stream
    with memoryview(stream) as view:
        return bytes(view[:cut]), bytearray(view[cut:])


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
    if lines.startswith(LF) or b"\n\n" in lines:
        kept = [line for line in lines.split(LF) if line]
        lines = LF.join([*kept, b""])
    return Framed(lines=lines, oversize=oversize)
