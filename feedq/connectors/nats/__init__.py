"""The ``nats`` connector; `feedq.connectors.nats.connector` says what it does."""

from feedq.connectors.nats.connector import NatsConnector

__all__ = ["NatsConnector"]
