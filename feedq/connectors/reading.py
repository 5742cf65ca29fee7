"""The one reading loop: pieces of a stream become records, records become batches, and a stream that cannot go on
says why.

A connector receives pieces, however its protocol brings them, and passes each through a `RecordStream`::

    stream = RecordStream(options.stream_framer(), context, cursor=cursor, …)
    while data := await connection.receive():
        for batch in stream.take(data):
            yield batch

It knows no socket and no loop: connectors that block use it as it is. That others have their turn is the business
of whoever gives the pieces, see `feedq.records.turns`.

The options here say how a stream is cut into records (`FramingOptions`), and where in a record its cursor is
(`CursorOptions`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context, check_format, show_cursor
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError
from feedq.records.batch import Batch, Records
from feedq.records.csvtext import NAME_CHARACTERS_MAX, CsvFormat
from feedq.records.cursor import CursorReader
from feedq.records.framing import (
    BYTE_ORDER_MARK,
    LF,
    RECORD_BYTES_MAX,
    CsvFramer,
    DelimiterFramer,
    Framer,
    HeaderlessFramer,
    LengthFramer,
    LineFramer,
    NamingFramer,
    Refusal,
    UnmarkedFramer,
)
from feedq.records.template import unescape

Piece = TypeVar("Piece", contravariant=True)


class PieceFramer(Protocol[Piece]):
    """Makes records of the pieces of one stream."""

    @property
    def refusal(self) -> Refusal | None: ...

    def push(self, piece: Piece, /) -> Records: ...


class RecordStream(Generic[Piece]):
    """One stream of a source, and how far it has been read."""

    __slots__ = ("_clock", "_follow", "_framer", "_refuse", "cursor", "was_heard")

    def __init__(
        self,
        framer: PieceFramer[Piece],
        context: Context,
        *,
        cursor: JSON,
        follow: Callable[[Records, JSON], JSON] | None,
        refuse: Callable[[Refusal, JSON], FeedqError],
    ) -> None:
        """``follow`` gives the cursor after some records from the one before them; without it the cursor stays.
        ``refuse`` gives the error of a stream that cannot go on after a cursor."""
        self.cursor = cursor
        """What to resume after, for the records that were given back."""
        self.was_heard = False
        """Whether anything has come."""
        self._framer = framer
        self._clock = context.clock
        self._follow = follow
        self._refuse = refuse

    def take(self, piece: Piece) -> Iterator[Batch]:
        """The batch that a piece completes, if it does. Raises why the stream cannot go on after that."""
        self.was_heard = True
        return self.batches(self._framer.push(piece))

    def batches(self, records: Records) -> Iterator[Batch]:
        """The batch of what the framer gave, if it gave any. Raises why the stream cannot go on after that."""
        if records:
            if self._follow is not None:
                self.cursor = self._follow(records, self.cursor)
            yield records.batch(cursor=self.cursor, received_at=self._clock.now())
        if (why := self._framer.refusal) is not None:
            raise self._refuse(why, self.cursor)


_EPOCH = datetime.fromtimestamp(0, UTC)
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def line_framer(csv: CsvFormat | None, max_record_bytes: int) -> Framer:
    """Makes the framer of lines; those of CSV may hold line ends within quotes."""
    return CsvFramer(csv, max_record_bytes) if csv is not None and csv.quote else LineFramer(max_record_bytes)


class FramingOptions(ConnectorOptions):
    """How a stream of bytes is cut into records."""

    NAMES_FIELDS: ClassVar[bool] = True

    framing: Literal["lines", "delimiter", "length"] = "lines"
    """What separates records: `lines` end with LF or CRLF, `delimiter` is your own end mark, and with `length`
    each record follows its length. Empty records are keep-alives and are skipped."""
    delimiter: Annotated[str | None, Field(validate_default=True)] = None
    r"""With `framing: delimiter`: the bytes that end a record, with escapes such as `\x1e`."""
    length_bytes: Literal[1, 2, 4] = 4
    """With `framing: length`: size of the length field."""
    length_order: Literal["big", "little"] = "big"
    """With `framing: length`: byte order of the length field."""
    length_counts_itself: bool = False
    """With `framing: length`: the length includes its own field."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger record fails the feed, after everything before it has landed."""

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

    def framer(self, *, begin: bytes | None = None) -> Framer:
        """Makes the framer of one stream; each needs its own. ``begin`` is how the stream begins, where it is
        read from the end of a later record on."""
        if self.csv is None or not self.csv.header:
            return self._plain_framer()
        if self.csv.fields:
            return HeaderlessFramer(self._plain_framer(), self.csv)
        if begin is None:
            return NamingFramer(self._plain_framer(), self.csv)
        first = self._plain_framer().push(begin.removeprefix(BYTE_ORDER_MARK)).first(1)
        return NamingFramer(self._plain_framer(), self.csv, header=first[0] if first else b"")

    def _plain_framer(self) -> Framer:
        if self.framing == "length":
            return LengthFramer(
                self.length_bytes,
                self.max_record_bytes,
                byte_order=self.length_order,
                counts_itself=self.length_counts_itself,
            )
        if self.framing == "delimiter":
            return DelimiterFramer(self.end_mark, self.max_record_bytes)
        return line_framer(self.csv, self.max_record_bytes)

    def stream_framer(self) -> Framer:
        """Makes the framer of one stream from its beginning, where text may have a byte order mark."""
        is_text = self.format != "bytes" and self.framing != "length"
        return UnmarkedFramer(self.framer()) if is_text else self.framer()

    def refuse(self, where: object, why: Refusal, cursor: JSON) -> FeedMisconfigured:
        """The error of a stream that cannot go on after ``cursor``."""
        after = f"after cursor {show_cursor(cursor)}"
        if why is Refusal.CORRUPT:
            return FeedMisconfigured(
                f"{where}: the length of the record {after} is less than the size of the length field; "
                "check source.framing and its source.length_… options"
            )
        if why is Refusal.HEADER:
            return FeedMisconfigured(
                f"{where}: its first line is not a header: each field needs a name of its own, of at most "
                f"{NAME_CHARACTERS_MAX} characters; give the names in source.csv.fields"
            )
        return FeedMisconfigured(
            f"{where}: record of more than {self.max_record_bytes} bytes {after}; "
            "raise source.max_record_bytes, or check source.framing"
        )


