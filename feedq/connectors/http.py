"""The ``http`` connector: records out of one answer that never ends, or out of many short ones.

``mode: stream`` asks once and cuts the answer into records as they come. The source resumes if the cursor stands
in the request. What is left of a record when the answer ends is discarded, since a source that resumes sends it
again, whole; only what is a whole JSON object or list at the certain end of an answer counts without its end mark.

``mode: poll`` asks at an interval, follows the pages of an answer, and keeps its position in the cursor: see
`feedq.connectors.http_polling`. A source that says when to ask again (429 and 503 with
``Retry-After``) is asked then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.http_client import NO_CONTENT, HttpAnswer, HttpClient, HttpRequestOptions
from feedq.connectors.http_polling import FRAMED, LINK, Poller
from feedq.connectors.reading import StreamOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX
from feedq.core.model import JSON
from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.framing import RECORD_BYTES_MAX, Framer
from feedq.records.pointer import is_json, parse_pointer

_POLL_ONLY: Final = ("interval_s", "records", "next_cursor", "next_page", "max_response_bytes", "max_records")
_FRAMING: Final = ("framing", "delimiter", "length_bytes", "length_order", "length_counts_itself")


class HttpOptions(HttpRequestOptions, StreamOptions):
    """Options of a feed with ``connector: http``."""

    mode: Literal["stream", "poll"] = "stream"
    """`stream` reads one endless response, `poll` sends requests at intervals."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 60.0
    """With `mode: stream`: after this long without data the feed is stalled and reconnects; 0 disables it."""
    response_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX)] = 60.0
    """Time limit from a request to the beginning of its response; with `mode: poll`, as long again for the
    rest."""
    interval_s: Annotated[float, Field(ge=0.1, le=TIMEOUT_S_MAX)] = 60.0
    """With `mode: poll`: time from one poll to the next."""
    records: str | None = None
    """With `mode: poll`: JSON pointer to the list of records in a response (`""` if the response is the
    list), or `framed` to split the response by `framing`. Without it, a response is one record."""
    next_cursor: str | None = None
    """With `mode: poll`, instead of `cursor`: JSON pointer to the next request's cursor in a response. If
    nothing is there, the cursor stays."""
    next_page: str | None = None
    """With `mode: poll`: where a response names the next page: `link` (header `Link` with `rel="next"`) or a
    JSON pointer."""
    max_response_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 16 * 2**20
    """With `mode: poll`: a larger response, unpacked, fails the feed."""
    max_records: Annotated[int, Field(ge=1, le=1_000_000)] = 200_000
    """With `mode: poll`: a response (a page) with more records fails the feed."""

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        # What is known of the last answer, and would leave records of it out, is forgotten.
        if self.mode == "poll":
            return {"at": super().cursor_back(self._sources_cursor(cursor), records)}
        return super().cursor_back(cursor, records)

    def cursor_place(self, cursor: JSON) -> int:
        return super().cursor_place(self._sources_cursor(cursor))

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        at = super().cursor_said(self._sources_cursor(said), self._sources_cursor(like))
        return {"at": at} if self.mode == "poll" else at

    def _sources_cursor(self, cursor: JSON) -> JSON:
        """The source's own cursor: that of a poll says besides what is known of the last answer."""
        is_poll = self.mode == "poll" and isinstance(cursor, dict) and "at" in cursor
        return cursor["at"] if is_poll and isinstance(cursor, dict) else cursor

    @field_validator("records", "next_cursor", "next_page")
    @classmethod
    def _check_pointer(cls, value: str | None, info: ValidationInfo) -> str | None:
        word = {"records": FRAMED, "next_page": LINK}.get(info.field_name or "")
        if value is not None and value != word:
            parse_pointer(value)
            if info.data.get("format", "json") != "json":
                raise ValueError(f"is a JSON pointer and needs source.format json, not {info.data['format']}")
        return value

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "stream":
            self._refuse(_POLL_ONLY, "need source.mode poll")
            return self
        if self.records != FRAMED:
            self._refuse(_FRAMING, "need source.records framed")
            if self.csv is not None:
                raise ValueError("format csv needs records: framed")
        if self.cursor is not None and self.records is None:
            raise ValueError("cursor points into a record, and needs records")
        if self.cursor is not None and self.next_cursor is not None:
            raise ValueError("cursor and next_cursor cannot be combined")
        if self.cursor is not None or self.next_cursor is not None:
            name = "cursor" if self.cursor is not None else "next_cursor"
            if not self.asks_with_cursor:
                raise ValueError(f"{name} has no effect without {{cursor}} in url, headers or body")
        return self

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        given = [name for name in names if name in self.model_fields_set]
        if given:
            raise ValueError(f"{', '.join(given)} {why}")


class HttpConnector:
    """Makes one attempt to read a feed's source."""

    Options: ClassVar[type[ConnectorOptions]] = HttpOptions

    def __init__(self, options: HttpOptions, context: Context) -> None:
        self._options = options
        self._context = context

    def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``; never ends without an error.

        Raises:
            SourceUnavailable: not reached, no answer, one that broke off or ended, or one that says to try later.
            SourceSilent: no byte for the idle timeout.
            FeedMisconfigured: the source refuses the request, a record or an answer is over its limit, a
                cursor cannot be kept, an address is not permitted, a TLS file is wrong.
        """
        if self._options.mode == "poll":
            return Poller(self._options, self._context).stream(cursor)
        return self._stream(cursor)

    async def _stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        options, context = self._options, self._context
        client = HttpClient(options, context, idle_timeout_s=options.idle_timeout_s)
        async with aclosing(client), client.ask(cursor) as answer:
            if answer.status in NO_CONTENT:
                raise SourceUnavailable(f"{answer.where}: answered {answer.status}, and without content")
            framer = options.stream_framer()
            stream = options.record_stream(framer, context, where=answer.where, cursor=cursor)
            context.on_connected()
            while data := await answer.receive():
                for batch in stream.take(data):
                    yield batch
            discarded = framer.pending
            for batch in stream.batches(self._last(framer, answer)):
                discarded = 0
                yield batch
        raise _closed(answer, discarded=discarded, heard=stream.was_heard)

    def _last(self, framer: Framer, answer: HttpAnswer) -> Records:
        """The record at the end of an answer that has no end mark, if it is sure to be whole."""
        is_sure = self._options.format == "json" and answer.is_delimited and self._options.end_mark
        if not framer.pending or not is_sure:
            return Records()
        (record,) = (last := framer.end(self._options.end_mark)).split() or (b"",)
        # The beginning of a number is a number, but that of an object is nothing.
        is_whole = record.lstrip()[:1] in (b"{", b"[") and is_json(record)
        return last if is_whole else Records()


def _closed(answer: HttpAnswer, *, discarded: int, heard: bool) -> SourceUnavailable:
    if discarded:
        when = f" in the middle of a record ({discarded} bytes)"
    else:
        when = "" if heard else " without any content"
    return SourceUnavailable(f"{answer.where}: the source ended its answer{when}")
