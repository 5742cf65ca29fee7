"""Framing cuts a byte stream into records, without a loop per record, and reads where to resume after them.

A framer is fed whatever arrived and gives back the records that are complete; the beginning of an
incomplete one stays inside. Invariants, whatever the stream and however it was cut into pieces:

* the records are those of the whole stream cut at once;
* a record holds at most ``max_record_bytes`` bytes, its end mark or length not counted;
* empty records are left out: sources send them to show that they are alive;
* memory is bounded by one record and one piece.

A record over the limit ends the stream: everything before it is given back together with ``oversize``, and
the framer takes nothing more. It cannot be skipped, for skipping it would lose it silently. A length that
cannot be one ends the stream likewise, with ``corrupt``: what follows it is anybody's guess.

A `CursorReader` then reads the cursor out of the last record that has one: a cursor resumes *after* it, so earlier
ones do not matter. A record that is not of its format, or has nothing (or a null) there, is passed over: the sink
decides what becomes of it. Nothing but the cursor is parsed of a record, so that it counts although something else
is no UTF-8. A cursor that could not be kept exactly would resume at the wrong place, so it stops the feed instead.

However much one source sends at once, the other feeds are served meanwhile: what may take long is a generator
that yields between its small steps. `in_turns` runs it and lets the event loop go on each `TURN_S`; `at_once` runs
it on a thread, where the interpreter itself takes turns. A step should take a millisecond, and never more than a
tenth of a second.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from struct import Struct
from time import perf_counter
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from feedq.core.model import JSON, Batch
from feedq.core.values import read_exactly, read_json
from feedq.errors import FeedMisconfigured
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine, field_finder
from feedq.records.pointer import MISSING, Missing, TextPointers, array_index, parse_pointer
from feedq.records.template import unescape

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

TURN_S: Final = 0.01
"""Longer, and thousands of feeds notice it; shorter, and the loop turns more often than it works."""
SLICE_BYTES: Final = 64 * 1024
"""What is given to a parser at once that takes some tenths of a microsecond for each byte at worst."""

RecordFormat = Literal["json", "csv", "text", "bytes"]
"""What a record is."""

LF = b"\n"
CR = b"\r"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
RECORD_BYTES_MAX = 32 * 2**20
"""To look through one that is larger would hold up all feeds of a worker for more than a tenth of a second."""
STEP_RECORDS = 64
"""Looked at in one step, if they are no larger than `SLICE_BYTES` together."""
CURSOR_BYTES_MAX = 8 * 1024
"""The cursor is written with every commit and sent with every hello: it is a position, not a payload."""
CURSOR_DEPTH_MAX = 200
"""Python reads and writes deeper ones only where its stack has the room, which differs from place to place."""
_TEXT_BYTES_MAX = 8 * CURSOR_BYTES_MAX
"""A longer text is no cursor, however much of it may be blanks and escapes."""
SMALL_BYTES = 4 * 1024
"""What is parsed as a whole takes a hundredth of a millisecond at most."""
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON text escapes it: after an even number of backslashes."""


async def in_turns(steps: Steps[Result]) -> Result:
    """What the steps come to, with the loop's other work done between them."""
    began = perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: Result = over.value
            return result
        if perf_counter() - began >= TURN_S:
            await asyncio.sleep(0)
            began = perf_counter()


