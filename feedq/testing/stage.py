"""What the conformance tests of connectors are built from: a source served, the feed's side of it, both loops.

No pytest here: see `feedq.testing.connector_conformance` for the tests and for how to use them.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final

import orjson
import uvloop

from feedq.connectors.base import Connector, Context, open_stream
from feedq.core.clock import SystemClock
from feedq.core.model import JSON, Batch
from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.testing.loopback import PATIENCE_S, RecordingGuard, Relay, run_on

SECRET = "conformance-s3cret"  # noqa: S105 - planted, to be looked for where it must not be
RECONNECTS_MAX = 100


@dataclass
class ConnectorDriver:
    """Plays a feed under a connector, over as many connections as it takes."""

    kind: type[Connector]
    source: Mapping[str, Any]
    feed: str = "conformance/feed"
    permissions: Permissions = DEFAULT
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    batches: list[Batch] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """Everything that was taken, in order."""
    connected: int = 0
    waiting: list[str] = field(default_factory=list)
    """What the connector said that it waits for."""
    noticed: list[tuple[str, str]] = field(default_factory=list)
    """What it found odd."""
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
            on_waiting=self.waiting.append,
            on_notice=lambda key, said: self.noticed.append((key, said)),
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
        """Connect once, take batches until there is ``enough`` or it ends, and return the error that ended it."""
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


STOP_S: Final = 1.0
"""A connector has this long to end: a worker that leaves gives its feeds little more."""
MOMENT_S: Final = 0.1
"""How long a test watches that nothing happens."""

Main = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Main], None]
Body = Callable[[Any], Coroutine[Any, Any, None]]


async def _untold() -> int:
    raise AssertionError("the source of a connector that acknowledges needs Served.acknowledged")


@dataclass(frozen=True, slots=True)
class Served:
    """A scripted source that is up."""

    where: str
    """``host:port`` of a server; what ``options`` understands for a connector that dials nobody."""
    send: Callable[[Sequence[bytes]], Awaitable[None]]
    """Add records to the source."""
    acknowledged: Callable[[], Awaitable[int]] = _untold
    """How many records the connector has acknowledged so far."""


def behaviour(*needs: str) -> Callable[[Body], Callable[[Any, Run], None]]:
    """A test that connectors with these properties are put through; for the others it is there by name only."""

    def wrap(body: Body) -> Callable[[Any, Run], None]:
        def test(self: Any, run: Run) -> None:
            run(partial(body, self))

        test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
        test.needs = needs  # type: ignore[attr-defined] # for `ConnectorConformance.pytest_generate_tests`
        return test

    return wrap


def leave_out(_: Main) -> None:
    """Stands in place of a loop; the name of the test says why."""


def _on_a_new_loop(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Main) -> None:
    run_on(loop_factory, main())


LOOPS: Final[dict[str, Run]] = {
    "asyncio": partial(_on_a_new_loop, asyncio.new_event_loop),
    "uvloop": partial(_on_a_new_loop, uvloop.new_event_loop),
}


class Stage:
    """A connector with its source, and the steps that the tests are made of."""

    kind: ClassVar[type[Connector]]
    dials: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    acknowledges: ClassVar[bool] = False
    answers: ClassVar[bool] = True
    holds_back: ClassVar[bool] = True
    limits_records: ClassVar[bool] = True
    notices_silence: ClassVar[bool] = True

    feed = "conformance/feed"

    def serve(self) -> AbstractAsyncContextManager[Served]:
        """Start an empty source."""
        raise NotImplementedError

    def options(self, where: str) -> dict[str, Any]:
        """A feed's ``source`` for it."""
        raise NotImplementedError

    def record(self, seq: int, *, size: int = 0) -> bytes:
        """A record, no two of one test alike; of ``size`` bytes if that is not 0."""
        head = b'{"seq": %d, "pad": "' % seq
        return head + b"x" * (size - len(head) - 2) + b'"}'

    def landed(self, record: bytes) -> bytes:
        """What lands of a record that was sent, if it is not the same."""
        return record

    # -- steps -----------------------------------------------------------------------------------------

    def records(self, count: int) -> list[bytes]:
        return [self.record(seq) for seq in range(1, count + 1)]

    def driver(self, where: str, *, permissions: Permissions = DEFAULT, **options: Any) -> ConnectorDriver:
        source = {**self.options(where), **options}
        return ConnectorDriver(self.kind, source, feed=self.feed, permissions=permissions)

    @asynccontextmanager
    async def relayed(self) -> AsyncIterator[tuple[Served, Relay]]:
        """A source, and the relay before it."""
        self.feed = f"conformance/{uuid.uuid4().hex[:8]}"
        async with self.serve() as source, Relay(source.where).listening() as relay:
            yield source, relay

    @asynccontextmanager
    async def reachable(self) -> AsyncIterator[tuple[Served, str]]:
        """A source, and where to reach it."""
        if self.dials:
            async with self.relayed() as (source, relay):
                yield source, relay.where
        else:
            self.feed = f"conformance/{uuid.uuid4().hex[:8]}"
            async with self.serve() as source:
                yield source, source.where

    @asynccontextmanager
    async def waiting(self, where: str, source: Served) -> AsyncIterator[WaitingRead]:
        """A connector that has given one record and waits for the next one."""
        driver = self.driver(where)
        async with aclosing(driver.open()) as stream:
            await source.send(self.records(1))
            await pull(driver, stream, count=1)
            async with asking(stream) as task:
                await asyncio.sleep(MOMENT_S)
                assert not task.done(), "it did not wait for the next record"
                yield WaitingRead(driver, task)

    def assert_over(self, driver: ConnectorDriver, *, connected: int) -> None:
        """No socket is left, and it said as often as this that it was connected."""
        assert driver.guard.faults == []
        assert not driver.guard.watched, "a socket was not forgotten"
        assert bool(driver.guard.seen) >= bool(connected and self.dials), "the guard saw no socket"
        assert driver.connected == connected

    def assert_landed(self, driver: ConnectorDriver, sent: Sequence[bytes]) -> None:
        """All of it, in order; once, if the connector resumes or one connection was enough."""
        expected = [self.landed(record) for record in sent]
        if self.acknowledges and not self.resumes:
            # Sent again is what was not acknowledged yet: the first of each counts.
            assert list(dict.fromkeys(driver.records)) == expected
        else:
            assert driver.records == expected


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """See `Stage.waiting`."""

    driver: ConnectorDriver
    next_batch: asyncio.Future[Batch]

    async def ended(self) -> FeedqError | None:
        """The error that ends the waiting; None if the stream just ends."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self.next_batch])
        error = self.next_batch.exception()
        if isinstance(error, StopAsyncIteration):
            return None
        assert isinstance(error, FeedqError), f"ended with {error!r}"
        return error


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


async def stop(task: asyncio.Future[Any], *, cancel: bool = True) -> None:
    """A task that is cancelled, or is ending already, ends in time; at worst with an error of the source."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    if cancel:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([task])
    assert loop.time() - began < STOP_S, "took too long to stop"
    error = None if task.cancelled() else task.exception()
    assert error is None or isinstance(error, SourceUnavailable), f"stopped with {error!r}"


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
            task.exception()  # or the loop says that nobody asked for it
