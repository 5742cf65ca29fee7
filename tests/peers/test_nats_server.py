"""The nats connector against nats-server: exactly once, whatever its stream's retention."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import nats
import nkeys
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy
from structlog.testing import capture_logs

from feedq.connectors import nats_consumer
from feedq.connectors.nats import NatsConnector
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.telemetry.logs import LogEvent
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.driver import SECRET, ConnectorDriver
from feedq.testing.loopback import Relay, until
from tests.certificates import Authority
from tests.contract.erratic import SHORT_LIVES, ErraticWorker, reading
from tests.contract.loopback import assert_told
from tests.peers.servers import PeerServer

FEED = "acme/orders"


@pytest.fixture
def server(peer_dir: Path) -> Iterator[PeerServer]:
    with nats_server(peer_dir) as started:
        yield started


@pytest.fixture(params=(RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE), ids=lambda policy: policy.value)
def retention(request: pytest.FixtureRequest) -> RetentionPolicy:
    chosen: RetentionPolicy = request.param
    return chosen


def driver_of(port: int, **options: Any) -> ConnectorDriver:
    return ConnectorDriver(
        NatsConnector, {"url": f"nats://127.0.0.1:{port}", "stream": "orders", **options}, feed=FEED
    )


@asynccontextmanager
async def stream_on(server: PeerServer, **config: Any) -> AsyncIterator[JetStreamContext]:
    """A stream named ``orders`` of the subjects below ``o``."""
    async with publishing(server.port) as (_, js):
        await js.add_stream(name="orders", subjects=["o.>"], **config)
        yield js


async def consumers(js: JetStreamContext) -> list[str]:
    return sorted(one.name for one in await js.consumers_info("orders"))


async def until_left(js: JetStreamContext, messages: int) -> None:
    async with asyncio.timeout(20):
        while (await js.stream_info("orders")).state.messages != messages:
            await asyncio.sleep(0.01)


def gaps(logs: Any) -> list[str]:
    return [line["detail"] for line in logs if line["event"] == LogEvent.SOURCE_GAP]


def numbered(count: int) -> list[bytes]:
    return [b'{"seq": %d}' % seq for seq in range(count)]


# -- exactly once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_a_worker_that_dies_at_any_moment_lands_each_message_once(
    server: PeerServer, retention: RetentionPolicy, seed: int
) -> None:
    sent = numbered(2_000)

    async with (
        stream_on(server, retention=retention) as js,
        Relay(f"127.0.0.1:{server.port}").listening() as relay,
    ):
        _, _, port = relay.where.rpartition(":")
        driver = driver_of(int(port), batch_messages=50, max_unacknowledged=200)
        await publish(js, "o.new", sent)
        worker = ErraticWorker(driver, relay, seed=seed)
        await worker.land(len(sent))
        assert worker.landed == sent
        assert worker.lives > SHORT_LIVES
        assert len(await consumers(js)) == 1


async def test_what_was_committed_and_not_acknowledged_leaves_a_work_queue_and_does_not_land_again(
    server: PeerServer,
) -> None:
    async with stream_on(server, retention=RetentionPolicy.WORK_QUEUE) as js:
        driver = driver_of(server.port)
        async with reading(driver, 5, commit=False):
            await publish(js, "o.new", numbered(5))
        for batch in driver.batches:
            driver.commit(batch)  # its connection has ended
        await publish(js, "o.new", [b"after"])
        async with reading(driver, 1):
            pass
        assert driver.records == [*numbered(5), b"after"]
        async with reading(driver, 1):
            await until_left(js, 0)
            await publish(js, "o.new", [b"end"])


async def test_a_message_that_is_delivered_again_is_dropped(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch, retention: RetentionPolicy
) -> None:
    # As if the sink had been away for a day.
    monkeypatch.setattr(nats_consumer, "ACK_WAIT_S", 0.3)

    async with stream_on(server, retention=retention) as js:
        driver = driver_of(server.port)
        async with aclosing(driver.open()) as stream:
            taking = asyncio.ensure_future(driver.pull(stream, count=3, commit=False))
            await until(lambda: driver.connected == 1)
            await publish(js, "o.new", numbered(3))
            await taking
            taking = asyncio.ensure_future(driver.pull(stream, count=4, commit=False))
            async with asyncio.timeout(20):
                while not sum(one.num_redelivered or 0 for one in await js.consumers_info("orders")):
                    await asyncio.sleep(0.05)
            await publish(js, "o.new", [b"after"])
            await taking
        assert driver.records == [*numbered(3), b"after"]


async def test_no_more_comes_than_may_be_unacknowledged(
    server: PeerServer, retention: RetentionPolicy
) -> None:
    async with stream_on(server, retention=retention) as js:
        driver = driver_of(server.port, max_unacknowledged=50)
        async with aclosing(driver.open()) as stream:
            taking = asyncio.ensure_future(driver.pull(stream, count=50, commit=False))
            await until(lambda: driver.connected == 1)
            await publish(js, "o.new", numbered(300))
            await taking
            (consumer,) = await js.consumers_info("orders")
            assert consumer.delivered is not None
            assert consumer.delivered.stream_seq == 50
            for batch in driver.batches:
                driver.commit(batch)
            await driver.pull(stream, count=300)
        assert driver.records == numbered(300)


# -- where it begins -----------------------------------------------------------------------------------------


async def test_new_begins_where_the_feed_first_connected_though_nothing_has_landed(
    server: PeerServer, retention: RetentionPolicy
) -> None:
    if retention is RetentionPolicy.WORK_QUEUE:
        return  # is always read from its beginning

    async with stream_on(server, retention=retention) as js:
        await publish(js, "o.new", [b"before"])
        driver = driver_of(server.port, deliver="new")
        async with reading(driver, 1, commit=False):
            await publish(js, "o.new", [b"1"])
        driver.records.clear()
        await publish(js, "o.new", [b"2"])
        async with reading(driver, 2):
            pass
        assert driver.records == [b"1", b"2"]


# -- gaps ----------------------------------------------------------------------------------------------------


async def test_messages_that_were_discarded_before_they_were_read_are_told(server: PeerServer) -> None:
    async with stream_on(server, max_msgs=3) as js:
        driver = driver_of(server.port)
        await publish(js, "o.new", numbered(1))
        await driver.land(1)
        await publish(js, "o.new", numbered(6)[1:])
        with capture_logs() as logs:
            await driver.land(4)
        assert driver.records == [numbered(1)[0], *numbered(6)[3:]]
        assert gaps(logs) == ["the oldest message left is 4, the last one read was 1"]


async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(server: PeerServer) -> None:
    async with stream_on(server) as js:
        driver = driver_of(server.port)
        await publish(js, "o.new", numbered(3))
        await driver.land(3)
        await js.delete_stream("orders")
        await js.add_stream(name="orders", subjects=["o.>"])
        await publish(js, "o.new", [b"a", b"b", b"c", b"d"])
        with capture_logs() as logs:
            await driver.land(7)
        assert driver.records[3:] == [b"a", b"b", b"c", b"d"]
        (gap,) = gaps(logs)
        assert "recreated" in gap


# -- beside others -------------------------------------------------------------------------------------------


async def test_a_worker_that_takes_over_ends_its_predecessor(
    server: PeerServer, retention: RetentionPolicy
) -> None:
    async with stream_on(server, retention=retention) as js:
        before, after = driver_of(server.port), driver_of(server.port)
        async with aclosing(before.open()) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            async with asyncio.timeout(20):
                # When its request is under way; one that comes later only notices that nothing comes.
                while not sum(one.num_waiting or 0 for one in await js.consumers_info("orders")):
                    await asyncio.sleep(0.01)
            async with reading(after, 1):
                with pytest.raises(SourceUnavailable, match="moved to another worker"):
                    await waiting
                await publish(js, "o.new", [b"1"])
        assert len(await consumers(js)) == 1


async def test_a_trial_neither_disturbs_the_feed_nor_leaves_anything(
    server: PeerServer, retention: RetentionPolicy
) -> None:
    async with stream_on(server, retention=retention) as js:
        feed, trial = driver_of(server.port), driver_of(server.port)
        trial.context = replace(trial.context, trial=True)
        async with reading(feed, 2):
            await publish(js, "o.new", [b"1"])
            if retention is RetentionPolicy.WORK_QUEUE:
                assert_told(await trial.read(), FeedMisconfigured, "has one consumer")
                await publish(js, "o.new", [b"2"])
            else:
                async with reading(trial, 1):
                    await publish(js, "o.new", [b"2"])
        assert feed.records == [b"1", b"2"]
        assert len(await consumers(js)) == 1


async def test_a_feed_that_starts_does_not_find_a_work_queue_taken_by_a_trial(server: PeerServer) -> None:
    async with stream_on(server, retention=RetentionPolicy.WORK_QUEUE) as js:
        await publish(js, "o.new", [b"1"])
        feed, trial = driver_of(server.port), driver_of(server.port)
        trial.context = replace(trial.context, trial=True)
        async with aclosing(trial.open()) as stream:
            await trial.pull(stream, count=1)
            await feed.land(1)
        assert feed.records == [b"1"]


# -- in a cluster --------------------------------------------------------------------------------------------

USER = {"username": "feeds", "password": "{password}", "secrets": {"password": "${env:NATS_PASSWORD}"}}


@asynccontextmanager
async def filled(server: PeerServer, **login: Any) -> AsyncIterator[None]:
    """The stream of the feed, with one message."""
    async with publishing(server.port, **login) as (_, js):
        await js.add_stream(name="orders", subjects=["o.>"])
        await publish(js, "o.new", [b"1"])
        yield


def seed_of(kind: int) -> str:
    """A new key of a kind: `nkeys.PREFIX_BYTE_USER` and so on."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), kind)
    return seed.decode()


