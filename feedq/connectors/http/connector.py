"""The ``http`` connector: records out of one answer that never ends, or out of many short ones.

``mode: stream`` asks once and cuts the answer into records as they come. The source resumes if the cursor stands
in the request. What is left of a record when the answer ends is discarded, since a source that resumes sends it
again, whole; only what is a whole JSON object or list at the certain end of an answer counts without its end mark.

``mode: poll`` asks at an interval, follows the pages of an answer, and keeps its position in the cursor: see
`feedq.connectors.http.polling`. A source that says when to ask again (429 and 503 with
``Retry-After``) is asked then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.http.client import NO_CONTENT, Answer, HttpClient
from feedq.connectors.http.options import HttpOptions
from feedq.connectors.http.polling import Poller
from feedq.core.model import JSON
from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.framing import Framer
from feedq.records.pointer import is_json


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

    def _last(self, framer: Framer, answer: Answer) -> Records:
        """The record at the end of an answer that has no end mark, if it is sure to be whole."""
        is_sure = self._options.format == "json" and answer.is_delimited and self._options.end_mark
        if not framer.pending or not is_sure:
            return Records()
        (record,) = (last := framer.end(self._options.end_mark)).split() or (b"",)
        # The beginning of a number is a number, but that of an object is nothing.
        is_whole = record.lstrip()[:1] in (b"{", b"[") and is_json(record)
        return last if is_whole else Records()


def _closed(answer: Answer, *, discarded: int, heard: bool) -> SourceUnavailable:
    if discarded:
        when = f" in the middle of a record ({discarded} bytes)"
    else:
        when = "" if heard else " without any content"
    return SourceUnavailable(f"{answer.where}: the source ended its answer{when}")
