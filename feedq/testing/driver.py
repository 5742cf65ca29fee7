"""`ConnectorDriver`, the feed's side of a connector: it connects, takes batches, checks them, and commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from feedq.connectors.base import BOUNDLESS, Connector, Context, Room
from feedq.connectors.blocking import open_stream
from feedq.core.clock import SystemClock
from feedq.core.model import JSON
from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.records.batch import Batch
from feedq.testing.loopback import PATIENCE_S, RecordingGuard

SECRET = "conformance-s3cret"  # noqa: S105 - planted, to be looked for where it must not be
RECONNECTS_MAX = 100


@dataclass
class ConnectorDriver:
    """Plays a feed under a connector, over as many connections as it takes."""

    kind: type[Connector]
    source: Mapping[str, Any]
    feed: str = "conformance/feed"
    permissions: Permissions = DEFAULT
    cursor: JSON = None
    trial: bool = False
    secrets: Mapping[str, str] | None = None
    """The values of the references; `SECRET` for each unless given."""
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    batches: list[Batch] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """Everything that was taken, in order."""
    connected: int = 0
    waiting: list[str] = field(default_factory=list)
    """What the connector reported that it waits for."""
    noticed: list[tuple[str, str | None]] = field(default_factory=list)
    """What it found odd."""
    memory: dict[str, Any] = field(default_factory=dict)
    """As `Context.memory`; clear it to play another worker that takes over."""
    room: Room = BOUNDLESS
    started_at: datetime = field(default_factory=SystemClock().now)

    def __post_init__(self) -> None:
        self.options = self.kind.Options.model_validate(dict(self.source))
        self._loop_thread = threading.get_ident()

    def open(self) -> AsyncGenerator[Batch, None]:
        """A connection attempt that resumes after what has landed."""
        planted = dict.fromkeys(self.options.secrets, SECRET)
        context = Context(
            feed=self.feed,
            clock=SystemClock(),
            guard=self.guard,
            on_connected=self._connected,
            on_waiting=self.waiting.append,
            on_notice=lambda key, said: self.noticed.append((key, said)),
            secrets=planted if self.secrets is None else self.secrets,
            permissions=self.permissions,
            environment="conformance",
            trial=self.trial,
            memory=self.memory,
            room=self.room,
        )
        return open_stream(self.kind, self.options, context=context, cursor=self.cursor)

    async def read(self, *, enough: Callable[[], bool] = lambda: False) -> FeedqError | None:
        """Connect once, and take and commit batches until there is ``enough``; the error if the connection ended
        before."""
        try:
            async with asyncio.timeout(PATIENCE_S), aclosing(self.open()) as stream:
                async for batch in stream:
                    self.take(batch)
                    self.commit(batch)
                    if enough():
                        return None
        except (SourceUnavailable, FeedMisconfigured) as error:
            ended: FeedqError = error
        else:
            ended = SourceUnavailable("the source ended the stream")
        cause: BaseException | None = ended
        while cause is not None:
            for secret in self.secrets.values() if self.secrets else [SECRET]:
                assert secret not in f"{cause} {cause!r}", "an error holds a secret"
            cause = cause.__cause__
        return ended

    async def land(self, count: int) -> int:
        """Connect again and again until ``count`` different records are here; the connections that it took."""
        for connection in range(1, RECONNECTS_MAX):
            error = await self.read(enough=lambda: len(set(self.records)) >= count)
            if error is None:
                return connection
            assert isinstance(error, SourceUnavailable), f"trouble that only an edit can mend: {error}"
        raise AssertionError(f"{len(self.records)} of {count} records after {RECONNECTS_MAX} connections")

    def take(self, batch: Batch) -> None:
        """Keep a batch, after checking that it is a proper one."""
        records = batch.split()
        assert records, "a batch without records"
        assert batch.count == len(records)
        if batch.lines is not None:
            assert batch.lines.endswith(b"\n")
            assert b"\r" not in batch.lines
            assert all(records), "an empty line; `Records.of` takes those"
            assert batch.size == len(batch.lines)
        assert self.started_at <= batch.received_at <= SystemClock().now()
        self.batches.append(batch)
        self.records += records

    def commit(self, batch: Batch) -> None:
        """What happens once the sink has committed a batch: its cursor is kept as JSON, and the batch is told."""
        self.cursor = msgspec.json.decode(msgspec.json.encode(batch.cursor))
        if batch.on_committed is not None:
            batch.on_committed()

    def _connected(self) -> None:
        assert threading.get_ident() == self._loop_thread, "on_connected was called on another thread"
        self.connected += 1


async def pull(
    driver: ConnectorDriver, stream: AsyncGenerator[Batch, None], *, count: int, commit: bool = True
) -> None:
    """Take batches until ``count`` records are here."""
    async with asyncio.timeout(PATIENCE_S):
        while len(driver.records) < count:
            batch = await anext(stream)
            driver.take(batch)
            if commit:
                driver.commit(batch)


@asynccontextmanager
async def asking(stream: AsyncGenerator[Batch, None]) -> AsyncIterator[asyncio.Future[Batch]]:
    """The next batch, asked for and not waited for; the stream can be closed afterwards."""
    task = asyncio.ensure_future(anext(stream))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # or the loop reports that nobody asked for it