def public(seed: str) -> str:
    key: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    return key.decode()


async def test_a_password_is_taken_out_of_the_secrets(peer_dir: Path) -> None:

    with nats_server(peer_dir, authorization={"users": [{"user": "feeds", "password": SECRET}]}) as server:
        async with filled(server, user="feeds", password=SECRET):
            await driver_of(server.port, **USER).land(1)


async def test_a_token_lets_it_in(peer_dir: Path) -> None:

    with nats_server(peer_dir, authorization={"token": SECRET}) as server:
        async with filled(server, token=SECRET):
            secrets = {"token": "${env:NATS_TOKEN}"}
            await driver_of(server.port, token="{token}", secrets=secrets).land(1)


async def test_an_nkey_lets_it_in(peer_dir: Path) -> None:
    seed = seed_of(nkeys.PREFIX_BYTE_USER)

    with nats_server(peer_dir, authorization={"users": [{"nkey": public(seed)}]}) as server:
        async with filled(server, nkeys_seed_str=seed):
            await driver_of(server.port, nkey_seed=seed).land(1)


@pytest.mark.parametrize(
    "login",
    [
        {"username": "feeds", "password": "wrong-s3cret"},
        {"username": "nobody", "password": "s3cret"},
        {"token": "wrong-s3cret"},
        {"nkey_seed": seed_of(nkeys.PREFIX_BYTE_USER)},
        {"nkey_seed": "no-s3cret"},
        {"credentials": "no-s3cret"},
        {},
    ],
    ids=["password", "user", "token", "nkey", "no nkey", "no credentials", "nothing"],
)
async def test_refused_credentials_fail_the_feed(peer_dir: Path, login: dict[str, str]) -> None:

    with nats_server(peer_dir, authorization={"users": [{"user": "feeds", "password": SECRET}]}) as server:
        error = await driver_of(server.port, **login).read()
        assert isinstance(error, FeedMisconfigured), error
        assert "source." in str(error)
        assert "s3cret" not in str(error)
        assert login.get("nkey_seed", "no seed") not in str(error)


