"""A NATS server with one JetStream stream, as far as a test lets it behave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from feedq.testing.loopback import PATIENCE_S, serving

INFO: dict[str, Any] = {"server_id": "S", "version": "2.10.0", "headers": True, "max_payload": 2**20}
CREATED = "2026-11-20T00:00:00Z"
NOT_FOUND = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}


def jetstream(subject: str, body: bytes, *, retention: str = "limits") -> bytes:
    """An answer of the API for a stream of nine messages, which has no consumer yet."""
    answer: dict[str, Any] = NOT_FOUND
    if ".STREAM.INFO." in subject:
        state = {"messages": 9, "bytes": 9, "first_seq": 1, "last_seq": 9, "consumer_count": 0}
        config = {"name": "orders", "retention": retention}
        answer = {"config": config, "state": state, "created": CREATED}
    elif ".CONSUMER.CREATE." in subject:
        config = json.loads(body)["config"]
        answer = {"stream_name": "orders", "name": config["name"], "created": CREATED, "config": config}
    return json.dumps(answer).encode()


class ScriptedServer:
    """Answers what a consumer's making asks for; messages are sent by the test."""

    def __init__(self) -> None:
        self.port = 0
        self.info = dict(INFO)
        self.heard = bytearray()
        """Everything that came."""
        self.logins: list[dict[str, Any]] = []
        self.refusal: str | None = None
        """Said instead of the answer to the first ping."""
        self.has_jetstream = True
        self.retention = "limits"
        self.consumers: list[dict[str, Any]] = []
        """The configuration of each consumer that was made."""
        self.acknowledged: list[str] = []
        self._inboxes: dict[str, bytes] = {}
        self._pull = ""
        self._pulled = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._delivered = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ScriptedServer]:
        async with serving(self._serve) as port:
            self.port = port
            yield self

    async def until_pulled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._pulled.wait()

    def deliver(self, seq: int, payload: bytes, *, skipping: int = 0) -> None:
        """To the consumer, which counts ``skipping`` deliveries that never arrive."""
        self._delivered += 1 + skipping
        reply = f"$JS.ACK.orders.c.1.{seq}.{self._delivered}.1795167253292007528.0"
        self._send("orders.new", reply, payload, to=self._pull)

    def say(self, status: str) -> None:
        """To the pull that is under way, as a message with nothing but a status."""
        assert self._writer is not None
        head = f"NATS/1.0 {status}\r\n\r\n".encode()
        sid = self._sid_of(self._pull).decode()
        self._writer.write(f"HMSG {self._pull} {sid} {len(head)} {len(head)}\r\n".encode() + head + b"\r\n")

    def complain(self, error: str) -> None:
        assert self._writer is not None
        self._writer.write(f"-ERR '{error}'\r\n".encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
        while line := await reader.readline():
            self.heard += line
            words = line.decode().split()
            match words[0]:
                case "CONNECT":
                    self.logins.append(json.loads(line[len("CONNECT ") :]))
                case "PING" if self.refusal is not None:
                    self.complain(self.refusal)
                    return
                case "PING":
                    writer.write(b"PONG\r\n")
                case "SUB":
                    self._inboxes[words[1]] = words[-1].encode()
                case "PUB":
                    body = await reader.readexactly(int(words[-1]) + 2)
                    self._handle(words[1], words[2] if len(words) == 4 else "", body[:-2])
            await writer.drain()

    def _handle(self, subject: str, reply: str, body: bytes) -> None:
        if subject.startswith("$JS.ACK."):
            self.acknowledged.append(subject)
        elif not self.has_jetstream:
            head = b"NATS/1.0 503\r\n\r\n"
            assert self._writer is not None
            start = f"HMSG {reply} {self._sid_of(reply).decode()} {len(head)} {len(head)}\r\n".encode()
            self._writer.write(start + head + b"\r\n")
        elif ".MSG.NEXT." in subject:
            self._pull = reply
            self._pulled.set()
        else:
            if ".CONSUMER.CREATE." in subject:
                self.consumers.append(json.loads(body)["config"])
            self._send(reply, "", jetstream(subject, body, retention=self.retention), to=reply)

    def _send(self, subject: str, reply: str, payload: bytes, *, to: str) -> None:
        assert self._writer is not None
        words = ["MSG", subject, self._sid_of(to).decode(), *([reply] if reply else []), str(len(payload))]
        self._writer.write(" ".join(words).encode() + b"\r\n" + payload + b"\r\n")

    def _sid_of(self, inbox: str) -> bytes:
        return next(
            sid for prefix, sid in self._inboxes.items() if inbox.startswith(prefix.removesuffix("*"))
        )
