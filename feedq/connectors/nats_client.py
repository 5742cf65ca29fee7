"""A client of NATS, as far as reading a JetStream stream takes one.

The protocol is lines, and messages before which a line says how large they are
(https://docs.nats.io/reference/reference-protocols/nats-protocol). A server may write any number there, so nothing
is made room for before its size was judged: see `NatsParser`.

`NatsClient` reads in a task of its own, so that the server's pings are answered also while nobody takes messages.
Whatever ends the connection goes to `NatsClient.inbox` as its failure, and to whoever waits for an answer.

What the URL says of TLS holds: with ``tls://`` nothing, and no password, is sent in the clear, and with ``nats://``
a server that demands TLS is told apart from one that fails.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from nkeys import NkeysError, from_seed

from feedq import __version__
from feedq.connectors.base import Context
from feedq.connectors.messages import SAID_CHARACTERS_MAX, Inbox, credential
from feedq.connectors.wire.connection import SourceConnection
from feedq.core.json_texts import read_json
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable

if TYPE_CHECKING:
    from feedq.connectors.nats import NatsOptions


INFO_BYTES_MAX: Final = 64 * 1024
"""It names the servers of a cluster, hundreds of them perhaps."""
LINE_BYTES_MAX: Final = 8 * 1024
"""Of any other line; servers themselves take 4 KiB."""
HEADERS_BYTES_MAX: Final = 32 * 1024
"""Of a message."""
HEADERS_BYTES_MIN: Final = len(b"NATS/1.0\r\n\r\n")
ANSWER_BYTES_MAX: Final = 256 * 1024
"""Of a message that is not a record, but an answer of JetStream: it is parsed in one go."""
UNSENT_BYTES_MAX: Final = 16 * 2**20
"""Bounds what a server that sends and does not read can make us keep: 262,144 acknowledgements."""
CLOSE_S: Final = 0.5
"""How long the last acknowledgements may take to leave."""

STATUS: Final = "Status"
DESCRIPTION: Final = "Description"
NO_RESPONDERS: Final = "503"
_ANSWERS, _RECORDS = b"1", b"2"
"""The two subscriptions."""
_END: Final = b"\r\n"
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.[0-9]{1,6}")
_ERROR: Final = re.compile(rb"-ERR\s+'(?P<said>[^']+)'\s*")
_CREDENTIALS: Final = re.compile(
    r"BEGIN NATS USER JWT-+\n(?P<jwt>\S+)\n-+END NATS USER JWT.*BEGIN USER NKEY SEED-+\n(?P<seed>\S+)\n",
    re.DOTALL,
)


class NatsMessage(NamedTuple):
    """A message of a subscription."""

    subscription: bytes
    subject: str
    reply: str
    size: int
    """Of its payload, as the server says it."""
    payload: bytes = b""
    """Left out if it is too large; then nothing more is read."""
    raw_headers: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """With `STATUS` and `DESCRIPTION` if it is one of the server's own."""
        first, *lines = self.raw_headers.decode("utf-8", "replace").split("\r\n")
        status, _, said = first.removeprefix("NATS/1.0").strip().partition(" ")
        headers = {STATUS: status} if status else {}
        headers |= {DESCRIPTION: said} if said else {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon and name.strip():
                headers[name.strip()] = value.strip()
        return headers


class NatsParser:
    """What a server sends, cut into lines and messages, each judged by its size before it is kept.

    A message that is too large comes without its payload, and is the last one.
    """

    def __init__(self, *, payload_bytes_max: int) -> None:
        """``payload_bytes_max``: of a record."""
        self._max = payload_bytes_max
        self._held = bytearray()
        """What there is of a line, or of the message whose line was read."""
        self._head: tuple[NatsMessage, int] | None = None
        """A message whose line was read, and how many bytes of headers it has."""
        self.is_over = False

    @property
    def is_empty(self) -> bool:
        return not self._held

    def push(self, data: bytes | bytearray) -> list[NatsMessage | bytes]:
        """The messages and other lines that ``data`` completes. Raises `ValueError` for what breaks the rules."""
        self._held += data
        events: list[NatsMessage | bytes] = []
        at = 0
        while not self.is_over:
            if self._head is None:
                end = self._held.find(_END, at)
                self._check_line(at, end)
                if end < 0:
                    break
                line = bytes(self._held[at:end])
                at = end + len(_END)
                if line[:4].upper() not in (b"MSG ", b"MSG\t", b"HMSG"):
                    events.append(line)
                    continue
                self._head = self._read_head(line)
            message, headers_size = self._head
            end = at + headers_size + message.size
            if self.is_over:
                events.append(message)
            elif end + len(_END) > len(self._held):
                break
            else:
                if self._held[end : end + len(_END)] != _END:
                    raise ValueError("a message that is not as long as declared")
                payload, headers = self._held[at + headers_size : end], self._held[at : at + headers_size]
                events.append(message._replace(payload=bytes(payload), raw_headers=bytes(headers)))
                at, self._head = end + len(_END), None
        del self._held[:at]
        return events

    def _check_line(self, begin: int, end: int) -> None:
        is_info = bytes(self._held[begin : begin + 4]) in b"INFO"
        most = INFO_BYTES_MAX if is_info else LINE_BYTES_MAX
        if (len(self._held) if end < 0 else end) - begin > most:
            raise ValueError(f"a line of more than {most} bytes")

    def _read_head(self, line: bytes) -> tuple[NatsMessage, int]:
        kind, *fields = line.split()
        numbers = 1 if kind.upper() == b"MSG" else 2
        names, sizes = fields[:-numbers], fields[-numbers:]
        if len(names) not in (2, 3) or not all(size.isdigit() and len(size) <= 12 for size in sizes):
            raise ValueError("a message with a malformed first line")
        total = int(sizes[-1])
        headers_size = int(sizes[0]) if numbers == 2 else 0
        if numbers == 2 and not HEADERS_BYTES_MIN <= headers_size <= total:
            raise ValueError("a message with headers of an impossible size")
        reply = names[2].decode("utf-8", "replace") if len(names) == 3 else ""
        message = NatsMessage(names[1], names[0].decode("utf-8", "replace"), reply, total - headers_size)
        most = max(self._max, ANSWER_BYTES_MAX) if names[1] == _RECORDS else ANSWER_BYTES_MAX
        self.is_over = message.size > most or headers_size > HEADERS_BYTES_MAX
        return message, headers_size


class JetStreamRefusal(Exception):
    """JetStream's API refused a request; ``code`` as in HTTP, ``err_code`` says what it is exactly."""

    def __init__(self, code: int, err_code: int | None, description: str) -> None:
        super().__init__(description)
        self.code, self.err_code = code, err_code


class NatsClient:
    """Holds one connection, and does not reconnect."""

    def __init__(self, connection: SourceConnection, options: NatsOptions, context: Context) -> None:
        self.inbox: Inbox[NatsMessage] = Inbox(bytes_max=options.buffer_bytes, room=context.room)
        """For messages that are records."""
        self.on_record: Callable[[NatsMessage], None] = lambda _: None
        """Gets what comes to `records_to`, on the loop."""
        self.records_to = f"{options.inbox_prefix}.{token_hex(11)}"
        """What is sent to a subject below it is a record, or concerns them."""
        self.version = (0, 0)
        self.max_payload = 0
        self._connection = connection
        self._options = options
        self._context = context
        self._where = options.location
        self._parser = NatsParser(payload_bytes_max=options.max_record_bytes)
        self._events: deque[NatsMessage | bytes] = deque()
        """What came before the task that reads began."""
        self._answers_to = f"{options.inbox_prefix}.{token_hex(11)}"
        self._asked = 0
        self._answer: asyncio.Future[NatsMessage] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def log_in(self) -> None:
        """Raises `SourceUnavailable`, or `FeedMisconfigured` for refused credentials or TLS."""
        seed, jwt = self._keys()
        try:
            info = _checked_info(await self._line())
            if self._where.tls:
                await self._start_tls(info)
            elif info.get("tls_required") is True:
                raise FeedMisconfigured(f"{self._where}: the server requires TLS; write tls:// in source.url")
            self._say_who(info, seed=seed, jwt=jwt)
            while (line := await self._line()) != b"PONG":
                if line.startswith(b"-ERR"):
                    raise self._refused(_said(line))
        except ValueError as error:
            raise self._broken(error) from None
        self._send(
            b"SUB %b.* %b\r\n" % (self._answers_to.encode(), _ANSWERS),
            b"SUB %b.* %b\r\n" % (self.records_to.encode(), _RECORDS),
        )
        self._reading = asyncio.create_task(self._read())

    async def ask(self, subject: str, body: JSON = None) -> dict[str, Any]:
        """The answer of JetStream's API; one question at a time.

        Raises:
            JetStreamRefusal: the answer is an error.
            ValueError: it is not an answer of JetStream.
            FeedqError: the connection has failed.
        """
        if self.inbox.failure is not None:
            raise self.inbox.failure
        self._asked += 1
        self._answer = asyncio.get_running_loop().create_future()
        content = b"" if body is None else msgspec.json.encode(body)
        self.publish(subject, content, self._reply_to)
        message = await self._answer
        if not message.payload and message.headers.get(STATUS) == NO_RESPONDERS:
            raise JetStreamRefusal(int(NO_RESPONDERS), None, "nobody answers")
        answer = read_json(message.payload)
        if not isinstance(answer, dict):
            raise ValueError("no JSON object")
        match answer.get("error"):
            case None:
                return answer
            case {"code": int(code), "err_code": int(err_code), "description": str(description)}:
                raise JetStreamRefusal(code, err_code, description)
            case {"code": int(code), "description": str(description)}:
                raise JetStreamRefusal(code, None, description)
        raise ValueError("an error without a description")

    def publish(self, subject: str, body: bytes, reply: str) -> None:
        self._send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(body), body))

    def acknowledge(self, replies: Sequence[str]) -> None:
        """Once the connection has failed this does nothing: the messages come again."""
        self._send(*(b"PUB %b 0\r\n\r\n" % reply.encode() for reply in replies))

    def fail(self, failure: FeedqError) -> None:
        """The connection is of no more use."""
        self.inbox.fail(failure)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)

    async def close(self) -> None:
        """Cut it, with what is to be sent sent if that is at once possible."""
        self.fail(SourceUnavailable(f"{self._where}: closed"))
        self.inbox.close()
        if self._reading is not None:
            self._reading.cancel()
        await self._connection.finish(at_most_s=CLOSE_S)

    def _send(self, *commands: bytes) -> None:
        try:
            self._connection.send(b"".join(commands), unsent_bytes_max=UNSENT_BYTES_MAX)
        except SourceUnavailable as error:
            self.fail(error)

    # -- the door --------------------------------------------------------------------------------------------

    async def _line(self) -> bytes:
        """The next line, before there are messages."""
        while not self._events:
            received = await self._connection.receive()
            if not received:
                raise SourceUnavailable(f"{self._where}: closed by the server before it answered")
            self._events.extend(self._parser.push(received))
        line = self._events.popleft()
        if isinstance(line, NatsMessage):
            raise ValueError("a message before it answered the login")
        return line

    async def _start_tls(self, info: Mapping[str, Any]) -> None:
        if True not in (info.get("tls_required"), info.get("tls_available")):
            raise FeedMisconfigured(
                f"{self._where}: the server offers no TLS; write nats:// in source.url to connect without"
            )
        if self._events or not self._parser.is_empty:
            raise SourceUnavailable(f"{self._where}: the server continued in plain text where TLS must begin")
        await self._connection.start_tls()

    def _keys(self) -> tuple[Any, str | None]:
        """The key to sign with, if there is one, and the JWT that goes with it."""
        seed, jwt = credential(self._options.nkey_seed, self._context), None
        credentials = credential(self._options.credentials, self._context)
        if credentials is not None:
            found = _CREDENTIALS.search(credentials)
            if found is None:
                raise FeedMisconfigured(
                    f"{self._where}: source.credentials is not the content of a credentials file, "
                    "which has a user's JWT and then its seed"
                )
            seed, jwt = found["seed"], found["jwt"]
        try:
            return None if seed is None else from_seed(bytearray(seed.strip().encode())), jwt
        except (NkeysError, ValueError):
            # What it raises may quote what it could not read.
            raise FeedMisconfigured(
                f"{self._where}: the seed in source.nkey_seed or source.credentials is invalid"
            ) from None

    def _say_who(self, info: Mapping[str, Any], *, seed: Any, jwt: str | None) -> None:
        options, has_headers = self._options, info.get("headers") is True
        said: dict[str, JSON] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": __version__,
            "protocol": 1,
            "headers": has_headers,
            "no_responders": has_headers,
            "name": f"feedq/{self._context.environment}/{self._context.feed}",
        }
        if seed is not None and isinstance(nonce := info.get("nonce"), str):
            said["sig"] = b64encode(seed.sign(nonce.encode())).decode()
            said |= {"nkey": seed.public_key.decode()} if jwt is None else {"jwt": jwt}
        elif options.username is not None and options.password is not None:
            said |= {
                "user": credential(options.username, self._context),
                "pass": credential(options.password, self._context),
            }
        elif options.token is not None:
            said["auth_token"] = credential(options.token, self._context)
        self.version = info["version"]
        self.max_payload = info["max_payload"]
        self._send(b"CONNECT %b\r\nPING\r\n" % msgspec.json.encode(said))

    def _refused(self, said: str) -> SourceUnavailable | FeedMisconfigured:
        if "authorization" in said or "authentication" in said:
            return FeedMisconfigured(
                f"{self._where}: credentials refused ({said}); check source.username and source.password, "
                "source.token, source.nkey_seed or source.credentials"
            )
        return SourceUnavailable(f"{self._where}: {said}")

    def _broken(self, error: ValueError) -> SourceUnavailable:
        return SourceUnavailable(f"{self._where}: the server sent {error}; is it a NATS server?")

    # -- what comes ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            self._take(self._events)
            while not self._parser.is_over:
                received = await self._connection.receive()
                if not received:
                    raise SourceUnavailable(f"{self._where}: closed by the server")
                self._take(self._parser.push(received))
        except FeedqError as error:
            self.fail(error)
        except ValueError as error:
            self.fail(self._broken(error))

    def _take(self, events: Sequence[NatsMessage | bytes]) -> None:
        is_pinged = False
        for event in events:
            if isinstance(event, NatsMessage):
                self._take_message(event)
                continue
            match event[:4].upper():
                case b"PING":
                    is_pinged = True
                case b"PONG" | b"+OK" | b"INFO":
                    pass  # where else one could connect is of no use: the runner reconnects
                case _:
                    self._handle(_said(event))
        if is_pinged:
            # One answer is enough to however many have come at once.
            self._send(b"PONG\r\n")

    def _take_message(self, message: NatsMessage) -> None:
        if message.subscription == _RECORDS:
            self.on_record(message)
        elif self._answer is not None and not self._answer.done() and message.subject == self._reply_to:
            self._answer.set_result(message)

    @property
    def _reply_to(self) -> str:
        """Where the last question is answered."""
        return f"{self._answers_to}.{self._asked}"

    def _handle(self, said: str) -> None:
        if "permissions violation" in said:
            self.fail(FeedMisconfigured(f"{self._where}: {said}; the user needs this permission"))
        else:
            self.fail(SourceUnavailable(f"{self._where}: closed by the server: {said}"))


def _checked_info(line: bytes) -> dict[str, Any]:
    """The server's description of itself; its version as numbers."""
    try:
        info = read_json(line.removeprefix(b"INFO"))
    except ValueError:
        info = None
    if not line.startswith(b"INFO") or not isinstance(info, dict):
        raise ValueError("an INFO that is not JSON")
    version = _VERSION.match(str(info.get("version", ""))[:100])
    max_payload = info.get("max_payload", 2**20)
    if version is None or not isinstance(max_payload, int) or not 0 < max_payload <= 2**40:
        raise ValueError("an INFO without a version and a largest payload")
    return {**info, "version": (int(version[1]), int(version[2])), "max_payload": max_payload}


def _said(line: bytes) -> str:
    """The server's words in an error, in small letters. Raises `ValueError` if it is none."""
    error = _ERROR.fullmatch(line)
    if error is None:
        raise ValueError("a line outside the NATS protocol")
    return error["said"][:SAID_CHARACTERS_MAX].decode("utf-8", "replace").lower()
