"""One connection to an MQTT broker: paho's client, driven by the event loop, over a socket that we dialed.

paho speaks the protocol; reading, writing and waking it are left to whoever has a loop, through callbacks
that it documents for this purpose. So no thread is needed, reading can be paused, and a connection that is lost
is noticed at once, also before the broker has answered. `_Client._create_socket` is the one method of it that
is not documented: paho has no other way to be handed a socket.

Acknowledging is the caller's (`MqttLink.acknowledge`), in the order of receipt, as the protocol demands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from feedq.connectors.protocol.mqtt.socket import PacketFilter, PacketRefusal, ReadAhead
from feedq.connectors.records.inbox import Inbox
from feedq.connectors.records.turns import TURN_S
from feedq.connectors.wire.dialing import Dialed, explain
from feedq.errors import FeedqError, SourceSilent, SourceUnavailable

PACKETS_AT_ONCE = 256
"""After so many the other feeds have their turn, and after `TURN_S` at the latest."""
UNSENT_ACKNOWLEDGEMENTS_MAX = 2**18
"""Bounds what a broker that sends and does not read can make us keep."""
TICK_S = 1.0
"""paho looks at its clock this often; the protocol counts its keep-alive in seconds too."""
TAKEN_OVER = 0x8E
SAID_CHARACTERS_MAX = 200
MESSAGE_BYTES = 256
"""What a message takes beside its payload, so that many small ones are bounded too."""
PROPERTY_BYTES = 192
"""The same of a property."""

Version = Literal["5", "3.1.1"]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class MqttLogin:
    """What a client says of itself when it connects."""

    client_id: str
    version: Version
    keep_session: bool
    """Take up the session that the broker has for this client, and leave it there afterwards."""
    keepalive_s: int
    session_expiry_s: int
    """MQTT 5 only, as is the next one."""
    max_unacknowledged: int
    username: str | None
    password: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker's answer to a login."""

    session_present: bool
    reason: ReasonCode


class Message(NamedTuple):
    """A message as we keep it: paho's own takes some kilobytes, whatever its payload."""

    number: int
    """The packet identifier; 0 with QoS 0."""
    topic: str
    payload: bytes
    is_again: bool
    """Whether the broker has sent it before: the flag `dup`."""
    retain: bool = False
    properties: Sequence[tuple[str, str]] = ()
    """What its publisher says of it; MQTT 5 only."""
    left_out_bytes: int = 0
    """Of a message that was too large to be read: about as many. It is the last one."""

    @property
    def size(self) -> int:
        """What it takes in memory, about."""
        about = sum(len(name) + len(value) + PROPERTY_BYTES for name, value in self.properties)
        return len(self.payload) + len(self.topic) + MESSAGE_BYTES + about