def at_once(steps: Steps[Result]) -> Result:
    """Runs the steps without a loop."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: Result = over.value
            return result


def slices(data: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """``data`` in pieces of `SLICE_BYTES`; itself if it is no larger."""
    if len(data) <= SLICE_BYTES:
        yield data
        return
    with memoryview(data) as view:
        for start in range(0, len(data), SLICE_BYTES):
            yield bytes(view[start : start + SLICE_BYTES])


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

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Framed:
        """Records in whichever form holds them as they are."""
        lines = as_lines(records)
        fits = CR not in lines and lines.count(LF) == len(records) and all(records)
        return cls(lines) if fits else cls(records=tuple(records))

    def __bool__(self) -> bool:
        return bool(self.lines or self.records)

    @property
    def is_last(self) -> bool:
        """Whether the stream cannot go on after these records."""
        return self.oversize or self.corrupt

    def each(self) -> Sequence[bytes]:
        """The records one by one, whichever form they are in."""
        return self.records or (self.lines[:-1].split(LF) if self.lines else ())

    def backwards(self) -> Iterator[bytes]:
        """The records from the last to the first, none cut out before it is asked for."""
        yield from reversed(self.records)
        end = len(self.lines) - 1
        while end > 0:
            start = self.lines.rfind(LF, 0, end) + 1
            yield self.lines[start:end]
            end = start - 1

    def without(self, is_excluded: Callable[[bytes], bool]) -> Steps[Framed]:
        """What is left of the records when some are no part of the feed."""
        records = self.each()
        kept: list[bytes] = []
        size = 0
        for number, record in enumerate(records, start=1):
            if not is_excluded(record):
                kept.append(record)
            size += len(record)
            if number % STEP_RECORDS == 0 or size >= SLICE_BYTES:
                size = 0
                yield
        if len(kept) == len(records):
            return self
        return replace(self, records=tuple(kept)) if self.records else replace(self, lines=as_lines(kept))

    def batch(
        self, *, cursor: JSON, received_at: datetime, on_committed: Callable[[], None] | None = None
    ) -> Batch:
        if self.records:
            return Batch.of_records(
                self.records, cursor=cursor, received_at=received_at, on_committed=on_committed
            )
        return Batch.of_lines(self.lines, cursor=cursor, received_at=received_at, on_committed=on_committed)


def as_lines(records: Sequence[bytes]) -> bytes:
    """Records without a line break in them, each ended by one."""
    return LF.join([*records, b""])


class Framer(Protocol):
    """Cuts up one stream."""

    @property
    def pending(self) -> int:
        """Bytes of the stream after the last record that was given back: those of one that is not complete
        yet, or that the stream ended at."""

    def push(self, data: bytes | bytearray) -> Framed:
        """The records completed by ``data``. ``data`` is the framer's from now on."""

    def end(self, mark: bytes) -> Framed:
        """The record that the end of the stream ends in the place of ``mark``, if there is one."""


class TailFramer(ABC):
    """A framer that keeps of the stream what no record is complete of."""

    def __init__(self, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        self._tail = bytearray()

    @property
    def pending(self) -> int:
        return len(self._tail)

    @abstractmethod
    def push(self, data: bytes | bytearray) -> Framed: ...

    def end(self, mark: bytes) -> Framed:
        return self.push(mark)

    def _joined(self, data: bytes | bytearray) -> bytearray:
        # Growing in place is what keeps a large record that arrives in crumbs from costing its square.
        if self._tail:
            self._tail += data
            _release_memory(data)
            return self._tail
        return data if isinstance(data, bytearray) else bytearray(data)


class LineFramer(TailFramer):
    """Records end with LF or CRLF."""

    def push(self, data: bytes | bytearray) -> Framed:
        if not self._tail and 0 < data.find(LF) == len(data) - 1 <= self._max and CR not in data:
            # Just one record, as slow sources send it: the steps below would take four times as long.
            lines = bytes(data)
            _release_memory(data)
            return Framed(lines)
        searched = len(self._tail)
        stream = self._joined(data)
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


class CsvFramer(LineFramer):
    """Records end with LF or CRLF outside quotes (RFC 4180). A quote counts where a field begins; elsewhere
    the field is malformed, and the record ends with its line.

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

    def push(self, data: bytes | bytearray) -> Framed:
        if self._searched:
            return self._cut(self._joined(data))
        if LF not in data:
            return super().push(data)
        stream, self._tail = self._joined(data), bytearray()
        return super().push(stream) if self._are_whole(stream) else self._cut(stream)

    def end(self, mark: bytes) -> Framed:
        framed = super().end(mark)
        if not self._tail:
            return framed
        # Its quote is not closed, which whoever reads it says.
        rest = bytes(self._tail).removesuffix(mark)
        self._tail, self._searched = bytearray(), 0
        return Framed(records=(*framed.each(), rest), oversize=len(rest) > self._max)

    def _are_whole(self, stream: bytearray) -> bool:
        if self._quote not in stream:
            return True
        if len(self._quote) > 1:
            return False  # which takes longer to count than to cut
        quotes = stream[: stream.rfind(LF)].translate(None, self._all_others)
        return not any(count & 1 for count in set(map(len, quotes.split(LF))))

    def _cut(self, stream: bytearray) -> Framed:
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
            if opening >= 0:
                is_quoted = opening == start or stream.endswith(self._delimiter, start, opening)
                at = opening + len(self._quote)
                continue
            record = bytes(stream[start:line_end]).removesuffix(CR)
            if line_end < 0 or len(record) > self._max:
                break
            if record:
                records.append(record)
            start = at = line_end + 1
        self._tail = stream[start:] if start else stream
        self._searched = at - start if is_quoted else 0
        pending = len(self._tail) - self._tail.endswith(CR)
        return replace(Framed.of(records), oversize=pending > self._max)

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


def _framed_lines(lines: bytes, *, oversize: bool) -> Framed:
    if CR in lines:
        # `Batch.lines` holds no carriage return, since COPY takes one for the end of a line.
        return Framed(records=tuple(filter(None, lines.split(LF))), oversize=oversize)
    # Backwards, because that search is four times as fast, for a reason known to CPython alone.
    if lines.startswith(LF) or lines.rfind(b"\n\n") >= 0:
        lines = as_lines([line for line in lines.split(LF) if line])
    return Framed(lines=lines, oversize=oversize)


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


class UnmarkedFramer:
    """A framer that leaves out a byte order mark at the beginning of the stream of another."""

    def __init__(self, framer: Framer) -> None:
        self._framer = framer
        self._first: bytes | None = b""
        """What came so far, while it may be part of a mark."""

    @property
    def pending(self) -> int:
        return self._framer.pending + len(self._first or b"")

    def push(self, data: bytes | bytearray) -> Framed:
        if self._first is None:
            return self._framer.push(data)
        first = self._first + data
        _release_memory(data)
        if len(first) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(first):
            self._first = first
            return Framed()
        self._first = None
        return self._framer.push(bytearray(first.removeprefix(BYTE_ORDER_MARK)))

    def end(self, mark: bytes) -> Framed:
        first, self._first = self._first, None
        if first:
            self._framer.push(bytearray(first))
        return self._framer.end(mark)


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
        # In a name that has one, a quote is doubled.
        self._mark = max(csv.fields, key=len).replace(csv.quote, 2 * csv.quote).encode()
        """Where it does not occur there is no header: one search instead of a look at each record."""

    @property
    def pending(self) -> int:
        return self._framer.pending

    def push(self, data: bytes | bytearray) -> Framed:
        return self._without_headers(self._framer.push(data))

    def end(self, mark: bytes) -> Framed:
        return self._without_headers(self._framer.end(mark))

    def _without_headers(self, framed: Framed) -> Framed:
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


# -- where to resume ---------------------------------------------------------------------------------


def _is_deeper(value: JSON, levels: int) -> bool:
    """Whether more lists and mappings than these lie one in the other. Looks level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for each in inner for one in each if isinstance(one, dict | list)]
    return bool(level)


