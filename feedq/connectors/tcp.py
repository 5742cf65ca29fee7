"""The ``tcp`` connector: records over a TCP or TLS connection that feedq opens.

Connect, say ``hello``, then cut what comes into records; each batch holds everything that has arrived
since the last one was taken. A source resumes if ``hello`` tells it the cursor, and ``cursor`` says where in
a record it is; then nothing is lost between two connections. Without that, what the source sends while
nobody is connected is gone, and feedq cannot know.

An incomplete record at the end of a connection is discarded: it lies after the cursor, so a source that
resumes sends it again, whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.reading import StreamOptions
from feedq.connectors.wire.connection import READ_BYTES, SourceConnection, open_connection
from feedq.connectors.wire.remote import RemoteOptions, Scheme, check_template
from feedq.core.model import JSON
from feedq.core.values import StrictModel
from feedq.errors import SourceUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.framing import LF, Framer, OuterFramer
from feedq.records.template import compile_template, fill_in, unescape
from feedq.records.turns import PIECE_BYTES
from feedq.secrets import MASK, Masker

EXPECTED_WITHIN_BYTES = 64 * 1024
"""An answer to a hello is somewhere in its first bytes, or it is none."""
PING_BYTES_MAX: Final = 4 * 1024
"""A longer record is not a ping: it would be repeated in the answer."""
REST: Final = "rest"
"""The placeholder in an answer."""
SHOWN_BYTES = 200
SHOWN_OF_SECRET_MAX = 3
"""What was said may end like the beginning of a secret by chance; longer than this it is one that was cut off."""


class Hello(StrictModel):
    """A message that we send, and the answer to wait for before the next one."""

    send: str = ""
    """What to send. Takes placeholders."""
    expect: str = ""
    """What to wait for next. It and what precedes it are not records. Takes escapes."""

    @field_validator("expect")
    @classmethod
    def _check_expect(cls, expect: str) -> str:
        if len(unescape(expect)) > EXPECTED_WITHIN_BYTES:
            raise ValueError(f"must be at most {EXPECTED_WITHIN_BYTES} bytes")
        return expect


class Ping(StrictModel):
    """How a source pings, and what to answer."""

    prefix: Annotated[str, Field(min_length=1, max_length=1000)]
    """A record of at most 4 KiB that begins with this text is a ping. Takes escapes."""
    answer: Annotated[str, Field(min_length=1)]
    """The answer to a ping; `{rest}` is what follows the prefix. Takes escapes."""

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        unescape(prefix)
        return prefix

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, answer: str) -> str:
        compile_template(answer, known=frozenset({REST}))
        return answer


class PingFramer(OuterFramer):
    """A framer that takes the pings out of the records of another one, and answers them.

    To look at each record would cost more than landing it, so the prefix is searched for in all of them at once.
    """

    def __init__(self, framer: Framer, ping: Ping, answer: Callable[[bytes], None]) -> None:
        super().__init__(framer)
        self._prefix = unescape(ping.prefix)
        self._answer = compile_template(ping.answer, known=frozenset({REST}))
        self._send = answer

    def _sifted(self, records: Records) -> Records:
        lines, prefix = records.lines, self._prefix
        if lines is not None and not lines.startswith(prefix) and LF + prefix not in lines:
            return records
        answers: list[bytes] = []

        def is_ping(record: bytes) -> bool:
            if not record.startswith(prefix) or len(record) > PING_BYTES_MAX:
                return False
            answers.append(self._answer.render({REST: record[len(prefix) :]}))
            return True

        left = records.leaving_out(is_ping)
        self._send(b"".join(answers))
        return left


class TcpOptions(StreamOptions, RemoteOptions):
    """Options of a feed with ``connector: tcp``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {"tcp": Scheme(tls=False, port=None), "tls": Scheme(True, None)}
    TAKES_PATH: ClassVar[bool] = False

    url: str
    """`tcp://host:port` or `tls://host:port`; an IPv6 address in brackets."""
    hello: tuple[Hello, ...] = ()
    """Sent once connected: a text, or a list of texts and `{send: text, expect: text}`."""
    ping: Ping | None = None
    """Records to answer instead of landing them."""

    @field_validator("hello", mode="before", json_schema_input_type=str | list[str | Hello])
    @classmethod
    def _list_hellos(cls, hello: Any) -> Any:
        if isinstance(hello, str):
            hello = [hello] if hello else []
        if not isinstance(hello, list | tuple):
            raise ValueError("must be a text, or a list of texts")
        return [{"send": each} if isinstance(each, str) else each for each in hello]

    @field_validator("hello")
    @classmethod
    def _check_hello(cls, hello: tuple[Hello, ...], info: ValidationInfo) -> tuple[Hello, ...]:
        for each in hello:
            check_template(each.send, info)
        return hello

    @cached_property
    def piece_bytes(self) -> int:
        """How much to take before other feeds have their turn. A byte of lines takes little time, even where they
        seem to have a cursor and do not; larger batches save a fast feed some of its CPU time."""
        is_quick = self.framing == "lines" and self.csv is None and self.ping is None
        return READ_BYTES if is_quick else PIECE_BYTES


