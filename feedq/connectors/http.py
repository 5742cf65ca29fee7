"""The ``http`` connector: records out of one answer that never ends, or out of many short ones.

``mode: stream`` asks once and cuts the answer into records as they come. The source resumes if the cursor stands
in the request. What is left of a record when the answer ends is discarded, since a source that resumes sends it
again, whole; only what is a whole JSON object or list at the certain end of an answer counts without its end mark.

``mode: poll`` asks at an interval, follows the pages of an answer, and keeps its position in the cursor: see
`feedq.connectors.protocol.http_polling`. A source that says when to ask again (429 and 503 with
``Retry-After``) is asked then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.protocol.http_client import NO_CONTENT, Answer, HttpClient
from feedq.connectors.protocol.http_options import HttpOptions
from feedq.connectors.protocol.http_polling import Poller
from feedq.core.model import JSON, Batch
from feedq.errors import SourceUnavailable
from feedq.records.framing import Framed, Framer
from feedq.records.pointer import is_json
from feedq.records.turns import slices


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
        framer, reader = options.framer(), options.cursor_reader
        client = HttpClient(options, context, idle_timeout_s=options.idle_timeout_s)
        async with aclosing(client), client.ask(cursor) as answer:
            if answer.status in NO_CONTENT:
                raise SourceUnavailable(f"{answer.where}: answered {answer.status}, and without content")
            context.on_connected()
            heard = False
            while data := await answer.receive():
                heard = True
                for piece in (data,) if options.framing == "lines" else slices(data):
                    framed = framer.push(piece)
                    if framed:
                        if reader is not None:
                            cursor = await reader.follow(framed, cursor)
                        yield framed.batch(cursor=cursor, received_at=context.clock.now())
                    if framed.is_last:
                        raise options.refusal(framed, where=answer.where, cursor=cursor)
                    if piece is not data:
                        await asyncio.sleep(0)
            discarded = framer.pending
            last = self._last(framer, answer) if discarded else None
            if last is not None:
                if reader is not None:
                    cursor = await reader.follow(last, cursor)
                yield last.batch(cursor=cursor, received_at=context.clock.now())
                discarded = 0
        raise _closed(answer, discarded=discarded, heard=heard)

    def _last(self, framer: Framer, answer: Answer) -> Framed | None:
        """The record at the end of an answer that has no end mark, if it is sure to be whole."""
        if self._options.format != "json" or not answer.is_delimited:
            return None
        framed = self._options.frame_rest(framer)
        if not framed:
            return None
        (record,) = framed.each()
        # The beginning of a number is a number, but that of an object is nothing.
        return framed if record.lstrip()[:1] in (b"{", b"[") and is_json(record) else None


def _closed(answer: Answer, *, discarded: int, heard: bool) -> SourceUnavailable:
    if discarded:
        when = f" in the middle of a record ({discarded} bytes)"
    else:
        when = "" if heard else " without any content"
    return SourceUnavailable(f"{answer.where}: the source ended its answer{when}")