class CursorReader:
    """Reads the cursor of one feed."""

    def __init__(self, pointer: str, csv: CsvFormat | None = None, *, option: str = "cursor") -> None:
        """Raises `ValueError` for a pointer that is none, or names no field of CSV."""
        self._where = f"source.{option} {pointer}"
        self._find = _json_finder(pointer) if csv is None else field_finder(pointer, csv)
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
            found: JSON = read_json(record)
        except ValueError:
            return None
        for token in self._tokens:
            if type(found) is dict:
                found = found.get(token)
            elif type(found) is list and (index := array_index(token)) is not None and index < len(found):
                found = found[index]
            else:
                return None
        # Where there may be a number that a float changes, its text is looked at.
        return self._in(record) if isinstance(found, float | dict | list) else self._checked(found)

    def _steps(self, framed: Framed, previous: JSON) -> Steps[JSON]:
        size = 0
        for number, record in enumerate(framed.backwards(), start=1):
            if (found := self._in(record)) is not None:
                return found
            size += len(record)
            if number % STEP_RECORDS == 0 or size >= SLICE_BYTES:
                size = 0
                yield
        return previous

    def _in(self, record: bytes) -> JSON:
        """The cursor in a record; None if there is none."""
        try:
            text = self._find(record)
            if text is MISSING:
                return None
            found: JSON = read_exactly(text) if len(text) <= _TEXT_BYTES_MAX else None
        except ValueError:  # a record that is not of its format
            return None
        if len(text) > _TEXT_BYTES_MAX:
            raise self._larger(len(text))
        return self._checked(found)

    def _checked(self, cursor: JSON) -> JSON:
        if type(cursor) is int or cursor is None:
            return cursor
        if _is_deeper(cursor, CURSOR_DEPTH_MAX):
            raise FeedMisconfigured(
                f"{self._where}: nested deeper than can be kept ({CURSOR_DEPTH_MAX} levels); point it at a "
                "smaller part of the record"
            )
        text = msgspec.json.encode(cursor)
        if len(text) > CURSOR_BYTES_MAX:
            raise self._larger(len(text))
        if ESCAPED_NUL.search(text):
            raise FeedMisconfigured(f"{self._where}: a NUL character in it cannot be kept in PostgreSQL")
        return cursor

    def _larger(self, size: int) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{self._where}: {size} bytes, at most {CURSOR_BYTES_MAX} are kept; "
            "point it at a smaller part of the record"
        )


def _json_finder(pointer: str) -> Callable[[bytes], bytes | Missing]:
    find = TextPointers([pointer]).find
    return lambda record: find(record)[0]
