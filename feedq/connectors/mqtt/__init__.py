"""The ``mqtt`` connector; `feedq.connectors.mqtt.connector` says what it does."""

from feedq.connectors.mqtt.connector import MqttConnector

__all__ = ["MqttConnector"]