class CursorOptions(ConnectorOptions):
    """Where in a record its cursor is."""

    cursor: str | None = None
    """JSON pointer to the cursor in each record, such as `/seq`. Needs `format` `json` or `csv`."""

    @field_validator("cursor")
    @classmethod
    def _check_cursor(cls, cursor: str | None, info: ValidationInfo) -> str | None:
        if cursor is not None:
            check_format(info, "json", "csv")
            csv = info.data.get("csv")
            CursorReader(cursor, csv=csv if csv is not None and csv.fields else None)
        return cursor

    @cached_property
    def cursor_reader(self) -> CursorReader | None:
        """What reads cursors; None: records have none, and the cursor of the feed stays what it is."""
        # It keeps nothing of what it reads: one for all feeds that share these options.
        return None if self.cursor is None else CursorReader(self.cursor, csv=self.record_csv)

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        """The source is taken to number its records one by one."""
        if isinstance(cursor, int) and not isinstance(cursor, bool):
            return max(0, cursor - records) if cursor >= 0 else cursor - records
        if isinstance(cursor, str) and _WHOLE_NUMBER.fullmatch(cursor):
            return str(self.cursor_back(int(cursor), records))
        raise ValueError("it is not a whole number, so records cannot be counted back from it")

    def cursor_place(self, cursor: JSON) -> int:
        """The number or the time that it is."""
        if self.cursor is None:
            raise ValueError("without source.cursor, records have no position")
        if isinstance(cursor, int) and not isinstance(cursor, bool):
            return cursor
        if isinstance(cursor, str) and _WHOLE_NUMBER.fullmatch(cursor):
            return int(cursor)
        with suppress(ValueError):
            at = datetime.fromisoformat(cursor) if isinstance(cursor, str) else None
            if at is not None:
                return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
        raise ValueError("it is neither a whole number nor a time, so what comes after it is unknown")

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """A number is as good as its digits, where the source has the one or the other."""
        if isinstance(like, str) and isinstance(said, int):
            return str(said)
        if isinstance(like, int) and isinstance(said, str) and _WHOLE_NUMBER.fullmatch(said):
            return int(said)
        return said

    def cut(self, batch: Batch, ends_at: int, before: JSON) -> Batch | None:
        reader = self.cursor_reader
        assert reader is not None, "its cursors would have no position"
        kept: list[bytes] = []
        cursor = before
        for record in batch.split():
            found = reader.after(Records(records=(record,)), None)
            if found is not None and self.cursor_place(found) > ends_at:
                break
            kept.append(record)
            cursor = cursor if found is None else self.cursor_said(found, before)
        return Records.of(kept).batch(cursor=cursor, received_at=batch.received_at) if kept else None


class StreamOptions(CursorOptions, FramingOptions):
    """How to read a stream of bytes whose records may have cursors."""

    def record_stream(
        self, framer: Framer, context: Context, *, where: object, cursor: JSON
    ) -> RecordStream[bytes | bytearray]:
        """Makes the stream of one connection, that resumed after ``cursor``."""
        reader = self.cursor_reader
        follow = None if reader is None else reader.after
        return RecordStream(framer, context, cursor=cursor, follow=follow, refuse=partial(self.refuse, where))
