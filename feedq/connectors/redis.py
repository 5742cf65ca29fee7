"""The ``redis`` connector: entries of streams of a Redis or Valkey server, read with XREAD.

The cursor holds the id of the last entry of each stream, and reading goes on after it: every entry lands
exactly once, and nothing is left on the server, neither a consumer group nor an acknowledgement.

A stream may be trimmed faster than it is read. When its oldest entry comes after the cursor, entries between
may be gone; nobody can tell, for ids are not consecutive. The log says so (`LogEvent.SOURCE_GAP`) and reading
goes on: stopping would only lose more. To see it in time, the oldest entry is asked for before every XREAD,
in the same packet.

While a batch waits for its consumer the next XREAD is already under way: that is all that is read ahead.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

import orjson
from pydantic import Field, field_validator
from redis.asyncio.connection import Connection
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.records.messages import (
    MessageOptions,
    batch_of,
    fill_in,
    oversize,
    payload_member,
    text_member,
)
from feedq.connectors.wire.dialing import bounded, explain
from feedq.connectors.wire.remote import Scheme, parse_location
from feedq.connectors.wire.streams import Streams, open_streams, tls_context
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import LogEvent, log

PORT = 6379
BLOCK_MS_MAX: Final = 5_000
"""An XREAD that finds nothing is answered after this: the sign of life of a stream in which nothing happens."""
COUNT_FIRST: Final = 16
"""How many entries the first XREAD asks for, before anything is known of their size."""

_PATH = re.compile(r"/?|/\d{1,5}")
_MISTAKE = re.compile(r"WRONGTYPE|unknown command|.*DB index")
"""How the server refuses what is wrong however often it is tried. It is the library that leaves out `ERR`."""
_NO_CLIENT_NAME = re.compile(r"[^!-~]+")

Id: TypeAlias = tuple[int, int]
"""Of an entry: what it is compared by."""
Entry: TypeAlias = tuple[bytes, Sequence[bytes]]
"""Id, then fields and values in turn."""
Answer: TypeAlias = Sequence[tuple[bytes, Sequence[Entry]]]
"""Of XREAD: streams that have something new, and that."""

ZERO: Final[Id] = (0, 0)
"""Before every entry."""

logger = log(__name__)


class RedisOptions(MessageOptions):
    """Options of a feed with ``connector: redis``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "redis": Scheme(tls=False, port=PORT),
        "rediss": Scheme(tls=True, port=PORT),
    }

    url: str = Field(
        description="Where the server listens: `redis://host`, or `rediss://host` with TLS; the port is 6379 "
        "unless given. A path such as `/2` selects a database."
    )
    streams: tuple[str, ...] = Field(
        min_length=1,
        max_length=256,
        description="Names of the streams to read. One that does not exist yet is waited for.",
    )
    start: Literal["beginning", "now"] = Field(
        default="beginning",
        description="Where a stream without a cursor is read from: its `beginning`, or what is added from `now` "
        "on; until the first such entry has landed, `now` is the latest connection.",
    )
    field: str | None = Field(
        default=None,
        min_length=1,
        description="The field whose value is the record. An entry without it, and every entry when this is not "
        "set, becomes a JSON object of its fields, their values as strings.",
    )
    count: int = Field(
        default=1000, ge=1, le=100_000, description="Most entries of each stream that one XREAD asks for."
    )

    @field_validator("url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        if not _PATH.fullmatch(parse_location(url, cls.SCHEMES).target):
            raise ValueError("has a path that is no database; write for instance redis://host/2")
        return url

    @field_validator("streams")
    @classmethod
    def _check_streams(cls, streams: tuple[str, ...]) -> tuple[str, ...]:
        if not all(streams):
            raise ValueError("holds an empty name")
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


class RedisConnector:
    """One connection attempt of one feed."""

    Options: ClassVar[type[ConnectorOptions]] = RedisOptions

    def __init__(self, options: RedisOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._location = options.location
        self._names = tuple(name.encode() for name in options.streams)
        self._field = None if options.field is None else options.field.encode()
        self._count = min(COUNT_FIRST, options.count)
        idle_ms = options.idle_timeout_s * 1000
        self._block_ms = max(1, int(min(BLOCK_MS_MAX, idle_ms / 2 if idle_ms else BLOCK_MS_MAX)))

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, or not ready.
            SourceSilent: no answer for the idle timeout.
            FeedMisconfigured: refused credentials or permission, a key that is no stream, a record over the limit.
        """
        connection: _Connection | None = None
        try:
            async with bounded(self._location, self._options.connect_timeout_s) as give_up_at:
                connection = await self._open(give_up_at)
                await connection.connect()  # type: ignore[no-untyped-call] # redis-py's own
                positions = await self._positions(connection, cursor)
            self._context.on_connected()
            await self._ask(connection, positions)
            while True:
                oldest, answer = await self._answer(connection)
                received_at = self._context.clock.now()
                records, failure = self._take(oldest, answer, positions)
                if failure is None:
                    self._adapt_count(records)
                    await self._ask(connection, positions)
                if records:
                    yield batch_of(records, cursor=_cursor(positions), received_at=received_at)
                if failure is not None:
                    raise failure
        except RedisError as error:
            raise self._explain(error) from error
        finally:
            if connection is not None:
                await connection.disconnect()

    async def _open(self, give_up_at: float) -> _Connection:
        tls = await tls_context(self._options)
        streams = await open_streams(self._options, self._context, give_up_at=give_up_at, tls=tls)
        return _Connection(streams, **self._credentials())

    def _credentials(self) -> dict[str, Any]:
        return {
            "host": self._location.host,
            "port": self._location.port,
            "db": int(self._location.target[1:] or 0),
            "username": fill_in(self._options.username, self._context),
            "password": fill_in(self._options.password, self._context),
        }

    # -- where to begin ------------------------------------------------------------------------------------

    async def _positions(self, connection: _Connection, cursor: JSON) -> dict[bytes, Id]:
        """The id to go on after, of each stream."""
        name = _NO_CLIENT_NAME.sub("_", f"feedq/{self._context.environment}/{self._context.feed}")
        await connection.send(
            ("CLIENT", "SETNAME", name), *(("XINFO", "STREAM", stream) for stream in self._names)
        )
        # It only tells people whose connection this is; a server that does not allow it is none the worse.
        await connection.receive(unless=ResponseError)
        known = cursor if isinstance(cursor, dict) else {}
        positions = {}
        for stream in self._names:
            info = await connection.receive(unless=ResponseError, saying="no such key")
            kept = known.get(stream.decode())
            positions[stream] = self._position(stream, _pairs(info or ()), kept)
        return positions

    def _position(self, stream: bytes, info: Mapping[bytes, Any], kept: JSON) -> Id:
        last = _id(info[b"last-generated-id"]) if info else ZERO
        if not isinstance(kept, str):
            return last if self._options.start == "now" else ZERO
        position = _id(kept.encode())
        if info and last < position:
            self._log_gap(stream, f"its last id {_text(last)} is before the cursor {kept}: it was made anew")
        elif info and last > position and info[b"first-entry"] is None:
            self._log_gap(stream, f"everything after the cursor {kept} was trimmed or deleted")
        return position

    def _log_gap(self, stream: bytes, detail: str) -> None:
        logger.warning(
            LogEvent.SOURCE_GAP,
            feed=self._context.feed,
            source=f"{self._location} {stream.decode()}",
            detail=detail,
        )

    # -- reading -------------------------------------------------------------------------------------------

    async def _ask(self, connection: _Connection, positions: Mapping[bytes, Id]) -> None:
        ids = [_text(position) for position in positions.values()]
        await connection.send(
            *(("XRANGE", stream, "-", "+", "COUNT", 1) for stream in positions),
            ("XREAD", "COUNT", self._count, "BLOCK", self._block_ms, "STREAMS", *positions, *ids),
        )

    async def _answer(self, connection: _Connection) -> tuple[dict[bytes, Id], Answer]:
        """The oldest entry of each stream before the reading (`ZERO`: there was none), and what was read."""
        idle_timeout_s = self._options.idle_timeout_s
        try:
            async with asyncio.timeout(idle_timeout_s or None):
                oldest = {}
                for stream in self._names:
                    entries = await connection.receive()
                    oldest[stream] = _id(entries[0][0]) if entries else ZERO
                return oldest, await connection.receive() or ()
        except TimeoutError:
            raise SourceSilent(
                f"{self._location}: connected, but no answer for {idle_timeout_s:g} s (source.idle_timeout_s)"
            ) from None

    def _take(
        self, oldest: Mapping[bytes, Id], answer: Answer, positions: dict[bytes, Id]
    ) -> tuple[list[bytes], FeedMisconfigured | None]:
        """The records of an answer, up to one that is too large. Advances ``positions``."""
        records: list[bytes] = []
        for stream, entries in answer:
            self._check_gap(stream, oldest[stream], positions[stream])
            for entry_id, values in entries:
                record = self._record(stream, entry_id, values)
                if len(record) > self._options.max_record_bytes:
                    after = _cursor(positions)
                    return records, oversize(self._location, self._options, size=len(record), after=after)
                records.append(record)
                positions[stream] = _id(entry_id)
        return records, None

    def _check_gap(self, stream: bytes, oldest: Id, position: Id) -> None:
        if oldest > position > ZERO:
            self._log_gap(
                stream,
                f"its oldest entry {_text(oldest)} is after the cursor {_text(position)}: "
                "entries between may have been trimmed",
            )

    def _adapt_count(self, records: Sequence[bytes]) -> None:
        """So that one answer holds about ``buffer_bytes`` at most; grown by steps, for sizes vary."""
        if records:
            size = max(1, sum(map(len, records)) // len(records))
            fitting = self._options.buffer_bytes // (size * len(self._names))
            self._count = max(1, min(fitting, 4 * self._count, self._options.count))

    # -- records -------------------------------------------------------------------------------------------

    def _record(self, stream: bytes, entry_id: bytes, values: Sequence[bytes]) -> bytes:
        value = None
        if self._field is not None:
            value = dict(zip(values[::2], values[1::2], strict=True)).get(self._field)
        if not self._options.envelope:
            return orjson.dumps(_object(values)) if value is None else value
        data = {"data": _object(values)} if value is None else payload_member(value)
        return orjson.dumps({"stream": stream.decode(), "id": entry_id.decode(), **data})

    def _explain(self, error: RedisError) -> SourceUnavailable | FeedMisconfigured:
        """An error of the server or of the library as one of ours."""
        if isinstance(error, AuthenticationError):
            return FeedMisconfigured(
                f"{self._location}: credentials refused ({error}); check source.username and source.password"
            )
        if isinstance(error, NoPermissionError):
            return FeedMisconfigured(
                f"{self._location}: {error}; the user needs XREAD, XRANGE and XINFO, and all of source.streams"
            )
        if isinstance(error, MovedError) or (isinstance(error, ResponseError) and _MISTAKE.match(str(error))):
            return FeedMisconfigured(
                f"{self._location}: {error}; check source.streams and the path of source.url"
            )
        if isinstance(error.__context__, OSError):
            return explain(error.__context__, self._location)
        return SourceUnavailable(f"{self._location}: {error}")


class _Connection(Connection):
    """redis-py's connection over streams that we opened.

    It cannot be handed them; `_connect` is where its own kinds of connection (TCP, TLS, Unix) differ.
    """

    def __init__(self, streams: Streams, **credentials: Any) -> None:
        # Protocol 2 is what every server speaks. Without driver_info it does not tell the server about itself,
        # which some users are not allowed to.
        super().__init__(protocol=2, socket_timeout=None, driver_info=None, **credentials)
        self._streams = streams

    async def _connect(self) -> None:
        self._reader, self._writer = self._streams.reader, self._streams.writer

    async def disconnect(self, *_: Any, **__: Any) -> None:
        """At once, whatever the library would wait for: there is nothing of ours on its way."""
        self._streams.close()
        await super().disconnect(nowait=True)

    async def send(self, *commands: Sequence[str | bytes | int]) -> None:
        """All of them in one packet."""
        await self.send_packed_command(self.pack_commands(commands), check_health=False)

    async def receive(self, *, unless: type[RedisError] | None = None, saying: str = "") -> Any:
        """The answer to the next command; None for an error that is expected."""
        try:
            return await self.read_response()
        except RedisError as error:
            if unless is None or not isinstance(error, unless) or saying not in str(error):
                raise
            return None


def _cursor(positions: Mapping[bytes, Id]) -> JSON:
    return {stream.decode(): _text(position) for stream, position in positions.items() if position > ZERO}


def _id(text: bytes) -> Id:
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence or 0)


def _text(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


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
