"""Header lines of CSV, left out of a stream of records.

A header is a record that is just the names of the fields in their order, each quoted or not; wherever it
stands, since files that were joined have one in their middle. A byte order mark before it belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feedq.connectors.base import CsvFormat
from feedq.connectors.records.csvtext import CsvReader, MalformedLine
from feedq.connectors.records.framing import LF, Framed, Framer
from feedq.connectors.wire.template import unescape

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class HeaderlessFramer:
    """A framer that leaves out the headers among the records of another."""

    __slots__ = ("_framer", "_mark", "_names", "_read", "_size_max")

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
        if framed.records:
            return replace(framed, records=self._without_headers(framed.records))
        if self._mark in framed.lines:
            return replace(framed, lines=LF.join([*self._without_headers(framed.lines[:-1].split(LF)), b""]))
        return framed

    def _without_headers(self, records: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple(record for record in records if not self._is_header(record))

    def _is_header(self, record: bytes) -> bool:
        if len(record) > self._size_max:
            return False
        try:
            fields = self._read(record.removeprefix(BYTE_ORDER_MARK))
        except MalformedLine:
            return False
        return [field or b"" for field in fields] == self._names
