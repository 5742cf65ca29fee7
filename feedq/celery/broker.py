"""The transports of kombu for Redis and for RabbitMQ, guarded: no message ends a worker.

kombu and Celery take whatever lies in a queue for one of their own messages. What has another form (bytes that are
no JSON, a body that is no ``[args, kwargs, embed]``, a task id that is a list) raises out of Celery's event loop,
which ends the worker and every stream in it; and the message goes to the next worker. So each message is looked at
three times before anybody relies on it:

1. when it arrives, as kombu reads it: `_envelope_problem` (Redis), `_properties` (RabbitMQ), `_size_problem`;
2. a task, before Celery unpacks it, as deeply as Celery and its tracer will: `task_problem`;
3. whatever is raised while Celery takes a message in, of tasks, remote control or events: `guarded`.

What fails is rejected without being put back, with one log line.

Besides, an acknowledgement that comes too late does not end the worker, and hints to a node are not written down
in Redis.

Invariants: a message that Celery can take in is never kept from it, and errors of the connection are never
mistaken for bad messages. An unknown task is Celery's own affair and dropped by it.
"""

from __future__ import annotations

import bz2
import lzma
import socket
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from functools import partial
from itertools import count
from math import isfinite
from queue import Empty
from typing import Any
from uuid import uuid4

import amqp
from amqp.serialization import PROPERTY_CLASSES, decode_properties_basic
from amqp.spec import Basic
from celery.app.task import Context
from celery.events.dispatcher import EventDispatcher
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import matcher
from kombu.clocks import LamportClock
from kombu.compression import get_decoder
from kombu.message import Message
from kombu.transport import TRANSPORT_ALIASES, _transport_cache, pyamqp, redis, virtual
from kombu.utils.json import loads

from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import MESSAGES_LEFT_OUT

MESSAGE_BYTES_MAX = 64 * 2**20
"""A larger message, as it comes or unpacked, is dropped: it would take the memory of a thousand feeds."""
SOCKET_SCHEME = "redis+socket"
REDIS_SCHEMES = ("redis", "rediss", SOCKET_SCHEME)
SHOWN_BYTES = 200
NODE_PREFIX = "node."
"""Of the queues that belong to one worker each."""

HINTS_AT_ONCE = 100
"""Read in one round trip: Celery's loop does nothing else meanwhile, for some twenty milliseconds."""
UNREADABLE = "feedq-unreadable"
"""The header that stands for the properties of a message of RabbitMQ that could not be read."""
CLOCK_MAX = 2**48
"""No installation has sent so many messages; a header of AMQP holds 2^63 - 1."""
RETRIES_MAX = 2**31
EVENTS_WAITING_MAX = 10_000
"""Some ten megabytes. What Celery keeps for the time when its broker is back is of use to Flower at most."""
LZMA_MEMORY = 128 * 2**20
"""What unpacking may take beside what comes out; the highest level of compression asks for half of it."""

logger = log(__name__)

# kombu counts KeyError among the errors of a connection; here it is what a message without a key raises. RabbitMQ
# closes a channel for an error on it, which py-amqp opens anew without its consumers: only connecting anew helps.
_CONNECTION_ERRORS = tuple(
    error
    for error in (
        *redis.Transport.connection_errors,
        *pyamqp.Transport.connection_errors,
        *pyamqp.Transport.channel_errors,
    )
    if error is not KeyError
)


def install() -> None:
    """Have kombu use them in this process. May be called again."""
    for scheme, transport in (
        ("redis", RedisTransport),
        ("rediss", RedisTransport),
        ("amqp", AmqpTransport),
        ("pyamqp", AmqpTransport),
        ("amqps", AmqpTlsTransport),
    ):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{transport.__name__}"
        # Whoever connected before this would be remembered with kombu's own.
        _transport_cache.pop(scheme, None)
    PROPERTY_CLASSES[Basic.CLASS_ID] = _properties
    # A message of remote control brings its own pattern; one that backtracks would hold the interpreter.
    with suppress(matcher.MatcherNotInstalled):
        matcher.unregister("pcre")


