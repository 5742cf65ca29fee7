"""What every connector must do, as tests that you can put a connector of your own through.

Make a subclass in a test module of yours, and pytest runs the suite on uvloop, as workers do::

    class TestOrders(ConnectorConformance):
        kind = OrdersConnector

        async def script(
            self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            after = int(await reader.readline())           # the cursor, as this protocol asks for it
            await journal.send_all(writer, lambda seq, record: record + b"\\n", after=after)

        def options(self, where: str) -> dict[str, Any]:
            return {"url": f"tcp://{where}", "secrets": {"token": "${env:ORDERS_TOKEN}"}}

``script`` plays the source for one connection: it sends what is in the journal and what is added to it, and keeps
the connection open when there is nothing more. A source that is no scripted server overrides ``serve`` instead.
``options`` are those of a feed that connects to ``where``: the tests put a relay in between, which breaks the
connection at any byte, holds it up, and counts. References among the ``secrets`` are never resolved: each has a
planted value, and no error may hold it. Each test starts a new source; ``feed`` names the feed, for servers that
outlive a test.

Not every connector has every property. Class attributes say which one it lacks, and the tests of that property are
taken out of the subclass:

=================== ========== ==============================================================================
attribute           default    the connector …
=================== ========== ==============================================================================
``dials``           True       connects to ``where``, a ``host:port``; otherwise ``where`` is anything
``resumes``         True       resumes after the cursor of any batch: every record lands exactly once
``acknowledges``    False      acknowledges what was committed (`Batch.on_committed`), and the source sends
                               again what was not: every record lands at least once; needs
                               `Served.acknowledged`
``answers``         True       knows from an answer of the source that it was accepted
``limits_records``  True       has an option ``max_record_bytes``
``notices_silence`` True       has an option ``idle_timeout_s``
=================== ========== ==============================================================================

`behaviour` makes tests of your own in such a class run in the same way.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, Final, TypeAlias

import uvloop

from feedq.connectors.base import Connector
from feedq.core.permission import DEFAULT, Permissions, parse_networks
from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, Journal, Relay, reset, run_on, serving, until

STOP_S: Final = 1.0
"""A connector has this long to end: a worker that leaves gives its feeds little more."""
LOOK_S: Final = 0.02
"""It is counted in looks of this length, so that the time for which the machine stands still does not count."""
MOMENT_S: Final = 0.1
"""How long a test watches that nothing happens."""
RECORD_BYTES_MAX: Final = 500
"""The limit in the test of `limits_records`."""
NOT_PULLED_BYTES: Final = 32 * 2**20
"""What the source offers to a connector that is not pulled: far more than sockets and buffers hold."""
READ_AHEAD_BYTES_MAX: Final = 16 * 2**20
"""How much of it the connector may have read."""
STANDS_STILL_S: Final = 5.0
"""How long nothing else may happen on the loop; on a machine with time to spare a tenth of a second is long."""
ERROR_CHARACTERS_MAX: Final = 2000

Body = Callable[[Any], Coroutine[Any, Any, None]]


def behaviour(*needs: str) -> Callable[[Body], Callable[[Any], None]]:
    """A test that runs on uvloop and leaves nothing behind, for connectors that have these properties."""

    def wrap(body: Body) -> Callable[[Any], None]:
        @wraps(body)
        def test(self: Any) -> None:
            run_on(uvloop.new_event_loop, body(self))

        test.needs = needs  # type: ignore[attr-defined] # for `ConnectorConformance.__init_subclass__`
        return test

    return wrap


@dataclass(frozen=True, slots=True)
class Served:
    """A running source."""

    where: str
    """``host:port`` of a server; what ``options`` understands for a connector that dials nobody."""
    send: Callable[[Sequence[bytes]], Awaitable[None]]
    """Add records to the source."""
    acknowledged: Callable[[], Awaitable[int]] | None = None
    """How many records the connector has acknowledged so far; for one that acknowledges."""


Reading: TypeAlias = asyncio.Task[FeedqError | None]
"""A `ConnectorDriver.read` under way."""


class ConnectorConformance:
    """Subclass it, and say what the connector is and how its source behaves: see the module."""

    kind: ClassVar[type[Connector]]
    dials: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    acknowledges: ClassVar[bool] = False
    answers: ClassVar[bool] = True
    limits_records: ClassVar[bool] = True
    notices_silence: ClassVar[bool] = True

    feed: str
    source: Served
    relay: Relay
    """Of the test that runs: the feed's name, its source, and what is between the two."""

    def __init_subclass__(cls) -> None:
        """Take out the tests of properties that this connector lacks; pytest passes over what is None."""
        for name in dir(cls):
            found = (vars(each).get(name) for each in cls.__mro__)
            test = next((each for each in found if each is not None), None)
            needs = getattr(test, "needs", None)
            if needs is not None:
                setattr(cls, name, test if all(getattr(cls, need) for need in needs) else None)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        """Start an empty source: a server on which ``script`` plays each connection."""
        journal = Journal()
        async with serving(partial(self.script, journal)) as port:
            yield Served(f"127.0.0.1:{port}", journal.send)

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise NotImplementedError

    def options(self, where: str) -> dict[str, Any]:
        """A feed's ``source`` for it."""
        raise NotImplementedError

    def record(self, seq: int, *, size: int = 0) -> bytes:
        """A record, no two of one test alike; of ``size`` bytes if that is not 0."""
        head = b'{"seq": %d, "pad": "' % seq
        return head + b"x" * (size - len(head) - 2) + b'"}'

    # -- what comes through ----------------------------------------------------------------------------

    @behaviour()
    async def test_records_come_in_order_and_once_and_it_says_once_that_it_is_connected(self) -> None:
        async with self.reachable() as driver:
            await self.source.send(self.records(100))
            async with aclosing(driver.open()) as stream:
                await driver.pull(stream, count=100)
                for seq in range(101, 106):
                    await self.source.send([self.record(seq)])
                    await driver.pull(stream, count=seq)
            self.assert_landed(driver, self.records(105))
            self.assert_over(driver, connected=1)

    @behaviour("resumes")
    async def test_it_resumes_exactly_after_the_cursor_of_any_batch(self) -> None:
        sent = self.records(8)
        async with self.reachable() as first:
            async with aclosing(first.open()) as stream:
                for count, record in enumerate(sent, start=1):
                    await self.source.send([record])
                    await first.pull(stream, count=count)
            self.assert_landed(first, sent)
            for landed in range(1, len(sent)):
                second = self.driver(self.relay.where)
                second.commit(first.batches[landed - 1])
                await second.land(len(sent) - landed)
                self.assert_landed(second, sent[landed:])

    @behaviour("dials")
    async def test_records_survive_crumbs_and_a_reset_at_any_byte(self) -> None:
        sent = self.records(4)
        async with self.reachable() as driver:
            self.relay.chunk_bytes = 1
            await self.source.send(sent)
            assert await driver.land(len(sent)) == 1
            self.assert_landed(driver, sent)
            down_bytes = self.relay.down_bytes
        for cut_after in self.cuts(down_bytes):
            async with self.reachable() as driver:
                self.relay.cut_after(cut_after)
                await self.source.send(sent)
                if self.resumes or self.acknowledges:
                    await driver.land(len(sent))
                else:
                    # What came before the reset is all that it can get.
                    assert not isinstance(await driver.read(count=len(sent)), FeedMisconfigured)
                self.assert_landed(driver, sent[: len(driver.records)])

    @behaviour("acknowledges")
    async def test_what_is_not_committed_is_not_acknowledged_and_sent_again(self) -> None:
        async with self.reachable() as lost:
            acknowledged, kept = self.source.acknowledged, self.driver(self.relay.where)
            assert acknowledged is not None, "the source of a connector that acknowledges must tell how many"
            await self.source.send(self.records(5))
            async with aclosing(lost.open()) as stream:
                await lost.pull(stream, count=5, commit=False)
                await asyncio.sleep(MOMENT_S)
                assert await acknowledged() == 0
            async with aclosing(kept.open()) as stream:
                await kept.pull(stream, count=5)
                async with asyncio.timeout(PATIENCE_S):
                    while await acknowledged() < 5:
                        await asyncio.sleep(0.001)
            self.assert_landed(kept, self.records(5))
            for batch in lost.batches:
                # Committed after all, when its connection has long ended.
                lost.commit(batch)

    # -- connections -----------------------------------------------------------------------------------

    @behaviour("dials")
    async def test_a_source_that_cannot_or_must_not_be_reached_is_told(self) -> None:
        async with self.reachable():
            with socket.socket() as bound_but_deaf:
                bound_but_deaf.bind(("127.0.0.1", 0))
                for at, permissions, kind in (
                    (f"127.0.0.1:{bound_but_deaf.getsockname()[1]}", DEFAULT, SourceUnavailable),
                    # Too long for any name, so that no name server is asked.
                    (".".join(["a" * 60] * 5) + ":7001", DEFAULT, SourceUnavailable),
                    (self.relay.where, Permissions(deny=parse_networks(["127.0.0.0/8"])), FeedMisconfigured),
                ):
                    driver = self.driver(at, permissions=permissions)
                    assert isinstance(await driver.read(), kind)
                    self.assert_over(driver, connected=0)
            await asyncio.sleep(MOMENT_S)
            assert self.relay.accepted == 0, "connects to an address that is denied"

    @behaviour("dials")
    async def test_an_end_while_it_waits_is_told_whoever_makes_it(self) -> None:
        ends: Sequence[Callable[[ConnectorDriver], object]] = (
            lambda driver: self.relay.end_all(reset),
            lambda driver: self.relay.end_all(asyncio.StreamWriter.close),
            lambda driver: driver.guard.cut(),
        )
        for end in ends:
            async with self.waiting() as (driver, reading):
                assert driver.guard.watched, "the guard does not know the socket of an open connection"
                end(driver)
                assert type(await reading) is SourceUnavailable

    @behaviour("dials", "notices_silence")
    async def test_a_source_that_falls_silent_is_told_from_one_that_ended(self) -> None:
        async with self.waiting(idle_timeout_s=1.0) as (_, reading):
            self.relay.hold_after(0)
            assert isinstance(await reading, SourceSilent)

    # -- limits ----------------------------------------------------------------------------------------

    @behaviour("limits_records")
    async def test_a_record_over_the_limit_fails_the_feed_after_everything_before_it(self) -> None:
        sent = [*self.records(2), self.record(3, size=RECORD_BYTES_MAX)]
        async with self.reachable(max_record_bytes=RECORD_BYTES_MAX) as driver:
            await self.source.send([*sent, self.record(4, size=RECORD_BYTES_MAX + 1), self.record(5)])
            error = await driver.read()
            assert isinstance(error, FeedMisconfigured)
            assert "max_record_bytes" in str(error)
            self.assert_landed(driver, sent)

    @behaviour("dials")
    async def test_it_does_not_read_on_when_it_is_not_pulled(self) -> None:
        size = 16 * 2**10
        sent = [self.record(seq, size=size) for seq in range(1, NOT_PULLED_BYTES // size + 1)]
        async with self.reachable() as driver:
            await self.source.send(sent)
            async with aclosing(driver.open()) as stream:
                await driver.pull(stream, count=1)
                before = -1
                while before != self.relay.down_bytes:
                    before = self.relay.down_bytes
                    await asyncio.sleep(MOMENT_S)
                read = self.relay.down_bytes - driver.guard.unread_bytes
                assert read < READ_AHEAD_BYTES_MAX, "keeps reading although nothing asks for more"
                await driver.pull(stream, count=len(sent))
            self.assert_landed(driver, sent)

    @behaviour("dials")
    async def test_what_has_no_end_is_refused_in_time_and_in_words(self) -> None:
        for piece in (b"x", b"9", b"\xff"):
            async with self.waiting() as (driver, reading):
                before, longest_s = self.relay.down_bytes, 0.0
                self.relay.flood(piece)
                await self.source.send([self.record(2)])
                while not reading.done():
                    looked_at = time.monotonic()
                    await asyncio.sleep(0.01)
                    longest_s = max(longest_s, time.monotonic() - looked_at)
                    read = self.relay.down_bytes - driver.guard.unread_bytes - before
                    assert read < READ_AHEAD_BYTES_MAX, f"takes {read} bytes for the beginning of a record"
                error = await reading
                assert isinstance(error, SourceUnavailable | FeedMisconfigured), f"ends with {error!r}"
                assert len(str(error)) < ERROR_CHARACTERS_MAX, "quotes the endless record"
                assert longest_s < STANDS_STILL_S, f"gives no other feed a turn for {longest_s:.1f} s"

    # -- the end ---------------------------------------------------------------------------------------

    @behaviour("dials")
    async def test_it_is_not_connected_before_the_source_answers_and_stops_without_an_answer(self) -> None:
        async with self.reachable() as driver, reading_by(driver) as reading:
            self.relay.hold_after(0)
            await until(lambda: self.relay.accepted > 0)
            await asyncio.sleep(MOMENT_S)
            assert driver.connected == 0 or not self.answers
            await stop(reading)

    @behaviour()
    async def test_it_stops_while_it_waits(self) -> None:
        async with self.waiting() as (_, reading):
            await stop(reading)

    @behaviour("dials")
    async def test_it_stops_in_the_middle_of_a_record(self) -> None:
        async with self.waiting() as (_, reading):
            before = self.relay.down_bytes
            self.relay.hold_after(before + len(self.record(2)) // 2)
            await self.source.send([self.record(2)])
            await until(lambda: self.relay.down_bytes > before)
            await stop(reading)

    @behaviour()
    async def test_it_stops_while_it_is_held_back_and_before_it_has_begun(self) -> None:
        async with self.reachable() as driver:
            await driver.open().aclose()
            self.assert_over(driver, connected=0)
            await self.source.send(self.records(100))
            stream = driver.open()
            await driver.pull(stream, count=1)
            await in_time(stream.aclose())
            self.assert_over(driver, connected=1)

    # -- steps -----------------------------------------------------------------------------------------

    def records(self, count: int) -> list[bytes]:
        return [self.record(seq) for seq in range(1, count + 1)]

    def cuts(self, down_bytes: int) -> Sequence[int]:
        """After which bytes the connection is reset; all of them, unless that takes too long."""
        return range(down_bytes + 1)

    def driver(self, where: str, *, permissions: Permissions = DEFAULT, **options: Any) -> ConnectorDriver:
        source = {**self.options(where), **options}
        return ConnectorDriver(self.kind, source, feed=self.feed, permissions=permissions)

    @asynccontextmanager
    async def reachable(self, **options: Any) -> AsyncIterator[ConnectorDriver]:
        """A source, a relay before it, and a feed with these options besides, which must leave nothing behind.

        For a connector that dials nobody the relay is only a place.
        """
        self.feed = f"conformance/{uuid.uuid4().hex[:8]}"
        async with self.serve() as self.source, Relay(self.source.where).listening() as self.relay:
            if not self.dials:
                self.relay.where = self.source.where
            driver = self.driver(self.relay.where, **options)
            yield driver
            self.assert_over(driver)
            await self.relay.closed()

    @asynccontextmanager
    async def waiting(self, **options: Any) -> AsyncIterator[tuple[ConnectorDriver, Reading]]:
        """A feed that has read the one record that its source has sent, and waits for the next."""
        async with self.reachable(**options) as driver, reading_by(driver) as reading:
            await self.source.send(self.records(1))
            await until(lambda: bool(driver.records) or reading.done())
            await asyncio.sleep(MOMENT_S)
            assert not reading.done(), f"it did not wait for the next record: {reading}"
            yield driver, reading
            self.assert_over(driver, connected=1)

    def assert_over(self, driver: ConnectorDriver, *, connected: int | None = None) -> None:
        """No socket is left, and the connector said this many times that it was connected."""
        assert driver.guard.faults == []
        assert not driver.guard.watched, "a socket was not forgotten"
        assert driver.guard.seen or not (driver.connected and self.dials), "the guard saw no socket"
        assert driver.connected == connected or connected is None

    def assert_landed(self, driver: ConnectorDriver, sent: Sequence[bytes]) -> None:
        """All of it landed, in order; once, if the connector resumes or one connection was enough."""
        # What was not acknowledged yet comes again: the first of each counts.
        may_repeat = self.acknowledges and not self.resumes
        assert (list(dict.fromkeys(driver.records)) if may_repeat else driver.records) == sent


@asynccontextmanager
async def reading_by(driver: ConnectorDriver) -> AsyncIterator[Reading]:
    """A driver that reads meanwhile."""
    reading = asyncio.ensure_future(driver.read())
    try:
        yield reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def stop(reading: Reading) -> None:
    """Cancelling a reading ends it in time."""
    reading.cancel()
    await in_time(reading)


async def in_time(ending: Awaitable[FeedqError | None]) -> None:
    """What is about to end does so in time; at worst with an error of the source."""
    reading = asyncio.ensure_future(ending)
    for _ in range(round(STOP_S / LOOK_S)):
        if not reading.done():
            await asyncio.wait([reading], timeout=LOOK_S)
    assert reading.done(), "took too long to stop"
    error = None if reading.cancelled() else reading.exception() or reading.result()
    assert error is None or isinstance(error, SourceUnavailable), f"stopped with {error!r}"
