"""Each of feedq's connectors, and blocking ones, do what every connector must."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field
from redis.asyncio import Redis

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.blocking import dialed
from feedq.connectors.exec import ExecConnector
from feedq.connectors.file import FileConnector
from feedq.connectors.http import HttpConnector
from feedq.connectors.mqtt import MqttConnector
from feedq.connectors.reading import RecordStream
from feedq.connectors.redis import RedisConnector
from feedq.connectors.sse import SseConnector
from feedq.connectors.tcp import TcpConnector
from feedq.connectors.websocket import WebsocketConnector
from feedq.core.model import JSON
from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.local.valkey import Valkey
from feedq.records.batch import Batch, Records
from feedq.records.cursor import CursorReader
from feedq.records.framing import LineFramer
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.driver import SECRET, ConnectorDriver
from feedq.testing.loopback import Journal
from tests.contract.http_source import answer, chunk, head, read_request
from tests.contract.mqtt_broker import ScriptedBroker
from tests.contract.websocket_server import TEXT, accept, frame, read_frame

TOKEN = {"secrets": {"token": "${env:ACME_TOKEN}"}}
BEARER = {"headers": {"Authorization": "Bearer {token}"}, **TOKEN}


class ConformanceInSteps(ConnectorConformance):
    """Resets at every third byte: that of each connector at every byte would take a minute.

    What is sent of a record has no multiple of three bytes, so that the four records together are cut everywhere.
    """

    def cuts(self, down_bytes: int) -> Sequence[int]:
        return range(0, down_bytes + 1, 3)


# -- tcp -----------------------------------------------------------------------------------------------


class TestTcp(ConformanceInSteps):
    """With a source that sends what comes after the cursor in its hello."""

    kind = TcpConnector
    answers = False

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        after = json.loads(await reader.readline())["from"] or 0
        await journal.send_all(writer, lambda _, record: record + b"\n", after=after)

    def options(self, where: str) -> dict[str, Any]:
        hello = r'{"from": {cursor}, "token": "{token}"}\n'
        return {"url": f"tcp://{where}", "hello": hello, "cursor": "/seq", **TOKEN}


# -- http and sse --------------------------------------------------------------------------------------


class TestHttpStream(ConformanceInSteps):
    """An answer of NDJSON that never ends, in chunks, to a request that holds the cursor."""

    kind = HttpConnector

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        after = int((await read_request(reader)).parameter("after") or 0)
        writer.write(head(transfer_encoding="chunked", content_type="application/x-ndjson"))
        await journal.send_all(writer, lambda _, record: chunk(record + b"\n"), after=after)

    def options(self, where: str) -> dict[str, Any]:
        return {"url": f"http://{where}/orders?after={{cursor}}&key={{token}}", "cursor": "/seq", **BEARER}


class TestHttpPoll(ConformanceInSteps):
    """Pages with the cursor of the next one, from a source that answers once it has something."""

    kind = HttpConnector
    notices_silence = False
    page_records = 50

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            after = int((await read_request(reader)).parameter("after") or 0)
            records = (await journal.after(after))[: self.page_records]
            body = b'{"data": {"items": [%b]}, "next": %d}' % (b",".join(records), after + len(records))
            # A kept connection that ends right after a request is made anew without a word.
            writer.write(answer(body, connection="close"))
            await writer.drain()

    def options(self, where: str) -> dict[str, Any]:
        poll = {"mode": "poll", "interval_s": 0.1, "records": "/data/items", "next_cursor": "/next"}
        return {"url": f"http://{where}/orders?after={{cursor}}&key={{token}}", **poll, **BEARER}


class TestSse(ConformanceInSteps):
    """Events with ids, from a source that resumes after the last one."""

    kind = SseConnector

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        after = int((await read_request(reader)).headers.get("last-event-id", 0))
        writer.write(head(transfer_encoding="chunked", content_type="text/event-stream"))
        await journal.send_all(writer, lambda seq, record: chunk(self.event(seq, record)), after=after)

    def event(self, seq: int, record: bytes) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (seq, record)

    def options(self, where: str) -> dict[str, Any]:
        return {"url": f"http://{where}/events?key={{token}}", **BEARER}


# -- websocket -----------------------------------------------------------------------------------------


class TestWebsocket(ConformanceInSteps):
    """With the cursor in a subscription, and a frame a record, as nearly every server has it."""

    kind = WebsocketConnector

    async def script(
        self, journal: Journal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await accept(reader, writer)
        opcode, subscription = await read_frame(reader)
        assert opcode == TEXT
        after = json.loads(subscription)["from"] or 0
        await journal.send_all(writer, lambda _, record: frame(record), after=after)

    def options(self, where: str) -> dict[str, Any]:
        subscribe = '{"from": {cursor}, "token": "{token}"}'
        url = f"ws://{where}/feed?token={{token}}"
        return {"url": url, "subscribe": subscribe, "cursor": "/seq", **TOKEN}


# -- file and exec -------------------------------------------------------------------------------------


class TestFile(ConformanceInSteps):
    """Against a file that somebody appends to."""

    kind: ClassVar[Any] = FileConnector
    dials = False

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.path = tmp_path / "feed.jsonl"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        self.path.write_bytes(b"")

        async def send(records: Sequence[bytes]) -> None:
            with self.path.open("ab", buffering=0) as file:
                file.write(b"".join(record + b"\n" for record in records))

        yield Served(str(self.path), send)

    def options(self, where: str) -> dict[str, Any]:
        return {"path": where, "poll_interval_s": 0.01}


FOLLOW = """
import sys, time
path, last = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as file:
    while True:
        line = file.readline()
        if not line:
            time.sleep(0.01)
        elif int(line.split(b",")[0].split(b":")[1]) > last:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