def bounded_options(url: str, timeout_s: float) -> dict[str, Any]:
    """Transport options with which connecting, sending and reading take no longer than that each."""
    if not is_redis(url):
        # py-amqp connects, and shakes hands, within kombu's connect_timeout; TCP_USER_TIMEOUT it sets itself.
        return {"read_timeout": timeout_s, "write_timeout": timeout_s}
    options: dict[str, Any] = {"socket_connect_timeout": timeout_s, "socket_timeout": timeout_s}
    if not url.startswith(SOCKET_SCHEME):
        # For what is sent and never acknowledged, while nobody waits for an answer.
        options["socket_keepalive"] = True
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            options["socket_keepalive_options"] = {socket.TCP_USER_TIMEOUT: round(1000 * timeout_s)}
    return options


def is_redis(url: str) -> bool:
    """Whether the broker is Valkey or Redis."""
    return url.partition("://")[0] in REDIS_SCHEMES


# -- Redis -------------------------------------------------------------------------------------------


class HintsUnrecorded(redis.QoS):
    """Keeps no record in Redis of unacknowledged messages from a node's own queue.

    kombu writes down each message that it takes, so that another consumer may have it if this one dies. A
    node's queue has no other consumer, and its messages are hints: the lease of a feed whose hint was lost
    brings it back. Two round trips less a message are half the time of a cold start. They count towards the
    prefetch window as all others do.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # as all of kombu
        self._hints: set[str] = set()

    def append(self, message: Any, delivery_tag: str) -> None:
        if message.delivery_info["routing_key"].startswith(NODE_PREFIX):
            self._hints.add(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]  # as all of kombu

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self._hints:
            self._hints.discard(delivery_tag)
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]  # as all of kombu

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if delivery_tag in self._hints:
            self.ack(delivery_tag)
        else:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]  # as all of kombu


class RedisChannel(redis.Channel):
    """A channel that survives what it cannot read."""

    QoS = HintsUnrecorded

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # as all of kombu
        self._tag_prefix, self._tags = uuid4().hex, count(1)

    def _next_delivery_tag(self) -> str:
        # As unique as kombu's own, without asking the system for random bytes with every message: a thread that
        # does so lets go of the interpreter, and has to wait for it behind all others.
        return f"{self._tag_prefix}-{next(self._tags)}"

    def _brpop_read(self, **options: Any) -> Any:
        self.connection.came_from = ""
        self._read(partial(super()._brpop_read, **options))
        if self.connection.came_from.startswith(NODE_PREFIX):
            self._read_hints(self.connection.came_from)
        return True

    def _read_hints(self, queue: str) -> None:
        """Where one hint was there are often thousands: what the window has room for, in one round trip."""
        room = self.qos.can_consume_max_estimate()
        for item in self.client.rpop(queue, min(room, HINTS_AT_ONCE)) or () if room else ():
            self._read(partial(self._hand_over, item, queue))

    def _hand_over(self, item: bytes, queue: str) -> None:
        self.connection._deliver(loads(item), queue)

    def _receive_one(self, subscribed: Any) -> Any:
        # Remote control and events.
        return self._read(partial(super()._receive_one, subscribed))

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (Empty, *_CONNECTION_ERRORS):
            raise
        except Exception as error:  # noqa: BLE001 -- whatever bytes can make a decoder raise
            _say_dropped(repr(error))
            return None

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **how: Any
    ) -> Any:
        return super().basic_consume(  # type: ignore[no-untyped-call]  # as all of kombu
            queue, no_ack, guarded(callback, no_ack=no_ack), consumer_tag, **how
        )

    def _connparams(self, asynchronous: bool = False) -> Any:
        # An acknowledgement that comes after the broker went away finds its channel closed. Celery takes a
        # connection error for what it is and logs it; kombu's AttributeError would end the worker.
        if self.connection.client is None:
            raise ConnectionError("the connection of this channel is closed")
        return super()._connparams(asynchronous=asynchronous)  # type: ignore[no-untyped-call]  # as all of kombu


class RedisTransport(redis.Transport):
    """kombu's transport with that channel, and a look at each message before it is handed over."""

    Channel = RedisChannel
    came_from = ""
    """The queue of the last message."""

    def _deliver(self, message: Any, queue: str) -> None:
        self.came_from = queue
        problem = _envelope_problem(message)
        if problem is not None:
            _say_dropped(problem, queue=queue, message=message)
            return
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]  # as all of kombu


