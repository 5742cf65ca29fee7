"""The tcp connector against real sockets: its dialogue with a source, framing, bounds and sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from feedq.connectors.tcp import TcpConnector
from feedq.connectors.wire.remote import TlsFiles, client_context
from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch
from feedq.records.framing import BYTE_ORDER_MARK
from feedq.testing.loopback import PATIENCE_S, serving, until
from tests.certificates import Authority
from tests.contract.loopback import Feed, records_of, until_closed

HELLO = r'{"feed": {name}, "from": {cursor}, "token": "{token}"}\n'


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def says(data: bytes, *, stays: bool = False) -> Callable[..., Awaitable[None]]:
    """A source that sends this and, unless it ``stays``, closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if stays:
            await until_closed(reader)

    return script


async def ended(script: Callable[..., Awaitable[None]], **source: Any) -> tuple[list[Batch], FeedqError, str]:
    """What is read from a source, the error that ends it, and the source's name in messages."""
    async with serving(script) as port:
        batches, error = await Feed(TcpConnector).read_to_end(url(port), **source)
    return batches, error, url(port)


# -- hello ---------------------------------------------------------------------------------------------


async def test_hello_carries_name_cursor_and_secret_and_records_come_back() -> None:
    hellos = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.readline())
        writer.write(b'{"seq": 18}\r\n\n{"seq": 19}\n')
        await writer.drain()

    feed = Feed(TcpConnector, secrets={"token": "s3cret"})
    async with serving(script) as port:
        batches, error = await feed.read_to_end(url(port), after=17, hello=HELLO, cursor="/seq")
    assert hellos == [b'{"feed": "acme/orders", "from": 17, "token": "s3cret"}\n']
    assert records_of(batches) == [b'{"seq": 18}', b'{"seq": 19}']
    assert batches[-1].cursor == 19
    assert str(error) == f"{url(port)}: closed by the peer"


async def test_what_a_hello_expects_is_waited_for_and_is_no_record() -> None:
    feed = Feed(TcpConnector)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for crumb in (b"Welcome!\nlog", b"in: "):
            writer.write(crumb)
            await writer.drain()
        assert await reader.readline() == b"guest\n"
        assert not feed.connected
        writer.write(b"ok\r\n1\n2\n")
        await writer.drain()

    async with serving(script) as port:
        hello = [{"expect": "login: "}, {"send": r"guest\n", "expect": r"ok\r\n"}]
        batches, error = await feed.read_to_end(url(port), hello=hello)
    assert records_of(batches) == [b"1", b"2"]
    assert feed.connected
    assert str(error) == f"{url(port)}: closed by the peer"


@pytest.mark.parametrize(
    ("said", "shown"),
    [(b"", "nothing"), (b"bad login\n", r"'bad login\n'"), (b"x" * 900, f"'{'x' * 200}'…")],
)
async def test_a_source_that_says_something_else_is_quoted(said: bytes, shown: str) -> None:
    batches, error, where = await ended(says(said), hello=[{"expect": "ok"}])
    assert batches == []
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{where}: closed by the peer; source.hello expects 'ok', and it said {shown}"


@pytest.mark.parametrize("cut", [12, 150, 240, 400])
async def test_of_a_source_that_echoes_a_secret_no_part_is_quoted(cut: int) -> None:
    secret = "".join(f"s3cret-{number:03}" for number in range(30))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readuntil(b"!")
        writer.write(said[:cut])
        await writer.drain()

    async with serving(echo) as port:
        hello = [{"send": "auth {token}!", "expect": "ok"}]
        _, error = await Feed(TcpConnector, secrets={"token": secret}).read_to_end(url(port), hello=hello)
    assert "and it said 'auth ***" in str(error)
    assert "s3cret" not in str(error)


async def test_a_source_that_never_says_what_is_expected_is_given_up() -> None:
    hello = [{"send": "guest", "expect": "ok"}]
    _, error, where = await ended(says(b"", stays=True), hello=hello, connect_timeout_s=0.05)
    assert str(error) == (
        f"{where}: no answer within 0.05 s (source.connect_timeout_s); "
        "source.hello expects 'ok', and it said nothing"
    )
    _, error, _ = await ended(says(b"x" * 10**6, stays=True), hello=hello)
    assert "no answer in its first 65536 bytes; source.hello expects 'ok', and it said 'xxx" in str(error)


async def test_a_source_that_closes_before_it_sends_anything_says_so() -> None:
    _, error, where = await ended(says(b""))
    assert isinstance(error, SourceUnavailable)
    assert str(error) == f"{where}: closed by the peer before it sent anything"


# -- pings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record_format", "mark"), [("json", b""), ("text", b""), ("bytes", BYTE_ORDER_MARK)]
)
async def test_a_byte_order_mark_before_the_first_record_is_no_data(record_format: str, mark: bytes) -> None:
    batches, _, _ = await ended(says(BYTE_ORDER_MARK + b"1\n2\n"), format=record_format)
    assert records_of(batches) == [mark + b"1", b"2"]


async def test_pings_are_answered_and_do_not_land() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in (1, 2):
            writer.write(b'{"seq": %d}\nPING %d\n' % (n, n))
            assert await reader.readline() == b"PONG %d\n" % n
        # One that is alone makes no batch.
        writer.write(b"PING 3\n")
        assert await reader.readline() == b"PONG 3\n"

    ping = {"prefix": "PING ", "answer": r"PONG {rest}\n"}
    batches, error, where = await ended(script, ping=ping, cursor="/seq")
    assert [batch.split() for batch in batches] == [(b'{"seq": 1}',), (b'{"seq": 2}',)]
    assert batches[-1].cursor == 2
    assert str(error) == f"{where}: closed by the peer"


