"""Asking an HTTP source at an interval: the position of a feed, where an answer takes it, and the loop.

A poll asks for one answer, and for its further pages at once; then nothing is asked until the next tick. Ticks lie
whole intervals apart, whatever a poll takes. After a restart a poll begins anew, at its first page.

A feed's cursor is a `PollCursor`: what to ask for next, and what of the answer is known already. Every answer
becomes one batch at most, whose cursor is the position after it; so whatever a crash interrupts, the last
committed position is enough to go on, and nothing is lost or landed twice as far as the source lets one tell:

* ``at`` is the source's own cursor, and stands in the next request. One that an answer tells (``next_cursor``)
  counts once all pages of the poll have landed: it may lie behind all of them. One that records have (``cursor``)
  counts with each page;
* ``etag`` and ``modified`` spare an answer that has not changed. They belong to the request that ``at`` makes, so
  they are forgotten when it moves;
* ``seen`` records with this ``digest`` began the last answer to the same request. If the next one begins with the
  very same, they have landed already; if not, all of it lands.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from feedq.connectors.base import Context
from feedq.connectors.http_client import NO_CONTENT, HttpAnswer, HttpClient
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceBusy, SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.cursor import CursorReader
from feedq.records.framing import BYTE_ORDER_MARK, Refusal
from feedq.records.pointer import MISSING, TextPointers, is_json
from feedq.records.turns import PIECE_BYTES, Steps, in_turns

if TYPE_CHECKING:
    from feedq.connectors.http import HttpOptions


FRAMED: Final = "framed"
LINK: Final = "link"
TAG_CHARACTERS_MAX: Final = 512
"""Longer ones are not kept: the position is written with every commit."""
_TEXTS: Final = ("etag", "modified", "digest")
_KEYS: Final = frozenset((*_TEXTS, "at", "seen"))
WINDOW_BYTES: Final = 64 * 1024
"""How much of a list is cut up at once: a few milliseconds if it is nothing but brackets."""
_STEP_RECORDS: Final = 1000
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string of JSON, or what it is structured by; a lone quote begins a string whose end is not there yet."""
_ENDS: Final = {b"{": b"},", b"[": b"],", b'"': b'",'}
"""How elements end, by their first character; what is none of these ends with the comma alone."""
_GUESSES_MAX: Final = 4
ADDRESS_CHARACTERS_MAX: Final = 8 * 1024
"""Of a page; servers refuse longer ones."""
_NO_PAGE: Final = (b"null", b"false", b'""')
"""What stands for the address where there is no next page."""
LINK_BYTES_MAX: Final = 8 * ADDRESS_CHARACTERS_MAX
"""A longer text is not an address of a page, whatever of it may be escapes."""
EMPTY_PAGES_MAX: Final = 100
"""So many pages in a row without a record end a poll; the next one goes on behind them."""
PAGES_MAX: Final = 10_000
"""So do so many pages at all: what is remembered of them, to notice a circle, is bounded."""
_LIST: Final = re.compile(rb"\s*+\[")
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True)
class PollCursor:
    """What a feed's cursor is when it polls. Empty means none."""

    at: JSON = None
    etag: str = ""
    modified: str = ""
    seen: int = 0
    digest: str = ""

    @classmethod
    def of(cls, cursor: JSON) -> PollCursor:
        """What `as_cursor` gave; any other cursor is the source's own, from when the feed did not poll."""
        if not isinstance(cursor, dict) or "at" not in cursor or not cursor.keys() <= _KEYS:
            return cls(at=cursor)
        kept = {key: text for key in _TEXTS if isinstance(text := cursor.get(key), str)}
        seen = cursor.get("seen")
        return cls(at=cursor["at"], seen=seen if isinstance(seen, int) else 0, **kept)

    def as_cursor(self) -> JSON:
        """Writes the position as JSON, without what is empty."""
        kept: dict[str, JSON] = {key: getattr(self, key) for key in (*_TEXTS, "seen")}
        return {"at": self.at} | {key: value for key, value in kept.items() if value}

    @property
    def conditions(self) -> dict[str, str]:
        """Headers that ask for an answer only if there is a new one."""
        headers = {"if-none-match": self.etag, "if-modified-since": self.modified}
        return {name: value for name, value in headers.items() if value}


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """An answer."""

    records: Sequence[bytes]
    at: JSON
    """The source's cursor after it."""
    next_page: str = ""
    etag: str = ""
    modified: str = ""
    refusal: FeedMisconfigured | None = None
    """Why the feed cannot go on behind the records."""