def _envelope_problem(message: Any) -> str | None:
    """Why this is no message that kombu can read without an exception; None if it is one."""
    match message:
        case {"properties": {"delivery_tag": str(), "delivery_info": dict() as info, **properties}}:
            pass
        case _:
            return "not the form of a message"
    if not (isinstance(info.get("exchange"), str) and isinstance(info.get("routing_key"), str)):
        return "delivery_info without exchange and routing_key"
    headers = message.get("headers")
    if not isinstance(headers, dict) and headers is not None:
        return "headers are no object"
    encoding = properties.get("body_encoding")
    try:
        body = _body(message.get("body"), encoding)
    except ValueError as error:
        return str(error)
    return _size_problem(body, headers or {})


def _body(body: Any, encoding: Any) -> bytes:
    """The bytes of a body. Raises `ValueError`."""
    if not isinstance(body, str) or not body:
        raise ValueError("body is no text")
    if encoding is None or encoding == "utf-8":
        # A lone surrogate, which JSON can hold, cannot be encoded.
        return body.encode()
    if encoding != "base64":
        raise ValueError("unknown body_encoding")
    try:
        return b64decode(body, validate=True)
    except ValueError as error:
        raise ValueError(f"body is no base64: {error}") from None


# -- RabbitMQ ----------------------------------------------------------------------------------------


class AmqpChannel(pyamqp.Channel):
    """A channel that survives what it cannot read."""

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[Any], object] | None = None,
        **how: Any,
    ) -> Any:
        assert callback is not None, "kombu consumes with a callback"
        deliver = partial(self._deliver, guarded(callback, no_ack=no_ack), no_ack)
        return super().basic_consume(queue, consumer_tag, no_local, no_ack, exclusive, nowait, deliver, **how)

    def _deliver(self, callback: Callable[[Any], object], no_ack: bool, raw: amqp.Message) -> None:
        headers = raw.properties.get("application_headers") or {}
        problem = headers.get(UNREADABLE) or _size_problem(raw.body, headers)
        if problem is None:
            callback(self.message_to_python(raw))
            return
        _say_dropped(problem, queue=raw.delivery_info["routing_key"], message=raw.body)
        if not no_ack:
            self.basic_reject(raw.delivery_tag, requeue=False)

    def message_to_python(self, raw_message: Any) -> Any:
        # Called by `_deliver`, and by kombu once more.
        if isinstance(raw_message, Message):
            return raw_message
        return super().message_to_python(raw_message)  # type: ignore[no-untyped-call]  # as all of kombu


class AmqpConnection(pyamqp.Connection):
    """Opens those channels."""

    Channel = AmqpChannel


class AmqpTransport(pyamqp.Transport):
    """kombu's transport for RabbitMQ with that channel."""

    Connection = AmqpConnection


class AmqpTlsTransport(pyamqp.SSLTransport):
    """The same over TLS."""

    Connection = AmqpConnection


