"""One connection to an MQTT broker: paho's client, driven by the event loop, over a connection that we opened.

paho speaks the protocol, and is given what has come when messages are asked for. So no thread or task is needed,
and a broker is held back as any other source is; pings are sent all the while.
`_Client._create_socket` is the one method of paho that is not documented: it has no other way to get a socket.

paho makes room for a packet as it arrives, however large it says that it is, and keeps what no broker should send.
So what it reads goes past a `PacketFilter`, which knows where packets begin: it refuses one by its first bytes,
and then nothing more is read. The connection stays, so that what has landed can still be acknowledged.

Acknowledging is the caller's (`MqttLink.acknowledge`), in the order of receipt, as the protocol demands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from feedq.connectors.base import Context
from feedq.connectors.messages import MESSAGES_AT_ONCE, SAID_CHARACTERS_MAX, credential
from feedq.connectors.wire.connection import SourceConnection
from feedq.errors import FeedqError, SourceSilent, SourceUnavailable
from feedq.records.turns import Steps, in_turns, others_turn

if TYPE_CHECKING:
    from feedq.connectors.mqtt import MqttOptions


UNSENT_BYTES_MAX: Final = 2**20
"""Bounds what a broker that sends and does not read can make us keep: 262,144 acknowledgements."""
CLOSE_S: Final = 0.2
"""How long the last acknowledgements may take to leave."""
TAKEN_OVER: Final = 0x8E
PINGREQ: Final = b"\xc0\0"


class Message(NamedTuple):
    """A message as we keep it: paho's own takes some kilobytes, whatever its payload."""

    number: int
    """The packet identifier; 0 with QoS 0."""
    topic: str
    payload: bytes
    retain: bool = False
    properties: Sequence[tuple[str, str]] = ()
    """What its publisher says of it; MQTT 5 only."""
    subscriptions: Sequence[int] = ()
    """The identifiers of the subscriptions that it comes by; MQTT 5 only."""
    left_out_bytes: int = 0
    """The size of a message that was too large to be read, about; it is the last one."""


