"""PostgreSQL and a broker that speak TLS alone, and a user of the broker who may not CONFIG: as on AWS."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from feedq.local.valkey import Valkey
from tests.certificates import Authority
from tests.cluster import Cluster, feed, wait_until
from tests.invariants import wait_streaming
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

USER, PASSWORD = "feedq", "as-elasticache-has-it"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "ours").mkdir()
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    (tmp_path / "strange").mkdir()
    return Authority(tmp_path / "strange")


@pytest.fixture
def database(database_url: str, authority: Authority) -> Iterator[tuple[TlsProxy, str]]:
    """Its proxy, and its URL with all but the authority to trust."""
    at = urlsplit(database_url)
    assert at.port is not None
    with TlsProxy(at.port, authority.server("localhost"), postgresql=True) as proxy:
        login = at.netloc.rpartition("@")[0]
        yield proxy, f"postgresql://{login}@localhost:{proxy.port}{at.path}?sslmode=verify-full&sslrootcert="


@pytest.fixture
def broker(valkey: Valkey, broker_url: str, authority: Authority) -> Iterator[tuple[TlsProxy, str]]:
    client = valkey.client()
    client.acl_setuser(
        USER,
        enabled=True,
        passwords=[f"+{PASSWORD}"],
        keys="*",
        channels="*",
        categories=["+@all"],
        commands=["-config"],
    )
    at = urlsplit(broker_url)
    assert at.port is not None
    with TlsProxy(at.port, authority.server("localhost"), postgresql=False) as proxy:
        url = (
            f"rediss://{USER}:{PASSWORD}@localhost:{proxy.port}{at.path}?ssl_cert_reqs=required&ssl_ca_certs="
        )
        yield proxy, url
    client.acl_deluser(USER)
    client.close()


def test_a_fleet_streams_over_tls_with_a_broker_that_forbids_config(
    tmp_path: Path, database: tuple[TlsProxy, str], broker: tuple[TlsProxy, str], authority: Authority
) -> None:
    trusted = authority.ca_file
    fleet = Cluster(tmp_path, database_url=database[1] + trusted, broker_url=broker[1] + trusted)
    with Source() as source, fleet as cluster:
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        cluster.apply([feed("over/tls", source.url)])
        wait_streaming(source, ["over/tls"])
        wait_until(lambda: cluster.leases()["over/tls"].records_total, "records land")
        said = cluster.run("doctor")
        assert " 0 failed" in said.stdout, said.stdout
        assert "the broker's settings cannot be read" in said.stdout, "CONFIG is forbidden"
        assert database[0].passed_on >= 4
        assert broker[0].passed_on >= 2


def test_a_certificate_that_nobody_trusted_vouches_for_is_refused(
    tmp_path: Path,
    database: tuple[TlsProxy, str],
    broker: tuple[TlsProxy, str],
    authority: Authority,
    stranger: Authority,
) -> None:
    right, wrong = authority.ca_file, stranger.ca_file
    with Cluster(tmp_path, database_url=database[1] + right, broker_url=broker[1] + wrong) as cluster:
        said = cluster.run("doctor")
        assert said.returncode != 0
        assert "certificate verify failed" in said.stdout + said.stderr
        refused = cluster.run("db", "upgrade", env={"FEEDQ_DATABASE_URL": database[1] + wrong})
        assert refused.returncode != 0
        assert "certificate verify failed" in refused.stderr


# -- TLS before a server that has none ---------------------------------------------------------------

SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)
"""With this a client of PostgreSQL asks whether the server speaks TLS."""
CHUNK_BYTES = 64 * 1024


class TlsProxy:
    """Listens on a free loopback port, and passes on what arrives encrypted."""

    def __init__(self, port: int, context: ssl.SSLContext, *, postgresql: bool) -> None:
        self._behind, self._context, self._postgresql = port, context, postgresql
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.passed_on = 0
        """Connections that were encrypted."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        # PostgreSQL begins in the clear; anything else with the handshake.
        context = None if self._postgresql else self._context
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._postgresql:
                if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                    return writer.close()
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
            self.passed_on += 1
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(_pass(reader, back_writer), _pass(back_reader, writer))
        return writer.close()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.close()
