"""The ``websocket`` connector; `feedq.connectors.websocket.connector` says what it does."""

from feedq.connectors.websocket.connector import WebsocketConnector

__all__ = ["WebsocketConnector"]
