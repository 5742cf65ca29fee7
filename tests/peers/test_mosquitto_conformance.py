"""The mqtt connector does what every connector must, against mosquitto."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from feedq.connectors.messages import name_at_source
from feedq.connectors.mqtt import MqttConnector
from feedq.testing.connector_conformance import ConnectorConformance, Served
from tests.peers.mqtt import HandMadeClient, Tap, drop_session, make_session, mosquitto
from tests.peers.servers import PeerServer


@pytest.fixture(scope="module")
def broker() -> Iterator[PeerServer]:
    with tempfile.TemporaryDirectory(prefix="feedq-peer-") as directory, mosquitto(Path(directory)) as server:
        yield server


class MqttConformance(ConnectorConformance):
    """With a topic and a session of its own for each test."""

    kind = MqttConnector
    resumes = False
    acknowledges = True
    version: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _broker(self, broker: PeerServer) -> None:
        self.broker = broker

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
