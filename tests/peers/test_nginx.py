"""The http and sse connectors against nginx."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.http import HttpConnector
from feedq.connectors.sse import SseConnector
from feedq.core.model import JSON, Batch
from feedq.errors import FeedqError, SourceUnavailable
from feedq.local.process import free_port
from feedq.testing.loopback import Journal, serving
from tests.certificates import Authority
from tests.contract.http_source import chunk, head, read_request
from tests.contract.loopback import Feed, records_of
from tests.peers.servers import PeerServer

RECORDS = 200_000
CONFIG = """
daemon off;
master_process off;
user root;
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    log_format told '$status $request_uri $http_if_none_match';
    access_log {directory}/access.log told;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    ssl_certificate {cert_file}; ssl_certificate_key {key_file};
    types {{ application/x-ndjson ndjson; application/json json; }}
    server {{
        listen 127.0.0.1:{port};
        listen 127.0.0.1:{tls_port} ssl;
        root {directory}/www;
        location /packed/ {{ alias {directory}/www/; gzip on; gzip_types *; gzip_proxied any; }}
        location /events {{
            proxy_pass http://127.0.0.1:{source_port}; proxy_buffering off; proxy_http_version 1.1;
        }}
    }}
}}
"""


class Nginx(PeerServer):
    """nginx with some files, and a source behind it."""

    def __init__(self, directory: Path) -> None:
        self.www = directory / "www"
        self.www.mkdir()
        self.tls_port, self.source_port = free_port(), free_port()
        self.authority = Authority(directory)
        server = self.authority.files("127.0.0.1", "orders.acme.test")
        super().__init__(
            "nginx", "-e", "stderr", "-p", "{directory}", "-c", "{directory}/nginx.conf", directory=directory
        )
        ports = {"port": self.port, "tls_port": self.tls_port, "source_port": self.source_port}
        (directory / "nginx.conf").write_text(CONFIG.format(directory=directory, **ports, **server))

    def url(self, path: str, *, tls: bool = False) -> str:
        return f"https://127.0.0.1:{self.tls_port}{path}" if tls else f"http://127.0.0.1:{self.port}{path}"

    def told(self) -> list[list[str]]:
        """Status, address and ``If-None-Match`` of each request so far."""
        return [line.split(" ") for line in (self.directory / "access.log").read_text().splitlines()]


@pytest.fixture
def nginx(peer_dir: Path) -> Iterator[Nginx]:
    with Nginx(peer_dir) as server:
        yield server


def line(number: int) -> bytes:
    return b'{"seq": %d, "pad": "%b"}' % (number, b"x" * (number % 200))


async def ended(url: str, **source: Any) -> tuple[Sequence[bytes], FeedqError]:
    batches, error = await Feed(HttpConnector).read_to_end(url, **source)
    return records_of(batches), error


@pytest.mark.parametrize(
    ("path", "tls"), [("/", False), ("/packed/", False), ("/", True), ("/packed/", True)]
)
async def test_a_large_stream_comes_through_whole(nginx: Nginx, path: str, tls: bool) -> None:
    lines = [line(number) for number in range(1, RECORDS + 1)]
    (nginx.www / "orders.ndjson").write_bytes(b"\n".join([*lines, b""]))
    source = {"ca_file": nginx.authority.ca_file} if tls else {}
    records, error = await ended(nginx.url(f"{path}orders.ndjson", tls=tls), cursor="/seq", **source)
    assert records == lines
    assert isinstance(error, SourceUnavailable)
    assert "the source ended its answer" in str(error)


async def test_what_has_not_changed_is_answered_with_304(nginx: Nginx) -> None:
    content = nginx.www / "orders.json"
    content.write_bytes(b'{"items": [{"seq": 1}, {"seq": 2}]}')
    feed = Feed(HttpConnector)
    source = {"mode": "poll", "interval_s": 0.1, "records": "/items"}
    landed: list[bytes] = []
    cursor: JSON = None
    for grown in (b"", b', {"seq": 3}'):
        if grown:
            content.write_bytes(content.read_bytes().replace(b"]", grown + b"]"))
        async with aclosing(feed.open(nginx.url("/orders.json"), after=cursor, **source)) as stream:
            batch: Batch = await anext(stream)
            landed += batch.split()
            cursor = json.loads(json.dumps(batch.cursor))
            asked = len(nginx.told())
            waiting = asyncio.ensure_future(anext(stream))
            async with asyncio.timeout(20):
                while len(nginx.told()) < asked + 2:
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
    assert landed == [b'{"seq": 1}', b'{"seq": 2}', b'{"seq": 3}']
    statuses = [status for status, _, _ in nginx.told()]
    assert statuses.count("200") == 2
    assert "304" in statuses
    assert feed.connected == 2


async def test_events_behind_a_proxy_land_once_though_it_is_restarted(nginx: Nginx) -> None:
    journal = Journal()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = int((await read_request(reader)).headers.get("last-event-id", 0))
        writer.write(head(transfer_encoding="chunked", content_type="text/event-stream"))
        while True:
            for record in await journal.after(sent):
                sent += 1
                writer.write(chunk(b"id: %d\ndata: %b\n\n" % (sent, record)))
                await writer.drain()

    landed: list[bytes] = []
    cursor: JSON = None
    async with serving(script, port=nginx.source_port):
        while len(landed) < 3000:
            await journal.send([line(len(journal.records) + number) for number in range(1, 501)])
            feed = Feed(SseConnector)
            async with asyncio.timeout(20), aclosing(feed.open(nginx.url("/events"), after=cursor)) as stream:
                with contextlib.suppress(SourceUnavailable):
                    async for batch in stream:
                        landed += batch.split()
                        cursor = batch.cursor
                        nginx.kill()
            assert feed.connected == 1
            nginx.start()
    assert landed == [line(number) for number in range(1, len(landed) + 1)]
