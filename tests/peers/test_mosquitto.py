"""The mqtt connector against mosquitto: what is acknowledged and when, what comes again, and what it says."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from feedq.connectors.messages import name_at_source
from feedq.connectors.mqtt import MqttConnector
from feedq.errors import SourceUnavailable
from feedq.telemetry.logs import LogEvent
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, Relay, until
from tests.contract.erratic import SHORT_LIVES, ErraticWorker, reading
from tests.contract.mqtt_broker import (
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
from tests.peers.servers import PeerServer, program

FEED = "acme/orders"

CLIENT_ID = name_at_source("conformance", FEED)


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def broker(peer_dir: Path) -> Iterator[PeerServer]:
    with mosquitto(peer_dir) as server:
        yield server


def driver_of(
    port: int, *topics: str, scheme: str = "mqtt", host: str = "127.0.0.1", **options: Any
) -> ConnectorDriver:
    source = {"url": f"{scheme}://{host}:{port}", "topics": topics or ["t/#"], **options}
    return ConnectorDriver(MqttConnector, source, feed=FEED)


@asynccontextmanager
async def tapped(broker: PeerServer) -> AsyncIterator[tuple[Tap, HandMadeClient]]:
    publisher = await HandMadeClient.connect(broker.port, "publisher")
    try:
        async with Tap(broker.port).listening() as tap:
            yield tap, publisher
    finally:
        publisher.close()


def numbered(count: int) -> list[bytes]:
    return [b'{"seq": %d}' % seq for seq in range(count)]


# -- acknowledging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_a_worker_that_dies_at_any_moment_loses_nothing(
    broker: PeerServer, version: str, seed: int
) -> None:
    sent = numbered(1_000)

    await make_session(broker.port, CLIENT_ID, "t/#", is_5=version == "5")
    async with tapped(broker) as (tap, publisher), Relay(f"127.0.0.1:{tap.port}").listening() as relay:
        await publisher.publish("t/a", sent)
        _, _, port = relay.where.rpartition(":")
        driver = driver_of(int(port), version=version, max_unacknowledged=20)
        worker = ErraticWorker(driver, relay, seed=seed)
        await worker.land(len(sent))
        assert list(dict.fromkeys(worker.landed)) == sent
        assert worker.lives > SHORT_LIVES


async def test_a_feed_that_stops_waits_for_its_last_commit(broker: PeerServer, version: str) -> None:
    async with tapped(broker) as (tap, publisher):
        driver = driver_of(tap.port, version=version)
        stream = driver.open()
        taking = asyncio.ensure_future(driver.pull(stream, count=1, commit=False))
        await until(lambda: driver.connected == 1)
        await publisher.publish("t/a", [b"1"])
        await taking
        # The writer's interval is a quarter of a second.
        asyncio.get_running_loop().call_later(0.25, driver.commit, driver.batches[0])
        await stream.aclose()
        await until(lambda: len(tap.acknowledged) == 1)
        async with reading(driver, 1):
            await publisher.publish("t/a", [b"2"])
        assert driver.records == [b"1", b"2"]


async def test_no_more_comes_than_may_be_unacknowledged(broker: PeerServer, version: str) -> None:
    # The limit of 3.1.1 is the broker's own.
    limit = 50 if version == "5" else 20

    await make_session(broker.port, CLIENT_ID, "t/#", is_5=version == "5")
    async with tapped(broker) as (tap, publisher):
        await publisher.publish("t/a", numbered(500))
        driver = driver_of(tap.port, version=version, max_unacknowledged=50)
        async with aclosing(driver.open()) as stream:
            await driver.pull(stream, count=limit, commit=False)
            # To see that nothing happens takes a moment.
            await asyncio.sleep(0.2)
            assert len(tap.sent) == limit
            for batch in driver.batches:
                driver.commit(batch)
            await driver.pull(stream, count=500)
        assert driver.records == numbered(500)


# -- the session ---------------------------------------------------------------------------------------------


async def test_what_comes_while_the_broker_or_the_feed_is_away_is_not_lost(
    peer_dir: Path, version: str
) -> None:
    broker = mosquitto(peer_dir, "persistence true", f"persistence_location {peer_dir}/")

    with broker:
        driver = driver_of(broker.port, version=version)
        async with tapped(broker) as (_, publisher):
            async with reading(driver, 1) as task:
                await publisher.publish("t/a", [b"1"])
                await task
                await publisher.publish("t/a", [b"2"])
            await publisher.publish("t/a", [b"3"])
        await asyncio.to_thread(broker.stop)
        assert isinstance(await driver.read(), SourceUnavailable)
        await asyncio.to_thread(broker.start)
        with capture_logs() as logs:
            await driver.land(3)
        assert driver.records == [b"1", b"2", b"3"]
        assert not [line for line in logs if line["event"] == LogEvent.SOURCE_GAP]


async def test_a_session_that_the_broker_has_lost_is_told(broker: PeerServer, version: str) -> None:
    driver = driver_of(broker.port, version=version)
    with capture_logs() as logs:
        async with tapped(broker) as (_, publisher), reading(driver, 1):
            await publisher.publish("t/a", [b"1"])
        assert not [line for line in logs if line["event"] == LogEvent.SOURCE_GAP]
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)  # without persistence
        async with tapped(broker) as (_, publisher), reading(driver, 1):
            await publisher.publish("t/a", [b"2"])
    (gap,) = [line for line in logs if line["event"] == LogEvent.SOURCE_GAP]
    assert CLIENT_ID in gap["detail"]


async def test_a_topic_taken_out_of_the_feed_is_unsubscribed(broker: PeerServer, version: str) -> None:
    before = driver_of(broker.port, "a", "b", version=version)
    after = driver_of(broker.port, "b", "c", version=version)
    async with tapped(broker) as (_, publisher):
        async with reading(before, 1):
            await publisher.publish("a", [b"1"])
        after.cursor = before.cursor
        async with reading(after, 2):
            for topic in ("a", "b", "c"):
                await publisher.publish(topic, [topic.encode()])
        assert after.records == [b"b", b"c"]


async def test_another_client_that_takes_the_session_over_is_told(broker: PeerServer, version: str) -> None:
    driver = driver_of(broker.port, version=version)
    async with aclosing(driver.open()) as stream:
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: driver.connected == 1)
        intruder = await HandMadeClient.connect(broker.port, CLIENT_ID, is_5=version == "5")
        await asyncio.wait([first])
        intruder.close()
        with pytest.raises(SourceUnavailable, match=f"another client use the id {CLIENT_ID}"):
            first.result()


async def test_a_trial_neither_disturbs_the_feed_nor_leaves_anything(
    broker: PeerServer, version: str
) -> None:
    feed, trial = (driver_of(broker.port, version=version) for _ in range(2))
    trial.context = replace(trial.context, trial=True)
    async with tapped(broker) as (_, publisher), reading(feed, 1), reading(trial, 1):
        await publisher.publish("t/a", [b"1"])
    assert trial.batches[0].on_committed is None
    assert feed.records == trial.records == [b"1"]


# -- records -------------------------------------------------------------------------------------------------


async def test_properties_of_a_message_are_in_its_envelope(broker: PeerServer) -> None:
    driver = driver_of(broker.port, envelope=True)
    async with reading(driver, 1):
        how = [
            "-V",
            "5",
            "-q",
            "1",
            "-t",
            "t/a",
            "-m",
            "{}",
            "-D",
            "publish",
            "user-property",
            "unit",
            "°C",
        ]
        command = [program("mosquitto_pub"), "-p", str(broker.port), *how]
        await asyncio.to_thread(subprocess.run, command, check=True)
    assert driver.records == ['{"topic":"t/a","retain":false,"properties":{"unit":"°C"},"data":{}}'.encode()]


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[PeerServer]:
    with tempfile.TemporaryDirectory(prefix="feedq-peer-") as directory, mosquitto(Path(directory)) as server:
        yield server


class MqttConformance(ConnectorConformance):
    """With a topic and a session of its own for each test."""

    kind = MqttConnector
    resumes = False
    acknowledges = True
    version: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _broker(self, shared_broker: PeerServer) -> None:
        self.broker = shared_broker

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        client_id = name_at_source("conformance", self.feed)
        await make_session(self.broker.port, client_id, self.feed, is_5=self.version == "5")
        publisher = await HandMadeClient.connect(self.broker.port, "publisher")
        try:
            async with Tap(self.broker.port).listening() as tap:

                async def send(records: Any) -> None:
                    await publisher.publish(self.feed, records)

                async def acknowledged() -> int:
                    return len(tap.acknowledged)

                yield Served(f"127.0.0.1:{tap.port}", send, acknowledged)
        finally:
            publisher.close()
            await drop_session(self.broker.port, client_id)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"mqtt://{where}",
            "topics": [self.feed],
            "version": self.version,
            "username": "conformance",
            "password": "{password}",
            "secrets": {"password": "${env:MQTT_PASSWORD}"},
        }


class TestMqtt5(MqttConformance):
    """MQTT 5."""

    version = "5"


class TestMqtt311(MqttConformance):
    """MQTT 3.1.1, where the broker lets twenty messages be unacknowledged."""

    version = "3.1.1"


# -- the broker, a client made by hand, and a tap on the line ----------------------------------------


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
