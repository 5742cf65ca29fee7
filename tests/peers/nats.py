"""The other end of NATS for the tests: a server from Debian, with JetStream, and whoever publishes there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.peers.servers import PeerServer


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
