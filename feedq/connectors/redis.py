"""The ``redis`` connector: entries of streams of a Redis or Valkey server, read with XREAD.

The cursor holds the id of the last entry of each stream, and reading goes on after it: every entry lands
exactly once, and nothing is left on the server, neither a consumer group nor an acknowledgement.

A stream may be trimmed faster than it is read. The log says so (`LogEvent.SOURCE_GAP`) and reading goes on,
since stopping would only lose more. Ids are not consecutive, so entries are counted: a server says how many it
ever added to a stream and how many are left, and once a feed has caught up it knows how many it has passed.
Until then, and before Redis 7, an oldest entry after the cursor means that some may be gone. To see it in time,
each stream is looked at before every XREAD, in the same packet.

While the last batch of an answer waits for its consumer the next XREAD is already under way: that is all that is
read ahead. An answer is taken entry by entry (`feedq.connectors.resp`), in batches of about
``buffer_bytes``, so that a thousand entries may each be as large as one may be.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from pydantic import Field, field_validator

from feedq.connectors.base import ConnectorOptions, Context, log_gap, show_cursor
from feedq.connectors.messages import (
    READ_AHEAD_BYTES,
    SAID_CHARACTERS_MAX,
    MessageOptions,
    credential,
    oversize,
    payload_member,
    text_member,
)
from feedq.connectors.resp import BrokenAnswer, LeftOut, RedisLink, RedisRefusal
from feedq.connectors.wire.connection import open_connection
from feedq.connectors.wire.dialing import bounded
from feedq.connectors.wire.remote import Scheme, parse_location
from feedq.core.model import JSON
from feedq.errors import EndReached, FeedMisconfigured, SourceUnavailable
from feedq.records.batch import Batch, Records

PORT: Final = 6379
ID: Final = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
"""How a server writes an id."""
_PATH: Final = re.compile(r"/?|/\d{1,5}")

Id: TypeAlias = tuple[int, int]
"""Of an entry: what it is compared by."""
ZERO: Final[Id] = (0, 0)
"""Before every entry."""


class RedisOptions(MessageOptions):
    """Options of a feed with ``connector: redis``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "redis": Scheme(tls=False, port=PORT),
        "rediss": Scheme(tls=True, port=PORT),
    }

    url: str
    """`redis://host` or `rediss://host` (TLS); default port 6379. A path such as `/2` selects a database."""
    streams: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    """Streams to read. The feed waits for one that does not exist; while none exists, it is `connecting`."""
    start: Literal["beginning", "now"] = "beginning"
    """Where a stream without a cursor begins. Until an entry has landed, `now` means the latest connection."""
    field: Annotated[str | None, Field(min_length=1)] = None
    """Field whose value is the record. Without it, and for an entry that lacks it, the record is a JSON
    object of all fields, with values as strings."""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Maximum number of entries of a stream per XREAD."""

    def check_cursor(self, cursor: JSON) -> None:
        ids = list(cursor.items()) if isinstance(cursor, dict) else [("", None)]
        if any(not isinstance(text, str) or not ID.fullmatch(text.encode()) for _, text in ids):
            raise ValueError('must have an id for each stream, such as {"orders": "1764064800000-0"}')

    def cursor_place(self, cursor: JSON) -> int:
        if len(self.streams) > 1:
            raise ValueError("with several streams, what comes after it is unknown: declare a feed for each")
        self.check_cursor(cursor)
        text = cursor.get(self.streams[0]) if isinstance(cursor, dict) else None
        return place_of(id_of(text) if isinstance(text, str) else ZERO)

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """An id, or the milliseconds that it begins with, of the one stream."""
        if isinstance(said, str | int) and not isinstance(said, bool) and len(self.streams) == 1:
            text = str(said)
            said = {self.streams[0]: text if "-" in text else f"{text}-0"}
        return super().cursor_said(said, like)

    def cursor_at(self, cursor: JSON, at: datetime) -> JSON:
        """An id begins with the milliseconds at which its entry was added."""
        before = (int(at.timestamp() * 1000) - 1, 2**64 - 1)
        known = cursor.items() if isinstance(cursor, dict) else ()
        return {name: id_text(min(before, id_of(text))) for name, text in known if isinstance(text, str)}

    @field_validator("url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        if not _PATH.fullmatch(parse_location(url, cls.SCHEMES).target):
            raise ValueError("has a path that is not a database number; write it as in redis://host/2")
        return url

    @field_validator("streams")
    @classmethod
    def _check_streams(cls, streams: tuple[str, ...]) -> tuple[str, ...]:
        if not all(streams):
            raise ValueError("holds an empty name")
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


def id_of(text: str) -> Id:
    """The id in a cursor."""
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)


def place_of(entry_id: Id) -> int:
    """An id as one number."""
    return (entry_id[0] << 64) + entry_id[1]


def id_text(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


BLOCK_MS_MAX: Final = 5_000
"""An XREAD that finds nothing is answered after this: the sign of life of a stream in which nothing happens."""
COUNT_FIRST: Final = 16
"""How many entries the first XREAD asks for, before anything is known of their size."""

FIELDS_MAX: Final = 10_000
"""No entry has more fields."""
FIELD_NAME_BYTES_MAX: Final = 64 * 1024
ENTRY_BYTES: Final = 64
"""What an entry takes beside its record, so that many small ones are bounded too."""

_CREDENTIALS = re.compile(r"WRONGPASS|NOAUTH|ERR (invalid password|AUTH|Client sent AUTH|.*'auth' command)")
_MISTAKE = re.compile(r"MOVED|WRONGTYPE|ERR (unknown command|.*DB index)")
"""How the server refuses what is wrong however often it is tried."""
_NO_CLIENT_NAME = re.compile(r"[^!-~]+")


KEPT_ID_BYTES: Final = 64
"""Of an id, which has at most 41."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as XINFO describes it."""

    last: Id
    """The last id that it ever had."""
    first: Id | None
    """The id of its oldest entry; None if it has none."""
    length: int
    added: int | None
    """How many entries were ever added to it; None before Redis 7."""

    @classmethod
    def of(cls, answer: Any) -> StreamState:
        """Raises `BrokenAnswer`."""
        names = answer[::2] if isinstance(answer, list) else [None]
        if not all(isinstance(name, bytes) for name in names) or len(answer) % 2:
            raise BrokenAnswer("its answer to XINFO does not describe a stream")
        told = dict(zip(names, answer[1::2], strict=True))
        first = told.get(b"first-entry")
        return cls(
            last=_id(told.get(b"last-generated-id")),
            first=_id(first[0]) if isinstance(first, list) and first else None,
            length=_count(told.get(b"length")),
            added=_count(told[b"entries-added"]) if b"entries-added" in told else None,
        )


