"""The mqtt connector does what every connector must, with a scripted broker; `tests/peers` has a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from feedq.connectors.mqtt import MqttConnector
from feedq.testing.connector_conformance import ConnectorConformance, Served
from tests.contract.mqtt_broker import ScriptedBroker


class MqttConformance(ConnectorConformance):
    """With one session, in which the messages wait for the feed."""

    kind = MqttConnector
    resumes = False
    acknowledges = True
    version: ClassVar[str]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        async with ScriptedBroker(is_5=self.version == "5").listening() as broker:

            async def acknowledged() -> int:
                return len(broker.acknowledged)

            yield Served(f"127.0.0.1:{broker.port}", broker.publish, acknowledged)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"mqtt://{where}",
            "topics": ["t/#"],
            "version": self.version,
            "username": "conformance",
            "password": "{password}",
            "secrets": {"password": "${env:MQTT_PASSWORD}"},
        }


class TestMqtt5(MqttConformance):
    """MQTT 5."""

    version = "5"


class TestMqtt311(MqttConformance):
    """MQTT 3.1.1."""

    version = "3.1.1"
