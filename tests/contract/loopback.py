"""The tcp connector on the loopback interface, with what a runner would give it.

The scripted sources, the guard and the loops are those of `feedq.testing.loopback`, for tests of any connector.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from feedq.connectors.base import Context
from feedq.connectors.tcp import TcpConnector, TcpOptions
from feedq.core.model import JSON, Batch
from feedq.errors import FeedqError
from feedq.secrets import resolve_secrets
from feedq.testing.loopback import (
    PATIENCE_S,
    RecordingGuard,
    Script,
    is_socket,
    reset,
    run_on,
    serving,
    until,
)
from tests.fakes.clock import ManualClock

__all__ = [
    "PATIENCE_S",
    "Harness",
    "RecordingGuard",
    "Script",
    "is_socket",
    "records_of",
    "reset",
    "run_on",
    "serving",
    "until",
    "until_closed",
]


@dataclass
class Harness:
    """One feed's side: its clock, its guard, and whether it was connected."""

    clock: ManualClock = field(default_factory=ManualClock)
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    def connector(self, url: str, **source: Any) -> TcpConnector:
        options = TcpOptions.model_validate({"url": url, **source})
        secrets = resolve_secrets(options.secrets)
        context = Context("acme/orders", self.clock, self.guard, self.connected.set, secrets)
        return TcpConnector(options, context)

    async def read_to_end(
        self, url: str, *, after: JSON = None, **source: Any
    ) -> tuple[list[Batch], FeedqError]:
        """All batches of one connection that resumes ``after`` a cursor, and the error that ended it."""
        batches: list[Batch] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for batch in self.connector(url, **source).stream(after):
                    batches.append(batch)
        except FeedqError as error:
            return batches, error
        raise AssertionError("a stream ended without an error")


def records_of(batches: list[Batch]) -> list[bytes]:
    return [record for batch in batches for record in batch.split()]


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Return when the connector's end of the connection is gone."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        return