# -- sockets -------------------------------------------------------------------------------------------

NAMES = ("127.0.0.1", "feeds.example")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def send_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"1\n")
    await until_closed(reader)


def tls_url(port: int, host: str = "127.0.0.1") -> str:
    return f"tls://{host}:{port}"


async def first_record(port: int, **source: Any) -> bytes:
    feed = Feed(TcpConnector)
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(feed.open(tls_url(port), **source)) as stream,
    ):
        (record,) = (await anext(stream)).split()
    assert not feed.guard.watched
    return record


async def refusal(port: int, **source: Any) -> str:
    feed = Feed(TcpConnector)
    batches, error = await feed.read_to_end(tls_url(port), **source)
    assert batches == []
    assert isinstance(error, SourceUnavailable)
    assert not isinstance(error, SourceSilent)
    assert not feed.guard.watched
    assert str(error).startswith(f"{tls_url(port)}: ")
    return str(error)


async def test_a_trusted_source_streams_over_tls(authority: Authority) -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in range(1_000):
            writer.write(b'{"seq": %d, "pad": "%s"}\n' % (n, b"x" * 1_000))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with serving(script, tls=authority.server(*NAMES)) as port:
        batches, error = await Feed(TcpConnector).read_to_end(
            tls_url(port), cursor="/seq", ca_file=authority.ca_file, buffer_bytes=10_000
        )
    assert len(records_of(batches)) == 1_000
    assert batches[-1].cursor == 999
    assert "closed by the peer" in str(error)


async def test_a_certificate_of_an_unknown_authority_is_not_accepted(authority: Authority) -> None:
    async with serving(send_one, tls=authority.server(*NAMES)) as port:
        message = await refusal(port)
        assert "its certificate is not accepted: unable to get local issuer certificate" in message
        assert "source.ca_file" in message
        assert await first_record(port, verify=False) == b"1"


async def test_a_certificate_for_another_name_is_not_accepted(authority: Authority) -> None:
    trusted = {"ca_file": authority.ca_file}
    async with serving(send_one, tls=authority.server(*NAMES)) as port:
        message = await refusal(port, server_name="other.example", **trusted)
        assert "Hostname mismatch" in message
        assert "source.server_name" in message
        assert await first_record(port, server_name="feeds.example", **trusted) == b"1"


async def test_a_source_that_wants_a_client_certificate_gets_it(authority: Authority) -> None:
    trusted = {"ca_file": authority.ca_file}
    client = authority.files("worker@feeds.example")
    async with serving(send_one, tls=authority.server(*NAMES, client=ssl.CERT_REQUIRED)) as port:
        assert await first_record(port, **trusted, **client) == b"1"
        await refusal(port, **trusted)


async def test_a_source_that_does_not_speak_tls_says_so() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello, this is not TLS\r\n")
        await until_closed(reader)

    async with serving(script) as port:
        assert "TLS failed: " in await refusal(port)


async def test_cancelling_during_the_handshake_closes_the_socket() -> None:
    opened, closed = asyncio.Event(), asyncio.Event()
    feed = Feed(TcpConnector)

    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        opened.set()
        await until_closed(reader)
        closed.set()

    async with serving(script) as port:
        task = asyncio.ensure_future(anext(feed.open(tls_url(port))))
        async with asyncio.timeout(PATIENCE_S):
            await opened.wait()
        assert len(feed.guard.watched) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not feed.guard.watched
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()


async def test_a_broken_tls_stream_ends_with_an_error_and_forgets_its_socket_in_time(
    authority: Authority,
) -> None:
    feed = Feed(TcpConnector)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\n")
        await writer.drain()
        await go_on.wait()
        # Past the TLS layer, onto the wire: no TLS record looks like this.
        descriptor = os.dup(writer.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as sock:
            sock.send(b"garbage" * 10)
        await until_closed(reader)

    async with serving(script, tls=authority.server(*NAMES)) as port:
        go_on = asyncio.Event()
        stream = feed.open(tls_url(port), ca_file=authority.ca_file)
        await anext(stream)
        go_on.set()
        with pytest.raises(SourceUnavailable, match="TLS failed: "):
            await anext(stream)
        await until(lambda: not feed.guard.watched)


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
async def test_a_tls_file_that_is_missing_or_no_certificate_fails_the_feed(
    authority: Authority, tmp_path: Path, option: str
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")

    async with serving(send_one, tls=authority.server(*NAMES)) as port:
        _, error = await Feed(TcpConnector).read_to_end(
            tls_url(port), **{option: str(tmp_path / "missing.pem")}
        )
        assert isinstance(error, FeedMisconfigured)
        assert str(error).startswith(f"source.{option}: {tmp_path / 'missing.pem'} cannot be read")
        _, error = await Feed(TcpConnector).read_to_end(tls_url(port), **{option: str(nonsense)})
        assert isinstance(error, FeedMisconfigured)
        assert str(error).startswith(f"source.{option}: {nonsense}")


def test_an_encrypted_key_is_refused_without_asking_for_its_password(
    authority: Authority, tmp_path: Path
) -> None:

    client = authority.files("worker@feeds.example")
    key = serialization.load_pem_private_key(Path(client["key_file"]).read_bytes(), password=None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    files = TlsFiles(cert_file=client["cert_file"], key_file=str(encrypted))
    with pytest.raises(FeedMisconfigured, match="unencrypted private key"):
        client_context(files)
