"""The redis connector does what every connector must, against the embedded Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from feedq.connectors.redis import RedisConnector
from feedq.local.valkey import Valkey
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.stage import SECRET

DATABASE = 7


class RedisConformance(ConnectorConformance):
    """With a stream of its own for each test, on the server of the session."""

    kind = RedisConnector

    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey) -> None:
        self.server = valkey
        client = valkey.client(DATABASE)
        client.acl_setuser(
            "conformance", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all"]
        )
        client.close()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        client = Redis.from_url(self.server.url(DATABASE))
        try:
            yield Served(f"127.0.0.1:{self.server.port}", lambda records: self.add(client, records))
        finally:
            await client.delete(self.feed)
            await client.aclose()

    async def add(self, client: Redis, records: Sequence[bytes]) -> None:
        for start in range(0, len(records), 100):
            pipeline = client.pipeline(transaction=False)
            for record in records[start : start + 100]:
                pipeline.xadd(self.feed, {"source": "conformance", "data": record})
            await pipeline.execute()

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"redis://{where}/{DATABASE}",
            "streams": [self.feed],
            "field": "data",
            "username": "conformance",
            "password": "{password}",
            "secrets": {"password": "${env:REDIS_PASSWORD}"},
        }


class TestRedisField(RedisConformance):
    """A record is the value of one field."""


class TestRedisEntry(RedisConformance):
    """A record is the entry."""

    def options(self, where: str) -> dict[str, Any]:
        return {**super().options(where), "field": None}

    def landed(self, record: bytes) -> bytes:
        quoted = record.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        return b'{"source":"conformance","data":"' + quoted + b'"}'

    def record(self, seq: int, *, size: int = 0) -> bytes:
        # The limit counts the entry as it lands.
        around = len(self.landed(b""))
        return b"%06d" % seq + b"x" * (size - around - 6)