async def test_a_stream_that_does_not_exist_fails_the_feed(peer_dir: Path) -> None:

    with nats_server(peer_dir) as server:
        assert_told(
            await driver_of(server.port).read(), FeedMisconfigured, "no such stream; check source.stream"
        )


@pytest.mark.parametrize(
    "denied", ["$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.MSG.NEXT.>"]
)
async def test_a_permission_that_is_missing_fails_the_feed(peer_dir: Path, denied: str) -> None:

    users = [
        {"user": "admin", "password": SECRET},
        {"user": "feeds", "password": SECRET, "permissions": {"publish": {"deny": [denied]}}},
    ]
    with nats_server(peer_dir, authorization={"users": users}) as server:
        async with filled(server, user="admin", password=SECRET):
            error = await driver_of(server.port, **USER).read()
        assert isinstance(error, FeedMisconfigured), error
        assert "permissions violation" in str(error).lower()
        assert denied.removesuffix(".>").lower() in str(error).lower()


async def test_an_inbox_of_its_own_is_enough_for_a_user_of_few_permissions(peer_dir: Path) -> None:

    may = {"publish": ["$JS.API.>", "$JS.ACK.>"], "subscribe": ["_INBOX_feeds.>"]}
    users = [
        {"user": "admin", "password": SECRET},
        {"user": "feeds", "password": SECRET, "permissions": may},
    ]
    with nats_server(peer_dir, authorization={"users": users}) as server:
        async with filled(server, user="admin", password=SECRET):
            error = await driver_of(server.port, **USER).read()
            assert isinstance(error, FeedMisconfigured)
            await driver_of(server.port, **USER, inbox_prefix="_INBOX_feeds").land(1)


