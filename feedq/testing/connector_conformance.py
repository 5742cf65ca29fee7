"""What every connector must do, as tests that a connector of anybody's can be put through.

Make a subclass in a test module of yours, and pytest runs the suite on asyncio's loop and on uvloop::

    class TestOrders(ConnectorConformance):
        kind = OrdersConnector

        @asynccontextmanager
        async def serve(self) -> AsyncIterator[Served]:
            journal = Journal()

            async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                sent = int(await reader.readline())        # the cursor, as this protocol asks for it
                while True:
                    for record in await journal.after(sent):
                        writer.write(record + b"\\n")
                        sent += 1
                        await writer.drain()               # so that it can be held back

            async with serving(script) as port:
                yield Served(f"127.0.0.1:{port}", journal.send)

        def options(self, where: str) -> dict[str, Any]:
            return {"url": f"tcp://{where}", "secrets": {"token": "${env:ORDERS_TOKEN}"}}

``serve`` starts a source that is empty at first. `Served.send` adds records to it, for the connections there
are and for those to come; the source keeps connections open when it has nothing more to send. ``options``
are those of a feed that connects to ``where``: the tests put a relay in between, which breaks the connection
at any byte, holds it up, and counts. A reference among the ``secrets`` is never resolved: its value is a planted
one, and no error may hold it. Each test serves anew; ``feed`` names the feed, for servers that outlive a test.

Not every connector has every property. What a class attribute takes away is not tested, and the test is there
with ``left out`` and the attribute's name as its parameter:

=================== ========== ==============================================================================
attribute           default    the connector …
=================== ========== ==============================================================================
``dials``           True       connects to ``where``, a ``host:port``; otherwise ``where`` is anything
``resumes``         True       resumes after the cursor of any batch: every record lands exactly once
``acknowledges``    False      acknowledges what was committed (`Batch.on_committed`), and the source sends
                               again what was not: every record lands at least once; needs
                               `Served.acknowledged`
``answers``         True       knows from an answer of the source that it was accepted
``holds_back``      True       stops reading when it is not pulled
``limits_records``  True       has an option ``max_record_bytes``
``notices_silence`` True       has an option ``idle_timeout_s``
=================== ========== ==============================================================================

Tests of your own in such a class run in the same way when they are coroutines with `behaviour` before them.
`ConnectorDriver` is the feed's side of a connector, `Relay` what stands in between; both can
be used by themselves.

Only this module imports pytest; the rest of `feedq.testing` does without.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Final

import pytest

from feedq.core.permission import Permissions, parse_networks
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.testing.loopback import PATIENCE_S, Journal, Relay, refusing, serving, unanswering, until
from feedq.testing.stage import (
    LOOPS,
    MOMENT_S,
    ConnectorDriver,
    Served,
    Stage,
    asking,
    behaviour,
    leave_out,
    pull,
    stop,
)

__all__ = [
    "ConnectorConformance",
    "ConnectorDriver",
    "Journal",
    "Relay",
    "Served",
    "behaviour",
    "serving",
]

RECORD_BYTES_MAX: Final = 500
"""The limit in the tests of `limits_records`."""
NOT_PULLED_BYTES: Final = 32 * 2**20
"""What the source offers to a connector that is not pulled: far more than sockets and buffers hold."""
READ_AHEAD_BYTES_MAX: Final = 16 * 2**20
"""How much of it may have left the source, buffers of the kernel included."""
STANDS_STILL_S: Final = 2.0
"""How long nothing else may happen on the loop; on a machine with time to spare a tenth of a second is long."""
ERROR_CHARACTERS_MAX: Final = 2000
SMOKE_TEST: Final = "test_all_records_come_in_order_and_once"
"""Workers run connectors on uvloop; elsewhere it is enough that records come through."""


class ConnectorConformance(Stage):
    """Subclass it, and say what the connector is and how its source is served: see the module."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each test on uvloop, the first one on asyncio's loop as well; or by name as left out."""
        needs = getattr(metafunc.function, "needs", None)
        if needs is None:
            return  # a test that the subclass adds
        lacking = [name for name in needs if not getattr(self, name)]
        runs = LOOPS if metafunc.function.__name__ == SMOKE_TEST else {"uvloop": LOOPS["uvloop"]}
        if lacking:
            runs = {f"left out: {' '.join(lacking)}": leave_out}
        metafunc.parametrize("run", list(runs.values()), ids=list(runs))

    # -- what comes through ----------------------------------------------------------------------------

    @behaviour()
    async def test_all_records_come_in_order_and_once(self) -> None:
        async with self.reachable() as (source, where):
            await source.send(self.records(100))
            driver = self.driver(where)
            assert await driver.land(100) == 1
            self.assert_landed(driver, self.records(100))

    @behaviour()
    async def test_records_that_come_while_it_waits_come_through(self) -> None:
        async with self.reachable() as (source, where):
            driver = self.driver(where)
            async with aclosing(driver.open()) as stream:
                for record in self.records(5):
                    await source.send([record])
                    await pull(driver, stream, count=len(driver.records) + 1)
            self.assert_landed(driver, self.records(5))

    @behaviour("dials")
    async def test_records_that_come_in_crumbs_are_whole(self) -> None:
        async with self.relayed() as (source, relay):
            relay.chunk_bytes = 1
            await source.send(self.records(20))
            driver = self.driver(relay.where)
            assert await driver.land(20) == 1
            self.assert_landed(driver, self.records(20))

    @behaviour("resumes")
    async def test_it_resumes_exactly_after_the_cursor_of_any_batch(self) -> None:
        sent = self.records(8)
        async with self.reachable() as (source, where):
            first = self.driver(where)
            async with aclosing(first.open()) as stream:
                for record in sent:
                    await source.send([record])
                    await pull(first, stream, count=len(first.records) + 1)
            self.assert_landed(first, sent)
            for landed in range(1, len(sent)):
                second = self.driver(where)
                second.commit(first.batches[landed - 1])
                await second.land(len(sent) - landed)
                self.assert_landed(second, sent[landed:])

    # -- connections -----------------------------------------------------------------------------------

    @behaviour()
    async def test_it_says_once_that_it_is_connected(self) -> None:
        async with self.reachable() as (source, where), self.waiting(where, source) as waiting:
            assert waiting.driver.connected == 1

    @behaviour("dials", "answers")
    async def test_it_is_not_connected_before_the_source_has_answered(self) -> None:
        async with self.relayed() as (source, relay):
            relay.hold_after(0)
            await source.send(self.records(1))
            driver = self.driver(relay.where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                await until(lambda: relay.accepted > 0)
                # To see that nothing happens takes a moment.
                await asyncio.sleep(MOMENT_S)
                assert driver.connected == 0
                relay.release()
                driver.take(await first)
            self.assert_over(driver, connected=1)

    @behaviour("dials")
    async def test_a_refused_connection_is_told(self) -> None:
        with refusing() as where:
            driver = self.driver(where)
            assert isinstance(await driver.read(), SourceUnavailable)
            self.assert_over(driver, connected=0)

    @behaviour("dials")
    async def test_a_host_that_does_not_resolve_is_told(self) -> None:
        # Too long for any name, so that no name server is asked.
        driver = self.driver(".".join(["a" * 60] * 5) + ":7001")
        assert isinstance(await driver.read(), SourceUnavailable)
        self.assert_over(driver, connected=0)

    @behaviour("dials")
    async def test_an_address_that_is_denied_fails_the_feed_and_is_not_connected_to(self) -> None:
        async with self.relayed() as (_, relay):
            driver = self.driver(relay.where, permissions=Permissions(deny=parse_networks(["127.0.0.0/8"])))
            assert isinstance(await driver.read(), FeedMisconfigured)
            self.assert_over(driver, connected=0)
            # To see that nothing happens takes a moment.
            await asyncio.sleep(MOMENT_S)
            assert relay.accepted == 0

    @behaviour("dials")
    async def test_a_reset_at_any_byte_is_told_and_mended(self) -> None:
        sent = self.records(4)
        async with self.relayed() as (source, relay):
            await source.send(sent)
            await self.driver(relay.where).land(len(sent))
            down_bytes = relay.down_bytes
        for cut_after in range(down_bytes + 1):
            async with self.relayed() as (source, relay):
                relay.cut_after(cut_after)
                await source.send(sent)
                await self.survive(self.driver(relay.where), sent)
                await until(partial(has_no_connection, relay))

    @behaviour("dials")
    async def test_a_reset_while_it_waits_is_told(self) -> None:
        await self.end_while_waiting(lambda relay, _: relay.reset_all())

    @behaviour("dials")
    async def test_an_end_by_the_source_is_told(self) -> None:
        await self.end_while_waiting(lambda relay, _: relay.close_all())

    @behaviour("dials")
    async def test_the_guard_cuts_it_from_another_thread_while_it_waits(self) -> None:
        def cut(_: Relay, driver: ConnectorDriver) -> None:
            assert driver.guard.watched, "the guard does not know the socket of an open connection"
            other_thread = threading.Thread(target=driver.guard.shut_all)
            other_thread.start()
            other_thread.join()

        await self.end_while_waiting(cut)

    @behaviour("dials", "notices_silence")
    async def test_a_source_that_falls_silent_is_told_from_one_that_ended(self) -> None:
        async with self.relayed() as (source, relay):
            await source.send(self.records(1))
            driver = self.driver(relay.where, idle_timeout_s=1.0)
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=1)
                relay.hold_after(0)
                with pytest.raises(SourceSilent):
                    await pull(driver, stream, count=2)
            self.assert_over(driver, connected=1)
            await until(partial(has_no_connection, relay))

    # -- limits ----------------------------------------------------------------------------------------

    @behaviour("limits_records")
    async def test_a_record_over_the_limit_fails_the_feed_after_everything_before_it(self) -> None:
        sent = [*self.records(2), self.record(3, size=RECORD_BYTES_MAX)]
        async with self.reachable() as (source, where):
            driver = self.driver(where, max_record_bytes=RECORD_BYTES_MAX)
            await source.send([*sent, self.record(4, size=RECORD_BYTES_MAX + 1), self.record(5)])
            error = await driver.read()
            assert isinstance(error, FeedMisconfigured)
            assert "max_record_bytes" in str(error)
            self.assert_landed(driver, sent)
            assert not driver.guard.watched

    @behaviour("dials", "holds_back")
    async def test_it_does_not_read_on_when_it_is_not_pulled(self) -> None:
        size = 16 * 2**10
        sent = [self.record(seq, size=size) for seq in range(1, NOT_PULLED_BYTES // size + 1)]
        async with self.relayed() as (source, relay):
            driver = self.driver(relay.where)
            await source.send(sent)
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=1)
                before = -1
                while before != relay.down_bytes:
                    before = relay.down_bytes
                    await asyncio.sleep(3 * MOMENT_S)
                assert relay.down_bytes < READ_AHEAD_BYTES_MAX, "reads on although it is not pulled"
                await pull(driver, stream, count=len(sent))
            self.assert_landed(driver, sent)

    @behaviour("dials")
    async def test_what_has_no_end_is_refused_in_time_and_in_words(self) -> None:
        for piece in (b"x", b"9", b"\xff"):
            async with self.relayed() as (source, relay), self.waiting(relay.where, source) as waiting:
                before = relay.down_bytes
                relay.flood(piece)
                longest_s, over = 0.0, asyncio.get_running_loop().time() + PATIENCE_S
                while not waiting.next_batch.done() and asyncio.get_running_loop().time() < over:
                    looked_at = asyncio.get_running_loop().time()
                    await asyncio.sleep(0.01)
                    longest_s = max(longest_s, asyncio.get_running_loop().time() - looked_at)
                    read = relay.down_bytes - before
                    assert read < READ_AHEAD_BYTES_MAX, f"takes {read} bytes for a record's beginning"
                error = await waiting.ended()
                assert isinstance(error, SourceUnavailable | FeedMisconfigured), f"ends with {error!r}"
                assert len(str(error)) < ERROR_CHARACTERS_MAX, "quotes what has no end"
                assert longest_s < STANDS_STILL_S, f"lets nobody else have a turn for {longest_s:.1f} s"
                assert not waiting.driver.guard.watched
                await until(partial(has_no_connection, relay))

    # -- the end ---------------------------------------------------------------------------------------

    @behaviour("dials")
    async def test_it_stops_while_it_connects(self) -> None:
        with unanswering() as where:
            driver = self.driver(where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                # To see that nothing happens takes a moment.
                await asyncio.sleep(MOMENT_S)
                await stop(first)
            self.assert_over(driver, connected=0)

    @behaviour("dials")
    async def test_it_stops_while_the_source_does_not_answer(self) -> None:
        async with self.relayed() as (_, relay):
            relay.hold_after(0)
            driver = self.driver(relay.where)
            async with aclosing(driver.open()) as stream, asking(stream) as first:
                await until(lambda: relay.accepted > 0)
                await stop(first)
            assert not driver.guard.watched
            await until(partial(has_no_connection, relay))

    @behaviour()
    async def test_it_stops_while_it_waits(self) -> None:
        async with self.reachable() as (source, where), self.waiting(where, source) as waiting:
            await stop(waiting.next_batch)
            self.assert_over(waiting.driver, connected=1)

    @behaviour("dials")
    async def test_it_stops_in_the_middle_of_a_record(self) -> None:
        async with self.relayed() as (source, relay), self.waiting(relay.where, source) as waiting:
            before = relay.down_bytes
            relay.hold_after(before + len(self.record(2)) // 2)
            await source.send([self.record(2)])
            await until(lambda: relay.down_bytes > before)
            await stop(waiting.next_batch)
            self.assert_over(waiting.driver, connected=1)
            await until(partial(has_no_connection, relay))

    @behaviour()
    async def test_it_stops_while_it_is_held_back(self) -> None:
        async with self.reachable() as (source, where):
            driver = self.driver(where)
            await source.send(self.records(100))
            stream = driver.open()
            await pull(driver, stream, count=1)
            await stop(asyncio.ensure_future(stream.aclose()), cancel=False)
            self.assert_over(driver, connected=1)

    @behaviour()
    async def test_it_may_never_begin(self) -> None:
        async with self.reachable() as (_, where):
            driver = self.driver(where)
            await driver.open().aclose()
            self.assert_over(driver, connected=0)

    # -- acknowledging ---------------------------------------------------------------------------------

    @behaviour("acknowledges")
    async def test_nothing_is_acknowledged_before_it_is_committed(self) -> None:
        async with self.reachable() as (source, where):
            driver = self.driver(where)
            await source.send(self.records(5))
            async with aclosing(driver.open()) as stream:
                await pull(driver, stream, count=5, commit=False)
                # To see that nothing happens takes a moment.
                await asyncio.sleep(MOMENT_S)
                assert await source.acknowledged() == 0
                for batch in driver.batches:
                    driver.commit(batch)
                async with asyncio.timeout(PATIENCE_S):
                    while await source.acknowledged() < 5:
                        await asyncio.sleep(0.001)

    @behaviour("acknowledges")
    async def test_what_was_not_committed_is_sent_again(self) -> None:
        async with self.reachable() as (source, where):
            lost, kept = self.driver(where), self.driver(where)
            await source.send(self.records(5))
            async with aclosing(lost.open()) as stream:
                await pull(lost, stream, count=5, commit=False)
            await kept.land(5)
            self.assert_landed(kept, self.records(5))
            for batch in lost.batches:
                # Committed after all, when its connection has long ended.
                lost.commit(batch)

    # -- steps -----------------------------------------------------------------------------------------

    async def survive(self, driver: ConnectorDriver, sent: list[bytes]) -> None:
        if self.resumes or self.acknowledges:
            await driver.land(len(sent))
            self.assert_landed(driver, sent)
        else:
            error = await driver.read(enough=lambda: len(driver.records) == len(sent))
            assert error is None or isinstance(error, SourceUnavailable)
            self.assert_landed(driver, sent[: len(driver.records)])
        assert driver.guard.faults == []
        assert not driver.guard.watched

    async def end_while_waiting(self, end: Callable[[Relay, ConnectorDriver], None]) -> None:
        async with self.relayed() as (source, relay), self.waiting(relay.where, source) as waiting:
            end(relay, waiting.driver)
            error = await waiting.ended()
            assert error is None or type(error) is SourceUnavailable
            self.assert_over(waiting.driver, connected=1)
            await until(partial(has_no_connection, relay))


def has_no_connection(relay: Relay) -> bool:
    """Whether the connector has closed all it had."""
    return relay.open == 0
