"""From a host's name to a socket: which addresses are tried, which never are, and what is left behind."""

from __future__ import annotations

import asyncio
import socketserver
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from threading import Thread

import pycares
import pytest

from feedq.connectors.base import Context
from feedq.connectors.wire import dialing
from feedq.connectors.wire.dialing import Dialed, dial_host
from feedq.core.clock import SystemClock
from feedq.core.permission import Permissions, parse_networks
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.loopback import RecordingGuard, serving, until
from tests.contract.loopback import unanswering, until_closed

HOST = "feeds.example"


class NameServer(socketserver.UDPServer):
    """Knows one name, whose addresses may change; of names of the domain ``dark`` it says nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.addresses: list[str] = []
        self.asked: list[str] = []


class Answer(socketserver.BaseRequestHandler):
    server: NameServer

    def handle(self) -> None:
        data, sock = self.request
        end = data.index(0, 12)
        name = ".".join(label.decode() for label in labels(data[12:end]))
        (kind,) = struct.unpack_from(">H", data, end + 1)
        if kind == A:
            self.server.asked.append(name)
        if name.endswith(".dark"):
            return
        found = [ip_address(address) for address in self.server.addresses] if name == HOST else []
        found = [address for address in found if kind == (A if address.version == 4 else AAAA)]
        answers = b"".join(
            struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(address.packed)) + address.packed
            for address in found
        )
        counts = struct.pack(">HHHHH", 0x8180 if name == HOST else 0x8183, 1, len(found), 0, 0)
        sock.sendto(data[:2] + counts + data[12 : end + 5] + answers, self.client_address)


A, AAAA = 1, 28


def labels(packed: bytes) -> Iterator[bytes]:
    while packed:
        yield packed[1 : packed[0] + 1]
        packed = packed[packed[0] + 1 :]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    with NameServer() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with closing(
            pycares.Channel(servers=[f"127.0.0.1:{server.server_address[1]}"], timeout=0.1, tries=5)
        ) as asking:
            monkeypatch.setattr(dialing, "name_servers", lambda: asking)
            yield server
        server.shutdown()
        thread.join()


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
    where, _, why = str(refused.value).partition(f": {HOST} is ")
    assert where == f"tcp://{HOST}:{port}"
    address, _, rule = why.partition(", ")
    assert address in names.addresses
    assert rule == "which feeds may not connect to (FEEDQ_EGRESS_DENY)"
    assert dialer.guard.seen == accepted == 0


async def test_a_name_that_comes_to_point_elsewhere_is_judged_anew(names: NameServer) -> None:
    dialer = Dialer()
    async with serving(idle) as port:
        names.addresses = ["127.0.0.1"]
        assert await dialer.peer(HOST, port) == "127.0.0.1"
        names.addresses = ["169.254.169.254"]
        with pytest.raises(FeedMisconfigured, match=r"169\.254\.169\.254, a link-local or metadata address"):
            await dialer.dial(HOST, port)
    assert names.asked == [HOST, HOST]


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


# -- names that are not resolved -------------------------------------------------------------------------


async def test_names_that_no_server_answers_for_keep_no_other_feed_from_connecting(names: NameServer) -> None:
    names.addresses = ["127.0.0.1"]
    hosts = [f"h{n}.dark" for n in range(500)]
    async with serving(idle) as port:
        dark = asyncio.gather(*(Dialer(timeout_s=1).peer(h, port) for h in hosts), return_exceptions=True)
        await until(lambda: set(names.asked) >= set(hosts))
        assert await Dialer().peer(HOST, port) == "127.0.0.1"
        assert not dark.done()
        (first, *_) = await dark
    assert str(first).endswith(
        ": h0.dark was not resolved in time (source.connect_timeout_s); does its name server answer?"
    )


async def test_a_name_that_there_is_not_says_so(names: NameServer) -> None:
    with pytest.raises(SourceUnavailable, match=r"cannot be resolved \(Name or service not known\); check"):
        await Dialer().dial("elsewhere.example", 1)


async def test_a_name_server_that_is_silent_is_not_waited_for_without_end(names: NameServer) -> None:
    with pytest.raises(
        SourceUnavailable, match=r"cannot be resolved \(Timeout while contacting DNS servers\)"
    ):
        await Dialer(timeout_s=60).dial("h.dark", 1)


async def test_names_of_this_machine_need_no_server(names: NameServer) -> None:
    async with serving(idle) as port:
        assert await Dialer().peer("localhost", port) == "127.0.0.1"
    assert names.asked == []


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
