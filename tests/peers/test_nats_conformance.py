"""The nats connector does what every connector must, against nats-server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from nats.js.api import RetentionPolicy

from feedq.connectors.nats import NatsConnector
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.driver import SECRET
from tests.peers.nats import acknowledged, nats_server, publish, publishing
from tests.peers.servers import PeerServer


@pytest.fixture(scope="module")
def server() -> Iterator[PeerServer]:
    with tempfile.TemporaryDirectory(prefix="feedq-peer-") as directory:
        users = [{"user": "feeds", "password": SECRET}]
        with nats_server(Path(directory), authorization={"users": users}) as started:
            yield started


class NatsConformance(ConnectorConformance):
    """With a stream of its own for each test."""

    kind = NatsConnector
    acknowledges = True
    retention: ClassVar[RetentionPolicy]

    @pytest.fixture(autouse=True)
    def _server(self, server: PeerServer) -> None:
        self.server = server

    @property
    def name(self) -> str:
        return self.feed.replace("/", "_")

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        async with publishing(self.server.port, user="feeds", password=SECRET) as (_, js):
            await js.add_stream(name=self.name, subjects=[self.name], retention=self.retention)
            try:
                yield Served(
                    f"127.0.0.1:{self.server.port}",
                    lambda records: publish(js, self.name, records),
                    lambda: acknowledged(js, self.name),
                )
            finally:
                await js.delete_stream(self.name)

    def cuts(self, down_bytes: int) -> Sequence[int]:
        """Some, drawn anew each time: with all that a server says before, each would take minutes."""
        seed = Random().randrange(10_000)
        print(f"seed {seed}")
        return Random(seed).sample(range(down_bytes + 1), 60)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"nats://{where}",
            "stream": self.name,
            "username": "feeds",
            "password": "{password}",
            "secrets": {"password": "${env:NATS_PASSWORD}"},
        }


class TestNatsLimits(NatsConformance):
    """A stream that keeps messages up to its limits."""

    retention = RetentionPolicy.LIMITS


class TestNatsWorkQueue(NatsConformance):
    """A stream that keeps messages until they are acknowledged."""

    retention = RetentionPolicy.WORK_QUEUE
    # From its cursor on it does, but not from one that is long passed: what was acknowledged is gone.
    resumes = False
