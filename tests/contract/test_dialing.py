"""From a host's name to a socket: which addresses are tried, which never are, and what is left behind."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from feedq.connectors.base import Context
from feedq.connectors.wire.dialing import Dialed, dial_host
from feedq.core.clock import SystemClock
from feedq.core.permission import Permissions, parse_networks
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.loopback import RecordingGuard, serving, until
from tests.contract.loopback import unanswering, until_closed

HOST = "feeds.example"


@pytest.fixture
def new_event_loop() -> object:
    """uvloop asks the resolver of the C library directly, where no test can answer."""
    return asyncio.new_event_loop


class NameServer:
    """Knows one name, whose addresses may change."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked = 0

    def getaddrinfo(self, host: str, port: int, *_: Any, flags: int = 0, **__: Any) -> list[Any]:
        if host != HOST:
            return resolver(host, port, type=socket.SOCK_STREAM, flags=flags)
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.asked += 1
        return [resolver(address, port, type=socket.SOCK_STREAM)[0] for address in self.addresses]


resolver = socket.getaddrinfo


@pytest.fixture
def names(new_event_loop: object, monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    return server


class Dialer:
    """A feed that may not connect to some networks."""

    def __init__(self, *, deny: str = "", allow: str = "", timeout_s: float = 10.0) -> None:
        self.guard = RecordingGuard()
        self._timeout_s = timeout_s
        self._context = Context(
            "acme/orders",
            SystemClock(),
            self.guard,
            lambda: None,
            {},
            permissions=Permissions(deny=parse_networks(deny.split()), allow=parse_networks(allow.split())),
        )

    async def dial(self, host: str, port: int) -> Dialed:
        where = f"tcp://{host}:{port}"
        return await dial_host(host, port, where=where, context=self._context, timeout_s=self._timeout_s)

    async def peer(self, host: str, port: int) -> str:
        """The address that it was connected to."""
        dialed = await self.dial(host, port)
        assert self.guard.watched
        address = dialed.sock.getpeername()[0]
        dialed.close()
        assert not self.guard.watched
        return str(address)


async def idle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await until_closed(reader)


# -- several addresses ---------------------------------------------------------------------------------


async def test_of_several_addresses_only_those_that_are_permitted_are_tried(names: NameServer) -> None:
    names.addresses = ["169.254.169.254", "127.0.0.2", "127.0.0.1"]
    dialer = Dialer(deny="127.0.0.2")
    async with serving(idle) as port:
        assert await dialer.peer(HOST, port) == "127.0.0.1"
    assert dialer.guard.seen == 1


async def test_a_host_with_no_address_that_is_permitted_fails_the_feed_and_gets_no_packet(
    names: NameServer,
) -> None:
    accepted = 0

    async def count(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1

    names.addresses = ["127.0.0.1", "::1"]
    dialer = Dialer(deny="127.0.0.0/8 ::1")
    async with serving(count) as port:
        with pytest.raises(FeedMisconfigured) as refused:
            await dialer.dial(HOST, port)
        # To see that nothing happens takes a moment.
        await asyncio.sleep(0.05)
    assert str(refused.value) == (
        f"tcp://{HOST}:{port}: {HOST} is 127.0.0.1, which feeds may not connect to (FEEDQ_EGRESS_DENY)"
    )
    assert dialer.guard.seen == accepted == 0


async def test_a_name_that_comes_to_point_elsewhere_is_judged_anew(names: NameServer) -> None:
    dialer = Dialer()
    async with serving(idle) as port:
        names.addresses = ["127.0.0.1"]
        assert await dialer.peer(HOST, port) == "127.0.0.1"
        names.addresses = ["169.254.169.254"]
        with pytest.raises(FeedMisconfigured, match=r"169\.254\.169\.254, a link-local or metadata address"):
            await dialer.dial(HOST, port)
    assert names.asked == 2


async def test_the_next_address_is_tried_when_one_refuses(names: NameServer) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    dialer = Dialer()
    async with serving(idle) as port:
        assert await dialer.peer(HOST, port) == "127.0.0.1"
    assert dialer.guard.seen == 3


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(names: NameServer) -> None:
    names.addresses = ["127.0.0.1", "127.0.0.2"]
    dialer = Dialer(timeout_s=2.0)
    with unanswering() as where:
        port = int(where.rpartition(":")[2])
        async with serving(idle, host="127.0.0.2", port=port):
            assert await dialer.peer(HOST, port) == "127.0.0.2"
    assert dialer.guard.seen == 2


# -- what is left behind -------------------------------------------------------------------------------


async def test_no_answer_within_the_time_says_which_option_it_is() -> None:
    dialer = Dialer(timeout_s=0.1)
    with unanswering() as where:
        port = int(where.rpartition(":")[2])
        with pytest.raises(SourceUnavailable, match=r"within 0\.1 s \(source\.connect_timeout_s\)$"):
            await dialer.dial("127.0.0.1", port)
    assert not dialer.guard.watched


async def test_a_dial_that_is_cancelled_leaves_nothing() -> None:
    dialer = Dialer()
    with unanswering() as where:
        dialing = asyncio.ensure_future(dialer.dial("127.0.0.1", int(where.rpartition(":")[2])))
        await until(lambda: bool(dialer.guard.watched))
        dialing.cancel()
        await asyncio.wait([dialing])
    assert dialing.cancelled()
    assert not dialer.guard.watched
