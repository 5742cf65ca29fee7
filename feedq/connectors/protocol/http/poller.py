"""Asking an HTTP source at an interval: the loop around `feedq.connectors.protocol.http.polling`.

A poll asks for one answer, and for its further pages at once; then nothing is asked until the next tick. Ticks lie
whole intervals apart, whatever a poll takes. A position that cannot be gone on from, because the source has
forgotten the page that it names, goes back to the first page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import orjson

from feedq.connectors.base import Context
from feedq.connectors.protocol.http.client import (
    NO_CONTENT,
    Answer,
    HttpClient,
    NothingThere,
    RequestRefused,
)
from feedq.connectors.protocol.http.http_options import FRAMED, LINK, HttpOptions
from feedq.connectors.protocol.http.polling import (
    Elements,
    PollAnswer,
    PollCursor,
    TooMany,
    advance,
    conceal,
    list_at,
    next_tick,
    reveal,
    within,
)
from feedq.connectors.records.cursor import CURSOR_BYTES_MAX, CursorReader
from feedq.connectors.records.framing import CR, LF, Framed
from feedq.connectors.records.pointer import MISSING, TextPointers, is_json
from feedq.connectors.records.turns import in_turns
from feedq.errors import FeedMisconfigured, SourceBusy, SourceUnavailable
from feedq.model import JSON, Batch

LINK_BYTES_MAX: Final = 8 * CURSOR_BYTES_MAX
"""A longer text is no address of a page, whatever of it may be escapes."""
EMPTY_PAGES_MAX: Final = 100
"""So many pages in a row without a record end a poll; the next one goes on behind them."""
_NOT_MODIFIED: Final = 304
_FORGOTTEN: Final = frozenset((400, 404, 410))
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class _Fetched:
    page: PollAnswer
    refusal: FeedMisconfigured | None
    """Why the feed cannot go on behind the records of the page."""


class Poller:
    """One connection attempt of one feed that polls."""

    def __init__(self, options: HttpOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._position = PollCursor()
        self._record_cursor = options.cursor_reader()
        self._answer_cursor = (
            None if options.next_cursor is None else CursorReader(options.next_cursor, option="next_cursor")
        )
        self._was_answered = False

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``; never ends without an error."""
        self._position = PollCursor.of(cursor)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with aclosing(HttpClient(self._options, self._context, idle_timeout_s=0)) as client:
            while True:
                pause_s = 0.0
                try:
                    async with aclosing(self._poll(client)) as batches:
                        async for batch in batches:
                            yield batch
                except SourceBusy as busy:
                    pause_s = busy.retry_in_s
                now = loop.time()
                wait_s = max(next_tick(began, now, interval_s=self._options.interval_s) - now, pause_s)
                await client.pause(wait_s)

    async def _poll(self, client: HttpClient) -> AsyncGenerator[Batch, None]:
        asked: set[str] = set()
        empty_pages = 0
        while (fetched := await self._fetch(client)) is not None:
            page = fetched.page
            if fetched.refusal is None:
                follows_cursor = self._options.records is not None
                step = await in_turns(advance(self._position, page, follows_cursor=follows_cursor))
            else:
                step = await in_turns(within(self._position, page.records))
            if step.new:
                yield self._batch(step.new, cursor=step.after.as_cursor())
            if fetched.refusal is not None:
                raise fetched.refusal
            self._position = step.after
            empty_pages = 0 if page.records else empty_pages + 1
            if not step.again or empty_pages >= EMPTY_PAGES_MAX:
                return
            if step.after.page in asked:
                raise SourceUnavailable(f"{self._options.location}: the pages of its answer lead in a circle")
            if step.after.page:
                asked.add(step.after.page)
        self._position = PollCursor(at=self._position.at) if self._position.page else self._position

    async def _fetch(self, client: HttpClient) -> _Fetched | None:
        try:
            return await self._ask(client)
        except (RequestRefused, NothingThere) as refused:
            is_resumed = self._position.page and not self._was_answered
            if not is_resumed or refused.status not in _FORGOTTEN:
                raise
        self._position = PollCursor(at=self._position.at)
        return await self._ask(client)

    async def _ask(self, client: HttpClient) -> _Fetched | None:
        """The next answer; None if it holds nothing new."""
        position, options = self._position, self._options
        conditions = position.conditions if options.method == "GET" else {}
        page = reveal(position.page, self._context.secrets)
        async with client.ask(position.at, extra=conditions, page=page) as answer:
            if answer.status == _NOT_MODIFIED and not conditions:
                raise SourceUnavailable(
                    f"{answer.where}: answered 304 Not Modified to what it has not sent yet"
                )
            if not self._was_answered:
                self._context.on_connected()
                self._was_answered = True
            if answer.status in NO_CONTENT:
                return None
            try:
                async with asyncio.timeout(options.response_timeout_s):
                    body = await answer.read(options.max_response_bytes)
            except TimeoutError:
                raise SourceUnavailable(
                    f"{answer.where}: its answer took more than {options.response_timeout_s:g} s "
                    "(source.response_timeout_s)"
                ) from None
            if options.format == "json":
                body = body.removeprefix(_BYTE_ORDER_MARK)
            return await self._read(answer, body, client)

    # -- what an answer holds ------------------------------------------------------------------------

    async def _read(self, answer: Answer, body: bytes, client: HttpClient) -> _Fetched:
        at = self._position.at
        records, is_last = await self._records(answer, body)
        if is_last is not None:
            refusal = self._options.refusal(is_last, where=answer.where, cursor=at)
            return _Fetched(PollAnswer(records, at), refusal)
        if self._record_cursor is not None:
            at = await self._record_cursor.follow(Framed(records=tuple(records)), at)
        elif self._answer_cursor is not None:
            found = await self._answer_cursor.follow(Framed(records=(body,)), at)
            if found == at and body and not is_json(body):
                # It stays what it was only if the answer says so, and what cannot be parsed says nothing.
                raise _no_json(answer)
            at = at if found == "" else found
        page = PollAnswer(
            records,
            at,
            next_page=self._next_page(answer, body, client),
            etag=answer.headers.get("etag", ""),
            modified=answer.headers.get("last-modified", ""),
        )
        return _Fetched(page, None)

    async def _records(self, answer: Answer, body: bytes) -> tuple[Sequence[bytes], Framed | None]:
        """The records, up to one that cannot land; and if there is one, what a framer would say of it."""
        options = self._options
        if options.records == FRAMED:
            framed = await in_turns(options.frame_whole(body))
            if framed is None:
                raise SourceUnavailable(f"{answer.where}: its answer ends in the middle of a record")
            if len(framed.records) > options.max_records:
                raise self._too_many(answer)
            return framed.records, framed if framed.is_last else None
        if options.records is not None:
            elements = await self._elements(answer, body, options.records)
            return elements.texts, Framed(oversize=True) if elements.oversize else None
        if len(body) > options.max_record_bytes:
            return (), Framed(oversize=True)
        return (body,) if body else (), None

    async def _elements(self, answer: Answer, body: bytes, pointer: str) -> Elements:
        options = self._options
        limits = {"records_max": options.max_records, "record_bytes_max": options.max_record_bytes}
        try:
            found = await in_turns(list_at(body, pointer, **limits))
        except TooMany:
            raise self._too_many(answer) from None
        except ValueError:
            raise _no_json(answer) from None
        if found is None:
            raise SourceUnavailable(
                f"{answer.where}: its answer has no list at {pointer!r}; check source.records, or is it an error?"
            )
        return found

    def _too_many(self, answer: Answer) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{answer.where}: answer of more than {self._options.max_records} records; ask for fewer at a time, "
            "or raise source.max_records"
        )

    def _next_page(self, answer: Answer, body: bytes, client: HttpClient) -> str:
        """The address of the next page, without secrets; empty if there is none."""
        pointer = self._options.next_page
        if pointer is None:
            return ""
        link = answer.next_link if pointer == LINK else self._link_at(pointer, answer, body)
        if not link:
            return ""
        address = conceal(client.page_at(link, answer), self._context.secrets)
        if len(address) > CURSOR_BYTES_MAX:
            raise FeedMisconfigured(
                f"{answer.where}: the address of its next page has {len(address)} characters, "
                f"at most {CURSOR_BYTES_MAX} are kept"
            )
        return address

    def _link_at(self, pointer: str, answer: Answer, body: bytes) -> str:
        try:
            (text,) = TextPointers([pointer]).find(body)
            is_link = text is not MISSING and text[:1] == b'"' and len(text) <= LINK_BYTES_MAX
            return str(orjson.loads(text)) if is_link else ""  # type: ignore[arg-type] # it is no `MISSING` here
        except ValueError:
            raise _no_json(answer) from None

    def _batch(self, records: Sequence[bytes], *, cursor: JSON) -> Batch:
        now = self._context.clock.now()
        lines = LF.join([*records, b""])
        if CR not in lines and lines.count(LF) == len(records):
            return Batch.of_lines(lines, cursor=cursor, received_at=now)
        return Batch.of_records(records, cursor=cursor, received_at=now)


def _no_json(answer: Answer) -> SourceUnavailable:
    return SourceUnavailable(f"{answer.where}: its answer is no JSON, or nested too deeply")