def _properties(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Decode the properties of a message as py-amqp does, but never raise.

    An exception there leaves the channel in the middle of a message that can be neither read nor rejected.
    """
    try:
        properties, offset = decode_properties_basic(buffer, offset)
    except Exception as error:  # noqa: BLE001 -- whatever bytes can make a decoder raise
        return {"application_headers": {UNREADABLE: f"properties cannot be read: {error!r}"}}, len(buffer)
    return properties, offset


# -- either ------------------------------------------------------------------------------------------


def guarded(handle: Callable[[Any], object], *, no_ack: bool) -> Callable[[Any], object]:
    """``handle`` for messages, which drops a message that makes it raise.

    Errors of the connection pass: Celery connects anew, and the broker delivers the message again.
    """

    def handle_or_drop(message: Any) -> None:
        try:
            handle(message)
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a forged message can make Celery raise
            drop(message, f"it cannot be taken in: {error!r}", no_ack=no_ack)

    return handle_or_drop


def kept_in(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Call it for a message, and log what it raises. Raises errors of the connection."""
    try:
        function(*args, **kwargs)
    except _CONNECTION_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a forged message can make Celery raise
        _say_dropped(f"it cannot be carried out: {error!r}")


def drop(message: Any, problem: str, *, no_ack: bool = False) -> None:
    """Reject a message, for good, with one log line. Raises errors of the connection."""
    _say_dropped(problem, queue=message.delivery_info.get("routing_key"), message=message.body)
    if not no_ack and not message.acknowledged:
        message.reject()


def _say_dropped(why: str, **fields: object) -> None:
    shown = {name: repr(value)[:SHOWN_BYTES] for name, value in fields.items()}
    logger.warning(LogEvent.MESSAGE_DROPPED, why=why[:SHOWN_BYTES], **shown)


def _size_problem(body: bytes | str, headers: Mapping[str, Any]) -> str | None:
    """Why a message is too large to be taken in, as it is or unpacked."""
    if len(body) > MESSAGE_BYTES_MAX:
        return f"larger than {MESSAGE_BYTES_MAX:,} bytes"
    compression = headers.get("compression")
    if not compression:
        return None
    if not isinstance(compression, str):
        return "compression is no text"
    unpack = _UNPACK.get(compression)
    try:
        get_decoder(compression)
        # One that needs a library of its own is left to kombu.
        if unpack is not None and unpack(body, MESSAGE_BYTES_MAX):
            return f"larger than {MESSAGE_BYTES_MAX:,} bytes when it is unpacked"
    except Exception as error:  # noqa: BLE001 -- each library has errors of its own
        return f"body cannot be unpacked: {error!r}"
    return None


def _exceeds_zlib(body: Any, limit: int) -> bool:
    return len(zlib.decompressobj().decompress(body, limit + 1)) > limit


def _exceeds_bz2(body: Any, limit: int) -> bool:
    return len(bz2.BZ2Decompressor().decompress(body, limit + 1)) > limit


def _exceeds_lzma(body: Any, limit: int) -> bool:
    return len(lzma.LZMADecompressor(memlimit=LZMA_MEMORY).decompress(body, limit + 1)) > limit


_UNPACK: Mapping[str, Callable[[Any, int], bool]] = {
    **dict.fromkeys(("application/x-gzip", "gzip", "zlib"), _exceeds_zlib),
    **dict.fromkeys(("application/x-bz2", "bzip2", "bzip"), _exceeds_bz2),
    **dict.fromkeys(("application/x-lzma", "lzma", "xz"), _exceeds_lzma),
}
"""Whether a body unpacks to more than a limit, by the names that kombu knows the method by."""


class BoundedDispatcher(EventDispatcher):
    """Celery's events, of which only so many wait for a broker that is away."""

    def send(self, type: str, *how: Any, **fields: Any) -> None:
        if len(self._group_buffer.get("task", ())) + len(self._outbound_buffer) < EVENTS_WAITING_MAX:
            super().send(type, *how, **fields)
        else:
            MESSAGES_LEFT_OUT.inc()


class BoundedClock(LamportClock):
    """Celery's clock, which adopts the highest number that it hears: but none that could not be sent on.

    A number of four thousand digits can be read from JSON, and the next one cannot be written.
    """

    def adjust(self, other: Any) -> int:
        is_fit = isinstance(other, int) and 0 <= other < CLOCK_MAX
        return super().adjust(other if is_fit else 0)


# -- tasks -------------------------------------------------------------------------------------------

_TEXTS = (
    "shadow",
    "lang",
    "root_id",
    "parent_id",
    "group",
    "taskset",
    "argsrepr",
    "kwargsrepr",
    "origin",
    "meth",
    "hostname",
)
_NUMBERS = ("retries", "group_index", "replaced_task_nesting")
_TIMES = ("eta", "expires")
_SWITCHES = ("ignore_result", "utc")
_EMBEDDED = ("callbacks", "errbacks", "chain")

# Of Celery's request, on which headers and embed become attributes: none may hide a method.
_METHODS = frozenset(name for name in dir(Context) if callable(getattr(Context, name)))
_OWN = frozenset((*_TEXTS, *_NUMBERS, *_TIMES, *_SWITCHES, *_METHODS)) | {
    "task",
    "id",
    "timelimit",
    "args",
    "kwargs",
    "properties",
    "delivery_info",
    "correlation_id",
    "reply_to",
    "stamps",
    "stamped_headers",
    "is_eager",
}
"""What embed may not say, since it would overrule what was looked at elsewhere."""


def task_problem(message: Message) -> str | None:
    """Why Celery cannot run the task that a message asks for; None if it can, or if it does not know the task.

    Of both of Celery's protocols: the first has everything in its body, the second most in its headers.
    """
    if problem := _property_problem(message):
        return problem
    try:
        payload = message.payload
    except Exception as error:  # noqa: BLE001 -- whatever bytes can make a decoder raise
        return f"body cannot be decoded: {error!r}"
    match payload:
        case [args, kwargs, embed] if "task" in message.headers:
            said: Mapping[str, Any] = message.headers
        case dict() if "args" in payload or "task" not in message.headers:
            said = payload | message.headers
            args, kwargs = payload.get("args", ()), payload.get("kwargs", {})
            embed = {name: payload.get(name) for name in (*_EMBEDDED, "chord")}
        case _:
            return "body is not [args, kwargs, embed]"
    if not isinstance(args, (list, tuple)):
        return "args are no list"
    if not isinstance(kwargs, dict):
        return "kwargs are no object"
    return _said_problem(said) or _embed_problem(embed)


def _property_problem(message: Message) -> str | None:
    if message.errors:
        return f"body cannot be unpacked: {message.errors[0][1]!r}"
    for name in ("content_type", "content_encoding"):
        if not isinstance(getattr(message, name), (str, type(None))):
            return f"{name} is no text"
    for name in ("correlation_id", "reply_to"):
        if not isinstance(message.properties.get(name), (str, type(None))):
            return f"{name} is no text"
    if not isinstance(message.properties.get("priority"), (int, type(None))):
        return "priority is no number"
    return None


def _said_problem(said: Mapping[str, Any]) -> str | None:
    """What is wrong with what a message says of its task beside the arguments."""
    for name in ("task", "id"):
        if not (isinstance(said.get(name), str) and said[name]):
            return f"{name} is no text"
    for name, value in said.items():
        if name in _METHODS or not isinstance(name, str):
            return f"a header may not be called {name!r}"
        if value is not None and (problem := _value_problem(name, value)):
            return problem
    return None


def _value_problem(name: str, value: Any) -> str | None:
    if name in _TEXTS:
        return None if isinstance(value, str) else f"{name} is no text"
    if name in _NUMBERS:
        return None if isinstance(value, int) and 0 <= value < RETRIES_MAX else f"{name} is no number"
    if name in _TIMES:
        return None if _is_time(value) else f"{name} is no time"
    if name in _SWITCHES:
        return None if isinstance(value, bool) else f"{name} is neither true nor false"
    if name == "timelimit":
        return None if _are_limits(value) else "timelimit is not two numbers of seconds"
    if name == "stamped_headers":
        is_fit = isinstance(value, list) and all(isinstance(header, str) for header in value)
        return None if is_fit else "stamped_headers are no list of names"
    if name == "stamps":
        return None if isinstance(value, dict) else "stamps are no object"
    return None


def _is_time(value: Any) -> bool:
    try:
        return bool(maybe_make_aware(maybe_iso8601(value)).astimezone(UTC))
    except Exception:  # noqa: BLE001 -- parsing and converting have many ways to fail
        return False


def _are_limits(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(limit is None or (isinstance(limit, (int, float)) and isfinite(limit)) for limit in value)
    )


def _embed_problem(embed: Any) -> str | None:
    if not isinstance(embed, dict):
        return "embed is no object"
    for name in embed:
        if name in _OWN:
            return f"embed may not say {name}"
    for name in _EMBEDDED:
        tasks = embed.get(name)
        if tasks is not None and not (isinstance(tasks, list) and all(map(_is_signature, tasks))):
            return f"{name} is no list of tasks"
    chord = embed.get("chord")
    return None if chord is None or _is_signature(chord) else "chord is no task"


def _is_signature(task: Any) -> bool:
    return (
        isinstance(task, dict)
        and isinstance(task.get("task"), str)
        and isinstance(task.get("args"), (list, tuple, type(None)))
        and isinstance(task.get("kwargs"), (dict, type(None)))
        and isinstance(task.get("options"), (dict, type(None)))
    )
