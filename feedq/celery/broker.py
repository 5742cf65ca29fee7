"""The transports of kombu for Redis and for RabbitMQ, guarded: no message ends a worker.

kombu and Celery take whatever lies in a queue for one of their own messages. What has another form (bytes that are
no JSON, a body that is no ``[args, kwargs, embed]``, a task id that is a list) raises out of Celery's event loop
(``next(loop)`` in `celery.worker.loops.asynloop`), which ends the worker and every stream in it; and the message
goes to the next worker. So each step that kombu and Celery take with a message in that loop is `guarded`: reading
it (`RedisChannel`, `_properties`), taking it in (``basic_consume``), and carrying it out (`guard_pool`, and
`feedq.celery.bootsteps.GuardedConsumer`). What fails is rejected without being put back, with one log line. What
nothing would fail at, and harms all the same, is looked at first: the size.

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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from math import isfinite
from queue import Empty
from typing import Any
from uuid import uuid4

import amqp
from amqp.serialization import PROPERTY_CLASSES, decode_properties_basic
from amqp.spec import Basic
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.events.dispatcher import EventDispatcher
from celery.worker import state as worker_state
from kombu import compression, matcher
from kombu.clocks import LamportClock
from kombu.message import Message
from kombu.transport import TRANSPORT_ALIASES, _transport_cache, pyamqp, virtual
from kombu.utils.json import loads

from feedq.telemetry.hiding import hidden
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import MESSAGES_LEFT_OUT

with hidden("opentelemetry.sdk.metrics"):
    from kombu.transport import redis

MESSAGE_BYTES_MAX = 64 * 2**20
"""A larger message, as it comes or unpacked, is dropped: it would take the memory of a thousand feeds."""
SOCKET_SCHEME = "redis+socket"
REDIS_SCHEMES = ("redis", "rediss", SOCKET_SCHEME)
SHOWN_BYTES = 200
NODE_PREFIX = "node."
"""Of the queues that belong to one worker each."""

READ_AT_ONCE = 100
"""Read in one round trip: Celery's loop does nothing else meanwhile, for some twenty milliseconds."""
UNREADABLE = "feedq-unreadable"
"""The header that stands for the properties of a message of RabbitMQ that could not be read."""
CLOCK_MAX = 2**48
"""No installation has sent so many messages; a header of AMQP holds 2^63 - 1."""
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
    for name, unpacker in _UNPACKERS.items():
        # kombu.compression unpacks without a limit.
        encode, _ = compression.get_encoder(name)
        compression.register(encode, partial(_unpacked, unpacker), name)
    PROPERTY_CLASSES[Basic.CLASS_ID] = _properties
    # A message of remote control brings its own pattern (`kombu.pidbox.Node.handle_message`); one that
    # backtracks would hold the interpreter.
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

    kombu writes down each message that it takes (``append`` in `kombu.transport.redis.QoS`), so that another
    consumer may have it if this one dies. A node's queue has no other consumer, and its messages are hints: the
    lease of a feed whose hint was lost brings it back. Two fewer round trips per message halve the time of a cold
    start. They count towards the prefetch window like all others.
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
    """A channel that survives messages it cannot read."""

    QoS = HintsUnrecorded

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # as all of kombu
        self._tag_prefix, self._tags = uuid4().hex, count(1)

    def _next_delivery_tag(self) -> str:
        # As unique as kombu's own (`kombu.utils.uuid`), without asking the system for random bytes with every
        # message: a thread that does so lets go of the interpreter, and has to wait for it behind all others.
        return f"{self._tag_prefix}-{next(self._tags)}"

    def _brpop_read(self, **options: Any) -> Any:
        self.connection.came_from = ""
        guarded(super()._brpop_read, _unreadable)(**options)
        if self.connection.came_from.startswith(NODE_PREFIX):
            self._read_hints(self.connection.came_from)
        return True

    def _read_hints(self, queue: str) -> None:
        """Where one hint was there are often thousands: what the window has room for, in one round trip."""
        room = self.qos.can_consume_max_estimate()
        hand_over = guarded(lambda item: self.connection._deliver(loads(item), queue), _unreadable)
        for item in self.client.rpop(queue, min(room, READ_AT_ONCE)) or () if room else ():
            hand_over(item)

    def _receive_one(self, subscribed: Any) -> Any:
        # Remote control and events.
        return guarded(super()._receive_one, _unreadable)(subscribed)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **how: Any
    ) -> Any:
        return super().basic_consume(  # type: ignore[no-untyped-call]  # as all of kombu
            queue, no_ack, guarded(callback, partial(_drop, no_ack=no_ack)), consumer_tag, **how
        )

    def _connparams(self, asynchronous: bool = False) -> Any:
        # An acknowledgement that comes after the broker went away finds its channel closed:
        # ``self.connection.client``, which kombu reads here, is None then. Celery takes a connection error for
        # what it is and logs it; kombu's AttributeError would end the worker.
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
        match message:
            case {
                "body": str() as body,
                "properties": {
                    "delivery_tag": str(),
                    "delivery_info": {"exchange": str(), "routing_key": str()},
                },
            } if len(body) <= MESSAGE_BYTES_MAX:
                super()._deliver(message, queue)  # type: ignore[no-untyped-call]  # as all of kombu
            case _:
                # kombu would write it down in Redis before it fails at it, or never fail.
                _say_dropped("malformed or too large", queue=queue, message=message)


# -- RabbitMQ ----------------------------------------------------------------------------------------


