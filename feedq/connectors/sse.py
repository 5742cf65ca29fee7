"""The ``sse`` connector: server-sent events.

Each event is a record: its data, or with ``envelope`` all that it says. The cursor is the id of the last event,
and goes back to the source as ``Last-Event-ID``; or it stands in the record, where ``cursor`` points, and goes
back in the request.

Sources end their answers now and then. One that did so in order is asked again from here, after the time that its
``retry`` asks for; one that broke off leaves the time in between to feedq, but no less than that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, ClassVar, Final

import msgspec
from pydantic import Field, field_validator

from feedq.connectors.base import ConnectorOptions, Context, needs_json, show_cursor
from feedq.connectors.protocol.eventstream import EventFramer
from feedq.connectors.protocol.http_client import NO_CONTENT, Answer, HttpClient, HttpRequestOptions, named
from feedq.connectors.record_options import CursorOptions
from feedq.core.model import JSON, Batch
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.framing import CURSOR_BYTES_MAX, RECORD_BYTES_MAX, Framed

MEDIA_TYPE: Final = "text/event-stream"
RETRY_S: Final = 1.0
"""Before an answer that ended is asked for again, if the source did not say."""
RETRY_S_MIN: Final = 0.1
"""A source that ends each answer at once must not be asked without pause."""
RETRY_S_MAX: Final = 60.0
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class SseOptions(HttpRequestOptions, CursorOptions):
    """Options of a feed with ``connector: sse``."""

    cursor: str | None = None
    """JSON pointer to what to resume after in each record, such as `/seq`, for a source that is asked with
    `{cursor}`. Without it that is the id of the last event, which goes back as `Last-Event-ID`."""
    events: Annotated[tuple[str, ...] | None, Field(min_length=1)] = None
    """Types of events that are wanted, such as `[update]`; an event that names none is a `message`. Without
    it, all are."""
    envelope: bool = False
    """Makes a record of all that an event says: `{"id": …, "event": …, "data": …}`, with the data as JSON
    where it is some, and as a string otherwise; needs `format: json`."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """An event with more data fails the feed, with everything before it landed, until this is raised."""

    _check_envelope = field_validator("envelope")(needs_json)


class SseConnector:
    """Makes one attempt to read a feed's source, which outlives answers that the source ends in order."""

    Options: ClassVar[type[ConnectorOptions]] = SseOptions

    def __init__(self, options: SseOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._reader = options.cursor_reader
        self._cursor: JSON = None
        self._retry_s: float | None = None

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``; never ends without an error.

        Raises:
            SourceUnavailable: not reached, no event stream, one that broke off, or one that says to try later.
            SourceSilent: no byte for the idle timeout; comments count.
            FeedMisconfigured: the source refuses the request or wants no more of us, an event is over the limit,
                a cursor cannot be kept, an address is not permitted, a TLS file is wrong.
        """
        self._cursor = cursor
        options, context = self._options, self._context
        async with aclosing(HttpClient(options, context, idle_timeout_s=options.idle_timeout_s)) as client:
            while True:
                try:
                    async with aclosing(self._answer(client)) as batches:
                        async for batch in batches:
                            yield batch
                except SourceSilent:
                    raise
                except SourceUnavailable:
                    if self._retry_s is not None:
                        await client.pause(min(self._retry_s, RETRY_S_MAX))
                    raise
                retry_s = RETRY_S if self._retry_s is None else self._retry_s
                await client.pause(min(max(retry_s, RETRY_S_MIN), RETRY_S_MAX))

    async def _answer(self, client: HttpClient) -> AsyncGenerator[Batch, None]:
        """The events of one answer."""
        last_id = self._last_id()
        framer = EventFramer(
            max_record_bytes=self._options.max_record_bytes,
            types=self._options.events,
            envelope=self._options.envelope,
            last_id=last_id,
        )
        # Spaces around it are no part of a header's value, which cannot be sent with them.
        sent_id = last_id.strip(" \t")
        headers = {"cache-control": "no-store"} | ({"last-event-id": sent_id} if sent_id else {})
        async with client.ask(self._cursor, accept=MEDIA_TYPE, extra=headers) as answer:
            _check(answer)
            self._context.on_connected()
            heard = has_ended = False
            while not has_ended:
                data = await answer.receive()
                has_ended, heard = not data, heard or bool(data)
                framed = framer.push(data) if data else framer.finish()
                while True:
                    if batch := await self._batch(framed, framer):
                        yield batch
                    if framed.oversize:
                        raise self._refusal(answer)
                    if not framer.is_behind:
                        break
                    await asyncio.sleep(0)  # however many lines there are, the others get their turn
                    framed = framer.go_on()
        if not heard:
            raise SourceUnavailable(f"{answer.where}: the source ended its answer before it sent anything")

    async def _batch(self, framed: Framed, framer: EventFramer) -> Batch | None:
        self._retry_s = self._retry_s if framer.retry_s is None else framer.retry_s
        if self._reader is not None:
            self._cursor = await self._reader.follow(framed, self._cursor)
        elif framer.last_id != self._last_id():
            self._cursor = self._checked(framer.last_id) or None
        if not framed:
            return None
        return framed.batch(cursor=self._cursor, received_at=self._context.clock.now())

    def _last_id(self) -> str:
        """The id to resume after; empty if the cursor is none."""
        cursor = self._cursor
        if cursor is None or self._reader is not None:
            return ""
        return cursor if isinstance(cursor, str) else msgspec.json.encode(cursor).decode()

    def _checked(self, last_id: str) -> str:
        """Raises `FeedMisconfigured` for an id that could not go back to the source."""
        if len(last_id.encode()) > CURSOR_BYTES_MAX:
            raise FeedMisconfigured(
                f"{self._options.location}: the id of an event has more than {CURSOR_BYTES_MAX} bytes; "
                "resume by source.cursor instead, from the data"
            )
        if _CONTROL.search(last_id):
            raise FeedMisconfigured(
                f"{self._options.location}: the id of an event holds a control character, which no header can; "
                "resume by source.cursor instead, from the data"
            )
        return last_id

    def _refusal(self, answer: Answer) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{answer.where}: event of more than {self._options.max_record_bytes} bytes after cursor "
            f"{show_cursor(self._cursor)}; raise source.max_record_bytes"
        )


def _check(answer: Answer) -> None:
    """Raises if an answer is no event stream."""
    if answer.status in (204, 205):
        raise FeedMisconfigured(
            f"{answer.where}: answered {answer.status}, by which a source of events says to stop asking; "
            "resume the feed once it has some again"
        )
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE or answer.status in NO_CONTENT:
        raise SourceUnavailable(
            f"{answer.where}: answered {answer.status} with content of the type {named(media_type)}, "
            f"not {MEDIA_TYPE}; check source.url"
        )
