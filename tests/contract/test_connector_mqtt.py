"""The mqtt connector with a scripted broker: refusals, faults of the broker, and messages that come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from feedq.connectors.base import BOUNDLESS, Room
from feedq.connectors.messages import MESSAGES_AT_ONCE, READ_AHEAD_BYTES
from feedq.connectors.mqtt import MqttConnector
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import serving, until
from feedq.worker.batch_queue import InflightBudget
from tests.contract.loopback import assert_told
from tests.contract.mqtt_broker import CONNACK, PUBLISH, ScriptedBroker, packet, text


def driver_of(port: int, room: Room = BOUNDLESS, **options: Any) -> ConnectorDriver:
    source = {"url": f"mqtt://127.0.0.1:{port}", "topics": ["t/#"], **options}
    return ConnectorDriver(MqttConnector, source, room=room)


@asynccontextmanager
async def waiting(driver: ConnectorDriver, broker: ScriptedBroker) -> AsyncIterator[asyncio.Task[Any]]:
    """A connection that has subscribed and waits for its first batch."""
    async with aclosing(driver.open()) as stream:
        task = asyncio.ensure_future(anext(stream))
        try:
            await broker.until_subscribed()
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        (0x84, FeedMisconfigured, "check source.version"),
        (0x85, FeedMisconfigured, "check source.client_id"),
        (0x86, FeedMisconfigured, "check source.username and source.password"),
        (0x87, FeedMisconfigured, "check source.username and source.password"),
        (0x8A, FeedMisconfigured, "check with the broker's operator"),
        (0x88, SourceUnavailable, "server unavailable"),
        (0x89, SourceUnavailable, "server busy"),
        (0x9F, SourceUnavailable, "connection rate exceeded"),
    ],
)
async def test_a_refusal_says_whether_an_edit_or_another_try_can_help(
    reason: int, kind: type[Exception], says: str
) -> None:
    async with ScriptedBroker().listening() as broker:
        broker.refusal = reason
        assert_told(await driver_of(broker.port).read(), kind, says)


async def test_a_broker_that_only_speaks_the_older_version_is_told() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(packet(CONNACK, b"\0\1"))
        await writer.drain()
        await reader.read()

    async with serving(script) as port:
        assert_told(await driver_of(port).read(), FeedMisconfigured, "check source.version")


@pytest.mark.parametrize(
    ("granted", "says"),
    [
        ([1, 0x87], "'t/b' refused: not authorized"),
        ([0x80, 1], "'t/a' refused"),
        ([1, 0], "'t/b' is granted with QoS 0"),
    ],
)
async def test_a_subscription_that_is_not_granted_fails_the_feed(granted: list[int], says: str) -> None:
    async with ScriptedBroker().listening() as broker:
        broker.granted = granted
        driver = driver_of(broker.port, topics=["t/a", "t/b"])
        assert_told(await driver.read(), FeedMisconfigured, says)
        assert driver.connected == 0


@pytest.mark.parametrize(
    ("reason", "says"),
    [(0x8E, "another client took over the session"), (0x8B, "closed by the broker: server shutting down")],
)
async def test_a_dismissal_is_told_with_its_reason(reason: int, says: str) -> None:
    async with ScriptedBroker().listening() as broker, waiting(driver_of(broker.port), broker) as task:
        broker.dismiss(reason)
        await asyncio.wait([task])
        with pytest.raises(SourceUnavailable, match=says):
            task.result()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_trial_asks_for_a_session_that_ends_with_it(version: str) -> None:
    expiry = b"\x11" + (3600).to_bytes(4)
    for is_trial in (True, False):
        async with ScriptedBroker(is_5=version == "5").listening() as broker:
            driver = driver_of(broker.port, version=version, session_expiry_s=3600)
            driver.context = replace(driver.context, trial=is_trial)
            async with waiting(driver, broker):
                (asked,) = broker.connections
        # Behind the name of the protocol and its version: "clean start", or "clean session".
        assert bool(asked[7] & 0b10) is is_trial
        assert (expiry in asked) is (version == "5" and not is_trial)


async def test_a_broker_that_answers_pings_is_not_silent_and_one_that_does_not_is() -> None:
    async with (
        ScriptedBroker().listening() as broker,
        waiting(driver_of(broker.port, idle_timeout_s=2.1), broker) as task,
    ):
        await until(lambda: broker.pings >= 3)
        assert not task.done()
        broker.answers_pings = False
        await asyncio.wait([task])
        with pytest.raises(SourceSilent):
            task.result()


async def test_messages_without_acknowledgement_that_had_arrived_are_given_when_the_connection_breaks() -> (
    None
):
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port)
        async with aclosing(driver.open()) as stream:
            taking = asyncio.ensure_future(driver.pull(stream, count=1))
            await broker.until_subscribed()
            # In one packet with the end, so that nobody can take them before it is known.
            at_most_once = [packet(PUBLISH, text("t/x") + b"\0" + b"%d" % n) for n in range(3)]
            # The broker sends this one again.
            at_least_once = packet(PUBLISH, text("t/x") + b"\0\x07\0again", flags=2)
            await broker.publish([])
            broker.send(at_least_once + b"".join(at_most_once) + packet(14, b"\x8b\0"))
            await taking
            with pytest.raises(SourceUnavailable):
                await anext(stream)
        assert driver.records == [b"0", b"1", b"2"]


async def test_a_feed_that_stops_waits_a_moment_for_what_it_has_given_to_be_committed() -> None:
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port)
        async with aclosing(driver.open()) as stream:
            taking = asyncio.ensure_future(driver.pull(stream, count=1, commit=False))
            await broker.until_subscribed()
            await broker.publish([b"1"])
            await taking
            stopping = asyncio.ensure_future(stream.aclose())
            await asyncio.sleep(0)
            driver.commit(driver.batches[0])
            await stopping
        await until(lambda: len(broker.acknowledged) == 1)


async def test_an_expiry_and_a_limit_are_told_to_the_broker() -> None:
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port, session_expiry_s=17, max_unacknowledged=23, client_id="mine")
        async with waiting(driver, broker):
            pass
        (body,) = broker.connections
        assert b"\x11\0\0\0\x11" in body
        assert b"\x21\0\x17" in body
        assert text("mine") in body
        # The session is taken up, and kept.
        assert body[7] & 0x02 == 0


async def test_only_what_is_declared_lands_whatever_the_session_was_subscribed_to() -> None:
    async with ScriptedBroker().listening() as broker:
        broker.session_present = True
        await broker.publish([b"wrong"], topic=b"t/wrong")
        await broker.publish([b"right"], topic=b"t/right")
        driver = driver_of(broker.port, topics=["t/right"], envelope=True)
        assert await driver.read(count=1) is None
        await until(lambda: len(broker.acknowledged) == 2)
    (record,) = driver.records
    assert b'"topic":"t/right"' in record


async def test_a_message_of_several_subscriptions_lands_once() -> None:
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port, topics=["t/#", "t/a", "$share/g/t/b"])
        async with aclosing(driver.open()) as stream:
            first = asyncio.ensure_future(driver.pull(stream, count=6))
            await until(lambda: len(broker.subscribed) == 3)
            number = {topics[2:-1]: number for number, topics in broker.subscribed}
            every, a, shared = number[b"t/#"], number[b"t/a"], number[b"$share/g/t/b"]
            assert every is not None
            assert a is not None
            assert shared is not None
            await broker.publish([b"1"], topic=b"t/a", subscriptions=[every])
            await broker.publish([b"1 again"], topic=b"t/a", subscriptions=[a])
            await broker.publish([b"2"], topic=b"t/a", subscriptions=[a, every])
            await broker.publish([b"3"], topic=b"t/b", subscriptions=[every])
            await broker.publish([b"3 again"], topic=b"t/b", subscriptions=[shared])
            # By a subscription of before, and by none at all.
            await broker.publish([b"4"], topic=b"t/a", subscriptions=[every % 7 + 1])
            await broker.publish([b"5"], topic=b"t/a")
            await broker.publish([b"6"], topic=b"t")
            await first
    assert driver.records == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_a_shared_subscription_beside_no_other_takes_what_comes_by_it() -> None:
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port, topics=["$share/g/t/#", "$share/h/t/#"])
        async with aclosing(driver.open()) as stream:
            first = asyncio.ensure_future(driver.pull(stream, count=2))
            await until(lambda: len(broker.subscribed) == 2)
            for number, _ in broker.subscribed:
                await broker.publish([b"x"], topic=b"t/a", subscriptions=[number or 0])
            await first
    assert driver.records == [b"x", b"x"]


async def test_the_broker_is_pinged_while_nobody_takes_the_messages() -> None:
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port, idle_timeout_s=2.0, buffer_bytes=1)
        async with aclosing(driver.open()) as stream:
            first = asyncio.ensure_future(driver.pull(stream, count=1, commit=False))
            await broker.until_subscribed()
            await broker.publish([b"1"])
            await first
            await broker.publish([b"2", b"3"])
            seen = broker.pings
            await until(lambda: broker.pings >= seen + 3)
            await driver.pull(stream, count=3)
    assert driver.records == [b"1", b"2", b"3"]


async def test_what_was_read_and_is_not_taken_apart_yet_takes_room() -> None:
    budget, count = InflightBudget(2**20), 2 * MESSAGES_AT_ONCE
    async with ScriptedBroker().listening() as broker:
        driver = driver_of(broker.port, room=budget)
        async with aclosing(driver.open()) as stream:
            first = asyncio.ensure_future(anext(stream))
            await broker.until_subscribed()
            broker.send(b"".join(packet(PUBLISH, text("t/x") + b"\0" + b"%d" % n) for n in range(count)))
            driver.take(await first)
            assert len(driver.records) <= MESSAGES_AT_ONCE
            assert budget.bytes > 0
            await driver.pull(stream, count=count)
        assert budget.bytes == 0


async def test_what_waits_of_all_feeds_together_is_bounded_by_the_memory_of_the_worker() -> None:
    budget, feeds, size = InflightBudget(200_000), 20, 10_000
    async with AsyncExitStack() as stack:
        for _ in range(feeds):
            broker = await stack.enter_async_context(ScriptedBroker().listening())
            driver = driver_of(broker.port, room=budget)
            stream = await stack.enter_async_context(aclosing(driver.open()))
            first = asyncio.ensure_future(driver.pull(stream, count=1, commit=False))
            await broker.until_subscribed()
            await broker.publish([bytes(1)])
            await first
            await broker.publish([bytes(size)] * 100)
        await until(lambda: budget.left <= 0)
        # Beyond the bound each feed may hold what it was reading, and one message.
        assert budget.bytes < 200_000 + feeds * (READ_AHEAD_BYTES + 2 * size)
    assert budget.bytes == 0