class RedisConnector:
    """Makes one attempt to read a feed's source."""

    Options: ClassVar[type[ConnectorOptions]] = RedisOptions

    def __init__(self, options: RedisOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._location = options.location
        self._names = tuple(name.encode() for name in options.streams)
        self._field = None if options.field is None else options.field.encode()
        self._count = min(COUNT_FIRST, options.count)
        self._positions: dict[bytes, Id] = {}
        """The id to resume after, of each stream."""
        self._passed: dict[bytes, int | None] = {}
        """How many entries were ever added to each stream up to that id; None if that is not known."""
        self._descriptions = [("XINFO", "STREAM", stream) for stream in self._names]
        self._is_there = False
        """Whether any of the streams exists, as far as is known: until then the feed counts as not connected."""
        idle_ms = options.idle_timeout_s * 1000
        self._block_ms = max(1, int(min(BLOCK_MS_MAX, idle_ms / 2 if idle_ms else BLOCK_MS_MAX)))

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, or not ready.
            SourceSilent: no answer for the idle timeout.
            FeedMisconfigured: refused credentials or permission, a key that is not a stream, a record over the
            limit.
        """
        link: RedisLink | None = None
        try:
            async with bounded(self._location, self._options.connect_timeout_s):
                connection = await open_connection(
                    self._options, self._context, buffer_bytes=READ_AHEAD_BYTES
                )
                link = RedisLink(connection, where=self._location)
                await self._log_in(link, cursor)
            link.idle_timeout_s = self._options.idle_timeout_s
            if self._is_there:
                self._context.on_connected()
            self._ask(link)
            while True:
                async with aclosing(self._answer(link)) as batches:
                    async for batch in batches:
                        if not self._is_there:
                            self._is_there = True
                            self._context.on_connected()
                        yield batch
        except (RedisRefusal, BrokenAnswer) as error:
            raise self._explain(error) from error
        finally:
            if link is not None:
                link.close()

    # -- where to read on ----------------------------------------------------------------------------------

    async def _log_in(self, link: RedisLink, cursor: JSON) -> None:
        """Log in, and find where to resume."""
        user = credential(self._options.username, self._context)
        password = credential(self._options.password, self._context)
        database = int(self._location.target[1:] or 0)
        opening: list[tuple[str | int, ...]] = []
        if user is not None or password is not None:
            opening.append(("AUTH", *([] if user is None else [user]), password or ""))
        if database:
            opening.append(("SELECT", database))
        name = _NO_CLIENT_NAME.sub("_", f"feedq/{self._context.environment}/{self._context.feed}")
        link.send(*opening, ("CLIENT", "SETNAME", name), *self._descriptions)
        for _ in opening:
            await link.answer()
        # It only tells people whose connection this is; a server that does not allow it is none the worse.
        await link.answer(unless="")
        known = cursor if isinstance(cursor, dict) else {}
        kept = {stream: known.get(stream.decode()) for stream in self._names}
        self._positions = {stream: id_of(text) for stream, text in kept.items() if isinstance(text, str)}
        missing = await self._look(link)
        self._is_there = len(missing) < len(self._names)
        self._tell_missing(missing)

    def _tell_missing(self, names: Sequence[str]) -> None:
        if not self._is_there:
            shown = ", ".join(names)[:SAID_CHARACTERS_MAX]
            self._context.on_waiting(f"{self._location}: there is no stream {shown} yet; waiting for it")
            return
        for name in names:
            said = f"{self._location}: there was no stream {name} when the feed connected; waiting for it"
            self._context.on_notice(f"stream:{name}", said)

    async def _look(self, link: RedisLink) -> list[str]:
        """Take the `_descriptions` of all streams; the names of those that do not exist."""
        missing = []
        for stream in self._names:
            described = await link.answer(unless="no such key")
            if described is None:
                missing.append(stream.decode())
                self._positions.setdefault(stream, ZERO)
            else:
                self._place(stream, StreamState.of(described))
        return missing

    def _place(self, stream: bytes, state: StreamState) -> None:
        """Find where to read on in a stream, and tell what it no longer has of what comes after that."""
        position = self._positions.setdefault(stream, state.last if self._options.start == "now" else ZERO)
        if state.last < position:
            # Ids only grow, unless a stream is deleted and made anew, or restored; then none might ever follow.
            last = f"its last id {id_text(state.last)} is before the cursor {id_text(position)}"
            self._log_gap(stream, f"{last}: it was recreated, and is read from its beginning")
            self._positions[stream], self._passed[stream] = ZERO, None
            return
        if state.first is not None and state.first <= position < state.last:
            return  # how much of it is before the position is not known
        before, passed = self._passed.get(stream), state.added
        if passed is not None and state.last > position:
            passed -= state.length  # all that is left comes after the position
        self._passed[stream] = passed
        if before is not None and passed is not None and passed >= before:
            if missed := passed - before:
                many = "1 entry was" if missed == 1 else f"{missed} entries were"
                said = (
                    f"{many} trimmed or deleted without having been read; the cursor is {id_text(position)}"
                )
                self._log_gap(stream, said, missed=missed)
        elif ZERO < position < state.last:
            self._log_gap(stream, _perhaps_missed(position, state))

    def _log_gap(self, stream: bytes, detail: str, *, missed: int = 0) -> None:
        log_gap(self._context, f"{self._location} {stream.decode()}", detail, missed=missed)

    # -- reading -------------------------------------------------------------------------------------------

    @property
    def _cursor(self) -> JSON:
        return {
            name.decode(): id_text(position) for name, position in self._positions.items() if position > ZERO
        }

    def _ask(self, link: RedisLink) -> None:
        ids = (id_text(self._positions[stream]) for stream in self._names)
        link.send(
            *self._descriptions,
            ("XREAD", "COUNT", self._count, "BLOCK", self._block_ms, "STREAMS", *self._names, *ids),
        )

    async def _answer(self, link: RedisLink) -> AsyncGenerator[Batch, None]:
        """What was asked for, in batches. Asks for what follows."""
        await self._look(link)
        records: list[bytes] = []
        count = size = held = 0
        failure: FeedMisconfigured | EndReached | None = None
        try:
            async with aclosing(self._entries(link)) as entries:
                async for stream, entry_id, record in entries:
                    records.append(record)
                    self._positions[stream] = entry_id
                    count, size, held = count + 1, size + len(record), held + len(record) + ENTRY_BYTES
                    if held >= self._options.buffer_bytes:
                        yield self._batch(records)
                        records, held = [], 0
        except (FeedMisconfigured, EndReached) as error:
            failure = error  # behind what came before it
        if failure is None:
            self._adapt_count(count, size)
            if not count:
                # A stream may bring nothing because it was made anew: do not wait for it again.
                link.send(*self._descriptions)
                await self._look(link)
            self._ask(link)
        if records:
            yield self._batch(records)
        if failure is not None:
            raise failure

    async def _entries(self, link: RedisLink) -> AsyncGenerator[tuple[bytes, Id, bytes], None]:
        """The entries of an answer to XREAD, each when it has arrived: its stream, its id and its record. Raises
        `FeedMisconfigured` or `EndReached` at one that cannot land."""
        for _ in range(await link.array(at_most=len(self._names))):
            await _pair(link)
            stream = await link.text(at_most=FIELD_NAME_BYTES_MAX)
            if stream not in self._positions:
                raise BrokenAnswer("entries of a stream that was not requested")
            count = await link.array(at_most=self._count)
            for _ in range(count):
                await _pair(link)
                entry_id = _id(await link.text(at_most=KEPT_ID_BYTES))
                self._check_place(stream, entry_id)
                record = self._record(stream, entry_id, await self._values(link))
                if len(record) > self._options.max_record_bytes:
                    raise oversize(self._location, self._options, size=len(record), after=self._cursor)
                yield stream, entry_id, record
            if (passed := self._passed.get(stream)) is not None:
                self._passed[stream] = passed + count

    def _check_place(self, stream: bytes, entry_id: Id) -> None:
        if entry_id <= self._positions[stream]:
            raise BrokenAnswer(f"an entry {id_text(entry_id)} that comes before the requested ones")
        if self._context.ends_at is not None and place_of(entry_id) > self._context.ends_at:
            raise EndReached(f"{self._location}: the requested range ends before {id_text(entry_id)}")

    async def _values(self, link: RedisLink) -> list[bytes]:
        """Fields and values of an entry, in turn; of ``source.field`` alone, if the entry has it. Raises
        `FeedMisconfigured` as soon as they are too large."""
        count = await link.array(at_most=2**31)
        if count % 2:
            raise BrokenAnswer("an entry with a field that has no value")
        if count > 2 * FIELDS_MAX:
            raise self._too_large(f"entry of {count // 2} fields (at most {FIELDS_MAX} are read)")
        most = self._options.max_record_bytes
        values: list[bytes] = []
        size, wanted, too_large = 0, False, ""
        for _ in range(count // 2):
            name = await link.text(at_most=FIELD_NAME_BYTES_MAX)
            if isinstance(name, LeftOut):
                raise self._too_large(f"name of a field of {name.size} bytes")
            is_wanted = name == self._field
            value = await link.text(at_most=most)
            if isinstance(value, LeftOut):
                too_large = f"payload of {value.size} bytes"
                if is_wanted or self._field is None:
                    raise self._too_large(too_large)
                await link.skip(value)
            elif is_wanted:
                # The last of that name counts, and the others are not needed.
                values, wanted = [name, value], True
            elif not wanted and not too_large:
                values += (name, value)
                size += len(name) + len(value)
                too_large = f"payload of more than {most} bytes" if size > most else ""
                values = [] if too_large else values
        if too_large and not wanted:
            raise self._too_large(too_large)
        return values

    def _batch(self, records: Sequence[bytes]) -> Batch:
        return Records.of(records).batch(cursor=self._cursor, received_at=self._context.clock.now())

    def _too_large(self, what: str) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{self._location}: {what} after cursor {show_cursor(self._cursor)}; at most "
            f"{self._options.max_record_bytes} bytes are allowed: raise source.max_record_bytes, or have "
            "smaller entries added"
        )

    def _adapt_count(self, count: int, size: int) -> None:
        """Ask for as many entries as make about ``buffer_bytes``; the count grows by steps, for sizes vary."""
        if count:
            each = max(1, size // count)
            fitting = self._options.buffer_bytes // (each * len(self._names))
            self._count = max(1, min(fitting, 4 * self._count, self._options.count))

    # -- records -------------------------------------------------------------------------------------------

    def _record(self, stream: bytes, entry_id: Id, values: Sequence[bytes]) -> bytes:
        value = values[1] if values and values[0] == self._field else None
        if not self._options.envelope:
            return msgspec.json.encode(_object(values)) if value is None else value
        data = {"data": _object(values)} if value is None else payload_member(value)
        return msgspec.json.encode({"stream": stream.decode(), "id": id_text(entry_id), **data})

    def _explain(self, error: RedisRefusal | BrokenAnswer) -> SourceUnavailable | FeedMisconfigured:
        said = str(error)[:SAID_CHARACTERS_MAX]
        if isinstance(error, BrokenAnswer):
            return SourceUnavailable(
                f"{self._location}: its answer is not one of Redis: {said}; check source.url"
            )
        if _CREDENTIALS.match(said):
            return FeedMisconfigured(
                f"{self._location}: credentials refused ({said}); check source.username and source.password"
            )
        if said.startswith("NOPERM"):
            return FeedMisconfigured(
                f"{self._location}: {said}; the user needs XREAD and XINFO, and all of source.streams"
            )
        if _MISTAKE.match(said):
            return FeedMisconfigured(
                f"{self._location}: {said}; check source.streams and the path of source.url"
            )
        return SourceUnavailable(f"{self._location}: {said}")


def _id(text: Any) -> Id:
    """Raises `BrokenAnswer` for what a server should not call one."""
    if not isinstance(text, bytes) or not ID.fullmatch(text):
        raise BrokenAnswer("an invalid id")
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence)


def _count(number: Any) -> int:
    """Raises `BrokenAnswer` for what a server should not call one."""
    if not isinstance(number, int):
        raise BrokenAnswer("an invalid count")
    return number


async def _pair(link: RedisLink) -> None:
    if await link.array(at_most=2) != 2:
        raise BrokenAnswer("a stream or an entry that is not a pair")


def _perhaps_missed(position: Id, state: StreamState) -> str:
    """What is told of a stream of which nothing is left up to a position."""
    if state.first is None:
        return f"everything after the cursor {id_text(position)} was trimmed or deleted"
    return (
        f"its oldest entry {id_text(state.first)} is after the cursor {id_text(position)}: "
        "entries in between may have been trimmed"
    )


def _object(values: Sequence[bytes]) -> dict[str, Any]:
    """The fields of an entry; one that is there several times has a list of its values."""
    fields: dict[str, Any] = {}
    for name, value in zip(values[::2], values[1::2], strict=True):
        for key, text in text_member(name.decode("utf-8", "backslashreplace"), value).items():
            if key not in fields:
                fields[key] = text
            elif isinstance(fields[key], list):
                fields[key].append(text)
            else:
                fields[key] = [fields[key], text]
    return fields
