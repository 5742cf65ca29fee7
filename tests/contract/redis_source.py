"""A Redis server with streams for the tests: the embedded Valkey, and a user for the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedq.connectors.redis import RedisConnector
from feedq.local.valkey import Valkey
from feedq.telemetry.logs import LogEvent
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import Relay

DATABASE = 8


class Source:
    """A database of the server, with a user for the feed."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        # Its types leave open whether answers are decoded, and some commands without types.
        self.client: Any = server.client(DATABASE)
        self.client.flushdb()
        self.allow("+@all", "~*")

    def allow(self, *rules: str) -> None:
        self.client.acl_deluser("reader")
        self.client.execute_command("ACL", "SETUSER", "reader", "on", ">secret-of-reader", *rules)

    def add(self, stream: str, *records: bytes, **how: Any) -> list[bytes]:
        return [self.client.xadd(stream, {"data": record}, **how) for record in records]

    def driver(
        self, *streams: str, where: str = "", scheme: str = "redis", **options: Any
    ) -> ConnectorDriver:
        source = {
            "url": f"{scheme}://{where or f'127.0.0.1:{self.server.port}'}/{DATABASE}",
            "streams": streams,
            "field": "data",
            "username": "reader",
            "password": "secret-of-reader",
        }
        return ConnectorDriver(RedisConnector, {**source, **options})


@pytest.fixture
def source(valkey: Valkey) -> Iterator[Source]:
    made = Source(valkey)
    yield made
    made.client.close()


@asynccontextmanager
async def relayed(source: Source) -> AsyncIterator[Relay]:
    async with Relay(f"127.0.0.1:{source.server.port}").listening() as relay:
        yield relay


def gaps(logs: Any) -> list[str]:
    return [line["detail"] for line in logs if line["event"] == LogEvent.SOURCE_GAP]
