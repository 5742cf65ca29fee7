"""`ConnectorDriver`, the feed's side of a connector: it connects, takes batches, checks them, and commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from math import inf
from traceback import format_exception
from typing import Any

import msgspec

from feedq.connectors.base import Connector, Context
from feedq.connectors.blocking import open_stream
from feedq.core.clock import SystemClock
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.records.batch import Batch
from feedq.testing.loopback import PATIENCE_S, RecordingGuard

SECRET = "conformance-s3cret"  # noqa: S105 - planted, to be looked for where it must not be
RECONNECTS_MAX = 100


class ConnectorDriver:
    """Plays a feed under a connector, over as many connections as it takes.

    Any field of `Context` may be given: ``room``, ``trial``, the ``secrets`` if they are to have other values than
    `SECRET`; to play another worker that takes over, clear ``context.memory``.
    """

    def __init__(
        self, kind: type[Connector], source: Mapping[str, Any], *, cursor: JSON = None, **context: Any
    ) -> None:
        self.kind = kind
        self.options = kind.Options.model_validate(dict(source))
        self.cursor = cursor
        self.guard: RecordingGuard = context.pop("guard", None) or RecordingGuard()
        self.batches: list[Batch] = []
        self.records: list[bytes] = []
        """Everything that was taken, in order."""
        self.connected = 0
        self.waiting: list[str] = []
        """What the connector reported that it waits for."""
        self.noticed: list[tuple[str, str | None]] = []
        """What it found odd."""
        usual = Context(
            feed="conformance/feed",
            clock=SystemClock(),
            guard=self.guard,
            on_connected=self._connected,
            on_waiting=self.waiting.append,
            on_notice=lambda key, said: self.noticed.append((key, said)),
            secrets=dict.fromkeys(self.options.secrets, SECRET),
            environment="conformance",
        )
        self.context = replace(usual, **context)
        self._started_at = SystemClock().now()
        self._loop_thread = threading.get_ident()

    def open(self) -> AsyncGenerator[Batch, None]:
        """A connection attempt that resumes after what has landed."""
        return open_stream(self.kind, self.options, context=self.context, cursor=self.cursor)

    async def pull(
        self, stream: AsyncGenerator[Batch, None], *, count: float = inf, commit: bool = True
    ) -> None:
        """Take batches, and commit them, until ``count`` records are here."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.records) < count:
                batch = await anext(stream)
                self.take(batch)
                if commit:
                    self.commit(batch)

    async def read(self, *, count: float = inf) -> FeedqError | None:
        """Connect once, and pull until ``count`` records are here; the error if the connection ended before."""
        try:
            async with aclosing(self.open()) as stream:
                await self.pull(stream, count=count)
        except StopAsyncIteration:
            return SourceUnavailable("the source ended the stream")
        except (SourceUnavailable, FeedMisconfigured) as error:
            told = "".join(format_exception(error)) + repr(error)
            assert not any(secret in told for secret in self.context.secrets.values()), (
                "an error contains a secret"
            )
            return error
        return None

    async def land(self, count: int) -> int:
        """Connect again and again until ``count`` different records are here; the connections that it took."""
        for connections in range(RECONNECTS_MAX):
            missing = count - len(set(self.records))
            if missing <= 0:
                return connections
            error = await self.read(count=len(self.records) + missing)
            assert error is None or isinstance(error, SourceUnavailable), f"only an edit can fix it: {error}"
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
        assert self._started_at <= batch.received_at <= SystemClock().now()
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