async def test_it_reads_over_tls_and_checks_the_name(peer_dir: Path) -> None:
    authority = Authority(peer_dir)
    sent = [b"x" * 50_000, *(b"%d" % n for n in range(1_000))]

    def secured(port: int, name: str) -> Any:
        tls = {"ca_file": authority.ca_file, "server_name": name}
        return driver_of(port, **{"url": f"tls://127.0.0.1:{port}", **tls})

    plain = nats_server(peer_dir)
    plain.start()
    server = nats_server(peer_dir, tls=authority.files("nats.example"))
    try:
        async with stream_on(plain) as js:
            await publish(js, "o.new", sent)
        plain.stop()
        # The same store, and the port of its own.
        server.start()
        driver = secured(server.port, "nats.example")
        await driver.land(len(sent))
        assert driver.records == sent
        error = await secured(server.port, "other.example").read()
        assert_told(error, SourceUnavailable, "certificate")
        error = await driver_of(server.port).read()
        assert_told(error, FeedMisconfigured, "write tls://")
    finally:
        plain.stop()
        server.stop()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[PeerServer]:
    with tempfile.TemporaryDirectory(prefix="feedq-peer-") as directory:
        users = [{"user": "feeds", "password": SECRET}]
        with nats_server(Path(directory), authorization={"users": users}) as started:
            yield started


class NatsConformance(ConnectorConformance):
    """With a stream of its own for each test."""

    kind = NatsConnector
    acknowledges = True
    retention: ClassVar[RetentionPolicy]

    @pytest.fixture(autouse=True)
    def _server(self, shared_server: PeerServer) -> None:
        self.server = shared_server

    @property
    def name(self) -> str:
        return self.feed.replace("/", "_")

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        async with publishing(self.server.port, user="feeds", password=SECRET) as (_, js):
            await js.add_stream(name=self.name, subjects=[self.name], retention=self.retention)
            try:
                yield Served(
                    f"127.0.0.1:{self.server.port}",
                    lambda records: publish(js, self.name, records),
                    lambda: acknowledged(js, self.name),
                )
            finally:
                await js.delete_stream(self.name)

    def cuts(self, down_bytes: int) -> Sequence[int]:
        """Some, drawn anew each time: with all that a server says before, each would take minutes."""
        seed = Random().randrange(10_000)
        print(f"seed {seed}")
        return Random(seed).sample(range(down_bytes + 1), 60)

    def options(self, where: str) -> dict[str, Any]:
        return {
            "url": f"nats://{where}",
            "stream": self.name,
            "username": "feeds",
            "password": "{password}",
            "secrets": {"password": "${env:NATS_PASSWORD}"},
        }


class TestNatsLimits(NatsConformance):
    """A stream that keeps messages up to its limits."""

    retention = RetentionPolicy.LIMITS


class TestNatsWorkQueue(NatsConformance):
    """A stream that keeps messages until they are acknowledged."""

    retention = RetentionPolicy.WORK_QUEUE
    # From its cursor on it does, but not from one that is long passed: what was acknowledged is gone.
    resumes = False


# -- the server, and whoever publishes there ---------------------------------------------------------


def nats_server(directory: Path, **config: Any) -> PeerServer:
    """``config`` goes into its configuration, which is JSON as well."""
    server = PeerServer("nats-server", "-c", "{directory}/nats.conf", directory=directory)
    whole = {
        "host": "127.0.0.1",
        "port": server.port,
        "jetstream": {"store_dir": str(directory / "jetstream")},
        **config,
    }
    (directory / "nats.conf").write_text(json.dumps(whole))
    return server


@asynccontextmanager
async def publishing(port: int, **login: Any) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, **login)
    try:
        yield client, client.jetstream()
    finally:
        await client.close()


async def publish(js: JetStreamContext, subject: str, payloads: Sequence[bytes], **how: Any) -> None:
    """Return when the stream has all of them, in order."""
    for start in range(0, len(payloads), 200):
        for payload in payloads[start : start + 200]:
            await js.publish_async(subject, payload, **how)
        await js.publish_async_completed()


async def acknowledged(js: JetStreamContext, stream: str) -> int:
    """Up to which sequence the stream's consumers have acknowledged."""
    consumers = await js.consumers_info(stream)
    return max((one.ack_floor.stream_seq for one in consumers if one.ack_floor), default=0)