class TcpConnector:
    """Makes one attempt to read a feed's source."""

    Options: ClassVar[type[ConnectorOptions]] = TcpOptions

    def __init__(self, options: TcpOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._endpoint = options.location

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, or closed by the peer.
            SourceSilent: no byte for the idle timeout.
            FeedMisconfigured: a record over the limit, a cursor that cannot be kept, a wrong TLS file.
        """
        connection = await open_connection(
            self._options, self._context, idle_timeout_s=self._options.idle_timeout_s
        )
        framer = self._options.stream_framer()
        if self._options.ping is not None:
            framer = PingFramer(framer, self._options.ping, connection.send)
        stream = self._options.record_stream(framer, self._context, where=self._endpoint, cursor=cursor)
        try:
            await self._greet(connection, cursor)
            self._context.on_connected()
            while data := await connection.receive(piece_bytes=self._options.piece_bytes):
                for batch in stream.take(data):
                    yield batch
                    del batch  # or it would stay in memory until the next one comes
        finally:
            connection.close()
        raise self._closed(discarded=framer.pending, heard=stream.was_heard)

    async def _greet(self, connection: SourceConnection, cursor: JSON) -> None:
        context = self._context
        for hello in self._options.hello:
            connection.send(fill_in(hello.send, feed=context.feed, cursor=cursor, secrets=context.secrets))
            if hello.expect:
                await self._expect(connection, unescape(hello.expect))

    async def _expect(self, connection: SourceConnection, wanted: bytes) -> None:
        """Take what arrives, up to and including what is wanted."""
        heard = bytearray()
        timeout_s = self._options.connect_timeout_s
        ended = f"{self._endpoint}: no answer in its first {EXPECTED_WITHIN_BYTES} bytes"
        try:
            async with asyncio.timeout(timeout_s):
                while wanted not in heard and len(heard) <= EXPECTED_WITHIN_BYTES:
                    data = await connection.receive()
                    if not data:
                        ended = f"{self._endpoint}: closed by the peer"
                        break
                    heard += data
        except TimeoutError:
            ended = f"{self._endpoint}: no answer within {timeout_s:g} s (source.connect_timeout_s)"
        except SourceUnavailable as error:
            ended = str(error)
        _, found, rest = heard.partition(wanted)
        if not found:
            said = f"it said {_show(self._masked(heard))}" if heard else "it said nothing"
            raise SourceUnavailable(f"{ended}; source.hello expects {_show(wanted)}, and {said}")
        connection.put_back(rest)

    def _masked(self, heard: bytes | bytearray) -> bytes:
        """What was heard, without our secrets: some sources echo. To be cut afterwards, not within a secret."""
        secrets = [secret for secret in self._context.secrets.values() if secret]
        said = Masker(secrets).mask(heard.decode("utf-8", "surrogateescape"))
        begun = max((begun_at_end(said, secret) for secret in secrets), default=0)
        if begun:
            said = said[:-begun] + MASK
        return said.encode("utf-8", "surrogateescape")

    def _closed(self, *, discarded: int, heard: bool) -> SourceUnavailable:
        if discarded:
            when = f" in the middle of a record ({discarded} bytes)"
        else:
            when = "" if heard else " before it sent anything"
        return SourceUnavailable(f"{self._endpoint}: closed by the peer{when}")


def begun_at_end(text: str, secret: str) -> int:
    """How many characters at the end of a text are the beginning of a secret."""
    longest = min(len(text), len(secret) - 1)
    return next((size for size in range(longest, SHOWN_OF_SECRET_MAX, -1) if text.endswith(secret[:size])), 0)


def _show(said: bytes | bytearray) -> str:
    shown = bytes(said[:SHOWN_BYTES])
    return repr(shown)[1:] + ("…" if len(said) > SHOWN_BYTES else "")
