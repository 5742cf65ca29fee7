"""The other end of MQTT for the tests: a broker from Debian, a client written by hand, and a tap on the line."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from feedq.testing.loopback import PATIENCE_S, Relay
from tests.contract.mqtt_packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    FOR_EVER,
    PUBACK,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    Packets,
    packet,
    text,
)
from tests.peers.servers import PeerServer


def mosquitto(directory: Path, *lines: str, port: int | None = None) -> PeerServer:
    """With room for whatever a test sends while nobody listens; ``lines`` go into its configuration."""
    base = ["max_queued_messages 0", "max_inflight_messages 20", "user root", "listener {port} 127.0.0.1"]
    if not any(line.startswith(("password_file", "allow_anonymous")) for line in lines):
        base.append("allow_anonymous true")
    server = PeerServer("mosquitto", "-c", "{directory}/mosquitto.conf", directory=directory, port=port)
    text = "\n".join([*base, *lines, ""]).replace("{port}", str(server.port))
    (directory / "mosquitto.conf").write_text(text)
    return server


class HandMadeClient:
    """Speaks as much of MQTT as a publisher needs, and sets up sessions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_5: bool) -> None:
        self._reader, self._writer, self._is_5 = reader, writer, is_5
        self._packets = Packets()
        self._arrived: list[tuple[int, int, bytes]] = []
        self._number = 0

    @classmethod
    async def connect(
        cls, port: int, client_id: str, *, is_5: bool = False, keep: bool = False
    ) -> HandMadeClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port), is_5=is_5)
        head = text("MQTT") + bytes([5 if is_5 else 4, 0 if keep else 2]) + struct.pack("!H", 0)
        if is_5:
            properties = b"\x11" + struct.pack("!I", FOR_EVER) if keep else b""
            head += bytes([len(properties)]) + properties
        client._send(packet(CONNECT, head + text(client_id)))
        answer = await client.receive(CONNACK)
        assert answer[1] == 0, answer
        return client

    async def subscribe(self, *topics: str, qos: int = 1) -> None:
        body = b"\0\1" + (b"\0" if self._is_5 else b"")
        self._send(
            packet(SUBSCRIBE, body + b"".join(text(topic) + bytes([qos]) for topic in topics), flags=2)
        )
        assert max((await self.receive(SUBACK))[-len(topics) :]) < 0x80

    async def publish(
        self, topic: str, payloads: Sequence[bytes], *, qos: int = 1, retain: bool = False
    ) -> None:
        """Return when the broker has all of them."""
        for start in range(0, len(payloads), 100):
            some = payloads[start : start + 100]
            for payload in some:
                self._number = self._number % 65_535 + 1
                number = struct.pack("!H", self._number) if qos else b""
                body = text(topic) + number + (b"\0" if self._is_5 else b"") + payload
                self._send(packet(PUBLISH, body, flags=qos << 1 | retain))
            await self._writer.drain()
            for _ in some if qos else ():
                await self.receive(PUBACK)

    async def receive(self, kind: int) -> bytes:
        """The next packet of a kind; others are passed over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                while self._arrived:
                    got, _, body = self._arrived.pop(0)
                    if got == kind:
                        return body
                data = await self._reader.read(65_536)
                assert data, "the broker ended the connection"
                self._arrived += self._packets.push(data)

    def close(self) -> None:
        if not self._writer.is_closing():
            self._send(packet(DISCONNECT, b""))
            self._writer.close()

    def _send(self, data: bytes) -> None:
        self._writer.write(data)


async def make_session(port: int, client_id: str, *topics: str, is_5: bool) -> None:
    """As if the feed had been there before: from now on the broker keeps messages for it."""
    client = await HandMadeClient.connect(port, client_id, is_5=is_5, keep=True)
    await client.subscribe(*topics)
    client.close()


async def drop_session(port: int, client_id: str) -> None:
    client = await HandMadeClient.connect(port, client_id)
    client.close()


class Tap(Relay):
    """Stands between a connector and its broker, and keeps what is acknowledged and sent."""

    def __init__(self, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self.acknowledged: list[int] = []
        """Packet identifiers, in the order in which the connector acknowledged them."""
        self.sent: list[tuple[int, bool]] = []
        """Packet identifiers of the messages that the broker sent, and whether they were flagged as duplicates."""

    @property
    def port(self) -> int:
        return int(self.where.rpartition(":")[2])

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Tap]:
        async with super().listening():
            yield self

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = Packets()
        while data := await reader.read(65_536):
            for kind, _, body in packets.push(data):
                if kind == PUBACK:
                    self.acknowledged.append(struct.unpack("!H", body[:2])[0])
            writer.write(data)
            await writer.drain()

    async def _pass_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = Packets()
        writer.transport.set_write_buffer_limits(high=65_536)
        while data := await reader.read(65_536):
            for kind, flags, body in packets.push(data):
                if kind == PUBLISH and flags & 0x06:
                    after = 2 + struct.unpack("!H", body[:2])[0]
                    number = struct.unpack("!H", body[after : after + 2])[0]
                    self.sent.append((number, bool(flags & 0x08)))
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