class AmqpChannel(pyamqp.Channel):
    """A channel that survives messages it cannot read."""

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
        deliver = partial(self._deliver, guarded(callback, partial(_drop, no_ack=no_ack)), no_ack)
        return super().basic_consume(queue, consumer_tag, no_local, no_ack, exclusive, nowait, deliver, **how)

    def _deliver(self, callback: Callable[[Any], object], no_ack: bool, raw: amqp.Message) -> None:
        headers = raw.properties.get("application_headers") or {}
        problem = headers.get(UNREADABLE)
        if problem is None and len(raw.body) <= MESSAGE_BYTES_MAX:
            callback(self.message_to_python(raw))
            return
        _say_dropped(problem or "too large", queue=raw.delivery_info["routing_key"], message=raw.body)
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


def _unpacked(unpacker: Callable[[], Any], body: bytes) -> bytes:
    """Unpack a body. Raises `ValueError`, and what the library does: Celery logs it, and drops the message."""
    unpacking = unpacker()
    unpacked: bytes = unpacking.decompress(body, MESSAGE_BYTES_MAX + 1)
    if len(unpacked) > MESSAGE_BYTES_MAX:
        raise ValueError(f"larger than {MESSAGE_BYTES_MAX:,} bytes when unpacked")
    if not unpacking.eof:
        raise ValueError("it is truncated")
    return unpacked


_UNPACKERS: Mapping[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_MEMORY),
}
"""By the names that kombu knows the methods by."""


def guarded(step: Callable[..., Any], abandon: Callable[..., None]) -> Callable[..., Any]:
    """Wrap a step that kombu or Celery takes with a message so that no error of it ends the worker: ``abandon``
    gets the error and the arguments.

    Errors of the connection pass: Celery connects anew, and the broker delivers the message again.
    """

    def take(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except (Empty, *_CONNECTION_ERRORS):
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a forged message can make Celery raise
            abandon(error, *args)
            return None

    return take


def _unreadable(error: Exception, *_: object) -> None:
    _say_dropped(repr(error))


def _drop(error: Exception, message: Any, *, no_ack: bool) -> None:
    """Reject a message, for good. Raises errors of the connection."""
    queue = message.delivery_info.get("routing_key")
    _say_dropped(f"it cannot be read: {error!r}", queue=queue, message=message.body)
    if not no_ack and not message.acknowledged:
        message.reject()


def not_carried_out(error: BaseException, *_: object, **fields: object) -> None:
    """Say so: what remote control asked for, an acknowledgement, or a task."""
    _say_dropped(f"it cannot be carried out: {error!r}", **fields)


def _say_dropped(why: str, **fields: object) -> None:
    shown = {name: repr(value)[:SHOWN_BYTES] for name, value in fields.items()}
    logger.warning(LogEvent.MESSAGE_DROPPED, why=why[:SHOWN_BYTES], **shown)


class BoundedDispatcher(EventDispatcher):
    """Celery's events, of which a bounded number waits while the broker is away.

    Celery's own ``_outbound_buffer`` grows without a bound.
    """

    def send(self, type: str, *how: Any, **fields: Any) -> None:
        if len(self._group_buffer.get("task", ())) + len(self._outbound_buffer) < EVENTS_WAITING_MAX:
            super().send(type, *how, **fields)
        else:
            MESSAGES_LEFT_OUT.inc()


class BoundedClock(LamportClock):
    """Celery's clock, which adopts the highest number it receives, except one that could not be sent on.

    ``adjust`` of kombu's own takes the larger of the two, whatever it is. A number of four thousand digits can be
    read from JSON, and the next one cannot be written.
    """

    def adjust(self, other: Any) -> int:
        is_fit = isinstance(other, int) and 0 <= other < CLOCK_MAX
        return super().adjust(other if is_fit else 0)


# -- tasks, in the pools -----------------------------------------------------------------------------


def settle(accept_callback: Any, call: Callable[[Callable[[], None]], object], future: Future[Any]) -> None:
    """Reject the message of a task that broke out of Celery's tracer on a thread. ``call`` calls what does that.

    `apply_target` in `celery.concurrency.base` leaves the exception with the future, where nobody looks for it,
    and the message would keep its place in the prefetch window.
    """
    request = getattr(accept_callback, "__self__", None)
    if request is not None and not future.cancelled() and (error := future.exception()) is not None:
        call(partial(_abandon, error, request))


def guard_pool(worker: Any) -> None:
    """Guard how a worker carries out tasks, in whatever pool.

    `celery.worker.WorkController._process_task` catches `TaskRevokedError` alone. The prefork pool starts tasks
    that had to wait, and sets time limits, in callbacks of the event loop, which no other guard surrounds. On the
    pool of threads errors are left to `settle`.
    """
    process, pool = worker._process_task, worker.pool

    def check_and_process(request: Any) -> None:
        limits = request.time_limits
        if limits and not all(isfinite(limit or 0) for limit in limits):
            raise ValueError(f"time limits {limits!r}")
        process(request)

    def abandon(error: Exception, request: Any) -> None:
        _abandon(error, request)
        # Celery took a place in the pool for it. Without prefork there are no places to take.
        getattr(worker, "_quick_release", lambda: None)()

    worker._process_task = guarded(check_and_process, abandon)
    if isinstance(pool, ThreadPool):
        pool.on_apply = partial(_apply_settled, pool.on_apply)


def _apply_settled(apply: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = apply(*args, **options)
    accept_callback = options.get("accept_callback")
    result.f.add_done_callback(partial(settle, accept_callback, lambda reject: reject()))
    return result


def _abandon(error: BaseException, request: Any) -> None:
    """Forget a task that could not be carried out, and reject its message."""
    not_carried_out(error, task_id=request.id)
    worker_state.task_ready(request)
    request.reject()