class MqttLink:
    """A connection, which is read when messages are asked for, and not before."""

    def __init__(self, connection: SourceConnection, options: MqttOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._where = options.location
        self._connection = connection
        self._socket: PahoSocket
        self._client: _Client
        self._client_id = ""
        self._is_5 = options.version == "5"
        self.has_identifiers = False
        """Whether the broker tells by which subscription a message comes."""
        self._accepted: tuple[bool, ReasonCode] | None = None
        self._asked: dict[int, Callable[[Sequence[ReasonCode]], None]] = {}
        """What checks the broker's answer, of each subscription that it has not answered yet."""
        self._messages: list[Message] = []
        """What was read and not taken yet."""
        self._piece_bytes = 0
        """What of the worker's memory is taken for the piece that is being read."""
        self._failure: FeedqError | None = None
        """Why nothing more will come."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self._failure is not None or not self._connection.is_open

    # -- the connector's side ------------------------------------------------------------------------------

    async def log_in(self, client_id: str) -> tuple[bool, ReasonCode]:
        """Whether the broker has a session of this id, and why it lets us in or not. That of a trial ends with it.

        Raises:
            SourceUnavailable: the connection is lost before there is an answer.
        """
        options, context = self._options, self._context
        self._client_id = client_id
        packet_filter = PacketFilter(payload_bytes_max=options.max_record_bytes, is_5=self._is_5)
        self._socket = PahoSocket(self._connection, packet_filter)
        client = self._client = _Client(
            self._socket,
            callback_api_version=CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311,
            clean_session=None if self._is_5 else context.trial,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        if options.username is not None:
            client.username_pw_set(
                credential(options.username, context), credential(options.password, context)
            )
        # The host is only paho's: the connection is open.
        client.connect("broker", keepalive=options.keepalive_s, **self._terms())
        self._ping_later()
        while self._accepted is None:
            await self._read()
        return self._accepted

    def _terms(self) -> dict[str, Any]:
        """What MQTT 5 lets a client ask for when it connects."""
        if not self._is_5:
            return {}
        is_trial = self._context.trial
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho's own
        properties.SessionExpiryInterval = 0 if is_trial else self._options.session_expiry_s
        properties.ReceiveMaximum = self._options.max_unacknowledged
        return {"clean_start": is_trial, "properties": properties}

    def subscribe(
        self,
        topics: Sequence[str],
        check: Callable[[Sequence[ReasonCode]], None],
        *,
        identifier: int | None = None,
    ) -> None:
        """Ask for topics, with QoS 1. ``check`` gets the broker's word on each, and raises what ends the
        connection. The messages have the ``identifier``, where `has_identifiers`."""
        if self._is_5:
            # Subscribing again would bring all retained messages again.
            how = SubscribeOptions(
                qos=1, retainAsPublished=True, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            said = None
            if identifier is not None:
                said = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]  # of the stubs
                said.SubscriptionIdentifier = identifier
            _, number = self._client.subscribe([(topic, how) for topic in topics], properties=said)
        else:
            _, number = self._client.subscribe([(topic, 1) for topic in topics])
        if number is not None:  # None: the connection was lost
            self._asked[number] = check

    async def until_subscribed(self) -> None:
        """Return when the broker has answered. If it first sends what has waited for the session, the answer is
        checked when it comes."""
        while self._asked and not self._messages:
            await self._read()
        if self._failure is not None and not self._messages:
            raise self._failure

    async def receive(self) -> list[Message]:
        """The messages that have arrived since the last call, `MESSAGES_AT_ONCE` at most. Raises why there are no
        more; those before that which nobody sends again are given first."""
        while not self._messages:
            await self._read()
        taken, self._messages = self._messages, []
        return [message for message in taken if not message.number] if self.is_lost else taken

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Unsubscribe; nothing waits for the answer."""
        if topics:
            self._client.unsubscribe(list(topics))

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """Once the connection is lost this does nothing: the broker sends the messages again."""
        for number in numbers:
            if not self.is_lost:
                self._client.ack(number, 1)

    async def close(self) -> None:
        """Disconnect from the broker, and close the connection once that is sent. May be repeated."""
        if self._timer is not None and not self.is_lost:
            self._client.disconnect()
            await self._connection.finish(at_most_s=CLOSE_S)
        self._end(SourceUnavailable(f"{self._where}: closed"))
        self._hold(0)

    # -- the loop's side -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read on. Raises why nothing more comes."""
        if self._failure is not None:
            raise self._failure
        if self._socket.is_dry:
            self._hold(0)
            piece = await self._piece()
            self._hold(len(piece))
            self._socket.feed(piece)
        else:
            await others_turn()
        await in_turns(self._take_packets())

    async def _piece(self) -> bytearray:
        try:
            piece = await self._connection.receive()
        except SourceSilent:
            raise SourceSilent(
                f"{self._where}: connected, but nothing received, not even the answer to a ping, for "
                f"{self._options.idle_timeout_s:g} s (source.idle_timeout_s)"
            ) from None
        if not piece:
            raise self._failure or SourceUnavailable(f"{self._where}: {self._closed()}")
        return piece

    def _hold(self, size: int) -> None:
        """Take room for a piece instead of for the one before it."""
        self._context.room.take(size)
        self._context.room.give_back(self._piece_bytes)
        self._piece_bytes = size

    def _take_packets(self) -> Steps[None]:
        """Take the packets that there are, until there are messages enough."""
        while self._failure is None and not self._socket.is_dry and len(self._messages) < MESSAGES_AT_ONCE:
            self._step(self._client.loop_read)
            if self._socket.packet_filter.refusal is not None:
                self._refuse(self._socket.packet_filter.refusal)
                return
            yield

    def _refuse(self, refusal: PacketRefusal) -> None:
        """Read nothing more; what was read before is taken first, and can be acknowledged."""
        if not refusal.payload_bytes or self._accepted is None:
            why = refusal.why or "it sent a message before it accepted us"
            self._end(SourceUnavailable(f"{self._where}: {why}, against the rules of MQTT; is it a broker?"))
            return
        self._messages.append(Message(0, "", b"", left_out_bytes=refusal.payload_bytes))

    def _ping_later(self) -> None:
        # With MQTT 5 the broker may ask for another interval than ours.
        keepalive_s = self._client.keepalive or self._options.keepalive_s
        pause_s = min(keepalive_s, self._options.idle_timeout_s or inf) / 2
        self._timer = self._loop.call_later(pause_s, self._ping)

    def _ping(self) -> None:
        """Keep the broker from giving us up, also while nothing is read: paho would then take its answer for
        lost."""
        try:
            self._connection.send(PINGREQ, unsent_bytes_max=UNSENT_BYTES_MAX)
        except SourceUnavailable as error:
            self._end(error)
        else:
            self._ping_later()

    def _step(self, step: Callable[[], MQTTErrorCode]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a packet that paho cannot parse raises anything
            said = repr(error)[:SAID_CHARACTERS_MAX]
            self._end(SourceUnavailable(f"{self._where}: what the broker sent cannot be understood: {said}"))

    # -- paho's side ---------------------------------------------------------------------------------------

    def _on_connect(
        self, _: Client, __: Any, flags: ConnectFlags, reason: ReasonCode, terms: Properties | None
    ) -> None:
        self.has_identifiers = self._is_5 and getattr(terms, "SubscriptionIdentifierAvailable", 1) == 1
        self._accepted = self._accepted or (flags.session_present, reason)

    def _on_subscribe(
        self, _: Client, __: Any, number: int, granted: list[ReasonCode], ___: Properties | None
    ) -> None:
        check = self._asked.pop(number, None)
        if check is None:
            return
        try:
            check(granted)
        except FeedqError as error:
            self._end(error)

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        self._messages.append(
            Message(
                message.mid,
                message.topic,
                bytes(message.payload),
                message.retain,
                getattr(message.properties, "UserProperty", ()),
                getattr(message.properties, "SubscriptionIdentifier", ()),
            )
        )

    def _on_disconnect(
        self, _: Client, __: Any, flags: DisconnectFlags, reason: ReasonCode, ___: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._end(self._dismissed(reason))
        elif self._socket.trouble is not None:
            self._end(self._socket.trouble)
        elif reason.getName() == "Protocol error":
            self._end(
                SourceUnavailable(f"{self._where}: the broker's answer breaks the rules of the protocol")
            )
        else:
            self._end(SourceUnavailable(f"{self._where}: {self._closed()}"))

    def _closed(self) -> str:
        if self._accepted is not None:
            return f"closed by the broker; does another client use the id {self._client_id}?"
        return "closed by the broker before it answered"

    def _dismissed(self, reason: ReasonCode) -> FeedqError:
        if reason.value == TAKEN_OVER:
            return SourceUnavailable(
                f"{self._where}: another client took over the session {self._client_id}; if that was not this "
                "feed on another worker, give it an id of its own (source.client_id)"
            )
        return SourceUnavailable(f"{self._where}: closed by the broker: {str(reason).lower()}")

    def _end(self, failure: FeedqError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()


class PahoSocket:
    """Stands for paho's socket: gives it what has come, as far as the filter lets it through, and sends."""

    def __init__(self, connection: SourceConnection, packet_filter: PacketFilter) -> None:
        self.packet_filter = packet_filter
        self.is_dry = True
        """Whether the last reading found nothing more."""
        self.trouble: SourceUnavailable | None = None
        """Why nothing can be sent."""
        self._connection = connection
        self._held = memoryview(b"")

    def feed(self, data: bytes | bytearray) -> None:
        """Take what has come; to be called when it is dry."""
        self._held, self.is_dry = memoryview(data), False

    def recv(self, size: int) -> bytes:
        if self._held and self.packet_filter.refusal is None:
            taken, self._held = self._held[:size], self._held[size:]
            self.packet_filter.inspect(taken)
            if self.packet_filter.refusal is None:
                return bytes(taken)
        self.is_dry = True
        raise BlockingIOError

    def send(self, data: bytes | bytearray) -> int:
        try:
            self._connection.send(bytes(data), unsent_bytes_max=UNSENT_BYTES_MAX)
        except SourceUnavailable as error:
            self.trouble = error
            raise ConnectionResetError from error
        return len(data)

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        """The connection is closed by the link."""


class _Client(Client):
    """paho's client over a socket that is connected already."""

    def __init__(self, sock: PahoSocket, **how: Any) -> None:
        super().__init__(**how)
        self._connected_socket = sock

    def _create_socket(self) -> Any:
        return self._connected_socket


PACKET_BYTES_MAX: Final = 4 * 1024
"""Of all packets but a PUBLISH: they hold some numbers, a reason, and perhaps a few properties."""
PROPERTIES_BYTES_MAX: Final = 4 * 1024
"""Of a PUBLISH; paho takes a time for them that grows with their square, half a second for 16 KiB."""
TOPIC_BYTES_MAX: Final = 64 * 1024
_PUBLISH: Final = 3
_FROM_BROKERS: Final = frozenset((2, _PUBLISH, 9, 11, 13, 14))
"""CONNACK, PUBLISH, SUBACK, UNSUBACK, PINGRESP, DISCONNECT: what a broker sends to a client that only subscribes.
paho answers others, or keeps them, without a bound, and so it does with messages of QoS 2."""
_QOS: Final = 0b0110


@dataclass(frozen=True, slots=True)
class PacketRefusal:
    """The reason why nothing more is read."""

    why: str
    payload_bytes: int = 0
    """Of a PUBLISH that is too large, about; 0: the broker breaks the rules."""


class PacketFilter:
    """Judges packets by their first bytes before paho makes room for them. It looks at them as paho reads them:
    piece by piece, and none beyond the end of what it asked for."""

    def __init__(self, *, payload_bytes_max: int, is_5: bool) -> None:
        self._max = payload_bytes_max
        self._is_5 = is_5
        self._kind = self._qos = 0
        """Of the packet that has begun; none has while the kind is 0."""
        self._size = self._shift = 0
        self._left: int | None = None
        """Bytes of its body to come; None while its length is read."""
        self._begin: bytearray | None = None
        """Of a PUBLISH with properties, as much as says how long they are."""
        self.refusal: PacketRefusal | None = None

    def inspect(self, piece: memoryview) -> None:
        """Look at a piece, which is of one byte until the body begins."""
        if not self._kind:
            self._open(piece[0])
        elif self._left is None:
            self._measure(piece[0])
        else:
            if self._begin is not None:
                self._inspect_publish(piece)
            self._left -= len(piece)
            if not self._left:
                self._kind = 0

    def _open(self, first: int) -> None:
        self._kind, self._qos = first >> 4, (first & _QOS) >> 1
        self._size = self._shift = 0
        self._left = self._begin = None
        if self._kind not in _FROM_BROKERS or (self._kind == _PUBLISH and self._qos > 1):
            self.refusal = PacketRefusal("it sent a packet that no broker sends to a subscriber")

    def _measure(self, byte: int) -> None:
        self._size |= (byte & 0x7F) << self._shift
        self._shift += 7
        if byte & 0x80:
            return
        self._left = self._size
        if self._kind == _PUBLISH:
            beside = TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
            if self._size > self._max + beside:
                self.refusal = PacketRefusal("", payload_bytes=self._size)
            self._begin = bytearray() if self._is_5 else None
        elif self._size > PACKET_BYTES_MAX:
            self.refusal = PacketRefusal(f"it sent a control packet of {self._size} bytes")
        if not self._left:
            self._kind = 0

    def _inspect_publish(self, piece: memoryview) -> None:
        assert self._begin is not None
        begin = self._begin
        begin += piece[: TOPIC_BYTES_MAX + 8]
        at = 2 + int.from_bytes(begin[:2]) + (2 if self._qos else 0)
        length = begin[at : at + 4]
        end = next((i for i, byte in enumerate(length) if not byte & 0x80), None)
        if end is None and len(length) < 4:
            return  # there is more to come
        size = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(length[: (end or 0) + 1]))
        if end is None or size > PROPERTIES_BYTES_MAX:
            self.refusal = PacketRefusal(
                f"it sent a message with more than {PROPERTIES_BYTES_MAX} bytes of properties"
            )
        self._begin = None
