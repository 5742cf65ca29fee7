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
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, Final

import uvloop

from feedq.connectors.base import Connector
from feedq.core.permission import DEFAULT, Permissions, parse_networks
from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch
from feedq.testing.driver import ConnectorDriver, asking, pull
from feedq.testing.loopback import PATIENCE_S, Journal, Relay, refusing, run_on, serving, unanswering, until

STOP_S: Final = 1.0
"""A connector has this long to end: a worker that leaves gives its feeds little more."""
MOMENT_S: Final = 0.1
"""How long a test watches that nothing happens."""
RECORD_BYTES_MAX: Final = 500
"""The limit in the test of `limits_records`."""
NOT_PULLED_BYTES: Final = 32 * 2**20
"""What the source offers to a connector that is not pulled: far more than sockets and buffers hold."""
READ_AHEAD_BYTES_MAX: Final = 16 * 2**20
"""How much of it may have left the source, buffers of the kernel included."""
STANDS_STILL_S: Final = 2.0
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


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A connector that has given one record and waits for the next one."""

    source: Served
    relay: Relay
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


class ConnectorConformance:
    """Subclass it, and say what the connector is and how its source behaves: see the module."""

    kind: ClassVar[type[Connector]]
    dials: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    acknowledges: ClassVar[bool] = False
    answers: ClassVar[bool] = True
    limits_records: ClassVar[bool] = True
    notices_silence: ClassVar[bool] = True

    feed = "conformance/feed"

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

    def landed(self, record: bytes) -> bytes:
        """What lands of a record that was sent, if it is not the same."""
        return record

    # -- what comes through ----------------------------------------------------------------------------

    @behaviour()
    async def test_records_come_in_order_and_once_and_it_says_once_that_it_is_connected(self) -> None:
        async with self.reachable() as (source, relay):
            await source.send(self.records(100))
            driver = self.driver(relay.where)
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=100)
                for seq in range(101, 106):
                    await source.send([self.record(seq)])
                    await pull(driver, stream, count=seq)
            self.assert_landed(driver, self.records(105))
            self.assert_over(driver, connected=1)

    @behaviour("resumes")
    async def test_it_resumes_exactly_after_the_cursor_of_any_batch(self) -> None:
        sent = self.records(8)
        async with self.reachable() as (source, relay):
            first = self.driver(relay.where)
            async with aclosing(first.open()) as stream:
                for record in sent:
                    await source.send([record])
                    await pull(first, stream, count=len(first.records) + 1)
            self.assert_landed(first, sent)
            for landed in range(1, len(sent)):
                second = self.driver(relay.where)
                second.commit(first.batches[landed - 1])
                await second.land(len(sent) - landed)
                self.assert_landed(second, sent[landed:])

    @behaviour("dials")
    async def test_records_survive_crumbs_and_a_reset_at_any_byte(self) -> None:
        sent = self.records(4)
        async with self.reachable() as (source, relay):
            relay.chunk_bytes = 1
            await source.send(sent)
            driver = self.driver(relay.where)
            assert await driver.land(len(sent)) == 1
            self.assert_landed(driver, sent)
            down_bytes = relay.down_bytes
        for cut_after in self.cuts(down_bytes):
            async with self.reachable() as (source, relay):
                relay.cut_after(cut_after)
                await source.send(sent)
                driver, wanted = self.driver(relay.where), sent
                if self.resumes or self.acknowledges:
                    await driver.land(len(sent))
                else:
                    # What came before the reset is all that it can get.
                    error = await driver.read(enough=lambda: len(driver.records) == len(sent))  # noqa: B023
                    assert error is None or isinstance(error, SourceUnavailable)
                    wanted = sent[: len(driver.records)]
                self.assert_landed(driver, wanted)
                self.assert_quiet(driver)
                await relay.closed()

    # -- connections -----------------------------------------------------------------------------------

    @behaviour("dials", "answers")
    async def test_it_is_not_connected_before_the_source_has_answered(self) -> None:
        async with self.reachable() as (source, relay):
            relay.hold_after(0)
            await source.send(self.records(1))
            driver = self.driver(relay.where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                await until(lambda: relay.accepted > 0)
                await asyncio.sleep(MOMENT_S)
                assert driver.connected == 0
                relay.release()
                driver.take(await first)
            self.assert_over(driver, connected=1)

    @behaviour("dials")
    async def test_a_source_that_cannot_be_reached_is_told(self) -> None:
        # The second is too long for any name, so that no name server is asked.
        with refusing() as where:
            for at in (where, ".".join(["a" * 60] * 5) + ":7001"):
                driver = self.driver(at)
                assert isinstance(await driver.read(), SourceUnavailable)
                self.assert_over(driver, connected=0)

    @behaviour("dials")
    async def test_an_address_that_is_denied_fails_the_feed_and_is_not_connected_to(self) -> None:
        async with self.reachable() as (_, relay):
            driver = self.driver(relay.where, permissions=Permissions(deny=parse_networks(["127.0.0.0/8"])))
            assert isinstance(await driver.read(), FeedMisconfigured)
            self.assert_over(driver, connected=0)
            await asyncio.sleep(MOMENT_S)
            assert relay.accepted == 0

    @behaviour("dials")
    async def test_an_end_while_it_waits_is_told_whoever_makes_it(self) -> None:
        def guard_cuts(_: Relay, driver: ConnectorDriver) -> None:
            assert driver.guard.watched, "the guard does not know the socket of an open connection"
            other_thread = threading.Thread(target=driver.guard.cut)
            other_thread.start()
            other_thread.join()

        ends = (lambda relay, _: relay.reset_all(), lambda relay, _: relay.close_all(), guard_cuts)
        for end in ends:
            async with self.waiting() as waiting:
                end(waiting.relay, waiting.driver)
                error = await waiting.ended()
                assert error is None or type(error) is SourceUnavailable
                self.assert_over(waiting.driver, connected=1)
                await waiting.relay.closed()

    @behaviour("dials", "notices_silence")
    async def test_a_source_that_falls_silent_is_told_from_one_that_ended(self) -> None:
        async with self.waiting(idle_timeout_s=1.0) as waiting:
            waiting.relay.hold_after(0)
            assert isinstance(await waiting.ended(), SourceSilent)
            self.assert_over(waiting.driver, connected=1)
            await waiting.relay.closed()

    # -- limits ----------------------------------------------------------------------------------------

    @behaviour("limits_records")
    async def test_a_record_over_the_limit_fails_the_feed_after_everything_before_it(self) -> None:
        sent = [*self.records(2), self.record(3, size=RECORD_BYTES_MAX)]
        async with self.reachable() as (source, relay):
            driver = self.driver(relay.where, max_record_bytes=RECORD_BYTES_MAX)
            await source.send([*sent, self.record(4, size=RECORD_BYTES_MAX + 1), self.record(5)])
            error = await driver.read()
            assert isinstance(error, FeedMisconfigured)
            assert "max_record_bytes" in str(error)
            self.assert_landed(driver, sent)
            self.assert_quiet(driver)

    @behaviour("dials")
    async def test_it_does_not_read_on_when_it_is_not_pulled(self) -> None:
        size = 16 * 2**10
        sent = [self.record(seq, size=size) for seq in range(1, NOT_PULLED_BYTES // size + 1)]
        async with self.reachable() as (source, relay):
            driver = self.driver(relay.where)
            await source.send(sent)
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=1)
                before = -1
                while before != relay.down_bytes:
                    before = relay.down_bytes
                    await asyncio.sleep(MOMENT_S)
                assert relay.down_bytes < READ_AHEAD_BYTES_MAX, "reads on although it is not pulled"
                await pull(driver, stream, count=len(sent))
            self.assert_landed(driver, sent)

    @behaviour("dials")
    async def test_what_has_no_end_is_refused_in_time_and_in_words(self) -> None:
        loop = asyncio.get_running_loop()
        for piece in (b"x", b"9", b"\xff"):
            async with self.waiting() as waiting:
                relay = waiting.relay
                before = relay.down_bytes
                relay.flood(piece)
                longest_s, over = 0.0, loop.time() + PATIENCE_S
                while not waiting.next_batch.done() and loop.time() < over:
                    looked_at = loop.time()
                    await asyncio.sleep(0.01)
                    longest_s = max(longest_s, loop.time() - looked_at)
                    read = relay.down_bytes - before
                    assert read < READ_AHEAD_BYTES_MAX, f"takes {read} bytes for the beginning of a record"
                error = await waiting.ended()
                assert isinstance(error, SourceUnavailable | FeedMisconfigured), f"ends with {error!r}"
                assert len(str(error)) < ERROR_CHARACTERS_MAX, "quotes what has no end"
                assert longest_s < STANDS_STILL_S, f"lets nobody else have a turn for {longest_s:.1f} s"
                self.assert_quiet(waiting.driver)
                await relay.closed()

    # -- the end ---------------------------------------------------------------------------------------

    @behaviour("dials")
    async def test_it_stops_before_it_is_connected(self) -> None:
        with unanswering() as where:
            driver = self.driver(where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                await asyncio.sleep(MOMENT_S)
                await stop(first)
            self.assert_over(driver, connected=0)
        async with self.reachable() as (_, relay):
            relay.hold_after(0)
            driver = self.driver(relay.where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                await until(lambda: relay.accepted > 0)
                await stop(first)
            self.assert_quiet(driver)
            await relay.closed()

    @behaviour()
    async def test_it_stops_while_it_waits(self) -> None:
        async with self.waiting() as waiting:
            await stop(waiting.next_batch)
            self.assert_over(waiting.driver, connected=1)
            await waiting.relay.closed()

    @behaviour("dials")
    async def test_it_stops_in_the_middle_of_a_record(self) -> None:
        async with self.waiting() as waiting:
            relay = waiting.relay
            before = relay.down_bytes
            relay.hold_after(before + len(self.record(2)) // 2)
            await waiting.source.send([self.record(2)])
            await until(lambda: relay.down_bytes > before)
            await stop(waiting.next_batch)
            self.assert_over(waiting.driver, connected=1)
            await relay.closed()

    @behaviour()
    async def test_it_stops_while_it_is_held_back_and_before_it_has_begun(self) -> None:
        async with self.reachable() as (source, relay):
            driver = self.driver(relay.where)
            await driver.open().aclose()
            self.assert_over(driver, connected=0)
            await source.send(self.records(100))
            stream = driver.open()
            await pull(driver, stream, count=1)
            await stop(asyncio.ensure_future(stream.aclose()), cancel=False)
            self.assert_over(driver, connected=1)

    # -- acknowledging ---------------------------------------------------------------------------------

    @behaviour("acknowledges")
    async def test_nothing_is_acknowledged_before_it_is_committed(self) -> None:
        async with self.reachable() as (source, relay):
            driver, acknowledged = self.driver(relay.where), source.acknowledged
            assert acknowledged is not None, "the source of a connector that acknowledges must tell how many"
            await source.send(self.records(5))
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=5, commit=False)
                await asyncio.sleep(MOMENT_S)
                assert await acknowledged() == 0
                for batch in driver.batches:
                    driver.commit(batch)
                async with asyncio.timeout(PATIENCE_S):
                    while await acknowledged() < 5:
                        await asyncio.sleep(0.001)

    @behaviour("acknowledges")
    async def test_what_was_not_committed_is_sent_again(self) -> None:
        async with self.reachable() as (source, relay):
            lost, kept = self.driver(relay.where), self.driver(relay.where)
            await source.send(self.records(5))
            async with aclosing(lost.open()) as stream:
                await pull(lost, stream, count=5, commit=False)
            await kept.land(5)
            self.assert_landed(kept, self.records(5))
            for batch in lost.batches:
                # Committed after all, when its connection has long ended.
                lost.commit(batch)

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
    async def reachable(self) -> AsyncIterator[tuple[Served, Relay]]:
        """A source, and the relay before it; for a connector that dials nobody the relay is only a place."""
        self.feed = f"conformance/{uuid.uuid4().hex[:8]}"
        async with self.serve() as source:
            if self.dials:
                async with Relay(source.where).listening() as relay:
                    yield source, relay
            else:
                yield source, Relay(source.where)

    @asynccontextmanager
    async def waiting(self, **options: Any) -> AsyncIterator[WaitingRead]:
        """A connector with these options besides, at a source that has sent one record and has no other."""
        async with self.reachable() as (source, relay):
            driver = self.driver(relay.where, **options)
            async with aclosing(driver.open()) as stream:
                await source.send(self.records(1))
                await pull(driver, stream, count=1)
                async with asking(stream) as task:
                    await asyncio.sleep(MOMENT_S)
                    assert not task.done(), "it did not wait for the next record"
                    yield WaitingRead(source, relay, driver, task)

    def assert_over(self, driver: ConnectorDriver, *, connected: int) -> None:
        """No socket is left, and the connector said this many times that it was connected."""
        self.assert_quiet(driver)
        assert driver.guard.seen or not (connected and self.dials), "the guard saw no socket"
        assert driver.connected == connected

    def assert_quiet(self, driver: ConnectorDriver) -> None:
        assert driver.guard.faults == []
        assert not driver.guard.watched, "a socket was not forgotten"

    def assert_landed(self, driver: ConnectorDriver, sent: Sequence[bytes]) -> None:
        """All of it landed, in order; once, if the connector resumes or one connection was enough."""
        expected = [self.landed(record) for record in sent]
        if self.acknowledges and not self.resumes:
            # What was not acknowledged yet comes again: the first of each counts.
            assert list(dict.fromkeys(driver.records)) == expected
        else:
            assert driver.records == expected


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
