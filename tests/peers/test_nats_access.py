"""The nats connector at the door of nats-server: ways to log in, TLS, and what it says when it is not let in."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest

from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.driver import SECRET
from tests.certificates import Authority
from tests.peers.nats import nats_server, publish, publishing
from tests.peers.servers import PeerServer
from tests.peers.test_nats_server import driver_of, stream_on

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
        error = await driver_of(server.port).read()
        assert isinstance(error, FeedMisconfigured)
        assert "no such stream; check source.stream" in str(error)


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
        assert isinstance(error, SourceUnavailable)
        assert "certificate" in str(error)
        error = await driver_of(server.port).read()
        assert isinstance(error, FeedMisconfigured)
        assert "write tls://" in str(error)
    finally:
        plain.stop()
        server.stop()
