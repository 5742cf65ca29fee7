"""The websocket connector against websocketd, whose WebSocket is that of gorilla/websocket in Go.

websocketd runs a program for each connection: what it prints are messages, a line each, and what it is sent it
reads as lines. Here that is one that prints numbered records after the cursor in the query, or in a message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.websocket import WebsocketConnector
from feedq.errors import SourceUnavailable
from feedq.testing.driver import ConnectorDriver
from tests.certificates import Authority
from tests.peers.servers import PeerServer

RECORDS = 20_000
PROGRAM = f"""
import json, os, sys
from urllib.parse import parse_qs
query = parse_qs(os.environ["QUERY_STRING"])
if "asks" in query:
    after = json.loads(sys.stdin.readline())["from"]
else:
    after = int(query.get("after", ["0"])[0])
told = {{"token": os.environ.get("HTTP_X_TOKEN"), "agent": os.environ.get("HTTP_USER_AGENT")}}
half = {RECORDS} // 2
last = half if "halves" in query and after < half else {RECORDS}
for seq in range((after or 0) + 1, last + 1):
    print(json.dumps({{"seq": seq, **told}}))
    told = {{}}
sys.stdout.flush()
if "stays" in query or last == half:
    sys.stdin.read()
"""


@pytest.fixture
def program(peer_dir: Path) -> str:
    path = peer_dir / "records.py"
    path.write_text(PROGRAM)
    return str(path)


def websocketd(directory: Path, *args: str) -> PeerServer:
    return PeerServer("websocketd", "--port={port}", "--address=127.0.0.1", *args, directory=directory)


@pytest.fixture
def server(peer_dir: Path, program: str) -> Iterator[PeerServer]:
    with websocketd(peer_dir, sys.executable, program) as running:
        yield running


def driver(server: PeerServer, query: str = "", *, scheme: str = "ws", **source: Any) -> ConnectorDriver:
    url = f"{scheme}://127.0.0.1:{server.port}/{query}"
    return ConnectorDriver(WebsocketConnector, {"url": url, "cursor": "/seq", **source})


async def test_a_feed_resumes_after_its_cursor_in_the_url(server: PeerServer) -> None:
    feed = driver(server, "?after={cursor}")
    while len(feed.records) < RECORDS:
        had = len(feed.records)
        # A connection for a few batches each: the rest of what it brought is never committed.
        error = await feed.read(enough=lambda: len(feed.records) >= had + 5_000)  # noqa: B023
        assert error is None or "closed by the peer" in str(error)
    assert [json.loads(record)["seq"] for record in feed.records] == [*range(1, RECORDS + 1)]


async def test_a_connection_that_waits_answers_pings_and_is_answered(server: PeerServer) -> None:
    feed = driver(server, "?after={cursor}&stays=1", ping_interval_s=0.1, ping_timeout_s=5, idle_timeout_s=2)
    feed.cursor = RECORDS - 1
    error = await feed.read()
    assert [json.loads(record)["seq"] for record in feed.records] == [RECORDS]
    # Twenty pings were answered, or it would have been given up for these.
    assert "no message received for 2 s (source.idle_timeout_s)" in str(error)


async def test_a_server_that_is_killed_is_told_and_resumed(peer_dir: Path, program: str) -> None:
    with websocketd(peer_dir, sys.executable, program) as server:
        feed = driver(server, "?after={cursor}&halves=1")

        def killed_half_way() -> bool:
            if len(feed.records) == RECORDS // 2:
                server.kill()
            return False

        assert isinstance(await feed.read(enough=killed_half_way), SourceUnavailable)
        assert "connection refused" in str(await feed.read())
        server.start()
        await feed.land(RECORDS)
    assert feed.cursor == len(feed.records) == RECORDS


async def test_it_streams_over_tls(peer_dir: Path, program: str) -> None:
    authority = Authority(peer_dir)
    files = authority.files("127.0.0.1")
    tls = (f"--sslcert={files['cert_file']}", f"--sslkey={files['key_file']}")
    with websocketd(peer_dir, "--ssl", *tls, sys.executable, program) as server:
        feed = driver(server, scheme="wss", ca_file=authority.ca_file)
        await feed.read()
        assert len(feed.records) == RECORDS
        assert "certificate is not accepted" in str(await driver(server, scheme="wss").read())
        assert "its answer is not HTTP/1.1; does it speak WebSocket on that port, and with TLS" in str(
            await driver(server).read()
        )