@dataclass(frozen=True, slots=True)
class PollStep:
    """What an answer does to a feed."""

    new: Sequence[bytes]
    """The records that have not landed yet."""
    after: PollCursor
    """Where the feed stands once they have."""
    again: bool = False
    """Whether there is more to ask for at once."""
    page: str = ""
    """What to ask for next instead of the first page."""


def advance(position: PollCursor, answer: PollAnswer, *, page: str, follows_cursor: bool) -> Steps[PollStep]:
    """Decides where an answer takes a feed. ``page``: what was asked for, if not the first page.
    ``follows_cursor``: a moved cursor means that more may be there."""
    new = yield from unseen(position, answer.records)
    # Behind an answer whose next record cannot land, the same request goes on.
    if answer.refusal is None:
        if answer.next_page and answer.next_page != page:
            return PollStep(new, PollCursor(at=answer.at), again=True, page=answer.next_page)
        if page:
            return PollStep(new, PollCursor(at=answer.at))
        if answer.at != position.at:
            return PollStep(new, PollCursor(at=answer.at), again=follows_cursor and bool(answer.records))
    after = PollCursor(
        at=answer.at,
        etag=_tag(answer.etag),
        modified=_tag(answer.modified),
        seen=len(answer.records),
        digest=(yield from digest(answer.records)),
    )
    return PollStep(new, after)


def unseen(position: PollCursor, records: Sequence[bytes]) -> Steps[Sequence[bytes]]:
    """``records`` without those that began the last answer to the same request."""
    known = position.seen
    if known and len(records) >= known:
        begins_with = yield from digest(records[:known])
        if begins_with == position.digest:
            return records[known:]
    return records


def digest(records: Sequence[bytes]) -> Steps[str]:
    """Tells sequences of records from one another."""
    if not records:
        return ""
    hashed, size = blake2b(digest_size=16), 0
    for number, record in enumerate(records, start=1):
        hashed.update(b"%d:" % len(record))
        hashed.update(record)
        size += len(record)
        if number % _STEP_RECORDS == 0 or size > PIECE_BYTES:
            size = 0
            yield
    return hashed.hexdigest()


def next_tick(began: float, now: float, *, interval_s: float) -> float:
    """The next of the moments that lie whole intervals after ``began``; those that went by are left out."""
    tick = began + (math.floor((now - began) / interval_s) + 1) * interval_s
    # The division may round up to the tick that is just now.
    return tick if tick > now else now + interval_s


Cut: TypeAlias = tuple[Sequence[bytes], Refusal | None]
"""Records, up to one that cannot land; and if there is one, why it cannot."""


def list_at(
    document: bytes,
    pointer: str,
    *,
    records_max: int,
    record_bytes_max: int,
    window_bytes: int = WINDOW_BYTES,
) -> Steps[Cut | None]:
    """The elements of a list in a JSON document, as they stand there; None if there is no list.

    A ``null`` is an empty list, as some sources write it. Reading stops once there are more than ``records_max``
    elements. Raises `ValueError` for a document that is not JSON.
    """
    (found,) = TextPointers([pointer]).find(document)
    yield
    if found is MISSING:
        return None
    if found == b"null":
        return (), None
    if found[:1] != b"[":
        _elements(found)
        return None
    if found[-1:] != b"]":
        raise ValueError("a list is not closed")
    texts: list[bytes] = []
    for window in _windows(found, record_bytes_max, window_bytes):
        if window is not None:
            texts += window
            if len(texts) > records_max:
                break
            if max(map(len, window), default=0) > record_bytes_max:
                whole = next(i for i, text in enumerate(texts) if len(text) > record_bytes_max)
                return texts[:whole], Refusal.OVERSIZE
            if not window:
                return texts, Refusal.OVERSIZE
        yield
    return texts, None


