"""The ``redis`` connector; `feedq.connectors.redis.connector` says what it does."""

from feedq.connectors.redis.connector import RedisConnector

__all__ = ["RedisConnector"]
