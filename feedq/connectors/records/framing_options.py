"""Options of connectors whose source is a stream of bytes: how it is cut into records.

A base for their options, beside others such as `feedq.connectors.wire.remote.RemoteOptions`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions
from feedq.connectors.records.cursor import show_cursor
from feedq.connectors.records.framing import LF, Framed, Framer, LengthFramer, make_framer
from feedq.connectors.records.headerless import HeaderlessFramer
from feedq.connectors.wire.template import unescape
from feedq.errors import FeedMisconfigured
from feedq.model import JSON

RECORD_BYTES_MAX = 32 * 2**20
"""To look through one that is larger would hold up all feeds of a worker for more than a tenth of a second."""
BUFFER_BYTES_MAX = 16 * 2**20
"""What is read at once is looked through at once."""


class FramingOptions(ConnectorOptions):
    """How a stream of bytes is cut into records."""

    framing: Literal["lines", "delimiter", "length"] = Field(
        default="lines",
        description="How records are told apart: `lines` end with LF or CRLF, `delimiter` is whatever ends "
        "them instead, with `length` each comes after its length. Empty records are keep-alives and are skipped.",
    )
    delimiter: str | None = Field(
        default=None,
        validate_default=True,
        description="With `framing: delimiter`: what ends a record; any bytes. "
        r"Escapes: `\n \r \t \0 \\ \xNN`.",
    )
    length_bytes: Literal[1, 2, 4] = Field(
        default=4, description="With `framing: length`: size of the number before each record."
    )
    length_order: Literal["big", "little"] = Field(
        default="big",
        description="With `framing: length`: order of the bytes of that number; `big` is network order.",
    )
    length_counts_itself: bool = Field(
        default=False, description="With `framing: length`: the number counts its own bytes too."
    )
    max_record_bytes: int = Field(
        default=2**20,
        ge=1,
        le=RECORD_BYTES_MAX,
        description="A larger record fails the feed, with everything before it landed, until this is raised.",
    )

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
        """For one stream from its beginning; each needs its own."""
        framer: Framer
        if self.framing == "length":
            framer = LengthFramer(
                self.length_bytes,
                self.max_record_bytes,
                byte_order=self.length_order,
                counts_itself=self.length_counts_itself,
            )
        else:
            delimiter = None if self.delimiter is None else unescape(self.delimiter)
            framer = make_framer(delimiter, max_record_bytes=self.max_record_bytes)
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