def _windows(
    text: bytes, record_bytes_max: int, window_bytes: int
) -> Generator[list[bytes] | None, None, None]:
    """The elements between the brackets of a list, window by window; None after a step in between.

    An empty window says that the next element is larger than a record may be. Raises `ValueError`.
    """
    at, end, size = 1, len(text) - 1, window_bytes
    while end - at > window_bytes:
        window = text[at : min(at + size, end)]
        cut, elements = 0, None
        for cut in _guesses(window):
            elements = _elements_or_none(window[:cut])
            if elements is not None:
                break
            yield None
        if elements is None:
            cut = yield from _last_comma(window)
            if cut:
                elements = _elements(window[:cut])
        if elements is not None:
            if not elements:
                raise ValueError("nothing before a comma")
            yield elements
            at, size = at + cut + 1, window_bytes
        elif len(window) > record_bytes_max:
            yield []
            return
        elif len(window) == end - at:
            break
        else:
            size *= 2
    rest = _elements(text[at:end])
    if rest or at == 1:
        yield rest or None
    else:
        raise ValueError("nothing follows a comma")


def _guesses(window: bytes) -> Iterator[int]:
    """Commas between elements, perhaps: the last ones that follow such an end as the first element's may be."""
    end_mark = _ENDS.get(window.lstrip()[:1], b",")
    cut = len(window)
    for _ in range(_GUESSES_MAX):
        cut = window.rfind(end_mark, 0, cut)
        if cut < 0:
            return
        yield cut + len(end_mark) - 1


def _last_comma(window: bytes) -> Generator[None, None, int]:
    """The last comma that is surely between two elements; 0 if there is none. For windows that defy guessing."""
    depth = last = 0
    for number, token in enumerate(_TOKEN.finditer(window), start=1):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b"," if not depth:
                last = token.start()
            case b'"':
                break
        if number % _STEP_RECORDS == 0:
            yield
    return last