"""
"""A program that begins after the cursor that it is given."""


class TestExec(TestFile):
    """With a program that follows a file."""

    kind = ExecConnector

    def options(self, where: str) -> dict[str, Any]:
        command = [sys.executable, "-I", "-c", FOLLOW.replace("\\", "\\\\"), where, "{cursor}"]
        return {"command": command, "cursor": "/seq", "first_cursor": "0"}

    def driver(self, where: str, *, permissions: Permissions = DEFAULT, **options: Any) -> ConnectorDriver:
        return super().driver(where, permissions=Permissions(programs=(sys.executable,)), **options)


# -- redis and mqtt ------------------------------------------------------------------------------------

DATABASE = 7


class TestRedisField(ConnectorConformance):
    """A record is the value of one field; with a stream of its own for each test, on the server of the session."""

    kind = RedisConnector

    def cuts(self, down_bytes: int) -> Sequence[int]:
        # Much that goes over the wire is of the server's greeting.
        return range(0, down_bytes + 1, 11)

    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey) -> None:
        self.server = valkey
        client = valkey.client(DATABASE)
        client.acl_setuser(
            "conformance", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all"]
        )
        client.close()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        client = Redis.from_url(self.server.url(DATABASE))
        try:
            yield Served(f"127.0.0.1:{self.server.port}", lambda records: self.add(client, records))
        finally:
            await client.delete(self.feed)
            await client.aclose()

    async def add(self, client: Redis, records: Sequence[bytes]) -> None:
        for start in range(0, len(records), 100):
            pipeline = client.pipeline(transaction=False)
            for record in records[start : start + 100]:
                pipeline.xadd(self.feed, {"source": "conformance", "data": record})
            await pipeline.execute()

    def options(self, where: str) -> dict[str, Any]:
        login = {"username": "conformance", "password": "{token}", **TOKEN}
        return {"url": f"redis://{where}/{DATABASE}", "streams": [self.feed], "field": "data", **login}


class TestMqtt5(ConformanceInSteps):
    """With one session, in which the messages wait for the feed; `tests/peers` has a real broker."""

    kind = MqttConnector
    resumes = False
    acknowledges = True
    version = "5"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        async with ScriptedBroker(is_5=self.version == "5").listening() as broker:

            async def acknowledged() -> int:
                return len(broker.acknowledged)

            yield Served(f"127.0.0.1:{broker.port}", broker.publish, acknowledged)

    def options(self, where: str) -> dict[str, Any]:
        login = {"username": "conformance", "password": "{token}", **TOKEN}
        return {"url": f"mqtt://{where}", "topics": ["t/#"], "version": self.version, **login}


class TestMqtt311(TestMqtt5):
    version = "3.1.1"


# -- blocking ------------------------------------------------------------------------------------------


class PlainOptions(ConnectorOptions):
    host: str = Field(description="Where the source listens.")
    port: int = Field(description="And on which port.")
    max_record_bytes: int = Field(default=2**20, description="A larger record fails the feed.")
    idle_timeout_s: float = Field(default=60.0, description="A silent source is connected to anew.")


class PlainConnector:
    """Lines over TCP, after a hello that carries the cursor."""

    Options: ClassVar[type[ConnectorOptions]] = PlainOptions

    def __init__(self, options: PlainOptions, context: Context) -> None:
        self._options = options
        self._context = context

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        options = self._options
        stream = RecordStream(
            LineFramer(options.max_record_bytes),
            self._context,
            cursor=cursor,
            follow=CursorReader("/seq").after,
            refuse=lambda *_: FeedMisconfigured("a record over source.max_record_bytes"),
        )
        with dialed(options.host, options.port, context=self._context, timeout_s=10) as sock:
            try:
                sock.settimeout(options.idle_timeout_s)
                sock.sendall(json.dumps({"from": cursor}).encode() + b"\n")
                self._context.on_connected()
                while data := sock.recv(65_536):
                    yield from stream.take(data)
            except TimeoutError:
                raise SourceSilent("nothing received") from None
            except OSError as error:
                raise SourceUnavailable(f"broke off: {error}") from error
        raise SourceUnavailable("closed by the peer")


class TestBlocking(TestTcp):
    kind: ClassVar[Any] = PlainConnector

    def options(self, where: str) -> dict[str, Any]:
        host, _, port = where.rpartition(":")
        return {"host": host, "port": int(port), **TOKEN}


class SpoolOptions(ConnectorOptions):
    directory: Path = Field(description="Where files appear, each one record.")


class SpoolConnector:
    """Files that appear in a directory, in the order of their names."""

    Options: ClassVar[type[ConnectorOptions]] = SpoolOptions

    def __init__(self, options: SpoolOptions, context: Context) -> None:
        self._options = options
        self._context = context

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        last = cursor if isinstance(cursor, str) else ""
        self._context.on_connected()
        while not self._context.stopping.wait(0.01):
            for path in sorted(p for p in self._options.directory.glob("*.json") if p.name > last):
                last = path.name
                yield Records(records=(path.read_bytes(),)).batch(
                    cursor=last, received_at=self._context.clock.now()
                )


class TestBlockingWithoutSocket(ConformanceInSteps):
    kind = SpoolConnector
    dials = False
    limits_records = False
    notices_silence = False

    @pytest.fixture(autouse=True)
    def _spool(self, tmp_path: Path) -> None:
        self._directory = tmp_path

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        sent = 0

        async def send(records: Sequence[bytes]) -> None:
            nonlocal sent
            for record in records:
                spooled = self._directory / f"{sent:06}"
                spooled.write_bytes(record)
                spooled.rename(spooled.with_suffix(".json"))
                sent += 1

        yield Served(str(self._directory), send)

    def options(self, where: str) -> dict[str, Any]:
        return {"directory": where}
