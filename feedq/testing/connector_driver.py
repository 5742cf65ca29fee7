"""The feed's side of a connector under test: what a runner would give it, and do with what it yields."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from feedq.clock import SystemClock
from feedq.connectors.base import Connector, Context, open_stream
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.permission import DEFAULT, Permissions
from feedq.testing.loopback import PATIENCE_S, RecordingGuard

SECRET = "conformance-s3cret"  # noqa: S105 - planted, to be looked for where it must not be
RECONNECTS_MAX = 100


@dataclass
class ConnectorDriver:
    """One feed under one connector, over as many connections as it takes."""

    kind: type[Connector]
    source: Mapping[str, Any]
    feed: str = "conformance/feed"
    permissions: Permissions = DEFAULT
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    batches: list[Batch] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """Everything that was taken, in order."""
    connected: int = 0
    cursor: JSON = None
    trial: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    """As `Context.memory`; emptied, it is another worker that goes on."""
    started_at: datetime = field(default_factory=SystemClock().now)

    def __post_init__(self) -> None:
        self.options = self.kind.Options.model_validate(dict(self.source))
        self._loop_thread = threading.get_ident()
        self._distinct: set[bytes] = set()

    def open(self) -> AsyncGenerator[Batch, None]:
        """A connection attempt that resumes after what has landed."""
        context = Context(
            feed=self.feed,
            clock=SystemClock(),
            guard=self.guard,
            on_connected=self._connected,
            secrets=dict.fromkeys(self.options.secrets, SECRET),
            permissions=self.permissions,
            environment="conformance",
            trial=self.trial,
            memory=self.memory,
        )
        return open_stream(self.kind, self.options, context=context, cursor=self.cursor)

    async def read(
        self, *, enough: Callable[[], bool] = lambda: False, commit: bool = True
    ) -> FeedqError | None:
        """One connection: take batches until there is ``enough``, or until it ends; the error that ended it."""
        try:
            async with asyncio.timeout(PATIENCE_S), aclosing(self.open()) as stream:
                async for batch in stream:
                    self.take(batch)
                    if commit:
                        self.commit(batch)
                    if enough():
                        return None
        except (SourceUnavailable, FeedMisconfigured) as error:
            ended: FeedqError = error
        else:
            ended = SourceUnavailable("the source ended the stream")
        assert SECRET not in f"{ended} {ended!r}", "an error holds a secret"
        return ended

    async def land(self, count: int) -> int:
        """Connect again and again until ``count`` different records are here; the connections that it took."""
        for connection in range(1, RECONNECTS_MAX):
            error = await self.read(enough=lambda: len(self._distinct) >= count)
            if error is None:
                return connection
            assert isinstance(error, SourceUnavailable), f"trouble that only an edit can mend: {error}"
        raise AssertionError(f"{len(self._distinct)} of {count} records after {RECONNECTS_MAX} connections")

    def take(self, batch: Batch) -> None:
        """Keep a batch, if it is what one must be."""
        records = batch.split()
        assert records, "a batch without records"
        assert batch.count == len(records)
        if batch.lines is not None:
            assert batch.lines.endswith(b"\n")
            assert b"\r" not in batch.lines
            assert all(records), "an empty line; `Batch.of_records` takes those"
            assert batch.size == len(batch.lines)
        assert batch.received_at.tzinfo is not None
        assert self.started_at <= batch.received_at <= SystemClock().now()
        self.batches.append(batch)
        self.records += records
        self._distinct.update(records)

    def commit(self, batch: Batch) -> None:
        """What happens once the sink has committed a batch: its cursor is kept as JSON, and it is told so."""
        self.cursor = orjson.loads(orjson.dumps(batch.cursor))
        if batch.on_committed is not None:
            batch.on_committed()

    def _connected(self) -> None:
        assert threading.get_ident() == self._loop_thread, "on_connected was called on another thread"
        self.connected += 1