def _elements(text: bytes) -> list[bytes]:
    try:
        return list(map(bytes, _ELEMENTS.decode(b"[%b]" % text)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _elements_or_none(text: bytes) -> list[bytes] | None:
    try:
        return _elements(text)
    except ValueError:
        return None


def _tag(text: str) -> str:
    return text if len(text) <= TAG_CHARACTERS_MAX and text.isascii() else ""


class Poller:
    """Makes one attempt to read the source of a feed that polls."""

    def __init__(self, options: HttpOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._position = PollCursor()
        self._page = ""
        """The address of the page to ask for next; empty for the first."""
        self._began_at: JSON = None
        """The source's cursor at the first page."""
        self._record_cursor = options.cursor_reader
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
                    self._context.on_waiting(str(busy))
                    pause_s = busy.retry_in_s
                now = loop.time()
                wait_s = max(next_tick(began, now, interval_s=self._options.interval_s) - now, pause_s)
                await client.pause(wait_s)

    async def _poll(self, client: HttpClient) -> AsyncGenerator[Batch, None]:
        asked: set[bytes] = set()
        empty_pages = 0
        while (answer := await self._ask(client)) is not None:
            if not self._page:
                self._began_at = self._position.at
            follows_cursor = self._options.records is not None
            step = await in_turns(
                advance(self._position, answer, page=self._page, follows_cursor=follows_cursor)
            )
            if step.new:
                now = self._context.clock.now()
                # Until all pages have landed, a cursor that the answers tell may lie behind what is still to come.
                is_early = bool(step.page or (self._page and answer.refusal))
                holds = is_early and self._answer_cursor is not None
                kept = PollCursor(at=self._began_at) if holds else step.after
                yield Records.of(step.new).batch(cursor=kept.as_cursor(), received_at=now)
            if answer.refusal is not None:
                raise answer.refusal
            self._position, self._page = step.after, step.page
            empty_pages = 0 if answer.records else empty_pages + 1
            if not step.again or empty_pages >= EMPTY_PAGES_MAX or len(asked) >= PAGES_MAX:
                return
            page = blake2b(self._page.encode(), digest_size=16).digest()
            if self._page and page in asked:
                raise SourceUnavailable(f"{self._options.location}: the pages of its answer lead in a circle")
            if self._page:
                asked.add(page)
        self._page = ""

    async def _ask(self, client: HttpClient) -> PollAnswer | None:
        """The next answer; None if it holds nothing new."""
        position, options = self._position, self._options
        conditions = position.conditions if options.method == "GET" else {}
        async with client.ask(position.at, extra=conditions, page=self._page) as answer:
            if answer.status == _NOT_MODIFIED and not conditions:
                raise SourceUnavailable(
                    f"{answer.where}: answered 304 Not Modified, but has sent nothing yet"
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
                body = body.removeprefix(BYTE_ORDER_MARK)
            return await self._read(answer, body, client)

    # -- what an answer holds ------------------------------------------------------------------------

    async def _read(self, answer: HttpAnswer, body: bytes, client: HttpClient) -> PollAnswer:
        at = self._position.at
        records, why = await self._records(answer, body)
        if why is not None:
            return PollAnswer(records, at, refusal=self._options.refuse(answer.where, why, at))
        if self._record_cursor is not None:
            at = await in_turns(self._record_cursor.search(Records(records=tuple(records)), at))
        elif self._answer_cursor is not None:
            found = self._answer_cursor.after(Records(records=(body,)), at)
            if found == at and body and not is_json(body):
                # It stays what it was only if the answer says so, and what cannot be parsed says nothing.
                raise _no_json(answer)
            at = at if found == "" else found
        return PollAnswer(
            records,
            at,
            next_page=self._next_page(answer, body, client),
            etag=answer.headers.get("etag", ""),
            modified=answer.headers.get("last-modified", ""),
        )

    async def _records(self, answer: HttpAnswer, body: bytes) -> Cut:
        options = self._options
        if not body:
            return (), None
        if options.records is None:
            if len(body) > options.max_record_bytes:
                return (), Refusal.OVERSIZE
            if options.format == "json" and _LIST.match(body):
                said = "the answer is a list, which lands as one row"
                self._context.on_notice(
                    "records", f'{said}; with source.records: "" each element is a record'
                )
            return (body,), None
        if options.records == FRAMED:
            cut = await in_turns(frame_whole(body, options))
            missing = "ends in the middle of a record"
        else:
            try:
                cut = await in_turns(
                    list_at(
                        body,
                        options.records,
                        records_max=options.max_records,
                        record_bytes_max=options.max_record_bytes,
                    )
                )
            except ValueError:
                raise _no_json(answer) from None
            missing = (
                f"has no list at {options.records!r}; check source.records, and that the answer is no error"
            )
        if cut is None:
            raise SourceUnavailable(f"{answer.where}: its answer {missing}")
        if len(cut[0]) > options.max_records:
            raise FeedMisconfigured(
                f"{answer.where}: answer of more than {options.max_records} records; ask for fewer at a time, "
                "or raise source.max_records"
            )
        return cut

    def _next_page(self, answer: HttpAnswer, body: bytes, client: HttpClient) -> str:
        """The address of the next page; empty if there is none."""
        pointer = self._options.next_page
        if pointer is None or (pointer != LINK and not body):
            return ""
        link = answer.next_link if pointer == LINK else self._link_at(pointer, answer, body)
        if not link:
            if pointer == LINK and not answer.links_are_read:
                said = "the header Link does not follow RFC 8288, so no next page is found"
                self._context.on_notice("next_page", said)
            return ""
        address = client.page_at(link, answer)
        if len(address) > ADDRESS_CHARACTERS_MAX:
            raise FeedMisconfigured(
                f"{answer.where}: the address of its next page has {len(address)} characters; at most "
                f"{ADDRESS_CHARACTERS_MAX} are allowed"
            )
        return address

    def _link_at(self, pointer: str, answer: HttpAnswer, body: bytes) -> str:
        try:
            (text,) = TextPointers([pointer]).find(body)
        except ValueError:
            raise _no_json(answer) from None
        if text is MISSING or text in _NO_PAGE:
            return ""
        if text[:1] != b'"' or len(text) > LINK_BYTES_MAX:
            said = f"source.next_page {pointer!r} does not lead to an address: only the first page is read"
            self._context.on_notice("next_page", said)
            return ""
        try:
            return str(msgspec.json.decode(text))
        except ValueError:
            raise _no_json(answer) from None


def frame_whole(content: bytes, options: HttpOptions) -> Steps[Cut | None]:
    """The records of a content that has ended. The last needs no end mark. None: it ends amid one. Those that
    follow the first `max_records` and a piece are left out."""
    framer = options.stream_framer()
    records: list[bytes] = []
    for start in range(0, len(content), PIECE_BYTES):
        records += framer.push(content[start : start + PIECE_BYTES]).split()
        if framer.refusal is not None or len(records) > options.max_records:
            return records, framer.refusal
        yield
    if framer.pending:
        if not options.end_mark:
            return None
        records += framer.end(options.end_mark).split()
    return records, framer.refusal


def _no_json(answer: HttpAnswer) -> SourceUnavailable:
    return SourceUnavailable(f"{answer.where}: its answer is not JSON, or nested too deeply")
