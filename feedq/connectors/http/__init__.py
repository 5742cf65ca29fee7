"""The ``http`` connector; `feedq.connectors.http.connector` says what it does."""

from feedq.connectors.http.connector import HttpConnector

__all__ = ["HttpConnector"]
