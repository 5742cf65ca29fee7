"""The Redis transport of kombu, with two guards and a short cut: neither a message that cannot be read nor an
acknowledgement that comes too late may end the worker, and hints to a node are not written down in Redis.

kombu takes whatever lies in a queue's list for one of its own messages. Bytes that are no JSON, or JSON that is
no message, raise out of Celery's event loop, which ends the worker and every stream in it. Here such an item is
dropped with one log line; it was taken from the list before it was looked at, so it cannot come again.

Invariants: nothing that this transport reads is kept from Celery if it has the form of a message, and errors
of the connection are never mistaken for bad messages. What Celery finds wrong *inside* a message (an unknown
task, a content type that is not accepted) is its own affair and dropped by it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import Empty
from typing import Any
from uuid import uuid4

from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from kombu.utils.json import loads

from feedq.telemetry import LogEvent, log

SHOWN_BYTES = 200
NODE_PREFIX = "node."
"""Of the queues that belong to one worker each."""

HINTS_AT_ONCE = 100
"""Read in one round trip: Celery's loop does nothing else meanwhile, for some twenty milliseconds."""

logger = log(__name__)

# kombu counts KeyError among the errors of a connection; here it is what a message without a key raises.
_CONNECTION_ERRORS = tuple(error for error in redis.Transport.connection_errors if error is not KeyError)


def install() -> None:
    """Have kombu use it for ``redis://`` and ``rediss://`` in this process. May be called again."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{RedisTransport.__name__}"


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

    def _read(self, read: Callable[[], object]) -> None:
        self.connection.handing_over = False
        try:
            read()
        except (Empty, *_CONNECTION_ERRORS):
            raise
        except Exception as error:
            # Once a message was handed over, what goes wrong is not a matter of reading it.
            if self.connection.handing_over:
                raise
            logger.warning(LogEvent.MESSAGE_DROPPED, why=repr(error)[:SHOWN_BYTES])

    def _connparams(self, asynchronous: bool = False) -> Any:
        # An acknowledgement that comes after the broker went away finds its channel closed. Celery takes a
        # connection error for what it is and logs it; kombu's AttributeError would end the worker.
        if self.connection.client is None:
            raise ConnectionError("the connection of this channel is closed")
        return super()._connparams(asynchronous=asynchronous)  # type: ignore[no-untyped-call]  # as all of kombu


class RedisTransport(redis.Transport):
    """kombu's transport with that channel, and a look at each message before it is handed over."""

    Channel = RedisChannel
    handing_over = False
    came_from = ""
    """The queue of the last message."""

    def _deliver(self, message: Any, queue: str) -> None:
        self.came_from = queue
        problem = _problem(message)
        if problem is not None:
            logger.warning(
                LogEvent.MESSAGE_DROPPED, queue=queue, why=problem, message=repr(message)[:SHOWN_BYTES]
            )
            return
        self.handing_over = True
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]  # as all of kombu


def _problem(message: Any) -> str | None:
    """Why this is no message that kombu and Celery can take in without an exception; None if it is one."""
    match message:
        case {"properties": {"delivery_tag": str(), "delivery_info": dict() as info, **properties}}:
            pass
        case _:
            return "not the form of a message"
    if not ("exchange" in info and "routing_key" in info):
        return "delivery_info without exchange and routing_key"
    headers = message.get("headers")
    if not isinstance(headers, dict) and headers is not None:
        return "headers are no object"
    if headers and not isinstance(headers.get("task", ""), str):
        return "the name of the task is no text"
    return _body_problem(message.get("body"), properties.get("body_encoding"))


def _body_problem(body: Any, encoding: Any) -> str | None:
    if not isinstance(body, str) or not body:
        return "body is no text"
    if encoding is None or encoding == "utf-8":
        return None
    if encoding != "base64":
        return "unknown body_encoding"
    try:
        b64decode(body, validate=True)
    except ValueError as error:
        return f"body is no base64: {error}"
    return None
