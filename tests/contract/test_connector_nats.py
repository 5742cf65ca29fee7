"""The nats connector with a scripted server: what a real one will not do on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from feedq.connectors.nats import NatsConnector
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.telemetry.metrics import REGISTRY
from feedq.testing.driver import SECRET, ConnectorDriver
from feedq.testing.loopback import until
from tests.contract.loopback import assert_told
from tests.contract.nats_server import INFO, ScriptedServer


def driver_of(port: int, **options: Any) -> ConnectorDriver:
    login = {"username": "feeds", "password": "{pw}", "secrets": {"pw": "${env:PW}"}}
    return ConnectorDriver(
        NatsConnector, {"url": f"nats://127.0.0.1:{port}", "stream": "orders", **login, **options}
    )


@asynccontextmanager
async def waiting(driver: ConnectorDriver, server: ScriptedServer) -> AsyncIterator[asyncio.Task[None]]:
    """A connection that has pulled and waits for records that never come."""
    async with aclosing(driver.open()) as stream:
        task = asyncio.ensure_future(driver.pull(stream, count=1_000, commit=False))
        try:
            await server.until_pulled()
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def failure(task: asyncio.Task[None]) -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()


async def test_messages_are_acknowledged_by_the_last_of_their_batch() -> None:
    async with ScriptedServer().listening() as server:
        driver = driver_of(server.port)
        async with waiting(driver, server):
            for seq in (3, 4, 5):
                server.deliver(seq, b"%d" % seq)
            await until(lambda: len(driver.records) == 3)
            assert server.acknowledged == []
            for batch in driver.batches:
                driver.commit(batch)
            await until(lambda: len(server.acknowledged) >= 1)
            assert ".5.3." in server.acknowledged[-1]
        assert driver.cursor == {"seq": 5, "created": "2026-11-20T00:00:00+00:00"}
        (login,) = server.logins
        assert (login["user"], login["pass"], login["name"]) == (
            "feeds",
            SECRET,
            "feedq/conformance/conformance/feed",
        )


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_what_is_missing_after_the_cursor_is_counted(retention: str) -> None:
    """Acknowledged messages are not sent again to a feed whose sink has lost them."""

    async with ScriptedServer().listening() as server:
        server.retention = retention
        driver = driver_of(server.port)
        driver.cursor = {"seq": 2, "created": "2026-11-20T00:00:00+00:00"}
        missed = REGISTRY.get_sample_value("feedq_source_missed_total") or 0.0
        async with waiting(driver, server):
            server.deliver(6, b"6")
            server.deliver(7, b"7")
            await until(lambda: len(driver.records) == 2)
        assert REGISTRY.get_sample_value("feedq_source_missed_total") == missed + 3


async def test_a_message_that_is_no_record_is_acknowledged_after_those_before_it() -> None:
    async with ScriptedServer().listening() as server:
        driver = driver_of(server.port)
        async with waiting(driver, server):
            server.deliver(1, b"1")
            await until(lambda: len(driver.records) == 1)
            server.deliver(2, b"")
            # To see that nothing happens takes a moment.
            await asyncio.sleep(0.1)
            assert server.acknowledged == []
            driver.commit(driver.batches[0])
            await until(lambda: any(".2.2." in reply for reply in server.acknowledged))
            server.deliver(3, b"")
            await until(lambda: any(".3.3." in reply for reply in server.acknowledged))


async def test_a_delivery_that_went_missing_ends_the_connection() -> None:
    async with ScriptedServer().listening() as server:
        driver = driver_of(server.port)
        async with waiting(driver, server) as task:
            server.deliver(1, b"1")
            await until(lambda: len(driver.records) == 1)
            server.deliver(3, b"3", skipping=1)
            error = await failure(task)
        assert_told(error, SourceUnavailable, "delivery 2 went missing")
        assert driver.records == [b"1"]


async def test_a_consumer_without_heartbeats_is_gone_though_the_server_is_there() -> None:
    async with (
        ScriptedServer().listening() as server,
        waiting(driver_of(server.port, idle_timeout_s=2.1), server) as task,
    ):
        for _ in range(9):
            await asyncio.sleep(0.3)
            server.say("100 Idle Heartbeat")
        assert not task.done()
        assert type(await failure(task)) is SourceSilent


@pytest.mark.parametrize("status", ["409 Consumer Deleted", "409 Leadership Change", "503"])
async def test_a_consumer_that_is_taken_away_is_told(status: str) -> None:
    async with ScriptedServer().listening() as server, waiting(driver_of(server.port), server) as task:
        server.say(status)
        assert_told(await failure(task), SourceUnavailable, "the consumer is gone")


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        ('Permissions Violation for Publish to "$JS.ACK.orders"', FeedMisconfigured),
        ("User Authentication Expired", SourceUnavailable),
    ],
)
async def test_a_permission_that_is_missing_later_fails_the_feed_and_a_login_that_expires_is_tried_again(
    complaint: str, kind: type[Exception]
) -> None:
    async with ScriptedServer().listening() as server, waiting(driver_of(server.port), server) as task:
        server.complain(complaint)
        assert_told(await failure(task), kind, complaint.lower())


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"refusal": "Authorization Violation"}, FeedMisconfigured, "authorization violation"),
        ({"refusal": "Authentication Timeout"}, FeedMisconfigured, "authentication timeout"),
        ({"refusal": "maximum connections exceeded"}, SourceUnavailable, "maximum connections exceeded"),
        ({"info": INFO | {"version": "2.8.4"}}, FeedMisconfigured, "NATS 2.9 or later is needed"),
        ({"has_jetstream": False}, SourceUnavailable, "JetStream does not answer"),
        ({"retention": "interest"}, FeedMisconfigured, "its retention is by interest, which drops messages"),
    ],
)
async def test_a_refusal_says_whether_an_edit_or_another_try_can_help(
    changes: dict[str, Any], kind: type[Exception], says: str
) -> None:
    async with ScriptedServer().listening() as server:
        vars(server).update(changes)
        assert_told(await driver_of(server.port).read(), kind, says)
        assert server.consumers == []


async def test_several_subjects_are_asked_for_of_a_server_that_knows_them() -> None:
    async with ScriptedServer().listening() as server:
        async with waiting(driver_of(server.port, subjects=["o.a", "o.b"]), server):
            pass
        (config,) = server.consumers
        assert config["filter_subjects"] == ["o.a", "o.b"]
        assert (config["ack_policy"], config["max_ack_pending"]) == ("all", 20_000)


async def test_with_tls_wanted_no_password_is_sent_in_the_clear() -> None:
    async with ScriptedServer().listening() as server:
        assert_told(
            await driver_of(server.port, url=f"tls://127.0.0.1:{server.port}").read(),
            FeedMisconfigured,
            "offers no TLS",
        )
        assert server.heard == b""


async def test_a_server_that_demands_tls_is_not_given_a_password() -> None:
    async with ScriptedServer().listening() as server:
        server.info["tls_required"] = True
        assert_told(await driver_of(server.port).read(), FeedMisconfigured, "write tls://")
        assert server.heard == b""