class MqttLink:
    """A connection. Whatever ends it goes to `inbox` as its failure."""

    def __init__(
        self,
        dialed: Dialed,
        *,
        where: object,
        idle_timeout_s: float,
        buffer_bytes: int,
        payload_bytes_max: int,
    ) -> None:
        """``dialed`` is taken over; its socket may have become one of TLS since it was dialed."""
        self.inbox: Inbox[Message] = Inbox(bytes_max=buffer_bytes, on_taken=self._resume)
        self._loop = asyncio.get_running_loop()
        self._where = where
        self._idle_timeout_s = idle_timeout_s
        self._dialed = dialed
        self._socket = ReadAhead(dialed.sock)
        self._payload_bytes_max = payload_bytes_max
        self._unsent = 0
        """Acknowledgements that may not have left."""
        self._client: _Client | None = None
        self._client_id, self._is_5 = "", True
        self._accepted: asyncio.Future[Accepted] = self._loop.create_future()
        self._granted: dict[int, asyncio.Future[Sequence[ReasonCode]]] = {}
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._full: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = self._loop.time()
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost.done()

    # -- the connector's side ------------------------------------------------------------------------------

    async def log_in(self, login: MqttLogin) -> Accepted:
        """Raises `SourceUnavailable` when the connection is lost before there is an answer."""
        self._client_id, self._is_5 = login.client_id, login.version == "5"
        self._socket.gate = PacketFilter(payload_bytes_max=self._payload_bytes_max, is_5=self._is_5)
        client = self._client = _Client(
            self._socket,
            callback_api_version=CallbackAPIVersion.VERSION2,
            client_id=login.client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311,
            clean_session=None if self._is_5 else not login.keep_session,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        self._hook_up(client)
        if login.username is not None:
            client.username_pw_set(login.username, login.password)
        # The host is only paho's: the socket is connected.
        client.connect("broker", keepalive=login.keepalive_s, **(_terms(login) if self._is_5 else {}))
        self._tick()
        return await self._unless_lost(self._accepted)

    async def subscribe(self, topics: Sequence[str], check: Callable[[Sequence[ReasonCode]], None]) -> None:
        """With QoS 1. ``check`` gets the broker's word on each topic, and raises what ends the connection.

        A broker may send all that has waited for the session before it answers: when that fills the inbox, the
        answer is checked when it comes.
        """
        assert self._client is not None
        answer: asyncio.Future[Sequence[ReasonCode]] = self._loop.create_future()
        if self._is_5:
            # Subscribing again would bring all retained messages again.
            how = SubscribeOptions(
                qos=1, retainAsPublished=True, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            _, number = self._client.subscribe([(topic, how) for topic in topics])
        else:
            _, number = self._client.subscribe([(topic, 1) for topic in topics])
        if number is not None:  # None: the connection was lost
            self._granted[number] = answer
        answer.add_done_callback(partial(self._check, check))
        waited: set[asyncio.Future[Any]] = {answer, self._lost, self._full}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        # What had arrived before the end is taken first.
        if self.inbox.failure is not None and not self.inbox:
            raise self.inbox.failure

    def _check(
        self, check: Callable[[Sequence[ReasonCode]], None], answer: asyncio.Future[Sequence[ReasonCode]]
    ) -> None:
        try:
            check(answer.result())
        except FeedqError as error:
            self._end(error)

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Nothing waits for the answer."""
        assert self._client is not None
        if topics:
            self._client.unsubscribe(list(topics))

    def acknowledge(self, number: int) -> None:
        """Once the connection is lost this does nothing: the broker sends the message again."""
        if not self.is_lost and self._client is not None:
            self._client.ack(number, 1)
            self._unsent += 1
            if self._unsent > UNSENT_ACKNOWLEDGEMENTS_MAX:
                self._end(
                    SourceUnavailable(f"{self._where}: does not read what its messages are answered with")
                )

    def pause(self) -> None:
        """Read nothing more."""
        if not self._paused and not self.is_lost:
            self._paused = True
            self._loop.remove_reader(self._socket.fileno())

    async def until(self, event: asyncio.Future[None], *, at_most_s: float) -> None:
        """Return when it has come, or the connection has ended, or the time is over."""
        await asyncio.wait([event, self._lost], timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)

    def close(self) -> None:
        """Take leave of the broker, if it takes it at once, and cut the connection. May be repeated."""
        if not self.is_lost and self._client is not None:
            self._client.disconnect()
            self._write()
        self._end(SourceUnavailable(f"{self._where}: closed"))

    async def _unless_lost(self, answer: asyncio.Future[Answer]) -> Answer:
        waited: set[asyncio.Future[Any]] = {answer, self._lost}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            assert self.inbox.failure is not None
            raise self.inbox.failure
        return answer.result()

    # -- the loop's side -----------------------------------------------------------------------------------

    def _hook_up(self, client: _Client) -> None:
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_socket_open = self._on_socket_open
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_write_wanted
        client.on_socket_unregister_write = self._on_written

    def _read(self) -> None:
        """Everything that is there, up to a bound."""
        assert self._client is not None
        began = perf_counter()
        for _ in range(PACKETS_AT_ONCE):
            if self.is_lost or self._paused:
                return
            self._socket.is_dry = False
            self._step(self._client.loop_read)
            assert self._socket.gate is not None
            if self._socket.gate.refusal is not None:
                self._refuse(self._socket.gate.refusal)
                return
            if self._socket.heard:
                self._socket.heard = False
                self._heard_at = self._loop.time()
            if self._socket.is_dry:
                return
            if self.inbox.is_full:
                self.pause()
                if not self._full.done():
                    self._full.set_result(None)
            if perf_counter() - began >= TURN_S:
                break
        # What was read ahead does not make the socket readable again.
        self._loop.call_soon(self._read)

    def _refuse(self, refusal: PacketRefusal) -> None:
        """Nothing more is read; what was read before is taken first, and can be acknowledged."""
        if not refusal.payload_bytes or not self._accepted.done():
            why = refusal.why or "it sent a message before it accepted us"
            self._end(SourceUnavailable(f"{self._where}: {why}, against the rules of MQTT; is it a broker?"))
            return
        self.pause()
        if not self._full.done():
            self._full.set_result(None)
        last = Message(0, "", b"", False, left_out_bytes=refusal.payload_bytes)
        self.inbox.put(last, size=last.size)

    def _write(self) -> None:
        assert self._client is not None
        if not self.is_lost:
            self._step(self._client.loop_write)

    def _resume(self) -> None:
        is_over = self._socket.gate is not None and self._socket.gate.refusal is not None
        if self._paused and not self.is_lost and not is_over:
            self._paused = False
            # While reading was paused it was we who did not listen.
            self._heard_at = self._loop.time()
            self._loop.add_reader(self._socket.fileno(), self._read)
            self._loop.call_soon(self._read)

    def _tick(self) -> None:
        if self.is_lost:
            return
        if not self._paused:
            assert self._client is not None
            if self._idle_timeout_s and self._loop.time() - self._heard_at >= self._idle_timeout_s:
                self._end(self._silent())
                return
            self._step(self._client.loop_misc)
        self._timer = self._loop.call_later(min(TICK_S, self._idle_timeout_s / 4 or TICK_S), self._tick)

    def _step(self, step: Callable[[], MQTTErrorCode]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a packet that paho cannot parse raises anything
            said = repr(error)[:SAID_CHARACTERS_MAX]
            self._end(SourceUnavailable(f"{self._where}: what the broker sent cannot be understood: {said}"))

    # -- paho's side ---------------------------------------------------------------------------------------

    def _on_socket_open(self, *_: Any) -> None:
        self._loop.add_reader(self._socket.fileno(), self._read)

    def _on_socket_close(self, *_: Any) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())

    def _on_write_wanted(self, *_: Any) -> None:
        # paho asks for it also when what it has just tried to write has ended the connection.
        if not self.is_lost and self._socket.fileno() >= 0:
            try:
                self._loop.add_writer(self._socket.fileno(), self._write)
            except RuntimeError:
                # uvloop has given up the socket for an error of it, and told nobody.
                self._end(explain(ConnectionResetError(), self._where))

    def _on_written(self, *_: Any) -> None:
        self._unsent = 0
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())

    def _on_connect(
        self, _: Client, __: Any, flags: ConnectFlags, reason: ReasonCode, ___: Properties | None
    ) -> None:
        if not self._accepted.done():
            self._accepted.set_result(Accepted(flags.session_present, reason))

    def _on_subscribe(
        self, _: Client, __: Any, number: int, granted: list[ReasonCode], ___: Properties | None
    ) -> None:
        answer = self._granted.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(granted)

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        kept = Message(
            message.mid,
            message.topic,
            bytes(message.payload),
            message.dup,
            message.retain,
            getattr(message.properties, "UserProperty", ()),
        )
        self.inbox.put(kept, size=kept.size)

    def _on_disconnect(
        self, _: Client, __: Any, flags: DisconnectFlags, reason: ReasonCode, ___: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._end(self._dismissed(reason))
        elif self._socket.error is not None:
            self._end(explain(self._socket.error, self._where))
        elif reason.getName() == "Keep alive timeout":
            self._end(self._silent())
        elif reason.getName() == "Protocol error":
            self._end(
                SourceUnavailable(f"{self._where}: the broker's answer breaks the rules of the protocol")
            )
        elif self._accepted.done():
            self._end(
                SourceUnavailable(
                    f"{self._where}: closed by the broker; does another client use the id {self._client_id}?"
                )
            )
        else:
            self._end(SourceUnavailable(f"{self._where}: closed by the broker before it answered"))

    def _dismissed(self, reason: ReasonCode) -> FeedqError:
        if reason.value == TAKEN_OVER:
            return SourceUnavailable(
                f"{self._where}: another client took over the session {self._client_id}; if that was not this "
                "feed on another worker, give it an id of its own (source.client_id)"
            )
        return SourceUnavailable(f"{self._where}: closed by the broker: {str(reason).lower()}")

    def _silent(self) -> SourceSilent:
        return SourceSilent(
            f"{self._where}: connected, but nothing received, not even the answer to a ping, for "
            f"{self._idle_timeout_s:g} s (source.idle_timeout_s)"
        )

    def _end(self, failure: FeedqError) -> None:
        if self._lost.done():
            return
        self._lost.set_result(None)
        self.inbox.fail(failure)
        if self._timer is not None:
            self._timer.cancel()
        for unregister in (self._loop.remove_reader, self._loop.remove_writer):
            if self._socket.fileno() >= 0:
                with suppress(RuntimeError):
                    unregister(self._socket.fileno())
        self._dialed.guarded.cut()
        self._socket.close()


class _Client(Client):
    """paho's client over a socket that is connected already."""

    def __init__(self, sock: ReadAhead, **how: Any) -> None:
        super().__init__(**how)
        self._connected_socket = sock

    def _create_socket(self) -> Any:
        return self._connected_socket


def _terms(login: MqttLogin) -> dict[str, Any]:
    """What MQTT 5 lets a client ask for when it connects."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho's own
    properties.SessionExpiryInterval = login.session_expiry_s
    properties.ReceiveMaximum = login.max_unacknowledged
    return {"clean_start": not login.keep_session, "properties": properties}
