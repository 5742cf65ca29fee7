"""Feeds of one connector against scripted sources on the loopback interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from feedq.connectors.base import Connector
from feedq.core.model import JSON
from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedqError
from feedq.records.batch import Batch
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import RecordingGuard

__all__ = ["Feed", "assert_told", "records_of", "unanswering", "until_closed"]


def assert_told(error: BaseException | None, kind: type[Exception], words: str) -> None:
    """An attempt has ended with an error of just this kind, which has these words."""
    assert type(error) is kind, error
    assert words in str(error)


@dataclass
class Feed:
    """One feed, whose options are given anew for each attempt."""

    kind: type[Connector]
    secrets: Mapping[str, str] = field(default_factory=dict)
    permissions: Permissions = DEFAULT
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    drivers: list[ConnectorDriver] = field(default_factory=list)

    @property
    def connected(self) -> int:
        return sum(driver.connected for driver in self.drivers)

    def driver(self, url: str, *, after: JSON = None, **source: Any) -> ConnectorDriver:
        references = {name: "${env:" + name.upper() + "}" for name in self.secrets}
        driver = ConnectorDriver(
            self.kind,
            {"url": url, "secrets": references, **source},
            feed="acme/orders",
            permissions=self.permissions,
            cursor=after,
            secrets=self.secrets,
            guard=self.guard,
        )
        self.drivers.append(driver)
        return driver

    def open(self, url: str, *, after: JSON = None, **source: Any) -> AsyncGenerator[Batch, None]:
        return self.driver(url, after=after, **source).open()

    async def read_to_end(
        self, url: str, *, after: JSON = None, **source: Any
    ) -> tuple[list[Batch], FeedqError]:
        """All batches of one attempt, and the error that ended it."""
        driver = self.driver(url, after=after, **source)
        error = await driver.read()
        assert error is not None
        assert not self.guard.watched
        return driver.batches, error

    async def take(self, count: int, url: str, *, after: JSON = None, **source: Any) -> list[Batch]:
        """The first batches with at least so many records."""
        driver = self.driver(url, after=after, **source)
        assert await driver.read(count=count) is None
        assert not self.guard.watched
        return driver.batches


def records_of(batches: list[Batch]) -> list[bytes]:
    return [record for batch in batches for record in batch.split()]


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Return when the connector's end of the connection is gone."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        return


@contextmanager
def unanswering() -> Iterator[str]:
    """``host:port`` of a server so busy that attempts to connect get no answer at all."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Whoever waits to be accepted fills the queue; the kernel drops what comes after.
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
